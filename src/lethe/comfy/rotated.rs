//! ComfyUI's rotated integers (ConvRot): `X.weight`, F32 `X.weight_scale` with one number for each
//! row, and `X.comfy_quant`, a JSON text that names the format.
//!
//! - `int8_tensorwise`: I8 `[out, in]`, scale `[out, 1]`. Rows that are no whole groups of 256
//!   columns are not rotated, as ComfyUI has it.
//! - `convrot_w4a4`: I8 `[out, in / 2]`, the low nibble first, scale `[out]`. Rows are rotated in
//!   groups of 256 columns, or of 64.
//!
//! Layout: comfy-kitchen 0.2.40 `TensorWiseINT8Layout`, `TensorCoreConvRotW4A4Layout`; ComfyUI
//! `comfy/ops.py`.

use zerocopy::IntoBytes;

use super::{has_marker, marker};
use crate::element::Out;
use crate::error::InTensor;
use crate::lethe::kernels::rotated::{EncodeRotatedRows, RotatedRange};
use crate::lethe::seam::rows::{MAX_ROW_LEN, linear_weight_objection, stored_tensor};
use crate::lethe::{Encode, EncodeBuffers, Method, Put, StoredTensor, TileValues, WeightInfo};
use crate::remember::kernels::rotated::{ByteCodes, RotatedRows};
use crate::remember::{Grid, QuantScheme};
use crate::simd::{Level, dispatch, perform};
use crate::{AnamnesisError, Dtype, Result};

/// Columns that ComfyUI's kernels rotate together.
const GROUP: usize = 256;

/// The least columns of `convrot_w4a4`: those of a product of its kernels.
const LEAST: usize = 64;

/// A format of rotated integers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ComfyConvRot {
    Int8,
    W4A4,
}

impl ComfyConvRot {
    /// Columns of a row of `cols` that are rotated together.
    fn group(self, cols: usize) -> Option<usize> {
        match self {
            _ if cols.is_multiple_of(GROUP) => Some(GROUP),
            Self::Int8 => None,
            Self::W4A4 => Some(LEAST),
        }
    }

    fn description(self, group: Option<usize>) -> String {
        match (self, group) {
            (Self::Int8, Some(group)) => {
                format!(
                    r#"{{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": {group}}}"#
                )
            }
            (Self::Int8, None) => r#"{"format": "int8_tensorwise"}"#.to_owned(),
            (Self::W4A4, group) => {
                let group = group.unwrap_or(GROUP);
                format!(r#"{{"format": "convrot_w4a4", "convrot_groupsize": {group}}}"#)
            }
        }
    }
}

impl Method for ComfyConvRot {
    fn makes(&self, scheme: QuantScheme) -> bool {
        has_marker(scheme)
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        let unit = match self {
            Self::Int8 => 1,
            Self::W4A4 => LEAST,
        };
        let is_too_long = weight.cols() > MAX_ROW_LEN;
        linear_weight_objection(weight, unit).or_else(|| {
            is_too_long.then(|| {
                format!("its rows of {} values are longer than {MAX_ROW_LEN}", weight.cols())
            })
        })
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols) = (weight.rows(), weight.cols());
        let group = self.group(cols);
        let description = self.description(group);
        let (width, scales): (_, &[usize]) = match self {
            Self::Int8 => (cols, &[rows, 1]),
            Self::W4A4 => (cols / 2, &[rows]),
        };
        let name = |end: &str| format!("{}{end}", weight.name);
        Ok(Box::new(ComfyConvRotEncoder {
            stored: vec![
                stored_tensor(weight.name.to_owned(), Dtype::I8, &[rows, width]),
                stored_tensor(name("_scale"), Dtype::F32, scales),
                marker(weight, &description),
            ],
            format: *self,
            description,
            rows,
            cols,
            group,
        }))
    }
}

/// Encodes one tensor.
struct ComfyConvRotEncoder {
    stored: Vec<StoredTensor>,
    format: ComfyConvRot,
    description: String,
    rows: usize,
    cols: usize,
    group: Option<usize>,
}

impl Encode for ComfyConvRotEncoder {
    fn stored(&self) -> Vec<StoredTensor> {
        self.stored.clone()
    }

    fn grid(&self) -> Grid {
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: 1,
            // Whole rows: the scale is that of the largest magnitude of the row.
            col_align: self.cols.max(1),
            // A code, and a scale for each row.
            load_bits: 8.0 + 32.0 / self.cols.max(1) as f64,
            transposed: None,
        }
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (first, cols) = (values.tile.rows.start, self.cols);
        let codes = &mut buffers.codes;
        codes.resize(values.values.len(), 0);
        let mut scales = vec![0.0; values.tile.rows.len()];
        let range = match self.format {
            ComfyConvRot::Int8 => RotatedRange::Int8,
            ComfyConvRot::W4A4 => RotatedRange::Int4,
        };
        let mut rows = EncodeRotatedRows {
            values: values.values,
            width: cols,
            group: self.group,
            range,
            codes,
            scales: &mut scales,
        };
        perform(values.level, &mut rows);
        // Sums of finite values can be beyond F32.
        if let Some(row) = scales.iter().position(|scale| !scale.is_finite()) {
            let what = format!(
                "{}: rotated values of row {} are beyond F32",
                InTensor(&self.stored[0].name),
                first + row
            );
            return Err(AnamnesisError::unsupported("ComfyUI quantization", what));
        }
        put(1, first as u64 * 4, scales.as_bytes())?;
        match self.format {
            ComfyConvRot::Int8 => put(0, (first * cols) as u64, codes)?,
            ComfyConvRot::W4A4 => {
                let pairs = codes.as_chunks().0.iter();
                let nibbles: Vec<u8> = pairs.map(|[low, high]| low & 15 | high << 4).collect();
                put(0, (first * cols / 2) as u64, &nibbles)?;
            }
        }
        self.decode(codes, &scales, values.level, back);
        if values.tile.is_first() {
            put(2, 0, self.description.as_bytes())
        } else {
            Ok(())
        }
    }
}

impl ComfyConvRotEncoder {
    /// The values that `codes` stand for, a byte each, with a scale for each row.
    fn decode(&self, codes: &[u8], scales: &[f32], level: Level, back: &mut [f32]) {
        let Some(group) = self.group else {
            let width = self.cols.max(1);
            let rows = back.chunks_exact_mut(width).zip(codes.chunks_exact(width));
            for ((back, codes), scale) in rows.zip(scales) {
                for (back, &code) in back.iter_mut().zip(codes) {
                    *back = f32::from(code as i8) * scale;
                }
            }
            return;
        };
        let kernel = RotatedRows {
            codes: ByteCodes { bytes: codes, row_bytes: self.cols },
            width: self.cols,
            group,
            scales,
            corrections: None,
        };
        dispatch(level, &kernel, Out::F32(back));
    }
}
