//! [`ComparePiece`]: the sums over a piece of both sides, a block at a time.

use super::sums::{PairSums, Sums};
use super::widen::{BLOCK, Widened, Width, number, number_size, widen, width};
use crate::dtype::Dtype;
use crate::report::diff::report::ElementValue;
use crate::simd::{Routine, zip};

/// Partial sums of a block, so that the compiler adds in vectors. Their number is part of the
/// result: F64 sums depend on their order.
const LANES: usize = 16;

/// The values of a piece, and the sums to which their differences are added.
pub(super) struct ComparePiece<'a> {
    pub a: (Dtype, &'a [u8]),
    pub b: (Dtype, &'a [u8]),
    /// Numbers on each side.
    pub count: usize,
    /// Index of the first number.
    pub first: u64,
    pub tolerance: f64,
    pub sums: &'a mut Sums,
}

impl Routine for ComparePiece<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let is_double = |dtype| width(dtype) == Some(Width::Double);
        if is_double(self.a.0) || is_double(self.b.0) {
            self.run_blocks::<f64>();
        } else {
            self.run_blocks::<f32>();
        }
    }
}

#[inline(always)]
fn sum_of_lanes(lanes: [f64; LANES]) -> f64 {
    let mut sum = 0.0;
    for lane in lanes {
        sum += lane;
    }
    sum
}

/// Sums over a block. If a value is not finite, neither are the squares of its side. Without a
/// tolerance the compiler leaves out one of two comparisons, which is a fifth of the time.
#[inline(always)]
fn block_sums<T: Widened, const HAS_TOLERANCE: bool>(
    a: &[T; BLOCK],
    b: &[T; BLOCK],
    tolerance: f64,
) -> PairSums {
    let [mut abs, mut squares, mut products, mut squares_a, mut squares_b, mut max] =
        [[0f64; LANES]; 6];
    let [mut unequal, mut beyond] = [[0u64; LANES]; 2];
    for i in 0..BLOCK / LANES {
        for lane in 0..LANES {
            let (x, y): (f64, f64) = (a[i * LANES + lane].into(), b[i * LANES + lane].into());
            let d = x - y;
            let distance = d.abs();
            max[lane] = if distance > max[lane] {
                distance
            } else {
                max[lane]
            };
            unequal[lane] += u64::from(distance > 0.0);
            if HAS_TOLERANCE {
                beyond[lane] += u64::from(distance > tolerance);
            }
            abs[lane] += distance;
            squares[lane] += d * d;
            products[lane] += x * y;
            squares_a[lane] += x * x;
            squares_b[lane] += y * y;
        }
    }
    let mut largest = 0.0;
    for lane in max {
        largest = if lane > largest { lane } else { largest };
    }
    let unequal = unequal.iter().sum();
    PairSums {
        unequal,
        beyond: if HAS_TOLERANCE {
            beyond.iter().sum()
        } else {
            unequal
        },
        max: largest,
        abs: sum_of_lanes(abs),
        squares: sum_of_lanes(squares),
        products: sum_of_lanes(products),
        squares_a: sum_of_lanes(squares_a),
        squares_b: sum_of_lanes(squares_b),
    }
}

/// The sum of squares of a block.
#[inline(always)]
fn block_squares<T: Widened>(a: &[T; BLOCK]) -> f64 {
    let mut squares = [0f64; LANES];
    for i in 0..BLOCK / LANES {
        for lane in 0..LANES {
            let x: f64 = a[i * LANES + lane].into();
            squares[lane] += x * x;
        }
    }
    sum_of_lanes(squares)
}

impl ComparePiece<'_> {
    /// Bytes of the numbers `from..from + n` of a side.
    #[inline(always)]
    fn block<'b>(&self, (dtype, bytes): (Dtype, &'b [u8]), from: usize, n: usize) -> &'b [u8] {
        let step = number_size(dtype);
        &bytes[from * step..(from + n) * step]
    }

    #[inline(always)]
    fn run_blocks<T: Widened>(&mut self) {
        // Elements behind the last number of a piece stay zero on both sides, and add nothing.
        let (mut a, mut b) = ([T::default(); BLOCK], [T::default(); BLOCK]);
        self.sums.values += self.count as u64;
        let mut from = 0;
        while from < self.count {
            let n = BLOCK.min(self.count - from);
            if n < BLOCK {
                (a, b) = ([T::default(); BLOCK], [T::default(); BLOCK]);
            }
            let (bytes_a, bytes_b) = (self.block(self.a, from, n), self.block(self.b, from, n));
            let is_same = self.a.0 == self.b.0 && bytes_a == bytes_b;
            // A loop, so that there is one copy of those over all dtypes.
            let sides = [(self.a.0, bytes_a, &mut a), (self.b.0, bytes_b, &mut b)];
            for (dtype, bytes, out) in sides.into_iter().take(if is_same { 1 } else { 2 }) {
                widen(dtype, bytes, out);
            }
            if is_same {
                let squares = block_squares(&a);
                if squares.is_finite() {
                    self.sums.finite += n as u64;
                    self.sums.pairs.products += squares;
                    self.sums.pairs.squares_a += squares;
                    self.sums.pairs.squares_b += squares;
                } else {
                    self.one_by_one(from, &a[..n], &a[..n]);
                }
            } else {
                let sums = if self.tolerance > 0.0 {
                    block_sums::<T, true>(&a, &b, self.tolerance)
                } else {
                    block_sums::<T, false>(&a, &b, 0.0)
                };
                if sums.squares_a.is_finite() && sums.squares_b.is_finite() {
                    self.add_block(from, n, &sums, &a, &b);
                } else {
                    self.one_by_one(from, &a[..n], &b[..n]);
                }
            }
            from += n;
        }
    }

    #[inline(always)]
    fn add_block<T: Widened>(
        &mut self,
        from: usize,
        n: usize,
        block: &PairSums,
        a: &[T; BLOCK],
        b: &[T; BLOCK],
    ) {
        let sums = &mut *self.sums;
        sums.finite += n as u64;
        sums.pairs.add(block);
        if block.beyond > 0 && sums.first.is_none() {
            let pairs = zip(a.iter(), b).map(|(&a, &b)| (a.into(), b.into()));
            sums.first = pairs
                .enumerate()
                .find(|(_, (a, b))| (a - b).abs() > self.tolerance)
                .map(|(i, (a, b))| {
                    let index = self.first + (from + i) as u64;
                    (index, [ElementValue::Float(a), ElementValue::Float(b)])
                });
        }
    }

    /// Adds a block value by value. It has NaN or infinities, or its sums of squares overflow.
    fn one_by_one<T: Widened>(&mut self, from: usize, a: &[T], b: &[T]) {
        for (i, (&a, &b)) in zip(a.iter(), b).enumerate() {
            let (a, b): (f64, f64) = (a.into(), b.into());
            let index = self.first + (from + i) as u64;
            let pair = [ElementValue::Float(a), ElementValue::Float(b)];
            self.sums
                .add_pair(index, (a, b), (a - b).abs(), pair, self.tolerance);
        }
    }

    /// Adds a piece of which a side has integers of 64 bits. They are subtracted as integers,
    /// because F64 does not hold them.
    pub(super) fn run_int64(&mut self) {
        self.sums.values += self.count as u64;
        for i in 0..self.count {
            let a = number(self.a.0, self.block(self.a, i, 1));
            let b = number(self.b.0, self.block(self.b, i, 1));
            let index = self.first + i as u64;
            let abs = distance(a, b);
            let (x, y) = (a.to_f64(), b.to_f64());
            self.sums
                .add_pair(index, (x, y), abs, [a, b], self.tolerance);
        }
    }
}

/// The absolute difference, rounded once.
fn distance(a: ElementValue, b: ElementValue) -> f64 {
    let integer = |value: ElementValue| match value {
        ElementValue::Int(x) => Some(x),
        // Beyond 2^100 no integer of 64 bits is near, and the difference in F64 is as good.
        ElementValue::Float(x) if x.fract() == 0.0 && x.abs() < 2f64.powi(100) => Some(x as i128),
        ElementValue::Float(_) => None,
    };
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => (a - b).unsigned_abs() as f64,
        // A float with a fraction is below 2^52, so the difference to any integer is not lost.
        _ => (a.to_f64() - b.to_f64()).abs(),
    }
}
