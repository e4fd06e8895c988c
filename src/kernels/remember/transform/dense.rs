//! Vectors times a matrix without structure. Each sum has its terms in their order, in F64.

use crate::element::Element;
use crate::kernels::remember::matrix_product::{COLS, MulAdd, PANEL, ROWS, Rounded, WIDE_COLS};

/// Vectors that are multiplied with each panel in turn. Those of 128 numbers stay in the second-level cache.
const STRIP: usize = 128;

/// A row of a panel. A vector register that is loaded from two lines of the cache takes twice the time.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct PanelRow([f64; PANEL]);

/// A matrix without structure.
pub(crate) struct DenseMatrix {
    size: usize,
    /// Row by row.
    pub numbers: Vec<f64>,
    /// Whether all numbers are those of F32. Then F64 holds their products with such numbers.
    pub is_single: bool,
    /// All rows of the first [`PANEL`] columns, then those of the next. There are zeros behind the last column.
    panels: Vec<PanelRow>,
}

impl DenseMatrix {
    /// The matrix of `size` rows.
    pub(crate) fn new(numbers: Vec<f64>, size: usize) -> Self {
        let mut panels = Vec::with_capacity(size.div_ceil(PANEL) * size);
        for first in (0..size).step_by(PANEL) {
            for row in numbers.chunks_exact(size) {
                let mut out = PanelRow([0.0; PANEL]);
                for (out, &x) in out.0.iter_mut().zip(&row[first..]) {
                    *out = x;
                }
                panels.push(out);
            }
        }
        Self {
            size,
            is_single: numbers.iter().all(|&x| f64::from(x as f32) == x),
            numbers,
            panels,
        }
    }

    /// Writes the products of vectors, times `factor`. They are rounded to F32, and then to the type of the output. `unit` adds
    /// exact products.
    #[inline(always)]
    pub(super) fn multiply<E: Element, U: MulAdd>(
        &self,
        values: &[f32],
        factor: f64,
        unit: U,
        out: &mut [E],
    ) {
        let strip = (STRIP * self.size).max(1);
        for (values, out) in values.chunks(strip).zip(out.chunks_mut(strip)) {
            match (self.is_single, U::HAS_WIDE_TILES) {
                (true, true) => self.multiply_strip::<E, WIDE_COLS>(values, factor, unit, out),
                (true, false) => self.multiply_strip::<E, COLS>(values, factor, unit, out),
                (false, _) => self.multiply_strip::<E, COLS>(values, factor, Rounded, out),
            }
        }
    }

    /// Writes the products of some vectors, of which the sums of `COLS` columns are computed at once.
    #[inline(always)]
    fn multiply_strip<E: Element, const COLS: usize>(
        &self,
        values: &[f32],
        factor: f64,
        unit: impl MulAdd,
        out: &mut [E],
    ) {
        let size = self.size;
        let panels = self.panels.chunks_exact(size);
        for (first, panel) in (0..size).step_by(PANEL).zip(panels) {
            let vectors = values.chunks(ROWS * size);
            for (vectors, out) in vectors.zip(out.chunks_mut(ROWS * size)) {
                let vectors = of_tile(vectors, size);
                for from in (0..PANEL.min(size - first)).step_by(COLS) {
                    let sums = tile::<COLS>(unit, vectors, panel, from);
                    for (sums, out) in sums.iter().zip(out.chunks_exact_mut(size)) {
                        let mut row = [E::from_f32(0.0); COLS];
                        for (out, &sum) in row.iter_mut().zip(sums) {
                            // A sum of zeros is +0.
                            *out = E::from_f32((sum * factor) as f32 + 0.0);
                        }
                        store(&row, &mut out[first + from..]);
                    }
                }
            }
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

/// The sums of vectors and of `COLS` columns of a panel, from `first` on. Numbers are widened as they are used: to pack them before
/// takes a tenth of the time of all sums.
#[inline(always)]
fn tile<const COLS: usize>(
    unit: impl MulAdd,
    [a, b, c, d]: [&[f32]; ROWS],
    panel: &[PanelRow],
    first: usize,
) -> [[f64; COLS]; ROWS] {
    let mut sums = [[0.0; COLS]; ROWS];
    let pairs = a.iter().zip(b).zip(c.iter().zip(d));
    for (((&a, &b), (&c, &d)), right) in pairs.zip(panel) {
        let right = &right.0[first..][..COLS];
        for (sums, left) in sums.iter_mut().zip([a, b, c, d]) {
            let left = f64::from(left);
            for (sum, &right) in sums.iter_mut().zip(right) {
                *sum = unit.mul_add(left, right, *sum);
            }
        }
    }
    sums
}

/// Writes the values of a tile's row of which there is a column.
#[inline(always)]
fn store<E: Copy, const COLS: usize>(row: &[E; COLS], out: &mut [E]) {
    match out.first_chunk_mut() {
        Some(out) => *out = *row,
        None => {
            for (out, &value) in out.iter_mut().zip(row) {
                *out = value;
            }
        }
    }
}
