//! Blocks of columns or rows that are multiplied with a matrix, in F64.

mod columns;
pub(crate) mod dense;
#[cfg(test)]
mod tests;

pub(crate) use self::columns::TransformedColumns;
use self::dense::DenseMatrix;

use super::hadamard::{butterflies, butterfly_rows};
use super::matrix_product::{MatrixProduct, pack_columns, pack_rows};
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Butterflies, InMemory, Level, Routine, copy, perform, zip};

/// What the vectors of a block are multiplied with: `x[j]` becomes the sum over i of `x[i] *
/// m[i][j]`, times a factor.
#[derive(Debug)]
pub(crate) enum BlockMatrix {
    /// The Kronecker power of `[[1,1],[1,-1]]`, of a power of two of rows.
    Sylvester,
    /// Its rows times these numbers, 1 or -1: it is not symmetric.
    SignedRows(Vec<f64>),
    /// Its columns times these numbers.
    SignedColumns(Vec<f64>),
    Dense(DenseMatrix),
}

impl BlockMatrix {
    /// Whether all of its numbers are those of F32.
    fn is_single(&self) -> bool {
        match self {
            Self::Dense(matrix) => matrix.is_single,
            _ => true,
        }
    }
}

/// What one dimension of a weight is multiplied with.
#[derive(Clone)]
pub(crate) struct BlockProduct<'a> {
    pub matrix: &'a BlockMatrix,
    /// Columns, or rows, of a block.
    pub size: usize,
    pub factor: f64,
}

/// Rows that are multiplied in blocks, after their columns or alone. Products are rounded once.
pub(crate) struct TransformedRows<'a> {
    /// Rows of `width` values: whole blocks.
    pub values: &'a mut [f32],
    pub width: usize,
    pub columns: Option<BlockProduct<'a>>,
    pub rows: BlockProduct<'a>,
    /// Scratch.
    pub exact: &'a mut Vec<f64>,
}

/// Columns of a block of rows that are multiplied at once: two lines of the cache of F32.
const LANES: usize = 32;

impl TransformedRows<'_> {
    /// Multiplies the values.
    pub(crate) fn multiply(&mut self, level: Level) {
        let width = self.width.max(1);
        let mut scratch = Scratch::default();
        for values in self.values.chunks_mut((self.rows.size * width).max(1)) {
            if self.columns.is_none() && !matches!(self.rows.matrix, BlockMatrix::Dense(_)) {
                perform(level, &mut Panels { product: &self.rows, values, width });
                continue;
            }
            self.exact.resize(values.len(), 0.0);
            for (exact, &value) in zip(&mut self.exact[..], &*values) {
                *exact = f64::from(value);
            }
            if let Some(columns) = &self.columns {
                columns.multiply_columns(self.exact, level, &mut scratch);
            }
            let (exact, is_single) = (&mut *self.exact, self.columns.is_none());
            self.rows
                .multiply_rows((exact, width), is_single, level, &mut scratch);
            for (value, exact) in zip(&mut values[..], &*self.exact) {
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
    fn multiply_columns(&self, values: &mut [f64], level: Level, scratch: &mut Scratch) {
        if let BlockMatrix::Dense(matrix) = self.matrix {
            let Scratch { left, sums } = scratch;
            pack_rows(values, 1.0, self.size, left);
            sums.clear();
            sums.resize(values.len(), 0.0);
            let mut product = MatrixProduct {
                left,
                right: &matrix.numbers[..],
                depth: self.size,
                width: self.size,
                is_exact: matrix.is_single,
                sums,
            };
            product.add_at(level);
            copy(sums, values);
        } else {
            perform(level, &mut Blocks { product: self, values });
        }
        values.iter_mut().for_each(|x| *x *= self.factor);
    }

    /// Multiplies each block of columns by a Hadamard matrix, without the factor.
    #[inline(always)]
    fn multiply_by_hadamard(&self, values: &mut [f64], by: impl Butterflies) {
        if let BlockMatrix::SignedRows(signs) = self.matrix {
            scale(values, signs);
        }
        butterflies(by, values, self.size);
        if let BlockMatrix::SignedColumns(signs) = self.matrix {
            scale(values, signs);
        }
    }

    /// Multiplies a block of rows of `width` values, which are those of F32 if `is_single`.
    fn multiply_rows(
        &self,
        (values, width): (&mut [f64], usize),
        is_single: bool,
        level: Level,
        scratch: &mut Scratch,
    ) {
        if let BlockMatrix::Dense(matrix) = self.matrix {
            let Scratch { left, sums } = scratch;
            pack_columns(&matrix.numbers, self.size, left);
            sums.clear();
            sums.resize(values.len(), 0.0);
            let mut product = MatrixProduct {
                left,
                right: &*values,
                depth: self.size,
                width,
                is_exact: is_single && self.matrix.is_single(),
                sums,
            };
            product.add_at(level);
            for (value, sum) in zip(&mut values[..], &*sums) {
                *value = sum * self.factor;
            }
            return;
        }
        perform(level, &mut Panels { product: self, values, width });
    }

    /// Multiplies a block of rows of `width` values by a Hadamard matrix, some columns at a time.
    #[inline(always)]
    fn multiply_panels<T: Exact>(&self, values: &mut [T], width: usize) {
        let mut panel = vec![[0.0; LANES]; self.size];
        for first in (0..width).step_by(LANES) {
            for (panel, line) in zip(&mut panel[..], values.chunks_exact(width)) {
                match line[first..].first_chunk() {
                    Some(whole) => *panel = widened(*whole),
                    None => each_into(&line[first..], panel, T::widen),
                }
            }
            self.multiply_panel(&mut panel);
            for (panel, line) in zip(panel.iter(), values.chunks_exact_mut(width)) {
                match line[first..].first_chunk_mut() {
                    Some(whole) => *whole = narrowed(panel, self.factor),
                    None => each_into(panel, &mut line[first..], |x| T::narrow(x * self.factor)),
                }
            }
        }
    }

    /// Multiplies some columns of a block of rows by a Hadamard matrix, without the factor.
    #[inline(always)]
    fn multiply_panel(&self, panel: &mut [[f64; LANES]]) {
        if let BlockMatrix::SignedRows(signs) = self.matrix {
            scale_rows(panel, signs);
        }
        butterfly_rows(panel, self.size);
        if let BlockMatrix::SignedColumns(signs) = self.matrix {
            scale_rows(panel, signs);
        }
    }
}

/// A block of rows of `width` values, which a Hadamard matrix multiplies.
struct Panels<'a, T> {
    product: &'a BlockProduct<'a>,
    values: &'a mut [T],
    width: usize,
}

impl<T: Exact> Routine for Panels<'_, T> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.product.multiply_panels(self.values, self.width);
    }
}

/// Blocks of columns, which a Hadamard matrix multiplies without the factor.
struct Blocks<'a> {
    product: &'a BlockProduct<'a>,
    values: &'a mut [f64],
}

impl Routine for Blocks<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.product.multiply_by_hadamard(self.values, InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.product.multiply_by_hadamard(self.values, avx2);
    }
}

/// Values that are multiplied in F64.
trait Exact: Copy {
    const ZERO: Self;

    fn widen(self) -> f64;
    fn narrow(x: f64) -> Self;
}

impl Exact for f64 {
    const ZERO: Self = 0.0;

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
    const ZERO: Self = 0.0;

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

/// The numbers of a row of a panel. A loop over an array: LLVM would take several rows together.
#[inline(always)]
fn widened<T: Exact>(line: [T; LANES]) -> [f64; LANES] {
    let mut out = [0.0; LANES];
    for (out, x) in zip(&mut out[..], line) {
        *out = x.widen();
    }
    out
}

/// The reverse of [`widened`], of products.
#[inline(always)]
fn narrowed<T: Exact>(line: &[f64; LANES], factor: f64) -> [T; LANES] {
    let mut out = [T::ZERO; LANES];
    for (out, x) in zip(&mut out[..], line) {
        *out = T::narrow(x * factor);
    }
    out
}

#[inline(always)]
fn each_into<T: Copy, U>(from: &[T], to: &mut [U], change: impl Fn(T) -> U) {
    for (to, &from) in zip(&mut to[..], from) {
        *to = change(from);
    }
}

/// Multiplies number i of each block by number i.
#[inline(always)]
fn scale(values: &mut [f64], numbers: &[f64]) {
    for block in values.chunks_exact_mut(numbers.len().max(1)) {
        for (x, number) in zip(&mut block[..], numbers) {
            *x *= number;
        }
    }
}

/// Multiplies row i by number i.
#[inline(always)]
fn scale_rows(rows: &mut [[f64; LANES]], numbers: &[f64]) {
    for (row, number) in zip(&mut rows[..], numbers) {
        row.iter_mut().for_each(|x| *x *= number);
    }
}
