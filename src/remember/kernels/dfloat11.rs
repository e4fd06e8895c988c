//! DFloat11: BF16 whose exponents are a stream of Huffman codes, most significant bit first, and
//! whose signs and mantissas are a byte each. Decoding gives the bits back that were encoded.
//!
//! Tables and arithmetic: dfloat11 `decode.cu`. A table has 256 entries, for the next eight bits of
//! the stream. An entry from 240 on stands for table `256 - entry`, which the eight bits after
//! those are looked up in, up to four tables deep; any other is an exponent. The last table has the
//! lengths of the codes.

use half::bf16;

use crate::element::Element;
use crate::simd::{Kernel, Routine, zip};

/// Entries of a table.
pub(crate) const TABLE: usize = 256;

/// Least entry that is a table's number and no exponent.
pub(crate) const LEAST_LINK: u8 = 240;

/// Most tables besides the lengths: the first, and those that links have numbers for.
pub(crate) const MAX_TABLES: usize = 17;

/// Most bits of a code.
pub(crate) const MAX_LEN: usize = 32;

/// Bits that are looked up at once. A table of them takes 16 KiB, half of the first-level cache.
const LOOK_UP_BITS: usize = 11;

/// Exponents in an entry at most.
const SYMBOLS: usize = 4;

/// Look-ups in the 57 bits that a read of 8 bytes gives at any bit.
const LOOK_UPS: usize = 5;

/// A Huffman code of exponents.
pub(crate) struct ExponentCode {
    /// The tables, and the lengths behind them.
    tables: Vec<u8>,
    /// Whether an entry stands for the codes that its length says: each entry that begins with the
    /// same bits is the same.
    is_sound: Vec<bool>,
    /// For the next [`LOOK_UP_BITS`] bits, the exponents of up to [`SYMBOLS`] codes that lie in
    /// them: a byte each, then their number and their bits. The number is 0 if the first code is
    /// longer.
    entries: Vec<u64>,
}

impl ExponentCode {
    /// The code whose tables, and lengths behind them, are `tables`: a multiple of [`TABLE`], two
    /// or more.
    pub(crate) fn new(tables: Vec<u8>) -> Self {
        let mut code = Self { is_sound: vec![false; tables.len()], tables, entries: Vec::new() };
        for at in 0..code.tables.len() - TABLE {
            code.is_sound[at] = code.is_same_for_all(at);
        }
        let entry = |bits: usize| code.entry((bits << (32 - LOOK_UP_BITS)) as u32);
        code.entries = (0..1 << LOOK_UP_BITS).map(entry).collect();
        code
    }

    /// Whether each entry beside entry `at` whose bits begin with the same code is the same.
    ///
    /// The encoder fills the places of the code that ends its stream with the entry before them.
    /// What is decoded must not depend on bits behind a code, so such an entry is none.
    fn is_same_for_all(&self, at: usize) -> bool {
        let (table, entry) = (at / TABLE * TABLE, self.tables[at]);
        // Which levels a table is at, only its place in the chain of links tells; the length gives
        // the bits of the last.
        let len = usize::from(self.length(entry));
        if len == 0 || len > MAX_LEN {
            return false;
        }
        let block = 1 << (7 - (len - 1) % 8);
        let first = at % TABLE / block * block;
        let beside = &self.tables[table + first..table + first + block];
        beside.iter().all(|other| *other == entry)
    }

    fn length(&self, exponent: u8) -> u8 {
        self.tables[self.tables.len() - TABLE + usize::from(exponent)]
    }

    /// The exponent of the code that `bits` begin with, and the code's length. `None` if no code is
    /// like them.
    fn look_up(&self, bits: u32) -> Option<(u8, usize)> {
        let lengths = self.tables.len() - TABLE;
        let mut table = 0;
        for level in 0..MAX_LEN / 8 {
            let at = table + (bits >> (24 - 8 * level) & 255) as usize;
            let entry = self.tables[at];
            if entry >= LEAST_LINK && level + 1 < MAX_LEN / 8 {
                table = (TABLE - usize::from(entry)) * TABLE;
                if table >= lengths {
                    return None;
                }
                continue;
            }
            let len = usize::from(self.length(entry));
            // A code of another length would have ended in another table.
            let is_sound = self.is_sound[at] && 8 * level < len && len <= 8 * level + 8;
            return is_sound.then_some((entry, len));
        }
        None
    }

    /// The entry for the bits that `bits` begin with.
    fn entry(&self, bits: u32) -> u64 {
        let (mut symbols, mut count, mut used) = (0, 0, 0);
        while count < SYMBOLS {
            match self.look_up(bits << used) {
                Some((exponent, len)) if used + len <= LOOK_UP_BITS => {
                    symbols |= u64::from(exponent) << (8 * count);
                    (count, used) = (count + 1, used + len);
                }
                _ => break,
            }
        }
        symbols | (count as u64) << 32 | (used as u64) << 40
    }

    /// Decodes exponents into `out` from bit `at` of `bytes` on, and moves `at` behind them.
    /// Returns how many there are before the first that is none: all of `out`, unless the stream
    /// ends or is malformed.
    pub(crate) fn decode(&self, bytes: &[u8], at: &mut usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            done += self.decode_fast(bytes, at, &mut out[done..]);
            let Some(out) = out.get_mut(done) else {
                break;
            };
            let bits = window(bytes, *at);
            let Some((exponent, len)) = self.look_up(bits) else {
                break;
            };
            *out = exponent;
            *at += len;
            done += 1;
        }
        done
    }

    /// Decodes while the next bits and the room in `out` are enough for as many exponents as
    /// look-ups may give. Returns how many there are.
    fn decode_fast(&self, bytes: &[u8], at: &mut usize, out: &mut [u8]) -> usize {
        let Ok(entries) = <&[u64; 1 << LOOK_UP_BITS]>::try_from(self.entries.as_slice()) else {
            return 0;
        };
        let (mut bit, mut done) = (*at, 0);
        while let (Some(next), true) = (
            bytes.get(bit / 8..).and_then(<[u8]>::first_chunk),
            done + LOOK_UPS * SYMBOLS <= out.len(),
        ) {
            let mut word = u64::from_be_bytes(*next) << (bit % 8);
            let mut count = 0;
            for _ in 0..LOOK_UPS {
                let entry = entries[(word >> (64 - LOOK_UP_BITS)) as usize];
                count = (entry >> 32 & 255) as usize;
                // The symbols are written all, and those that are none are written over.
                if let Some(out) = out[done..].first_chunk_mut() {
                    *out = (entry as u32).to_le_bytes();
                }
                let used = (entry >> 40) as usize;
                word <<= used;
                (bit, done) = (bit + used, done + count);
            }
            // A long code: none of the entries behind it has moved on.
            if count == 0 {
                break;
            }
        }
        *at = bit;
        done
    }
}

/// The 32 bits from bit `at` on; behind the last byte zeros.
fn window(bytes: &[u8], at: usize) -> u32 {
    let mut next = [0; 8];
    let rest = bytes.get(at / 8..).unwrap_or_default();
    for (next, byte) in zip(&mut next[..], rest) {
        *next = *byte;
    }
    (u64::from_be_bytes(next) << (at % 8) >> 32) as u32
}

/// Values of exponents, and of bytes with a sign and seven bits of mantissa.
pub(crate) struct JoinedFloats<'a> {
    pub exponents: &'a [u8],
    pub rest: &'a [u8],
}

/// The bits of a BF16.
#[inline(always)]
fn joined(exponent: u8, rest: u8) -> u16 {
    let (exponent, rest) = (u16::from(exponent), u16::from(rest));
    (rest & 0x80) << 8 | exponent << 7 | rest & 0x7f
}

impl Kernel for JoinedFloats<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        for ((out, &exponent), &rest) in zip(zip(&mut out[..], self.exponents), self.rest) {
            *out = E::from_f32(f32::from_bits(u32::from(joined(exponent, rest)) << 16));
        }
    }
}

/// The values as BF16, whose bits are those that were encoded: those of NaN, too.
pub(crate) struct JoinBf16<'a> {
    pub floats: JoinedFloats<'a>,
    pub out: &'a mut [bf16],
}

impl Routine for JoinBf16<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        let parts = zip(self.floats.exponents.iter(), self.floats.rest);
        for (out, (&exponent, &rest)) in zip(&mut self.out[..], parts) {
            *out = bf16::from_bits(joined(exponent, rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of codes of 1, 2, …, 31 bits, each ones and a zero at its end, for exponents from 100
    /// on.
    fn unary() -> ExponentCode {
        let mut tables = vec![0; 5 * TABLE];
        for level in 0..4 {
            for byte in 0..TABLE {
                let ones = (byte as u8).leading_ones() as usize;
                // Link to the next table; the code of 32 bits is missing, and its place filled.
                let entry = match ones {
                    8 if level < 3 => (255 - level) as u8,
                    8 => 130,
                    _ => (100 + 8 * level + ones) as u8,
                };
                tables[level * TABLE + byte] = entry;
            }
        }
        for len in 1..32 {
            tables[4 * TABLE + 99 + len] = len as u8;
        }
        ExponentCode::new(tables)
    }

    /// The bytes of codes of `lengths`.
    fn stream(lengths: &[usize]) -> Vec<u8> {
        let bits = lengths
            .iter()
            .flat_map(|&len| (1..len).map(|_| 1u8).chain([0]))
            .collect::<Vec<u8>>();
        let byte = |bits: &[u8]| (0..8).fold(0, |b, i| b << 1 | bits.get(i).copied().unwrap_or(0));
        bits.chunks(8).map(byte).collect()
    }

    #[test]
    fn codes_of_all_lengths() {
        let code = unary();
        let lengths: Vec<usize> = (0..1000)
            .map(|i| match i % 7 {
                0 => i % 31 + 1,
                1 => i % 13 + 1,
                n => n % 3 + 1,
            })
            .collect();
        let bytes = stream(&lengths);
        let want: Vec<u8> = lengths.iter().map(|len| 99 + *len as u8).collect();
        let mut out = vec![0; lengths.len()];
        let mut at = 0;
        assert_eq!(code.decode(&bytes, &mut at, &mut out), lengths.len());
        assert!(out == want && at == lengths.iter().sum::<usize>());
        // From every code on, in pieces of every size.
        let mut first = 0;
        for (i, len) in lengths.iter().enumerate().take(200) {
            let mut at = first;
            let out = &mut out[..i % 50];
            assert_eq!(code.decode(&bytes, &mut at, out), out.len());
            assert!(*out == want[i..i + out.len()], "{i}");
            first += len;
        }
    }

    #[test]
    fn what_is_no_code_ends_the_stream() {
        let code = unary();
        // 32 ones are the code that is missing.
        let mut bytes = stream(&[1, 2, 3]);
        bytes.splice(0..0, [0xff; 4]);
        let mut out = [0; 8];
        assert_eq!(code.decode(&bytes, &mut 0, &mut out), 0);
        assert_eq!(code.decode(&[0x7f, 0xff, 0xff, 0xff, 0xff], &mut 0, &mut out), 1);
        // Lengths of 0, links to tables that are none, and links in a circle.
        for (entry, length) in [(5, 0), (5, 9), (5, 33), (250, 1), (255, 1), (0, 255)] {
            let mut tables = vec![entry; 2 * TABLE];
            tables[TABLE..].fill(length);
            let code = ExponentCode::new(tables);
            assert_eq!(code.decode(&[0; 64], &mut 0, &mut out), 0, "{entry} {length}");
        }
        let mut circle = vec![255; 3 * TABLE];
        circle[2 * TABLE..].fill(32);
        let found = ExponentCode::new(circle).decode(&[0; 64], &mut 0, &mut out);
        // In the fourth table an entry is an exponent, whatever it is.
        assert_eq!((found, out), (8, [255; 8]));
    }

    /// All bits of a BF16, those of NaN included.
    #[test]
    fn joined_bits() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let exponents: Vec<u8> = bits.iter().map(|b| (b >> 7) as u8).collect();
        let rest: Vec<u8> = bits
            .iter()
            .map(|b| (b >> 8 & 0x80 | b & 0x7f) as u8)
            .collect();
        let mut out = vec![bf16::ZERO; bits.len()];
        for level in crate::simd::Level::available() {
            let floats = JoinedFloats { exponents: &exponents, rest: &rest };
            let mut routine = JoinBf16 { floats, out: &mut out };
            crate::simd::perform(level, &mut routine);
            assert!(
                out.iter()
                    .zip(&bits)
                    .all(|(out, &bits)| out.to_bits() == bits)
            );
        }
    }
}
