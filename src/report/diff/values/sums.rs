//! [`Sums`]: counts and sums over pairs of values.

use super::Comparable;
use crate::convert::coordinates;
use crate::report::diff::report::{ElementValue, FirstDifference, ValueDiff};

/// Counts and sums over pairs of values. Sums, squares and products are over pairs of finite
/// values.
#[derive(Debug, Clone, Default)]
pub(super) struct PairSums {
    pub unequal: u64,
    /// Pairs that differ by more than the tolerance.
    pub beyond: u64,
    /// Largest absolute difference.
    pub max: f64,
    /// Sum of the absolute differences.
    pub abs: f64,
    /// Sum of the squared differences.
    pub squares: f64,
    /// Sum of the products of both values.
    pub products: f64,
    pub squares_a: f64,
    pub squares_b: f64,
}

/// What comparing values has shown so far.
#[derive(Debug, Clone, Default)]
pub(in crate::report::diff) struct Sums {
    /// Values compared.
    pub(super) values: u64,
    /// Pairs of finite values.
    pub(super) finite: u64,
    /// Pairs that differ and of which a value is NaN or infinite.
    not_finite: u64,
    pub(super) pairs: PairSums,
    /// Index and values of the first pair beyond the tolerance.
    pub(super) first: Option<(u64, [ElementValue; 2])>,
}

impl PairSums {
    /// Adds the sums over later pairs.
    #[inline(always)]
    pub(super) fn add(&mut self, later: &Self) {
        self.unequal += later.unequal;
        self.beyond += later.beyond;
        self.max = self.max.max(later.max);
        self.abs += later.abs;
        self.squares += later.squares;
        self.products += later.products;
        self.squares_a += later.squares_a;
        self.squares_b += later.squares_b;
    }
}

impl Sums {
    /// Adds the sums over later values.
    pub(in crate::report::diff) fn add(&mut self, later: &Self) {
        self.values += later.values;
        self.finite += later.finite;
        self.not_finite += later.not_finite;
        self.pairs.add(&later.pairs);
        if self.first.is_none() {
            self.first = later.first;
        }
    }

    /// The result for a tensor of `shape`.
    pub(in crate::report::diff) fn into_diff(self, shape: &[usize], kind: Comparable) -> ValueDiff {
        let (pairs, finite) = (&self.pairs, self.finite.max(1) as f64);
        let norms = (pairs.squares_a * pairs.squares_b).sqrt();
        let has_angle = norms > 0.0 && norms.is_finite();
        let is_number = kind.is_number();
        ValueDiff {
            values: self.values,
            unequal: pairs.unequal,
            beyond_tolerance: pairs.beyond,
            not_finite: self.not_finite,
            max_abs: is_number.then_some(pairs.max),
            mean_abs: is_number.then_some(pairs.abs / finite),
            rmse: is_number.then_some((pairs.squares / finite).sqrt()),
            // Rounding may carry the quotient of parallel vectors beyond 1.
            cosine: (is_number && has_angle).then(|| (pairs.products / norms).clamp(-1.0, 1.0)),
            first: self.first.map(|(index, [a, b])| FirstDifference {
                index: coordinates(kind.element(index), shape),
                a,
                b,
            }),
        }
    }

    /// Adds the pair of values `a` and `b`, whose difference is `abs` unless one of them is not
    /// finite.
    pub(super) fn add_pair(
        &mut self,
        index: u64,
        (a, b): (f64, f64),
        abs: f64,
        pair: [ElementValue; 2],
        tolerance: f64,
    ) {
        if !(a.is_finite() && b.is_finite()) {
            let is_same = a == b || a.is_nan() && b.is_nan();
            if !is_same {
                self.not_finite += 1;
                self.count(index, f64::INFINITY, pair, tolerance);
            }
            return;
        }
        self.finite += 1;
        if abs > 0.0 {
            self.count(index, abs, pair, tolerance);
        }
        let pairs = &mut self.pairs;
        pairs.max = pairs.max.max(abs);
        pairs.abs += abs;
        pairs.squares += abs * abs;
        pairs.products += a * b;
        pairs.squares_a += a * a;
        pairs.squares_b += b * b;
    }

    /// Counts a pair of values with the difference `abs`, which is not finite if a value is not.
    pub(super) fn count(&mut self, index: u64, abs: f64, pair: [ElementValue; 2], tolerance: f64) {
        self.pairs.unequal += 1;
        if abs.is_finite() && abs <= tolerance {
            return;
        }
        self.pairs.beyond += 1;
        self.first.get_or_insert((index, pair));
    }
}
