//! FP8 weights: the codes `X` F8_E4M3 or F8_E5M2 in the shape of the weight, and scales by which
//! codes are multiplied.
//!
//! - transformers (`integrations/finegrained_fp8.py`): `X_scale_inv` F32 `[row blocks, column
//!   blocks]`, F8_E8M0 if scales are powers of two, or `[1, 1]` for a whole tensor. Stacks of
//!   experts are encoded like matrices.
//! - compressed-tensors (`naive_quantized`): `X_scale` in the type of the model, `[1]`, `[rows, 1]`
//!   or one for each block.
//! - ComfyUI (comfy-kitchen `TensorCoreFP8Layout`): `X_scale` F32 `[]`, and `P.comfy_quant`, a JSON
//!   text that names the format, for there is no config.
//!
//! One scale for the tensor takes a survey pass for its largest magnitude. A scale for each block
//! does not: tiles are whole blocks.

mod activations;
mod encoder;

use std::sync::Arc;

use serde_json::{Value, json};

use self::activations::StaticFp8;
pub(super) use self::encoder::Fp8Encoder;
use super::activation_scales::ActivationScales;
use super::comfy::marker;
use super::compressed_tensors as ct;
use super::{Encode, Method, StoredTensor, WeightInfo};
use crate::lethe::kernels::fp8::Fp8Arithmetic;
use crate::lethe::seam::rows::{MAX_ROW_LEN, linear_weight_objection, stored_tensor};
use crate::remember::{Granularity, QuantScheme};
use crate::{Dtype, Result, TargetDtype};

/// The library whose names, config and arithmetic are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fp8Layout {
    Transformers {
        /// Whether scales are powers of two, stored as exponents.
        is_ue8m0: bool,
        /// Whether blocks at the edges may be smaller, as in DeepSeek's files. transformers leaves
        /// tensors that are not whole blocks as they are.
        allows_edge_blocks: bool,
    },
    CompressedTensors,
    ComfyUi {
        /// Whether codes are E5M2, not E4M3.
        is_e5m2: bool,
    },
}

/// FP8 with one scale for the tensor, for each row or for each block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fp8 {
    pub layout: Fp8Layout,
    pub granularity: Granularity,
}

impl Fp8 {
    /// Rows and columns of the values of `weight` that share a scale.
    fn block(&self, weight: &WeightInfo<'_>) -> [usize; 2] {
        match self.granularity {
            // Larger than every tensor, so that all values have one scale and divisions give one
            // block.
            Granularity::Tensor => [usize::MAX, usize::MAX],
            Granularity::Channel => [1, weight.cols().max(1)],
            Granularity::Group(cols) => [1, cols.max(1)],
            Granularity::Block { rows, cols } => [rows.max(1), cols.max(1)],
        }
    }

    fn has_one_scale(&self) -> bool {
        self.granularity == Granularity::Tensor
    }

    fn arithmetic(&self, dtype: TargetDtype) -> Fp8Arithmetic {
        match self.layout {
            Fp8Layout::Transformers { is_ue8m0, .. } => Fp8Arithmetic::Transformers { is_ue8m0 },
            Fp8Layout::CompressedTensors => Fp8Arithmetic::CompressedTensors(dtype),
            Fp8Layout::ComfyUi { .. } => Fp8Arithmetic::ComfyKitchen(dtype),
        }
    }

    /// The stored tensor of the scales of `weight` in blocks of `rows` × `cols`.
    fn scales(&self, weight: &WeightInfo<'_>, [rows, cols]: [usize; 2]) -> StoredTensor {
        let outer = weight.shape.len().saturating_sub(2);
        let leading = &weight.shape[..outer];
        let height = weight.shape.get(outer).copied().unwrap_or(1);
        let grid = [height.div_ceil(rows), weight.cols().div_ceil(cols)];
        let of_blocks: Vec<usize> = leading.iter().copied().chain(grid).collect();
        let name = |end: &str| format!("{}{end}", weight.name);
        match self.layout {
            Fp8Layout::Transformers { is_ue8m0, .. } => stored_tensor(
                name("_scale_inv"),
                if is_ue8m0 { Dtype::F8E8M0 } else { Dtype::F32 },
                &of_blocks,
            ),
            Fp8Layout::CompressedTensors if self.has_one_scale() => {
                stored_tensor(name("_scale"), weight.dtype.dtype(), &[1])
            }
            Fp8Layout::CompressedTensors => {
                stored_tensor(name("_scale"), weight.dtype.dtype(), &of_blocks)
            }
            // comfy-kitchen stores a scalar, and computes it in F32 for every dtype of the model.
            Fp8Layout::ComfyUi { .. } => stored_tensor(name("_scale"), Dtype::F32, &[]),
        }
    }

    /// The text of ComfyUI's `comfy_quant`.
    fn description(&self) -> Option<&'static str> {
        match self.layout {
            Fp8Layout::ComfyUi { is_e5m2: false } => Some("{\"format\": \"float8_e4m3fn\"}"),
            Fp8Layout::ComfyUi { is_e5m2: true } => Some("{\"format\": \"float8_e5m2\"}"),
            _ => None,
        }
    }

    /// The reason why transformers cannot read `weight`, a matrix or a stack, in these blocks. The
    /// blocks of a stack must be whole: its rows count through all matrices, so that a smaller
    /// block at an edge would reach into the next matrix.
    fn transformers_objection(
        &self,
        weight: &WeightInfo<'_>,
        allows_edge_blocks: bool,
    ) -> Option<String> {
        let [.., height, width] = *weight.shape else {
            return Some("it has one dimension".to_owned());
        };
        let is_stack = weight.shape.len() > 2;
        let [rows, cols] = self.block(weight);
        match self.granularity {
            Granularity::Tensor if is_stack => {
                Some("it is a stack, and one scale is for a matrix".to_owned())
            }
            Granularity::Tensor => None,
            Granularity::Channel => Some("transformers has no scales of rows".to_owned()),
            _ if (is_stack || !allows_edge_blocks)
                && (!height.is_multiple_of(rows) || !width.is_multiple_of(cols)) =>
            {
                Some(format!("its {height} × {width} are no whole blocks of {rows} × {cols}"))
            }
            _ => None,
        }
    }
}

impl Method for Fp8 {
    fn with_activation_scales(&self, scales: &Arc<ActivationScales>) -> Option<Arc<dyn Method>> {
        StaticFp8::new(*self, scales).map(|method| Arc::new(method) as Arc<dyn Method>)
    }

    fn makes(&self, scheme: QuantScheme) -> bool {
        matches!(
            scheme,
            QuantScheme::FineGrainedFp8 { .. }
                | QuantScheme::PerChannelFp8 { .. }
                | QuantScheme::PerTensorFp8 { .. }
        )
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        let shape = match self.layout {
            Fp8Layout::Transformers { allows_edge_blocks, .. } => {
                self.transformers_objection(weight, allows_edge_blocks)
            }
            Fp8Layout::CompressedTensors => linear_weight_objection(weight, 1),
            Fp8Layout::ComfyUi { .. } if !self.has_one_scale() => {
                Some("ComfyUI has one scale for a tensor".to_owned())
            }
            Fp8Layout::ComfyUi { .. } => linear_weight_objection(weight, 1),
        };
        if let Granularity::Block { rows: 0..=1, cols: 0..=1 } = self.granularity {
            // As many scales as values: readers cannot tell this from a scale of another weight.
            return Some("blocks of one value have nothing to share a scale".to_owned());
        }
        let cols = self.block(weight)[1];
        let is_too_long = !self.has_one_scale() && cols > MAX_ROW_LEN;
        shape.or_else(|| {
            is_too_long.then(|| format!("its {cols} values of a scale are more than {MAX_ROW_LEN}"))
        })
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let block = self.block(weight);
        let dtype = if self.layout == (Fp8Layout::ComfyUi { is_e5m2: true }) {
            Dtype::F8E5M2
        } else {
            Dtype::F8E4M3
        };
        let mut parts = vec![
            stored_tensor(weight.name.to_owned(), dtype, weight.shape),
            self.scales(weight, block),
        ];
        let description = self.description();
        parts.extend(description.map(|text| marker(weight, text)));
        let (rows, cols) = (weight.rows(), weight.cols());
        let (arithmetic, has_one_scale) = (self.arithmetic(weight.dtype), self.has_one_scale());
        Ok(Box::new(Fp8Encoder {
            stored: parts,
            description,
            arithmetic,
            rows,
            cols,
            block,
            has_one_scale,
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let block = match self.granularity {
            Granularity::Group(cols) => Some([1, cols]),
            Granularity::Block { rows, cols } => Some([rows, cols]),
            _ => None,
        };
        match self.layout {
            Fp8Layout::Transformers { is_ue8m0, .. } => {
                let mut config = json!({
                    "activation_scheme": "dynamic",
                    "fmt": "e4m3",
                    "modules_to_not_convert": skipped,
                    "quant_method": "fp8",
                    // null stands for one scale a tensor, as in `FineGrainedFP8Config`.
                    "weight_block_size": block,
                });
                if is_ue8m0 {
                    config["scale_fmt"] = "ue8m0".into();
                }
                Some(config)
            }
            Fp8Layout::CompressedTensors => {
                let token = ct::float_args(8, "token", true, None, Value::Null);
                let (weights, activations) = match (self.granularity, block) {
                    (Granularity::Tensor, _) => {
                        (ct::float_args(8, "tensor", false, None, Value::Null), token)
                    }
                    (_, None) => (ct::float_args(8, "channel", false, None, Value::Null), token),
                    // Activations are quantized in groups of the block's width, so that both have a
                    // scale for the same inputs.
                    (_, Some(block)) => (
                        ct::float_args(8, "block", false, None, json!({"block_structure": block})),
                        ct::float_args(8, "group", true, Some(block[1]), Value::Null),
                    ),
                };
                Some(ct::model_config("float-quantized", &weights, &activations, skipped))
            }
            Fp8Layout::ComfyUi { .. } => None,
        }
    }
}
