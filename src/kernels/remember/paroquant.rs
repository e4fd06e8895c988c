//! ParoQuant: the rows of an AWQ weight A, with their columns rotated in pairs and scaled: `W = A · R · diag(c)`.
//!
//! A layer rotates its input: of a pair (i, j) with the angle θ, `x_i' = x_i cos θ + x_j sin θ` and
//! `x_j' = x_j cos θ - x_i sin θ`, rotation after rotation (gptqmodel `utils/paroquant.py`,
//! `apply_paroquant_rotation_reference`). So the columns of the weight take the transposes, from the last rotation to the
//! first: `a_i' = a_i cos θ - a_j sin θ`, `a_j' = a_i sin θ + a_j cos θ`.
//!
//! The library multiplies matrices and has no order of its own. Here cos θ and sin θ are rounded to F32, as its kernels have
//! them. All else is in F64 and rounded once, at the end: sums of products of opposite signs may cancel, and in F32 what is
//! left could have no correct digit of a BF16.

use crate::element::Element;
use crate::kernels::remember::awq::{PER_WORD, POSITION};
use crate::simd::Kernel;

/// Most columns of a group. A place in a group is a byte.
pub(crate) const MAX_GROUP: usize = 256;

/// Output rows. The eight rows of a word are rotated together, a vector for each column: the columns of a pair are anywhere,
/// and the rows side by side.
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
    /// Of each group and each of its rotations, in the order in which they are applied, the columns in pairs. All are below
    /// the group's size, and different.
    pub pairs: &'a [u8],
    /// Cosine and sine for each pair.
    pub angles: &'a [f32],
    /// A factor for each column.
    pub factors: &'a [f32],
}

/// Values of a group, of eight rows for each column.
type Lanes = [[f64; PER_WORD]; MAX_GROUP];

impl Kernel for ParoRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let (cols, size) = (self.cols.max(1), self.group_size.max(1));
        let (rows, groups) = (out.len() / cols, cols / size);
        let mut lanes: Lanes = [[0.0; PER_WORD]; MAX_GROUP];
        let mut values = [0.0; MAX_GROUP];
        let mut row = 0;
        while row < rows {
            let (run, place) = ((self.first + row) / PER_WORD, (self.first + row) % PER_WORD);
            // Rows of the word that are wanted; the others are computed from zeros.
            let count = (PER_WORD - place).min(rows - row);
            let words = &self.words[run * cols..(run + 1) * cols];
            for (group, words) in words.chunks_exact(size).enumerate() {
                let (mut scales, mut zeros) = ([0.0; PER_WORD], [0.0; PER_WORD]);
                for lane in 0..count {
                    let at = (row + lane) * groups + group;
                    scales[place + lane] = f64::from(self.scales[at]);
                    zeros[place + lane] = f64::from(self.zeros[at]);
                }
                unpack(words, &scales, &zeros, &mut lanes);
                let range = group * self.rotations * size..(group + 1) * self.rotations * size;
                rotate(&self.pairs[range.clone()], &self.angles[range], &mut lanes);
                let factors = &self.factors[group * size..(group + 1) * size];
                for lane in 0..count {
                    let numbers = lanes.iter().zip(factors);
                    for (value, (lanes, &factor)) in values.iter_mut().zip(numbers) {
                        *value = (lanes[place + lane] * f64::from(factor)) as f32;
                    }
                    let at = (row + lane) * cols + group * size;
                    E::store(&values[..size], &mut out[at..at + size]);
                }
            }
            row += count;
        }
    }
}

/// The values of a group: `(q - z) * s`, exact but for denormal numbers.
#[inline(always)]
fn unpack(words: &[u32], scales: &[f64; PER_WORD], zeros: &[f64; PER_WORD], lanes: &mut Lanes) {
    for (lanes, &word) in lanes.iter_mut().zip(words) {
        for (i, lane) in lanes.iter_mut().enumerate() {
            let code = (word >> (POSITION[i] * 4) & 15) as i32;
            *lane = (f64::from(code) - zeros[i]) * scales[i];
        }
    }
}

/// Rotates the columns of a group.
#[inline(always)]
fn rotate(pairs: &[u8], angles: &[f32], lanes: &mut Lanes) {
    for (&[i, j], &[cos, sin]) in pairs.as_chunks().0.iter().zip(angles.as_chunks().0) {
        let (i, j) = (usize::from(i), usize::from(j));
        let (cos, sin) = (f64::from(cos), f64::from(sin));
        let (a, b) = (lanes[i], lanes[j]);
        for lane in 0..PER_WORD {
            lanes[i][lane] = a[lane] * cos - b[lane] * sin;
            lanes[j][lane] = a[lane] * sin + b[lane] * cos;
        }
    }
}
