//! The differences of values: sums over pieces, computed in F64.

use crate::dtype::Dtype;
use crate::element::{f32_from_bf16, f32_from_f16};
use crate::simd::{Level, Routine, perform};

use super::report::{ElementValue, FirstDifference, ValueDiff};

/// Values that are widened at once; both sides stay in the L1 cache.
const BLOCK: usize = 1024;

/// Partial sums of a block, so that the compiler adds in vectors. Their number is part of the result: F64 sums depend on their
/// order.
const LANES: usize = 16;

/// What counts as a difference, and how it is computed.
pub(super) struct CompareRule {
    pub tolerance: f64,
    pub level: Level,
}

/// Counts and sums over pairs of values. Sums, squares and products are over pairs of finite values.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    /// Values compared.
    values: u64,
    /// Pairs of finite values.
    finite: u64,
    unequal: u64,
    beyond: u64,
    /// Pairs that differ and of which a value is NaN or infinite.
    not_finite: u64,
    max: f64,
    abs: f64,
    squares: f64,
    products: f64,
    squares_a: f64,
    squares_b: f64,
    /// Index and values of the first pair beyond the tolerance.
    first: Option<(u64, [ElementValue; 2])>,
}

impl Sums {
    /// Adds the sums over later values.
    pub(super) fn add(&mut self, later: &Self) {
        self.values += later.values;
        self.finite += later.finite;
        self.unequal += later.unequal;
        self.beyond += later.beyond;
        self.not_finite += later.not_finite;
        self.max = self.max.max(later.max);
        self.abs += later.abs;
        self.squares += later.squares;
        self.products += later.products;
        self.squares_a += later.squares_a;
        self.squares_b += later.squares_b;
        if self.first.is_none() {
            self.first = later.first;
        }
    }

    /// The result for a tensor of `shape`.
    pub(super) fn into_diff(self, shape: &[usize], kind: Comparable) -> ValueDiff {
        let finite = (self.finite.max(1)) as f64;
        let norms = (self.squares_a * self.squares_b).sqrt();
        let has_angle = norms > 0.0 && norms.is_finite();
        let is_number = kind.is_number();
        ValueDiff {
            values: self.values,
            unequal: self.unequal,
            beyond_tolerance: self.beyond,
            not_finite: self.not_finite,
            max_abs: is_number.then_some(self.max),
            mean_abs: is_number.then_some(self.abs / finite),
            rmse: is_number.then_some((self.squares / finite).sqrt()),
            // Rounding may carry the quotient of parallel vectors beyond 1.
            cosine: (is_number && has_angle).then(|| (self.products / norms).clamp(-1.0, 1.0)),
            first: self.first.map(|(index, [a, b])| FirstDifference {
                index: position(kind.element(index), shape),
                a,
                b,
            }),
        }
    }

    /// Counts a pair of values with the difference `abs`, which is not finite if a value is not.
    fn count(&mut self, index: u64, abs: f64, pair: [ElementValue; 2], tolerance: f64) {
        self.unequal += 1;
        if abs.is_finite() && abs <= tolerance {
            return;
        }
        self.beyond += 1;
        self.first.get_or_insert((index, pair));
    }
}

/// Coordinates of element `index` of a tensor of `shape`.
fn position(mut index: u64, shape: &[usize]) -> Vec<u64> {
    let mut out: Vec<u64> = Vec::with_capacity(shape.len());
    for &dim in shape.iter().rev() {
        let dim = (dim as u64).max(1);
        out.push(index % dim);
        index /= dim;
    }
    out.reverse();
    out
}

/// How an element type is widened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    /// F32 holds every value.
    Single,
    /// F64 does, and F32 does not.
    Double,
    /// Integers of 64 bits, which F64 does not hold.
    Wide,
}

/// How the values of a pair are compared.
#[derive(Debug, Clone, Copy)]
pub(super) enum Comparable {
    /// As numbers of these types.
    Numbers(Dtype, Dtype),
    /// As bytes: values of one type that has no widening, such as codes of six bits.
    Bytes(Dtype),
}

fn width(dtype: Dtype) -> Option<Width> {
    Some(match dtype {
        Dtype::Bool | Dtype::U8 | Dtype::I8 | Dtype::U16 | Dtype::I16 => Width::Single,
        Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::C64 => Width::Single,
        Dtype::U32 | Dtype::I32 | Dtype::F64 => Width::Double,
        Dtype::U64 | Dtype::I64 => Width::Wide,
        _ => return None,
    })
}

impl Comparable {
    /// How values of two types are compared; `None` if they cannot be.
    pub(super) fn of((a, b): (Dtype, Dtype)) -> Option<Self> {
        let is_complex = |dtype| dtype == Dtype::C64;
        match (width(a), width(b)) {
            (Some(_), Some(_)) if is_complex(a) == is_complex(b) => Some(Self::Numbers(a, b)),
            _ if a == b => Some(Self::Bytes(a)),
            _ => None,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Numbers(..))
    }

    /// The element that number `index` belongs to: a complex value has two, and bytes have a part or several.
    fn element(self, index: u64) -> u64 {
        match self {
            Self::Numbers(Dtype::C64, _) => index / 2,
            Self::Numbers(..) => index,
            Self::Bytes(dtype) => index * 8 / (dtype.bits() as u64).max(1),
        }
    }

    /// Adds the differences of consecutive values to `sums`. `first` is the index of the first one, as
    /// [`TensorPair::run`](crate::convert::pair::TensorPair::run) counts.
    pub(super) fn compare(
        self,
        first: u64,
        (a, b): (&[u8], &[u8]),
        rule: &CompareRule,
        sums: &mut Sums,
    ) {
        let (da, db) = match self {
            Self::Numbers(a, b) => (a, b),
            Self::Bytes(_) => return compare_bytes(first, a, b, sums),
        };
        let tolerance = rule.tolerance;
        let (first, step) = match da {
            Dtype::C64 => (first * 2, 4),
            _ => (first, da.byte_size()),
        };
        let mut routine = ComparePiece {
            a: (da, a),
            b: (db, b),
            count: a.len() / step,
            first,
            tolerance,
            sums,
        };
        if width(da) == Some(Width::Wide) || width(db) == Some(Width::Wide) {
            routine.run_wide();
        } else {
            perform(rule.level, &mut routine);
        }
    }
}

/// Compares values that have no numbers.
fn compare_bytes(first: u64, a: &[u8], b: &[u8], sums: &mut Sums) {
    sums.values += a.len() as u64;
    if a == b {
        return;
    }
    for (i, (&a, &b)) in a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b) {
        let pair = [a, b].map(|code| ElementValue::Int(code.into()));
        sums.count(first + i as u64, f64::INFINITY, pair, 0.0);
    }
}

/// The differences of a piece.
struct ComparePiece<'a> {
    a: (Dtype, &'a [u8]),
    b: (Dtype, &'a [u8]),
    /// Numbers on each side.
    count: usize,
    /// Index of the first number.
    first: u64,
    tolerance: f64,
    sums: &'a mut Sums,
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

/// F32 or F64: a type that values are widened to.
trait Widened: Copy + Default + Into<f64> {
    fn from_f32(x: f32) -> Self;
    /// The value if this type holds it. Never called with a value that it does not hold.
    fn from_f64(x: f64) -> Self;
}

impl Widened for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x as f32
    }
}

impl Widened for f64 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x.into()
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x
    }
}

/// Widens consecutive values of `dtype` to the first elements of `out`.
#[inline(always)]
fn widen<T: Widened>(dtype: Dtype, bytes: &[u8], out: &mut [T; BLOCK]) {
    macro_rules! each {
        ($type:ty, $widen:expr) => {{
            let (values, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
            for (out, bytes) in out.iter_mut().zip(values) {
                let value = <$type>::from_le_bytes(*bytes);
                *out = $widen(value);
            }
        }};
    }
    match dtype {
        Dtype::BF16 => each!(u16, |bits| T::from_f32(f32_from_bf16(bits))),
        Dtype::F16 => each!(u16, |bits| T::from_f32(f32_from_f16(bits))),
        Dtype::F32 | Dtype::C64 => each!(f32, T::from_f32),
        Dtype::F64 => each!(f64, T::from_f64),
        Dtype::Bool | Dtype::U8 => each!(u8, |x| T::from_f32(f32::from(x))),
        Dtype::I8 => each!(i8, |x| T::from_f32(f32::from(x))),
        Dtype::U16 => each!(u16, |x| T::from_f32(f32::from(x))),
        Dtype::I16 => each!(i16, |x| T::from_f32(f32::from(x))),
        Dtype::U32 => each!(u32, |x| T::from_f64(f64::from(x))),
        Dtype::I32 => each!(i32, |x| T::from_f64(f64::from(x))),
        // `Comparable` and `run_wide` leave no other type.
        _ => {}
    }
}

/// The sums of a block of finite values.
struct BlockSums {
    unequal: u64,
    beyond: u64,
    max: f64,
    abs: f64,
    squares: f64,
    products: f64,
    squares_a: f64,
    squares_b: f64,
}

#[inline(always)]
fn total(lanes: [f64; LANES]) -> f64 {
    let mut sum = 0.0;
    for lane in lanes {
        sum += lane;
    }
    sum
}

/// Sums over a block. If a value is not finite, neither are the squares of its side. Without a tolerance the compiler leaves out
/// one of two comparisons, which is a fifth of the time.
#[inline(always)]
fn block_sums<T: Widened, const HAS_TOLERANCE: bool>(
    a: &[T; BLOCK],
    b: &[T; BLOCK],
    tolerance: f64,
) -> BlockSums {
    let [
        mut abs,
        mut squares,
        mut products,
        mut squares_a,
        mut squares_b,
        mut max,
    ] = [[0f64; LANES]; 6];
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
    BlockSums {
        unequal,
        beyond: if HAS_TOLERANCE {
            beyond.iter().sum()
        } else {
            unequal
        },
        max: largest,
        abs: total(abs),
        squares: total(squares),
        products: total(products),
        squares_a: total(squares_a),
        squares_b: total(squares_b),
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
    total(squares)
}

impl ComparePiece<'_> {
    /// Bytes of the numbers `from..from + n` of a side.
    #[inline(always)]
    fn block<'b>(&self, (dtype, bytes): (Dtype, &'b [u8]), from: usize, n: usize) -> &'b [u8] {
        let step = match dtype {
            Dtype::C64 => 4,
            _ => dtype.byte_size(),
        };
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
            widen(self.a.0, bytes_a, &mut a);
            if self.a.0 == self.b.0 && bytes_a == bytes_b {
                let squares = block_squares(&a);
                if squares.is_finite() {
                    self.sums.finite += n as u64;
                    self.sums.products += squares;
                    self.sums.squares_a += squares;
                    self.sums.squares_b += squares;
                } else {
                    self.one_by_one(from, &a[..n], &a[..n]);
                }
            } else {
                widen(self.b.0, bytes_b, &mut b);
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
        block: &BlockSums,
        a: &[T; BLOCK],
        b: &[T; BLOCK],
    ) {
        let sums = &mut *self.sums;
        sums.finite += n as u64;
        sums.unequal += block.unequal;
        sums.beyond += block.beyond;
        sums.max = sums.max.max(block.max);
        sums.abs += block.abs;
        sums.squares += block.squares;
        sums.products += block.products;
        sums.squares_a += block.squares_a;
        sums.squares_b += block.squares_b;
        if block.beyond > 0 && sums.first.is_none() {
            let pairs = a.iter().zip(b).map(|(&a, &b)| (a.into(), b.into()));
            sums.first = pairs
                .enumerate()
                .find(|(_, (a, b))| (a - b).abs() > self.tolerance)
                .map(|(i, (a, b))| {
                    let index = self.first + (from + i) as u64;
                    (index, [ElementValue::Float(a), ElementValue::Float(b)])
                });
        }
    }

    /// A block in which values may be NaN or infinite, or so large that their squares are.
    fn one_by_one<T: Widened>(&mut self, from: usize, a: &[T], b: &[T]) {
        for (i, (&a, &b)) in a.iter().zip(b).enumerate() {
            let (a, b): (f64, f64) = (a.into(), b.into());
            let index = self.first + (from + i) as u64;
            let pair = [ElementValue::Float(a), ElementValue::Float(b)];
            self.sums
                .pair(index, (a, b), (a - b).abs(), pair, self.tolerance);
        }
    }

    /// Integers of 64 bits on a side: differences are those of the integers.
    fn run_wide(&mut self) {
        self.sums.values += self.count as u64;
        for i in 0..self.count {
            let a = number(self.a.0, self.block(self.a, i, 1));
            let b = number(self.b.0, self.block(self.b, i, 1));
            let index = self.first + i as u64;
            let abs = distance(a, b);
            let (x, y) = (a.to_f64(), b.to_f64());
            self.sums.pair(index, (x, y), abs, [a, b], self.tolerance);
        }
    }
}

impl Sums {
    /// Adds the pair of values `a` and `b`, whose difference is `abs` unless one of them is not finite.
    fn pair(
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
        self.max = self.max.max(abs);
        self.abs += abs;
        self.squares += abs * abs;
        self.products += a * b;
        self.squares_a += a * a;
        self.squares_b += b * b;
    }
}

/// The number in `bytes`; an integer stays one.
fn number(dtype: Dtype, bytes: &[u8]) -> ElementValue {
    let wide: Option<&[u8; 8]> = bytes.try_into().ok();
    match (dtype, wide) {
        (Dtype::I64, Some(bytes)) => ElementValue::Int(i64::from_le_bytes(*bytes).into()),
        (Dtype::U64, Some(bytes)) => ElementValue::Int(u64::from_le_bytes(*bytes).into()),
        _ => {
            let mut out = [0f64; BLOCK];
            widen(dtype, bytes, &mut out);
            match dtype.is_integer() {
                // Other integers have at most 32 bits.
                true => ElementValue::Int(out[0] as i128),
                false => ElementValue::Float(out[0]),
            }
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

#[cfg(test)]
mod tests;
