//! ggml's block types, encoded as ggml's reference does: the same sums in the same order, no FMA.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_*`.

use crate::Dtype;
use crate::simd::Level;

/// Encodes whole rows of so many values, with the importance of each column if it is known.
pub(crate) type Encoder = fn(values: &[f32], cols: usize, importance: Option<&[f32]>, level: Level, out: &mut [u8]);

/// The encoder of a block type.
pub(crate) fn encoder(dtype: Dtype) -> Option<Encoder> {
    let _ = dtype;
    None
}
