//! Rotated pairs against sums of one value at a time, and against products that are rotated as any
//! values are.

use half::{bf16, f16};

use super::hadamard::RotatedGroups;
use super::{bytes, check, each_level};
use crate::remember::kernels::hadamard::{HadamardColumns, StoredHadamard};
use crate::remember::kernels::rotated_pairs::{IntegerPairs, LaneCodes, RotatedPairs};
use crate::simd::{Level, perform};
use crate::test_utils::miri_or;

/// Values of F16 in 2^24 times their last place.
fn values(pairs: usize) -> Vec<f32> {
    let mut values: Vec<f32> = bytes(4 * pairs)
        .as_chunks::<2>()
        .0
        .iter()
        .map(|&[a, b]| {
            let exponent = i32::from(a % 8) - 5;
            let mantissa = 1.0 + f32::from(b) / 256.0;
            f16::from_f32_const(mantissa * 2f32.powi(exponent)).to_f32_const()
                * if a < 128 { 1.0 } else { -1.0 }
        })
        .collect();
    values[0] = 0.0;
    values[1] = -0.0;
    values[2] = -values[3];
    values
}

/// Scales of 11 bits, with ratios that are near the largest of eight groups.
fn scales(n: usize) -> Vec<f32> {
    let scale = |i: usize| match i % 7 {
        0 => 0.37,
        1 => -0.001_8,
        2 => 0.0,
        3 => 0.0501,
        4 => -0.0,
        _ => 0.01,
    };
    (0..n)
        .map(|i| f16::from_f32_const(scale(i)).to_f32_const())
        .collect()
}

#[test]
fn sums_of_pairs() {
    for (bits, group, groups) in
        [(2, 64, 1), (3, 128, 2), (4, 256, 2), (4, 64, 8), (4, 256, miri_or(2, 4))]
    {
        let (rotation, pairs) = (group * groups, 1 << (2 * bits));
        let values = values(pairs);
        let table = IntegerPairs::new(&values).unwrap();
        let rows = 3;
        let n = rows * rotation;
        let codes: Vec<u8> = bytes(n / 2).iter().map(|x| x >> (8 - 2 * bits)).collect();
        let scales = scales(rows * groups);
        assert!(scales.chunks(groups).all(RotatedPairs::fits));
        let entry = 1.0 / (rotation as f64).sqrt();
        let kernel =
            RotatedPairs { table: &table, codes: &codes, rotation, group, scales: &scales, entry };
        let products: Vec<f32> = (0..n)
            .map(|i| values[usize::from(codes[i / 2]) * 2 + i % 2] * scales[i / group])
            .collect();
        check("rotated pairs", &kernel, n, |i| {
            let products = &products[i / rotation * rotation..][..rotation];
            let sign = |k: usize| 1.0 - 2.0 * f64::from((k & (i % rotation)).count_ones() % 2);
            let terms = products.iter().enumerate();
            let sum: f64 = terms.map(|(k, &x)| sign(k) * f64::from(x)).sum();
            (sum * entry) as f32 + 0.0
        });
    }
}

/// Many values, scales and ratios of scales: the bits are those of any rotated values, or the
/// scales do not fit.
#[test]
fn sums_are_those_of_any_values() {
    let (group, groups) = (64, 4);
    let rotation = group * groups;
    let stored = StoredHadamard {
        columns: HadamardColumns::InOrder,
        entry: 1.0 / (rotation as f64).sqrt(),
        divisor: 1.0,
    };
    let random = bytes(miri_or(4, 600) * 8);
    let mut fitting = 0;
    for (case, seed) in random.as_chunks::<8>().0.iter().enumerate() {
        // Values of BF16 or F16 between ends that are far from each other, or near.
        let spread = 1 + i32::from(seed[0] % 20);
        let values: Vec<f32> = bytes(64)
            .iter()
            .zip(seed.iter().cycle())
            .map(|(&a, &b)| {
                let x = (f32::from(a) - 127.5) * 2f32.powi(-i32::from(b) % spread);
                match seed[1] % 2 {
                    0 => bf16::from_f32(x).to_f32(),
                    _ => f16::from_f32_const(x).to_f32_const(),
                }
            })
            .collect();
        let Some(table) = IntegerPairs::new(&values) else {
            continue;
        };
        let codes: Vec<u8> = bytes(rotation)[case % 7..][..rotation / 2]
            .iter()
            .map(|code| code % 32)
            .collect();
        let near = 1 + i32::from(seed[2] % 14);
        let scales: Vec<f32> = seed[4..]
            .iter()
            .map(|&x| (f32::from(x) - 100.5) * 2f32.powi(-i32::from(x) % near - 8))
            .map(|x| f16::from_f32_const(x).to_f32_const())
            .collect();
        if !RotatedPairs::fits(&scales) {
            continue;
        }
        fitting += 1;
        let products: Vec<f32> = (0..rotation)
            .map(|i| values[usize::from(codes[i / 2]) * 2 + i % 2] * scales[i / group])
            .collect();
        let any = RotatedGroups { values: &products, group: rotation, stored: Some(&stored) };
        let sums = RotatedPairs {
            table: &table,
            codes: &codes,
            rotation,
            group,
            scales: &scales,
            entry: stored.entry,
        };
        each_level(&any, rotation, |_, single, half, brain| {
            each_level(&sums, rotation, |level, s, h, b| {
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(s), bits(single), "{level:?}");
                assert!(h == half && b == brain, "{level:?}");
            });
        });
    }
    assert!(cfg!(miri) || fitting > 60, "{fitting}");
}

#[test]
fn what_does_not_fit() {
    assert!(IntegerPairs::new(&[1.0, 2f32.powi(-22)]).is_some());
    // 2^24 times the smallest, which leaves no bits for 256 terms.
    for second in [2f32.powi(-24), f32::NAN, f32::INFINITY, 1e30, 1e-30] {
        assert!(IntegerPairs::new(&[1.0, second]).is_none(), "{second}");
    }
    assert!(IntegerPairs::new(&[1e-30, 0.0]).is_none());
    assert!(IntegerPairs::new(&[0.5; 514]).is_none() && IntegerPairs::new(&[0.5; 3]).is_none());
    for (scales, fits) in [
        (&[1.0f32, 2f32.powi(-10)][..], true),
        (&[1.0, 2f32.powi(-10) * 0.99], false),
        // Of values 2047 / 1024 and 2^-22 a sum would have 54 bits.
        (&[2047.0 / 1024.0, 2047.0, 2047.0, 2047.0], false),
        (&[0.0, -0.0], true),
        (&[0.0, 3.0], true),
        (&[f32::NAN, 3.0], false),
        (&[3.0, f32::INFINITY], false),
        (&[1e30, 1e30], false),
        (&[1e-30, 1e-30], false),
    ] {
        assert_eq!(RotatedPairs::fits(scales), fits, "{scales:?}");
    }
}

#[test]
fn codes_of_lanes() {
    let words: Vec<[u8; 4]> = bytes(4 * 67).as_chunks().0.to_vec();
    for (bits, lanes) in [(4, 8), (6, 5), (8, 4)] {
        for level in Level::available() {
            let mut out = vec![0xffu8; words.len() * (lanes + 1)];
            let mut all: Vec<&mut [u8]> = out.chunks_exact_mut(words.len()).collect();
            let last = all.pop().unwrap();
            last.fill(3);
            let mut codes = LaneCodes { words: &words, bits, lanes: all, rest: Some((last, 2)) };
            perform(level, &mut codes);
            for (i, lane) in out.chunks_exact(words.len()).enumerate() {
                for (&code, &word) in lane.iter().zip(&words) {
                    let word = u32::from_le_bytes(word);
                    let want = match i {
                        i if i == lanes => 3 | word >> 30 << 2,
                        _ => word >> (bits * i) & ((1 << bits) - 1),
                    };
                    assert_eq!(u32::from(code), want, "{level:?}");
                }
            }
        }
    }
}
