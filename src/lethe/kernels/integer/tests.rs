//! Every rule at every CPU level, against a twin that computes one value at a time.

use half::{bf16, f16};

use super::{IntegerGroups, IntegerQuantizer, IntegerRule};
use crate::TargetDtype;
use crate::lethe::kernels::activations::Activations;
use crate::lethe::kernels::mean::mean;
use crate::remember::kernels::bnb::INT8_SCALE;
use crate::simd::Level;
use crate::test_utils::miri_or;

/// `x` rounded to `dtype`.
fn to(dtype: TargetDtype, x: f32) -> f32 {
    match dtype {
        TargetDtype::F32 => x,
        TargetDtype::F16 => f16::from_f32_const(x).to_f32_const(),
        TargetDtype::BF16 => bf16::from_f32(x).to_f32(),
    }
}

/// Codes of a group, its stored scale and zero point or bias, and whether decoding subtracts the
/// latter.
fn twin(q: &IntegerQuantizer, group: &[f32]) -> (Vec<f32>, f32, f32, bool) {
    let (t, most) = (|x| to(q.dtype, x), ((1 << q.bits) - 1) as f32);
    let half = (1 << (q.bits - 1)) as f32;
    let min_max = |values: &[f32]| {
        (
            values.iter().copied().fold(f32::INFINITY, f32::min),
            values.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        )
    };
    let (min, max) = min_max(group);
    let (low, high) = (min.min(0.0), max.max(0.0));
    match q.rule {
        IntegerRule::CompressedTensors { symmetric } => {
            let epsilon = match q.dtype {
                TargetDtype::F32 => f32::EPSILON,
                TargetDtype::F16 => f16::EPSILON.to_f32_const(),
                TargetDtype::BF16 => bf16::EPSILON.to_f32(),
            };
            let scale = if symmetric {
                t(low.abs().max(high) / (most / 2.0))
            } else {
                t(t(high - low) / most)
            };
            let zero = if symmetric {
                0.0
            } else {
                t(-half - t(low / scale)).clamp(-half, half - 1.0)
            };
            let zero = if zero.is_nan() {
                0.0
            } else {
                zero.round_ties_even()
            };
            let scale = if scale == 0.0 { epsilon } else { scale };
            let code = |&x: &f32| {
                t(t(x / scale) + zero)
                    .clamp(-half, half - 1.0)
                    .round_ties_even()
                    + half
            };
            (group.iter().map(code).collect(), scale, zero + half, true)
        }
        IntegerRule::Gptq { symmetric } => {
            let high = if symmetric { high.max(-low) } else { high };
            let low = if symmetric && low < 0.0 { -high } else { low };
            let (low, high) = if low == 0.0 && high == 0.0 {
                (-1.0, 1.0)
            } else {
                (low, high)
            };
            let scale = (high - low) / most;
            let zero = if symmetric {
                half
            } else {
                (-low / scale).round_ties_even()
            };
            let code = |&x: &f32| {
                ((x + zero * scale) / scale)
                    .round_ties_even()
                    .clamp(0.0, most)
            };
            (group.iter().map(code).collect(), to(TargetDtype::F16, scale), zero, true)
        }
        IntegerRule::Awq => {
            let h = |x| to(TargetDtype::F16, x);
            let group: Vec<f32> = group.iter().map(|&x| h(x)).collect();
            let (min, max) = min_max(&group);
            let scale = h(h(max - min).max(h(1e-5)) / 15.0);
            let zero = (-h(min / scale).round_ties_even()).clamp(0.0, 15.0);
            let code = |&x: &f32| (h(x / scale).round_ties_even() + zero).clamp(0.0, 15.0);
            (group.iter().map(code).collect(), scale, zero, true)
        }
        IntegerRule::LlmInt8 => {
            let halves = group.iter().map(|&x| to(TargetDtype::F16, x));
            let scale = halves.clone().fold(0f32, |max, x| max.max(x.abs()));
            let factor = 1.0 / scale * 127.0;
            let code = |x: f32| match scale {
                0.0 => half,
                _ => (x * factor).round_ties_even() + half,
            };
            (halves.map(code).collect(), scale, half, true)
        }
        IntegerRule::Mlx => {
            let scale = ((max - min) / most).max(1e-7);
            let (edge, scale) = if min.abs() > max.abs() {
                (min, scale)
            } else {
                (max, -scale)
            };
            let steps = (edge / scale).round_ties_even();
            let (scale, bias) = if steps == 0.0 {
                (scale, 0.0)
            } else {
                (edge / steps, edge)
            };
            let code = |&x: &f32| ((x - bias) / scale).round_ties_even().clamp(0.0, most);
            (group.iter().map(code).collect(), t(scale), t(bias), false)
        }
        IntegerRule::Hqq { steps } => {
            let range = max - min;
            let scale = if range <= 1e-4 {
                1.0
            } else {
                (1.0 / range * most).min(2e4)
            };
            let first = -min * scale;
            let mut zero = if q.bits == 4 {
                first.round_ties_even()
            } else {
                first
            };
            let code = |x: f32, zero: f32| (x * scale + zero).clamp(0.0, most).round_ties_even();
            for _ in 0..steps {
                let rest = |&x: &f32| {
                    let (code, error) = (code(x, zero), x - (code(x, zero) - zero) / scale);
                    let power = f64::from(error.abs()).powf(f64::from(-0.3f32)) as f32;
                    let left = (error.abs() - 0.1 * power).max(0.0) * error.signum();
                    code - (x - left) * scale
                };
                zero = mean(&group.iter().map(rest).collect::<Vec<_>>());
            }
            let codes = group.iter().map(|&x| code(x, zero)).collect();
            (codes, t(1.0 / scale), t(zero), true)
        }
        IntegerRule::Sdnq { is_signed } => {
            // Zero over zero is code 0; of the others only the side counts.
            let code = |x: f32, scale: f32, low: f32, high: f32| match x / scale {
                quotient if quotient.is_nan() => 0.0,
                quotient => quotient.round_ties_even().clamp(low, high),
            };
            if is_signed {
                let scale = low.abs().max(high) / (half - 1.0);
                let codes = group
                    .iter()
                    .map(|&x| code(x, scale, -half, half - 1.0) + half);
                return (codes.collect(), scale, half, true);
            }
            let first = group.iter().copied().find(|&x| x == min).unwrap();
            let scale = (max - min) / most;
            let codes = group.iter().map(|&x| code(x - first, scale, 0.0, most));
            (codes.collect(), scale, first, false)
        }
    }
}

/// Groups of zeros, of one value among zeros and of constants, and groups of noise.
fn values(group: usize, dtype: TargetDtype) -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = move || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut out = Vec::new();
    for i in 0..group {
        out.push(if i % 2 == 0 { 0.0 } else { -0.0 });
    }
    for one in [3.0, -3.0, 1e-30, 6e4] {
        out.extend((0..group).map(|i| if i == group / 2 { one } else { 0.0 }));
    }
    for constant in [0.37, -0.37, 1e-6] {
        out.extend((0..group).map(|_| constant));
    }
    for (scale, shift) in
        [(1.0, 0.0), (1e-3, 0.0), (1e-3, 0.01), (1e3, -1e3), (1e-7, 0.0), (1e-38, 0.0), (2.0, 2.0)]
    {
        out.extend((0..miri_or(1, 4) * group).map(|_| next() * scale + shift));
    }
    out.into_iter().map(|x| to(dtype, x)).collect()
}

#[test]
fn rules_equal_their_twins() {
    let mut rules = vec![IntegerRule::Mlx];
    for symmetric in [true, false] {
        rules.push(IntegerRule::CompressedTensors { symmetric });
        rules.push(IntegerRule::Gptq { symmetric });
    }
    rules.extend([1, 20].map(|steps| IntegerRule::Hqq { steps }));
    rules.extend([true, false].map(|is_signed| IntegerRule::Sdnq { is_signed }));
    rules.extend([IntegerRule::Awq, IntegerRule::LlmInt8]);
    let groups: &[usize] = miri_or(&[9], &[16, 24, 32, 75, 128]);
    for rule in rules {
        let widths = match rule {
            IntegerRule::Awq => 4..=4,
            IntegerRule::LlmInt8 => 8..=8,
            _ => 2..=8,
        };
        for (bits, group) in widths.flat_map(|bits| groups.iter().map(move |&group| (bits, group)))
        {
            for dtype in [TargetDtype::F32, TargetDtype::F16, TargetDtype::BF16] {
                let q = IntegerQuantizer { rule, bits, group, dtype };
                let values = values(group, dtype);
                for level in Level::available() {
                    let (mut back, mut out) =
                        (vec![f32::NAN; values.len()], IntegerGroups::default());
                    q.encode(&values, Activations::default(), level, &mut back, &mut out);
                    for (i, values) in values.chunks(group).enumerate() {
                        let (codes, scale, offset, subtracted) = twin(&q, values);
                        let what = format!("{q:?}, {level:?}, group {i}");
                        assert_eq!(out.scales[i].to_bits(), scale.to_bits(), "{what}");
                        // A zero point of HQQ may be a negative number that is rounded to zero, one
                        // of SDNQ either zero.
                        let stored = match rule {
                            IntegerRule::Hqq { .. } | IntegerRule::Sdnq { .. } => offset,
                            _ => offset + 0.0,
                        };
                        assert_eq!(out.offsets[i].to_bits(), stored.to_bits(), "{what}");
                        for (k, code) in codes.into_iter().enumerate() {
                            assert_eq!(
                                f32::from(out.codes[i * group + k]),
                                code,
                                "{what}, value {k}"
                            );
                            let code = code + 0.0; // a code has no sign
                            let value = match rule {
                                IntegerRule::Sdnq { is_signed: false } => {
                                    code.mul_add(scale, offset)
                                }
                                IntegerRule::LlmInt8 => (code - offset) * scale * INT8_SCALE,
                                _ if subtracted => (code - offset) * scale,
                                _ => code * scale + offset,
                            };
                            assert_eq!(
                                back[i * group + k].to_bits(),
                                value.to_bits(),
                                "{what}, value {k}"
                            );
                        }
                    }
                }
            }
        }
    }
}
