//! Layouts of codes and scales that several schemes share.

pub(crate) mod adapted;
#[cfg(feature = "models")]
pub(crate) mod alternate;
#[cfg_attr(not(feature = "models"), allow(dead_code))]
pub(crate) mod assembled;
#[cfg(feature = "gguf")]
pub(crate) mod column_factors;
pub(crate) mod e5m3;
pub(crate) mod first_columns;
pub(crate) mod group_size;
pub(crate) mod hadamard;
pub(crate) mod lines;
pub(crate) mod low_rank;
pub(crate) mod marlin_tiles;
pub(crate) mod padding;
#[cfg(feature = "models")]
pub(crate) mod placed_blocks;
pub(crate) mod rescaled;
pub(crate) mod shifted_bias;
pub(crate) mod strided;
pub(crate) mod strips;
pub(crate) mod tiled;
pub(crate) mod transformed;
pub(crate) mod transposed;
pub(crate) mod vector;
pub(crate) mod vectors;
