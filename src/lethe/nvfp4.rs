//! NVFP4: FP4 in groups of 16 values of a row, each with a scale in E4M3, and one scale in F32 for
//! the tensor.
//!
//! - ModelOpt (`NVFP4QTensor`): `X` U8 `[rows, cols / 2]`, `X_scale` F8_E4M3 `[rows, cols / 16]`,
//!   `X_scale_2` F32 `[]`. Decoding multiplies by both scales.
//! - compressed-tensors (`nvfp4-pack-quantized`): `X_packed`, `X_scale`, and `X_global_scale` F32
//!   `[1]`, by which decoding divides.
//!
//! The scale of the tensor maps the largest magnitude to 448 × 6, the largest scale times the
//! largest code. So a survey pass has to find that magnitude before the first group is encoded.

use serde_json::{Value, json};

use super::compressed_tensors as ct;
use super::mx::pairs;
use super::{
    Encode, EncodeBuffers, Method, Put, RelayTarget, StoreCodes, StoredTensor, Survey, TileValues,
    WeightInfo,
};
use crate::lethe::kernels::groups::GroupBuffers;
use crate::lethe::kernels::mx::BLOCK as MX_BLOCK;
use crate::lethe::kernels::narrow::narrow;
use crate::lethe::kernels::nvfp4::{
    CompressedTensorsNvfp4, ModelOptNvfp4, global_divisor, global_multiplier,
};
use crate::lethe::seam::rows::{
    linear_weight_objection, packed_shape, put_codes_and_scales, stored_tensor,
};
use crate::remember::kernels::fp8::E4M3;
use crate::remember::kernels::nvfp4::BLOCK;
use crate::remember::{CodeFamily, Grid, GroupCodes, QuantScheme, Tile};
use crate::simd::Level;
use crate::{Dtype, Result, TargetDtype};

/// The largest and the smallest power of two in E4M3.
const MAX_POWER: i32 = 8;
const MIN_POWER: i32 = -9;

/// The bias of exponents of MXFP4.
const EXPONENT_BIAS: i32 = 127;

/// NVFP4, weights only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nvfp4 {
    ModelOpt,
    CompressedTensors,
}

impl Method for Nvfp4 {
    fn makes(&self, scheme: QuantScheme) -> bool {
        matches!(scheme, QuantScheme::Nvfp4 { .. })
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        linear_weight_objection(weight, BLOCK)
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (ends, global): (_, &[usize]) = match self {
            Self::ModelOpt => (["", "_scale", "_scale_2"], &[]),
            Self::CompressedTensors => (["_packed", "_scale", "_global_scale"], &[1]),
        };
        let name = |i: usize| format!("{}{}", weight.name, ends[i]);
        let stored = [
            stored_tensor(name(0), Dtype::U8, &packed_shape(weight, 2)),
            stored_tensor(name(1), Dtype::F8E4M3, &packed_shape(weight, BLOCK)),
            // ModelOpt's global scale is a scalar and compressed-tensors' a vector of one value.
            // Torch promotes by that, so it decides about bits.
            stored_tensor(name(2), Dtype::F32, global),
        ];
        Ok(Box::new(Nvfp4Encoder {
            stored,
            library: *self,
            dtype: weight.dtype,
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
                let weights = ct::float_args(4, "tensor_group", false, Some(BLOCK), more);
                ct::model_config("nvfp4-pack-quantized", &weights, &Value::Null, skipped)
            }
        })
    }
}

/// Encodes one tensor to NVFP4.
struct Nvfp4Encoder {
    stored: [StoredTensor; 3],
    library: Nvfp4,
    /// The dtype of the model's values.
    dtype: TargetDtype,
    rows: usize,
    cols: usize,
}

impl Encode for Nvfp4Encoder {
    fn stored(&self) -> Vec<StoredTensor> {
        self.stored.to_vec()
    }

    fn grid(&self) -> Grid {
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: 1,
            col_align: BLOCK,
            load_bits: 8.0,
            transposed: None,
        }
    }

    fn survey(&self) -> Option<Survey> {
        Some(Survey::MaxAbs)
    }

    /// vLLM and TensorRT-LLM keep one tensor scale for a fused matrix, so its parts must have the
    /// same. llm-compressor and ModelOpt's export take care of that as well.
    fn shares_survey(&self) -> bool {
        true
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let TileValues { tile, values, survey, activations, level, .. } = *values;
        let (codes, scale_bytes) = buffers.codes_and_scales(values.len(), [2, BLOCK]);
        let job = GroupBuffers { values, activations, codes, scale_bytes, back, level };
        // Every tile computes the global scale from the same survey; the first one writes it.
        let max_abs = survey as f32;
        let global = match self.library {
            Nvfp4::ModelOpt => {
                let global = global_multiplier(max_abs);
                job.encode_with(&ModelOptNvfp4(global));
                global
            }
            Nvfp4::CompressedTensors => {
                let global = global_divisor(self.dtype, max_abs);
                job.encode_with(&CompressedTensorsNvfp4(global, self.dtype));
                global
            }
        };
        self.store(tile, (codes, scale_bytes), global, put)
    }

    fn relay(&self) -> Option<RelayTarget<'_>> {
        Some(RelayTarget { family: CodeFamily::Nvfp4, codes: self })
    }
}

impl Nvfp4Encoder {
    fn store(
        &self,
        tile: &Tile,
        (codes, scales): (&[u8], &[u8]),
        global: f32,
        put: &mut Put<'_>,
    ) -> Result<()> {
        put_codes_and_scales(tile, self.cols, [(2, codes), (BLOCK, scales)], put)?;
        match tile.is_first() {
            true => put(2, 0, &global.to_le_bytes()),
            false => Ok(()),
        }
    }
}

impl StoreCodes for Nvfp4Encoder {
    fn store_codes(
        &self,
        tile: &Tile,
        codes: &mut GroupCodes,
        _level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (scales, power) = scales_of_mxfp4(codes);
        let exponent = match self.library {
            Nvfp4::ModelOpt => power,
            // It divides by the scale of the tensor.
            Nvfp4::CompressedTensors => -power,
        };
        let global = 2f64.powi(exponent) as f32;
        self.store(tile, (&pairs(&codes.codes), &scales), global, put)
    }
}

/// The scales of codes of MXFP4, which are powers of two, and the exponent of that of the tensor, as
/// ModelOpt 0.47.0 casts them (`quantize_mxfp4_to_nvfp4_lossless`).
pub(super) fn scales_of_mxfp4(codes: &GroupCodes) -> (Vec<u8>, i32) {
    let top = i32::from(codes.top_exponent);
    // A block of zeros may have an exponent below the range; it gets the least scale.
    let scale = |&exponent: &u8| {
        let power = (i32::from(exponent) - top + MAX_POWER).max(MIN_POWER);
        narrow::<E4M3>(2f32.powi(power)).0 as u8
    };
    let scales = codes.exponents.iter().map(scale);
    let scales = scales.flat_map(|byte| std::iter::repeat_n(byte, MX_BLOCK / BLOCK));
    (scales.collect(), top - EXPONENT_BIAS - MAX_POWER)
}
