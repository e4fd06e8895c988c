//! bitsandbytes' 4-bit codes, as it quantizes on a CPU; `nested` has their double-quantized scales.
//!
//! Algorithm: bitsandbytes 0.50.2 `backends/default/ops.py`, `quantize_4bit` (the path of CPUs).

#[cfg(feature = "lethe")]
pub(crate) mod nested;

use super::codebook::{BlockNorm, CodebookEncoder};
use crate::sort::sort_by;

/// The levels of NF4, by code.
#[rustfmt::skip]
pub const NF4_CODEBOOK: [f32; 16] = [
    -1.0, -0.696_192_8, -0.525_073_05, -0.394_917_5, -0.284_441_38, -0.184_773_43, -0.091_050_036, 0.0,
    0.079_580_3, 0.160_930_2, 0.246_112_3, 0.337_915_24, 0.440_709_83, 0.562_617, 0.722_956_84, 1.0,
];

/// The levels of FP4, by code. bitsandbytes decodes code 8 to -0; the map in its files has +0
/// there.
#[rustfmt::skip]
pub const FP4_CODEBOOK: [f32; 16] = [
    0.0, 0.005_208_333_5, 0.666_666_7, 1.0, 0.333_333_34, 0.5, 0.166_666_67, 0.25,
    -0.0, -0.005_208_333_5, -0.666_666_7, -1.0, -0.333_333_34, -0.5, -0.166_666_67, -0.25,
];

// The digits above have to give the library's floats, whose bits are known.
const _: () =
    assert!(NF4_CODEBOOK[1].to_bits() == 0xbf32_39b1 && NF4_CODEBOOK[14].to_bits() == 0x3f39_13b3);
const _: () =
    assert!(FP4_CODEBOOK[1].to_bits() == 0x3baa_aaab && FP4_CODEBOOK[2].to_bits() == 0x3f2a_aaab);

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
