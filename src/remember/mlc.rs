//! MLC: `X.q_weight` with `X.q_scale`, of a weight `X.weight` `[…, out, in]`, in directories of MLC alone.
//! `quantization` of `mlc-chat-config.json` names the kind.
//!
//! | kind | `X.q_weight` | values |
//! |---|---|---|
//! | `q4…_1`, `q3…_1`, `q8…_1` | U32 `[…, out, words]`, scales `[…, out, groups]` | `(code - max) * scale` |
//! | `q4…_0`, `q3…_0` | U32 `[words, out]`, scales `[groups, out]` | the same; embeddings as above |
//! | `e4m3_…`, `e5m2_…` | FP8 `[…, out, in]`, one scale or none | `code * scale` |
//!
//! A word has 8 codes of four bits, 10 of three or 4 of eight, the first in the lowest bits. Groups
//! have 32 values, of three bits 40, and `max` is the largest positive integer: 7, 3, 127. Inputs are
//! padded to whole groups; what is padding only the sizes of the model tell.
//!
//! Formula: mlc_llm `group_quantization.py` (`GroupQuantize._dequantize`), `per_tensor_quantization.py`
//! (`dequantize_float8`, which rounds the scale to F16).

use std::collections::BTreeSet;
use std::ops::Range;

use half::f16;
use serde_json::{Map, Value};

use crate::config::MLC_FILE;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::layout::lines::{CodeLines, CodeRows, LinePacking};
use crate::remember::seam::NamePattern::Is;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, Unpack, row_groups};
use crate::remember::seam::scale_layout::{per_tensor, rows_and_cols};
use crate::remember::seam::scale_matrix::{Matrix, Ones, Repeated, ScaleMatrix, Transposed};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, StoredRows,
    TensorRole, Tile, base_of, module_of, read, refused, require_shape, wrong,
};
use crate::{Container, Dtype, Result};

pub(super) struct Mlc;

/// Name in listings.
const FAMILY: &str = "MLC";

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["EXL2", "FP8", "not decoded"],
    methods: &[],
    codes: &[".q_weight"],
    companions: &[],
    optional: &[],
    activations: &["q_calibration_scale"],
    markers: &[],
    sidecars: &[
        Is(MLC_FILE),
        Is("tensor-cache.json"),
        Is("tensor-cache-b16.json"),
        Is("ndarray-cache.json"),
        Is("ndarray-cache-b16.json"),
    ],
    container: None,
};

impl Scheme for Mlc {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if all.model.container != Container::Mlc {
            return Ok(None);
        }
        if t.name().contains("_shard-") {
            let what = "its parts are for several GPUs; give the model that it was made from";
            return Err(refused(t, FAMILY, what));
        }
        if let Some(base) = base_of(t.name(), "q_scale")
            && all.at(base, "q_weight").is_none()
        {
            return Err(wrong(t, format!("its codes `{base}q_weight` are missing")));
        }
        if let Some(base) = base_of(t.name(), "q_weight") {
            return MlcLayer { t: *t, base, all }.claimed().map(Some);
        }
        let is_awq = ["qweight", "qzeros"]
            .iter()
            .any(|end| t.name().ends_with(end));
        if t.dtype() == Dtype::U32 && !is_awq {
            let what = "nothing says what its words are: MLC had no names for codes before 2024";
            return Err(refused(t, FAMILY, what));
        }
        Ok(None)
    }
}

/// A layer that is being claimed.
struct MlcLayer<'a, 'm> {
    t: Tensor<'m>,
    /// The name of its codes without the last part.
    base: &'m str,
    all: &'a Index<'m>,
}

impl<'m> MlcLayer<'_, 'm> {
    fn claimed(&self) -> Result<Group<'m>> {
        match self.t.dtype() {
            Dtype::U32 => self.integers(),
            Dtype::F8E4M3 | Dtype::F8E5M2 => self.floats(),
            Dtype::I8 => {
                let what = "codes of `q4f16_ft` are in an order of CUTLASS that depends on the GPU";
                Err(refused(&self.t, FAMILY, what))
            }
            _ => Err(wrong(&self.t, "codes of MLC are U32 or FP8")),
        }
    }

    fn group(
        &self,
        shape: Vec<usize>,
        (codes, scales): (CodeType, Granularity),
        scale: Option<Tensor<'m>>,
        decoder: Grouped<'m>,
    ) -> Group<'m> {
        let mut parts = vec![(TensorRole::Quantized, self.t)];
        parts.extend(scale.map(|scale| (TensorRole::Scale, scale)));
        let scheme = QuantScheme::Grouped { family: FAMILY, codes, scales };
        Group::new(format!("{}weight", self.base), shape, scheme, parts, Box::new(decoder))
    }

    /// Codes of eight-bit floats with a scale of the tensor. E5M2 may be casts without one.
    fn floats(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let scale = match t.dtype() {
            Dtype::F8E5M2 => self.all.at(self.base, "q_scale"),
            _ => Some(self.all.need(t, self.base, "q_scale")?),
        };
        let scales: Box<dyn ScaleMatrix + 'm> = match &scale {
            None => Box::new(Ones),
            Some(scale) => {
                require_shape(t, scale, &[1])?;
                Box::new(HalfScale(Repeated(Floats::ieee(scale)?)))
            }
        };
        let Some(format) = CodeFormat::of_bytes(t.dtype()) else {
            return Err(wrong(t, "its codes are no eight-bit floats"));
        };
        let (rows, cols) = rows_and_cols(t.shape());
        let codes = Codes::Rows { part: t.part(), row_bytes: cols };
        let grid = per_tensor(t.shape());
        let decoder = Grouped::scaled(codes, 8, format, [rows, cols], grid, scales);
        let kind = (CodeType::Fp8, Granularity::Tensor);
        Ok(self.group(t.shape().to_vec(), kind, scale, decoder))
    }

    fn integers(&self) -> Result<Group<'m>> {
        let t = &self.t;
        let scale = self.all.need(t, self.base, "q_scale")?;
        let words = Words::of_bits(self.bits()?);
        let misfit = || {
            let what = format!("its scales `{}` {:?} do not fit", scale.name(), scale.shape());
            wrong(t, what)
        };
        let (stored, scales) = (t.shape(), scale.shape());
        let per_group = words.per_group();
        let is_whole = |stored: usize, groups: usize| {
            groups > 0 && groups.checked_mul(per_group) == Some(stored)
        };
        let (Some((&last, rows)), Some((&groups, scale_rows))) =
            (stored.split_last(), scales.split_last())
        else {
            return Err(misfit());
        };
        if !rows.is_empty() && rows == scale_rows && is_whole(last, groups) {
            let cols = self.inputs(groups, words.group)?;
            let count = rows.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
            let count = count.ok_or_else(misfit)?;
            let matrix = Box::new(Matrix { floats: Floats::ieee(&scale)?, cols: groups });
            let codes = words.rows(t, last)?;
            let decoder = words.decoder(codes, [count, cols], matrix);
            let shape = rows.iter().copied().chain([cols]).collect();
            return Ok(self.group(shape, words.kind(), Some(scale), decoder));
        }
        match (stored, scales) {
            (&[stored, outputs], &[groups, n]) if outputs == n && is_whole(stored, groups) => {
                let cols = self.inputs(groups, words.group)?;
                let floats = Floats::ieee(&scale)?;
                let matrix = Box::new(Transposed::of_floats(floats, outputs, groups));
                let codes = Codes::Unpacked(Box::new(WordLines { t: *t, outputs, words }));
                let decoder = words.decoder(codes, [outputs, cols], matrix);
                Ok(self.group(vec![outputs, cols], words.kind(), Some(scale), decoder))
            }
            _ => Err(misfit()),
        }
    }

    /// Bits of a code, which the name of the model's quantization begins with.
    fn bits(&self) -> Result<usize> {
        let named = self.all.config.in_file(MLC_FILE, "quantization");
        let Some(name) = named.and_then(Value::as_str) else {
            let what =
                format!("no `quantization` in `{MLC_FILE}` says how many bits its codes have");
            return Err(refused(&self.t, FAMILY, what));
        };
        let kinds = [("q3", 3), ("q4", 4), ("q8", 8)];
        let found = kinds.iter().find(|(start, _)| name.starts_with(start));
        found.map(|(_, bits)| *bits).ok_or_else(|| {
            let what = format!("`{MLC_FILE}` says that it is quantized as `{name}`");
            refused(&self.t, FAMILY, what)
        })
    }

    /// Inputs of the layer, which are padded to `groups` groups of `group`.
    ///
    /// # Errors
    /// Several sizes of the model are padded to that, or, if that is no usual size, none.
    fn inputs(&self, groups: usize, group: usize) -> Result<usize> {
        let t = &self.t;
        let Some(padded) = groups.checked_mul(group) else {
            return Err(wrong(t, "its size overflows"));
        };
        let sizes = self.all.config.in_file(MLC_FILE, "model_config");
        let sizes: Vec<usize> = sizes
            .map(sizes_of)
            .unwrap_or_default()
            .into_iter()
            .filter(|size| size.checked_next_multiple_of(group) == Some(padded))
            .collect();
        match sizes.as_slice() {
            [only] => Ok(*only),
            // Sizes that are no multiples of 32 are in the config of any known model.
            [] if group.is_multiple_of(32) => Ok(padded),
            several => {
                let module = module_of(self.base);
                let (start, layer) = module.rsplit_once('.').unwrap_or(("", module));
                let own = FUSED.iter().find(|(fused, _)| *fused == layer);
                let [_, known] = match own {
                    Some((_, own)) => self.all.config.layer_sizes(&format!("{start}.{own}")),
                    None => self.all.config.layer_sizes(module),
                };
                known.filter(|known| several.contains(known)).ok_or_else(|| {
                    let what = format!(
                        "its inputs are padded to {padded}, and of the sizes in `{MLC_FILE}` these \
                         are possible: {several:?}"
                    );
                    refused(t, FAMILY, what)
                })
            }
        }
    }
}

/// Layers of MLC that are several ones elsewhere, with one that has the same inputs.
const FUSED: [(&str, &str); 6] = [
    ("qkv_proj", "q_proj"),
    ("gate_up_proj", "gate_proj"),
    ("e1_e3", "gate_proj"),
    ("e2", "down_proj"),
    ("moe_gate_up_proj", "experts.gate_proj"),
    ("moe_down_proj", "experts.down_proj"),
];

/// Sizes that layers of a model with `config`, towers included, may have as inputs.
fn sizes_of(config: &Value) -> BTreeSet<usize> {
    const KEYS: [&str; 12] = [
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "n_embd",
        "n_inner",
        "d_model",
        "ffn_hidden_size",
        "attention_hidden_size",
        "q_lora_rank",
        "kv_lora_rank",
        "ffn_dim",
    ];
    let mut sizes = BTreeSet::new();
    // Towers have a config of their own.
    let nested = config.as_object().into_iter().flat_map(Map::values);
    for config in std::iter::once(config).chain(nested) {
        let size = |key: &str| usize::try_from(config.get(key)?.as_u64()?).ok();
        sizes.extend(KEYS.iter().filter_map(|key| size(key)));
        let heads = ["num_attention_heads", "n_head"]
            .iter()
            .find_map(|key| size(key));
        let lengths = ["head_dim", "v_head_dim"]
            .iter()
            .filter_map(|key| size(key));
        let all = lengths.filter_map(|length| heads?.checked_mul(length));
        let four = size("n_embd").and_then(|n| n.checked_mul(4));
        sizes.extend(all.chain(four).collect::<Vec<_>>());
    }
    sizes.remove(&0);
    sizes
}

/// A scale, rounded to F16.
struct HalfScale<'m>(Repeated<'m>);

impl ScaleMatrix for HalfScale<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let before = out.len();
        self.0.extend(rows, cols, staging, out)?;
        let added = out.iter_mut().skip(before);
        added.for_each(|scale| *scale = f16::from_f32(*scale).to_f32());
        Ok(())
    }
}

/// How codes lie in words.
#[derive(Clone, Copy)]
struct Words {
    bits: usize,
    /// Codes of a word.
    codes: usize,
    /// Values that share a scale.
    group: usize,
}

impl Words {
    fn of_bits(bits: usize) -> Self {
        let group = if bits == 3 { 40 } else { 32 };
        Self { bits, codes: 32 / bits, group }
    }

    fn per_group(self) -> usize {
        self.group / self.codes
    }

    fn kind(self) -> (CodeType, Granularity) {
        (CodeType::Int(self.bits as u8), Granularity::Group(self.group))
    }

    /// Codes of rows of `words` words.
    fn rows<'m>(self, t: &Tensor<'m>, words: usize) -> Result<Codes<'m>> {
        if 32 % self.bits == 0 {
            return Ok(Codes::Rows { part: t.part(), row_bytes: words * 4 });
        }
        let width = words.checked_mul(self.codes);
        let width = width.ok_or_else(|| wrong(t, "its size overflows"))?;
        Ok(Codes::Unpacked(Box::new(CodeRows(CodeLines::new(t, LinePacking::Tens, width)))))
    }

    fn decoder<'m>(
        self,
        codes: Codes<'m>,
        size: [usize; 2],
        scales: Box<dyn ScaleMatrix + 'm>,
    ) -> Grouped<'m> {
        let max = (1u32 << (self.bits - 1)) - 1;
        let format = CodeFormat::Int(Int { flip: 0, offset: max as f32 });
        Grouped::scaled(codes, self.bits, format, size, row_groups(size[1], self.group), scales)
    }
}

/// Words of codes that follow each other down the columns of `[words, outputs]`.
struct WordLines<'m> {
    t: Tensor<'m>,
    outputs: usize,
    words: Words,
}

impl Unpack for WordLines<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let Words { bits, codes, .. } = self.words;
        let lines = tile.cols.start / codes..tile.cols.end.div_ceil(codes);
        let bytes = tile.rows.start * 4..tile.rows.end * 4;
        read(&self.t.part(), self.outputs * 4, lines.clone(), bytes, staging)?;
        let (height, mask) = (tile.rows.len(), (1u32 << bits) - 1);
        let words = staging.as_chunks().0;
        out.clear();
        for row in 0..height {
            out.extend(tile.cols.clone().map(|col| {
                let line = col / codes - lines.start;
                let word = u32::from_le_bytes(words[line * height + row]);
                (word >> (col % codes * bits) & mask) as u8
            }));
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (1, self.words.codes)
    }

    fn transposed(&self) -> Option<StoredRows> {
        Some(StoredRows::of_one(32, self.words.codes))
    }
}
