//! Packs codes of a byte each into words, and transposes matrices of words or codes: the mirror of
//! `remember/packed.rs`.

use crate::remember::kernels::awq::{PER_WORD, POSITION};
use crate::simd::{Level, Routine, copy, perform, zip};

pub(crate) mod sdnq;
#[cfg(test)]
mod tests;

/// Codes that fill whole bytes together, whatever their width is, and whose bytes fill a `u64`.
const OCTET: usize = 8;

/// Joins neighbouring fields of `x` in pairs. A field is the low `bits` of each `every` bits; of a
/// pair the second moves down to the end of the first. The result has fields of `2 * bits` in each
/// `2 * every` bits.
#[inline(always)]
const fn join_fields(x: u64, bits: usize, every: usize) -> u64 {
    let (mut low, mut at) = (0, 0);
    while at < 64 {
        low |= ((1 << bits) - 1) << at;
        at += 2 * every;
    }
    x & low | x >> (every - bits) & low << bits
}

/// The low `BITS` of eight bytes side by side, the first byte lowest. Three steps join pairs, pairs
/// of pairs and the two halves, with constant shifts, which vectorise where `pext` would not.
#[inline(always)]
fn join_octet<const BITS: usize>(codes: [u8; OCTET]) -> u64 {
    let mut x = u64::from_le_bytes(codes);
    if BITS == 8 {
        return x;
    }
    x = join_fields(x, BITS, 8);
    x = join_fields(x, 2 * BITS, 16);
    join_fields(x, 4 * BITS, 32)
}

/// Packs rows of codes as bit streams, least significant bit first, each padded with zeros to whole
/// words.
struct PackBitStreams<'a, const BITS: usize> {
    codes: &'a [u8],
    cols: usize,
    row_bytes: usize,
    out: &'a mut [u8],
}

impl<const BITS: usize> Routine for PackBitStreams<'_, BITS> {
    #[inline(always)]
    fn run(&mut self) {
        let rows = zip(
            self.codes.chunks_exact(self.cols.max(1)),
            self.out.chunks_exact_mut(self.row_bytes.max(1)),
        );
        for (codes, out) in rows {
            let (octets, rest) = codes.as_chunks::<OCTET>();
            let (packed, tail) = out.split_at_mut(octets.len() * BITS);
            for (octet, out) in zip(octets.iter(), packed.as_chunks_mut::<BITS>().0) {
                let bytes = join_octet::<BITS>(*octet).to_le_bytes();
                copy(&bytes[..BITS], out);
            }
            // The last octet may be short, and the row is padded to a word: both are cut from a
            // full octet.
            let mut last = [0; OCTET];
            copy(rest, &mut last[..rest.len()]);
            let bytes = join_octet::<BITS>(last).to_le_bytes();
            tail.fill(0);
            let n = BITS.min(tail.len());
            copy(&bytes[..n], &mut tail[..n]);
        }
    }
}

/// Bytes of a packed row of `cols` codes: whole words of 32 bits.
pub(crate) fn row_bytes(cols: usize, bits: usize) -> usize {
    (cols * bits).div_ceil(32) * 4
}

/// Makes `out` the bit streams of rows of `cols` codes, [`row_bytes`] for each row.
pub(crate) fn pack_bit_streams(
    codes: &[u8],
    cols: usize,
    bits: usize,
    level: Level,
    out: &mut Vec<u8>,
) {
    let row_bytes = row_bytes(cols, bits);
    out.resize(codes.len() / cols.max(1) * row_bytes, 0);
    macro_rules! run {
        ($bits:literal) => {
            perform(level, &mut PackBitStreams::<$bits> { codes, cols, row_bytes, out })
        };
    }
    match bits {
        1 => run!(1),
        2 => run!(2),
        3 => run!(3),
        4 => run!(4),
        5 => run!(5),
        6 => run!(6),
        7 => run!(7),
        _ => run!(8),
    }
}

/// Transposes a matrix of 32-bit words `[rows][cols]`: makes `out` the words `[cols][rows]`.
pub(crate) fn transpose_words(words: &[u8], cols: usize, out: &mut Vec<u8>) {
    /// Rows that are transposed together. Each cache line of them has words of 16 columns, and
    /// stays in the cache until these are written; a strip of a column is a cache line of the
    /// result.
    const STRIP: usize = 16;
    let words = words.as_chunks::<4>().0;
    let rows = words.len() / cols.max(1);
    // Every word is written below, so that old content of the buffer does not matter.
    out.resize(words.len() * 4, 0);
    let out = out.as_chunks_mut::<4>().0;
    for first in (0..rows).step_by(STRIP) {
        let strip = &words[first * cols..(first + STRIP).min(rows) * cols];
        for c in 0..cols {
            let column = strip.iter().skip(c).step_by(cols);
            for (to, from) in zip(&mut out[c * rows + first..], column) {
                *to = *from;
            }
        }
    }
}

/// Rows and columns of a square that is transposed at once: for floats a row of it is a cache line
/// on both sides.
const SQUARE: usize = 16;

/// The transpose `[cols][rows]` of a matrix `[rows][cols]`.
pub(crate) fn transposed<T: Copy + Default>(values: &[T], cols: usize) -> Vec<T> {
    let mut out = vec![T::default(); values.len()];
    let rows = values.len() / cols.max(1);
    for (top, band) in values.chunks(cols.max(1) * SQUARE).enumerate() {
        for left in (0..cols).step_by(SQUARE) {
            for col in left..(left + SQUARE).min(cols) {
                let column = &mut out[col * rows + top * SQUARE..(col + 1) * rows];
                let lines = band[col..].iter().step_by(cols);
                zip(&mut column[..], lines).for_each(|(out, &value)| *out = value);
            }
        }
    }
    out
}

/// Packs words of AWQ: each has the codes of eight rows of one column, in the order of
/// [`POSITION`].
struct PackAwqWords<'a> {
    codes: &'a [u8],
    cols: usize,
    out: &'a mut [u8],
}

impl Routine for PackAwqWords<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let cols = self.cols.max(1);
        // Row by row, so that codes and words are passed over in order, and a row is one loop that
        // vectorises.
        let bands =
            zip(self.codes.chunks_exact(PER_WORD * cols), self.out.chunks_exact_mut(cols * 4));
        for (codes, out) in bands {
            for (row, codes) in codes.chunks_exact(cols).enumerate() {
                let shift = POSITION[row] * 4;
                for (word, &code) in zip(out.as_chunks_mut::<4>().0, codes) {
                    // The first row overwrites what `out` held before.
                    let before = if row == 0 {
                        0
                    } else {
                        u32::from_le_bytes(*word)
                    };
                    *word = (before | u32::from(code) << shift).to_le_bytes();
                }
            }
        }
    }
}

/// Packs 4-bit codes `[rows][cols]` as AWQ does: makes `out` the words `[rows / 8][cols]`.
pub(crate) fn pack_awq_words(codes: &[u8], cols: usize, level: Level, out: &mut Vec<u8>) {
    out.resize(codes.len() / PER_WORD * 4, 0);
    perform(level, &mut PackAwqWords { codes, cols, out });
}

/// Subtracts one from every packed zero point, for the convention of GPTQ's version 1.
///
/// One is taken from all fields of a word at once, with borrow between them, as gptqmodel 7.7.0
/// `utils/model.py` (`convert_gptq_v2_to_v1_format_module`) does. Widths that do not divide a word
/// are left alone: their zero points go through [`lower_zero_points`] before they are packed.
pub(crate) fn lower_packed_zero_points(words: &mut [u8], bits: usize) {
    let ones: u32 = match bits {
        2 => 0x5555_5555,
        4 => 0x1111_1111,
        8 => 0x0101_0101,
        _ => return,
    };
    for word in words.as_chunks_mut::<4>().0 {
        *word = u32::from_le_bytes(*word).wrapping_sub(ones).to_le_bytes();
    }
}

/// Subtracts one from zero points that are not packed yet, modulo 2^`bits`, if their width does not
/// divide a word; other widths are left to [`lower_packed_zero_points`].
pub(crate) fn lower_zero_points(codes: &mut [u8], bits: usize) {
    if !matches!(bits, 2 | 4 | 8) {
        codes
            .iter_mut()
            .for_each(|code| *code = code.wrapping_sub(1) & ((1 << bits) - 1));
    }
}
