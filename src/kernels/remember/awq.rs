//! AWQ, GEMM layout: `w = (q - z) * s`, eight output columns to a word, interleaved.
//!
//! Formula and order: AutoAWQ `packing_utils.dequantize_gemm`, `reverse_awq_order`. The difference of two integers of
//! four bits is exact in F32, so the product's rounding is the only one.

use std::ops::Range;

use crate::element::Element;
use crate::simd::Kernel;

/// Codes in a word.
pub(crate) const PER_WORD: usize = 8;

/// Position in a word of output column `c` of its eight.
pub(crate) const POSITION: [u32; PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Output rows. Word k of a run of words has the codes of eight rows at column k. Each row reads the whole run with a
/// shift of its own: the words are in the cache after the first, and the loop over columns is vectorised.
pub(crate) struct AwqRows<'a> {
    /// Runs of `cols` words, one for each eight rows.
    pub words: &'a [u32],
    /// The first row's place among the eight of its word.
    pub first: usize,
    pub cols: usize,
    /// Scales and zero points of each row, `groups` apart.
    pub scales: &'a [f32],
    pub zeros: &'a [f32],
    pub groups: usize,
    pub group_size: usize,
    /// Columns of the first loaded group that lie before the first column.
    pub start: usize,
}

impl Kernel for AwqRows<'_> {
    const HAS_AVX512: bool = true;

    fn gains_from_avx512<E: Element>(&self) -> bool {
        size_of::<E>() == 2
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        for (r, out) in out.chunks_exact_mut(self.cols.max(1)).enumerate() {
            let (run, place) = ((self.first + r) / PER_WORD, (self.first + r) % PER_WORD);
            let words = &self.words[run * self.cols..(run + 1) * self.cols];
            let range = r * self.groups..(r + 1) * self.groups;
            let (scales, zeros) = (&self.scales[range.clone()], &self.zeros[range]);
            let shift = POSITION[place] * 4;
            let groups = RowGroups {
                scales,
                zeros,
                size: self.group_size,
                start: self.start,
            };
            groups.runs(self.cols, |cols, scale, zero| {
                for (o, word) in out[cols.clone()].iter_mut().zip(&words[cols]) {
                    *o = E::from_f32(((word >> shift & 15) as f32 - zero) * scale);
                }
            });
        }
    }
}

/// Codes of inputs that are unpacked before any becomes a value: two short loops are vectorised where one is not.
const TILE: usize = 256;

/// Rows of inputs in the order in which the codes are stored, `[in, out]`: the transpose of a weight. A word has the codes
/// of eight outputs of one input, each of which has a scale and a zero point of its own.
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
        let rows = out
            .chunks_exact_mut(cols)
            .zip(self.words.chunks_exact(cols / PER_WORD * 4));
        for (row, (out, words)) in self.rows.clone().zip(rows) {
            let group = row / self.group_size;
            let group = group * cols..(group + 1) * cols;
            let (scales, zeros) = (&self.scales[group.clone()], &self.zeros[group]);
            let mut codes = [0; TILE];
            for ((words, out), (scales, zeros)) in words
                .as_chunks()
                .0
                .chunks(TILE / PER_WORD)
                .zip(out.chunks_mut(TILE))
                .zip(scales.chunks(TILE).zip(zeros.chunks(TILE)))
            {
                for (&word, codes) in words.iter().zip(codes.as_chunks_mut::<PER_WORD>().0) {
                    let word = u32::from_le_bytes(word);
                    for (code, position) in codes.iter_mut().zip(POSITION) {
                        *code = (word >> (position * 4) & 15) as i32;
                    }
                }
                let numbers = scales.iter().zip(zeros);
                for ((out, &code), (&scale, &zero)) in out.iter_mut().zip(&codes).zip(numbers) {
                    *out = E::from_f32((code as f32 - zero) * scale);
                }
            }
        }
    }
}

/// Scales and zero points of the groups of one output row.
struct RowGroups<'a> {
    scales: &'a [f32],
    zeros: &'a [f32],
    size: usize,
    /// Columns of the first group that lie before the row's first column.
    start: usize,
}

impl RowGroups<'_> {
    /// Calls `f(columns, scale, zero)` for each run of `n` columns that one group covers.
    #[inline(always)]
    fn runs(&self, n: usize, mut f: impl FnMut(Range<usize>, f32, f32)) {
        let mut at = 0;
        let mut left = self.size - self.start % self.size;
        let first = self.start / self.size;
        for (&scale, &zero) in self.scales[first..].iter().zip(&self.zeros[first..]) {
            if at == n {
                break;
            }
            let end = (at + left).min(n);
            f(at..end, scale, zero);
            (at, left) = (end, self.size);
        }
    }
}
