//! MXFP4 and MXFP8: a power of two for each 32 values of a row.
//!
//! - compressed-tensors: `X_packed` U8 `[rows, cols / 2]` or `X` F8_E4M3, and `X_scale` U8 `[rows, cols / 32]`.
//! - ModelOpt: `X` U8 `[rows, cols / 2]` or F8_E4M3, and `X_scale` U8.
//! - gpt-oss: a stack `X` `[experts, in, out]` or `X.weight` `[experts, out, in]` becomes `X_blocks` U8
//!   `[experts, out, in / 32, 16]` and `X_scales` U8 `[experts, out, in / 32]`.

use std::marker::PhantomData;

use serde_json::{Value, json};

use super::ct_config as ct;
use super::{Encode, Method, Put, RelayTarget, StoreCodes, Stored, Values, Weight};
use crate::forget::seam::rows::{Matrix, no_matrix, put_both, shortened, stored};
use crate::kernels::lethe::groups::{GroupArithmetic, GroupBuffers};
use crate::kernels::lethe::mx::{
    BLOCK, CEIL, CompressedTensorsMx, EVEN, FLOOR, GgmlMxfp4, ModelOptMx, MxElement, TorchAoMx,
    TorchAoRceil,
};
use crate::kernels::lethe::narrow::Fp4E2M1;
use crate::kernels::lethe::pack::transposed;
use crate::kernels::remember::fp8::E4M3;
use crate::scheme::{CodeFamily, Grid, GroupCodes, Tile};
use crate::simd::Level;
use crate::{Dtype, Result, TargetDtype};

/// Whose names and configs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MxLayout {
    CompressedTensors,
    ModelOpt,
    /// Stacks of experts, in MXFP4.
    GptOss,
}

/// Whose power of two, and whose rounding of what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleRule {
    /// That of the library whose layout it is; for gpt-oss [`Rceil`](Self::Rceil).
    Own,
    CompressedTensors,
    ModelOpt,
    /// torchao's modes. `Rceil` is what NVIDIA's instructions do.
    Floor,
    Ceil,
    Even,
    Rceil,
    /// ggml's, of MXFP4.
    Ggml,
}

impl ScaleRule {
    /// Those that can be asked for, by name.
    pub(super) const ALL: [(&'static str, Self); 7] = [
        ("compressed-tensors", Self::CompressedTensors),
        ("modelopt", Self::ModelOpt),
        ("floor", Self::Floor),
        ("ceil", Self::Ceil),
        ("even", Self::Even),
        ("rceil", Self::Rceil),
        ("ggml", Self::Ggml),
    ];
}

/// MXFP4 or, if it is `wide`, MXFP8.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mx {
    pub layout: MxLayout,
    pub rule: ScaleRule,
    pub wide: bool,
}

type Runner = fn(GroupBuffers<'_>);

/// The runner of a rule that takes both kinds of elements.
fn runner<N: MxElement>(rule: ScaleRule, dtype: TargetDtype) -> Runner
where
    ModelOptMx<N>: GroupArithmetic<BLOCK>,
{
    use half::{bf16, f16};
    match (rule, dtype) {
        (ScaleRule::ModelOpt, _) => |job| job.encode_with(&ModelOptMx::<N>(PhantomData)),
        (ScaleRule::Floor, _) => |job| job.encode_with(&TorchAoMx::<FLOOR, N>(PhantomData)),
        (ScaleRule::Ceil, _) => |job| job.encode_with(&TorchAoMx::<CEIL, N>(PhantomData)),
        (ScaleRule::Even, _) => |job| job.encode_with(&TorchAoMx::<EVEN, N>(PhantomData)),
        (ScaleRule::Rceil, _) => |job| job.encode_with(&TorchAoRceil::<N>(PhantomData)),
        (ScaleRule::Ggml, _) => |job| job.encode_with(&GgmlMxfp4),
        (_, TargetDtype::F32) => |job| job.encode_with(&CompressedTensorsMx::<f32, N>(PhantomData)),
        (_, TargetDtype::F16) => |job| job.encode_with(&CompressedTensorsMx::<f16, N>(PhantomData)),
        (_, TargetDtype::BF16) => {
            |job| job.encode_with(&CompressedTensorsMx::<bf16, N>(PhantomData))
        }
    }
}

impl Mx {
    /// The rule that `Own` means.
    fn rule(&self) -> ScaleRule {
        match (self.rule, self.layout) {
            (ScaleRule::Own, MxLayout::CompressedTensors) => ScaleRule::CompressedTensors,
            (ScaleRule::Own, MxLayout::ModelOpt) => ScaleRule::ModelOpt,
            (ScaleRule::Own, MxLayout::GptOss) => ScaleRule::Rceil,
            (rule, _) => rule,
        }
    }
}

impl Method for Mx {
    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        if self.wide && (self.rule == ScaleRule::Ggml || self.layout == MxLayout::GptOss) {
            return Some("MXFP8 is not known there".to_owned());
        }
        let ragged = |n: &usize, what| Some(format!("its {n} {what} are no multiple of {BLOCK}"));
        match (self.layout, weight.name.ends_with(".weight"), weight.shape) {
            (_, true, [_, _, inputs]) => {
                ragged(inputs, "columns").filter(|_| !inputs.is_multiple_of(BLOCK))
            }
            (MxLayout::GptOss, false, [_, inputs, _]) => {
                ragged(inputs, "rows").filter(|_| !inputs.is_multiple_of(BLOCK))
            }
            (MxLayout::GptOss, ..) => Some("it is no stack of matrices".to_owned()),
            _ => no_matrix(weight, BLOCK),
        }
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        let (rule, dtype) = (self.rule(), weight.dtype);
        let run = if self.wide {
            runner::<E4M3>(rule, dtype)
        } else {
            runner::<Fp4E2M1>(rule, dtype)
        };
        let (rows, cols) = (weight.rows(), weight.cols());
        if let (MxLayout::GptOss, &[experts, first, last]) = (self.layout, weight.shape) {
            let in_rows = weight.name.ends_with(".weight");
            let (outputs, inputs) = if in_rows {
                (first, last)
            } else {
                (last, first)
            };
            let part =
                |end, shape: &[usize]| stored(format!("{}{end}", weight.base()), Dtype::U8, shape);
            let blocks = part("_blocks", &[experts, outputs, inputs / BLOCK, BLOCK / 2]);
            let stored = [blocks, part("_scales", &[experts, outputs, inputs / BLOCK])];
            return Ok(match in_rows {
                true => {
                    let family = Some(CodeFamily::Mxfp4 { has_nan: false });
                    Box::new(Rows {
                        stored,
                        run,
                        rows,
                        cols,
                        unit: 2,
                        family,
                    })
                }
                false => Box::new(Stack {
                    stored,
                    run,
                    rows,
                    inputs,
                    outputs,
                }),
            });
        }
        let name = |end: &str| format!("{}{end}", weight.name);
        let (end, dtype, unit) = match (self.wide, self.layout) {
            (true, _) => ("", Dtype::F8E4M3, 1),
            (false, MxLayout::CompressedTensors) => ("_packed", Dtype::U8, 2),
            (false, _) => ("", Dtype::U8, 2),
        };
        let codes = stored(name(end), dtype, &shortened(weight, unit));
        let scales = stored(name("_scale"), Dtype::U8, &shortened(weight, BLOCK));
        let family = (unit == 2).then_some(CodeFamily::Mxfp4 { has_nan: true });
        Ok(Box::new(Rows {
            stored: [codes, scales],
            run,
            rows,
            cols,
            unit,
            family,
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let of = |bits, format| {
            let more = json!({"scale_dtype": "torch.uint8"});
            ct::config(
                format,
                &ct::floats(bits, "group", false, Some(BLOCK), more),
                &Value::Null,
                skipped,
            )
        };
        let algo = if self.wide { "MXFP8" } else { "MXFP4" };
        Some(match self.layout {
            MxLayout::CompressedTensors if self.wide => of(8, "mxfp8-quantized"),
            MxLayout::CompressedTensors => of(4, "mxfp4-pack-quantized"),
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

/// Encodes a matrix.
struct Rows {
    stored: [Stored; 2],
    run: Runner,
    rows: usize,
    cols: usize,
    /// Codes in a byte.
    unit: usize,
    /// The family of the codes, if they can be relayed.
    family: Option<CodeFamily>,
}

impl Encode for Rows {
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

    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()> {
        let Values {
            tile,
            values,
            level,
            ..
        } = *values;
        let (mut codes, mut shared) = (
            vec![0; values.len() / self.unit],
            vec![0; values.len() / BLOCK],
        );
        (self.run)(GroupBuffers {
            values,
            codes: &mut codes,
            scale_bytes: &mut shared,
            back,
            level,
        });
        self.store(tile, &codes, &shared, put)
    }

    fn relay(&self) -> Option<RelayTarget<'_>> {
        let codes = self;
        self.family.map(|family| RelayTarget { family, codes })
    }
}

impl StoreCodes for Rows {
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

impl Rows {
    /// Passes on what is stored of a tile.
    fn store(&self, tile: &Tile, codes: &[u8], shared: &[u8], put: &mut Put<'_>) -> Result<()> {
        put_both(tile, self.cols, [(self.unit, codes), (BLOCK, shared)], put)
    }
}

/// Encodes a stack of experts, column by column.
struct Stack {
    stored: [Stored; 2],
    run: Runner,
    rows: usize,
    inputs: usize,
    outputs: usize,
}

impl Encode for Stack {
    fn stored(&self) -> Vec<Stored> {
        self.stored.to_vec()
    }

    fn grid(&self) -> Grid {
        let (rows, cols) = (self.rows, self.outputs);
        Grid {
            rows,
            cols,
            row_align: BLOCK,
            col_align: 1,
            load_bits: 72.0,
            transposed: true,
        }
    }

    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()> {
        let Values {
            tile,
            values,
            level,
            ..
        } = *values;
        let (height, width) = (tile.rows.len(), tile.cols.len());
        let turned = transposed(values, width);
        let mut turned_back = vec![0.0; values.len()];
        let (mut codes, mut shared) = (vec![0; values.len() / 2], vec![0; values.len() / BLOCK]);
        let (codes, shared) = (&mut codes[..], &mut shared[..]);
        (self.run)(GroupBuffers {
            values: &turned,
            codes,
            scale_bytes: shared,
            back: &mut turned_back,
            level,
        });
        back.copy_from_slice(&transposed(&turned_back, height));
        self.store(tile, codes, shared, put)
    }
}

impl Stack {
    /// Passes on what is stored of a tile, column by column.
    fn store(&self, tile: &Tile, codes: &[u8], shared: &[u8], put: &mut Put<'_>) -> Result<()> {
        for (part, unit, bytes) in [(0, 2, codes), (1, BLOCK, shared)] {
            self.put(
                tile,
                &Matrix {
                    part,
                    stride: self.inputs / unit,
                },
                unit,
                bytes,
                put,
            )?;
        }
        Ok(())
    }

    /// Puts the columns of `tile`, of which each stored byte has `unit` values, expert by expert.
    fn put(
        &self,
        tile: &Tile,
        matrix: &Matrix,
        unit: usize,
        bytes: &[u8],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let pitch = tile.rows.len() / unit;
        let mut row = tile.rows.start;
        while row < tile.rows.end {
            let (expert, first) = (row / self.inputs, row % self.inputs);
            let n = (self.inputs - first).min(tile.rows.end - row);
            let at = (row - tile.rows.start) / unit;
            let lines =
                expert * self.outputs + tile.cols.start..expert * self.outputs + tile.cols.end;
            let cols = first / unit..(first + n) / unit;
            if pitch == cols.len() {
                matrix.put(lines, cols, bytes, put)?;
            } else {
                for (line, bytes) in lines.zip(bytes.chunks_exact(pitch)) {
                    matrix.put(
                        line..line + 1,
                        cols.clone(),
                        &bytes[at..at + cols.len()],
                        put,
                    )?;
                }
            }
            row += n;
        }
        Ok(())
    }
}

/// Two codes in each byte, the first in its low bits.
fn pairs(codes: &[u8]) -> Vec<u8> {
    codes
        .as_chunks()
        .0
        .iter()
        .map(|[low, high]| low | high << 4)
        .collect()
}
