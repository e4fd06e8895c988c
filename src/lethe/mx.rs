//! MXFP4, MXFP6 and MXFP8: a power of two for each 32 values of a row, stored as its biased exponent.
//! FP4 codes lie two to a byte, FP6 codes four in three bytes, the first in the low bits.
//!
//! - compressed-tensors (`mxfp4-pack-quantized`, `mxfp6-pack-quantized`, `mxfp8-quantized`):
//!   `X_packed` U8 `[rows, cols / 2]`, `[rows, cols * 3 / 4]` or `X` F8_E4M3, and `X_scale` U8 `[rows,
//!   cols / 32]`.
//! - ModelOpt (`MXFP4QTensor`, `MXFP8QTensor`): `X` U8 `[rows, cols / 2]` or F8_E4M3, and `X_scale`
//!   U8.
//! - gpt-oss: a stack `X` `[experts, in, out]` or `X.weight` `[experts, out, in]` becomes
//!   `X_blocks` U8 `[experts, out, in / 32, 16]` and `X_scales` U8 `[experts, out, in / 32]`.
//!
//! No survey pass: an exponent depends on its block alone.

mod expert_stack;

use std::marker::PhantomData;

use serde_json::{Value, json};

use self::expert_stack::ExpertStackEncoder;
use super::compressed_tensors as ct;
use super::{
    Encode, EncodeBuffers, Method, Put, RelayTarget, StoreCodes, StoredTensor, TileValues,
    WeightInfo,
};
use crate::lethe::kernels::groups::{GroupArithmetic, GroupBuffers};
use crate::lethe::kernels::mx::{
    BLOCK, CompressedTensorsMx, GgmlMxfp4, ModelOptMx, MxElement, ScaleMode, TorchAoMx,
};
use crate::lethe::kernels::narrow::{Fp4E2M1, Fp6E2M3};
use crate::lethe::seam::grouped::{MatrixForm, StoredMatrix, WordPacking};
use crate::lethe::seam::rows::{
    ByteMatrix, linear_weight_objection, packed_shape, put_codes_and_scales, stored_tensor,
};
use crate::remember::kernels::fp8::E4M3;
use crate::remember::{CodeFamily, CodeType, Grid, GroupCodes, QuantScheme, Tile, TopExponent};
use crate::simd::Level;
use crate::{Dtype, Result, TargetDtype};

/// The library whose names and config are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MxLayout {
    CompressedTensors,
    ModelOpt,
    /// MXFP4 of OpenAI's gpt-oss, for stacks of experts only.
    GptOss,
}

/// The library whose choice of the exponent, and rounding of the scaled values, is used. The MX
/// specification fixes neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleRule {
    /// The rule of the library that the layout belongs to; [`ScaleMode::Rceil`] for gpt-oss.
    LayoutDefault,
    CompressedTensors,
    ModelOpt,
    TorchAo(ScaleMode),
    /// `quantize_row_mxfp4_ref` of ggml, which has MXFP4 only.
    Ggml,
}

impl ScaleRule {
    /// The rules by the names that users give them. `LayoutDefault` has none: it is what an absent
    /// option means.
    pub(super) const ALL: [(&'static str, Self); 7] = [
        ("compressed-tensors", Self::CompressedTensors),
        ("modelopt", Self::ModelOpt),
        ("floor", Self::TorchAo(ScaleMode::Floor)),
        ("ceil", Self::TorchAo(ScaleMode::Ceil)),
        ("even", Self::TorchAo(ScaleMode::Even)),
        ("rceil", Self::TorchAo(ScaleMode::Rceil)),
        ("ggml", Self::Ggml),
    ];
}

/// The codes of an MX format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MxCodes {
    Fp4,
    /// E2M3, of compressed-tensors alone.
    Fp6,
    Fp8,
}

impl MxCodes {
    fn bits(self) -> usize {
        match self {
            Self::Fp4 => 4,
            Self::Fp6 => 6,
            Self::Fp8 => 8,
        }
    }
}

/// MXFP4, MXFP6 or MXFP8 in one layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mx {
    pub layout: MxLayout,
    pub rule: ScaleRule,
    pub codes: MxCodes,
}

/// The kernel of one rule, element format and type of the model.
#[derive(Debug, Clone, Copy)]
struct MxKernel {
    /// Not [`ScaleRule::LayoutDefault`].
    rule: ScaleRule,
    codes: MxCodes,
    dtype: TargetDtype,
}

impl MxKernel {
    fn run(self, groups: GroupBuffers<'_>) {
        match self.codes {
            MxCodes::Fp4 => self.run_for::<Fp4E2M1>(groups),
            MxCodes::Fp6 => {
                groups.encode_with(&CompressedTensorsMx::<Fp6E2M3>(self.dtype, PhantomData));
            }
            MxCodes::Fp8 => self.run_for::<E4M3>(groups),
        }
    }

    /// For elements `N`. compressed-tensors rounds to `dtype`, the others compute in F32.
    fn run_for<N: MxElement>(self, groups: GroupBuffers<'_>)
    where
        ModelOptMx<N>: GroupArithmetic<BLOCK>,
    {
        match (self.rule, self.dtype) {
            (ScaleRule::ModelOpt, _) => groups.encode_with(&ModelOptMx::<N>(PhantomData)),
            (ScaleRule::TorchAo(mode), _) => {
                groups.encode_with(&TorchAoMx::<N>(mode, PhantomData));
            }
            // ggml has this rule for FP4 alone; `objection` has refused MXFP8.
            (ScaleRule::Ggml, _) => groups.encode_with(&GgmlMxfp4),
            (_, dtype) => groups.encode_with(&CompressedTensorsMx::<N>(dtype, PhantomData)),
        }
    }
}

impl Mx {
    /// The rule, with `LayoutDefault` replaced by the rule that it stands for.
    fn rule(&self) -> ScaleRule {
        match (self.rule, self.layout) {
            (ScaleRule::LayoutDefault, MxLayout::CompressedTensors) => ScaleRule::CompressedTensors,
            (ScaleRule::LayoutDefault, MxLayout::ModelOpt) => ScaleRule::ModelOpt,
            (ScaleRule::LayoutDefault, MxLayout::GptOss) => ScaleRule::TorchAo(ScaleMode::Rceil),
            (rule, _) => rule,
        }
    }
}

impl Method for Mx {
    fn makes(&self, scheme: QuantScheme) -> bool {
        match self.codes {
            MxCodes::Fp4 => false,
            MxCodes::Fp6 => matches!(scheme, QuantScheme::Grouped { codes: CodeType::Fp6, .. }),
            MxCodes::Fp8 => {
                matches!(scheme, QuantScheme::FineGrainedFp8 { rows: 1, cols: BLOCK, .. })
            }
        }
    }

    fn inputs_are_rows(&self, weight: &WeightInfo<'_>) -> bool {
        self.layout == MxLayout::GptOss && !weight.name.ends_with(".weight")
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        let is_mxfp8 = self.codes == MxCodes::Fp8;
        if is_mxfp8 && (self.rule == ScaleRule::Ggml || self.layout == MxLayout::GptOss) {
            return Some("MXFP8 is not known there".to_owned());
        }
        let partial_block =
            |n: &usize, what| Some(format!("its {n} {what} are no multiple of {BLOCK}"));
        // A `.weight` of three dimensions is a stack in every layout: blocks lie in its rows.
        match (self.layout, weight.name.ends_with(".weight"), weight.shape) {
            (_, true, [_, _, inputs]) => {
                partial_block(inputs, "columns").filter(|_| !inputs.is_multiple_of(BLOCK))
            }
            (MxLayout::GptOss, false, [_, inputs, _]) => {
                partial_block(inputs, "rows").filter(|_| !inputs.is_multiple_of(BLOCK))
            }
            (MxLayout::GptOss, ..) => Some("it is no stack of matrices".to_owned()),
            _ => linear_weight_objection(weight, BLOCK),
        }
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rule, dtype) = (self.rule(), weight.dtype);
        let kernel = MxKernel { rule, codes: self.codes, dtype };
        let (rows, cols) = (weight.rows(), weight.cols());
        if let (MxLayout::GptOss, &[experts, first, last]) = (self.layout, weight.shape) {
            // A module's weight is [experts, out, in], its blocks lie in rows. A bare parameter is
            // [experts, in, out], as transformers multiplies with it, and gpt-oss stores the blocks
            // of its columns.
            let in_columns = self.inputs_are_rows(weight);
            let (outputs, inputs) = if in_columns {
                (last, first)
            } else {
                (first, last)
            };
            let part = |end, shape: &[usize]| {
                stored_tensor(format!("{}{end}", weight.base()), Dtype::U8, shape)
            };
            let blocks = part("_blocks", &[experts, outputs, inputs / BLOCK, BLOCK / 2]);
            let stored = [blocks, part("_scales", &[experts, outputs, inputs / BLOCK])];
            return Ok(match in_columns {
                // No other layout stores blocks of columns: their codes are never relayed.
                true => Box::new(ExpertStackEncoder { stored, kernel, rows, inputs, outputs }),
                false => {
                    let family = Some(CodeFamily::Mxfp4 { top: TopExponent::Power });
                    Box::new(MxMatrixEncoder { stored, kernel, rows, cols, family })
                }
            });
        }
        let name = |end: &str| format!("{}{end}", weight.name);
        let (end, dtype) = match (self.codes, self.layout) {
            (MxCodes::Fp8, _) => ("", Dtype::F8E4M3),
            (_, MxLayout::CompressedTensors) => ("_packed", Dtype::U8),
            _ => ("", Dtype::U8),
        };
        let mut shape = weight.shape.to_vec();
        if let Some(bytes) = shape.last_mut() {
            *bytes = cols / 8 * self.codes.bits();
        }
        let codes = stored_tensor(name(end), dtype, &shape);
        let scales = stored_tensor(name("_scale"), Dtype::U8, &packed_shape(weight, BLOCK));
        let family = (self.codes == MxCodes::Fp4)
            .then_some(CodeFamily::Mxfp4 { top: TopExponent::Infinity });
        Ok(Box::new(MxMatrixEncoder { stored: [codes, scales], kernel, rows, cols, family }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let of = |bits, format| {
            let more = json!({"scale_dtype": "torch.uint8"});
            ct::model_config(
                format,
                &ct::float_args(bits, "group", false, Some(BLOCK), more),
                &Value::Null,
                skipped,
            )
        };
        let algo = if self.codes == MxCodes::Fp8 {
            "MXFP8"
        } else {
            "MXFP4"
        };
        Some(match self.layout {
            MxLayout::CompressedTensors => match self.codes {
                MxCodes::Fp4 => of(4, "mxfp4-pack-quantized"),
                MxCodes::Fp6 => of(6, "mxfp6-pack-quantized"),
                MxCodes::Fp8 => of(8, "mxfp8-quantized"),
            },
            MxLayout::ModelOpt => json!({
                "group_size": BLOCK,
                "ignore": skipped,
                "producer": {"name": "modelopt", "version": "0.47.0"},
                "quant_algo": algo,
                "quant_method": "modelopt",
            }),
            MxLayout::GptOss => json!({"modules_to_not_convert": skipped, "quant_method": "mxfp4"}),
        })
    }
}

/// Encodes a matrix, or a stack of matrices, whose blocks lie in rows.
struct MxMatrixEncoder {
    stored: [StoredTensor; 2],
    kernel: MxKernel,
    rows: usize,
    cols: usize,
    /// The family of the codes, if they can be relayed.
    family: Option<CodeFamily>,
}

impl Encode for MxMatrixEncoder {
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

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let TileValues { tile, values, activations, level, .. } = *values;
        let unit = if self.kernel.codes == MxCodes::Fp4 {
            2
        } else {
            1
        };
        let (codes, scale_bytes) = buffers.codes_and_scales(values.len(), [unit, BLOCK]);
        self.kernel
            .run(GroupBuffers { values, activations, codes, scale_bytes, back, level });
        if self.kernel.codes == MxCodes::Fp6 {
            let EncodeBuffers { codes, scale_bytes, words, .. } = buffers;
            let matrix = StoredMatrix {
                part: 0,
                form: MatrixForm::Packed(WordPacking::AlongRows),
                bits: self.kernel.codes.bits(),
                rows: self.rows,
                cols: self.cols,
            };
            matrix.put_codes(tile, codes, level, words, put)?;
            let blocks = tile.cols.start / BLOCK..tile.cols.end / BLOCK;
            let exponents = ByteMatrix { part: 1, stride: self.cols / BLOCK };
            return exponents.put(tile.rows.clone(), blocks, scale_bytes, put);
        }
        self.store(tile, codes, scale_bytes, put)
    }

    fn relay(&self) -> Option<RelayTarget<'_>> {
        let codes = self;
        self.family.map(|family| RelayTarget { family, codes })
    }
}

impl StoreCodes for MxMatrixEncoder {
    fn store_codes(
        &self,
        tile: &Tile,
        codes: &mut GroupCodes,
        _level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        self.store(tile, &pairs(&codes.codes), &codes.exponents, put)
    }
}

impl MxMatrixEncoder {
    /// Passes the codes and exponents of a tile to `put`.
    fn store(&self, tile: &Tile, codes: &[u8], shared: &[u8], put: &mut Put<'_>) -> Result<()> {
        let unit = 8 / self.kernel.codes.bits();
        put_codes_and_scales(tile, self.cols, [(unit, codes), (BLOCK, shared)], put)
    }
}

/// Packs FP4 codes, two to a byte, the first in the low bits.
pub(super) fn pairs(codes: &[u8]) -> Vec<u8> {
    codes
        .as_chunks()
        .0
        .iter()
        .map(|[low, high]| low | high << 4)
        .collect()
}
