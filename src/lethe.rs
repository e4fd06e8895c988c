//! Encode arithmetic: one file a scheme, the mirror of `remember/`. Files here know slices and no names.

#[cfg(feature = "bnb")]
pub(crate) mod bnb;
#[cfg(feature = "bnb")]
pub(crate) mod bytes;
#[cfg(any(feature = "bnb", feature = "qnat"))]
pub(crate) mod codebook;
pub(crate) mod compute_dtype;
pub(crate) mod distance;
pub(crate) mod fp8;
#[cfg(feature = "gguf")]
pub(crate) mod ggml;
pub(crate) mod groups;
#[cfg(feature = "bnb")]
pub(crate) mod int8;
pub(crate) mod integer;
pub(crate) mod mean;
pub(crate) mod mlx;
pub(crate) mod mx;
pub(crate) mod narrow;
#[cfg(feature = "nvfp4")]
pub(crate) mod nvfp4;
pub(crate) mod pack;
#[cfg(feature = "qnat")]
pub(crate) mod qnat;
pub mod round_trip;
#[cfg(test)]
#[cfg(all(feature = "bnb", feature = "qnat"))]
mod tests;

#[cfg(feature = "bnb")]
pub use self::bnb::{FP4_CODEBOOK, NF4_CODEBOOK};
#[cfg(feature = "bnb")]
pub use self::bytes::{
    encode_bnb_int8, encode_bnb_int8_compute_scb, encode_bnb4, encode_bnb4_compute_absmax,
    encode_bnb4_double_quant,
};
#[cfg(feature = "bnb")]
pub use crate::forget::bnb_file::{
    BnbNf4WriteStats, BnbWriteInput, NF4_BLOCK_SIZE, classify_inputs, is_eligible_for_nf4,
    write_bnb_nf4_safetensors, write_bnb_nf4_safetensors_bytes,
};
