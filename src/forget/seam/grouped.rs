//! The encoder that integers in groups share: the arithmetic of one library, and the places of codes, scales and zero points
//! in the stored tensors.

mod layout;
#[cfg(test)]
mod tests;

pub(crate) use self::layout::{Form, Packing, Place};
use super::{Encode, Put, RelayTarget, StoreCodes, Stored, Values, Weight};
use crate::forget::seam::rows::LONGEST;
use crate::kernels::lethe::integer::{IntegerGroups, IntegerQuantizer, IntegerRule};
use crate::scheme::{CodeFamily, Grid, GroupCodes, Tile};
use crate::simd::Level;
use crate::{AnamnesisError, Result};

/// One tensor as integers by groups.
pub(crate) struct Grouped {
    /// For messages.
    pub name: String,
    pub quantizer: IntegerQuantizer,
    pub stored: Vec<Stored>,
    pub codes: Place,
    pub scales: Place,
    /// Where zero points or biases go, if they are stored.
    pub offsets: Option<Place>,
    /// Tiles start at such rows.
    pub row_align: usize,
    /// The stored tensor that has the group of each column.
    pub index: Option<usize>,
    /// Number and bytes of what belongs to no value.
    pub constant: Option<(usize, Vec<u8>)>,
}

/// Why a weight has no groups of `group` columns.
pub(crate) fn objection(weight: &Weight<'_>, group: usize) -> Option<String> {
    let (rows, cols) = (weight.rows(), weight.cols());
    match group {
        _ if rows == 0 || cols == 0 || group == 0 => Some("there is nothing in it".to_owned()),
        _ if !cols.is_multiple_of(group) => {
            Some(format!("its {cols} columns are no multiple of {group}"))
        }
        _ if col_align(cols, group) > LONGEST => {
            Some(format!("its {cols} columns are more than {LONGEST}"))
        }
        _ => None,
    }
}

/// Why a weight is not a matrix of groups of `group` columns: schemes for linear layers know no stacks.
pub(crate) fn objection_to_matrix(weight: &Weight<'_>, group: usize) -> Option<String> {
    match weight.shape.len() {
        2 => objection(weight, group),
        rank => Some(format!("it has {rank} dimensions and no two")),
    }
}

/// The multiple of columns at which tiles start: whole groups that fill whole words, as groups of a multiple of 32 codes
/// do at any width. If groups end within words, a tile has all columns.
fn col_align(cols: usize, group: usize) -> usize {
    if group.is_multiple_of(32) {
        group
    } else {
        cols
    }
}

impl Encode for Grouped {
    fn stored(&self) -> Vec<Stored> {
        self.stored.clone()
    }

    fn grid(&self) -> Grid {
        let Place {
            rows,
            cols,
            bits,
            form,
            ..
        } = self.codes;
        let group = self.quantizer.group;
        // Codes of a byte each, packed, and perhaps transposed; scale and offset of each group, as floats and as stored.
        let load_bits = (8 + 2 * bits) as f64 + 128.0 / group as f64;
        let transposed = !matches!(form, Form::Packed(Packing::Along) | Form::Bytes { .. });
        Grid {
            rows,
            cols,
            row_align: self.row_align,
            col_align: col_align(cols, group),
            load_bits,
            transposed,
        }
    }

    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()> {
        let (tile, level) = (values.tile, values.level);
        let mut out = IntegerGroups::default();
        self.quantizer.encode(values.values, level, back, &mut out);
        if !out
            .scales
            .iter()
            .chain(&out.offsets)
            .all(|number| number.is_finite())
        {
            let what = format!(
                "tensor `{}`: values of a group are too large for the type of its scale",
                self.name
            );
            return Err(AnamnesisError::unsupported("integers by groups", what));
        }
        self.store(tile, out, level, put)
    }

    fn relay(&self) -> Option<RelayTarget<'_>> {
        let IntegerQuantizer {
            rule, bits, group, ..
        } = self.quantizer;
        let is_symmetric = match rule {
            IntegerRule::CompressedTensors { symmetric } => symmetric,
            #[cfg(feature = "gptq")]
            IntegerRule::Gptq { symmetric } => symmetric,
            #[cfg(feature = "awq")]
            IntegerRule::Awq => false,
            // `v * s + b` with any `b`: no integer is its zero point.
            IntegerRule::Mlx => return None,
        };
        let Form::Floats { dtype, .. } = self.scales.form else {
            return None;
        };
        Some(RelayTarget {
            family: CodeFamily::Int {
                bits,
                group,
                scales: dtype,
                is_symmetric,
            },
            codes: self,
        })
    }
}

impl StoreCodes for Grouped {
    fn store_codes(
        &self,
        tile: &Tile,
        codes: &mut GroupCodes,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let offsets = codes
            .zero_points
            .iter()
            .map(|&zero| f32::from(zero))
            .collect();
        let (codes, scales) = (
            std::mem::take(&mut codes.codes),
            std::mem::take(&mut codes.scales),
        );
        self.store(
            tile,
            IntegerGroups {
                codes,
                scales,
                offsets,
            },
            level,
            put,
        )
    }
}

impl Grouped {
    /// Passes the codes of a tile and the numbers of its groups to `put`.
    fn store(
        &self,
        tile: &Tile,
        out: IntegerGroups,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let group = self.quantizer.group;
        let groups = Tile {
            rows: tile.rows.clone(),
            cols: tile.cols.start / group..tile.cols.end / group,
        };
        self.codes.put_codes(tile, out.codes, level, put)?;
        self.scales.put_numbers(&groups, &out.scales, level, put)?;
        if let Some(offsets) = &self.offsets {
            offsets.put_numbers(&groups, &out.offsets, level, put)?;
        }
        if tile.rows.start > 0 {
            return Ok(());
        }
        if let Some(part) = self.index {
            let index: Vec<u8> = tile
                .cols
                .clone()
                .flat_map(|col| ((col / group) as u32).to_le_bytes())
                .collect();
            put(part, tile.cols.start as u64 * 4, &index)?;
        }
        match &self.constant {
            Some((part, bytes)) if tile.cols.start == 0 => put(*part, 0, bytes),
            _ => Ok(()),
        }
    }
}
