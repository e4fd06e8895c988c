//! Naive decoders: one value at a time, from the bits that it is made of.

use half::f16;

use super::super::*;
use super::{BlockBits, DecodeTwin};

impl DecodeTwin for Q4_0 {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        (b.nibble(2, i, 16) - 8) as f32 * b.f16_at(0)
    }
}

impl DecodeTwin for Q4_1 {
    const F16_SCALES: &'static [usize] = &[0, 2];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        b.nibble(4, i, 16) as f32 * b.f16_at(0) + b.f16_at(2)
    }
}

impl DecodeTwin for Q5_0 {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        (b.nibble(6, i, 16) + 16 * b.get(2, i, 1) - 16) as f32 * b.f16_at(0)
    }
}

impl DecodeTwin for Q5_1 {
    const F16_SCALES: &'static [usize] = &[0, 2];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        (b.nibble(8, i, 16) + 16 * b.get(4, i, 1)) as f32 * b.f16_at(0) + b.f16_at(2)
    }
}

impl DecodeTwin for Q8_0 {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        b.signed(2 + i) * b.f16_at(0)
    }
}

impl DecodeTwin for Q8_1 {
    const F16_SCALES: &'static [usize] = &[0, 2];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        b.signed(4 + i) * b.f16_at(0)
    }
}

/// Where value `i` of a K-quant lies: in which half of the block, in which 32 of that half's 128
/// values, and at which of these. The same bits of 32 consecutive bytes hold 32 values.
fn place(i: usize) -> (usize, usize, usize) {
    (i / 128, i % 128 / 32, i % 32)
}

impl DecodeTwin for Q2_K {
    const F16_SCALES: &'static [usize] = &[80, 82];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let (half, run, lane) = place(i);
        let (scale, min) = (b.get(i / 16, 0, 4) as f32, b.get(i / 16, 4, 4) as f32);
        let q = b.get(16 + 32 * half + lane, 2 * run, 2);
        b.f16_at(80) * scale * q as f32 - b.f16_at(82) * min
    }
}

impl DecodeTwin for Q3_K {
    const F16_SCALES: &'static [usize] = &[108];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let ((half, run, lane), group) = (place(i), i / 16);
        let low = b.get(96 + group % 8, group / 8 * 4, 4);
        let scale = low + 16 * b.get(104 + group % 4, group / 4 * 2, 2);
        let q = b.get(32 + 32 * half + lane, 2 * run, 2) + 4 * b.get(lane, i / 32, 1);
        b.f16_at(108) * (scale - 32) as f32 * (q - 4) as f32
    }
}

impl DecodeTwin for Q4_K {
    const F16_SCALES: &'static [usize] = &[0, 2];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let (scale, min) = b.scale_min(4, i / 32);
        b.f16_at(0) * scale * b.nibble(16, i, 32) as f32 - b.f16_at(2) * min
    }
}

impl DecodeTwin for Q5_K {
    const F16_SCALES: &'static [usize] = &[0, 2];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let (scale, min) = b.scale_min(4, i / 32);
        let q = b.nibble(48, i, 32) + 16 * b.get(16 + i % 32, i / 32, 1);
        b.f16_at(0) * scale * q as f32 - b.f16_at(2) * min
    }
}

impl DecodeTwin for Q6_K {
    const F16_SCALES: &'static [usize] = &[208];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let (half, run, lane) = place(i);
        let low = b.get(64 * half + 32 * (run % 2) + lane, run / 2 * 4, 4);
        let q = low + 16 * b.get(128 + 32 * half + lane, 2 * run, 2);
        b.f16_at(208) * b.signed(192 + i / 16) * (q - 32) as f32
    }
}

impl DecodeTwin for Q8_K {
    const F16_SCALES: &'static [usize] = &[];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        f32::from_bits(b.get(0, 0, 32) as u32) * b.signed(4 + i)
    }

    /// Its scale is an f32: of three, one takes the bits for those of a subnormal f32.
    fn put_hostile_scales(block: &mut [u8], n: usize, [first, _]: [u16; 2]) {
        let scale = if n.is_multiple_of(3) {
            f32::from_bits(first.into())
        } else {
            f16::from_bits(first).to_f32_const()
        };
        block[..4].copy_from_slice(&scale.to_le_bytes());
    }
}

/// `value`, negated if bit `i` of an index of seven bits is set; the eighth makes the number of set
/// bits even.
fn parity(value: f32, index: i32, i: usize) -> f32 {
    let set = if i == 7 {
        index.count_ones() % 2
    } else {
        index as u32 >> i & 1
    };
    if set == 1 { -value } else { value }
}

/// Byte `i` of the grid entry at `index`.
fn grid_value(grid: &[u64], index: i32, i: usize) -> f32 {
    f32::from(grid[index as usize].to_le_bytes()[i])
}

/// The scale of a group of a two-bit grid type.
fn iq2_scale(d: f32, scale: i32) -> f32 {
    d * (0.5 + scale as f32) * 0.25
}

impl DecodeTwin for IQ2_XXS {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let (at, eight) = (2 + i / 32 * 8, i / 8 % 4);
        let value = grid_value(&grids::IQ2_XXS, b.get(at + eight, 0, 8), i % 8);
        let d = iq2_scale(b.f16_at(0), b.get(at + 4, 28, 4));
        parity(d * value, b.get(at + 4, eight * 7, 7), i % 8)
    }
}

impl DecodeTwin for IQ2_XS {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let value = grid_value(&grids::IQ2_XS, b.get(2 + i / 8 * 2, 0, 9), i % 8);
        let d = iq2_scale(b.f16_at(0), b.get(66, i / 16 * 4, 4));
        parity(d * value, b.get(2 + i / 8 * 2, 9, 7), i % 8)
    }
}

impl DecodeTwin for IQ2_S {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let index = b.get(2 + i / 8, 0, 8) + 256 * b.get(66, i / 8 * 2, 2);
        let value = iq2_scale(b.f16_at(0), b.get(74, i / 16 * 4, 4))
            * grid_value(&grids::IQ2_S, index, i % 8);
        if b.get(34, i, 1) == 1 { -value } else { value }
    }
}

impl DecodeTwin for IQ3_XXS {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let at = 66 + i / 32 * 4;
        let value = grid_value(&grids::IQ3_XXS, b.get(2 + i / 4, 0, 8), i % 4);
        let d = b.f16_at(0) * (0.5 + b.get(at, 28, 4) as f32) * 0.5;
        parity(d * value, b.get(at, i / 8 % 4 * 7, 7), i % 8)
    }
}

impl DecodeTwin for IQ3_S {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let index = b.get(2 + i / 4, 0, 8) + 256 * b.get(66, i / 4, 1);
        let d = b.f16_at(0) * (1 + 2 * b.get(106, i / 32 * 4, 4)) as f32;
        let value = d * grid_value(&grids::IQ3_S, index, i % 4);
        if b.get(74, i, 1) == 1 { -value } else { value }
    }
}

/// The value of an IQ1 type with group scale `scale`, at `i % 8` of the grid entry at `index`.
fn iq1_value(d: f32, scale: i32, index: i32, i: usize, is_down: bool) -> f32 {
    let delta = if is_down { -0.125 } else { 0.125 };
    d * (2 * scale + 1) as f32 * (grid_value(&grids::IQ1, index, i % 8) / 8.0 - 1.0 + delta)
}

impl DecodeTwin for IQ1_S {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let word = 34 + i / 32 * 2;
        let index = b.get(2 + i / 8, 0, 8) + 256 * b.get(word, i / 8 % 4 * 3, 3);
        let (scale, is_down) = (b.get(word, 12, 3), b.get(word, 15, 1) == 1);
        iq1_value(b.f16_at(0), scale, index, i, is_down)
    }
}

impl DecodeTwin for IQ1_M {
    const F16_SCALES: &'static [usize] = &[];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let d: i32 = (0..4).map(|n| b.get(48 + 2 * n, 12, 4) << (4 * n)).sum();
        let d = f16::from_bits(d as u16).to_f32_const();
        let scale = b.get(48 + i / 64 * 2, i / 16 % 4 * 3, 3);
        let index = b.get(i / 8, 0, 8) + 256 * b.get(32, i / 8 * 4, 3);
        iq1_value(d, scale, index, i, b.get(32, i / 8 * 4 + 3, 1) == 1)
    }

    /// The f16 is spread over the highest four bits of four words.
    fn put_hostile_scales(block: &mut [u8], _n: usize, [first, _]: [u16; 2]) {
        for k in 0..4 {
            let high = &mut block[49 + 2 * k];
            *high = *high & 15 | ((first >> (4 * k) & 15) as u8) << 4;
        }
    }
}

impl DecodeTwin for IQ4_NL {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        b.f16_at(0) * grids::IQ4[b.nibble(2, i, 16) as usize]
    }
}

impl DecodeTwin for IQ4_XS {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let scale = b.get(4, i / 32 * 4, 4) + 16 * b.get(2, i / 32 * 2, 2);
        b.f16_at(0) * (scale - 32) as f32 * grids::IQ4[b.nibble(8, i, 16) as usize]
    }
}

impl DecodeTwin for TQ1_0 {
    const F16_SCALES: &'static [usize] = &[52];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let (at, digit) = match i {
            0..160 => (i % 32, i / 32),
            160..240 => (32 + (i - 160) % 16, (i - 160) / 16),
            _ => (48 + (i - 240) % 4, (i - 240) / 4),
        };
        let fraction = b.get(at, 0, 8) * 3i32.pow(digit as u32) % 256;
        (fraction * 3 / 256 - 1) as f32 * b.f16_at(52)
    }
}

impl DecodeTwin for TQ2_0 {
    const F16_SCALES: &'static [usize] = &[64];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        (b.get(i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2) - 1) as f32 * b.f16_at(64)
    }
}

impl DecodeTwin for Q1_0 {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        if b.get(2, i, 1) == 1 {
            b.f16_at(0)
        } else {
            -b.f16_at(0)
        }
    }
}

impl DecodeTwin for Q2_0 {
    const F16_SCALES: &'static [usize] = &[0];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        (b.get(2, 2 * i, 2) - 1) as f32 * b.f16_at(0)
    }
}

/// Twice the values of E2M1.
const DOUBLE_E2M1: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

impl DecodeTwin for MXFP4 {
    const F16_SCALES: &'static [usize] = &[];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let scale = 2f64.powi(b.get(0, 0, 8) - 128);
        DOUBLE_E2M1[b.nibble(1, i, 16) as usize] * scale as f32
    }

    /// Every scale of one byte.
    fn put_hostile_scales(block: &mut [u8], n: usize, _: [u16; 2]) {
        block[0] = n as u8;
    }
}

impl DecodeTwin for NVFP4 {
    const F16_SCALES: &'static [usize] = &[];

    fn value(b: BlockBits<'_>, i: usize) -> f32 {
        let (exponent, mantissa) = (b.get(i / 16, 3, 4), b.get(i / 16, 0, 3) as f32);
        let scale = match (exponent, b.0[i / 16]) {
            (_, 0x7f) => 0.0,
            (0, _) => mantissa / 8.0 * 2f32.powi(-6),
            (e, _) => (1.0 + mantissa / 8.0) * 2f32.powi(e - 7),
        };
        DOUBLE_E2M1[b.nibble(4, i, 8) as usize] * (scale / 2.0)
    }

    /// Every scale of one byte, in each of the four groups.
    fn put_hostile_scales(block: &mut [u8], n: usize, _: [u16; 2]) {
        (0..4).for_each(|g| block[g] = (n + 64 * g) as u8);
    }
}
