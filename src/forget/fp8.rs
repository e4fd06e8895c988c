//! FP8 weights: `X` F8_E4M3 or F8_E5M2, and its scales.
//!
//! - transformers: `X_scale_inv` F32, or F8_E8M0 if they are powers of two, one for each block, or one for a tensor.
//!   Stacks of experts are encoded like matrices.
//! - compressed-tensors: `X_scale` in the type of the model, `[1]`, `[rows, 1]`, or one for each block.
//! - ComfyUI: `X_scale` F32 `[]`, and `P.comfy_quant`, a description.

use std::marker::PhantomData;

use serde_json::{Value, json};

use super::ct_config as ct;
use super::{Encode, Method, Put, Stored, Survey, Values, Weight};
use crate::element::Element;
use crate::forget::seam::rows::{LONGEST, Matrix, no_matrix, stored};
use crate::kernels::lethe::fp8::{
    ComfyKitchenFp8, CompressedTensorsFp8, EncodeFp8Blocks, Fp8Arithmetic, TransformersFp8,
};
use crate::kernels::remember::fp8::{E4M3, E5M2};
use crate::scheme::{Granularity, Grid};
use crate::simd::{Level, perform};
use crate::{Dtype, Result, TargetDtype};

/// Whose names, configs and arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fp8Layout {
    /// transformers. `powers`: scales are powers of two. `ragged`: edge blocks may be smaller, as in DeepSeek's own
    /// files; the library leaves tensors that are not whole blocks as they are.
    Transformers {
        powers: bool,
        ragged: bool,
    },
    CompressedTensors,
    /// `wide`: E5M2.
    ComfyUi {
        wide: bool,
    },
}

/// FP8, with scales as `granularity` says: of the whole tensor, a row or a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fp8 {
    pub layout: Fp8Layout,
    pub granularity: Granularity,
}

impl Fp8 {
    /// Rows and columns of a block of `weight`.
    fn block(&self, weight: &Weight<'_>) -> [usize; 2] {
        match self.granularity {
            Granularity::Tensor => [usize::MAX, usize::MAX],
            Granularity::Channel => [1, weight.cols().max(1)],
            Granularity::Group(cols) => [1, cols.max(1)],
            Granularity::Block { rows, cols } => [rows.max(1), cols.max(1)],
        }
    }

    fn is_whole(&self) -> bool {
        self.granularity == Granularity::Tensor
    }

    fn runner(&self, dtype: TargetDtype) -> Runner {
        use half::{bf16, f16};
        match (self.layout, dtype) {
            (Fp8Layout::Transformers { powers: false, .. }, _) => run::<TransformersFp8<false>>,
            (Fp8Layout::Transformers { powers: true, .. }, _) => run::<TransformersFp8<true>>,
            (Fp8Layout::CompressedTensors, TargetDtype::F32) => run::<CompressedTensorsFp8<f32>>,
            (Fp8Layout::CompressedTensors, TargetDtype::F16) => run::<CompressedTensorsFp8<f16>>,
            (Fp8Layout::CompressedTensors, TargetDtype::BF16) => run::<CompressedTensorsFp8<bf16>>,
            (Fp8Layout::ComfyUi { wide: false }, TargetDtype::F32) => {
                run::<ComfyKitchenFp8<f32, E4M3>>
            }
            (Fp8Layout::ComfyUi { wide: false }, TargetDtype::F16) => {
                run::<ComfyKitchenFp8<f16, E4M3>>
            }
            (Fp8Layout::ComfyUi { wide: false }, TargetDtype::BF16) => {
                run::<ComfyKitchenFp8<bf16, E4M3>>
            }
            (Fp8Layout::ComfyUi { wide: true }, TargetDtype::F32) => {
                run::<ComfyKitchenFp8<f32, E5M2>>
            }
            (Fp8Layout::ComfyUi { wide: true }, TargetDtype::F16) => {
                run::<ComfyKitchenFp8<f16, E5M2>>
            }
            (Fp8Layout::ComfyUi { wide: true }, TargetDtype::BF16) => {
                run::<ComfyKitchenFp8<bf16, E5M2>>
            }
        }
    }

    /// Name, type and shape of the scales.
    fn scales(&self, weight: &Weight<'_>, [rows, cols]: [usize; 2]) -> Stored {
        let outer = weight.shape.len().saturating_sub(2);
        let leading = &weight.shape[..outer];
        let height = weight.shape.get(outer).copied().unwrap_or(1);
        let grid = [height.div_ceil(rows), weight.cols().div_ceil(cols)];
        let of_blocks: Vec<usize> = leading.iter().copied().chain(grid).collect();
        let name = |end: &str| format!("{}{end}", weight.name);
        match self.layout {
            Fp8Layout::Transformers { powers, .. } => stored(
                name("_scale_inv"),
                if powers { Dtype::F8E8M0 } else { Dtype::F32 },
                &of_blocks,
            ),
            Fp8Layout::CompressedTensors if self.is_whole() => {
                stored(name("_scale"), weight.dtype.dtype(), &[1])
            }
            Fp8Layout::CompressedTensors => {
                stored(name("_scale"), weight.dtype.dtype(), &of_blocks)
            }
            Fp8Layout::ComfyUi { .. } => stored(name("_scale"), Dtype::F32, &[]),
        }
    }

    /// ComfyUI's description of a tensor.
    fn description(&self) -> Option<&'static str> {
        match self.layout {
            Fp8Layout::ComfyUi { wide: false } => Some("{\"format\": \"float8_e4m3fn\"}"),
            Fp8Layout::ComfyUi { wide: true } => Some("{\"format\": \"float8_e5m2\"}"),
            _ => None,
        }
    }

    /// Why a stack or a matrix does not fit transformers' blocks.
    fn not_whole(&self, weight: &Weight<'_>, ragged: bool) -> Option<String> {
        let [.., height, width] = *weight.shape else {
            return Some("it has one dimension".to_owned());
        };
        let stack = weight.shape.len() > 2;
        let [rows, cols] = self.block(weight);
        match self.granularity {
            Granularity::Tensor if stack => {
                Some("it is a stack, and one scale is for a matrix".to_owned())
            }
            Granularity::Tensor => None,
            Granularity::Channel => Some("transformers has no scales of rows".to_owned()),
            _ if (stack || !ragged)
                && (!height.is_multiple_of(rows) || !width.is_multiple_of(cols)) =>
            {
                Some(format!(
                    "its {height} × {width} are no whole blocks of {rows} × {cols}"
                ))
            }
            _ => None,
        }
    }
}

impl Method for Fp8 {
    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        let shape = match self.layout {
            Fp8Layout::Transformers { ragged, .. } => self.not_whole(weight, ragged),
            Fp8Layout::CompressedTensors => no_matrix(weight, 1),
            Fp8Layout::ComfyUi { .. } if !self.is_whole() => {
                Some("ComfyUI has one scale for a tensor".to_owned())
            }
            Fp8Layout::ComfyUi { .. } => no_matrix(weight, 1),
        };
        let cols = self.block(weight)[1];
        let long = !self.is_whole() && cols > LONGEST;
        shape.or_else(|| {
            long.then(|| format!("its {cols} values of a scale are more than {LONGEST}"))
        })
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        let block = self.block(weight);
        let dtype = if self.layout == (Fp8Layout::ComfyUi { wide: true }) {
            Dtype::F8E5M2
        } else {
            Dtype::F8E4M3
        };
        let mut parts = vec![
            stored(weight.name.to_owned(), dtype, weight.shape),
            self.scales(weight, block),
        ];
        let description = self.description();
        let name = format!("{}.comfy_quant", weight.base());
        parts.extend(description.map(|text| stored(name, Dtype::U8, &[text.len()])));
        let (rows, cols) = (weight.rows(), weight.cols());
        let (run, whole) = (self.runner(weight.dtype), self.is_whole());
        Ok(Box::new(Encoder {
            stored: parts,
            description,
            run,
            rows,
            cols,
            block,
            whole,
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let block = match self.granularity {
            Granularity::Group(cols) => Some([1, cols]),
            Granularity::Block { rows, cols } => Some([rows, cols]),
            _ => None,
        };
        match self.layout {
            Fp8Layout::Transformers { powers, .. } => {
                let mut config = json!({
                    "activation_scheme": "dynamic",
                    "fmt": "e4m3",
                    "modules_to_not_convert": skipped,
                    "quant_method": "fp8",
                    "weight_block_size": block,
                });
                if powers {
                    config["scale_fmt"] = "ue8m0".into();
                }
                Some(config)
            }
            Fp8Layout::CompressedTensors => {
                let token = ct::floats(8, "token", true, None, Value::Null);
                let (weights, activations) = match (self.granularity, block) {
                    (Granularity::Tensor, _) => {
                        (ct::floats(8, "tensor", false, None, Value::Null), token)
                    }
                    (_, None) => (ct::floats(8, "channel", false, None, Value::Null), token),
                    (_, Some(block)) => (
                        ct::floats(8, "block", false, None, json!({"block_structure": block})),
                        ct::floats(8, "group", true, Some(block[1]), Value::Null),
                    ),
                };
                Some(ct::config(
                    "float-quantized",
                    &weights,
                    &activations,
                    skipped,
                ))
            }
            Fp8Layout::ComfyUi { .. } => None,
        }
    }
}

/// A tile, and where its codes, values and scales go.
struct Job<'a> {
    values: &'a [f32],
    width: usize,
    block: [usize; 2],
    max: Option<f32>,
    level: Level,
    codes: &'a mut [u8],
    back: &'a mut [f32],
    scales: &'a mut [f32],
}

type Runner = fn(Job<'_>);

fn run<A: Fp8Arithmetic>(job: Job<'_>) {
    let Job {
        values,
        width,
        block: [rows, cols],
        max,
        level,
        codes,
        back,
        scales,
    } = job;
    perform(
        level,
        &mut EncodeFp8Blocks {
            values,
            width,
            rows,
            cols,
            tensor_max_abs: max,
            codes,
            back,
            scales,
            arithmetic: PhantomData::<A>,
        },
    );
}

/// Encodes one weight.
struct Encoder {
    stored: Vec<Stored>,
    description: Option<&'static str>,
    run: Runner,
    rows: usize,
    cols: usize,
    block: [usize; 2],
    /// Whether all values share a scale.
    whole: bool,
}

impl Encode for Encoder {
    fn stored(&self) -> Vec<Stored> {
        self.stored.clone()
    }

    fn grid(&self) -> Grid {
        let [row_align, col_align] = if self.whole { [1, 1] } else { self.block };
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align,
            col_align,
            load_bits: 8.0,
            transposed: false,
        }
    }

    fn survey(&self) -> Option<Survey> {
        self.whole.then_some(Survey::Max)
    }

    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()> {
        let Values {
            tile,
            values,
            survey,
            level,
        } = *values;
        let [rows, cols] = self.block;
        let width = tile.cols.len();
        let across = if self.whole { 1 } else { width.div_ceil(cols) };
        let mut codes = vec![0; values.len()];
        let mut scales = vec![
            0.0;
            if self.whole {
                1
            } else {
                across * tile.rows.len().div_ceil(rows)
            }
        ];
        let max = self.whole.then_some(survey as f32);
        let job = Job {
            values,
            width,
            block: self.block,
            max,
            level,
            codes: &mut codes,
            back,
            scales: &mut scales,
        };
        (self.run)(job);
        Matrix {
            part: 0,
            stride: self.cols,
        }
        .put(tile.rows.clone(), tile.cols.clone(), &codes, put)?;
        let (dtype, size) = (self.stored[1].dtype, self.stored[1].dtype.bits() / 8);
        let bytes = in_type(&scales, dtype);
        if !self.whole {
            let first = tile.cols.start / cols;
            let rows = tile.rows.start / rows..tile.rows.end.div_ceil(rows);
            let stride = self.cols.div_ceil(cols) * size;
            return Matrix { part: 1, stride }.put(
                rows,
                first * size..(first + across) * size,
                &bytes,
                put,
            );
        }
        if tile.is_first() {
            put(1, 0, &bytes)?;
            self.description
                .map_or(Ok(()), |text| put(2, 0, text.as_bytes()))?;
        }
        Ok(())
    }
}

/// Scales as they are stored; they are values of that type.
fn in_type(scales: &[f32], dtype: Dtype) -> Vec<u8> {
    use half::{bf16, f16};
    match dtype {
        Dtype::F8E8M0 => scales.iter().map(|s| (s.to_bits() >> 23) as u8).collect(),
        Dtype::F16 => scales
            .iter()
            .flat_map(|&s| <f16 as Element>::from_f32(s).to_le_bytes())
            .collect(),
        Dtype::BF16 => scales
            .iter()
            .flat_map(|&s| <bf16 as Element>::from_f32(s).to_le_bytes())
            .collect(),
        _ => bytemuck::cast_slice(scales).to_vec(),
    }
}
