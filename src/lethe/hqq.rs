//! HQQ: `X.W_q` with `X.scale` and `X.zero` in the type of the model, and their description in small
//! tensors, as `HQQLinear.state_dict` has them for safetensors. Groups are runs of the flat weight
//! (axis 1), as transformers makes them.
//!
//! Of n codes in a word, the first is that of a value in the first n-th of the weight, the second that
//! of one in the second n-th, and so on. So the grid has a row for each n-th.
//!
//! Layout: hqq 0.2.8 `core/quantize.py`, `core/bitpack.py`; config: transformers 5.24 `HqqConfig`.

use serde_json::{Value, json};

use super::{Encode, EncodeBuffers, Method, Put, StoredTensor, Survey, TileValues, WeightInfo};
use crate::error::InTensor;
use crate::lethe::kernels::integer::{IntegerQuantizer, IntegerRule, StepErrors};
use crate::lethe::seam::grouped::{float_bytes, module_objection};
use crate::lethe::seam::rows::{MAX_ROW_LEN, stored_tensor};
use crate::remember::{Grid, QuantScheme, lcm};
use crate::simd::Level;
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// Integers of 2, 3, 4 or 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hqq {
    pub bits: usize,
    pub group: usize,
}

impl Hqq {
    /// The packing's name, codes in a word, and bytes of a word.
    fn packing(self) -> (&'static str, usize, usize) {
        match self.bits {
            2 => ("2bit_u8", 4, 1),
            3 => ("3bit_32", 10, 4),
            4 => ("4bit_u8", 2, 1),
            _ => ("8bit_u8", 1, 1),
        }
    }

    /// hqq begins with whole zero points for four bits alone.
    fn rounds_zero(self) -> bool {
        self.bits == 4
    }

    /// What describes the weight: ends of names, types, shapes and bytes.
    fn description(
        self,
        weight: &WeightInfo<'_>,
    ) -> Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)> {
        let text = |end, text: &str| (end, Dtype::U8, vec![text.len()], text.as_bytes().to_vec());
        let flag = |end, is_set: bool| (end, Dtype::U8, vec![], vec![u8::from(is_set)]);
        let number = |end, n: usize| (end, Dtype::I32, vec![], (n as u32).to_le_bytes().to_vec());
        let (packing, _, word_bytes) = self.packing();
        let shape = weight
            .shape
            .iter()
            .flat_map(|&dim| (dim as u64).to_le_bytes());
        vec![
            number("nbits", self.bits),
            number("group_size", self.group),
            ("shape", Dtype::I64, vec![weight.shape.len()], shape.collect()),
            number("axis", 1),
            text("packing", packing),
            text(
                "unpack_view_dtype",
                if word_bytes == 4 {
                    "torch.int32"
                } else {
                    "torch.uint8"
                },
            ),
            text("compute_dtype", torch_name(weight.dtype)),
            flag("view_as_float", false),
            flag("quant_scale", false),
            flag("quant_zero", false),
            flag("offload_meta", false),
            flag("encoded_state_dict", true),
            flag("stores_quant_config", true),
            flag("channel_wise", true),
            flag("optimize", true),
            flag("round_zero", self.rounds_zero()),
        ]
    }
}

/// torch's name of a type.
fn torch_name(dtype: TargetDtype) -> &'static str {
    match dtype {
        TargetDtype::F32 => "torch.float32",
        TargetDtype::F16 => "torch.float16",
        TargetDtype::BF16 => "torch.bfloat16",
    }
}

impl Method for Hqq {
    fn makes(&self, scheme: QuantScheme) -> bool {
        matches!(scheme, QuantScheme::Grouped { family: "HQQ", .. })
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        let (_, per_word, _) = self.packing();
        let values = weight.rows() * weight.cols();
        match self.group {
            _ if weight.shape.len() != 2 => {
                Some(format!("it has {} dimensions and no two", weight.shape.len()))
            }
            _ if values == 0 => Some("there is nothing in it".to_owned()),
            group if group == 0 || !group.is_multiple_of(8) => {
                Some(format!("hqq has no groups of {group} values"))
            }
            group if !values.is_multiple_of(group) => {
                Some(format!("its {values} values are no multiple of {group}"))
            }
            group if self.bits != 3 && !(values / group).is_multiple_of(per_word) => {
                Some(format!("its {} groups are no multiple of {per_word}", values / group))
            }
            // A tile has whole rows or some groups of each n-th of the values.
            group if weight.cols().max(group * per_word) > MAX_ROW_LEN => {
                Some(format!("its {} columns are more than {MAX_ROW_LEN}", weight.cols()))
            }
            _ => module_objection(weight),
        }
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (_, fields, word_bytes) = self.packing();
        let group = self.group;
        let groups = weight.rows() * weight.cols() / group.max(1);
        let name = |end: &str| format!("{}.{end}", weight.base());
        let (words, floats) = (
            if word_bytes == 4 {
                Dtype::I32
            } else {
                Dtype::U8
            },
            weight.dtype.dtype(),
        );
        let mut stored = vec![
            stored_tensor(name("W_q"), words, &[groups.div_ceil(fields), group]),
            stored_tensor(name("scale"), floats, &[groups, 1]),
            stored_tensor(name("zero"), floats, &[groups, 1]),
        ];
        let mut description = Vec::new();
        for (end, dtype, shape, bytes) in self.description(weight) {
            stored.push(stored_tensor(name(end), dtype, &shape));
            description.push(bytes);
        }
        Ok(Box::new(HqqEncoder {
            name: weight.name.to_owned(),
            quantizer: IntegerQuantizer {
                rule: IntegerRule::Hqq { steps: 0 },
                bits: self.bits,
                group,
                dtype: weight.dtype,
            },
            stored,
            description,
            rows: weight.rows(),
            cols: weight.cols(),
            fields,
            word_bytes,
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let mut modules: Vec<String> = Vec::new();
        for tag in skipped.iter().map(|module| linear_tag(module)) {
            if !modules.contains(&tag) {
                modules.push(tag);
            }
        }
        Some(json!({
            "quant_config": {
                "weight_quant_params": {
                    "nbits": self.bits,
                    "channel_wise": true,
                    "group_size": self.group,
                    "optimize": true,
                    "round_zero": self.rounds_zero(),
                    "axis": 1,
                    "view_as_float": false,
                },
                "scale_quant_params": null,
                "zero_quant_params": null,
                "offload_meta": false,
            },
            "quant_method": "hqq",
            "skip_modules": modules,
        }))
    }
}

/// What transformers calls a module in all layers alike: its name without `model`, `layers` and
/// numbers.
fn linear_tag(module: &str) -> String {
    let is_place = |part: &&str| ["model", "layers"].contains(part) || part.parse::<u32>().is_ok();
    let parts: Vec<&str> = module.split('.').filter(|part| !is_place(part)).collect();
    parts.join(".")
}

/// Encodes one tensor.
struct HqqEncoder {
    /// Name of the tensor, for messages.
    name: String,
    /// Its rule has the steps of the survey.
    quantizer: IntegerQuantizer,
    stored: Vec<StoredTensor>,
    /// Bytes of the stored tensors behind the first three.
    description: Vec<Vec<u8>>,
    rows: usize,
    cols: usize,
    /// Codes in a word.
    fields: usize,
    word_bytes: usize,
}

impl HqqEncoder {
    /// Words of the codes.
    fn words(&self) -> usize {
        let group = self.quantizer.group;
        (self.rows * self.cols / group).div_ceil(self.fields) * group
    }
}

impl Encode for HqqEncoder {
    fn stored(&self) -> Vec<StoredTensor> {
        self.stored.clone()
    }

    /// The rows of the weight, or with several codes in a word a row for each of them. The last of
    /// these rows may be shorter than the grid.
    fn grid(&self) -> Grid {
        let (group, words) = (self.quantizer.group, self.words());
        // A byte for each code, its word, and scale and zero point of each group.
        let load_bits = 16.0 + 128.0 / group as f64;
        let grid = Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: lcm(group, self.cols) / self.cols.max(1),
            col_align: self.cols,
            load_bits,
            transposed: None,
        };
        if self.fields == 1 {
            return grid;
        }
        // Tiles of whole rows of the weight, where each row of the grid begins with one.
        let whole = lcm(group, self.cols);
        let has_whole = words.is_multiple_of(whole) && whole <= MAX_ROW_LEN / self.fields;
        Grid {
            rows: self.fields,
            cols: words,
            row_align: self.fields,
            col_align: if has_whole { whole } else { group },
            ..grid
        }
    }

    fn survey(&self) -> Option<Survey> {
        Some(Survey::Steps)
    }

    fn step_errors(&self, values: &[f32], level: Level) -> StepErrors {
        self.quantizer.step_errors(values, level)
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let TileValues { tile, values, survey, activations, level, .. } = *values;
        let EncodeBuffers { groups, codes: packed, .. } = buffers;
        let quantizer = self.quantizer.with_steps(survey as usize);
        quantizer.encode(values, activations, level, back, groups);
        if !groups
            .scales
            .iter()
            .chain(&groups.offsets)
            .all(|x| x.is_finite())
        {
            let what = format!(
                "{}: values of a group are too large for the type of its scale",
                InTensor(&self.name)
            );
            return Err(AnamnesisError::unsupported("HQQ", what));
        }
        let width = if self.fields == 1 {
            values.len()
        } else {
            tile.cols.len()
        };
        pack(&groups.codes, width, (quantizer.bits, self.fields), self.word_bytes, packed);
        let first = tile.rows.start * self.grid().cols + tile.cols.start;
        put(0, (first * self.word_bytes) as u64, packed)?;
        self.put_groups(first, width, [&groups.scales, &groups.offsets], put)?;
        if !tile.is_first() {
            return Ok(());
        }
        let mut parts = self.description.iter().zip(3..);
        parts.try_for_each(|(bytes, part)| put(part, 0, bytes))
    }
}

impl HqqEncoder {
    /// Passes scales and zero points to `put`: those of `width` values from the `first` on in each
    /// row of the grid.
    fn put_groups(
        &self,
        first: usize,
        width: usize,
        numbers: [&[f32]; 2],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (group, dtype) = (self.quantizer.group, self.quantizer.dtype);
        for (part, numbers) in (1..).zip(numbers) {
            for (row, numbers) in numbers.chunks(width / group).enumerate() {
                let at = (first + row * self.words()) / group * dtype.byte_size();
                put(part, at as u64, &float_bytes(numbers.iter(), dtype))?;
            }
        }
        Ok(())
    }
}

/// Packs rows of `width` codes, of which `fields` make a word, the first in the highest bits. What the
/// last rows lack is 0.
fn pack(
    codes: &[u8],
    width: usize,
    (bits, fields): (usize, usize),
    word_bytes: usize,
    packed: &mut Vec<u8>,
) {
    packed.clear();
    if fields == 1 {
        packed.extend_from_slice(codes);
        return;
    }
    packed.resize(width * word_bytes, 0);
    for (row, codes) in codes.chunks(width).enumerate() {
        let shift = (fields - 1 - row) * bits;
        if word_bytes == 1 {
            packed
                .iter_mut()
                .zip(codes)
                .for_each(|(word, &code)| *word |= code << shift);
            continue;
        }
        for (word, &code) in packed.as_chunks_mut::<4>().0.iter_mut().zip(codes) {
            *word = (u32::from_le_bytes(*word) | u32::from(code) << shift).to_le_bytes();
        }
    }
}
