//! Every mode at every CPU level, against a twin that looks for the nearest code.

use half::{bf16, f16};

use super::{MlxFloatMode, encode};
use crate::TargetDtype;
use crate::lethe::kernels::activations::Activations;
use crate::lethe::kernels::groups::GroupBuffers;
use crate::remember::kernels::fp8::{E4M3, Float8, f32_from_exponent};
use crate::simd::Level;
use crate::test_utils::miri_or;

const FP4: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn to(dtype: TargetDtype, x: f32) -> f32 {
    match dtype {
        TargetDtype::F32 => x,
        TargetDtype::F16 => f16::from_f32_const(x).to_f32_const(),
        TargetDtype::BF16 => bf16::from_f32(x).to_f32(),
    }
}

/// The first of the nearest.
fn fp4(x: f32) -> u8 {
    let distance = |code: &u8| (f64::from(x.abs()) - f64::from(FP4[usize::from(*code)])).abs();
    let code = (0..8u8)
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .unwrap();
    if x < 0.0 && code > 0 { code | 8 } else { code }
}

/// The nearest, the even one of two.
fn fp8(x: f32) -> u8 {
    let distance =
        |code: &u8| ((f64::from(x.abs()) - f64::from(E4M3::widen(*code))).abs(), code % 2);
    let nearer = |a: &u8, b: &u8| distance(a).partial_cmp(&distance(b)).unwrap();
    (0..0x7fu8).min_by(nearer).unwrap() | u8::from(x.is_sign_negative()) << 7
}

/// The code of one value under the group's scale, the scale, and the value that it decodes to.
fn twin(mode: MlxFloatMode, dtype: TargetDtype, group: &[f32], x: f32) -> (u8, u8, f32) {
    let max_abs = group.iter().fold(0.0f32, |max_abs, x| max_abs.max(x.abs()));
    let scale = to(
        dtype,
        max_abs
            / if mode == MlxFloatMode::Mxfp8 {
                448.0
            } else {
                6.0
            },
    );
    if mode == MlxFloatMode::Nvfp4 {
        let stored = fp8(scale);
        let scale = E4M3::widen(stored);
        let code = if scale == 0.0 {
            0
        } else {
            fp4(to(dtype, x / scale))
        };
        let sign = if code > 7 { -1.0 } else { 1.0 };
        return (code, stored, sign * FP4[usize::from(code & 7)] * scale);
    }
    let powers = (-149..128).map(|e| (e, 2f64.powi(e)));
    let exponent = if scale == 0.0 {
        0
    } else {
        powers
            .into_iter()
            .find(|(_, p)| *p >= f64::from(scale))
            .unwrap()
            .0
    };
    let x = to(dtype, (f64::from(x) / 2f64.powi(exponent)) as f32);
    let stored = (exponent + 127) as u8;
    let code = if mode == MlxFloatMode::Mxfp4 {
        fp4(x)
    } else {
        fp8(x)
    };
    let sign = if code > 7 { -1.0 } else { 1.0 };
    let value = if mode == MlxFloatMode::Mxfp4 {
        sign * FP4[usize::from(code & 7)]
    } else {
        E4M3::widen(code)
    };
    (code, stored, value * f32_from_exponent(stored))
}

fn values(dtype: TargetDtype) -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = move || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut out: Vec<f32> = (0..64)
        .map(|i| if i % 2 == 0 { 0.0 } else { -0.0 })
        .collect();
    for one in [6.0, -448.0, 1e-30, 5e-44, 6e4] {
        out.extend((0..32).map(|i| if i == 17 { one } else { 0.0 }));
    }
    // Ties of FP4 and of FP8 under a scale of one.
    out.extend(
        [6.0, 0.25, -0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, -0.2, 0.3, -0.3, 1.0, 4.9, -6.0]
            .repeat(2),
    );
    out.extend((0..32).map(|i| 448.0 - 17.0 * i as f32));
    out.extend((0..32).map(|i| if i == 0 { 448.0 } else { i as f32 / 1024.0 }));
    for scale in [1.0, 1e-3, 1e-5, 1e-37, 1e3, 30.0] {
        out.extend((0..miri_or(32, 256)).map(|_| next() * scale));
    }
    out.into_iter().map(|x| to(dtype, x)).collect()
}

#[test]
fn modes_equal_their_twins() {
    for mode in [MlxFloatMode::Mxfp4, MlxFloatMode::Mxfp8, MlxFloatMode::Nvfp4] {
        for dtype in [TargetDtype::F32, TargetDtype::F16, TargetDtype::BF16] {
            let (values, group) = (values(dtype), mode.group());
            for level in Level::available() {
                let mut back = vec![f32::NAN; values.len()];
                let mut codes = vec![0; values.len() * mode.bits() / 8];
                let mut scales = vec![0; values.len() / group];
                let groups = GroupBuffers {
                    activations: Activations::default(),
                    values: &values,
                    codes: &mut codes,
                    scale_bytes: &mut scales,
                    back: &mut back,
                    level,
                };
                encode(mode, dtype, groups);
                if mode.bits() == 4 {
                    codes = codes.iter().flat_map(|b| [b & 15, b >> 4]).collect();
                }
                for (i, &x) in values.iter().enumerate().step_by(miri_or(7, 1)) {
                    let of = i / group * group..(i / group + 1) * group;
                    let (code, scale, value) = twin(mode, dtype, &values[of], x);
                    let what = format!("{mode:?} {dtype:?} {level:?}, value {i}, {x:e}");
                    assert_eq!((codes[i], scales[i / group]), (code, scale), "{what}");
                    assert!(
                        back[i].to_bits() == value.to_bits() || value.is_nan() && back[i].is_nan(),
                        "{what}"
                    );
                }
            }
        }
    }
}
