//! E2M1 codes: MXFP4 with a power of two for 32 values, NVFP4 with UE4M3 scales for 16.
//!
//! As in ggml, a code stands for twice its value, which is an integer, and scales are halved
//! instead; both are exact. Code 8 is a zero without sign.

use super::DecodeBlock;
use super::legacy::nibble_halves;

pub(super) struct MXFP4;
pub(super) struct NVFP4;

/// Twice the value of an E2M1 code: ±{0, 1, 2, 3, 4, 6, 8, 12}.
#[inline(always)]
fn e2m1(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 1 & 3), i32::from(code & 1));
    let normal = ((2 | mantissa) << exponent) >> 1;
    let magnitude = if exponent == 0 { mantissa } else { normal };
    (if code & 8 == 0 { magnitude } else { -magnitude }) as f32
}

/// `scale | codes[16]`. The scale byte `e` stands for 2^(e - 127), and 255 is not NaN; `d` is half
/// of that. Below `e` = 2 it is subnormal. As ggml's `ggml_e8m0_to_fp32_half`.
impl DecodeBlock<17, 32> for MXFP4 {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn decode(block: &[u8; 17], out: &mut [f32; 32]) {
        let e = u32::from(block[0]);
        let d = f32::from_bits(if e < 2 {
            0x0020_0000 << e
        } else {
            (e - 1) << 23
        });
        nibble_halves(&block[1..], out, |q, _| e2m1(q) * d);
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
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn decode(block: &[u8; 36], out: &mut [f32; 64]) {
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let d = UE4M3[usize::from(block[g])];
            nibble_halves(&block[4 + g * 8..12 + g * 8], out, |q, _| e2m1(q) * d);
        }
    }
}
