//! Vectors times a matrix without structure. Each sum has its terms in their order, in F64.

use crate::element::Element;
use crate::remember::kernels::matrix_product::{COLS, MulAdd, PANEL, ROWS, Rounded, WIDE_COLS};
use crate::simd::zip;

/// Vectors that are multiplied with each panel in turn. Those of 128 numbers stay in the
/// second-level cache.
const STRIP: usize = 128;

/// A row of a panel. A vector register that is loaded from two lines of the cache takes twice the
/// time.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct PanelRow([f64; PANEL]);

/// A matrix without structure.
#[derive(Debug)]
pub(crate) struct DenseMatrix {
    size: usize,
    /// Row by row.
    pub numbers: Vec<f64>,
    /// Whether all numbers are those of F32. Then F64 holds their products with such numbers.
    pub is_single: bool,
    /// All rows of the first [`PANEL`] columns, then those of the next. There are zeros behind the
    /// last column.
    panels: Vec<PanelRow>,
}

impl DenseMatrix {
    /// The matrix of `size` rows.
    pub(crate) fn new(numbers: Vec<f64>, size: usize) -> Self {
        let mut panels = Vec::with_capacity(size.div_ceil(PANEL) * size);
        for first in (0..size).step_by(PANEL) {
            for row in numbers.chunks_exact(size) {
                let mut out = PanelRow([0.0; PANEL]);
                for (out, &x) in zip(&mut out.0, &row[first..]) {
                    *out = x;
                }
                panels.push(out);
            }
        }
        Self { size, is_single: numbers.iter().all(|&x| f64::from(x as f32) == x), numbers, panels }
    }

    /// Writes the products of vectors, times `factor`. They are rounded to F32, and then to the
    /// type of the output. `unit` adds exact products.
    #[inline(always)]
    pub(super) fn multiply<E: Element, U: MulAdd>(
        &self,
        values: &[f32],
        factor: f64,
        unit: U,
        out: &mut [E],
    ) {
        let product = Product { matrix: self, factor, unit };
        match (self.is_single, U::HAS_WIDE_TILES) {
            (true, true) => product.write::<E, WIDE_COLS>(values, out),
            (true, false) => product.write::<E, COLS>(values, out),
            (false, _) => {
                let product = Product { matrix: self, factor, unit: Rounded };
                product.write::<E, COLS>(values, out);
            }
        }
    }
}

/// A product with a matrix.
#[derive(Clone, Copy)]
struct Product<'a, U> {
    matrix: &'a DenseMatrix,
    factor: f64,
    unit: U,
}

impl<U: MulAdd> Product<'_, U> {
    /// Writes the products of vectors. The sums of `COLS` columns are computed at once.
    #[inline(always)]
    fn write<E: Element, const COLS: usize>(self, values: &[f32], out: &mut [E]) {
        let size = self.matrix.size;
        for (values, out) in zip(values.chunks(STRIP * size), out.chunks_mut(STRIP * size)) {
            let panels = self.matrix.panels.chunks_exact(size);
            for (first, panel) in zip((0..size).step_by(PANEL), panels) {
                for (vectors, out) in zip(values.chunks(ROWS * size), out.chunks_mut(ROWS * size)) {
                    let vectors = of_tile(vectors, size);
                    for at in (first..size.min(first + PANEL)).step_by(COLS) {
                        self.write_exact::<E, COLS>(vectors, (panel, at - first), (out, at));
                    }
                }
            }
        }
    }

    /// Writes the products of vectors with `COLS` columns of a panel.
    #[inline(always)]
    fn write_exact<E: Element, const COLS: usize>(
        self,
        vectors: [&[f32]; ROWS],
        (panel, from): (&[PanelRow], usize),
        (out, first): (&mut [E], usize),
    ) {
        let sums = sums_of::<COLS>(self.unit, vectors, panel, from);
        for (sums, out) in zip(sums.iter(), out.chunks_exact_mut(self.matrix.size)) {
            let mut row = [E::from_f32(0.0); COLS];
            for (out, &sum) in zip(&mut row[..], sums) {
                // A sum of zeros is +0.
                *out = E::from_f32((sum * self.factor) as f32 + 0.0);
            }
            store(&row, &mut out[first..]);
        }
    }
}

/// The vectors of a tile. The last one stands in place of those that are missing.
#[inline(always)]
fn of_tile(values: &[f32], size: usize) -> [&[f32]; ROWS] {
    let count = values.len() / size;
    let mut vectors = [values; ROWS];
    for (r, vector) in vectors.iter_mut().enumerate() {
        *vector = &values[r.min(count - 1) * size..][..size];
    }
    vectors
}

/// The sums of vectors and of `COLS` columns of a panel, from `first` on. Numbers are widened as
/// they are used: to pack them before takes a tenth of the time of all sums.
#[inline(always)]
fn sums_of<const COLS: usize>(
    unit: impl MulAdd,
    [a, b, c, d]: [&[f32]; ROWS],
    panel: &[PanelRow],
    first: usize,
) -> [[f64; COLS]; ROWS] {
    let mut sums = [[0.0; COLS]; ROWS];
    let pairs = zip(zip(a.iter(), b), zip(c.iter(), d));
    for (((&a, &b), (&c, &d)), right) in zip(pairs, panel) {
        let right = &right.0[first..][..COLS];
        for (sums, left) in zip(&mut sums[..], [a, b, c, d]) {
            let left = f64::from(left);
            for (sum, &right) in zip(&mut sums[..], right) {
                *sum = unit.mul_add(left, right, *sum);
            }
        }
    }
    sums
}

/// Writes a row of a tile into `out`, which is shorter at the right edge of the matrix.
#[inline(always)]
fn store<E: Copy, const COLS: usize>(row: &[E; COLS], out: &mut [E]) {
    match out.first_chunk_mut() {
        Some(out) => *out = *row,
        None => {
            for (out, &value) in zip(&mut out[..], row) {
                *out = value;
            }
        }
    }
}
