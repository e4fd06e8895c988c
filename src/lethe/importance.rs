//! What errors are weighted with where scales are searched: the importance of each value, which is
//! that of its column in an importance matrix.

use std::sync::Arc;

use super::decision::{Candidate, Decision, Decisions};
use super::imatrix::Imatrix;
use super::{Forget, WeightInfo};
use crate::remember::Tile;
use crate::{AnamnesisError, Result};

/// The importance of the values of one tensor.
#[derive(Clone)]
pub(crate) struct Importance {
    /// Without a matrix all values count the same.
    imatrix: Option<Arc<Imatrix>>,
    name: String,
    shape: Vec<usize>,
}

impl Importance {
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

/// Gives the tensors that are encoded their importance, so that their scales are searched, and notes
/// which an importance matrix says nothing of: these stay as the library rounds them.
///
/// # Errors
/// `Usage` if the scheme has no search, and the errors of an importance matrix.
pub(super) fn search(
    decisions: &mut Decisions,
    candidates: &[Candidate<'_>],
    forget: &Forget,
) -> Result<()> {
    if !forget.scheme.has_search() {
        let what = format!("--search: {} has no search of scales", forget.scheme);
        return Err(AnamnesisError::usage(what));
    }
    let imatrix = forget.imatrix.as_deref().map(Imatrix::open).transpose()?;
    let imatrix = imatrix.map(Arc::new);
    if let (Some(imatrix), Some(path)) = (&imatrix, &forget.imatrix) {
        let note = imatrix.note_of_fit(path, candidates, &decisions.all)?;
        decisions.notes.extend(note);
    }
    for (candidate, decision) in candidates.iter().zip(&mut decisions.all) {
        let Decision::Encode { importance, .. } = decision else {
            continue;
        };
        let WeightInfo { name, shape, .. } = candidate.weight;
        let is_known = match &imatrix {
            Some(imatrix) => imatrix.of_tensor(name, shape)?.is_some(),
            None => true,
        };
        *importance = is_known.then(|| Importance {
            imatrix: imatrix.clone(),
            name: name.to_owned(),
            shape: shape.to_vec(),
        });
    }
    Ok(())
}
