//! What errors are weighted with where scales are searched: the importance of each value, which is
//! that of its column in an importance matrix.

use std::sync::Arc;

use super::WeightInfo;
use super::imatrix::Imatrix;
use crate::Result;
use crate::remember::Tile;

/// The importance of the values of one tensor.
#[derive(Clone)]
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
        weights.clear();
        let Some(columns) = columns else {
            weights.resize(tile.rows.len() * tile.cols.len(), 1.0);
            return Ok(());
        };
        // One row of numbers serves all matrices of a stack, or there is one for each.
        let (cols, outer) = match self.shape.split_last() {
            Some((&cols, outer)) => (cols.max(1), outer),
            None => (1, &[][..]),
        };
        let matrices = (columns.len() / cols).max(1);
        let rows_of_matrix = (outer.iter().product::<usize>() / matrices).max(1);
        for row in tile.rows.clone() {
            let first = row / rows_of_matrix * cols;
            let of_row = columns.get(first + tile.cols.start..first + tile.cols.end);
            weights.extend_from_slice(of_row.unwrap_or_default());
        }
        Ok(())
    }
}
