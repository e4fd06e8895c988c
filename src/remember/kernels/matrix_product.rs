//! Products of matrices, in F64. Each sum has its terms in their order, whatever is computed side
//! by side.
//!
//! Four rows and eight columns of sums are computed at once: they fill half of the registers of
//! AVX2, and every number that is loaded is used four or eight times; with AVX-512 there are twice
//! as many columns. What is read in the inner loop is packed before, so that it lies together.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Level, Routine, perform, zip};

/// Rows of sums that are computed at once.
pub(super) const ROWS: usize = 4;

/// Columns of sums that are computed at once.
pub(super) const COLS: usize = 8;

/// [`COLS`] at [`Level::Avx512`](crate::simd::Level::Avx512).
pub(super) const WIDE_COLS: usize = 16;

/// Columns of a right matrix that is kept in panels: those whose sums are computed one after
/// another for the same rows. Their values fill at least a line of the cache.
pub(crate) const PANEL: usize = 32;

/// Numbers of the right matrix that are packed together: 32 KiB. So the sums of a row that follow
/// each other are visited one after the other, and the rows, whose distance is often a power of
/// two, do not push each other out of the cache.
const PACKED: usize = 4096;

/// Adds the product of two matrices to sums.
pub(crate) struct MatrixProduct<'a, T> {
    /// The left matrix, in the order of [`pack_rows`] or [`pack_columns`].
    pub left: &'a [[f64; ROWS]],
    /// The right matrix: `depth` rows of `width` numbers.
    pub right: &'a [T],
    pub depth: usize,
    pub width: usize,
    /// Whether F64 holds each product of two numbers, as it holds those of two F32. Then it makes
    /// no difference whether a product is rounded before it is added.
    pub is_exact: bool,
    /// Rows of `width` sums.
    pub sums: &'a mut [f64],
}

/// Packs rows of `depth` numbers, times `scale`, as a left matrix.
#[inline(always)]
pub(crate) fn pack_rows<T: Copy + Into<f64>>(
    rows: &[T],
    scale: f64,
    depth: usize,
    out: &mut Vec<[f64; ROWS]>,
) {
    out.clear();
    if depth == 0 {
        return;
    }
    out.resize(rows.len().div_ceil(ROWS * depth) * depth, [0.0; ROWS]);
    for (packed, rows) in zip(out.chunks_exact_mut(depth), rows.chunks(ROWS * depth)) {
        for (r, row) in rows.chunks_exact(depth).enumerate() {
            for (packed, &x) in zip(&mut packed[..], row) {
                packed[r] = x.into() * scale;
            }
        }
    }
}

/// Packs the transpose of rows of `count` numbers as a left matrix.
#[inline(always)]
pub(crate) fn pack_columns(rows: &[f64], count: usize, out: &mut Vec<[f64; ROWS]>) {
    out.clear();
    for first in (0..count).step_by(ROWS) {
        for row in rows.chunks_exact(count) {
            let mut four = [0.0; ROWS];
            for (out, &number) in zip(&mut four[..], &row[first..]) {
                *out = number;
            }
            out.push(four);
        }
    }
}

/// `sum + a * b`.
pub(super) trait MulAdd: Copy {
    /// Whether the registers are those of AVX-512.
    const HAS_WIDE_TILES: bool = false;

    fn mul_add(self, a: f64, b: f64, sum: f64) -> f64;
}

/// The product is rounded before it is added.
#[derive(Clone, Copy)]
pub(super) struct Rounded;

impl MulAdd for Rounded {
    #[inline(always)]
    fn mul_add(self, a: f64, b: f64, sum: f64) -> f64 {
        sum + a * b
    }
}

#[cfg(target_arch = "x86_64")]
impl MulAdd for Avx2 {
    #[inline(always)]
    fn mul_add(self, a: f64, b: f64, sum: f64) -> f64 {
        a.mul_add(b, sum)
    }
}

#[cfg(target_arch = "x86_64")]
impl MulAdd for Avx512 {
    const HAS_WIDE_TILES: bool = true;

    #[inline(always)]
    fn mul_add(self, a: f64, b: f64, sum: f64) -> f64 {
        a.mul_add(b, sum)
    }
}

impl<T: Copy + Into<f64>> Routine for MatrixProduct<'_, T> {
    const DECODES: bool = true;

    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.add(Rounded);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.add(avx2);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512(&mut self, avx512: Avx512) {
        self.add(avx512);
    }
}

impl<T: Copy + Into<f64>> MatrixProduct<'_, T> {
    /// Adds the product, at the level that is fastest for it: of products that are rounded before
    /// they are added, LLVM makes slower loops with AVX-512.
    pub(super) fn add_at(&mut self, level: Level) {
        let most = if self.is_exact {
            Level::Avx512
        } else {
            Level::Avx2
        };
        perform(level.min(most), self);
    }

    /// Adds the product. `unit` adds exact products.
    #[inline(always)]
    pub(super) fn add<U: MulAdd>(&mut self, unit: U) {
        match (self.is_exact, U::HAS_WIDE_TILES) {
            (true, true) => self.add_terms::<WIDE_COLS>(unit),
            (true, false) => self.add_terms::<COLS>(unit),
            (false, _) => self.add_terms::<COLS>(Rounded),
        }
    }

    #[inline(always)]
    fn add_terms<const COLS: usize>(&mut self, unit: impl MulAdd) {
        let (depth, width) = (self.depth, self.width);
        if depth == 0 || width == 0 {
            return;
        }
        let mut packed = vec![[0.0; COLS]; (PACKED / COLS / depth).max(1) * depth];
        let (whole, step) = (width / COLS * COLS, packed.len() / depth * COLS);
        for first in (0..whole).step_by(step) {
            self.add_block::<COLS, true>(unit, first..whole.min(first + step), &mut packed);
        }
        if whole < width {
            self.add_block::<COLS, false>(unit, whole..width, &mut packed);
        }
    }

    /// Adds to the sums of columns `cols`. `packed` is scratch for as many numbers of the right
    /// matrix.
    #[inline(always)]
    fn add_block<const COLS: usize, const IS_WHOLE: bool>(
        &mut self,
        unit: impl MulAdd,
        cols: Range<usize>,
        packed: &mut [[f64; COLS]],
    ) {
        let (depth, width) = (self.depth, self.width);
        let firsts = || cols.clone().step_by(COLS);
        for (first, panel) in zip(firsts(), packed.chunks_exact_mut(depth)) {
            for (panel, row) in zip(&mut panel[..], self.right.chunks_exact(width)) {
                load::<_, COLS, IS_WHOLE>(&row[first..], panel);
            }
        }
        let quads = self.left.chunks_exact(depth);
        for (left, lines) in zip(quads, self.sums.chunks_mut(ROWS * width)) {
            for (first, panel) in zip(firsts(), packed.chunks_exact(depth)) {
                let mut sums = [[0.0; COLS]; ROWS];
                for (r, sums) in sums.iter_mut().enumerate() {
                    if let Some(line) = lines.get(r * width + first..(r + 1) * width) {
                        load::<_, COLS, IS_WHOLE>(line, sums);
                    }
                }
                let sums = add_tile(unit, left, panel, sums);
                for (r, sums) in sums.iter().enumerate() {
                    if let Some(line) = lines.get_mut(r * width + first..(r + 1) * width) {
                        store::<COLS, IS_WHOLE>(sums, line);
                    }
                }
            }
        }
    }
}

/// Copies the first numbers of a line. That there are enough is a constant, or a call would copy
/// them.
#[inline(always)]
fn load<T: Copy + Into<f64>, const COLS: usize, const IS_WHOLE: bool>(
    line: &[T],
    out: &mut [f64; COLS],
) {
    if !IS_WHOLE {
        for (out, &x) in zip(&mut out[..], line) {
            *out = x.into();
        }
    } else if let Some(line) = line.first_chunk::<COLS>() {
        for (out, &x) in zip(&mut out[..], line) {
            *out = x.into();
        }
    }
}

/// The reverse of [`load`].
#[inline(always)]
fn store<const COLS: usize, const IS_WHOLE: bool>(sums: &[f64; COLS], line: &mut [f64]) {
    if !IS_WHOLE {
        for (out, &sum) in zip(&mut line[..], sums) {
            *out = sum;
        }
    } else if let Some(line) = line.first_chunk_mut() {
        *line = *sums;
    }
}

/// The sums of some rows and columns with their terms.
#[inline(always)]
pub(super) fn add_tile<const COLS: usize>(
    unit: impl MulAdd,
    left: &[[f64; ROWS]],
    panel: &[[f64; COLS]],
    mut sums: [[f64; COLS]; ROWS],
) -> [[f64; COLS]; ROWS] {
    for (left, right) in zip(left.iter(), panel) {
        for (sums, &a) in zip(&mut sums[..], left) {
            for (sum, &b) in zip(&mut sums[..], right) {
                *sum = unit.mul_add(a, b, *sum);
            }
        }
    }
    sums
}

/// The sums of [`ROWS`] rows and of `COLS` columns of a panel, from `first` on.
#[inline(always)]
pub(super) fn panel_tile<const COLS: usize>(
    unit: impl MulAdd,
    left: &[[f64; ROWS]],
    panel: &[[f64; PANEL]],
    first: usize,
) -> [[f64; COLS]; ROWS] {
    let mut sums = [[0.0; COLS]; ROWS];
    for (left, right) in zip(left.iter(), panel) {
        for (sums, &a) in zip(&mut sums[..], left) {
            for (sum, &b) in zip(&mut sums[..], &right[first..][..COLS]) {
                *sum = unit.mul_add(a, b, *sum);
            }
        }
    }
    sums
}
