//! Naive decoders of the types of ik_llama.cpp and PrismML: one value at a time, by the indices of
//! the C++.

use super::super::*;
use super::{BlockBits, DecodeRowTwin};

/// `iq2nl_values`, `iq3nl_values`, `iq4k_values` and `iq5nl_values`, as ik_llama.cpp's
/// `ggml-common.h` has them.
const N2: [i32; 8] = [-31, -13, 1, 17, -26, -8, 6, 22];
const N3: [i32; 16] = [-63, -40, -23, -10, 1, 13, 28, 47, -59, -36, -19, -6, 5, 17, 32, 51];
const N4: [i32; 32] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113, -123, -100, -79, -61,
    -45, -31, -18, -6, 5, 17, 29, 42, 57, 73, 93, 117,
];
const N5: [i32; 64] = [
    -126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6, -1, 5, 11,
    17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121, -124, -112, -101, -90, -81, -72, -63,
    -55, -48, -41, -34, -28, -22, -16, -10, -4, 1, 7, 13, 19, 25, 31, 38, 45, 53, 61, 70, 79, 89,
    99, 111, 123,
];

/// `d` times the scale, times the value of a codebook.
fn scaled(d: f32, scale: i32, value: i32) -> f32 {
    d * scale as f32 * value as f32
}

impl BlockBits<'_> {
    /// Bit `i` of the bytes from `at` on.
    fn bit(self, at: usize, i: usize) -> i32 {
        self.get(at, i, 1)
    }

    /// The code of two bits of value `i`: Q2_K's layout.
    fn two(self, at: usize, i: usize) -> i32 {
        self.get(at + i / 128 * 32 + i % 32, i / 32 % 4 * 2, 2)
    }

    /// The bit of value `i` where a byte has one of each 32 values.
    fn plane(self, at: usize, i: usize) -> i32 {
        self.get(at + i % 32, i / 32, 1)
    }
}

impl DecodeRowTwin for Q6_0 {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        let (j, high) = (i % 16, i / 16);
        let pair = b.get(2 + j % 8, j / 8 * 4 + high * 2, 2);
        (b.nibble(10, i, 16) + 16 * pair - 32) as f32 * b.f16_at(0)
    }
}

/// Digit `n` of five, of a byte that is a fraction of 256 in base 3, the last digit first.
fn trit(byte: i32, n: usize) -> i32 {
    let fraction = byte * 3i32.pow(4 - n as u32) % 256;
    (fraction + fraction / 2) / 128
}

impl DecodeRowTwin for IQ1_BN {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let (n, j) = (i / 16, i % 16);
        let digit = match j {
            15 => trit(b.get(12, 0, 8), n),
            _ => trit(b.get(3 * n + j / 5, 0, 8), j % 5),
        };
        d * (digit - 1) as f32
    }
}

impl DecodeRowTwin for IQ2_BN {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        d * (b.get(i % 16, i / 16 * 2, 2) - 1) as f32
    }
}

impl DecodeRowTwin for Q8_KV {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        d * b.signed(i)
    }
}

impl DecodeRowTwin for IQ2_K {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        let scale = b.get(4, i / 16 * 4, 4) - 8;
        let value = N2[(b.two(12, i) + 4 * b.bit(2, i / 16)) as usize];
        scaled(b.f16_at(0), scale, value)
    }
}

impl DecodeRowTwin for IQ2_KS {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let scale = b.get(2, i / 32 * 4, 4) + 16 * b.bit(0, 8 + i / 32) - 16;
        let value = N2[(b.two(6, i) + 4 * b.bit(0, i / 32)) as usize];
        scaled(d, scale, value)
    }
}

impl DecodeRowTwin for IQ2_KL {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        const KL: [u16; 32] = [
            0xe9c1, 0x0dc1, 0xc1d8, 0xf6d8, 0x0dd8, 0x2fd8, 0xd8e9, 0xe9e9, 0x01e9, 0x0de9, 0x1ce9,
            0xc1f6, 0x01f6, 0x0df6, 0x2ff6, 0xe901, 0xf601, 0x0101, 0x0d01, 0x1c01, 0xd80d, 0xe90d,
            0xf60d, 0x010d, 0x0d0d, 0xc11c, 0xe91c, 0x011c, 0x1c1c, 0x2f1c, 0xe92f, 0x0d2f,
        ];
        let (n, j) = (i / 32, i % 32 / 2);
        let scale = b.get(2 + n % 4, n / 4 * 4, 4) + 16 * b.get(0, 2 * n, 2) - 32;
        let index = b.get(6 + n / 2 * 16 + j, n % 2 * 4, 4) + 16 * b.bit(70 + j, n);
        let value = KL[index as usize].to_le_bytes()[i % 2] as i8;
        scaled(d, scale, value.into())
    }
}

impl DecodeRowTwin for IQ3_K {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        let scale = (2 * b.get(6, i / 16 * 4, 4) + 1) * (1 - 2 * b.bit(4, i / 16));
        let code = b.two(14, i) + 4 * b.plane(78, i) + 8 * b.bit(2, i / 16);
        scaled(b.f16_at(0), scale, N3[code as usize])
    }
}

impl DecodeRowTwin for IQ3_KS {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let n = i / 32;
        let scale = b.get(2 + n % 4, n / 4 * 4, 4) + 16 * b.bit(0, n) - 16;
        let code = b.two(6, i) + 4 * b.plane(70, i) + 8 * b.bit(0, 8 + n);
        scaled(d, scale, N3[code as usize])
    }
}

impl DecodeRowTwin for IQ4_K {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        let scale = b.get(8, i / 16 * 4, 4) + 16 * b.get(4, i / 16 * 2, 2) - 32;
        let code = b.nibble(16, i, 16) + 16 * b.bit(2, i / 16);
        scaled(b.f16_at(0), scale, N4[code as usize])
    }
}

impl DecodeRowTwin for IQ4_KS {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let scale = 2 * b.get(i / 32, 1, 7) - 127;
        let code = b.nibble(8, i, 16) + 16 * b.bit(i / 32, 0);
        scaled(d, scale, N4[code as usize])
    }
}

impl DecodeRowTwin for IQ4_KSS {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let at = i / 32 * 16;
        let scale: i32 = (0..8).map(|k| b.bit(at + 2 * k, 0) << k).sum();
        // Bit `k` of the nibble: bit `k` of the word, exclusive or the one above it. The lowest is
        // cleared first.
        let (j, first) = (i % 16, i % 32 / 16 * 4);
        let bit = |k: usize| {
            let k = j % 2 * 8 + first + k;
            if k == 0 || k == 16 {
                0
            } else {
                b.bit(at + j / 2 * 2, k)
            }
        };
        let nibble: i32 = (0..4).map(|k| (bit(k) ^ bit(k + 1)) << k).sum();
        let value = N4[(nibble + 16 * (scale & 1)) as usize];
        scaled(d, (scale & 254) - 127, value)
    }
}

impl DecodeRowTwin for IQ5_K {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        let scale = b.get(8, i / 16 * 4, 4) + 16 * b.get(4, i / 16 * 2, 2) - 32;
        let code = b.nibble(16, i, 32) + 16 * b.plane(144, i) + 32 * b.bit(2, i / 16);
        scaled(b.f16_at(0), scale, N5[code as usize])
    }
}

impl DecodeRowTwin for IQ5_KS {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let scale = 2 * b.get(i / 32, 1, 7) - 127;
        let code = b.nibble(8, i, 32) + 16 * b.plane(136, i) + 32 * b.bit(i / 32, 0);
        scaled(d, scale, N5[code as usize])
    }
}

impl DecodeRowTwin for IQ6_K {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        let q = (b.nibble(20, i, 32) + 16 * b.two(148, i)) as f32;
        let value = -127.0 + q * (6.2568 + q * (-0.11218 + q * 0.001_197_2));
        b.f16_at(0) * b.signed(4 + i / 16) * (value + b.bit(2, i / 16) as f32)
    }
}

/// Value `k` that a trellis makes of `seed`.
fn trellis(seed: i32, k: usize) -> f32 {
    let mut x = seed as u32;
    for _ in 0..=k {
        x = x.wrapping_mul(0xcbac_1fed);
    }
    let sum: u32 = x
        .to_le_bytes()
        .iter()
        .map(|byte| u32::from(byte & 63))
        .sum();
    sum as f32 - 126.0
}

impl DecodeRowTwin for IQ1_KT {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let (n, i8) = (i / 32, i / 8);
        let high = b.get(40 + i8 % 16, i8 / 16 * 4, 4);
        let index = b.get(8 + i8, 0, 8) + (high << 8) + (b.bit(n, 4 + i8 % 4) << 12);
        d * N4[b.get(n, 0, 4) as usize] as f32 * trellis(4096 + index, i % 8)
    }
}

impl DecodeRowTwin for IQ2_KT {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let n = i / 32;
        let scale = N4[b.get(n % 4, n / 4 * 4, 4) as usize];
        d * scale as f32 * trellis(4096 + b.get(4, i / 8 * 16, 16), i % 8)
    }
}

impl DecodeRowTwin for IQ3_KT {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let n = i / 32;
        let scale = b.get(n % 4, n / 4 * 4, 4);
        let value = d * scale as f32 * trellis(4096 + b.get(4, i / 8 * 16, 16), i % 8).abs();
        if b.plane(68, i) == 1 { -value } else { value }
    }
}

impl DecodeRowTwin for IQ4_KT {
    fn value(b: BlockBits<'_>, d: f32, i: usize) -> f32 {
        let (at, i4) = (i / 32 * 4, i / 4);
        let high = b.get(96 + i4 % 32, i4 / 32 * 4, 4);
        let top = b.get(at, 8 + i4 % 8 * 3, 3);
        let index = b.get(32 + i4, 0, 8) + (high << 8) + (top << 12);
        let seed = index + if b.bit(at, 0) == 1 { 36864 } else { 4096 };
        d * (b.get(at, 1, 7) - 64) as f32 * trellis(seed, i % 4)
    }
}

impl DecodeRowTwin for PQ2_0 {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        (b.get(2, 2 * i, 2) - 1) as f32 * b.f16_at(0)
    }
}

impl DecodeRowTwin for PTQ1_0 {
    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        let (at, n) = match i {
            0..80 => (i % 16, i / 16),
            80..120 => (16 + i % 8, (i - 80) / 8),
            _ => (24 + i % 2, (i - 120) / 2),
        };
        (trit(b.get(at, 0, 8), 4 - n) - 1) as f32 * b.f16_at(26)
    }
}
