//! Encoding: what a tensor becomes under each scheme that models are encoded to. The mirror image
//! of `scheme`.
//!
//! A scheme's file knows the names, types and shapes of the stored tensors, the order of their
//! bytes, and what `config.json` says of them. The arithmetic (scales, rounding, searches) is in
//! `kernels/lethe/`.
//!
//! - `scheme`, `schemes`: schemes by name, and the table of them.
//! - `decision`: which tensors of a model are encoded, and why the others are not.
//! - `seam`: the traits between the pipeline and the schemes, and the code that schemes share.
//! - `gguf`: the types of a GGUF file's tensors, by llama.cpp's rules.
//! - All others: one stored layout each.

mod awq;
pub(crate) mod bnb;
mod comfy;
mod compressed_tensors;
mod decision;
mod dfloat11;
#[cfg(test)]
mod float_tests;
mod fp8;
mod ggml;
mod gguf;
mod gptq;
mod loaders;
mod mlx;
mod mx;
mod nvfp4;
mod qnat;
mod scheme;
mod schemes;
pub(crate) mod seam;
#[cfg(test)]
mod tests_support;

pub(crate) use self::decision::{Candidate, Decision, Decisions, decide};
#[cfg_attr(not(feature = "cli"), allow(unused_imports))]
pub(crate) use self::gguf::ALREADY;
pub use self::scheme::{Forget, ForgetScheme, GgufTypes};
pub(crate) use self::seam::names::{fused, is_embedding, unstored_head};
pub(crate) use self::seam::{
    Encode, EncodeBuffers, ExponentTile, Method, Put, RelayTarget, Scope, StoreCodes, StoredTensor,
    Survey, TileValues, WeightInfo,
};
