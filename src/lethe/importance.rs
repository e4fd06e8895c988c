//! What errors cost where scales are searched: what an importance matrix says of the activations that
//! each value is multiplied with.

use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;

use super::imatrix::Imatrix;
use super::{Method, WeightInfo};
use crate::Result;
use crate::lethe::kernels::activations::Activations;
use crate::remember::Tile;

/// The importance of the values of one tensor.
pub(crate) struct Importance {
    /// Without a matrix all values count the same.
    imatrix: Option<Arc<Imatrix>>,
    name: String,
    /// Outermost dimension first, inputs last.
    shape: Vec<usize>,
    /// Whether the tensor itself has its inputs in rows.
    inputs_are_rows: bool,
}

impl Importance {
    /// That of the values of `weight`, which `method` encodes; `None` if a matrix says nothing of them.
    ///
    /// # Errors
    /// `Parse` if the entry of the matrix does not fit the tensor.
    pub(super) fn of(
        weight: &WeightInfo<'_>,
        method: &dyn Method,
        imatrix: Option<&Arc<Imatrix>>,
    ) -> Result<Option<Self>> {
        let shape = dims_by_inputs(weight, method);
        let is_known = match imatrix {
            Some(imatrix) => imatrix.of_tensor(weight.name, &shape)?.is_some(),
            None => true,
        };
        Ok(is_known.then(|| Self {
            imatrix: imatrix.cloned(),
            name: weight.name.to_owned(),
            shape,
            inputs_are_rows: method.inputs_are_rows(weight),
        }))
    }

    /// Whether it is that of a matrix.
    pub(crate) fn is_measured(&self) -> bool {
        self.imatrix.is_some()
    }

    /// What is known of the activations of each value of `tile` of a grid with `grid_cols` columns, run
    /// by run.
    ///
    /// # Errors
    /// `Parse` if the entry of the matrix does not fit the tensor.
    pub(crate) fn of_tile(
        &self,
        tile: &Tile,
        grid_cols: usize,
        statistics: &mut TileStatistics,
    ) -> Result<()> {
        let TileStatistics { variances, means, row } = statistics;
        variances.clear();
        means.clear();
        let (mut squares_of_columns, mut means_of_columns) = (None, None);
        if let Some(imatrix) = &self.imatrix {
            squares_of_columns = imatrix.of_tensor(&self.name, &self.shape)?;
            means_of_columns = imatrix.means_of_tensor(&self.name, &self.shape)?;
        }
        if self.inputs_are_rows {
            fill_by_rows(squares_of_columns, tile, variances);
            fill_by_rows(means_of_columns, tile, means);
            // A row of the tile has values of many outputs.
            *row = 1;
            self.complete(tile.rows.len() * tile.cols.len(), statistics);
            return Ok(());
        }
        // Each matrix of a stack has numbers of its own. Those of a fourth dimension have the same.
        let cols = self.shape.last().copied().unwrap_or(1).max(1);
        let rows = match *self.shape {
            [.., rows, _] => rows.max(1),
            _ => 1,
        };
        let of_row = |columns: &[f32], row: usize, part: Range<usize>, to: &mut Vec<f32>| {
            let first = row / rows % (columns.len() / cols).max(1) * cols;
            let of_row = columns.get(first + part.start..first + part.end);
            to.extend_from_slice(of_row.unwrap_or_default());
        };
        let (all, mut len) = (self.shape.iter().product::<usize>(), 0);
        // Rows of a grid may be other runs of values than those of the tensor, and end behind it.
        *row = match grid_cols == cols {
            true => tile.cols.len(),
            false => cols,
        };
        for (first, run) in tile.runs(grid_cols) {
            let end = all.min(first + run.len());
            let mut next = first;
            while next < end {
                let (of, col) = (next / cols, next % cols);
                let part = col..cols.min(col + end - next);
                if let Some(columns) = squares_of_columns {
                    of_row(columns, of, part.clone(), variances);
                }
                if let Some(columns) = means_of_columns {
                    of_row(columns, of, part.clone(), means);
                }
                next += part.len();
            }
            len += end.saturating_sub(first);
            if grid_cols != cols && !(first.is_multiple_of(cols) && end.is_multiple_of(cols)) {
                // No row is known to end with another one of the tile: nothing is carried on.
                *row = 1;
            }
        }
        self.complete(len, statistics);
        Ok(())
    }

    /// Makes variances of the mean squares, for `len` values.
    fn complete(&self, len: usize, TileStatistics { variances, means, .. }: &mut TileStatistics) {
        // Without a matrix all values count the same. What has no importance stays as the library
        // has it; `of_tensor` has checked that nothing of an entry is left here, and statistics of
        // each value are what encoders rely on.
        variances.resize(len, if self.imatrix.is_some() { 0.0 } else { 1.0 });
        means.resize(len, 0.0);
        // Sums of floats may say that a mean is larger than the mean square.
        for (variance, mean) in variances.iter_mut().zip(means) {
            *variance = (*variance - *mean * *mean).max(0.0);
        }
    }
}

/// Appends the number of each row of `tile` for all of its values. An entry has as many numbers as a
/// stack whose inputs are rows has rows.
fn fill_by_rows(numbers: Option<&[f32]>, tile: &Tile, to: &mut Vec<f32>) {
    let of_rows = numbers.and_then(|all| all.get(tile.rows.clone()));
    for &number in of_rows.unwrap_or_default() {
        to.extend(repeat_n(number, tile.cols.len()));
    }
}

/// Dimensions of `weight` with its inputs last, as entries of importance matrices count them.
pub(super) fn dims_by_inputs(weight: &WeightInfo<'_>, method: &dyn Method) -> Vec<usize> {
    let mut dims = weight.shape.to_vec();
    if let ([.., rows, cols], true) = (&mut dims[..], method.inputs_are_rows(weight)) {
        std::mem::swap(rows, cols);
    }
    dims
}

/// Statistics of the activations of a tile's values; empty if nothing is searched.
#[derive(Debug, Default)]
pub(crate) struct TileStatistics {
    variances: Vec<f32>,
    means: Vec<f32>,
    /// Number of values in a row of the tensor, or of the part of it in the tile.
    row: usize,
}

impl TileStatistics {
    pub(crate) fn clear(&mut self) {
        self.variances.clear();
        self.means.clear();
    }

    pub(crate) fn activations(&self) -> Activations<'_> {
        Activations { variances: &self.variances, means: &self.means, row: self.row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_matrix_of_a_stack_has_its_own() {
        let name = "blk.0.ffn_up_exps.weight".to_owned();
        let entries = [(name.clone(), (1..=8u8).map(f32::from).collect())].into();
        let means = [(name.clone(), vec![0.0, 1.0, 0.5, 0.0, 0.0, 2.0, 9.0, 0.0])].into();
        let imatrix = Some(Arc::new(Imatrix { entries, means, ..Imatrix::default() }));
        let inputs_are_rows = false;
        let importance = Importance { imatrix, name, shape: vec![2, 3, 4], inputs_are_rows };
        let (tile, mut found) = (Tile { rows: 2..5, cols: 1..3 }, TileStatistics::default());
        importance.of_tile(&tile, 4, &mut found).unwrap();
        assert_eq!(found.means, [1.0, 0.5, 2.0, 9.0, 2.0, 9.0]);
        assert_eq!(found.variances, [1.0, 2.75, 2.0, 0.0, 2.0, 0.0]);

        // llama.cpp has numbers for `ne[2]` matrices, whatever `ne[3]` is.
        let stacks = Importance { shape: vec![3, 2, 1, 4], ..importance };
        let (tile, mut found) = (Tile { rows: 3..6, cols: 0..1 }, TileStatistics::default());
        stacks.of_tile(&tile, 4, &mut found).unwrap();
        assert_eq!(found.means, [0.0, 0.0, 0.0]);
        assert_eq!(found.variances, [5.0, 1.0, 5.0]);
    }
}
