//! Encode arithmetic, the mirror image of `remember/`: a file for each scheme, slices in and slices
//! out. No file here knows names, shapes or containers.
//!
//! - `integer`, `fp8`, `mx`, `nvfp4`, `mlx`, `codebook` (with `bnb` and `qnat`), `int8` and `ggml`
//!   make codes and scales. They do the float operations of a named library in its order, so that
//!   the bytes are those of that library.
//! - `groups` is the kernel that `mx` and `nvfp4` share, `narrow` the rounding to floats of eight
//!   bits and four, `compute_dtype` the rounding to the model's dtype between operations.
//! - `dfloat11` makes Huffman codes of exponents.
//! - `activations` says what errors cost where scales are searched.
//! - `pack` puts codes into words; `magnitudes` finds the largest; `mean` and `distance` are sums
//!   over what was encoded.

pub(crate) mod bnb;
pub(crate) mod codebook;
pub(crate) mod int8;

#[cfg(feature = "lethe")]
pub(crate) mod activations;
#[cfg(feature = "lethe")]
pub(crate) mod compute_dtype;
#[cfg(feature = "lethe")]
pub(crate) mod dfloat11;
#[cfg(feature = "lethe")]
pub(crate) mod distance;
#[cfg(feature = "lethe")]
pub(crate) mod fp8;
#[cfg(feature = "lethe")]
pub(crate) mod ggml;
#[cfg(feature = "lethe")]
pub(crate) mod groups;
#[cfg(feature = "lethe")]
pub(crate) mod integer;
#[cfg(feature = "lethe")]
pub(crate) mod magnitudes;
#[cfg(feature = "lethe")]
pub(crate) mod mean;
#[cfg(feature = "lethe")]
pub(crate) mod mlx;
#[cfg(feature = "lethe")]
pub(crate) mod mx;
#[cfg(feature = "lethe")]
pub(crate) mod narrow;
#[cfg(feature = "lethe")]
pub(crate) mod nvfp4;
#[cfg(feature = "lethe")]
pub(crate) mod pack;
#[cfg(feature = "lethe")]
pub(crate) mod qnat;
#[cfg(feature = "lethe")]
pub(crate) mod rotated;
#[cfg(all(test, feature = "lethe"))]
mod tests;
