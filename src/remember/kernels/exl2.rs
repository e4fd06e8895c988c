//! EXL2: `w = (q - 2^(b - 1)) * s`, where b differs from group to group, and the codes of a row are
//! in another order than its columns.
//!
//! The library multiplies halves, and rounds once to a half (exllamav2 `cuda/q_matrix.cu`,
//! `reconstruct_kernel`). The product is exact in F32: a code has eight bits at most, and a scale
//! is a half.

use crate::element::Element;
use crate::remember::kernels::packed::unpack_bytes;
use crate::simd::{Kernel, zip};

/// Codes of a row that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeRun {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// Word of the row with the first code.
    pub word: usize,
    /// Number of codes.
    pub len: usize,
}

/// Rows of codes of several widths.
pub(crate) struct PermutedRows<'a> {
    /// The codes of each row, `row_bytes` apart: for each run a bit stream.
    pub bytes: &'a [u8],
    pub row_bytes: usize,
    /// Runs of a row; together they have a code for each column.
    pub runs: &'a [CodeRun],
    /// A scale for each run of each row.
    pub scales: &'a [f32],
    /// Which of a row's codes each column has.
    pub order: &'a [u32],
}

/// Codes that are unpacked at once, whole words of each width.
const CHUNK: usize = 256;

impl Kernel for PermutedRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let cols = self.order.len();
        let mut values = vec![E::from_f32(0.0); cols];
        for (r, out) in out.chunks_exact_mut(cols.max(1)).enumerate() {
            let bytes = &self.bytes[r * self.row_bytes..(r + 1) * self.row_bytes];
            let scales = &self.scales[r * self.runs.len()..(r + 1) * self.runs.len()];
            let mut first = 0;
            for (run, &scale) in zip(self.runs.iter(), scales) {
                let mut codes = [0; CHUNK];
                let middle = 1 << (run.bits - 1);
                let values = &mut values[first..first + run.len];
                for (at, values) in zip((0..).step_by(CHUNK), values.chunks_mut(CHUNK)) {
                    let codes = &mut codes[..values.len()];
                    unpack_bytes(run.bits, &bytes[run.word * 4 + at * run.bits / 8..], codes);
                    for (value, &code) in zip(&mut values[..], &*codes) {
                        *value = E::from_f32((i32::from(code) - middle) as f32 * scale);
                    }
                }
                first += run.len;
            }
            for (out, &place) in zip(&mut out[..], self.order) {
                *out = values[place as usize];
            }
        }
    }
}
