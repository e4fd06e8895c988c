//! GPTQ: `w = (q - z) * s`, codes packed down the input dimension.
//!
//! Formula: gptqmodel `PackableQuantLinear.dequantize_weight`. The difference of two integers of at
//! most eight bits is exact in F32, so the product's rounding is the only one. Zero points of
//! version 1 are stored one too low; see [`GptqPacking::zero_points`]. Codes are one bit stream, or
//! planes: gptqmodel `utils/planar_packing.py`.

use std::ops::Range;

use crate::element::Element;
use crate::remember::kernels::packed::{CHUNK, chunk, unpack, unpack_bytes, unpack_planes};
use crate::simd::{Kernel, zip};

/// Values that are computed before any is rounded: the loop that looks up groups is scalar, the one
/// that rounds is vectorised.
const BUFFER_VALUES: usize = 256;

/// Rows of codes whose columns belong to groups by an index (act-order). Groups that are runs of
/// columns go by [`GroupedRows`](super::grouped::GroupedRows).
pub(crate) struct IndexedRows<'a> {
    /// Codes of each row, `row_bytes` apart: a bit stream of `bits` bits a code.
    pub bytes: &'a [u8],
    pub row_bytes: usize,
    pub bits: usize,
    pub cols: usize,
    /// Scales and zero points of each row, `groups` apart.
    pub scales: &'a [f32],
    pub zeros: &'a [f32],
    pub groups: usize,
    /// The group of each column, counted from the first that is loaded.
    pub index: &'a [u32],
}

/// Values in a table of all codes of all groups of a row, at most: it stays in the first-level
/// cache.
const TABLE: usize = 4096;

/// Columns for each value of the table, at least: a table that is looked up less often takes longer
/// to make than it saves.
const MIN_LOOK_UPS: usize = 4;

impl IndexedRows<'_> {
    fn is_looked_up(&self) -> bool {
        let values = self.groups << self.bits;
        values <= TABLE && values * MIN_LOOK_UPS <= self.cols
    }

    /// Decodes with a table of each row's values, rounded once: a value takes one look-up in place
    /// of two, and no arithmetic.
    #[inline(always)]
    fn look_up<E: Element>(&self, out: &mut [E]) {
        let mut codes = [0u8; BUFFER_VALUES];
        let mut table = [E::from_f32(0.0); TABLE];
        for (r, out) in out.chunks_exact_mut(self.cols.max(1)).enumerate() {
            let bytes = &self.bytes[r * self.row_bytes..(r + 1) * self.row_bytes];
            let groups = r * self.groups..(r + 1) * self.groups;
            let numbers = zip(self.scales[groups.clone()].iter(), &self.zeros[groups]);
            for (values, (&scale, &zero)) in zip(table.chunks_exact_mut(1 << self.bits), numbers) {
                for (value, code) in zip(&mut values[..], 0i32..) {
                    *value = E::from_f32((code as f32 - zero) * scale);
                }
            }
            for (at, out) in zip((0..).step_by(BUFFER_VALUES), out.chunks_mut(BUFFER_VALUES)) {
                let codes = &mut codes[..out.len()];
                unpack_bytes(self.bits, &bytes[at * self.bits / 8..], codes);
                let index = &self.index[at..at + out.len()];
                for ((out, &code), &group) in zip(zip(&mut out[..], &*codes), index) {
                    // The mask spares the check of the bounds.
                    let place = (group as usize) << self.bits | usize::from(code);
                    *out = table[place & (TABLE - 1)];
                }
            }
        }
    }
}

impl Kernel for IndexedRows<'_> {
    const ROUNDS_ON_THE_WAY: bool = true;

    fn is_rounded_last(&self) -> bool {
        !self.is_looked_up()
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        if self.is_looked_up() {
            return self.look_up(out);
        }
        let (mut codes, mut values) = ([0u8; BUFFER_VALUES], [0.0; BUFFER_VALUES]);
        for (r, out) in out.chunks_exact_mut(self.cols.max(1)).enumerate() {
            let bytes = &self.bytes[r * self.row_bytes..(r + 1) * self.row_bytes];
            let groups = r * self.groups..(r + 1) * self.groups;
            let (scales, zeros) = (&self.scales[groups.clone()], &self.zeros[groups]);
            for (at, out) in zip((0..).step_by(BUFFER_VALUES), out.chunks_mut(BUFFER_VALUES)) {
                unpack_bytes(self.bits, &bytes[at * self.bits / 8..], &mut codes[..out.len()]);
                let index = &self.index[at..at + out.len()];
                for ((value, &code), &group) in zip(zip(&mut values[..], &codes), index) {
                    let group = group as usize;
                    *value = (f32::from(code) - zeros[group]) * scales[group];
                }
                E::store(&values, out);
            }
        }
    }
}

/// Rows of inputs in the order in which the codes are stored, `[in, out]`: the transpose of a
/// weight. Each word has the codes of some inputs of one output, so a row reads a row of words with
/// a shift of its own, and each of its values has a scale and a zero point of its own.
pub(crate) struct GptqInputRows<'a> {
    /// The words of all inputs, a row of `cols` after another.
    pub words: &'a [u8],
    /// Bits of a code: a divisor of 32, so that no code crosses into the next word.
    pub bits: usize,
    /// The inputs that are decoded.
    pub rows: Range<usize>,
    pub cols: usize,
    pub group_size: usize,
    /// The group of each input; empty if groups are runs of `group_size` inputs.
    pub index: &'a [u32],
    /// Scales and zero points of all groups, a row of `cols` after another.
    pub scales: &'a [f32],
    pub zeros: &'a [f32],
}

impl Kernel for GptqInputRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let (cols, mask) = (self.cols, (1u32 << self.bits) - 1);
        for (row, out) in zip(self.rows.clone(), out.chunks_exact_mut(cols.max(1))) {
            let group = match self.index.get(row) {
                Some(&group) => group as usize,
                None => row / self.group_size,
            };
            let (word, shift) = (row * self.bits / 32, row * self.bits % 32);
            let words = self.words[word * cols * 4..(word + 1) * cols * 4]
                .as_chunks::<4>()
                .0;
            let group = group * cols..(group + 1) * cols;
            let numbers = zip(self.scales[group.clone()].iter(), &self.zeros[group]);
            for ((out, &word), (&scale, &zero)) in zip(zip(&mut out[..], words), numbers) {
                // At most eight bits: as a signed integer it converts in one instruction.
                let code = (u32::from_le_bytes(word) >> shift & mask) as i32;
                *out = E::from_f32((code as f32 - zero) * scale);
            }
        }
    }
}

/// How GPTQ's codes and zero points lie in words: as one bit stream, or each 32 of them in planes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GptqPacking {
    /// Bits of a code, two to eight.
    pub bits: usize,
    /// Bits of a stored word: 32, or 16 or 8 where `bits` divides it.
    pub word_bits: usize,
    pub has_planes: bool,
}

impl GptqPacking {
    /// The bytes of a row that hold codes `codes`, which begin with a whole chunk.
    pub(crate) fn bytes(&self, codes: &Range<usize>) -> Range<usize> {
        codes.start * self.bits / 8
            ..(codes.end * self.bits).div_ceil(self.word_bits) * self.word_bits / 8
    }

    /// Chunk `i` of the codes in `words`.
    pub(crate) fn unpack(&self, words: &[u32], i: usize) -> [u32; CHUNK] {
        let at = i * self.bits;
        match (self.bits, self.has_planes) {
            (2, _) => unpack::<2>(&chunk(words, at)),
            (3, false) => unpack::<3>(&chunk(words, at)),
            (3, true) => unpack_planes::<3>(&chunk(words, at)),
            (4, _) => unpack::<4>(&chunk(words, at)),
            (5, false) => unpack::<5>(&chunk(words, at)),
            (5, true) => unpack_planes::<5>(&chunk(words, at)),
            (6, false) => unpack::<6>(&chunk(words, at)),
            (6, true) => unpack_planes::<6>(&chunk(words, at)),
            (7, false) => unpack::<7>(&chunk(words, at)),
            (7, true) => unpack_planes::<7>(&chunk(words, at)),
            _ => unpack::<8>(&chunk(words, at)),
        }
    }

    /// The zero points in `words`, chunk by chunk without end. Those of version 1 are stored one
    /// too low, and this undoes it as gptqmodel `convert_gptq_v1_to_v2_format_module` does: 2, 4
    /// and 8 bits by adding one to every field of a stored word at once, with carry between the
    /// fields. Other widths straddle words and are corrected after unpacking, each by itself.
    pub(crate) fn zero_points(
        self,
        words: &mut [u32],
        is_version_1: bool,
    ) -> impl Iterator<Item = [u32; CHUNK]> {
        let ones = match self.bits {
            2 => 0x5555_5555,
            4 => 0x1111_1111,
            8 => 0x0101_0101,
            _ => 0,
        };
        if is_version_1 && ones != 0 {
            add_to_fields(words, ones, self.word_bits);
        }
        // Where `ones` is 0, the field is corrected below, by itself and modulo its width.
        let one = u32::from(is_version_1 && ones == 0);
        let mask = (1 << self.bits) - 1;
        (0..).map(move |i| {
            let mut zeros = self.unpack(words, i);
            for zero in &mut zeros {
                *zero = (*zero + one) & mask;
            }
            zeros
        })
    }
}

/// Adds `ones` to each stored word of `word_bits` in `words`. A carry leaves a field, but no stored
/// word.
fn add_to_fields(words: &mut [u32], ones: u32, word_bits: usize) {
    if word_bits == 32 {
        for word in words {
            *word = word.wrapping_add(ones);
        }
        return;
    }
    let mask = (1 << word_bits) - 1;
    for word in words {
        // Each stored word is taken out, added to and put back, so that a carry out of it is lost
        // as in the library.
        let part = |shift: usize| (((*word >> shift & mask) + (ones & mask)) & mask) << shift;
        *word = (0..32).step_by(word_bits).map(part).sum();
    }
}
