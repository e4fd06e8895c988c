//! NVFP4. ModelOpt: `X` U8 `[…, out, in / 2]`, `X_scale` F8_E4M3 `[…, out, in / 16]` or `[…, out,
//! in / 32]`, `X_scale_2` F32, which multiplies; then perhaps a low-rank part and a factor for each
//! column. Its stacks of experts `X`, with `X_weight_scale` and `X_weight_scale_2`, are `[experts,
//! in / 2, out]`, packed down the columns. Those of Inkling have `X.scale` and `X.scale2`, and are
//! packed along rows. compressed-tensors: `P.weight_packed`, `P.weight_scale`,
//! `P.weight_global_scale`, which divides. Global scales are one, or one for each matrix of a
//! stack. AutoRound's are compressed-tensors' by name, and scale the code before the block does.
//!
//! Blocks of 16 along a row have a decoder of their own: the shared one takes 1.1 to 1.8 times as
//! long. It computes the value of each code; this kernel looks up two codes at once.
//!
//! Layouts: modelopt `NVFP4QTensor`, `export/unified_export_hf.py`; compressed-tensors
//! `compressors/nvfp4`; auto-round `experimental/qmodules/nvfp4.py`; vLLM
//! `models/inkling/nvidia/model.py` (`hf_to_vllm_mapper`).

mod low_rank;
mod weight;

use self::low_rank::find_factors;
use self::weight::Nvfp4Weight;
use super::modelopt::pre_quant_scale;
use super::mxfp4::bytes_of_row;
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::E2M1;
use crate::remember::kernels::low_rank::ColumnStep;
use crate::remember::kernels::nvfp4::BLOCK;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::layout::low_rank::{LowRankFactors, LowRankSum};
use crate::remember::layout::strided::RowPairs;
use crate::remember::layout::tiled::fills_tiles;
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::Sibling;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::scale_matrix::{Matrix, NestedOp, NestedScales};
use crate::remember::seam::{
    CodeType, Decode, Floats, Granularity, Group, Identity, Index, Prepared, QuantScheme, Scheme,
    TensorRole, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Nvfp4;

/// Prepared if the scales of some weight fill no tiles, and so lie in rows.
struct RowScales;

static IDENTITY: Identity = Identity {
    name: "NVFP4",
    over: &["not decoded"],
    methods: &[
        QuantMethod::ModelOpt,
        QuantMethod::CompressedTensors,
        QuantMethod::AutoRound,
        QuantMethod::MiniMaxM3Nvfp4,
        QuantMethod::Quark,
        QuantMethod::Fp8,
    ],
    codes: &["_packed"],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends("weight_scale_2"), TensorRole::Scale),
        (Ends(".weight_global_scale"), TensorRole::Scale),
        (Ends("weight.scale2"), TensorRole::Scale),
        (Ends("pre_quant_scale"), TensorRole::Scale),
        (Ends("svdquant_lora_a"), TensorRole::LowRank),
        (Ends("svdquant_lora_b"), TensorRole::LowRank),
    ],
    optional: &[
        Sibling::OfModule("pre_quant_scale"),
        Sibling::OfModule("svdquant_lora_a"),
        Sibling::OfModule("svdquant_lora_b"),
        Sibling::OfModule("weight_quantizer._svdquant_lora_a"),
    ],
    activations: &["input_global_scale", "input_amax"],
    markers: &[Ends("_weight.original_shape")],
    sidecars: &[Is("hf_quant_config.json")],
    container: None,
};

impl Scheme for Nvfp4 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Nvfp4 { divides: t.name().ends_with("_packed") }
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if !matches!(t.dtype(), Dtype::U8 | Dtype::F4) {
            return Ok(None);
        }
        // The name tells the producer, and the producer what the global scale does. Fused experts
        // have no `weight` in their own name, but in their scales'.
        let (name, suffixes, divides) = match t.name().strip_suffix("_packed") {
            Some(name) => (name, ["_scale", "_global_scale"], true),
            None if all.at(t.name(), "_weight_scale_2").is_some() => {
                (t.name(), ["_weight_scale", "_weight_scale_2"], false)
            }
            None if [".scale2", ".original_shape"]
                .iter()
                .any(|end| all.at(t.name(), end).is_some()) =>
            {
                (t.name(), [".scale", ".scale2"], false)
            }
            None => (t.name(), ["_scale", "_scale_2"], false),
        };
        let block_scales = all
            .at(name, suffixes[0])
            .filter(|s| s.dtype() == Dtype::F8E4M3);
        let (scales, global) = match (block_scales, all.at(name, suffixes[1])) {
            (None, None) => return Ok(None),
            (Some(scales), Some(global)) => (scales, global),
            _ => {
                // One without the other: decoding without the missing scale would change every
                // value by a factor.
                return Err(wrong(
                    t,
                    format!(
                        "NVFP4 wants both `{name}{}` (F8_E4M3) and `{name}{}`",
                        suffixes[0], suffixes[1]
                    ),
                ));
            }
        };
        // ModelOpt alone has blocks of 32 values, too: a scale for so many contradicts the names of
        // others, and safetensors' F4.
        let blocks: &[usize] = match divides || all.config.is_quark() || t.dtype() == Dtype::F4 {
            true => &[BLOCK],
            false => &[BLOCK, 2 * BLOCK],
        };
        let layout = Nvfp4Layout::of(t, &scales, blocks)?;
        let mut parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Scale, scales),
            (TensorRole::Scale, global),
        ];
        let scheme = match layout.block {
            BLOCK => QuantScheme::Nvfp4 { divides },
            block => QuantScheme::Grouped {
                family: "ModelOpt",
                codes: CodeType::Nvfp4,
                scales: Granularity::Group(block),
            },
        };
        let decoder = layout.decoder(t, [&scales, &global], divides, all, &mut parts)?;
        Ok(Some(Group::new(name.to_owned(), layout.shape, scheme, parts, decoder)))
    }

    fn assumption(&self, group: &Group<'_>, all: &Index<'_>) -> Option<&'static str> {
        let is_open = group.scheme == QuantScheme::Nvfp4 { divides: false }
            && !all.config.is_quantized()
            && group.name.ends_with(".weight")
            && all.prepared::<RowScales>().is_none();
        is_open.then_some("nothing says whose NVFP4 it is: read as ModelOpt's, while ComfyUI's without its description `comfy_quant` has the same names and shapes, and codes and scales in another order")
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        let mut scales = all
            .model
            .tensors()
            .filter(|t| t.dtype() == Dtype::F8E4M3 && t.name().ends_with(".weight_scale"));
        let is_of_rows = scales.any(|scale| !fills_tiles(scale.shape()));
        is_of_rows.then(|| Box::new(RowScales) as Prepared)
    }
}

/// How codes and scales are stored.
struct Nvfp4Layout {
    /// Shape of the weight.
    shape: Vec<usize>,
    /// Values that share a scale.
    block: usize,
    /// Whether the two codes of a byte, and blocks, run along the last dimension but one.
    down: bool,
}

impl Nvfp4Layout {
    /// The layout that the shapes of codes and scales prove, with one of the sizes `blocks`.
    fn of(t: &Tensor<'_>, scales: &Tensor<'_>, blocks: &[usize]) -> Result<Self> {
        // Of bytes, whatever the dtype.
        let mut bytes = t.shape().to_vec();
        if let (Some(last), Some(len)) = (bytes.last_mut(), bytes_of_row(t)) {
            *last = len;
        }
        let (w, s) = (bytes.as_slice(), scales.shape());
        // The dimension that is packed, counted from the last; in both tensors all others are the
        // same. Along the row first: a layout down the columns needs three dimensions and fits
        // rarely by chance.
        for (down, back) in [(false, 0), (true, 1)] {
            let place = w
                .len()
                .checked_sub(back + 1)
                .filter(|_| w.len() == s.len() && w.len() >= if down { 3 } else { 2 });
            let Some(place) = place.filter(|&p| w[..p] == s[..p] && w[p + 1..] == s[p + 1..])
            else {
                continue;
            };
            let Some(values) = w[place].checked_mul(2) else {
                continue;
            };
            if let Some(&block) = blocks
                .iter()
                .find(|&&block| s[place].checked_mul(block) == Some(values))
            {
                let mut shape = w.to_vec();
                shape[place] = values;
                return Ok(Self { shape, block, down });
            }
        }
        let what =
            format!("its scales `{}` {s:?} are not one for 16 values of a row", scales.name());
        Err(wrong(t, what))
    }

    fn decoder<'m>(
        &self,
        t: &Tensor<'m>,
        [scales, global]: [&Tensor<'m>; 2],
        divides: bool,
        all: &Index<'m>,
        parts: &mut Vec<(TensorRole, Tensor<'m>)>,
    ) -> Result<Box<dyn Decode + 'm>> {
        let (rows, k) = rows_and_cols(&self.shape);
        // All dimensions but the last two; an empty product is 1 for a matrix.
        let stack: usize = self.shape.iter().rev().skip(2).product();
        let globals = global.elements();
        if globals == 0 || globals != 1 && globals != stack {
            return Err(wrong(global, format!("`{}` has {stack} matrices", t.name())));
        }
        // AutoRound's tensors have compressed-tensors' names. Only the config tells that the global
        // scale is applied to the codes.
        let codes_first = divides && all.config.is_auto_round();
        if codes_first && globals != 1 {
            return Err(wrong(global, "AutoRound has one for each weight"));
        }
        // ModelOpt looks code 8 up as 0; Quark, whose names these are as well, multiplies by a
        // sign.
        let has_signed_zero = divides || all.config.is_quark();
        let columns = pre_quant_scale(t, k, all)?;
        let factors = find_factors(t, [rows, k], all)?;
        parts.extend(columns.map(|columns| (TensorRole::Scale, columns)));
        parts.extend(factors.iter().flat_map(LowRankFactors::parts));
        let columns = columns.map(|columns| Floats::ieee(&columns)).transpose()?;
        // The fast decoder covers what nearly all files have; the shared one takes the rest.
        if self.block == BLOCK && !self.down && columns.is_none() && factors.is_none() {
            return Ok(Box::new(Nvfp4Weight {
                codes: t.part(),
                scales: scales.part(),
                global: Floats::ieee(global)?,
                globals,
                divides,
                has_signed_zero,
                codes_first,
                rows,
                k,
                rows_per_global: (rows / globals).max(1),
            }));
        }
        let mut grouped = self.grouped(t, [scales, global], divides, has_signed_zero)?;
        let columns = columns.map(|floats| Box::new(Matrix { floats, cols: k }) as _);
        Ok(match factors {
            Some(factors) => {
                let columns = columns.map(|columns| (ColumnStep::ScaleSum, columns));
                Box::new(LowRankSum::new(Box::new(grouped), factors, columns))
            }
            None => {
                grouped.columns = columns;
                Box::new(grouped)
            }
        })
    }

    /// The shared decoder, which has any block size and direction.
    fn grouped<'m>(
        &self,
        t: &Tensor<'m>,
        [scales, global]: [&Tensor<'m>; 2],
        divides: bool,
        has_signed_zero: bool,
    ) -> Result<Grouped<'m>> {
        let (rows, cols) = rows_and_cols(&self.shape);
        let height = self.shape.iter().nth_back(1).copied().unwrap_or(1);
        // A byte row has two rows of the weight. `height` is even, so no byte is shared by two
        // matrices.
        let (codes, grid, scale_rows) = if self.down {
            let grid = ScaleGrid {
                matrix_rows: height.max(1),
                block_rows: self.block,
                block_cols: 1,
                rows_per_matrix: height / self.block,
                cols,
            };
            (
                Codes::Unpacked(Box::new(RowPairs { part: t.part(), cols, apart: 1 })),
                grid,
                rows / self.block,
            )
        } else {
            (
                Codes::Rows { part: t.part(), row_bytes: cols / 2 },
                row_groups(cols, self.block),
                rows,
            )
        };
        let count = global.elements();
        let scales = Box::new(NestedScales {
            inner: Box::new(Matrix { floats: Floats::fp8(scales)?, cols: grid.cols }),
            outer: Floats::ieee(global)?,
            count,
            // Whole matrices share a global scale, so the quotient is exact.
            rows_each: (scale_rows / count).max(1),
            op: if divides {
                NestedOp::Divide
            } else {
                NestedOp::Multiply
            },
            unit: 1.0,
        });
        let code_format = CodeFormat::E2M1(E2M1 { factor: 1.0, plain_zero: !has_signed_zero });
        Ok(Grouped::scaled(codes, 4, code_format, [rows, cols], grid, scales))
    }
}
