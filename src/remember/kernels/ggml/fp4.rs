//! E2M1 codes: MXFP4 with a power of two for 32 values, NVFP4 with UE4M3 scales for 16.
//!
//! As in ggml, a code stands for twice its value, which is an integer, and scales are halved
//! instead; both are exact. Code 8 is a zero without sign.

use super::DecodeBlock;
use crate::remember::kernels::nvfp4::doubled_magnitude;
use crate::simd::zip;

pub(super) struct MXFP4;
pub(super) struct NVFP4;

/// Twice the values of E2M1 codes.
#[inline(always)]
fn doubled(codes: &[u8; 32]) -> [i8; 32] {
    let mut values = [0; 32];
    for (value, &code) in zip(&mut values[..], codes) {
        let magnitude = doubled_magnitude(code) as i8;
        *value = if code & 8 == 0 { magnitude } else { -magnitude };
    }
    values
}

/// Multiplies codes by the scale of their group.
#[inline(always)]
fn scale_codes(codes: &[i8], d: f32, out: &mut [f32]) {
    for (out, &q) in zip(&mut out[..], codes) {
        *out = f32::from(q) * d;
    }
}

/// `scale | codes[16]`. The scale byte `e` stands for 2^(e - 127), and 255 is not NaN; `d` is half
/// of that. Below `e` = 2 it is subnormal. As ggml's `ggml_e8m0_to_fp32_half`.
impl DecodeBlock<17, 32> for MXFP4 {
    #[inline(always)]
    fn decode(block: &[u8; 17], out: &mut [f32; 32]) {
        let e = u32::from(block[0]);
        let d = f32::from_bits(if e < 2 {
            0x0020_0000 << e
        } else {
            (e - 1) << 23
        });
        let mut codes = [0; 32];
        let (low, high) = codes.split_at_mut(16);
        for ((low, high), &pair) in zip(zip(&mut low[..], high), &block[1..]) {
            (*low, *high) = (pair & 15, pair >> 4);
        }
        scale_codes(&doubled(&codes), d, out);
    }
}

/// Half the value of each UE4M3 byte. The sign bit is ignored, but 0x7F is zero and 0xFF is not. As
/// ggml's `ggml_ue4m3_to_fp32`.
static UE4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = (code as u32 >> 3 & 15, code as u32 & 7);
        let value = if exponent == 0 {
            mantissa as f32 / 1024.0
        } else {
            // 2^(exponent - 8), and the mantissa's three bits.
            f32::from_bits((exponent + 119) << 23 | mantissa << 20)
        };
        table[code] = if code == 0x7f { 0.0 } else { value };
        code += 1;
    }
    table
};

/// `scales[4] | codes[32]`: four groups of 16 values, with eight bytes of codes each.
impl DecodeBlock<36, 64> for NVFP4 {
    #[inline(always)]
    fn decode(block: &[u8; 36], out: &mut [f32; 64]) {
        let [s0, s1, s2, s3, pairs @ ..] = block;
        let (mut low, mut high) = ([0; 32], [0; 32]);
        for ((low, high), &pair) in zip(zip(&mut low[..], &mut high), pairs) {
            (*low, *high) = (pair & 15, pair >> 4);
        }
        let (low, high) = (doubled(&low), doubled(&high));
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let d = UE4M3[usize::from([*s0, *s1, *s2, *s3][g])];
            scale_codes(&low[g * 8..][..8], d, &mut out[..8]);
            scale_codes(&high[g * 8..][..8], d, &mut out[8..]);
        }
    }
}
