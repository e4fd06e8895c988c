//! Layouts of codes and scales that several schemes share.

#[cfg(feature = "models")]
pub(crate) mod alternate;
#[cfg(feature = "models")]
pub(crate) mod assembled;
pub(crate) mod group_size;
pub(crate) mod low_rank;
pub(crate) mod packed;
pub(crate) mod strided;
pub(crate) mod tiled;
#[cfg(feature = "models")]
pub(crate) mod transposed;
