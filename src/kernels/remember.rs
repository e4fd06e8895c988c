//! Decode arithmetic, one file a scheme. Kernels take slices and know no tensor names.
//!
//! Every value is computed in f32 by the canonical library's formula, in its order, without FMA, and is
//! then rounded once to the output type.

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
