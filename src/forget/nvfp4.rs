//! NVFP4: FP4 in groups of 16 values of a row, with a scale in E4M3, and one for the tensor.
//!
//! - ModelOpt: `X` U8 `[rows, cols / 2]`, `X_scale` F8_E4M3 `[rows, cols / 16]`, `X_scale_2` F32 `[]`, which multiplies.
//! - compressed-tensors: `X_packed`, `X_scale`, and `X_global_scale` F32 `[1]`, which divides.

use std::marker::PhantomData;

use serde_json::{Value, json};

use super::ct_config as ct;
use super::{Encode, Method, Put, Stored, Survey, Values, Weight};
use crate::forget::seam::rows::{no_matrix, put_both, shortened, stored};
use crate::kernels::lethe::groups::GroupBuffers;
use crate::kernels::lethe::nvfp4::{
    CompressedTensorsNvfp4, ModelOptNvfp4, global_divisor, global_multiplier,
};
use crate::kernels::remember::nvfp4::BLOCK;
use crate::scheme::Grid;
use crate::{Dtype, Result, TargetDtype};

/// NVFP4, weights only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nvfp4 {
    ModelOpt,
    CompressedTensors,
}

impl Method for Nvfp4 {
    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        no_matrix(weight, BLOCK)
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        use half::{bf16, f16};
        let (ends, global, run): (_, &[usize], Runner) = match (self, weight.dtype) {
            (Self::ModelOpt, _) => (["", "_scale", "_scale_2"], &[], modelopt),
            (Self::CompressedTensors, dtype) => {
                let run = match dtype {
                    TargetDtype::F32 => compressed_tensors::<f32>,
                    TargetDtype::F16 => compressed_tensors::<f16>,
                    TargetDtype::BF16 => compressed_tensors::<bf16>,
                };
                (["_packed", "_scale", "_global_scale"], &[1], run)
            }
        };
        let name = |i: usize| format!("{}{}", weight.name, ends[i]);
        let stored = [
            stored(name(0), Dtype::U8, &shortened(weight, 2)),
            stored(name(1), Dtype::F8E4M3, &shortened(weight, BLOCK)),
            stored(name(2), Dtype::F32, global),
        ];
        Ok(Box::new(Encoder {
            stored,
            run,
            rows: weight.rows(),
            cols: weight.cols(),
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        Some(match self {
            Self::ModelOpt => json!({
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"dynamic": false, "group_size": BLOCK, "num_bits": 4, "type": "float"},
                    },
                },
                "ignore": skipped,
                "producer": {"name": "modelopt", "version": "0.47.0"},
                "quant_algo": "W4A16_NVFP4",
                "quant_method": "modelopt",
            }),
            Self::CompressedTensors => {
                let more = json!({"scale_dtype": "torch.float8_e4m3fn"});
                let weights = ct::floats(4, "tensor_group", false, Some(BLOCK), more);
                ct::config("nvfp4-pack-quantized", &weights, &Value::Null, skipped)
            }
        })
    }
}

/// Encodes groups of a tensor with this largest magnitude, and returns its scale.
type Runner = fn(f32, GroupBuffers<'_>) -> f32;

fn modelopt(max: f32, job: GroupBuffers<'_>) -> f32 {
    let global = global_multiplier(max);
    job.encode_with(&ModelOptNvfp4(global));
    global
}

fn compressed_tensors<E: crate::kernels::lethe::compute_dtype::ComputeDtype>(
    max: f32,
    job: GroupBuffers<'_>,
) -> f32 {
    let global = global_divisor::<E>(max);
    job.encode_with(&CompressedTensorsNvfp4::<E>(global, PhantomData));
    global
}

/// Encodes one weight.
struct Encoder {
    stored: [Stored; 3],
    run: Runner,
    rows: usize,
    cols: usize,
}

impl Encode for Encoder {
    fn stored(&self) -> Vec<Stored> {
        self.stored.to_vec()
    }

    fn grid(&self) -> Grid {
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: 1,
            col_align: BLOCK,
            load_bits: 8.0,
            transposed: false,
        }
    }

    fn survey(&self) -> Option<Survey> {
        Some(Survey::Max)
    }

    /// vLLM and TensorRT-LLM have one scale for what they fuse; llm-compressor and ModelOpt's export see to it.
    fn shares(&self) -> bool {
        true
    }

    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()> {
        let Values {
            tile,
            values,
            survey,
            level,
        } = *values;
        let (mut codes, mut shared) = (vec![0; values.len() / 2], vec![0; values.len() / BLOCK]);
        let job = GroupBuffers {
            values,
            codes: &mut codes,
            scale_bytes: &mut shared,
            back,
            level,
        };
        let global = (self.run)(survey as f32, job);
        put_both(tile, self.cols, [(2, &codes), (BLOCK, &shared)], put)?;
        if tile.is_first() {
            put(2, 0, &global.to_le_bytes())
        } else {
            Ok(())
        }
    }
}
