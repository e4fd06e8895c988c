//! What is done with the values of SDNQ's codes: a product of low rank that is added, and a
//! rotation.

use super::shape::SdnqShape;
use super::{FAMILY, SdnqWeight};
use crate::Result;
use crate::remember::kernels::hadamard::LEAST_GROUP;
use crate::remember::kernels::rotated::{MAX_GROUP, is_group};
use crate::remember::layout::low_rank::LowRankFactors;
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix, Transposed};
use crate::remember::seam::{Floats, refused, wrong};

/// The first version with today's matrix for rotations of a power of four columns.
const ROTATES_FOURS: [u32; 3] = [0, 2, 1];

impl<'m> SdnqWeight<'_, 'm> {
    /// The product that is added.
    pub(super) fn factors(&self, shape: &SdnqShape) -> Result<Option<LowRankFactors<'m>>> {
        let (rows, cols) = (shape.rows, shape.cols());
        // The library leaves out a product whose rank is larger than the matrix.
        let is_there = match self.settings.svd_rank {
            Some(rank) if rank > rows.min(cols) => self.all.at(self.base, "svd_up").is_some(),
            rank => rank.is_some(),
        };
        let up = self.part("svd_up", is_there)?;
        let down = self.part("svd_down", is_there)?;
        let (Some(up), Some(down)) = (up, down) else {
            return Ok(None);
        };
        let [(plain, rank), (transposed, other)] = match (up.shape(), down.shape()) {
            (&[a, b], &[c, d]) => {
                [([a, b, c, d] == [rows, b, b, cols], b), ([a, b, c, d] == [a, rows, cols, a], a)]
            }
            _ => [(false, 0), (false, 0)],
        };
        let is_transposed = match (plain, transposed) {
            (true, false) => false,
            (false, true) => true,
            // Rank, rows and columns are one number.
            (true, true) => self.settings.multiplies_codes,
            (false, false) => {
                let what = format!(
                    "its `{}` {:?} and `{}` {:?} are no factors of a matrix of {rows} rows and {cols} columns",
                    up.name(),
                    up.shape(),
                    down.name(),
                    down.shape()
                );
                return Err(wrong(&self.t, what));
            }
        };
        if is_transposed
            && !self.settings.multiplies_codes
            && !self.settings.multiplies_convolutions
        {
            let what = format!(
                "its `{}` {:?} is stored transposed, and `use_quantized_matmul` is off",
                down.name(),
                down.shape()
            );
            return Err(wrong(&self.t, what));
        }
        let rank = if is_transposed { other } else { rank };
        let factor = |t, rows, cols| -> Result<Box<dyn ScaleMatrix + 'm>> {
            let floats = Floats::ieee(t)?;
            Ok(match is_transposed {
                true => Box::new(Transposed::of_floats(floats, rows, cols)),
                false => Box::new(Matrix { floats, cols }),
            })
        };
        Ok(Some(LowRankFactors {
            tensors: [down, up],
            a: factor(&down, rank, cols)?,
            b: factor(&up, rows, rank)?,
            rank,
        }))
    }

    /// Columns that are rotated together, if they are (`get_hadamard_group_size`).
    pub(super) fn rotation(&self, shape: &SdnqShape) -> Result<Option<usize>> {
        let Some(most) = self.settings.hadamard else {
            return Ok(None);
        };
        let most = most.min(shape.inputs).checked_next_power_of_two();
        // The largest power of two that is no larger and divides the inputs.
        let divides = |most: usize| match shape.inputs {
            0 => most,
            inputs => most.min(1 << inputs.trailing_zeros()),
        };
        let Some(group) = most.map(divides) else {
            return Err(refused(&self.t, FAMILY, "it is too wide to be rotated"));
        };
        if group < LEAST_GROUP {
            return Ok(None);
        }
        if group > MAX_GROUP {
            let what = format!(
                "its columns are rotated in groups of {group}, which are more than {MAX_GROUP}"
            );
            return Err(refused(&self.t, FAMILY, what));
        }
        if is_group(group) && self.config.version < ROTATES_FOURS {
            return Err(self.refused_version("rotations used another matrix", ROTATES_FOURS));
        }
        Ok(Some(group))
    }
}
