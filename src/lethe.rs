//! Encode arithmetic: one file a scheme, the mirror of `remember/`. Files here know slices and no names.

#[cfg(feature = "lethe")]
pub(crate) mod distance;
#[cfg(all(feature = "lethe", feature = "gguf"))]
pub(crate) mod ggml;
#[cfg(feature = "qnat")]
pub(crate) mod qnat;
