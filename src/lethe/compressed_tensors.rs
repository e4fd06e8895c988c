//! compressed-tensors: integers of one to eight bits, with a scale for each group of a row or for
//! each row (a channel).
//!
//! - `pack-quantized`, weights only: `W_packed` I32 `[rows, words]`, `W_scale` in the type of the
//!   model `[rows, groups]`, `W_shape` I64 `[2]`, because rows are padded to whole words. If
//!   asymmetric, `W_zero_point` I32 `[words, groups]`, packed down the rows.
//! - `int-quantized`, for activations of eight bits: `W` I8 `[rows, cols]`, `W_scale`, and
//!   `W_zero_point` I8.
//!
//! The config of the library's other formats, which FP8, MX and NVFP4 use, is here too.
//!
//! Layouts, config and presets: compressed-tensors 0.20 `quantization/quant_scheme.py`,
//! `compressors/pack_quantized`, `compressors/naive_quantized`,
//! `compressors/model_compressors/model_compressor.py` (`update_config`).

use serde_json::{Value, json};

use super::{Encode, Method, StoredTensor, WeightInfo};
use crate::lethe::kernels::integer::{IntegerQuantizer, IntegerRule};
use crate::lethe::seam::grouped::{
    Grouped, MatrixForm, StoredMatrix, WordPacking, grouped_matrix_objection,
};
use crate::remember::QuantScheme;
use crate::{Dtype, Result};

/// A scheme of compressed-tensors with integer weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompressedTensors {
    /// Bits of a code: one to eight.
    pub bits: usize,
    /// Columns of a group. None: whole rows, which the library calls channels.
    pub group: Option<usize>,
    pub symmetric: bool,
    /// Whether activations are quantized to eight bits as well, with a scale for each token.
    /// Integer matrix multiplication reads weights as bytes, so the codes are not packed.
    pub activations: bool,
}

impl CompressedTensors {
    /// Weights of four bits, activations in the type of the model.
    pub(crate) const W4A16: Self =
        Self { bits: 4, group: Some(128), symmetric: true, activations: false };
    pub(crate) const W4A16_ASYM: Self = Self { symmetric: false, ..Self::W4A16 };
    /// Weights of eight bits, activations in the type of the model.
    pub(crate) const W8A16: Self = Self { bits: 8, ..Self::W4A16 };
    /// [`W8A16`](Self::W8A16) with a scale for each row, as the preset `W8A16` was up to
    /// compressed-tensors 0.15.
    pub(crate) const W8A16_CHANNEL: Self = Self { group: None, ..Self::W8A16 };
    pub(crate) const W8A8: Self = Self { activations: true, ..Self::W8A16_CHANNEL };

    fn group_of(&self, weight: &WeightInfo<'_>) -> usize {
        self.group.unwrap_or_else(|| weight.cols())
    }

    fn format(&self) -> &'static str {
        if self.activations {
            "int-quantized"
        } else {
            "pack-quantized"
        }
    }
}

impl Method for CompressedTensors {
    /// Codes of the packed layouts are moved.
    fn makes(&self, scheme: QuantScheme) -> bool {
        self.activations
            && matches!(scheme, QuantScheme::Grouped { family: "compressed-tensors", .. })
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        grouped_matrix_objection(weight, self.group_of(weight))
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols, bits, group) =
            (weight.rows(), weight.cols(), self.bits, self.group_of(weight));
        let rule = IntegerRule::CompressedTensors { symmetric: self.symmetric };
        let matrix = |part, form, cols| StoredMatrix { part, form, bits, rows, cols };
        let stored = |end: &str, dtype, shape: &[usize]| StoredTensor {
            name: format!("{}{end}", weight.name),
            dtype,
            shape: shape.to_vec(),
        };
        let (groups, floats) =
            (cols / group, MatrixForm::Floats { dtype: weight.dtype, is_transposed: false });
        let scale = stored("_scale", weight.dtype.dtype(), &[rows, groups]);
        // Index of the zero points: behind `_shape`, which only packed weights have.
        let zero = (!self.symmetric).then_some(2 + usize::from(!self.activations));
        let mut out = Grouped {
            name: weight.name.to_owned(),
            quantizer: IntegerQuantizer { rule, bits, group, dtype: weight.dtype },
            stored: vec![stored("", Dtype::I8, &[rows, cols]), scale.clone()],
            // The quantizer's codes are unsigned; flipping the highest bit subtracts 128 and makes
            // them signed bytes.
            codes: matrix(0, MatrixForm::Bytes { flip: 0x80 }, cols),
            scales: matrix(1, floats, groups),
            offsets: zero.map(|part| matrix(part, MatrixForm::Bytes { flip: 0x80 }, groups)),
            row_align: 1,
            index: None,
            constant: None,
        };
        if !self.activations {
            // Rows are padded to whole words, which hides their length: so the shape is stored,
            // too.
            let words = (cols * bits).div_ceil(32);
            out.codes.form = MatrixForm::Packed(WordPacking::AlongRows);
            out.stored = vec![
                stored("_packed", Dtype::I32, &[rows, words]),
                scale,
                stored("_shape", Dtype::I64, &[2]),
            ];
            out.constant = Some((
                2,
                [rows, cols]
                    .iter()
                    .flat_map(|&n| (n as u64).to_le_bytes())
                    .collect(),
            ));
        }
        if let Some(place) = &mut out.offsets {
            let name = "_zero_point";
            if self.activations {
                out.stored.push(stored(name, Dtype::I8, &[rows, groups]));
            } else {
                // 32 rows fill whole words at any number of bits, so that tiles share no word.
                place.form = MatrixForm::Packed(WordPacking::DownColumnsTransposed);
                out.row_align = 32;
                out.stored
                    .push(stored(name, Dtype::I32, &[(rows * bits).div_ceil(32), groups]));
            }
        }
        Ok(Box::new(out))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let activations = json!({
            "dynamic": true, "group_size": null, "num_bits": 8, "strategy": "token", "symmetric": true, "type": "int",
        });
        let weights = json!({
            "dynamic": false,
            "group_size": self.group,
            "num_bits": self.bits,
            "strategy": if self.group.is_some() { "group" } else { "channel" },
            "symmetric": self.symmetric,
            "type": "int",
        });
        let activations = if self.activations {
            activations
        } else {
            Value::Null
        };
        Some(model_config(self.format(), &weights, &activations, skipped))
    }
}

/// The config of a model whose linear layers are all in `format`, except the modules `ignore`: what
/// the library's `ModelCompressor.update_config` writes.
pub(super) fn model_config(
    format: &str,
    weights: &Value,
    activations: &Value,
    ignore: &[String],
) -> Value {
    json!({
        "config_groups": {
            "group_0": {
                "format": format,
                "input_activations": activations,
                "output_activations": null,
                "targets": ["Linear"],
                "weights": weights,
            },
        },
        "format": format,
        "global_compression_ratio": null,
        "ignore": ignore,
        "kv_cache_scheme": null,
        "moe_sparsity_config": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.20.0",
    })
}

/// The `QuantizationArgs` of weights or activations that are floats of `bits` bits. `more` has the
/// keys that only some strategies have.
pub(super) fn float_args(
    bits: u32,
    strategy: &str,
    dynamic: bool,
    group: Option<usize>,
    more: Value,
) -> Value {
    let mut value = json!({
        "dynamic": dynamic,
        "group_size": group,
        "num_bits": bits,
        "strategy": strategy,
        "symmetric": true,
        "type": "float",
    });
    if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
        value.extend(more);
    }
    value
}
