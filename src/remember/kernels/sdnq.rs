//! SDNQ's packed codes of one to seven bits: eight of them in as many bytes as a code has bits. The
//! low bits of each byte are whole codes, and the bits above them make up the others. Codes of nine
//! to fifteen bits: sixteen of them in as many words of sixteen bits (`wide`).
//!
//! Source: sdnq `packed_int/unpack.py`.

mod wide;

use super::packed::unpack_bytes;
use crate::simd::{copy, zip};

/// Codes of up to eight bits in a unit.
const UNIT: usize = 8;

/// Codes of more than eight bits in a unit.
const WIDE_UNIT: usize = 16;

/// Codes in a unit: as many as the words that codes of `bits` bits are packed in have bits, so that
/// it fills whole words.
pub(crate) fn unit(bits: usize) -> usize {
    if bits > 8 { WIDE_UNIT } else { UNIT }
}

/// Bytes of an unpacked code of `bits` bits.
pub(crate) fn unpacked_bytes(bits: usize) -> usize {
    if bits > 8 { 2 } else { 1 }
}

/// Unpacks codes of `bits` bits, one to sixteen, from whole units. Codes of up to eight bits get a
/// byte each, wider ones two.
pub(crate) fn unpack_units(bits: usize, bytes: &[u8], out: &mut [u8]) {
    match bits {
        3 => units::<3>(bytes, out, three),
        5 => units::<5>(bytes, out, five),
        6 => units::<6>(bytes, out, six),
        7 => units::<7>(bytes, out, seven),
        9.. => wide::unpack_units(bits, bytes, out),
        // A bit stream, least significant bit first.
        _ => unpack_bytes(bits, bytes, out),
    }
}

fn units<const BITS: usize>(bytes: &[u8], out: &mut [u8], unit: impl Fn([u8; BITS]) -> u64) {
    let units = out.as_chunks_mut::<UNIT>().0;
    for (out, &bytes) in zip(units, bytes.as_chunks().0) {
        *out = unit(bytes).to_le_bytes();
    }
}

/// The bytes as a word, the first lowest.
fn word<const BITS: usize>(bytes: [u8; BITS]) -> u64 {
    let mut wide = [0; 8];
    copy(&bytes, &mut wide[..BITS]);
    u64::from_le_bytes(wide)
}

/// Codes 0 to 2 are bits 0 to 2 of each byte, codes 3 to 5 bits 3 to 5. Codes 6 and 7 have bits 6
/// and 7 of bytes 0 and 1, and bits 6 and 7 of byte 2 as their highest.
fn three(bytes: [u8; 3]) -> u64 {
    let word = word(bytes);
    let low = word & 0x07_0707 | (word >> 3 & 0x07_0707) << 24;
    let high = word >> 6 & 0x0303 | word >> 20 & 4 | word >> 13 & 0x400;
    low | high << 48
}

/// Codes 0 to 4 are bits 0 to 4 of each byte. Codes 5 to 7 have bits 5 to 7 of bytes 0 to 2; their
/// upper two bits are bits 5 and 6 of bytes 3 and 4, and bits 7 of both.
fn five(bytes: [u8; 5]) -> u64 {
    let word = word(bytes);
    let low = word & 0x1f_1f1f_1f1f;
    let high = word >> 5 & 0x07_0707 | word >> 26 & 0x1818;
    let last = word >> 27 & 0x10 | word >> 36 & 0x08;
    low | (high | last << 16) << 40
}

/// Twice three bytes with four codes: three are bits 0 to 5 of each byte. The fourth has bits 6 and
/// 7 of the third byte, of the second and of the first, the lowest first.
fn six(bytes: [u8; 6]) -> u64 {
    let both = |half: u64| half | half << 32;
    let word = word(bytes);
    // Three bytes in each half.
    let word = word & 0xff_ffff | (word & 0xffff_ff00_0000) << 8;
    let [first, second, third] = [word & both(0xc0), word & both(0xc000), word & both(0xc0_0000)];
    word & both(0x3f_3f3f) | third << 2 | second << 12 | first << 22
}

/// Codes 0 to 6 are bits 0 to 6 of each byte. Code 7 has bits 7 of all, that of the last byte
/// lowest.
fn seven(bytes: [u8; 7]) -> u64 {
    // Times a power of two for each byte, bit 0 of byte i comes to bit 62 - i, and no sum carries
    // into these.
    const GATHER: u64 = 1 << 62 | 1 << 53 | 1 << 44 | 1 << 35 | 1 << 26 | 1 << 17 | 1 << 8;
    let word = word(bytes);
    let low = word & 0x7f_7f7f_7f7f_7f7f;
    let last = (word >> 7 & 0x01_0101_0101_0101).wrapping_mul(GATHER) >> 56 & 0x7f;
    low | last << 56
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_utils::miri_or;

    /// For each code of a unit, the bits of the unit that make it up, from its lowest: byte * 8 +
    /// bit. As sdnq itself unpacks units that have a single bit.
    const PLACES: [(usize, [&[usize]; UNIT]); 4] = [
        (
            3,
            [
                &[0, 1, 2],
                &[8, 9, 10],
                &[16, 17, 18],
                &[3, 4, 5],
                &[11, 12, 13],
                &[19, 20, 21],
                &[6, 7, 22],
                &[14, 15, 23],
            ],
        ),
        (
            5,
            [
                &[0, 1, 2, 3, 4],
                &[8, 9, 10, 11, 12],
                &[16, 17, 18, 19, 20],
                &[24, 25, 26, 27, 28],
                &[32, 33, 34, 35, 36],
                &[5, 6, 7, 29, 30],
                &[13, 14, 15, 37, 38],
                &[21, 22, 23, 39, 31],
            ],
        ),
        (
            6,
            [
                &[0, 1, 2, 3, 4, 5],
                &[8, 9, 10, 11, 12, 13],
                &[16, 17, 18, 19, 20, 21],
                &[22, 23, 14, 15, 6, 7],
                &[24, 25, 26, 27, 28, 29],
                &[32, 33, 34, 35, 36, 37],
                &[40, 41, 42, 43, 44, 45],
                &[46, 47, 38, 39, 30, 31],
            ],
        ),
        (
            7,
            [
                &[0, 1, 2, 3, 4, 5, 6],
                &[8, 9, 10, 11, 12, 13, 14],
                &[16, 17, 18, 19, 20, 21, 22],
                &[24, 25, 26, 27, 28, 29, 30],
                &[32, 33, 34, 35, 36, 37, 38],
                &[40, 41, 42, 43, 44, 45, 46],
                &[48, 49, 50, 51, 52, 53, 54],
                &[55, 47, 39, 31, 23, 15, 7],
            ],
        ),
    ];

    #[test]
    fn units_equal_reading_bit_by_bit() {
        let mut state = 1u32;
        for (bits, places) in PLACES {
            for _ in 0..miri_or(3, 1000) {
                let mut bytes = vec![0; bits];
                for byte in &mut bytes {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *byte = (state >> 24) as u8;
                }
                let mut codes = [0; UNIT];
                unpack_units(bits, &bytes, &mut codes);
                let want = places.map(|places| {
                    let bit = |(i, at): (usize, &usize)| (bytes[at / 8] >> (at % 8) & 1) << i;
                    places.iter().enumerate().map(bit).sum::<u8>()
                });
                assert_eq!(codes, want, "{bits} bits of {bytes:?}");
            }
        }
    }
}
