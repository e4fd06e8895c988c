//! What errors are weighted with where scales are searched: the importance of each value, which is
//! that of its column in an importance matrix.

use std::sync::Arc;

use super::WeightInfo;
use super::imatrix::Imatrix;
use crate::Result;
use crate::remember::Tile;

/// The importance of the values of one tensor.
pub(crate) struct Importance {
    /// Without a matrix all values count the same.
    imatrix: Option<Arc<Imatrix>>,
    name: String,
    shape: Vec<usize>,
}

impl Importance {
    /// That of the values of `weight`; `None` if a matrix says nothing of them.
    ///
    /// # Errors
    /// `Parse` if the entry of the matrix does not fit the tensor.
    pub(super) fn of(
        weight: &WeightInfo<'_>,
        imatrix: Option<&Arc<Imatrix>>,
    ) -> Result<Option<Self>> {
        let is_known = match imatrix {
            Some(imatrix) => imatrix.of_tensor(weight.name, weight.shape)?.is_some(),
            None => true,
        };
        Ok(is_known.then(|| Self {
            imatrix: imatrix.cloned(),
            name: weight.name.to_owned(),
            shape: weight.shape.to_vec(),
        }))
    }

    /// The importance of each value of `tile`, row by row.
    ///
    /// # Errors
    /// `Parse` if the entry of the matrix does not fit the tensor.
    pub(crate) fn of_tile(&self, tile: &Tile, weights: &mut Vec<f32>) -> Result<()> {
        let columns = match &self.imatrix {
            Some(imatrix) => imatrix.of_tensor(&self.name, &self.shape)?,
            None => None,
        };
        let len = tile.rows.len() * tile.cols.len();
        weights.clear();
        let Some(columns) = columns else {
            weights.resize(len, 1.0);
            return Ok(());
        };
        // One row of numbers serves all matrices of a stack, or there is one for each.
        let (cols, rows) = match *self.shape {
            [.., rows, cols] => (cols.max(1), rows.max(1)),
            _ => (columns.len().max(1), 1),
        };
        let matrices = (columns.len() / cols).max(1);
        for row in tile.rows.clone() {
            let first = row / rows % matrices * cols;
            let of_row = columns.get(first + tile.cols.start..first + tile.cols.end);
            weights.extend_from_slice(of_row.unwrap_or_default());
        }
        // What has no importance stays as the library has it. `of_tensor` has checked that nothing is
        // left here, and a weight for each value is what encoders rely on.
        weights.resize(len, 0.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_matrix_of_a_stack_has_its_own() {
        let name = "blk.0.ffn_up_exps.weight".to_owned();
        let entries = [(name.clone(), (1..=8u8).map(f32::from).collect())].into();
        let imatrix = Some(Arc::new(Imatrix { entries, ..Imatrix::default() }));
        let importance = Importance { imatrix, name, shape: vec![2, 3, 4] };
        let (tile, mut weights) = (Tile { rows: 2..5, cols: 1..3 }, vec![]);
        importance.of_tile(&tile, &mut weights).unwrap();
        assert_eq!(weights, [2.0, 3.0, 6.0, 7.0, 6.0, 7.0]);
    }
}
