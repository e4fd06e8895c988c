//! Layouts of codes and scales that several schemes share.

#[cfg(any(feature = "gptq", feature = "awq"))]
pub(crate) mod packed;
pub(crate) mod strided;
pub(crate) mod tiled;
