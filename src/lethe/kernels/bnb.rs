//! bitsandbytes' 4-bit codes, as it quantizes on a CPU; `nested` has their double-quantized scales.
//!
//! Algorithm: bitsandbytes 0.50.2 `backends/default/ops.py`, `quantize_4bit` (the path of CPUs).

#[cfg(feature = "lethe")]
pub(crate) mod nested;

use super::codebook::{BlockNorm, CodebookEncoder};
pub use crate::remember::kernels::bnb::{FP4_CODEBOOK, NF4_CODEBOOK};
use crate::sort::sort_by;

/// The encoder of `codebook`, which takes the nearest level, the lower one of two that are equally
/// near.
///
/// Equal levels keep the order of their codes. Of FP4's zeros, values at 0 and just below it get
/// code 0, and those just above it code 8, as in bitsandbytes.
pub(crate) fn codebook_encoder(codebook: &[f32; 16]) -> CodebookEncoder {
    let mut codes: [u8; 16] = std::array::from_fn(|code| code as u8);
    let level = |code: u8| codebook[usize::from(code)];
    // The order is total and stable; +0 takes the sign of a zero away, so that it does not order
    // the two zeros.
    sort_by(&mut codes, |&a, &b| (level(a) + 0.0).total_cmp(&(level(b) + 0.0)));
    let bounds: [f32; 15] = std::array::from_fn(|i| (level(codes[i]) + level(codes[i + 1])) / 2.0);
    // The rank of 0, with which bitsandbytes pads an odd number of values.
    let zero = bounds.iter().filter(|&&bound| bound < 0.0).count() as u8;
    CodebookEncoder::new(codebook, bounds, &codes, true, zero, BlockNorm::BitsAndBytes)
}
