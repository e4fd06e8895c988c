//! Rotations of SDNQ against a product with the whole matrix, and codebooks of groups against one
//! look-up a value.

use half::{bf16, f16};

use super::{Decoder, HOSTILE, bytes, check as check_values, each_level, scales};
use crate::element::{Element, Out};
use crate::remember::kernels::codebook_groups::CodebookGroups;
use crate::remember::kernels::hadamard::{HadamardColumns, HadamardGroups, StoredHadamard};
use crate::simd::{Level, dispatch};
use crate::test_utils::{effort, miri_or};

/// [`HadamardGroups`], for the type of each output.
pub(super) struct RotatedGroups<'a> {
    pub values: &'a [f32],
    pub group: usize,
    pub stored: Option<&'a StoredHadamard>,
}

impl Decoder for RotatedGroups<'_> {
    fn decode_at(&self, level: Level, out: Out<'_>) {
        let Self { values, group, stored } = *self;
        let target = out.dtype();
        dispatch(level, &HadamardGroups { values, group, stored, target }, out);
    }
}

/// The sign of an entry of H: the Kronecker power of a matrix of four rows, or of two.
fn sign(group: usize, row: usize, col: usize) -> f64 {
    let is_power_of_four = group.trailing_zeros().is_multiple_of(2);
    let negative = if is_power_of_four {
        (0..group.trailing_zeros() / 2)
            .filter(|n| (row >> (2 * n) & 3) + (col >> (2 * n) & 3) == 3)
            .count()
    } else {
        (row & col).count_ones() as usize
    };
    if negative % 2 == 0 { 1.0 } else { -1.0 }
}

fn twin<E: Element>(values: &[f32], group: usize) -> Vec<f32> {
    let unit = f64::from(E::rounded((1.0 / (group as f64).sqrt()) as f32));
    let groups = values.chunks(group);
    let rotated = groups.flat_map(|values| {
        (0..group).map(move |row| {
            let term = |(col, &x): (usize, &f32)| sign(group, row, col) * f64::from(E::rounded(x));
            let sum: f64 = values.iter().enumerate().map(term).sum();
            E::from_f32((sum * unit) as f32).to_f32()
        })
    });
    rotated.collect()
}

/// Sums of these values are exact in F64, so that no order of the terms matters.
#[test]
fn rotations() {
    for group in [4, 8, 16, 32, 64, 128, 256, 512] {
        if group > miri_or(32, 512) {
            continue;
        }
        let values: Vec<f32> = bytes(3 * group)
            .iter()
            .zip(bytes(5 * group).iter().rev())
            .map(|(&a, &b)| (f32::from(a) - 130.0) * (1.0 + f32::from(b) / 4096.0) / 64.0)
            .collect();
        let kernel = RotatedGroups { values: &values, group, stored: None };
        let same = |got: f32, want: f32| got.to_bits() == want.to_bits();
        let (single, half, brain) = (
            twin::<f32>(&values, group),
            twin::<f16>(&values, group),
            twin::<bf16>(&values, group),
        );
        each_level(&kernel, values.len(), |level, s, h, b| {
            for i in 0..values.len() {
                assert!(same(s[i], single[i]), "{group} F32 {level:?} [{i}]");
                assert!(same(Element::to_f32(h[i]), half[i]), "{group} F16 {level:?} [{i}]");
                assert!(same(Element::to_f32(b[i]), brain[i]), "{group} BF16 {level:?} [{i}]");
            }
        });
    }
}

/// Stored matrices against products with each of their entries. The sums are exact in F64.
#[test]
fn stored_matrices() {
    for group in [16, 32, 64, 128] {
        if group > miri_or(32, 128) {
            continue;
        }
        let values: Vec<f32> = bytes(3 * group)
            .iter()
            .map(|&a| (f32::from(a) - 130.0) / 4.0)
            .chain(HOSTILE.into_iter().cycle().take(group))
            .collect();
        let places: Vec<u8> = (0..group).map(|i| ((i * 5 + 3) % group) as u8).collect();
        let in_order = (0..group as u8).collect();
        for (columns, places, entry, divisor) in [
            (HadamardColumns::InOrder, in_order, 0.176_757_812_5, 3.0),
            (HadamardColumns::Permuted(places.clone()), places, 0.25, 0.125),
            (HadamardColumns::Identity, vec![], 1.0, 3.0),
            (HadamardColumns::Identity, vec![], 0.3, 2.0),
        ] {
            let stored = StoredHadamard { columns, entry, divisor };
            let kernel = RotatedGroups { values: &values, group, stored: Some(&stored) };
            check_values("stored matrix", &kernel, values.len(), |i| {
                let values = &values[i / group * group..][..group];
                let sum: f64 = if places.is_empty() {
                    f64::from(values[i % group])
                } else {
                    let sign = |&place: &u8| {
                        let bits = (usize::from(place) & (i % group)).count_ones();
                        if bits.is_multiple_of(2) { 1.0 } else { -1.0 }
                    };
                    let terms = places.iter().zip(values);
                    terms.map(|(place, &x)| sign(place) * f64::from(x)).sum()
                };
                (sum * entry / divisor) as f32 + 0.0
            });
        }
    }
}

/// Quotients that are halfway between two numbers of 16 bits, or next to that, and others that
/// overflow or underflow: what is decided in F32 is what F64 decides. The sums are the one value of
/// each group.
#[test]
fn near_ties() {
    let ties = bytes(miri_or(8, effort([800, 4000, 4000])))
        .into_iter()
        .enumerate();
    let ties = ties.flat_map(|(i, byte)| {
        let exponent = match i % 8 {
            0 => i32::from(byte % 24) - 149,
            1 => 127 - i32::from(byte % 3),
            2 => -14 - i32::from(byte % 12),
            _ => i32::from(byte % 30) - 14,
        };
        let mantissa = 1.0 + f64::from(byte) / 256.0 + 2f64.powi(if i % 2 == 0 { -8 } else { -11 });
        (-9i32..=9)
            .map(move |place| (mantissa + f64::from(place) * 2f64.powi(-23)) * 2f64.powi(exponent))
    });
    let ties: Vec<f64> = ties.collect();
    for (entry, divisor) in [
        (0.088_378_906_25, 1.1e-3f32),
        (1.0 / 128f64.sqrt(), 1.0),
        (1.0, 3.0),
        (0.25, 1e30),
        (3.0, 1e-30),
        (0.1, 1e-44),
    ] {
        let stored = StoredHadamard {
            columns: HadamardColumns::InOrder,
            entry,
            divisor: f64::from(divisor),
        };
        let wanted = ties.iter().map(|tie| tie * stored.divisor / entry);
        let group = 16;
        let values: Vec<f32> = wanted
            .flat_map(|x| {
                let mut values = [0.0; 16];
                values[0] = x as f32;
                // Some sums are exact in F64 alone.
                values[5] = if x.to_bits() % 3 == 0 {
                    x as f32 * 1e-9
                } else {
                    0.0
                };
                values
            })
            .collect();
        let kernel = RotatedGroups { values: &values, group, stored: Some(&stored) };
        check_values("near ties", &kernel, values.len(), |i| {
            let [a, b] = [0, 5].map(|at| f64::from(values[i / group * group + at]));
            let sum = if (i & 5).count_ones() % 2 == 0 {
                a + b
            } else {
                a - b
            };
            (sum * entry / stored.divisor) as f32 + 0.0
        });
    }
}

/// Sums that F32 has, and next to them sums that only F64 has: large values that cancel each other,
/// and a small one.
#[test]
fn small_values_beside_large_ones() {
    for (group, small) in [4, 16, miri_or(32, 128)]
        .into_iter()
        .flat_map(|group| (6..28).map(move |bits| (group, 3.0 * 0.5f32.powi(bits))))
    {
        let value = |i: usize| [1.0, -1.0, small, 1.5][(i * 5 + i / 3) % 4];
        let values: Vec<f32> = (0..2 * group).map(value).collect();
        let (single, half, brain) = (
            twin::<f32>(&values, group),
            twin::<f16>(&values, group),
            twin::<bf16>(&values, group),
        );
        let kernel = RotatedGroups { values: &values, group, stored: None };
        each_level(&kernel, values.len(), |level, s, h, b| {
            let halves: Vec<f32> = h.iter().map(|&x| Element::to_f32(x)).collect();
            let brains: Vec<f32> = b.iter().map(|&x| Element::to_f32(x)).collect();
            assert!(
                s == single && halves == half && brains == brain,
                "{level:?}: {group}, {small}"
            );
        });
        let stored =
            StoredHadamard { columns: HadamardColumns::InOrder, entry: 0.25, divisor: 2.0 };
        let kernel = RotatedGroups { stored: Some(&stored), ..kernel };
        check_values(&format!("{group}, {small}"), &kernel, values.len(), |i| {
            let terms = values[i / group * group..][..group].iter().enumerate();
            let sign = |j: usize| [1.0, -1.0][((i % group) & j).count_ones() as usize % 2];
            let sum: f64 = terms.map(|(j, &x)| sign(j) * f64::from(x)).sum();
            (sum * 0.125) as f32 + 0.0
        });
    }
}

#[test]
fn hostile_rotations() {
    for special in [f32::NAN, f32::INFINITY] {
        let mut values = vec![1.0; 8];
        values[5] = special;
        let kernel = RotatedGroups { values: &values, group: 8, stored: None };
        each_level(&kernel, 8, |_, s, h, b| {
            assert!(s.iter().all(|x| !x.is_finite()));
            assert!(h.iter().all(|x| !x.is_finite()));
            assert!(b.iter().all(|x| !x.is_finite()));
        });
    }
}

#[test]
fn codebooks() {
    // Groups that are shorter and longer than their codebook, one that begins before the tile, and
    // codebooks for all rows.
    for (width, start, group, entries, has_row_codebooks) in [
        (96, 0, 32, 16, true),
        (70, 10, 40, 64, true),
        (50, 0, 50, 256, true),
        (33, 0, 16, 2, true),
        (40, 8, 100, 8, false),
    ] {
        let rows = 3;
        let groups = usize::div_ceil(start + width, group);
        let codes: Vec<u8> = bytes(rows * width)
            .iter()
            .map(|&code| (usize::from(code) % entries) as u8)
            .collect();
        let count = if has_row_codebooks { rows } else { 1 };
        let codebooks = scales(count * groups * entries);
        let kernel = CodebookGroups {
            codes: &codes,
            width,
            start,
            group,
            codebooks: &codebooks,
            groups,
            entries,
            has_row_codebooks,
        };
        let want = |i: usize| {
            let (row, col) = (i / width, start + i % width);
            let row = if has_row_codebooks { row } else { 0 };
            codebooks[(row * groups + col / group) * entries + usize::from(codes[i])]
        };
        check_values("codebooks", &kernel, rows * width, want);
    }
}
