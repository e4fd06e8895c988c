//! The shared encoder of integers in groups: each group of consecutive values of a row has a scale
//! and mostly a zero point. compressed-tensors, GPTQ, AWQ, LLM.int8(), MLX's affine mode and SDNQ use it. The mirror
//! of `remember/seam/grouped.rs`.
//!
//! A scheme chooses the arithmetic of its library (`Rule`) and, for codes, scales and offsets, the
//! stored matrix that they go to: which tensor, packed how, transposed or not (`layout`).

mod layout;
#[cfg(test)]
mod tests;

pub(crate) use self::layout::{MatrixForm, StoredMatrix, WordBuffers, WordPacking, float_bytes};
use super::{
    Encode, EncodeBuffers, Put, RelayTarget, StoreCodes, StoredTensor, TileValues, WeightInfo,
};
use crate::error::InTensor;
use crate::lethe::kernels::integer::{IntegerGroups, IntegerQuantizer, IntegerRule};
use crate::lethe::seam::rows::MAX_ROW_LEN;
use crate::remember::{CodeFamily, Grid, GroupCodes, StoredRows, Tile};
use crate::simd::Level;
use crate::{AnamnesisError, Result, TargetDtype};

/// Encodes one tensor as integers in groups.
pub(crate) struct Grouped {
    /// Name of the tensor, for messages.
    pub name: String,
    pub quantizer: IntegerQuantizer,
    pub stored: Vec<StoredTensor>,
    pub codes: StoredMatrix,
    pub scales: StoredMatrix,
    /// Zero points or biases, if they are stored.
    pub offsets: Option<StoredMatrix>,
    /// Rows at which tiles may begin: codes or zero points that are packed down columns must fill
    /// whole words.
    pub row_align: usize,
    /// Index of the stored tensor that holds the group number of each column (GPTQ's `g_idx`).
    pub index: Option<usize>,
    /// Index and bytes of a stored tensor that depends on the shape alone at most
    /// (compressed-tensors' `weight_shape`).
    pub constant: Option<(usize, Vec<u8>)>,
}

/// The reason why the rows of `weight` cannot be divided into groups of `group` columns.
pub(crate) fn group_objection(weight: &WeightInfo<'_>, group: usize) -> Option<String> {
    let (rows, cols) = (weight.rows(), weight.cols());
    match group {
        _ if rows == 0 || cols == 0 || group == 0 => Some("there is nothing in it".to_owned()),
        _ if !cols.is_multiple_of(group) => {
            Some(format!("its {cols} columns are no multiple of {group}"))
        }
        // A tile has whole groups, so a long one would make every worker hold all of it.
        _ if col_align(cols, group) > MAX_ROW_LEN => {
            Some(format!("its {cols} columns are more than {MAX_ROW_LEN}"))
        }
        _ => None,
    }
}

/// The reason why a layout that names its tensors by modules, such as `X.qweight`, cannot store
/// `weight`: a parameter would come back as `X.weight`.
pub(crate) fn module_objection(weight: &WeightInfo<'_>) -> Option<String> {
    (!weight.name.ends_with(".weight"))
        .then(|| "it is no module's weight, and the name would be another".to_owned())
}

/// The reason why `weight` is not a matrix, or why its rows cannot be divided into groups of
/// `group` columns.
pub(crate) fn grouped_matrix_objection(weight: &WeightInfo<'_>, group: usize) -> Option<String> {
    match weight.shape.len() {
        2 => group_objection(weight, group),
        rank => Some(format!("it has {rank} dimensions and no two")),
    }
}

/// Columns at which tiles may begin: multiples of a group whose codes fill whole 32-bit words, at
/// any width in bits. A group that is no multiple of 32 may end within a word, which two tiles
/// would then share, so tiles are whole rows.
fn col_align(cols: usize, group: usize) -> usize {
    if group.is_multiple_of(32) {
        group
    } else {
        cols
    }
}

impl Encode for Grouped {
    fn stored(&self) -> Vec<StoredTensor> {
        self.stored.clone()
    }

    fn grid(&self) -> Grid {
        let StoredMatrix { rows, cols, bits, form, .. } = self.codes;
        let group = self.quantizer.group;
        // A byte for each code, the packed words and their transpose; four 32-bit numbers for each
        // group: scale and offset, as floats and as they are stored.
        let load_bits = (8 + 2 * bits) as f64 + 128.0 / group as f64;
        // Packings down columns and transposed ones are written along the rows of the weight, so
        // tall tiles write longer pieces.
        let transposed = match form {
            MatrixForm::Packed(WordPacking::AlongRows)
            | MatrixForm::Units
            | MatrixForm::Bytes { .. } => None,
            _ => Some(StoredRows::of_one(bits, 1)),
        };
        Grid {
            rows,
            cols,
            row_align: self.row_align,
            col_align: col_align(cols, group),
            load_bits,
            transposed,
        }
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (tile, level) = (values.tile, values.level);
        let EncodeBuffers { groups: out, words, .. } = buffers;
        self.quantizer
            .encode(values.values, values.activations, level, back, out);
        // A scale can overflow its dtype although every value fits the model's, such as an F16
        // scale of a BF16 model.
        if !out
            .scales
            .iter()
            .chain(&out.offsets)
            .all(|number| number.is_finite())
        {
            let what = match self.quantizer.rule {
                IntegerRule::LlmInt8 => "a row has values that F16 does not reach",
                _ => "values of a group are too large for the type of its scale",
            };
            let what = format!("{}: {what}", InTensor(&self.name));
            return Err(AnamnesisError::unsupported("integers by groups", what));
        }
        self.store(tile, out, level, words, put)
    }

    fn values_per_line(&self) -> usize {
        match self.codes.form {
            MatrixForm::Packed(WordPacking::AlongRowsTransposed) => 32 / self.codes.bits,
            _ => 1,
        }
    }

    fn relay(&self) -> Option<RelayTarget<'_>> {
        let IntegerQuantizer { rule, bits, group, .. } = self.quantizer;
        let is_symmetric = match rule {
            IntegerRule::CompressedTensors { symmetric } => symmetric,
            IntegerRule::Gptq { symmetric } => symmetric,
            IntegerRule::Awq => false,
            // `v * s + b` with any `b`: no integer is its zero point.
            IntegerRule::Mlx | IntegerRule::Hqq { .. } | IntegerRule::Sdnq { .. } => return None,
            // Scales are 127 times those of other schemes.
            IntegerRule::LlmInt8 => return None,
        };
        let MatrixForm::Floats { dtype, .. } = self.scales.form else {
            return None;
        };
        Some(RelayTarget {
            family: CodeFamily::Int {
                bits: bits as u8,
                group: u32::try_from(group).ok()?,
                scales: dtype,
                has_half_scales: dtype == TargetDtype::F16,
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
        let (codes, scales) = (std::mem::take(&mut codes.codes), std::mem::take(&mut codes.scales));
        self.store(
            tile,
            &mut IntegerGroups { codes, scales, offsets },
            level,
            &mut WordBuffers::default(),
            put,
        )
    }
}

impl Grouped {
    /// Passes the bytes of an encoded tile to `put`.
    fn store(
        &self,
        tile: &Tile,
        out: &mut IntegerGroups,
        level: Level,
        words: &mut WordBuffers,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let group = self.quantizer.group;
        // Tiles begin and end with whole groups, so both divisions are exact.
        let groups =
            Tile { rows: tile.rows.clone(), cols: tile.cols.start / group..tile.cols.end / group };
        self.codes
            .put_codes(tile, &mut out.codes, level, words, put)?;
        self.scales
            .put_floats(&groups, &out.scales, level, words, put)?;
        if let Some(offsets) = &self.offsets {
            offsets.put_floats(&groups, &out.offsets, level, words, put)?;
        }
        // The group numbers of columns are the same for all rows: the tiles of the first rows write
        // them.
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
