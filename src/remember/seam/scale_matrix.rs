//! Matrices of scales, zero points and offsets, and how they are stored: as floats, as integers,
//! packed, transposed, nested or behind an index of groups. Each reads a rectangle of its values as
//! F32.

mod integers;

use std::ops::Range;

pub(crate) use self::integers::{ColumnPackedInts, Integers};
use crate::Result;
use crate::error::InTensor;
use crate::model::{Part, Tensor};
use crate::remember::seam::{Floats, read};

/// A matrix of scales, zero points or offsets.
pub(crate) trait ScaleMatrix: Send + Sync {
    /// Appends the values at `rows` × `cols` to `out`, row-major. `staging` is scratch.
    ///
    /// # Errors
    /// The read fails, or an index is out of bounds.
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()>;
}

/// Row-major floats, `cols` in a row.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'m> {
    pub floats: Floats<'m>,
    pub cols: usize,
}

impl<'m> Matrix<'m> {
    /// The factors of columns that the vector `t` has.
    ///
    /// # Errors
    /// It is not F32, F16 or BF16.
    pub(crate) fn of_columns(t: &Tensor<'m>) -> Result<Box<dyn ScaleMatrix + 'm>> {
        let floats = Floats::ieee(t)?;
        let cols = t.elements();
        Ok(Box::new(Self { floats, cols }))
    }
}

impl ScaleMatrix for Matrix<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        self.floats.extend(self.cols, rows, cols, staging, out)
    }
}

/// 1 in all places.
pub(crate) struct Ones;

impl ScaleMatrix for Ones {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        _staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        out.resize(out.len() + rows.len() * cols.len(), 1.0);
        Ok(())
    }
}

/// One number in all places.
pub(crate) struct Repeated<'m>(pub Floats<'m>);

impl ScaleMatrix for Repeated<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut number = Vec::with_capacity(1);
        self.0.extend(1, 0..1, 0..1, staging, &mut number)?;
        let number = number.first().copied().unwrap_or(f32::NAN);
        out.resize(out.len() + rows.len() * cols.len(), number);
        Ok(())
    }
}

/// A stack of matrices, each of which is stored transposed: `inner` has stack × `cols` rows and
/// `rows` columns.
pub(crate) struct Transposed<'m> {
    pub inner: Box<dyn ScaleMatrix + 'm>,
    /// Rows and columns of one matrix as callers see it.
    pub rows: usize,
    pub cols: usize,
}

impl<'m> Transposed<'m> {
    /// Floats that are stored as `cols` rows of `rows` each, for every matrix of the stack.
    pub(crate) fn of_floats(floats: Floats<'m>, rows: usize, cols: usize) -> Self {
        Self { inner: Box::new(Matrix { floats, cols: rows }), rows, cols }
    }
}

impl ScaleMatrix for Transposed<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut stored = Vec::new();
        let mut row = rows.start;
        // The rows that were asked for can begin in one matrix of a stack and end in another, and
        // each is stored by itself.
        while row < rows.end {
            let (matrix, first) = (row / self.rows.max(1), row % self.rows.max(1));
            let n = (self.rows - first).min(rows.end - row);
            stored.clear();
            let lines = matrix * self.cols + cols.start..matrix * self.cols + cols.end;
            self.inner
                .extend(lines, first..first + n, staging, &mut stored)?;
            // `stored` is `[cols, n]`.
            for r in 0..n {
                out.extend(stored.chunks_exact(n).map(|line| line[r]));
            }
            row += n;
        }
        Ok(())
    }
}

/// The first or the second value of each pair. Pairs are stored side by side, as `[…, cols, 2]`.
pub(crate) struct PairMember<'m> {
    pub pairs: Floats<'m>,
    /// Pairs in a row.
    pub cols: usize,
    /// Whether the matrix has the second values, rather than the first.
    pub is_second: bool,
}

impl ScaleMatrix for PairMember<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut both = Vec::new();
        self.pairs
            .extend(self.cols * 2, rows, cols.start * 2..cols.end * 2, staging, &mut both)?;
        out.extend(both.iter().skip(usize::from(self.is_second)).step_by(2));
        Ok(())
    }
}

/// The negated values of another matrix.
pub(crate) struct Negated<'m>(pub Box<dyn ScaleMatrix + 'm>);

impl ScaleMatrix for Negated<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let at = out.len();
        self.0.extend(rows, cols, staging, out)?;
        out[at..].iter_mut().for_each(|x| *x = -*x);
        Ok(())
    }
}

/// How a scale of a whole matrix combines with the scales of its groups.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NestedOp {
    Multiply,
    Divide,
}

/// Two levels of scales: `inner` for groups, and `outer` for each matrix of a stack or for all
/// matrices.
pub(crate) struct NestedScales<'m> {
    pub inner: Box<dyn ScaleMatrix + 'm>,
    pub outer: Floats<'m>,
    /// Number of outer scales.
    pub count: usize,
    /// Rows of `inner` that share an outer scale.
    pub rows_each: usize,
    pub op: NestedOp,
    /// Divisor of the outer scales, in F32 and before they combine with the inner ones. MLX stores
    /// the largest value of a tensor in place of a scale; the divisor makes it one. Otherwise 1.
    pub unit: f32,
}

impl ScaleMatrix for NestedScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut outer = Vec::new();
        let each = self.rows_each.max(1);
        let used = (rows.start / each).min(self.count)..rows.end.div_ceil(each).min(self.count);
        self.outer
            .extend(self.count, 0..1, used.clone(), staging, &mut outer)?;
        let at = out.len();
        self.inner
            .extend(rows.clone(), cols.clone(), staging, out)?;
        for (r, row) in rows.zip(out[at..].chunks_exact_mut(cols.len().max(1))) {
            // The unit divides first and in F32, as MLX has it: `scale * (global / 2688)`. Division
            // by 1 is exact and changes nothing for the others.
            let outer = outer[r / each - used.start] / self.unit;
            match self.op {
                NestedOp::Multiply => row.iter_mut().for_each(|s| *s *= outer),
                NestedOp::Divide => row.iter_mut().for_each(|s| *s /= outer),
            }
        }
        Ok(())
    }
}

/// A matrix with a column for each column of the weight: column c is column `index[c]` of `inner`,
/// the group of c.
pub(crate) struct GroupIndexed<'m> {
    pub inner: Box<dyn ScaleMatrix + 'm>,
    /// Columns of `inner`.
    pub groups: usize,
    /// I32 or F32, the group of each column of the weight. Keras makes integers of floats by leaving out
    /// what is behind the point.
    pub index: Part<'m>,
    pub is_float: bool,
}

impl ScaleMatrix for GroupIndexed<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        // One row, hence any stride of at least `cols.end` indices serves.
        read(&self.index, cols.end * 4, 0..1, cols.start * 4..cols.end * 4, staging)?;
        let index: Vec<usize> = staging
            .as_chunks()
            .0
            .iter()
            // A negative index becomes a large one, which the check below refuses.
            .map(|&b| match self.is_float {
                false => i32::from_le_bytes(b) as u32 as usize,
                true => match f32::from_le_bytes(b) {
                    group @ 0.0..4e9 => group as u32 as usize,
                    _ => u32::MAX as usize,
                },
            })
            .collect();
        // The check comes before the first look-up: a panic would otherwise be in the hands of the
        // file.
        if let Some(&group) = index.iter().find(|&&g| g >= self.groups) {
            let what = format!(
                "{}: group {} of {}",
                InTensor(&self.index.name()),
                group as u32 as i32,
                self.groups
            );
            return Err(crate::AnamnesisError::parse(what));
        }
        // A column may belong to any group, so all groups of a row are read, however few columns
        // are wanted.
        let mut row = Vec::new();
        for r in rows {
            row.clear();
            self.inner
                .extend(r..r + 1, 0..self.groups, staging, &mut row)?;
            out.extend(index.iter().map(|&g| row[g]));
        }
        Ok(())
    }
}
