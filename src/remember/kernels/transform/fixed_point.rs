//! Vectors of integers times a matrix in fixed point.
//!
//! The values of a row of quantized integers are small multiples of its scale. Sums of products of
//! integers are exact, and CPUs add twice as many of them in a cycle as products in F64. The
//! numbers of the matrix are rounded to 31 bits, which puts a sum off by a known bound. Most sums
//! are decided: all numbers within the bound are rounded to the same value of 16 bits. The others
//! are left to F64, so that the output has the bits of sums in F64 everywhere.

use crate::element::Element;
use crate::remember::kernels::matrix_product::{PANEL, ROWS};
use crate::simd::{Flat, PAIR_COLUMNS, PairRow, PairSums, zip};

/// Bits of the largest number in fixed point.
const BITS: u32 = 31;

/// Most rows of a matrix.
const MOST_ROWS: usize = 1 << 10;

/// The bound of what a sum in F64 is off, as a part of the sum of the magnitudes of its terms. Each
/// of [`MOST_ROWS`] steps rounds a product and a sum by 2^-53 at most: 2^-42. The rest is for the
/// roundings of factors and of the bound itself.
const OFF: f64 = 1.0 / (1u64 << 40) as f64;

/// The least number of a vector is up to so many times its scale.
const MOST_PARTS: u8 = 8;

/// Bits of the integers of vectors. A scale has so many bits less than F32, as those of BF16 and
/// F16 have.
const INTEGER_BITS: u32 = 9;

/// Two rows of a panel, in fixed point: the high halves of its numbers, and the low ones, which
/// have a sign as well.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Pairs([[PairRow; PANEL / PAIR_COLUMNS]; 2]);

/// A matrix in fixed point.
#[derive(Debug)]
pub(super) struct FixedMatrix {
    size: usize,
    /// The largest integer that vectors may have. Sums of 32 bits hold its products with halves.
    most: f32,
    /// What the last place of the integers is worth.
    place: f64,
    /// The bound of what a product is off, as a part of the sum of the magnitudes of its vector.
    off: f64,
    /// Each two rows of the first [`PANEL`] columns, then those of the next. There are zeros behind
    /// the last row and column.
    panels: Vec<Pairs>,
}

impl FixedMatrix {
    /// The matrix of `size` rows that has `numbers`. `None` if it has too many rows, or numbers so
    /// small or large that products with their last place leave the range of F64.
    pub(super) fn new(numbers: &[f64], size: usize) -> Option<Self> {
        let largest = numbers.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        if !(1e-200..1e200).contains(&largest) || size > MOST_ROWS {
            return None;
        }
        // The high half of the largest number has to fit 16 bits even if the low half is negative.
        let most = ((1u64 << BITS) - (1 << 16)) as f64;
        let place = (largest / most).log2().ceil().exp2();
        let fixed = |x: f64| (x / place).round();
        let is_exact = numbers.iter().all(|&x| fixed(x) * place == x);
        let mut panels = Vec::with_capacity(size.div_ceil(PANEL) * size.div_ceil(2));
        for first in (0..size).step_by(PANEL) {
            for rows in numbers.chunks(2 * size) {
                let mut pairs = Pairs([[[[0; 2]; PAIR_COLUMNS]; PANEL / PAIR_COLUMNS]; 2]);
                for (r, row) in rows.chunks_exact(size).enumerate() {
                    for (j, &x) in row[first..].iter().take(PANEL).enumerate() {
                        let x = fixed(x) as i32;
                        let low = x as i16;
                        let [high_half, low_half] = &mut pairs.0;
                        high_half.flat_mut()[j][r] = ((x - i32::from(low)) >> 16) as i16;
                        low_half.flat_mut()[j][r] = low;
                    }
                }
                panels.push(pairs);
            }
        }
        Some(Self {
            size,
            // A half is 2^15 at most, and a sum below 2^31.
            most: ((1 << 16) / size).min(1 << INTEGER_BITS) as f32 - 1.0,
            place,
            off: largest * OFF + if is_exact { 0.0 } else { place / 2.0 },
            panels,
        })
    }

    /// The panel of [`PANEL`] columns from column `first` on.
    #[inline(always)]
    pub(super) fn panel(&self, first: usize) -> Option<FixedPanel<'_>> {
        let pairs = self.size.div_ceil(2);
        let pairs = self.panels.get(first / PANEL * pairs..)?.get(..pairs)?;
        Some(FixedPanel { matrix: self, pairs })
    }
}

/// Vectors as integers.
#[derive(Default)]
pub(super) struct IntegerVectors {
    /// The numbers of each vector, and a zero if they are odd in number.
    pairs: Vec<[i16; 2]>,
    /// One for each vector; `None` if it is not of integers.
    scales: Vec<Option<Scale>>,
}

/// What an integer of a vector is worth, and the sum of the magnitudes of its numbers.
#[derive(Clone, Copy)]
struct Scale {
    unit: f32,
    magnitude: f64,
}

/// Vectors whose sums are computed together.
#[derive(Clone, Copy)]
pub(super) struct IntegerRows<'a> {
    pairs: [&'a [[i16; 2]]; ROWS],
    scales: [Scale; ROWS],
}

impl IntegerVectors {
    /// Takes the vectors of `values` for a product with `matrix`.
    #[inline(always)]
    pub(super) fn fill(&mut self, matrix: &FixedMatrix, values: &[f32]) {
        let (size, pairs) = (matrix.size, matrix.size.div_ceil(2));
        self.scales.clear();
        self.pairs.resize(values.len() / size * pairs, [0; 2]);
        let mut last = 1.0;
        let rows = self.pairs.chunks_exact_mut(pairs);
        for (row, vector) in zip(rows, values.chunks_exact(size)) {
            let scale = integers_of(vector, matrix.most, row.flat_mut(), last);
            self.scales.push(scale);
            match scale {
                Some(scale) => last = scale.unit,
                // All vectors of a weight are of integers, or none.
                None if self.scales.len() == 1 => return,
                None => {}
            }
        }
    }

    /// The vectors from vector `first` on. The last one stands in place of those that are missing.
    /// `None` if not all are of integers.
    #[inline(always)]
    pub(super) fn rows_from(&self, first: usize) -> Option<IntegerRows<'_>> {
        let scales = self.scales.get(first..)?;
        let pairs = self.pairs.len() / self.scales.len().max(1);
        let mut rows =
            IntegerRows { pairs: [&[]; ROWS], scales: [Scale { unit: 0.0, magnitude: 0.0 }; ROWS] };
        for r in 0..ROWS {
            let at = r.min(scales.len().checked_sub(1)?);
            rows.scales[r] = scales[at]?;
            rows.pairs[r] = &self.pairs[(first + at) * pairs..][..pairs];
        }
        Some(rows)
    }
}

/// Makes integers up to `most` of a vector, if it has such. `last` is the scale of the vector
/// before, which is often the same.
#[inline(always)]
fn integers_of(vector: &[f32], most: f32, out: &mut [i16], last: f32) -> Option<Scale> {
    if let Some(scale) = multiples_of(last, vector, most, out) {
        return Some(scale);
    }
    let mut least = f32::MAX;
    for x in vector {
        let x = if *x == 0.0 { f32::MAX } else { x.abs() };
        least = if x < least { x } else { least };
    }
    for parts in 1..=MOST_PARTS {
        if let Some(scale) = multiples_of(least / f32::from(parts), vector, most, out) {
            return Some(scale);
        }
    }
    None
}

/// Makes of a vector its multiples of `unit`, if all are integers up to `most` and F32 has every
/// product of such an integer and `unit`.
#[inline(always)]
fn multiples_of(unit: f32, vector: &[f32], most: f32, out: &mut [i16]) -> Option<Scale> {
    /// A number of F32 whose last place is one: in a sum with it, the lowest bits are those of an
    /// integer.
    const ONES: f32 = (3 << 22) as f32;
    if !unit.to_bits().is_multiple_of(1 << INTEGER_BITS) {
        return None;
    }
    let inverse = 1.0 / unit;
    let (mut differ, mut sum) = (0, 0);
    for (&x, out) in zip(vector.iter(), out) {
        let rounded = x * inverse + ONES;
        let integer = rounded - ONES;
        differ |= u32::from(integer * unit != x) | u32::from(integer.abs() > most);
        *out = rounded.to_bits() as i16;
        sum += u32::from(out.unsigned_abs());
    }
    let magnitude = f64::from(unit) * f64::from(sum);
    (differ == 0).then_some(Scale { unit, magnitude })
}

/// A panel of a matrix in fixed point.
#[derive(Clone, Copy)]
pub(super) struct FixedPanel<'a> {
    matrix: &'a FixedMatrix,
    pairs: &'a [Pairs],
}

/// The sums with a half of each number, of [`PAIR_COLUMNS`] columns at a time.
type Sums<const UNITS: usize> = [[[i32; PAIR_COLUMNS]; UNITS]; ROWS];

impl FixedPanel<'_> {
    /// Writes the products of the vectors `rows` with the columns from column `first` of the panel
    /// on, times `factor`, to column `at` of rows of `out` and those behind it. Returns whether all
    /// are decided: none could be rounded to another value than the exact one.
    #[inline(always)]
    pub(super) fn write_products<E: Element, const UNITS: usize>(
        &self,
        rows: IntegerRows<'_>,
        first: usize,
        factor: f64,
        pairs: impl PairSums,
        (out, at): (&mut [E], usize),
    ) -> bool {
        let size = self.matrix.size;
        let high = self.sums::<0, UNITS>(rows, first, pairs);
        let low = self.sums::<1, UNITS>(rows, first, pairs);
        let mut are_decided = true;
        for (r, out) in out.chunks_exact_mut(size).take(ROWS).enumerate() {
            let scale = rows.scales[r];
            let place = f64::from(scale.unit) * self.matrix.place * factor;
            let off = (scale.magnitude * self.matrix.off * factor).abs();
            let columns = out[at..].chunks_mut(PAIR_COLUMNS);
            for ((out, high), low) in zip(zip(columns, &high[r]), &low[r]) {
                let mut bounds = [[0.0; PAIR_COLUMNS]; 2];
                for (i, (&high, &low)) in zip(high.iter(), low).enumerate() {
                    let sum = f64::from(high) * 65536.0 + f64::from(low);
                    let exact = sum * place;
                    // A sum of zeros is +0.
                    bounds[0][i] = (exact - off) as f32 + 0.0;
                    bounds[1][i] = (exact + off) as f32 + 0.0;
                }
                are_decided &= pairs.store_alike(bounds, out);
            }
        }
        are_decided
    }

    /// The sums of products with half `HALF` of each number.
    #[inline(always)]
    fn sums<const HALF: usize, const UNITS: usize>(
        &self,
        rows: IntegerRows<'_>,
        first: usize,
        pairs: impl PairSums,
    ) -> Sums<UNITS> {
        // Rows have names: LLVM keeps the sums of an array, which are read row by row later, in
        // memory.
        let [mut a, mut b, mut c, mut d] = [[[0; PAIR_COLUMNS]; UNITS]; ROWS];
        let [left_a, left_b, left_c, left_d] = rows.pairs;
        let left = zip(zip(left_a.iter(), left_b), zip(left_c.iter(), left_d));
        for (((&left_a, &left_b), (&left_c, &left_d)), right) in zip(left, self.pairs) {
            // The panel has whole units.
            let Some(right) = right.0[HALF][first / PAIR_COLUMNS..].first_chunk::<UNITS>() else {
                continue;
            };
            for i in 0..UNITS {
                a[i] = pairs.add_pairs(a[i], left_a, &right[i]);
                b[i] = pairs.add_pairs(b[i], left_b, &right[i]);
                c[i] = pairs.add_pairs(c[i], left_c, &right[i]);
                d[i] = pairs.add_pairs(d[i], left_d, &right[i]);
            }
        }
        [a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::simd::InMemory;

    const SIZE: usize = 48;

    /// The products of vectors with the first columns; `None` if they are not of integers or not
    /// decided.
    fn products(numbers: &[f64], values: &[f32]) -> Option<Vec<bf16>> {
        let matrix = FixedMatrix::new(numbers, SIZE)?;
        let mut integers = IntegerVectors::default();
        integers.fill(&matrix, values);
        let (rows, panel) = (integers.rows_from(0)?, matrix.panel(0)?);
        let mut out = vec![bf16::ZERO; ROWS * SIZE];
        panel
            .write_products::<_, 1>(rows, 0, 1.0, InMemory, (&mut out, 0))
            .then_some(out)
    }

    /// The first columns, which are computed.
    fn columns(products: &[bf16]) -> impl Iterator<Item = &[bf16]> {
        products.chunks(SIZE).map(|row| &row[..PAIR_COLUMNS])
    }

    fn numbers(number: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..SIZE * SIZE).map(number).collect()
    }

    fn vectors(value: impl Fn(usize) -> f32) -> Vec<f32> {
        (0..ROWS * SIZE).map(value).collect()
    }

    #[test]
    fn decided_products_are_rounded_sums() {
        let numbers = numbers(|n| f64::from((n as f32 * 0.7).sin()));
        let values = vectors(|n| 0.0123 * (n * 31 % 255) as f32 - 0.0123 * 127.0);
        // Not all are multiples in F32.
        assert!(products(&numbers, &values).is_none());
        let scale = bf16::from_f32(0.0123).to_f32();
        let values = vectors(|n| scale * ((n * 31 % 255) as f32 - 127.0));
        let rows = products(&numbers, &values).expect("all are decided");
        for (vector, row) in values.chunks(SIZE).zip(columns(&rows)) {
            for (j, &product) in row.iter().enumerate() {
                let terms = vector.iter().zip(numbers.iter().skip(j).step_by(SIZE));
                let sum: f64 = terms.map(|(&x, number)| f64::from(x) * number).sum();
                assert_eq!(product, bf16::from_f32(sum as f32));
            }
        }
    }

    #[test]
    fn ties_and_other_numbers_are_left() {
        // F32 has 257, which BF16 rounds to 256. A little more than halfway to the next number of
        // F32 is rounded to 258.
        let two = numbers(|n| match n / SIZE {
            0 => 1.0,
            1 => (-16f64).exp2(),
            _ => 0.0,
        });
        let vector = |second: f32| {
            vectors(move |n| match n % SIZE {
                0 => 257.0,
                1 => second,
                _ => 1.0,
            })
        };
        let rounded = products(&two, &vector(0.0)).expect("all are decided");
        assert!(
            columns(&rounded)
                .flatten()
                .all(|&x| x == bf16::from_f32(256.0))
        );
        assert_eq!(products(&two, &vector(1.0)), None);
        for other in [f32::NAN, f32::INFINITY, 0.3, 1e30] {
            let values = vectors(|n| if n == 2 * SIZE + 5 { other } else { 1.0 });
            assert_eq!(products(&two, &values), None, "{other}");
        }
        for number in [0.0, 1e-250, 1e250] {
            assert!(FixedMatrix::new(&[number; SIZE * SIZE], SIZE).is_none());
        }
        // An integer more than sums can hold.
        let most = (1 << INTEGER_BITS) - 1;
        let large = |most: i32| vectors(|n| if n % SIZE == 7 { most as f32 } else { 1.0 });
        assert!(products(&two, &large(most)).is_some());
        assert!(products(&two, &large(most + 1)).is_none());
    }

    #[test]
    fn sums_of_the_largest_halves_fit() {
        let most = ((1 << INTEGER_BITS) - 1) as f32;
        for sign in [1.0, -1.0] {
            let alike = numbers(|_| sign * (1.0 - 1e-9));
            let values = vectors(|n| if n % SIZE == 0 { most } else { most - 1.0 });
            let rows = products(&alike, &values).expect("all are decided");
            let sum = sign as f32 * (most + (SIZE - 1) as f32 * (most - 1.0)) * (1.0 - 1e-9);
            assert!(columns(&rows).flatten().all(|&x| x == bf16::from_f32(sum)));
        }
    }
}
