//! Decode arithmetic. Kernels take slices and know no tensor names.
//!
//! One file each for what schemes share (`cast`, `codebook`, `fp8`, `grouped`, `packed`,
//! `scale_grid`, `vectors`, `widen`), for products with matrices (`hadamard`, `low_rank`,
//! `matrix_product`, `rotated`, `transform`), for what is done to values besides (`overflow`,
//! `rescale`, `transpose`), and for each scheme with arithmetic of its own.
//!
//! Every value is computed in f32 by the canonical library's formula, in its order, and is then
//! rounded once to the output type. A product and a sum are fused only where that gives the same
//! bits.

pub(crate) mod awq;
pub(crate) mod bnb;
pub(crate) mod cast;
pub(crate) mod codebook;
pub(crate) mod codebook_groups;
#[cfg(feature = "gguf")]
pub(crate) mod column_factors;
pub(crate) mod dfloat11;
pub(crate) mod exl2;
pub(crate) mod exl3;
pub(crate) mod fp4_pairs;
pub(crate) mod fp8;
#[cfg(feature = "gguf")]
pub(crate) mod ggml;
pub(crate) mod gptq;
pub(crate) mod grouped;
pub(crate) mod hadamard;
pub(crate) mod low_rank;
pub(crate) mod marlin;
pub(crate) mod matrix_product;
pub(crate) mod nvfp4;
pub(crate) mod overflow;
pub(crate) mod packed;
pub(crate) mod paroquant;
pub(crate) mod qnat;
pub(crate) mod rescale;
pub(crate) mod rotated;
pub(crate) mod rotated_pairs;
pub(crate) mod rounding_margin;
pub(crate) mod scale_grid;
pub(crate) mod sdnq;
pub(crate) mod spqr;
#[cfg(test)]
mod tests;
pub(crate) mod transform;
pub(crate) mod transpose;
pub(crate) mod vectors;
pub(crate) mod widen;
