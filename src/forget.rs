//! Forgetting: what becomes of a tensor under each scheme that models are encoded to. Files here know names, shapes and
//! configs; the arithmetic is in `kernels/lethe/`.

#[cfg(feature = "awq")]
mod awq;
#[cfg(feature = "bnb")]
pub(crate) mod bnb;
mod choice;
mod compressed_tensors;
mod ct_config;
#[cfg(test)]
mod float_tests;
mod fp8;
#[cfg(feature = "gguf")]
mod ggml;
#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "gptq")]
mod gptq;
mod mlx;
mod mx;
#[cfg(feature = "nvfp4")]
mod nvfp4;
#[cfg(feature = "qnat")]
mod qnat;
mod scheme;
mod schemes;
pub(crate) mod seam;
#[cfg(test)]
#[cfg(all(feature = "bnb", feature = "qnat"))]
mod tests;

pub(crate) use self::choice::{Choice, Choices, Subject, choose};
pub use self::scheme::{Forget, ForgetScheme};
pub(crate) use self::seam::names::fused;
pub(crate) use self::seam::{
    Encode, Method, Put, RelayTarget, Scope, StoreCodes, Stored, Survey, Values, Weight,
};
