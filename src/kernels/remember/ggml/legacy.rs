//! Blocks of 32 values with their scales in f16: Q4, Q5 and Q8. In the 4- and 5-bit types the low nibbles
//! are the first 16 values, the high nibbles the last 16.

use super::{Block, double_word, half};

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Q8_1;

/// The two halves of a block from its nibbles; `value` makes a value of a nibble and its place.
#[inline(always)]
pub(super) fn halves(nibbles: &[u8], out: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    let half = nibbles.len();
    let (low, high) = out.split_at_mut(half);
    for (j, ((&q, low), high)) in nibbles.iter().zip(low).zip(high).enumerate() {
        *low = value(q & 15, j);
        *high = value(q >> 4, j + half);
    }
}

impl Block<18, 32> for Q4_0 {
    #[inline(always)]
    fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
        let d = half(block, 0);
        halves(&block[2..], out, |q, _| (i32::from(q) - 8) as f32 * d);
    }
}

impl Block<20, 32> for Q4_1 {
    #[inline(always)]
    fn decode(block: &[u8; 20], out: &mut [f32; 32]) {
        let (d, m) = (half(block, 0), half(block, 2));
        halves(&block[4..], out, |q, _| f32::from(q) * d + m);
    }
}

/// Bit `j` of the fifth bits, in its place.
#[inline(always)]
fn fifth(bits: u32, j: usize) -> i32 {
    (bits >> j << 4 & 16) as i32
}

impl Block<22, 32> for Q5_0 {
    #[inline(always)]
    fn decode(block: &[u8; 22], out: &mut [f32; 32]) {
        let (d, bits) = (half(block, 0), double_word(block, 2));
        halves(&block[6..], out, |q, j| {
            ((i32::from(q) | fifth(bits, j)) - 16) as f32 * d
        });
    }
}

impl Block<24, 32> for Q5_1 {
    #[inline(always)]
    fn decode(block: &[u8; 24], out: &mut [f32; 32]) {
        let (d, m, bits) = (half(block, 0), half(block, 2), double_word(block, 4));
        halves(&block[8..], out, |q, j| {
            (i32::from(q) | fifth(bits, j)) as f32 * d + m
        });
    }
}

/// Signed bytes times `d`.
#[inline(always)]
pub(super) fn bytes(codes: &[u8], out: &mut [f32], d: f32) {
    for (&q, out) in codes.iter().zip(out) {
        *out = f32::from(q as i8) * d;
    }
}

impl Block<34, 32> for Q8_0 {
    #[inline(always)]
    fn decode(block: &[u8; 34], out: &mut [f32; 32]) {
        bytes(&block[2..], out, half(block, 0));
    }
}

/// Behind the scale is the sum of the values, which only dot products use.
impl Block<36, 32> for Q8_1 {
    #[inline(always)]
    fn decode(block: &[u8; 36], out: &mut [f32; 32]) {
        bytes(&block[4..], out, half(block, 0));
    }
}
