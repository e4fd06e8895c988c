//! BitsAndBytes as transformers saves it. 4-bit: `X.weight` U8 `[⌈n/2⌉, 1]`, `.absmax`, `.quant_map`,
//! `.quant_state.bitsandbytes__nf4|fp4` and, double-quantized, `.nested_absmax` and `.nested_quant_map`. INT8:
//! `X.weight` I8 `[out, in]`, `X.SCB` F32 `[out]`, `X.weight_format` U8 `[]`.
//!
//! Layout: bitsandbytes 0.50.2 `functional.QuantState.as_dict`, `utils.pack_dict_to_tensor`,
//! `nn.Linear8bitLt._save_to_state_dict`; transformers 5.23 `BitsAndBytesConfig.to_dict`.

use std::sync::OnceLock;

use serde_json::json;

use super::{Encode, Method, Put, Stored, Survey, Values, Weight};
use crate::element::Out;
use crate::forget::seam::rows::grid_of_runs;
use crate::kernels::lethe::bnb::{
    FP4_CODEBOOK, NESTED_BLOCK, NF4_CODEBOOK, codebook_encoder, dynamic_map, encode_nested,
};
use crate::kernels::lethe::codebook::CodebookEncoder;
use crate::kernels::lethe::int8;
use crate::kernels::remember::bnb::{Int8Rows, nested_absmax};
use crate::kernels::remember::codebook::{CodebookBlocks, PairTable};
use crate::scheme::Grid;
use crate::simd::dispatch;
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// The two kinds of 4-bit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codes {
    Nf4,
    Fp4,
}

/// What is the same for every tensor of a kind.
struct Tables {
    encoder: CodebookEncoder,
    pairs: PairTable,
}

impl Codes {
    fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
        }
    }

    fn codebook(self) -> &'static [f32; 16] {
        match self {
            Self::Nf4 => &NF4_CODEBOOK,
            Self::Fp4 => &FP4_CODEBOOK,
        }
    }

    fn tables(self) -> &'static Tables {
        static TABLES: [OnceLock<Tables>; 2] = [const { OnceLock::new() }; 2];
        let codebook = self.codebook();
        TABLES[self as usize].get_or_init(|| Tables {
            encoder: codebook_encoder(codebook),
            pairs: PairTable::new(codebook, true),
        })
    }
}

/// The block sizes that bitsandbytes has.
const BLOCKS: [usize; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];

/// 4-bit weights.
#[derive(Debug, Clone)]
pub(crate) struct Bnb4 {
    pub codes: Codes,
    /// Values that share a scale: a power of two from 32 to 4096; transformers has 64.
    pub block: usize,
    /// Whether scales are quantized too.
    pub double: bool,
    /// What layers compute in, for the config.
    pub compute: TargetDtype,
}

impl Method for Bnb4 {
    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        if !BLOCKS.contains(&self.block) {
            return Some(format!(
                "bitsandbytes has no blocks of {} values",
                self.block
            ));
        }
        not_linear(weight)
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        Ok(Box::new(FourBit {
            name: weight.name.to_owned(),
            shape: weight.shape.to_vec(),
            rows: weight.rows(),
            cols: weight.cols(),
            dtype: weight.dtype,
            method: self.clone(),
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<serde_json::Value> {
        Some(config(Some(self), skipped))
    }
}

/// Why a tensor cannot be the weight of a quantized linear layer.
fn not_linear(weight: &Weight<'_>) -> Option<String> {
    if base(weight.name).is_none() {
        return Some("its name does not end in `weight`, as those of linear layers do".to_owned());
    }
    match weight.shape {
        [rows, cols] if rows * cols > 0 => None,
        [_, _] => Some("it has no values".to_owned()),
        shape => Some(format!(
            "it has {} dimensions, and weights of linear layers have 2",
            shape.len()
        )),
    }
}

/// `name` without `weight`.
fn base(name: &str) -> Option<&str> {
    crate::scheme::seam::base_of(name, "weight")
}

/// What transformers writes to `config.json`; of 8 bits without `four`.
fn config(four: Option<&Bnb4>, skipped: &[String]) -> serde_json::Value {
    let compute = four.map_or(TargetDtype::F32, |four| four.compute);
    json!({
        "_load_in_4bit": four.is_some(),
        "_load_in_8bit": four.is_none(),
        "bnb_4bit_compute_dtype": compute.torch_name(),
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": four.map_or(Codes::Fp4, |four| four.codes).name(),
        "bnb_4bit_use_double_quant": four.is_some_and(|four| four.double),
        "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false,
        "llm_int8_skip_modules": skipped,
        "llm_int8_threshold": 6.0,
        "load_in_4bit": four.is_some(),
        "load_in_8bit": four.is_none(),
        "quant_method": "bitsandbytes",
    })
}

/// A 4-bit weight.
struct FourBit {
    name: String,
    shape: Vec<usize>,
    rows: usize,
    cols: usize,
    dtype: TargetDtype,
    method: Bnb4,
}

// The numbers of stored tensors; the last two of six are only there in double quantization.
const WEIGHT: usize = 0;
const ABSMAX: usize = 1;
const QUANT_MAP: usize = 2;
const QUANT_STATE: usize = 3;
const NESTED_ABSMAX: usize = 4;
const NESTED_QUANT_MAP: usize = 5;

/// Length of the longest F64 that [`python_float`] gives for an F32.
const LONGEST_FLOAT: usize = 24;

impl FourBit {
    /// The JSON of `quant_state`, as Python's `json.dumps` has it. An offset that comes later is left room for:
    /// JSON may end in blanks.
    fn state(&self, offset: Option<f32>) -> Vec<u8> {
        let (kind, block, dtype) = (
            self.method.codes.name(),
            self.method.block,
            self.dtype.torch_name(),
        );
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let shape = shape.join(", ");
        let mut text = format!(
            r#"{{"quant_type": "{kind}", "blocksize": {block}, "dtype": "{dtype}", "shape": [{shape}]"#
        );
        if self.method.double {
            let nested =
                r#", "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": "#;
            text += nested;
            let end = text.len() + LONGEST_FLOAT + 1;
            text += &python_float(offset.unwrap_or(0.0));
            text.push('}');
            return format!("{text:end$}").into_bytes();
        }
        text.push('}');
        text.into_bytes()
    }

    /// Passes on what belongs to no tile.
    fn put_tables(&self, offset: f32, put: &mut Put<'_>) -> Result<()> {
        // The map in the file has +0 for each zero.
        let map = self.method.codes.codebook().map(|level| level + 0.0);
        put(QUANT_MAP, 0, bytemuck::cast_slice(&map))?;
        if self.method.double {
            put(NESTED_QUANT_MAP, 0, bytemuck::cast_slice(dynamic_map()))?;
        }
        put(QUANT_STATE, 0, &self.state(Some(offset)))
    }
}

/// `repr` of a float in Python.
fn python_float(x: f32) -> String {
    let text = format!("{:?}", f64::from(x));
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent
                .strip_prefix('-')
                .map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

impl Encode for FourBit {
    fn stored(&self) -> Vec<Stored> {
        let n = self.rows * self.cols;
        let blocks = n.div_ceil(self.method.block);
        let state = format!(".quant_state.bitsandbytes__{}", self.method.codes.name());
        let stored = |suffix: &str, dtype, shape| Stored {
            name: format!("{}{suffix}", self.name),
            dtype,
            shape,
        };
        let scales = if self.method.double {
            Dtype::U8
        } else {
            Dtype::F32
        };
        let mut all = vec![
            stored("", Dtype::U8, vec![n.div_ceil(2), 1]),
            stored(".absmax", scales, vec![blocks]),
            stored(".quant_map", Dtype::F32, vec![16]),
            stored(&state, Dtype::U8, vec![self.state(None).len()]),
        ];
        if self.method.double {
            all.push(stored(
                ".nested_absmax",
                Dtype::F32,
                vec![blocks.div_ceil(NESTED_BLOCK)],
            ));
            all.push(stored(".nested_quant_map", Dtype::F32, vec![256]));
        }
        all
    }

    fn grid(&self) -> Grid {
        let &Bnb4 { block, double, .. } = &self.method;
        let unit = if double { block * NESTED_BLOCK } else { block };
        grid_of_runs(self.rows, self.cols, unit, 4.0 + 64.0 / block as f64)
    }

    fn survey(&self) -> Option<Survey> {
        self.method
            .double
            .then_some(Survey::MeanOfMax(self.method.block))
    }

    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()> {
        let &Bnb4 {
            codes: kind,
            block,
            double,
            ..
        } = &self.method;
        let (tables, offset) = (kind.tables(), values.survey as f32);
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        let (mut inner, mut outer) = (Vec::new(), Vec::new());
        for (start, run) in values.tile.runs(self.cols) {
            codes.clear();
            scales.clear();
            tables.encoder.encode(
                &values.values[run.clone()],
                block,
                values.level,
                &mut codes,
                &mut scales,
            );
            put(WEIGHT, start as u64 / 2, &codes)?;
            let first = start / block;
            if double {
                inner.clear();
                outer.clear();
                encode_nested(&scales, offset, &mut inner, &mut outer);
                put(ABSMAX, first as u64, &inner)?;
                put(
                    NESTED_ABSMAX,
                    (first / NESTED_BLOCK * 4) as u64,
                    bytemuck::cast_slice(&outer),
                )?;
                scales.clear();
                nested_absmax(
                    &inner,
                    0..inner.len(),
                    dynamic_map(),
                    &outer,
                    NESTED_BLOCK,
                    offset,
                    &mut scales,
                );
            } else {
                put(ABSMAX, first as u64 * 4, bytemuck::cast_slice(&scales))?;
            }
            let decoded = CodebookBlocks {
                pairs: &tables.pairs,
                bytes: &codes,
                start: 0,
                block,
                scales: &scales,
            };
            dispatch(values.level, &decoded, Out::F32(&mut back[run]));
        }
        if values.tile.is_first() {
            self.put_tables(offset, put)
        } else {
            Ok(())
        }
    }
}

/// LLM.int8() weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Int8;

impl Method for Int8 {
    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        not_linear(weight)
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        Ok(Box::new(EightBit {
            name: weight.name.to_owned(),
            rows: weight.rows(),
            cols: weight.cols(),
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<serde_json::Value> {
        Some(config(None, skipped))
    }
}

/// An LLM.int8() weight.
struct EightBit {
    name: String,
    rows: usize,
    cols: usize,
}

impl EightBit {
    /// Values beyond F16 have no finite scale.
    fn check(&self, first: usize, scales: &[f32]) -> Result<()> {
        match scales.iter().position(|scale| !scale.is_finite()) {
            None => Ok(()),
            Some(row) => {
                let what = format!(
                    "tensor `{}`: row {} has values that F16 does not reach",
                    self.name,
                    first + row
                );
                Err(AnamnesisError::unsupported("BitsAndBytes INT8", what))
            }
        }
    }
}

impl Encode for EightBit {
    fn stored(&self) -> Vec<Stored> {
        let base = base(&self.name).unwrap_or_default();
        vec![
            Stored {
                name: self.name.clone(),
                dtype: Dtype::I8,
                shape: vec![self.rows, self.cols],
            },
            Stored {
                name: format!("{base}SCB"),
                dtype: Dtype::F32,
                shape: vec![self.rows],
            },
            Stored {
                name: format!("{base}weight_format"),
                dtype: Dtype::U8,
                shape: vec![],
            },
        ]
    }

    fn grid(&self) -> Grid {
        let load_bits = 8.0 + 32.0 / self.cols.max(1) as f64;
        let (rows, cols) = (self.rows, self.cols);
        Grid {
            rows,
            cols,
            row_align: 1,
            col_align: cols.max(1),
            load_bits,
            transposed: false,
        }
    }

    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()> {
        let (cols, first) = (self.cols, values.tile.rows.start);
        let (mut codes, mut scales) = (
            vec![0; values.values.len()],
            vec![0.0; values.tile.rows.len()],
        );
        int8::encode(values.values, cols, values.level, &mut codes, &mut scales);
        self.check(first, &scales)?;
        put(0, (first * cols) as u64, &codes)?;
        put(1, first as u64 * 4, bytemuck::cast_slice(&scales))?;
        dispatch(
            values.level,
            &Int8Rows {
                codes: &codes,
                cols,
                scb: &scales,
            },
            Out::F32(back),
        );
        if values.tile.is_first() {
            put(2, 0, &[0])
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
#[cfg(feature = "qnat")]
mod tests;
