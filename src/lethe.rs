//! Encoding (quantizing), the mirror image of [`remember`](crate::remember): what a tensor becomes
//! under each scheme that models are encoded to. The public functions encode single tensors into
//! slices.
//!
//! A scheme's file knows the names, types and shapes of the stored tensors, the order of their
//! bytes, and what `config.json` says of them. The arithmetic (scales, rounding, searches) is in
//! `kernels`.
//!
//! - `scheme`: a scheme with its parameters; `quant_scheme`: names of schemes to decode; `schemes`: the table of them; `scheme_names`: by name.
//! - `decide`, `decision`: which tensors of a model are encoded, and why the others are not.
//! - `seam`: the traits between the pipeline and the schemes, and the code that schemes share.
//! - `gguf`: the types of a GGUF file's tensors, by llama.cpp's rules; `imatrix`: importance matrices,
//!   which some types need and others use; `importance`: what they say of values whose scales are
//!   searched; `activation_scales`: with which activations are quantized; `input_scales`: columns that
//!   are multiplied with what norms are divided by; `llama_names`: names of tensors in llama.cpp.
//! - `scheme`, `schemes`: the schemes by their names; `forget`: what is encoded, and how; `mixed`: models
//!   of several schemes.
//! - All others: one stored layout each.

#[cfg(feature = "lethe")]
mod activation_scales;
#[cfg(feature = "lethe")]
mod awq;
#[cfg(feature = "bnb")]
pub mod bnb;
#[cfg(feature = "lethe")]
mod comfy;
#[cfg(feature = "lethe")]
mod compressed_tensors;
#[cfg(feature = "lethe")]
mod decide;
#[cfg(feature = "lethe")]
mod decision;
#[cfg(feature = "lethe")]
mod dfloat11;
#[cfg(test)]
#[cfg(feature = "lethe")]
mod float_tests;
#[cfg(feature = "lethe")]
mod forget;
#[cfg(feature = "lethe")]
mod fp8;
#[cfg(feature = "lethe")]
mod ggml;
#[cfg(feature = "lethe")]
mod gguf;
#[cfg(feature = "lethe")]
mod gptq;
#[cfg(feature = "lethe")]
mod hqq;
#[cfg(feature = "lethe")]
mod imatrix;
#[cfg(feature = "lethe")]
mod importance;
#[cfg(all(feature = "lethe", feature = "models"))]
mod input_scales;
#[cfg(feature = "bnb")]
pub(crate) mod kernels;
#[cfg(feature = "lethe")]
pub(crate) mod llama_names;
#[cfg(feature = "lethe")]
mod loaders;
#[cfg(feature = "lethe")]
mod mixed;
#[cfg(feature = "lethe")]
mod mlx;
#[cfg(feature = "lethe")]
mod mx;
#[cfg(feature = "lethe")]
mod nvfp4;
#[cfg(feature = "lethe")]
mod qnat;
#[cfg(feature = "lethe")]
mod quant_scheme;
#[cfg(feature = "lethe")]
mod scheme;
#[cfg(feature = "lethe")]
mod scheme_names;
#[cfg(feature = "lethe")]
mod schemes;
#[cfg(feature = "lethe")]
mod sdnq;
#[cfg(feature = "lethe")]
pub(crate) mod seam;
#[cfg(test)]
#[cfg(feature = "lethe")]
mod tests_support;

#[cfg(feature = "bnb")]
#[doc(no_inline)]
pub use self::bnb::*;
#[cfg(feature = "lethe")]
pub(crate) use self::decide::{check, decide};
#[cfg(feature = "lethe")]
pub(crate) use self::decision::{Candidate, Decision, Decisions};
#[cfg(feature = "lethe")]
pub use self::forget::{Forget, GgufTypes};
#[cfg(feature = "lethe")]
pub(crate) use self::ggml::Ggml;
#[cfg(feature = "lethe")]
pub(crate) use self::gguf::ALREADY;
#[cfg(feature = "lethe")]
pub(crate) use self::imatrix::Imatrix;
#[cfg(feature = "lethe")]
pub(crate) use self::importance::{Importance, TileStatistics};
#[cfg(all(feature = "lethe", feature = "models"))]
pub(crate) use self::input_scales::{
    InputReader, InputScales, NormValues, SampledRows, find_input_scales,
};
#[cfg(all(feature = "lethe", feature = "models"))]
pub(crate) use self::mixed::choices;
#[cfg(feature = "lethe")]
pub(crate) use self::mixed::config_of_mixture;
#[cfg(feature = "lethe")]
pub use self::quant_scheme::QuantScheme;
#[cfg(feature = "lethe")]
pub use self::scheme::ForgetScheme;
#[cfg(all(feature = "lethe", feature = "models"))]
pub(crate) use self::seam::names::of_one_scheme;
#[cfg(feature = "lethe")]
pub(crate) use self::seam::names::{fused, is_embedding, unstored_head};
#[cfg(feature = "lethe")]
pub(crate) use self::seam::{
    Encode, EncodeBuffers, ExponentTile, Method, Put, RelayTarget, Scope, StoreCodes, StoredTensor,
    Survey, TileValues, WeightInfo,
};
pub use crate::compat::round_trip;
