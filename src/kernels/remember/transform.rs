//! Blocks of columns or rows that are multiplied with a matrix, in F64.

use super::hadamard::{butterflies, butterfly_rows};
use super::matrix_product::{MatrixProduct, MulAdd, Rounded, pack_columns, pack_rows};
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Butterflies, InMemory, Routine};

/// What the vectors of a block are multiplied with: `x[j]` becomes the sum over i of `x[i] * m[i][j]`, times a factor.
pub(crate) enum BlockMatrix {
    /// The Kronecker power of `[[1,1],[1,-1]]`, of a power of two of rows.
    Sylvester,
    /// Its rows times these numbers, 1 or -1: it is not symmetric.
    SignedRows(Vec<f64>),
    /// Its columns times these numbers.
    SignedColumns(Vec<f64>),
    /// Row-major.
    Dense(Vec<f64>),
}

impl BlockMatrix {
    /// Whether all of its numbers are those of F32.
    fn is_single(&self) -> bool {
        match self {
            Self::Dense(numbers) => numbers.iter().all(|&x| f64::from(x as f32) == x),
            _ => true,
        }
    }
}

/// What one dimension of a weight is multiplied with.
pub(crate) struct BlockProduct<'a> {
    pub matrix: &'a BlockMatrix,
    /// Columns, or rows, of a block.
    pub size: usize,
    pub factor: f64,
}

/// Rows whose columns, or which themselves, or both are multiplied in blocks. Products are rounded once.
pub(crate) struct TransformedRows<'a> {
    /// Rows of `width` values: whole blocks.
    pub values: &'a mut [f32],
    pub width: usize,
    pub columns: Option<BlockProduct<'a>>,
    pub rows: Option<BlockProduct<'a>>,
    /// Scratch.
    pub exact: &'a mut Vec<f64>,
}

impl Routine for TransformedRows<'_> {
    #[inline(always)]
    fn run(&mut self) {
        self.multiply(Rounded, InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.multiply(avx2, avx2);
    }
}

/// Values that are multiplied at once, unless a block of rows has more: in F64 they stay in the cache.
const STRIP: usize = 4096;

/// Columns of a block of rows that are multiplied at once.
const LANES: usize = 16;

impl TransformedRows<'_> {
    #[inline(always)]
    fn multiply(&mut self, unit: impl MulAdd, by: impl Butterflies) {
        let width = self.width.max(1);
        let height = match &self.rows {
            Some(rows) => rows.size,
            None => (STRIP / width).max(1),
        };
        let mut scratch = Scratch::default();
        for values in self.values.chunks_mut((height * width).max(1)) {
            if let (None, Some(rows)) = (&self.columns, &self.rows)
                && !matches!(rows.matrix, BlockMatrix::Dense(_))
            {
                rows.multiply_panels(values, width);
                continue;
            }
            self.exact.resize(values.len(), 0.0);
            for (exact, &value) in self.exact.iter_mut().zip(&*values) {
                *exact = f64::from(value);
            }
            let mut is_single = true;
            if let Some(columns) = &self.columns {
                columns.multiply_columns(self.exact, (unit, by), &mut scratch);
                is_single = false;
            }
            if let Some(rows) = &self.rows {
                rows.multiply_rows((self.exact, width), is_single, unit, &mut scratch);
            }
            for (value, exact) in values.iter_mut().zip(&*self.exact) {
                // A sum of zeros is +0.
                *value = *exact as f32 + 0.0;
            }
        }
    }
}

/// Buffers of products with a dense matrix.
#[derive(Default)]
struct Scratch {
    left: Vec<[f64; 4]>,
    sums: Vec<f64>,
}

impl BlockProduct<'_> {
    /// Multiplies each block of columns, which follow each other. The values are those of F32.
    #[inline(always)]
    fn multiply_columns(
        &self,
        values: &mut [f64],
        (unit, by): (impl MulAdd, impl Butterflies),
        scratch: &mut Scratch,
    ) {
        match self.matrix {
            BlockMatrix::Sylvester => butterflies(by, values, self.size),
            BlockMatrix::SignedRows(signs) => {
                scale(values, signs);
                butterflies(by, values, self.size);
            }
            BlockMatrix::SignedColumns(signs) => {
                butterflies(by, values, self.size);
                scale(values, signs);
            }
            BlockMatrix::Dense(matrix) => {
                let Scratch { left, sums } = scratch;
                pack_rows(values, 1.0, self.size, left);
                sums.clear();
                sums.resize(values.len(), 0.0);
                MatrixProduct {
                    left,
                    right: matrix,
                    depth: self.size,
                    width: self.size,
                    is_exact: self.matrix.is_single(),
                    sums,
                }
                .add(unit);
                values.copy_from_slice(sums);
            }
        }
        values.iter_mut().for_each(|x| *x *= self.factor);
    }

    /// Multiplies a block of rows of `width` values, which are those of F32 if `is_single`.
    #[inline(always)]
    fn multiply_rows(
        &self,
        (values, width): (&mut [f64], usize),
        is_single: bool,
        unit: impl MulAdd,
        scratch: &mut Scratch,
    ) {
        if let BlockMatrix::Dense(matrix) = self.matrix {
            let Scratch { left, sums } = scratch;
            pack_columns(matrix, self.size, left);
            sums.clear();
            sums.resize(values.len(), 0.0);
            MatrixProduct {
                left,
                right: values,
                depth: self.size,
                width,
                is_exact: is_single && self.matrix.is_single(),
                sums,
            }
            .add(unit);
            for (value, sum) in values.iter_mut().zip(&*sums) {
                *value = sum * self.factor;
            }
            return;
        }
        self.multiply_panels(values, width);
    }

    /// Multiplies a block of rows of `width` values by a Hadamard matrix, some columns at a time.
    #[inline(always)]
    fn multiply_panels<T: Exact>(&self, values: &mut [T], width: usize) {
        let mut panel = vec![[0.0; LANES]; self.size];
        for first in (0..width).step_by(LANES) {
            for (panel, line) in panel.iter_mut().zip(values.chunks_exact(width)) {
                match line[first..].first_chunk::<LANES>() {
                    Some(whole) => copy(whole, panel, T::widen),
                    None => copy(&line[first..], panel, T::widen),
                }
            }
            self.multiply_panel(&mut panel);
            for (panel, line) in panel.iter().zip(values.chunks_exact_mut(width)) {
                match line[first..].first_chunk_mut::<LANES>() {
                    Some(whole) => copy(panel, whole, T::narrow),
                    None => copy(panel, &mut line[first..], T::narrow),
                }
            }
        }
    }

    /// Multiplies some columns of a block of rows by a Hadamard matrix.
    #[inline(always)]
    fn multiply_panel(&self, panel: &mut [[f64; LANES]]) {
        if let BlockMatrix::SignedRows(signs) = self.matrix {
            scale_rows(panel, signs);
        }
        butterfly_rows(panel, self.size);
        if let BlockMatrix::SignedColumns(signs) = self.matrix {
            scale_rows(panel, signs);
        }
        for row in panel {
            row.iter_mut().for_each(|x| *x *= self.factor);
        }
    }
}

/// Values that are multiplied in F64.
trait Exact: Copy {
    fn widen(self) -> f64;
    fn narrow(x: f64) -> Self;
}

impl Exact for f64 {
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }

    #[inline(always)]
    fn narrow(x: f64) -> Self {
        x
    }
}

impl Exact for f32 {
    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self)
    }

    /// A sum of zeros is +0.
    #[inline(always)]
    fn narrow(x: f64) -> Self {
        x as f32 + 0.0
    }
}

#[inline(always)]
fn copy<T: Copy, U>(from: &[T], to: &mut [U], change: impl Fn(T) -> U) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = change(from);
    }
}

/// Multiplies number i of each block by number i.
#[inline(always)]
fn scale(values: &mut [f64], numbers: &[f64]) {
    for block in values.chunks_exact_mut(numbers.len().max(1)) {
        for (x, number) in block.iter_mut().zip(numbers) {
            *x *= number;
        }
    }
}

/// Multiplies row i by number i.
#[inline(always)]
fn scale_rows(rows: &mut [[f64; LANES]], numbers: &[f64]) {
    for (row, number) in rows.iter_mut().zip(numbers) {
        row.iter_mut().for_each(|x| *x *= number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, perform};

    type Entry<'a> = Box<dyn Fn(usize, usize) -> f64 + 'a>;

    /// Value `j` of a block of `size` vectors: the sum in the order of the vectors, or of the steps if the matrix has no numbers.
    fn sum(values: &[f64], j: usize, entry: &Entry<'_>) -> f64 {
        let terms = values.iter().enumerate();
        terms.fold(0.0, |sum, (i, x)| sum + x * entry(i, j))
    }

    /// Every matrix multiplies columns, rows, and both, as its entries say, at every level.
    #[test]
    fn multiplies_as_its_entries_say() {
        for size in [2, 4, 8, 16, 32, 64] {
            let hadamard = |i: usize, j: usize| 1.0 - 2.0 * f64::from((i & j).count_ones() % 2);
            let sign = |i: usize| if i % 3 == 1 { -1.0 } else { 1.0 };
            let signs: Vec<f64> = (0..size).map(sign).collect();
            let dense = |i: usize, j: usize| (i * 11 + j * 5) as f64 - 30.0;
            let all = |entry: fn(usize, usize) -> f64| {
                let rows = (0..size).flat_map(|i| (0..size).map(move |j| entry(i, j)));
                BlockMatrix::Dense(rows.collect())
            };
            let cases: [(BlockMatrix, Entry<'_>); 4] = [
                (BlockMatrix::Sylvester, Box::new(hadamard)),
                (
                    BlockMatrix::SignedRows(signs.clone()),
                    Box::new(|i, j| sign(i) * hadamard(i, j)),
                ),
                (
                    BlockMatrix::SignedColumns(signs.clone()),
                    Box::new(|i, j| sign(j) * hadamard(i, j)),
                ),
                (all(|i, j| (i * 11 + j * 5) as f64 - 30.0), Box::new(dense)),
            ];
            for (matrix, entry) in &cases {
                for width in [size, 3 * size] {
                    check(matrix, entry, size, width);
                }
            }
        }
    }

    /// Integers, whose sums are exact in any order.
    fn check(matrix: &BlockMatrix, entry: &Entry<'_>, size: usize, width: usize) {
        let factor = 0.5;
        let product = || BlockProduct {
            matrix,
            size,
            factor,
        };
        let values: Vec<f32> = (0..2 * size * width)
            .map(|n| (n * n % 17) as f32 - 4.0)
            .collect();
        let exact: Vec<f64> = values.iter().copied().map(f64::from).collect();
        let of_columns: Vec<f64> = (0..values.len())
            .map(|n| {
                let first = n / size * size;
                factor * sum(&exact[first..first + size], n - first, entry)
            })
            .collect();
        let of_rows = |values: &[f64]| -> Vec<f64> {
            let value = |n: usize| {
                let (r, c) = (n / width, n % width);
                let first = r / size * size;
                let column = (first..first + size).map(|i| values[i * width + c]);
                factor * sum(&column.collect::<Vec<_>>(), r - first, entry)
            };
            (0..values.len()).map(value).collect()
        };
        for (columns, rows) in [(true, false), (false, true), (true, true)] {
            let want = match (columns, rows) {
                (true, false) => of_columns.clone(),
                (false, _) => of_rows(&exact),
                _ => of_rows(&of_columns),
            };
            let want: Vec<u32> = want.iter().map(|&x| (x as f32 + 0.0).to_bits()).collect();
            for level in Level::available() {
                let mut got = values.clone();
                let mut routine = TransformedRows {
                    values: &mut got,
                    width,
                    columns: columns.then(product),
                    rows: rows.then(product),
                    exact: &mut Vec::new(),
                };
                perform(level, &mut routine);
                let got: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
                assert_eq!(got, want, "{level:?}, {size} of {width}");
            }
        }
    }

    /// Sums that are rounded have their terms in order, and products of F64 are rounded, at every level.
    #[test]
    fn rounded_sums() {
        let (size, width) = (12, 24);
        let number = |n: usize| (n * 7919 % 1013) as f64 / 997.0 - 0.4;
        let values: Vec<f32> = (0..size * width).map(|n| number(n) as f32).collect();
        for is_single in [false, true] {
            let narrow = |x: f64| if is_single { f64::from(x as f32) } else { x };
            let numbers = (5..5 + size * size).map(number).map(narrow).collect();
            let matrix = BlockMatrix::Dense(numbers);
            let product = || BlockProduct {
                matrix: &matrix,
                size,
                factor: 0.3,
            };
            let BlockMatrix::Dense(numbers) = &matrix else {
                continue;
            };
            let entry: Entry<'_> = Box::new(|i, j| numbers[i * size + j]);
            let exact: Vec<f64> = values.iter().copied().map(f64::from).collect();
            let first: Vec<f64> = (0..values.len())
                .map(|n| {
                    let at = n / size * size;
                    sum(&exact[at..at + size], n - at, &entry) * 0.3
                })
                .collect();
            let want: Vec<f32> = (0..values.len())
                .map(|n| {
                    let column = (0..size).map(|i| first[i * width + n % width]);
                    let sum = sum(&column.collect::<Vec<_>>(), n / width, &entry);
                    (sum * 0.3) as f32
                })
                .collect();
            for level in Level::available() {
                let mut got = values.clone();
                let mut routine = TransformedRows {
                    values: &mut got,
                    width,
                    columns: Some(product()),
                    rows: Some(product()),
                    exact: &mut Vec::new(),
                };
                perform(level, &mut routine);
                assert_eq!(got, want, "{level:?}");
            }
        }
    }
}
