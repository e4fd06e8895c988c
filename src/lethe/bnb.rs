//! BitsAndBytes as transformers saves it: single tensors, files of NF4, and layers of models.
//!
//! - 4-bit: `X.weight` U8 `[⌈n/2⌉, 1]`, `.absmax`, `.quant_map`,
//!   `.quant_state.bitsandbytes__nf4|fp4` and, double-quantized, `.nested_absmax` and
//!   `.nested_quant_map`.
//! - INT8: `X.weight` I8 `[out, in]`, `X.SCB` F32 `[out]`, `X.weight_format` U8 `[]`.
//!
//! Config: transformers 5.23 `BitsAndBytesConfig.to_dict`.

#[cfg(feature = "lethe")]
mod four_bit;
#[cfg(feature = "lethe")]
mod int8;
#[cfg(feature = "lethe")]
mod linear;
#[cfg(test)]
#[cfg(feature = "lethe")]
mod tests;

#[cfg(feature = "lethe")]
pub(crate) use self::four_bit::{Bnb4, Bnb4QuantType};
#[cfg(feature = "lethe")]
pub(crate) use self::int8::BnbInt8;
pub use super::kernels::bnb::{FP4_CODEBOOK, NF4_CODEBOOK};
pub use crate::compat::bnb_file::{
    BnbNf4WriteStats, BnbWriteInput, NF4_BLOCK_SIZE, classify_inputs, is_eligible_for_nf4,
    write_bnb_nf4_safetensors, write_bnb_nf4_safetensors_bytes,
};
pub use crate::compat::encode::{
    encode_bnb_int8, encode_bnb_int8_compute_scb, encode_bnb4, encode_bnb4_compute_absmax,
    encode_bnb4_double_quant,
};
