//! Encode arithmetic: one file a scheme, the mirror of `remember/`. Files here know slices and no names.

#[cfg(feature = "bnb")]
pub(crate) mod bnb;
#[cfg(any(feature = "bnb", feature = "qnat"))]
pub(crate) mod codebook;
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
#[cfg(test)]
#[cfg(all(feature = "bnb", feature = "qnat"))]
mod tests;
