//! Decode arithmetic, one file a scheme. Kernels take slices and know no tensor names.
//!
//! Every value is computed in f32 by the canonical library's formula, in its order, without FMA, and is
//! then rounded once to the output type.

mod api;
#[cfg(feature = "awq")]
pub(crate) mod awq;
#[cfg(feature = "bnb")]
pub(crate) mod bnb;
#[cfg(any(feature = "bnb", feature = "nvfp4"))]
pub(crate) mod codebook;
pub(crate) mod fp8;
#[cfg(feature = "gguf")]
pub(crate) mod ggml;
#[cfg(feature = "gptq")]
pub(crate) mod gptq;
pub(crate) mod grouped;
#[cfg(feature = "nvfp4")]
pub(crate) mod low_rank;
#[cfg(feature = "nvfp4")]
pub(crate) mod nvfp4;
pub(crate) mod packed;
#[cfg(feature = "qnat")]
pub(crate) mod qnat;
#[cfg(test)]
mod tests;
pub(crate) mod widen;

#[cfg(feature = "awq")]
pub use self::api::dequantize_awq_to_bf16;
#[cfg(feature = "gptq")]
pub use self::api::dequantize_gptq_to_bf16;
#[cfg(feature = "bnb")]
pub use self::api::{dequantize_bnb_int8_to_bf16, dequantize_bnb4_to_bf16};
pub use self::api::{
    dequantize_fp8_to_bf16, dequantize_per_channel_fp8_to_bf16, dequantize_per_tensor_fp8_to_bf16,
};
#[cfg(feature = "gguf")]
pub use self::api::{dequantize_gguf_blocks_to_bf16, dequantize_gguf_to_bf16};
#[cfg(feature = "npz")]
pub use crate::parse::{npz_to_safetensors, npz_to_safetensors_bytes};
#[cfg(feature = "pth")]
pub use crate::parse::{pth_to_safetensors, pth_to_safetensors_bytes};
