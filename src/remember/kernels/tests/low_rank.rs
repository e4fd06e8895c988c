//! Products of low rank, against sums of one value at a time in F64.

use half::{bf16, f16};

use super::{HOSTILE, check, scales, words};
use crate::remember::kernels::low_rank::panels::{
    DivideValue, InDouble, LowRankRows, MAX_RANK, ScaleSum, have_exact_products, pack_panels,
};
use crate::remember::kernels::low_rank::{ColumnStep, Corrected};
use crate::test_utils::{effort, miri_or};

#[test]
fn sums_that_were_computed_before() {
    let width = miri_or(130, 1030);
    let (values, columns) = (scales(3 * width), scales(width + 3)[3..].to_vec());
    let sums: Vec<f64> = (0..3 * width)
        .map(|i| f64::from(HOSTILE[i % 7]) / 3.0)
        .collect();
    for (columns, step) in [
        (&[][..], ColumnStep::ScaleSum),
        (&columns, ColumnStep::ScaleSum),
        (&columns, ColumnStep::DivideValue),
    ] {
        let kernel = Corrected { values: &values, sums: &sums, width, columns, step };
        check("low rank", &kernel, 3 * width, |i| {
            let (value, sum) = (values[i], sums[i] as f32);
            match (columns.get(i % width), step) {
                (None, _) => value + sum,
                (Some(c), ColumnStep::ScaleSum) => (value + sum) * c,
                (Some(c), ColumnStep::DivideValue) => value / c + sum,
            }
        });
    }
}

/// A weight of which the rank, the rows and the columns follow from the lengths.
struct Weight {
    values: Vec<f32>,
    left: Vec<f32>,
    right: Vec<f32>,
    rank: usize,
    width: usize,
}

impl Weight {
    /// The sum of value `i`, rounded to F32.
    fn sum(&self, i: usize) -> f32 {
        let (r, c) = (i / self.width, i % self.width);
        let mut sum = 0.0;
        for k in 0..self.rank {
            let (b, a) = (self.left[r * self.rank + k], self.right[k * self.width + c]);
            sum += f64::from(b) * f64::from(a);
        }
        sum as f32
    }

    /// Every level and type with sums that are added in F64, of a left factor that is scaled so
    /// that its products are exact, or rounded.
    fn check_scaled(&self, name: &str, right: &[f32]) {
        for scale in [1.0, -1.25, 0.3] {
            let left: Vec<f64> = self.left.iter().map(|&b| f64::from(b) * scale).collect();
            let kernel = LowRankRows {
                values: &self.values,
                width: self.width,
                left: &left,
                rank: self.rank,
                right,
                columns: &[],
                addition: InDouble { is_exact: have_exact_products(&left) },
            };
            let name = format!("{name}, scaled by {scale}");
            check(&name, &kernel, self.values.len(), |i| {
                let (r, c) = (i / self.width, i % self.width);
                let mut sum = 0.0;
                for k in 0..self.rank {
                    let a = f64::from(self.right[k * self.width + c]);
                    sum += left[r * self.rank + k] * a;
                }
                (f64::from(self.values[i]) + sum) as f32
            });
        }
    }

    /// How many values other orders and roundings of the sums would change.
    fn unsure(&self) -> usize {
        let count = |i: &usize| {
            let (r, c) = (i / self.width, i % self.width);
            let terms = (0..self.rank).rev();
            let sum = terms.fold(0.0, |sum: f32, k| {
                sum + self.left[r * self.rank + k] * self.right[k * self.width + c]
            });
            let [ours, others] = [self.sum(*i), sum].map(|sum| self.values[*i] + sum);
            let halves = [ours, others].map(|x| f16::from_f32_const(x).to_bits());
            let brains = [ours, others].map(|x| bf16::from_f32(x).to_bits());
            halves[0] != halves[1] || brains[0] != brains[1]
        };
        (0..self.values.len()).filter(count).count()
    }

    /// Every level and type with every use of the numbers of columns.
    fn check(&self, name: &str, columns: &[f32]) {
        let mut right = Vec::new();
        pack_panels(&self.right, self.width, &mut right);
        // Those of the columns beyond the tile, which do not matter.
        right.extend(vec![f32::NAN; right.len()]);
        self.check_scaled(name, &right);
        for (columns, step) in [
            (&[][..], ColumnStep::ScaleSum),
            (columns, ColumnStep::ScaleSum),
            (&[], ColumnStep::DivideValue),
            (columns, ColumnStep::DivideValue),
        ] {
            let kernel = LowRankRows {
                values: &self.values,
                width: self.width,
                left: &self.left,
                rank: self.rank,
                right: &right,
                columns,
                addition: ScaleSum,
            };
            let name = format!("{name}, {step:?} of {}", columns.len());
            let twin = |i: usize| {
                let (value, sum) = (self.values[i], self.sum(i));
                match (columns.get(i % self.width), step) {
                    (None, _) => value + sum,
                    (Some(c), ColumnStep::ScaleSum) => (value + sum) * c,
                    (Some(c), ColumnStep::DivideValue) => value / c + sum,
                }
            };
            let n = self.values.len();
            match step {
                ColumnStep::ScaleSum => check(&name, &kernel, n, twin),
                ColumnStep::DivideValue => check(&name, &kernel.with(DivideValue), n, twin),
            }
        }
    }
}

/// Those of at most 29 bits whose products with the least and the largest number of F32 are normal.
#[test]
fn numbers_of_exact_products() {
    let longest = f64::from(2f32.powi(24) - 1.0);
    for x in [0.0, -0.0, 1.0, -1.25, longest, longest * 31.0, 1e-40f32.into()] {
        assert!(have_exact_products(&[1.0, x]), "{x}");
        for a in [longest, f64::from(f32::MAX), f64::from(f32::from_bits(1))] {
            assert_eq!(x.mul_add(a, -(x * a)), 0.0, "{x} * {a}");
        }
    }
    for x in [0.3, longest * 33.0, 2f64.powi(-900), 2f64.powi(900), f64::NAN, f64::INFINITY] {
        assert!(!have_exact_products(&[1.0, x]), "{x}");
    }
}

/// Numbers about 1, of 24 bits.
fn plain(n: usize, seed: usize) -> Vec<f32> {
    let number =
        |word: u32| f32::from_bits(0x3f00_0000 | word >> 7) * [1.0, -1.0][word as usize & 1];
    words(n + seed).into_iter().skip(seed).map(number).collect()
}

#[test]
fn products_of_all_shapes() {
    let ranks = [1, 2, 15, 16, 17, 40, miri_or(41, MAX_RANK)];
    for (rank, (rows, width)) in ranks
        .into_iter()
        .flat_map(|rank| [(1, 1), (3, 16), (4, 17), (9, miri_or(5, 100))].map(|size| (rank, size)))
        .step_by(effort([3, 1, 1]))
    {
        let weight = Weight {
            values: plain(rows * width, 1),
            left: plain(rows * rank, 2),
            right: plain(rank * width, 3),
            rank,
            width,
        };
        let columns = plain(width, 4);
        weight.check(&format!("{rows} × {width} of rank {rank}"), &columns);
    }
}

/// Values that lie on a tie, or next to one by less than F32 can tell, with all terms of one size
/// and with terms that cancel each other. The roundings of a sum in another order would be others.
#[test]
fn sums_at_ties() {
    let (rows, width) = (8, miri_or(20, 260));
    for rank in [2, 5, 40] {
        let mut left = plain(rows * rank, 5);
        let mut right = plain(rank * width, 6);
        // The last two terms are those before, taken back, and a tie of BF16 or F16 beside a value
        // of 1 that they nearly hide.
        for row in left.chunks_exact_mut(rank) {
            row[rank - 1] = 1.0;
        }
        for c in 0..width {
            let before: f64 = (0..rank - 1)
                .map(|k| f64::from(left[k]) * f64::from(right[k * width + c]))
                .sum();
            let tie = [2f64.powi(-8), 2f64.powi(-11), 3.0 * 2f64.powi(-8)][c % 3];
            let off = [0.0, 2f64.powi(-33), -2f64.powi(-33), 2f64.powi(-24)][c / 3 % 4];
            right[(rank - 1) * width + c] = (tie + off - before) as f32;
        }
        let values = [1.0, -1.0, 0.0, 2.0];
        let weight = Weight {
            values: (0..rows * width).map(|i| values[i / width % 4]).collect(),
            left: left[..rank].repeat(rows),
            right,
            rank,
            width,
        };
        assert!(weight.unsure() > 0, "{rank}");
        weight.check(&format!("ties of rank {rank}"), &plain(width, 7));
    }
}

/// Values that are ties, and sums that are too small to change them: both ends of the interval are
/// the tie.
#[test]
fn ties_without_sums() {
    let ties = [1.0 + 2f32.powi(-8), 1.0 + 2f32.powi(-11)];
    let odd = [1.0 + 3.0 * 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-11)];
    let all = [ties, odd].concat();
    let weight = Weight {
        values: (0..34).map(|i| all[i % 4] * [1.0, -1.0][i / 17]).collect(),
        left: vec![1e-9, -1e-9],
        right: vec![1e-9; 17],
        rank: 1,
        width: 17,
    };
    weight.check("ties", &[1.0; 17]);
}

/// Sums that are finite, of terms that overflow F32 on the way, while each factor is far from that.
#[test]
fn sums_that_overflow_on_the_way() {
    for sign in [1e20, -1e20] {
        let weight = Weight {
            values: vec![0.0; 34],
            left: vec![sign; 6],
            right: [3e18, 3e18, -3e18]
                .into_iter()
                .flat_map(|a| [a; 17])
                .collect(),
            rank: 3,
            width: 17,
        };
        weight.check("overflow", &[1.0; 17]);
    }
}

/// A NaN in one column hides neither the length of the one before, whose sum overflows on the way,
/// nor that of the one behind.
#[test]
fn a_column_of_nan_between_long_ones() {
    let columns = |k: usize| [3e18, f32::NAN, 1.0, 3e18].map(|a: f32| a * [1.0, 1.0, -1.0][k]);
    let weight = Weight {
        values: vec![0.0; 160],
        left: vec![1e20; 6],
        right: (0..3).flat_map(|k| columns(k).repeat(20)).collect(),
        rank: 3,
        width: 80,
    };
    weight.check("NaN", &[1.0; 80]);
}

/// NaN and infinities everywhere; sums of terms that overflow F32, one by one or together, and are
/// finite; results and terms that are subnormal; zeros of both signs.
#[test]
fn hostile_products() {
    // Several panels and a rest.
    let (rows, width) = (5, miri_or(21, 77));
    let large = [3e38, -3e38, 1e20, -1e20, 1.0, 2.0, -1.0, 0.0, 1e19];
    let small = [1e-40, -1e-40, 1e-23, -1e-23, 3e-20, 6e-8, 0.0, -0.0, 1e-30];
    let zeros = [0.0, -0.0, 0.0, 0.0, -0.0, 1e-45, 0.0, 0.0, 0.0];
    let rare = |i: usize, number: f32| if i % 7 == 3 { number } else { 0.5 };
    for rank in [1, 3, 33] {
        for (name, numbers) in [("large", large), ("small", small), ("zero", zeros)] {
            let pick = |n: usize, seed: usize| -> Vec<f32> {
                let words = words(n + seed).into_iter().skip(seed);
                words.map(|word| numbers[word as usize % 9]).collect()
            };
            let weight = Weight {
                values: pick(rows * width, 1),
                left: pick(rows * rank, 2),
                right: pick(rank * width, 3),
                rank,
                width,
            };
            weight.check(&format!("{name} numbers of rank {rank}"), &pick(width, 4));
            weight.check(name, &scales(width));
        }
        // One kind of number that goes wrong, in one place of the formula.
        for (number, place) in HOSTILE.into_iter().flat_map(|x| [0, 1, 2].map(|p| (x, p))) {
            let mut parts = [plain(rows * width, 1), plain(rows * rank, 2), plain(rank * width, 3)];
            for (i, x) in parts[place].iter_mut().enumerate() {
                *x *= rare(i, number);
            }
            let [values, left, right] = parts;
            let weight = Weight { values, left, right, rank, width };
            weight.check(&format!("{number} in {place}"), &scales(width));
        }
    }
}
