//! GPTQ: `w = (q - z) * s`, codes packed down the input dimension.
//!
//! Formula: gptqmodel `PackableQuantLinear.dequantize_weight`. Exact in f32 up to the product's one
//! rounding. Zero points of version 1 are stored one too low; see [`restore_zeros`]. Codes are one bit stream, or planes:
//! gptqmodel `utils/planar_packing.py`.

use crate::element::Element;
use crate::kernels::remember::packed::{CHUNK, Groups, chunk, unpack, unpack_planes};
use crate::simd::Kernel;

/// Which group a column belongs to.
#[derive(Clone, Copy)]
pub(crate) enum Columns<'a> {
    /// Column k is in group k / size.
    Even { size: usize, start: usize },
    /// By index, from the first loaded group (act-order).
    Indexed(&'a [u32]),
}

/// 32 codes, as a stream or in planes.
#[inline(always)]
fn codes<const BITS: usize, const PLANES: bool>(words: &[u32; BITS]) -> [u32; CHUNK] {
    if PLANES {
        unpack_planes(words)
    } else {
        unpack(words)
    }
}

/// Rows of packed codes with their scales and zero points.
pub(crate) struct Rows<'a, const BITS: usize, const PLANES: bool> {
    /// Words of each row, `words_per_row` apart.
    pub words: &'a [u32],
    pub words_per_row: usize,
    pub cols: usize,
    /// Scales and zero points of each row, `groups` apart.
    pub scales: &'a [f32],
    pub zeros: &'a [f32],
    pub groups: usize,
    pub columns: Columns<'a>,
}

impl<const BITS: usize, const PLANES: bool> Kernel for Rows<'_, BITS, PLANES> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        for (r, out) in out.chunks_exact_mut(self.cols.max(1)).enumerate() {
            let words = &self.words[r * self.words_per_row..(r + 1) * self.words_per_row];
            let groups = r * self.groups..(r + 1) * self.groups;
            let (scales, zeros) = (&self.scales[groups.clone()], &self.zeros[groups]);
            match self.columns {
                Columns::Even { size, start } if size % CHUNK == 0 && start % CHUNK == 0 => {
                    even::<BITS, PLANES, E>(
                        words,
                        Groups {
                            scales,
                            zeros,
                            size,
                            start,
                        },
                        out,
                    );
                }
                Columns::Even { size, start } => {
                    each::<BITS, PLANES, E>(
                        words,
                        scales,
                        zeros,
                        |k| (start + k) / size - start / size,
                        out,
                    );
                }
                Columns::Indexed(index) => {
                    each::<BITS, PLANES, E>(words, scales, zeros, |k| index[k] as usize, out)
                }
            }
        }
    }
}

/// A row whose groups are runs of whole chunks.
#[inline(always)]
fn even<const BITS: usize, const PLANES: bool, E: Element>(
    words: &[u32],
    groups: Groups<'_>,
    out: &mut [E],
) {
    let groups = Groups {
        start: groups.start % groups.size,
        ..groups
    };
    groups.runs(out.len(), |cols, scale, zero| {
        let first = cols.start / CHUNK;
        for (i, out) in out[cols].chunks_mut(CHUNK).enumerate() {
            let codes = codes::<BITS, PLANES>(&chunk(words, (first + i) * BITS));
            let mut values = [0.0; CHUNK];
            for (value, code) in values.iter_mut().zip(codes) {
                *value = (code as f32 - zero) * scale;
            }
            E::store(&values, out);
        }
    });
}

/// A row with a group of its own for each column.
#[inline(always)]
fn each<const BITS: usize, const PLANES: bool, E: Element>(
    words: &[u32],
    scales: &[f32],
    zeros: &[f32],
    group: impl Fn(usize) -> usize,
    out: &mut [E],
) {
    for (i, out) in out.chunks_mut(CHUNK).enumerate() {
        let codes = codes::<BITS, PLANES>(&chunk(words, i * BITS));
        let mut values = [0.0; CHUNK];
        for (k, value) in values.iter_mut().enumerate().take(out.len()) {
            let g = group(i * CHUNK + k);
            *value = (codes[k] as f32 - zeros[g]) * scales[g];
        }
        E::store(&values, out);
    }
}

/// Undoes version 1's "stored minus one" on packed zero points, as gptqmodel
/// `convert_gptq_v1_to_v2_format_module` does: 2, 4 and 8 bits by adding one to every field of a stored word, which has
/// `word_bits`, at once, with carry between the fields. Other widths straddle words and are corrected after unpacking,
/// each by itself.
pub(crate) fn restore_zeros(words: &mut [u32], bits: usize, word_bits: usize) {
    let ones: u32 = match bits {
        2 => 0x5555_5555,
        4 => 0x1111_1111,
        8 => 0x0101_0101,
        _ => return,
    };
    if word_bits == 32 {
        words
            .iter_mut()
            .for_each(|word| *word = word.wrapping_add(ones));
        return;
    }
    let mask = (1 << word_bits) - 1;
    for word in words {
        let part = |shift: usize| (((*word >> shift & mask) + (ones & mask)) & mask) << shift;
        *word = (0..32).step_by(word_bits).map(part).sum();
    }
}
