//! Codes of one to eight bits as bit streams, least significant bit first, in words of 32 bits or
//! in bytes; or in bit planes.

use crate::simd::{copy, zip};

/// Codes in a chunk. 32 codes of `BITS` bits fill `BITS` words exactly, whatever `BITS` is.
pub(crate) const CHUNK: usize = 32;

/// Unpacks the 32 codes of one chunk.
#[inline(always)]
pub(crate) fn unpack<const BITS: usize>(words: &[u32; BITS]) -> [u32; CHUNK] {
    let mut codes = [0; CHUNK];
    if BITS == 8 {
        // The same as below, in a form that LLVM turns into one widening move.
        for (codes, word) in zip(codes.as_chunks_mut::<4>().0, words) {
            let bytes = word.to_le_bytes();
            for (code, byte) in zip(&mut codes[..], bytes) {
                *code = u32::from(byte);
            }
        }
        return codes;
    }
    for (i, code) in codes.iter_mut().enumerate() {
        let (word, shift) = (i * BITS / 32, i * BITS % 32);
        let mut value = words[word] >> shift;
        if shift + BITS > 32 {
            value |= words[word + 1] << (32 - shift);
        }
        *code = value & ((1 << BITS) - 1);
    }
    codes
}

/// Unpacks 32 codes that lie in bit planes (gptqmodel `utils/planar_packing.py`). A width is the
/// sum of some of 4, 2 and 1; there is a plane of so many bits of each code for each of them, the
/// widest first and with the lowest bits. Each plane is a bit stream.
#[inline(always)]
pub(crate) fn unpack_planes<const BITS: usize>(words: &[u32; BITS]) -> [u32; CHUNK] {
    let mut codes = [0; CHUNK];
    // A plane of n bits fills n words, so that the bits before it are the words before it.
    let mut first = 0;
    for width in [4usize, 2, 1] {
        if BITS & width == 0 {
            continue;
        }
        let (per_word, mask) = (32 / width, (1 << width) - 1);
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= (words[first + i / per_word] >> (i % per_word * width) & mask) << first;
        }
        first += width;
    }
    codes
}

/// Unpacks the first codes of a bit stream, `bits` bits each, one to eight, into a byte each.
#[inline(always)]
pub(crate) fn unpack_bytes(bits: usize, bytes: &[u8], out: &mut [u8]) {
    match bits {
        1 => unpack_eights::<1>(bytes, out),
        2 => unpack_eights::<2>(bytes, out),
        3 => unpack_eights::<3>(bytes, out),
        4 => unpack_nibbles(bytes, out),
        5 => unpack_eights::<5>(bytes, out),
        6 => unpack_eights::<6>(bytes, out),
        7 => unpack_eights::<7>(bytes, out),
        _ => copy(&bytes[..out.len()], out),
    }
}

/// Unpacks eight codes at a time: they fill `BITS` bytes exactly.
#[inline(always)]
fn unpack_eights<const BITS: usize>(bytes: &[u8], out: &mut [u8]) {
    let (eights, rest) = out.as_chunks_mut::<8>();
    let stored = bytes.as_chunks::<BITS>().0;
    for (codes, &bytes) in zip(&mut eights[..], stored) {
        *codes = spread::<BITS>(bytes);
    }
    if !rest.is_empty() {
        // The last codes of a row may end before their `BITS` bytes do.
        let bytes = &bytes[eights.len() * BITS..];
        let n = bytes.len().min(BITS);
        let mut last = [0; BITS];
        copy(&bytes[..n], &mut last[..n]);
        copy(&spread(last)[..rest.len()], rest);
    }
}

/// The eight codes of `BITS` bytes. They are moved apart by halves: four to each half of a word of
/// 64 bits, two to each quarter, one to each byte. Three steps of shifts and masks take the place
/// of eight shifts.
#[inline(always)]
fn spread<const BITS: usize>(bytes: [u8; BITS]) -> [u8; 8] {
    let mut wide = [0; 8];
    copy(&bytes, &mut wide[..BITS]);
    let mut word = u64::from_le_bytes(wide);
    let ones = |bits: usize| (1u64 << bits) - 1;
    word = word & ones(4 * BITS) | (word >> (4 * BITS)) << 32;
    let quarters = ones(2 * BITS) * 0x1_0000_0001;
    word = word & quarters | (word >> (2 * BITS) & quarters) << 16;
    let eighths = ones(BITS) * 0x0001_0001_0001_0001;
    word = word & eighths | (word >> BITS & eighths) << 8;
    word.to_le_bytes()
}

/// Unpacks two codes a byte, the first in the low half. LLVM turns the loop into an interleaving of
/// two vectors, which is less work than [`spread`].
#[inline(always)]
fn unpack_nibbles(bytes: &[u8], out: &mut [u8]) {
    let (pairs, last) = out.as_chunks_mut::<2>();
    for (pair, &byte) in zip(&mut pairs[..], bytes) {
        *pair = [byte & 15, byte >> 4];
    }
    if let [code] = last {
        *code = bytes[pairs.len()] & 15;
    }
}

/// The `BITS` words from word `at` on, with zeros behind the end of `words`.
#[inline(always)]
pub(crate) fn chunk<const BITS: usize>(words: &[u32], at: usize) -> [u32; BITS] {
    let rest = &words[at.min(words.len())..];
    if let Some(whole) = rest.first_chunk::<BITS>() {
        return *whole;
    }
    let mut partial = [0; BITS];
    copy(rest, &mut partial[..rest.len()]);
    partial
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twin(words: &[u32], bits: usize, i: usize) -> u32 {
        (0..bits)
            .map(|b| (words[(i * bits + b) / 32] >> ((i * bits + b) % 32) & 1) << b)
            .sum()
    }

    fn check<const BITS: usize>() {
        let words: [u32; BITS] =
            std::array::from_fn(|i| 0x9e37_79b9u32.wrapping_mul(i as u32 * 2 + 7));
        let codes = unpack(&words);
        for (i, &code) in codes.iter().enumerate() {
            assert_eq!(code, twin(&words, BITS, i), "{BITS} bits, code {i}");
        }
    }

    fn check_planes<const BITS: usize>(planes: &[usize]) {
        let words: [u32; BITS] =
            std::array::from_fn(|i| 0x9e37_79b9u32.wrapping_mul(i as u32 * 2 + 7));
        let codes = unpack_planes(&words);
        for (i, &code) in codes.iter().enumerate() {
            let mut expected = 0;
            let mut first = 0;
            for &width in planes {
                expected |= twin(&words[first..], width, i) << first;
                first += width;
            }
            assert_eq!(code, expected, "{BITS} bits in planes, code {i}");
        }
    }

    #[test]
    fn planes_equal_reading_bit_by_bit() {
        check_planes::<3>(&[2, 1]);
        check_planes::<5>(&[4, 1]);
        check_planes::<6>(&[4, 2]);
        check_planes::<7>(&[4, 2, 1]);
    }

    #[test]
    fn unpacking_into_bytes_equals_reading_bit_by_bit() {
        let words: [u32; 32] =
            std::array::from_fn(|i| 0x9e37_79b9u32.wrapping_mul(i as u32 * 2 + 7));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for bits in 1..=8 {
            for n in [0usize, 1, 7, 8, 61, 64] {
                let mut codes = vec![0; n];
                unpack_bytes(bits, &bytes[..(n * bits).div_ceil(8)], &mut codes);
                for (i, &code) in codes.iter().enumerate() {
                    assert_eq!(u32::from(code), twin(&words, bits, i), "{bits} bits, code {i}");
                }
            }
        }
    }

    #[test]
    fn unpacking_equals_reading_bit_by_bit() {
        check::<1>();
        check::<2>();
        check::<3>();
        check::<4>();
        check::<5>();
        check::<6>();
        check::<7>();
        check::<8>();
    }
}
