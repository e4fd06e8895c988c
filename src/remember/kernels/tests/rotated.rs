//! Rotated weights, against products with the whole Hadamard matrix.

use super::{HOSTILE, bytes, check, scales};
use crate::remember::kernels::rotated::{
    ByteCodes, Corrections, LevelCodes, MAX_GROUP, NibbleCodes, RotatedRows, is_group, rotate,
};
use crate::test_utils::miri_or;

/// The sign of an entry of H: the product over the digits of both places, to base 4, of an entry of
/// H4.
fn sign(mut row: usize, mut col: usize) -> i64 {
    const H4: [[i64; 4]; 4] = [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]];
    let mut sign = 1;
    while row > 0 || col > 0 {
        sign *= H4[row % 4][col % 4];
        (row, col) = (row / 4, col / 4);
    }
    sign
}

/// Entry (0, 0) of H4 is 1, so that digits above the highest of both places change nothing.
fn exact_sum(integers: &[i64], group: usize, at: usize) -> i64 {
    let first = at / group * group;
    (0..group)
        .map(|i| sign(at % group, i) * integers[first + i])
        .sum()
}

/// The product with a scale, rounded once: the sum has 24 bits at most and the scale 24, so that
/// F64 is exact.
fn exact(sum: i64, group: usize, scale: f32) -> f32 {
    if !scale.is_finite() {
        return f32::NAN;
    }
    (sum as f64 / (group as f64).sqrt() * f64::from(scale)) as f32 + 0.0
}

const ROWS: usize = HOSTILE.len();

#[test]
fn groups() {
    let all: Vec<usize> = (0..=1 << 20).filter(|&n| is_group(n)).collect();
    assert_eq!(all, [4, 16, 64, 256, 1024, 4096, 16384, 65536]);
    assert_eq!(all.last(), Some(&MAX_GROUP));
}

/// Twice the rotation is the weight again: H is its own inverse.
#[test]
fn rotation_is_its_inverse() {
    for group in [4, 16, 64, 256, 1024] {
        let before: Vec<i64> = bytes(2 * group).iter().map(|&b| i64::from(b)).collect();
        let mut values = before.clone();
        rotate(&mut values, group);
        rotate(&mut values, group);
        assert!(
            values
                .iter()
                .zip(&before)
                .all(|(a, b)| *a == b * group as i64)
        );
    }
}

#[test]
fn rotated_bytes() {
    let sizes = [(4, 12), (16, 16), (16, 272), (64, 192), (64, 320), (256, 512), (1024, 2048)];
    for (group, width) in sizes {
        if group > miri_or(64, 1024) {
            continue;
        }
        let (bytes, scales) = (bytes(ROWS * width), scales(ROWS));
        let integers: Vec<i64> = bytes.iter().map(|&b| i64::from(b as i8)).collect();
        let sums: Vec<i64> = (0..ROWS * width)
            .map(|i| exact_sum(&integers[i / width * width..], group, i % width))
            .collect();
        for scales in [&scales[..], &scales[..1]] {
            let codes = ByteCodes { bytes: &bytes, row_bytes: width };
            let kernel = RotatedRows { codes, width, group, scales, corrections: None };
            check(&format!("rotated {group}"), &kernel, ROWS * width, |i| {
                exact(sums[i], group, scales[(i / width).min(scales.len() - 1)])
            });
        }
    }
}

/// The largest sums of 256 codes fit 16 bits: those of codes that have the signs of a row of H, and
/// the opposite ones.
#[test]
fn largest_sums() {
    for (group, at) in [(256, 0), (256, 5), (256, 255), (64, 63), (1024, 7)] {
        for (positive, negative) in [(127i8, -128i8), (-128, 127)] {
            let code = |i: usize| if sign(at, i) > 0 { positive } else { negative };
            let bytes: Vec<u8> = (0..group).map(|i| code(i) as u8).collect();
            let integers: Vec<i64> = (0..group).map(|i| i64::from(code(i))).collect();
            let codes = ByteCodes { bytes: &bytes, row_bytes: group };
            let kernel =
                RotatedRows { codes, width: group, group, scales: &[1.0], corrections: None };
            check("largest", &kernel, group, |i| exact(exact_sum(&integers, group, i), group, 1.0));
        }
    }
}

#[test]
fn rotated_nibbles() {
    for (group, width) in [(4, 20), (16, 48), (64, 128), (256, 512)] {
        let (bytes, scales) = (bytes(ROWS * width / 2), scales(ROWS));
        let nibble = |i: usize| i64::from(bytes[i / 2] >> (i % 2 * 4) & 15);
        let integers: Vec<i64> = (0..ROWS * width)
            .map(nibble)
            .map(|n| if n > 7 { n - 16 } else { n })
            .collect();
        let codes = NibbleCodes { bytes: &bytes, row_bytes: width / 2 };
        let kernel = RotatedRows { codes, width, group, scales: &scales, corrections: None };
        check(&format!("rotated nibbles {group}"), &kernel, ROWS * width, |i| {
            exact(
                exact_sum(&integers[i / width * width..], group, i % width),
                group,
                scales[i / width],
            )
        });
    }
}

/// Integers made from codes and the scales of their groups, which neither divide a chunk nor are
/// cut by it alike.
#[test]
fn rotated_levels() {
    let codebook: [f32; 16] = std::array::from_fn(|i| (i as f32 - 7.3) * 0.13);
    for (group, width, step, table) in [
        (4, 48, 4, Some(codebook)),
        (16, 96, 8, Some(codebook)),
        (64, 192, 48, None),
        (256, 768, 48, Some(codebook)),
        (256, 512, 16, Some(codebook)),
        (256, 512, 256, None),
        (1024, 1024, 16, Some(codebook)),
    ] {
        if group > miri_or(64, 1024) {
            continue;
        }
        let (rows, groups, per_byte) = (3, width / step, if table.is_some() { 2 } else { 1 });
        let row_bytes = width / per_byte;
        let bytes: Vec<u8> = bytes(rows * row_bytes)
            .iter()
            .map(|b| if table.is_some() { *b } else { b & 63 })
            .collect();
        // Products far beyond 127, ties, zeros and signs.
        let relative: Vec<f32> = (0..rows * groups)
            .map(|i| [96.0, 0.5, 448.0, -17.25, 0.0, 3e38, 1e-40][i % 7])
            .collect();
        let integers: Vec<i64> = (0..rows * width)
            .map(|i| {
                let (row, col) = (i / width, i % width);
                let byte = bytes[row * row_bytes + col / per_byte];
                let value = match table {
                    Some(table) => table[usize::from(byte >> (col % 2 * 4) & 15)],
                    None => f32::from(byte) - 32.0,
                };
                let product = value * relative[row * groups + col / step];
                product.round_ties_even().clamp(-127.0, 127.0) as i64
            })
            .collect();
        let corrections: Vec<f32> = (0..rows * groups)
            .map(|i| (i as f32 - 3.7) * 0.01)
            .collect();
        let scales = [1e-3, -0.37, 6e-8];
        let codes = || LevelCodes {
            bytes: &bytes,
            row_bytes,
            codebook: table,
            scales: &relative,
            groups,
            width: step,
        };
        let kernel =
            RotatedRows { codes: codes(), width, group, scales: &scales, corrections: None };
        let name = format!("levels {group} {step}");
        check(&name, &kernel, rows * width, |i| {
            exact(
                exact_sum(&integers[i / width * width..], group, i % width),
                group,
                scales[i / width],
            )
        });
        let kernel = RotatedRows {
            codes: codes(),
            width,
            group,
            scales: &scales,
            corrections: Some(Corrections { values: &corrections, width: step }),
        };
        let twin = |i: usize| {
            let (row, col) = (i / width, i % width);
            let first = col / group * group;
            let mut values: Vec<f64> = (first..first + group)
                .map(|col| {
                    let correction = f64::from(corrections[row * groups + col / step]);
                    integers[row * width + col] as f64 * f64::from(scales[row]) + correction
                })
                .collect();
            pass_by_pass(&mut values);
            (values[col - first] / (group as f64).sqrt()) as f32
        };
        check(&name, &kernel, rows * width, twin);
    }
}

/// The sums in the order that is documented: neighbours first, of each four `(a + b) ± (c - d)` and
/// `(c + d) ± (a - b)`.
fn pass_by_pass(values: &mut [f64]) {
    let mut stride = 1;
    while stride < values.len() {
        let before = values.to_vec();
        for (i, value) in values.iter_mut().enumerate() {
            let digit = i / stride % 4;
            let [a, b, c, d] = [0, 1, 2, 3].map(|n| before[i - digit * stride + n * stride]);
            *value = match digit {
                0 => (a + b) + (c - d),
                1 => (a + b) - (c - d),
                2 => (c + d) + (a - b),
                _ => (c + d) - (a - b),
            };
        }
        stride *= 4;
    }
}
