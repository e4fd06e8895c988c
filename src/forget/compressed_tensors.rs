//! compressed-tensors: integers of one to eight bits in groups or channels. Packed: `W_packed` I32, `W_scale` in the type
//! of the model, `W_shape` I64, and `W_zero_point` I32, packed down the rows, if it is asymmetric. For activations of
//! eight bits, too: `W` I8 and `W_scale`.
//!
//! Layouts and config: compressed-tensors 0.20 `compressors/pack_quantized`, `compressors/naive_quantized`,
//! `compressors/model_compressors/model_compressor.py` (`update_config`).

use serde_json::{Value, json};

use super::ct_config;
use super::{Encode, Method, Stored, Weight};
use crate::forget::seam::grouped::{Form, Grouped, Packing, Place, objection_to_matrix};
use crate::kernels::lethe::integer::{IntegerQuantizer, IntegerRule};
use crate::{Dtype, Result};

/// A scheme of compressed-tensors with integer weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompressedTensors {
    /// One to eight.
    pub bits: usize,
    /// Columns of a group; none are whole rows, which the library calls channels.
    pub group: Option<usize>,
    pub symmetric: bool,
    /// Whether activations are integers of eight bits, scaled for each token. Then weights are bytes.
    pub activations: bool,
}

impl CompressedTensors {
    /// Four bits, and what enters the layer as it is.
    pub(crate) const W4A16: Self = Self {
        bits: 4,
        group: Some(128),
        symmetric: true,
        activations: false,
    };
    pub(crate) const W4A16_ASYM: Self = Self {
        symmetric: false,
        ..Self::W4A16
    };
    /// Eight bits in channels.
    pub(crate) const W8A16: Self = Self {
        bits: 8,
        group: None,
        symmetric: true,
        activations: false,
    };
    pub(crate) const W8A8: Self = Self {
        activations: true,
        ..Self::W8A16
    };

    fn group_of(&self, weight: &Weight<'_>) -> usize {
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
    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        objection_to_matrix(weight, self.group_of(weight))
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols, bits, group) = (
            weight.rows(),
            weight.cols(),
            self.bits,
            self.group_of(weight),
        );
        let rule = IntegerRule::CompressedTensors {
            symmetric: self.symmetric,
        };
        let matrix = |part, form, cols| Place {
            part,
            form,
            bits,
            rows,
            cols,
        };
        let stored = |end: &str, dtype, shape: &[usize]| Stored {
            name: format!("{}{end}", weight.name),
            dtype,
            shape: shape.to_vec(),
        };
        let (groups, floats) = (
            cols / group,
            Form::Floats {
                dtype: weight.dtype,
                turned: false,
            },
        );
        let scale = stored("_scale", weight.dtype.dtype(), &[rows, groups]);
        let zero = (!self.symmetric).then_some(2 + usize::from(!self.activations));
        let mut out = Grouped {
            name: weight.name.to_owned(),
            quantizer: IntegerQuantizer {
                rule,
                bits,
                group,
                dtype: weight.dtype,
            },
            stored: vec![stored("", Dtype::I8, &[rows, cols]), scale.clone()],
            codes: matrix(0, Form::Bytes { flip: 0x80 }, cols),
            scales: matrix(1, floats, groups),
            offsets: zero.map(|part| matrix(part, Form::Bytes { flip: 0x80 }, groups)),
            row_align: 1,
            index: None,
            constant: None,
        };
        if !self.activations {
            let words = (cols * bits).div_ceil(32);
            out.codes.form = Form::Packed(Packing::Along);
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
                place.form = Form::Packed(Packing::DownTurned);
                out.row_align = 32;
                out.stored.push(stored(
                    name,
                    Dtype::I32,
                    &[(rows * bits).div_ceil(32), groups],
                ));
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
        Some(ct_config::config(
            self.format(),
            &weights,
            &activations,
            skipped,
        ))
    }
}
