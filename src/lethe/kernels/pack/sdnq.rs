//! SDNQ's packing of codes of two to eight bits: eight of them in as many bytes as a code has bits.
//! The mirror of `remember/kernels/sdnq.rs`, which says where each bit lies.
//!
//! Source: sdnq 0.2.8 `packed_int/pack.py`.

use super::{OCTET, join_octet};
use crate::simd::{Level, Routine, copy, perform, zip};

/// Packs codes in units of eight. The last unit may lack codes, as many as leave whole bytes.
struct PackUnits<'a, const BITS: usize> {
    codes: &'a [u8],
    out: &'a mut [u8],
}

impl<const BITS: usize> Routine for PackUnits<'_, BITS> {
    #[inline(always)]
    fn run(&mut self) {
        let (octets, rest) = self.codes.as_chunks::<OCTET>();
        let (packed, tail) = self.out.split_at_mut(octets.len() * BITS);
        for (octet, out) in zip(octets.iter(), packed.as_chunks_mut::<BITS>().0) {
            copy(&unit::<BITS>(*octet).to_le_bytes()[..BITS], out);
        }
        let mut last = [0; OCTET];
        copy(rest, &mut last[..rest.len()]);
        let bytes = unit::<BITS>(last).to_le_bytes();
        let n = tail.len();
        copy(&bytes[..n], tail);
    }
}

/// Makes `out` the units of `codes` of `bits` bits.
pub(crate) fn pack_units(codes: &[u8], bits: usize, level: Level, out: &mut Vec<u8>) {
    out.resize(codes.len() * bits / 8, 0);
    macro_rules! run {
        ($bits:literal) => {
            perform(level, &mut PackUnits::<$bits> { codes, out })
        };
    }
    match bits {
        2 => run!(2),
        3 => run!(3),
        4 => run!(4),
        5 => run!(5),
        6 => run!(6),
        7 => run!(7),
        _ => run!(8),
    }
}

/// The bytes of a unit in the low bytes of a word.
#[inline(always)]
fn unit<const BITS: usize>(codes: [u8; OCTET]) -> u64 {
    let word = u64::from_le_bytes(codes);
    match BITS {
        3 => three(word),
        5 => five(word),
        6 => six(word),
        7 => seven(word),
        _ => join_octet::<BITS>(codes),
    }
}

#[inline(always)]
fn three(codes: u64) -> u64 {
    let low = codes & 0x07_0707 | (codes >> 24 & 0x07_0707) << 3;
    low | (codes >> 48 & 0x0303) << 6 | codes >> 28 & 1 << 22 | codes >> 35 & 1 << 23
}

#[inline(always)]
fn five(codes: u64) -> u64 {
    let low = codes & 0x1f_1f1f_1f1f;
    let high = (codes >> 40 & 0x07_0707) << 5 | (codes >> 40 & 0x1818) << 26;
    low | high | codes >> 29 & 1 << 31 | codes >> 20 & 1 << 39
}

#[inline(always)]
fn six(codes: u64) -> u64 {
    const fn both(half: u64) -> u64 {
        half | half << 32
    }
    let fourth =
        codes >> 2 & both(0xc0_0000) | codes >> 12 & both(0xc000) | codes >> 22 & both(0xc0);
    let halves = codes & both(0x3f_3f3f) | fourth;
    // Three bytes of each half.
    halves & 0xff_ffff | halves >> 8 & 0xffff_ff00_0000
}

#[inline(always)]
fn seven(codes: u64) -> u64 {
    // Times a power of two for each byte, bit 6 - i of the last code comes to bit 7 of byte i, and
    // no two of the products meet.
    const SPREAD: u64 = 1 << 1 | 1 << 10 | 1 << 19 | 1 << 28 | 1 << 37 | 1 << 46 | 1 << 55;
    let last = (codes >> 56).wrapping_mul(SPREAD) & 0x80_8080_8080_8080;
    codes & 0x7f_7f7f_7f7f_7f7f | last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remember::kernels::sdnq::unpack_units;
    use crate::test_utils::miri_or;

    /// The decoder reads them bit by bit in its own tests.
    #[test]
    fn packed_codes_are_unpacked() {
        for level in Level::available() {
            for bits in 2..=8usize {
                // As few codes as fill whole bytes.
                let together = (8 >> bits.trailing_zeros().min(3)).max(1);
                for n in [0, together, 8, 8 + together, 24, miri_or(64, 1000) * 8] {
                    let code = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) >> 24;
                    let codes: Vec<u8> = (0..n).map(|i| code(i) as u8 >> (8 - bits)).collect();
                    let mut out = vec![0xff; 5];
                    pack_units(&codes, bits, level, &mut out);
                    assert_eq!(out.len(), n * bits / 8);
                    out.resize(n.div_ceil(8) * bits, 0);
                    let mut unpacked = vec![0; n.next_multiple_of(8)];
                    unpack_units(bits, &out, &mut unpacked);
                    assert_eq!(unpacked[..n], codes, "{level:?}, {bits} bits, {n} codes");
                }
            }
        }
    }
}
