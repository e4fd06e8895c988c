//! ParoQuant: the rows of an AWQ weight A, with their columns rotated in pairs and scaled: `W = A ·
//! R · diag(c)`.
//!
//! A layer rotates its input: of a pair (i, j) with the angle θ, `x_i' = x_i cos θ + x_j sin θ` and
//! `x_j' = x_j cos θ - x_i sin θ`, rotation after rotation (gptqmodel `utils/paroquant.py`,
//! `apply_paroquant_rotation_reference`). So the columns of the weight take the transposes, from
//! the last rotation to the first: `a_i' = a_i cos θ - a_j sin θ`, `a_j' = a_i sin θ + a_j cos θ`.
//!
//! The library multiplies matrices and has no order of its own. Here cos θ and sin θ are rounded to
//! F32, as its kernels have them. All else is in F64 and rounded once, at the end: sums of products
//! of opposite signs may cancel, and in F32 what is left could have no correct digit of a BF16.

use crate::element::Element;
use crate::remember::kernels::awq::PER_WORD;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Flat, InMemory, Kernel, Transpose, copy, zip};

/// Most columns of a group. A place in a group is a byte.
pub(crate) const MAX_GROUP: usize = 256;

/// Output rows. The rows of words are rotated together, vectors for each column: the columns of a
/// pair are anywhere, and the rows side by side.
pub(crate) struct ParoRows<'a> {
    /// Runs of `cols` words, one for each eight rows.
    pub words: &'a [u32],
    /// The first row's place among the eight of its word.
    pub first: usize,
    /// Columns, of whole groups.
    pub cols: usize,
    /// Scales and zero points of each row, one for each group.
    pub scales: &'a [f32],
    pub zeros: &'a [f32],
    pub group_size: usize,
    pub rotations: usize,
    /// Of each group and each of its rotations, in the order in which they are applied, the columns
    /// in pairs. All are below the group's size, and different.
    pub pairs: &'a [u8],
    /// Cosine and sine for each pair.
    pub angles: &'a [f32],
    /// A factor for each column.
    pub factors: &'a [f32],
}

/// Runs of words whose rows are rotated together: angles and places are read once for all of them.
const RUNS: usize = 2;

/// Rows of so many runs.
const ROWS: usize = RUNS * PER_WORD;

/// Values of a group, for each column those of the rows of all runs.
#[repr(align(64))]
struct Lanes([[[f64; PER_WORD]; RUNS]; MAX_GROUP]);

/// Codes of a column, in the order of its values.
type ColumnCodes = [[u8; PER_WORD]; RUNS];

/// Columns of which codes become values in one loop.
const COLUMNS: usize = 4;

impl Kernel for ParoRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.rows(InMemory, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.rows(avx2, out);
    }
}

impl ParoRows<'_> {
    #[inline(always)]
    fn rows<E: Element>(&self, unit: impl Transpose, out: &mut [E]) {
        let (cols, size) = (self.cols.max(1), self.group_size.max(1));
        let (rows, groups) = (out.len() / cols, cols / size);
        let mut lanes = Lanes([[[0.0; PER_WORD]; RUNS]; MAX_GROUP]);
        let mut values = [[0.0; MAX_GROUP]; ROWS];
        let mut unpacked = [[[0; PER_WORD]; RUNS]; MAX_GROUP];
        let mut row = 0;
        while row < rows {
            let (run, place) = ((self.first + row) / PER_WORD, (self.first + row) % PER_WORD);
            // Rows of the words that are wanted; the others are computed from zeros.
            let count = (ROWS - place).min(rows - row);
            let words = self.words[run * cols..].chunks_exact(cols);
            let runs = (place + count).div_ceil(PER_WORD);
            for group in 0..groups {
                let (mut scales, mut zeros) = ([0.0; ROWS], [0.0; ROWS]);
                for lane in place..place + count {
                    let at = (row + lane - place) * groups + group;
                    scales[lane] = f64::from(self.scales[at]);
                    zeros[lane] = f64::from(self.zeros[at]);
                }
                let columns = group * size..(group + 1) * size;
                for (run, words) in words.clone().take(runs).enumerate() {
                    let words = &words[columns.clone()];
                    for (unpacked, &word) in zip(&mut unpacked[..], words) {
                        unpacked[run] = codes(word);
                    }
                }
                widen(&unpacked, (&scales, &zeros), size, &mut lanes);
                let range = group * self.rotations * size..(group + 1) * self.rotations * size;
                rotate(&self.pairs[range.clone()], &self.angles[range], &mut lanes);
                scale(unit, &self.factors[columns], &lanes, &mut values);
                for (lane, values) in values[place..place + count].iter().enumerate() {
                    let at = (row + lane) * cols + group * size;
                    E::store(&values[..size], &mut out[at..at + size]);
                }
            }
            row += count;
        }
    }
}

/// The values of the first `size` columns: `(q - z) * s`, exact but for denormal numbers.
#[inline(always)]
fn widen(
    codes: &[ColumnCodes; MAX_GROUP],
    (scales, zeros): (&[f64; ROWS], &[f64; ROWS]),
    size: usize,
    lanes: &mut Lanes,
) {
    // A loop over the rows of several columns: LLVM would take apart a shorter one, to compute a
    // row of many columns at a time, and transpose what comes of it.
    let (scales, zeros) = ([*scales; COLUMNS], [*zeros; COLUMNS]);
    let (scales, zeros) = (scales.flat(), zeros.flat());
    let lanes = lanes.0.as_chunks_mut::<COLUMNS>().0;
    let codes = codes.as_chunks::<COLUMNS>().0.iter();
    for (lanes, codes) in zip(lanes, codes).take(size.div_ceil(COLUMNS)) {
        let lanes = lanes.flat_mut().flat_mut();
        let codes = codes.flat().flat();
        for i in 0..ROWS * COLUMNS {
            lanes[i] = (f64::from(codes[i]) - zeros[i]) * scales[i];
        }
    }
}

/// The codes of a word.
#[inline(always)]
fn codes(word: u32) -> [u8; PER_WORD] {
    (spread(word) | spread(word >> 16) << 8).to_le_bytes()
}

/// The lowest four codes of a word, 16 bits apart: those of every other output.
#[inline(always)]
fn spread(word: u32) -> u64 {
    let word = u64::from(word & 0xffff);
    let bytes = (word | word << 24) & 0x0000_00ff_0000_00ff;
    (bytes | bytes << 12) & 0x000f_000f_000f_000f
}

/// Rotates the columns of a group.
#[inline(always)]
fn rotate(pairs: &[u8], angles: &[f32], lanes: &mut Lanes) {
    let lanes = &mut lanes.0;
    for (&[i, j], &[cos, sin]) in zip(pairs.as_chunks().0.iter(), angles.as_chunks().0) {
        let (i, j) = (usize::from(i), usize::from(j));
        let (cos, sin) = (f64::from(cos), f64::from(sin));
        let (a, b) = (lanes[i], lanes[j]);
        for run in 0..RUNS {
            for lane in 0..PER_WORD {
                lanes[i][run][lane] = a[run][lane] * cos - b[run][lane] * sin;
                lanes[j][run][lane] = a[run][lane] * sin + b[run][lane] * cos;
            }
        }
    }
}

/// The values of the columns of a group times their factors, row by row. Eight columns at a time
/// are transposed: single numbers of a row lie far from each other.
#[inline(always)]
fn scale(
    unit: impl Transpose,
    factors: &[f32],
    lanes: &Lanes,
    values: &mut [[f32; MAX_GROUP]; ROWS],
) {
    let mut all = [0.0; MAX_GROUP];
    copy(factors, &mut all[..factors.len()]);
    let columns = lanes.0.as_chunks::<PER_WORD>().0.iter();
    let columns = zip(columns, all.as_chunks::<PER_WORD>().0);
    for (at, (lanes, factors)) in columns.take(factors.len().div_ceil(PER_WORD)).enumerate() {
        for run in 0..RUNS {
            let mut square = [[0.0; PER_WORD]; PER_WORD];
            for ((line, lanes), &factor) in zip(zip(&mut square[..], lanes), factors) {
                for lane in 0..PER_WORD {
                    line[lane] = (lanes[run][lane] * f64::from(factor)) as f32;
                }
            }
            let square = unit.columns(square);
            for (values, eight) in zip(&mut values[run * PER_WORD..], square) {
                values.as_chunks_mut().0[at] = eight;
            }
        }
    }
}
