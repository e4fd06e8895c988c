//! Sums against a naive loop, special values, and integers that F64 does not hold.

use half::{bf16, f16};
use zerocopy::{Immutable, IntoBytes};

use super::*;
use crate::report::diff::report::ValueDiff;

fn diff(dtypes: (Dtype, Dtype), a: &[u8], b: &[u8], tolerance: f64) -> Vec<ValueDiff> {
    let kind = Comparable::of(dtypes).unwrap();
    let of_level = |level| {
        let mut sums = Sums::default();
        kind.compare(0, (a, b), &CompareRule { tolerance, level }, &mut sums);
        let n = sums.values as usize;
        sums.into_diff(&[n], kind)
    };
    Level::available().into_iter().map(of_level).collect()
}

fn bytes<T: IntoBytes + Immutable>(values: &[T]) -> &[u8] {
    values.as_bytes()
}

/// All dtypes of floats against the definition, in a length that leaves a rest of a block.
#[test]
fn sums_are_the_definition() {
    let mut state = 1u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let a: Vec<f32> = (0..2500).map(|_| random()).collect();
    let b: Vec<f32> = a.iter().map(|x| x + random() * 1e-2).collect();
    let half = |x: &[f32]| {
        x.iter()
            .map(|&x| f16::from_f32(x).to_bits())
            .collect::<Vec<_>>()
    };
    let brain = |x: &[f32]| {
        x.iter()
            .map(|&x| bf16::from_f32(x).to_bits())
            .collect::<Vec<_>>()
    };
    let double = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let sides = |x: &[f32]| {
        let widened = |bits: Vec<u16>, widen: fn(u16) -> f64| {
            let values: Vec<f64> = bits.iter().map(|&b| widen(b)).collect();
            (bytes(&bits).to_vec(), values)
        };
        [
            (Dtype::F32, bytes(x).to_vec(), double(x)),
            (Dtype::F64, bytes(&double(x)).to_vec(), double(x)),
            {
                let (raw, values) = widened(half(x), |b| f16::from_bits(b).to_f64());
                (Dtype::F16, raw, values)
            },
            {
                let (raw, values) = widened(brain(x), |b| bf16::from_bits(b).to_f64());
                (Dtype::BF16, raw, values)
            },
        ]
    };
    for (dtype_a, raw_a, a) in sides(&a) {
        for (dtype_b, raw_b, b) in sides(&b) {
            let d: Vec<f64> = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).collect();
            let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
            let near = |x: Option<f64>, y: f64| (x.unwrap() - y).abs() <= 1e-12 * y.abs();
            for found in diff((dtype_a, dtype_b), &raw_a, &raw_b, 5e-3) {
                assert_eq!(found.values, 2500);
                assert_eq!(found.unequal, d.iter().filter(|&&d| d > 0.0).count() as u64);
                let beyond = d.iter().position(|&d| d > 5e-3).unwrap();
                assert_eq!(found.first.as_ref().unwrap().index, [beyond as u64]);
                assert_eq!(found.first.unwrap().b, ElementValue::Float(b[beyond]));
                let count = d.iter().filter(|&&d| d > 5e-3).count() as u64;
                assert_eq!(found.beyond_tolerance, count);
                assert_eq!(found.max_abs, d.iter().copied().reduce(f64::max));
                assert!(near(found.mean_abs, d.iter().sum::<f64>() / 2500.0));
                assert!(near(found.rmse, (dot(&d, &d) / 2500.0).sqrt()));
                let cosine = dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt();
                assert!(near(found.cosine, cosine), "{dtype_a} {dtype_b}");
            }
        }
    }
}

#[test]
fn special_values() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let a = [0.0, nan, inf, -inf, nan, inf, 1.0, 3.0];
    let b = [-0.0, -nan, inf, inf, 2.0, 5.0, nan, 3.5];
    for found in diff((Dtype::F32, Dtype::F32), bytes(&a), bytes(&b), 1.0) {
        assert_eq!((found.unequal, found.not_finite, found.beyond_tolerance), (5, 4, 4));
        assert_eq!((found.max_abs, found.mean_abs), (Some(0.5), Some(0.25)));
        let first = found.first.unwrap();
        assert_eq!((first.index, first.a), (vec![3], ElementValue::Float(f64::NEG_INFINITY)));
    }
    let same = [nan, inf, 2.0];
    for found in diff((Dtype::F32, Dtype::F32), bytes(&same), bytes(&same), 0.0) {
        assert_eq!((found.unequal, found.cosine), (0, Some(1.0)));
    }
}

#[test]
fn integers_of_64_bits() {
    let a = [1u64 << 53, u64::MAX, 7];
    let b = [(1i64 << 53) + 1, -1, 7];
    for found in diff((Dtype::U64, Dtype::I64), bytes(&a), bytes(&b), 1.0) {
        assert_eq!((found.unequal, found.beyond_tolerance), (2, 1));
        assert_eq!(found.first.unwrap().a, ElementValue::Int(u64::MAX.into()));
        assert_eq!(found.max_abs, Some(18_446_744_073_709_551_616.0));
    }
    let floats = [9_007_199_254_740_992.0, 1.5, 7.0];
    for found in diff((Dtype::I64, Dtype::F64), bytes(&b), bytes(&floats), 0.0) {
        assert_eq!((found.unequal, found.max_abs), (2, Some(2.5)));
    }
}

#[test]
fn types_without_numbers() {
    let kind = Comparable::of((Dtype::F6E2M3, Dtype::F6E2M3)).unwrap();
    assert!(Comparable::of((Dtype::F6E2M3, Dtype::F32)).is_none());
    let mut sums = Sums::default();
    let (tolerance, level) = (9.0, Level::Baseline);
    let rule = CompareRule { tolerance, level };
    kind.compare(3, (&[1, 2, 3], &[1, 2, 4]), &rule, &mut sums);
    let found = sums.into_diff(&[2, 4], kind);
    assert_eq!((found.unequal, found.beyond_tolerance, found.max_abs), (1, 1, None));
    assert_eq!(found.first.unwrap().index, [1, 2]);
}
