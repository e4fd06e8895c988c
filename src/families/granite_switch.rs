//! Granite Switch: Granite with adapters, of which some tokens choose one. GGUF has the adapters of a
//! matrix as a stack, behind one of zeros that stands for none.
//!
//! Source: `GraniteSwitchModel` in `conversion/granite.py` of llama.cpp.

use serde_json::{Map, Value};

use super::granite::{GRANITE, SETTINGS, SHARED_WIDTH, shared_half};
use super::{ENDS, NORMS};
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, LAYERS, array, wrong};
use crate::families::engine::mapping::refused;
use crate::families::engine::rows::*;
use crate::families::engine::source::{
    Rearrangement, SourceRows, SourceTensor, computed, unchanged,
};
use crate::families::engine::table::{OwnSetting, OwnTransform, own, required};
use crate::model::gguf::GgufMetadataArray;
use crate::remember::layout::assembled::{Change, RowOrder};
use crate::remember::{ResolvedItem, values_of_rows};
use crate::{Result, TargetDtype};

const ADAPTERS: Dim = Field("num_adapters");
const RANK: Dim = Field("max_lora_rank");
const SHARED: Dim = Field(SHARED_WIDTH);
const STACKED: Dim = Sum(&[ADAPTERS, One]);

/// Adapters behind one of zeros.
const STACK: OwnTransform = OwnTransform {
    to_gguf: |sources, name, _| stacked(sources, name, RowOrder::From(0)),
    to_hf: |sources, name, _| apart(sources, name, None),
};

/// As [`STACK`], whose rows are those of heads.
const STACK_OF_HEADS: OwnTransform = OwnTransform {
    to_gguf: |sources, name, dims| {
        stacked(sources, name, RowOrder::interleaved(dims.need_size(Head)?))
    },
    to_hf: |sources, name, dims| {
        let order = RowOrder::split(dims.need_size(Head)?);
        apart(sources, name, Some(order))
    },
};

fn stacked(
    sources: &mut Vec<SourceTensor<'_>>,
    name: &str,
    order: RowOrder,
) -> Result<(Rearrangement, Vec<usize>)> {
    let [adapters, _, rows, cols] = sources[0].shape[..] else {
        return Err(refused(name, "it does not have four dimensions"));
    };
    let zeros = computed((name, vec![0.0; cols]));
    sources.push(SourceTensor::new(ResolvedItem::from(zeros))?);
    let none = SourceRows { source: 1, order: RowOrder::Same(0), rows, turn: 1 };
    let all = SourceRows { source: 0, order, rows: adapters * rows, turn: 1 };
    let moved = Rearrangement {
        pieces: vec![none, all],
        ..Rearrangement::of_each(1, RowOrder::From(0), (rows, cols))
    };
    Ok((moved, vec![adapters + 1, rows, cols]))
}

fn apart(
    sources: &mut Vec<SourceTensor<'_>>,
    name: &str,
    order: Option<RowOrder>,
) -> Result<(Rearrangement, Vec<usize>)> {
    let source = sources.remove(0);
    let [stack, rows, cols] = source.shape[..] else {
        return Err(refused(name, "it does not have three dimensions"));
    };
    let first = values_of_rows(&*source.decoder, 0..rows, TargetDtype::F32)?;
    if first.iter().any(|x| *x != 0.0) {
        return Err(refused(&source.name, "the first of its adapters is not of zeros"));
    }
    let behind = Rearrangement::of_each(1, RowOrder::From(rows), ((stack - 1) * rows, cols));
    let whole = source.rearranged((name.to_owned(), vec![(stack - 1) * rows, cols]), &behind);
    sources.push(whole);
    let (moved, _) = unchanged(sources);
    let pieces = match order {
        None => moved.pieces,
        Some(order) => vec![SourceRows { order, ..moved.pieces[0] }],
    };
    Ok((Rearrangement { pieces, ..moved }, vec![stack - 1, 1, rows, cols]))
}

/// Rows of queries and keys are those of heads, and those of values stay.
const QUERIES_KEYS: OwnTransform = OwnTransform {
    to_gguf: |sources, _, dims| turned(sources, dims, RowOrder::interleaved),
    to_hf: |sources, _, dims| turned(sources, dims, RowOrder::split),
};

fn turned(
    sources: &mut [SourceTensor<'_>],
    dims: &Dims,
    order: fn(usize) -> RowOrder,
) -> Result<(Rearrangement, Vec<usize>)> {
    let shape = sources[0].shape.clone();
    let head = dims.need_size(Head)?;
    let (queries, keys) = (dims.need_size(Queries)?, dims.need_size(Keys)?);
    let heads = SourceRows { source: 0, order: order(head), rows: queries + keys, turn: 1 };
    let order = RowOrder::From(queries + keys);
    let values = SourceRows { source: 0, order, rows: keys, turn: 1 };
    let whole = Rearrangement::changed(&shape, Change::None);
    Ok((Rearrangement { pieces: vec![heads, values], ..whole }, shape))
}

/// The two matrices of low rank of a projection.
macro_rules! adapters {
    ($gguf:literal, $hf:literal, $slice:literal, $out:expr, $in:expr, $stack:expr) => {
        [
            parameter(
                concat!("blk.{i}.", $gguf, ".lora_a"),
                concat!("model.layers.{i}.", $hf, ".lora_A", $slice),
                (Transform::Own(&STACK), &[ADAPTERS, One, RANK, $in], &[STACKED, RANK, $in]),
            ),
            parameter(
                concat!("blk.{i}.", $gguf, ".lora_b"),
                concat!("model.layers.{i}.", $hf, ".lora_B", $slice),
                (Transform::Own(&$stack), &[ADAPTERS, One, $out, RANK], &[STACKED, $out, RANK]),
            ),
        ]
    };
}

const fn base(hf: &'static str, rule: TensorRule) -> TensorRule {
    TensorRule { hf, ..rule }
}

const INPUT: &str = "model.layers.{i}.shared_mlp.input_linear.base_layer";

const BASES: &[TensorRule] = &[
    TensorRule {
        transform: Transform::Own(&QUERIES_KEYS),
        ..same(
            "blk.{i}.attn_qkv",
            "model.layers.{i}.self_attn.qkv_proj.base_layer",
            &[Sum(&[Queries, Keys, Keys]), Hidden],
        )
    },
    same("blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj.base_layer", &[Hidden, Queries]),
    base(INPUT, shared_half(Need::All, 0, "blk.{i}.ffn_gate")),
    base(INPUT, shared_half(Need::All, 1, "blk.{i}.ffn_up")),
    same(
        "blk.{i}.ffn_down",
        "model.layers.{i}.shared_mlp.output_linear.base_layer",
        &[Hidden, SHARED],
    ),
];

pub(super) const GRANITE_SWITCH: ModelClass = ModelClass {
    gguf: "graniteswitch",
    classes: &["GraniteSwitchForCausalLM"],
    model_type: "granite_switch",
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
        ("num_local_experts", Int(0)),
    ],
    biases: &[],
    tensors: &[
        &[ENDS[0], ENDS[1], ENDS[2], NORMS[0], NORMS[1]],
        BASES,
        &adapters!("attn_q", "self_attn.qkv_proj", "_slices.0", Queries, Hidden, STACK_OF_HEADS),
        &adapters!("attn_k", "self_attn.qkv_proj", "_slices.1", Keys, Hidden, STACK_OF_HEADS),
        &adapters!("attn_v", "self_attn.qkv_proj", "_slices.2", Keys, Hidden, STACK),
        &adapters!("attn_output", "self_attn.o_proj", "", Hidden, Queries, STACK),
        &adapters!("ffn_gate", "shared_mlp.input_linear", "_slices.0", SHARED, Hidden, STACK),
        &adapters!("ffn_up", "shared_mlp.input_linear", "_slices.1", SHARED, Hidden, STACK),
        &adapters!("ffn_down", "shared_mlp.output_linear", "", Hidden, SHARED, STACK),
    ],
    settings: &[
        SETTINGS,
        &[
            setting(Kind::Required, "feed_forward_length", &[SHARED_WIDTH]),
            setting(Kind::Required, "expert_shared_feed_forward_length", &[SHARED_WIDTH]),
            setting(Kind::Fixed(0), "expert_count", &[]),
            setting(Kind::Fixed(0), "expert_used_count", &[]),
            setting(Kind::Required, "adapters.count", &["num_adapters"]),
            setting(Kind::Required, "adapters.lora_rank", &["max_lora_rank"]),
            setting(Kind::Own(&TOKENS), "adapters.token_ids_activate", &["adapter_token_ids"]),
            setting(
                Kind::Own(&TOKENS),
                "adapters.token_ids_substitute",
                &["adapter_substitute_token_ids"],
            ),
            number("adapters.router_gain", &["control_token_gain"]),
        ],
    ],
    traits: Traits {
        has_pre_norms: false,
        ties_output: true,
        left_out: &["model.switch.", "model.adapter_token_ids", "model.control_to_substitute_lut"],
        completes: &[complete],
        restores: &[restore],
        ..GRANITE.traits
    },
    mlx: None,
    ..GRANITE
};

/// A layer more than there are keeps what tokens choose.
fn complete(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?;
    if layers < 2 {
        return Err(wrong(LAYERS[0], format!("{layers} layers, one of which is none")));
    }
    fields.0.insert(LAYERS[0].to_owned(), (layers - 1).into());
    fields.0.entry("control_token_gain").or_insert(15.0.into());
    Ok(())
}

fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    config.insert(LAYERS[0].to_owned(), (dims.layers + 1).into());
    Ok(())
}

/// INT32\[\]: a token for each adapter.
const TOKENS: OwnSetting = required(own(
    |setting, model| {
        let list = model
            .fields
            .0
            .get(setting.fields[0])
            .and_then(Value::as_array);
        let number = |n: &Value| i32::try_from(n.as_u64()?).ok();
        let all: Option<Vec<_>> = list.and_then(|list| list.iter().map(number).collect());
        let count = model.dims.need("num_adapters")?;
        let all = all.filter(|all| all.len() == count);
        let all = all.ok_or_else(|| setting.wrong(format!("it is no list of {count} tokens")))?;
        Ok(Some(array(GgufMetadataArray::I32(all))))
    },
    |stated, _| Ok(Some(stated.numbers()?.to_vec().into())),
));
