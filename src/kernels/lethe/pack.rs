//! Codes of a byte each, packed: the mirror of `remember/packed.rs`.

#[cfg(feature = "awq")]
use crate::kernels::remember::awq::{PER_WORD, POSITION};
use crate::simd::{Level, Routine, perform};

#[cfg(test)]
mod tests;

/// Codes that fill whole bytes, whatever their width is.
const OCTET: usize = 8;

/// Fields of `bits`, each at the beginning of `every` bits: two and two without the gap between them.
#[inline(always)]
const fn joined(x: u64, bits: usize, every: usize) -> u64 {
    let (mut low, mut at) = (0, 0);
    while at < 64 {
        low |= ((1 << bits) - 1) << at;
        at += 2 * every;
    }
    x & low | x >> (every - bits) & low << bits
}

/// The low `BITS` of eight bytes side by side: pairs first, then pairs of pairs.
#[inline(always)]
fn squeeze<const BITS: usize>(codes: [u8; OCTET]) -> u64 {
    let mut x = u64::from_le_bytes(codes);
    if BITS == 8 {
        return x;
    }
    x = joined(x, BITS, 8);
    x = joined(x, 2 * BITS, 16);
    joined(x, 4 * BITS, 32)
}

/// Rows of codes as bit streams, least significant bit first, each of whole words.
struct Streams<'a, const BITS: usize> {
    codes: &'a [u8],
    cols: usize,
    row_bytes: usize,
    out: &'a mut [u8],
}

impl<const BITS: usize> Routine for Streams<'_, BITS> {
    #[inline(always)]
    fn run(&mut self) {
        let rows = self
            .codes
            .chunks_exact(self.cols.max(1))
            .zip(self.out.chunks_exact_mut(self.row_bytes.max(1)));
        for (codes, out) in rows {
            let (octets, rest) = codes.as_chunks::<OCTET>();
            let (packed, tail) = out.split_at_mut(octets.len() * BITS);
            for (octet, out) in octets.iter().zip(packed.as_chunks_mut::<BITS>().0) {
                let bytes = squeeze::<BITS>(*octet).to_le_bytes();
                out.copy_from_slice(&bytes[..BITS]);
            }
            let mut last = [0; OCTET];
            last[..rest.len()].copy_from_slice(rest);
            let bytes = squeeze::<BITS>(last).to_le_bytes();
            tail.fill(0);
            let n = BITS.min(tail.len());
            tail[..n].copy_from_slice(&bytes[..n]);
        }
    }
}

/// Bytes of a row of packed codes: whole words of 32 bits.
pub(crate) fn row_bytes(cols: usize, bits: usize) -> usize {
    (cols * bits).div_ceil(32) * 4
}

/// Makes `out` the bit streams of rows of `cols` codes.
pub(crate) fn streams(codes: &[u8], cols: usize, bits: usize, level: Level, out: &mut Vec<u8>) {
    let row_bytes = row_bytes(cols, bits);
    out.resize(codes.len() / cols.max(1) * row_bytes, 0);
    macro_rules! run {
        ($bits:literal) => {
            perform(
                level,
                &mut Streams::<$bits> {
                    codes,
                    cols,
                    row_bytes,
                    out,
                },
            )
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

/// Rows of a matrix of words as columns: makes `out` the words `[cols][rows]`.
pub(crate) fn transpose(words: &[u8], cols: usize, out: &mut Vec<u8>) {
    /// Rows whose lines stay in the cache.
    const STRIP: usize = 16;
    let words = words.as_chunks::<4>().0;
    let rows = words.len() / cols.max(1);
    out.resize(words.len() * 4, 0);
    let out = out.as_chunks_mut::<4>().0;
    for first in (0..rows).step_by(STRIP) {
        let strip = &words[first * cols..(first + STRIP).min(rows) * cols];
        for c in 0..cols {
            let column = strip.iter().skip(c).step_by(cols);
            for (to, from) in out[c * rows + first..].iter_mut().zip(column) {
                *to = *from;
            }
        }
    }
}

/// Rows and columns of a square that is turned at once.
const SQUARE: usize = 16;

/// Rows of `cols` values as columns: `[cols][rows]`.
pub(crate) fn turn<T: Copy + Default>(values: &[T], cols: usize) -> Vec<T> {
    let mut out = vec![T::default(); values.len()];
    let rows = values.len() / cols.max(1);
    for (top, band) in values.chunks(cols.max(1) * SQUARE).enumerate() {
        for left in (0..cols).step_by(SQUARE) {
            for col in left..(left + SQUARE).min(cols) {
                let column = &mut out[col * rows + top * SQUARE..(col + 1) * rows];
                let lines = band[col..].iter().step_by(cols);
                column
                    .iter_mut()
                    .zip(lines)
                    .for_each(|(out, &value)| *out = value);
            }
        }
    }
    out
}

/// Words of AWQ: in each the codes of eight rows of one column, in its order.
#[cfg(feature = "awq")]
struct Interleaved<'a> {
    codes: &'a [u8],
    cols: usize,
    out: &'a mut [u8],
}

#[cfg(feature = "awq")]
impl Routine for Interleaved<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let cols = self.cols.max(1);
        let runs = self
            .codes
            .chunks_exact(PER_WORD * cols)
            .zip(self.out.chunks_exact_mut(cols * 4));
        for (codes, out) in runs {
            for (row, codes) in codes.chunks_exact(cols).enumerate() {
                let shift = POSITION[row] * 4;
                for (word, &code) in out.as_chunks_mut::<4>().0.iter_mut().zip(codes) {
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

/// Makes `out` words `[rows / 8][cols]` of four bits a code.
#[cfg(feature = "awq")]
pub(crate) fn interleave(codes: &[u8], cols: usize, level: Level, out: &mut Vec<u8>) {
    out.resize(codes.len() / PER_WORD * 4, 0);
    perform(level, &mut Interleaved { codes, cols, out });
}

/// Packed zero points of GPTQ's version 1, each stored one too low: one is taken from all fields of a word at once, and
/// borrowed between them, as gptqmodel 7.7.0 `utils/model.py` (`convert_gptq_v2_to_v1_format_module`) does. Where fields go
/// across words [`lower_codes`] did it before.
#[cfg(feature = "gptq")]
pub(crate) fn lower_words(words: &mut [u8], bits: usize) {
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

/// The same for zero points that are not packed yet, of widths that do not divide a word.
#[cfg(feature = "gptq")]
pub(crate) fn lower_codes(codes: &mut [u8], bits: usize) {
    if !matches!(bits, 2 | 4 | 8) {
        codes
            .iter_mut()
            .for_each(|code| *code = code.wrapping_sub(1) & ((1 << bits) - 1));
    }
}
