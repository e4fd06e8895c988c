//! AWQ, GEMM layout: `w = (q - z) * s`, eight output columns to a word, interleaved.
//!
//! Formula and order: AutoAWQ `packing_utils.dequantize_gemm`, `reverse_awq_order`. The difference
//! of two integers of four bits is exact in F32, so the product's rounding is the only one.

use std::ops::Range;

pub(crate) use super::transpose::PER_WORD;
use crate::element::Element;
use crate::simd::{Kernel, zip};

/// Position in a word of output column `c` of its eight.
pub(crate) const POSITION: [u32; PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Output column that code i of a word belongs to.
pub(crate) const OUTPUTS: [usize; PER_WORD] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Codes of inputs that are unpacked before any becomes a value: two short loops are vectorised
/// where one is not.
const BUFFER_VALUES: usize = 256;

/// Rows of inputs in the order in which the codes are stored, `[in, out]`: the transpose of a
/// weight. A word has the codes of eight outputs of one input, each of which has a scale and a zero
/// point of its own.
pub(crate) struct AwqInputRows<'a> {
    /// The words of `rows`, `cols / 8` for each.
    pub words: &'a [u8],
    /// The inputs that are decoded.
    pub rows: Range<usize>,
    pub cols: usize,
    pub group_size: usize,
    /// Scales and zero points of all groups, a row of `cols` after another.
    pub scales: &'a [f32],
    pub zeros: &'a [f32],
}

impl Kernel for AwqInputRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let cols = self.cols.max(1);
        let rows = zip(out.chunks_exact_mut(cols), self.words.chunks_exact(cols / PER_WORD * 4));
        for (row, (out, words)) in zip(self.rows.clone(), rows) {
            let group = row / self.group_size;
            let group = group * cols..(group + 1) * cols;
            let (scales, zeros) = (&self.scales[group.clone()], &self.zeros[group]);
            let mut codes = [0; BUFFER_VALUES];
            for ((words, out), (scales, zeros)) in zip(
                zip(
                    words.as_chunks().0.chunks(BUFFER_VALUES / PER_WORD),
                    out.chunks_mut(BUFFER_VALUES),
                ),
                zip(scales.chunks(BUFFER_VALUES), zeros.chunks(BUFFER_VALUES)),
            ) {
                for (&word, codes) in zip(words.iter(), codes.as_chunks_mut::<PER_WORD>().0) {
                    let word = u32::from_le_bytes(word);
                    for (code, position) in zip(&mut codes[..], POSITION) {
                        *code = (word >> (position * 4) & 15) as i32;
                    }
                }
                let numbers = zip(scales.iter(), zeros);
                for ((out, &code), (&scale, &zero)) in zip(zip(&mut out[..], &codes), numbers) {
                    *out = E::from_f32((code as f32 - zero) * scale);
                }
            }
        }
    }
}
