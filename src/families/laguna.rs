//! Laguna: numbers of heads that differ by layer, gates behind attention, experts behind the dense
//! layers, windows in three of four layers.
//!
//! Source: `conversion/laguna.py` of llama.cpp; defaults of transformers 5.24.

use serde_json::{Map, Value};

use super::dense_first::{DENSE, SPARSE_KINDS, counted, named};
use super::llama::SETTINGS;
use super::spark::by_kind;
use super::{CHOICE_BIAS, DENSE_MLP, ENDS, HEAD_NORMS, NORMS, QUERIES, SPARSE_MLP, VALUES};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS, OwnSizes};
use crate::families::engine::fields::{
    FULL_ATTENTION, Fields, HEADS, LAYER_KINDS, LAYERS, array, wrong,
};
use crate::families::engine::rows::*;
use crate::families::engine::table::{Model, TensorShapes};
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

const PER_HEAD: &str = "gates_heads";

const GATE: &[TensorRule] = &[
    only(
        Need::If(PER_HEAD),
        "blk.{i}.attn_gate",
        "model.layers.{i}.self_attn.g_proj",
        &[Heads, Hidden],
    ),
    only(
        Need::Unless(PER_HEAD),
        "blk.{i}.attn_gate",
        "model.layers.{i}.self_attn.g_proj",
        &[Queries, Hidden],
    ),
];

const fn shared(at: usize, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    TensorRule { hf, shape, ..SPARSE_MLP[at] }
}

const EXPERTS: &[TensorRule] = &[
    SPARSE_MLP[0],
    SPARSE_MLP[1],
    SPARSE_MLP[2],
    SPARSE_MLP[3],
    TensorRule { hf: "model.layers.{i}.mlp.experts.e_score_correction_bias", ..CHOICE_BIAS[0] },
    shared(4, "model.layers.{i}.mlp.shared_expert.gate_proj", &[SharedInner, Hidden]),
    shared(5, "model.layers.{i}.mlp.shared_expert.up_proj", &[SharedInner, Hidden]),
    shared(6, "model.layers.{i}.mlp.shared_expert.down_proj", &[Hidden, SharedInner]),
];

/// List of heads of each layer.
const ALL_HEADS: &str = "num_attention_heads_per_layer";
const GATING: &str = "gating";
const WINDOWED: &str = "sliding_attention";

pub(super) const LAGUNA: ModelClass = ModelClass {
    gguf: "laguna",
    classes: &["LagunaForCausalLM"],
    model_type: "laguna",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("sliding_window", Int(512)),
        ("moe_intermediate_size", Int(512)),
        ("shared_expert_intermediate_size", Int(512)),
        ("num_experts_per_tok", Int(8)),
        ("num_experts", Int(256)),
        ("moe_routed_scaling_factor", Float(1.0)),
        (GATING, Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("moe_apply_router_weight_on_input", Bool(false)),
    ],
    own_fields: &[("num_local_experts", "num_experts")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, GATE, DENSE_MLP, EXPERTS],
    settings: &[&[
        SETTINGS[0],
        setting(Kind::Own(&HEADS_BY_LAYER), "attention.head_count", &[ALL_HEADS]),
        count("attention.sliding_window", &["sliding_window"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
        setting(Kind::FixedFlag(true), "expert_weights_norm", &[]),
        number("expert_weights_scale", &["moe_routed_scaling_factor"]),
        setting(Kind::Fixed(2), "expert_gating_func", &[]),
        setting(Kind::Required, "leading_dense_block_count", &[DENSE]),
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
        // Of layers with a window, whole heads rotate.
        setting(Kind::HeadSize, "rope.dimension_count_swa", &["head_dim"]),
    ]],
    traits: Traits {
        rope: RopeTraits { partial: Some(1.0), by_kind: true, ..RopeTraits::PLAIN },
        by_layer: Some(&ByLayer { sizes, restore_rope: None }),
        also_implied: &[("moe_router_logit_softcapping", Float(0.0))],
        laws: &[every_fourth],
        completes: &[complete],
        from_tensors: &[gates],
        restores: &[restore],
        ..Traits::PLAIN
    },
    mlx: Some(&LAGUNA_MLX),
    ..ModelClass::PLAIN
};

const LAGUNA_MLX: MlxClass = MlxClass {
    renamed: &[
        STACKS[0],
        STACKS[1],
        STACKS[2],
        ("blk.{i}.ffn_gate_inp", "model.layers.{i}.mlp.gate.proj"),
        (CHOICE_BIAS[0].gguf, "model.layers.{i}.mlp.gate.e_score_correction_bias"),
    ],
    modes: ROUTER_8_BITS,
    kept_types: &[CHOICE_BIAS[0].gguf],
    implied: &[SILU, NO_BIAS, ("moe_apply_router_weight_on_input", Bool(false))],
    scalings: &["linear", "llama3", "yarn"],
    stated_fields: &[&[
        "rms_norm_eps",
        "max_position_embeddings",
        "num_key_value_heads",
        "head_dim",
        "sliding_window",
        LAYER_KINDS,
        ALL_HEADS,
        SPARSE_KINDS,
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "moe_routed_scaling_factor",
    ]],
    laws: &[gated_heads],
    rope: RopeFields::NestedByKind,
    ..MlxClass::PLAIN
};

/// mlx-lm has a gate for each head, and needs a layer that sees the whole text.
fn gated_heads(model: &Model<'_>) -> Result<Option<String>> {
    let owner = "mlx-lm's laguna";
    if !model.fields.flag(PER_HEAD) {
        return Err(wrong(GATING, format!("{owner} has a gate for each head")));
    }
    match model.dims.has_kind(FULL_ATTENTION) {
        true => Ok(None),
        false => Err(wrong(LAYER_KINDS, format!("{owner} needs a layer that sees the whole text"))),
    }
}

fn sizes(fields: &Fields, dims: &Dims) -> Result<Vec<OwnSizes>> {
    let list = fields.0.get(ALL_HEADS).and_then(Value::as_array);
    let fits = |n: &Value| {
        let n = usize::try_from(n.as_u64()?).ok()?;
        (n > 0 && n.is_multiple_of(dims.kv_heads)).then_some(n)
    };
    let heads: Option<Vec<usize>> = list.and_then(|list| list.iter().map(fits).collect());
    let heads = heads.filter(|heads| heads.len() == dims.layers);
    let heads = heads.ok_or_else(|| {
        let what = format!(
            "it is no list of {} multiples of num_key_value_heads, {}",
            dims.layers, dims.kv_heads
        );
        wrong(ALL_HEADS, what)
    })?;
    let of = |heads| OwnSizes {
        head: dims.head,
        heads,
        kv_heads: dims.kv_heads,
        inner: None,
        keys: None,
        values: None,
    };
    Ok(heads.into_iter().map(of).collect())
}

/// Sets what transformers takes for granted, and counts the layers without experts.
fn complete(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
    let heads = fields.need(HEADS)?;
    fields
        .0
        .entry(ALL_HEADS)
        .or_insert_with(|| vec![heads; layers].into());
    fields
        .0
        .entry(LAYER_KINDS)
        .or_insert_with(|| vec![FULL_ATTENTION; layers].into());
    counted(fields)?;
    if fields.0.remove(SPARSE_KINDS).is_none() {
        let dense = fields.count(&[DENSE])?.unwrap_or(1);
        fields.0.insert(DENSE.to_owned(), dense.into());
    }
    let per_head = match fields.0.get(GATING) {
        Some(Value::Bool(true)) => true,
        Some(text) if text == "per-head" => true,
        Some(text) if text == "per-element" => false,
        other => {
            let what = format!("it is {}", other.unwrap_or(&Value::Null));
            return Err(wrong(GATING, what));
        }
    };
    fields.0.insert(PER_HEAD.to_owned(), per_head.into());
    Ok(())
}

/// With a window, llama.cpp has the whole text in the first of four layers.
fn every_fourth(model: &Model<'_>) -> Result<Option<String>> {
    let has_window = model.fields.count(&["sliding_window"])? > Some(0);
    let mut kinds = model.dims.kinds().into_iter().flatten().enumerate();
    let expected = |layer: usize| match has_window && !layer.is_multiple_of(4) {
        true => WINDOWED,
        false => FULL_ATTENTION,
    };
    match kinds.find(|(layer, kind)| *kind != expected(*layer)) {
        None => Ok(None),
        Some((layer, kind)) => {
            let what =
                format!("layer {layer} is {kind}, and {} has {}", model.owner(), expected(layer));
            Err(wrong(LAYER_KINDS, what))
        }
    }
}

/// Whether gates are those of heads or of each value.
fn gates(config: &mut Map<String, Value>, tensors: &TensorShapes<'_>) -> Result<()> {
    let rows = |name: &str| tensors.get(name).and_then(|shape| shape.first());
    let is_each = rows("blk.0.attn_gate.weight") == rows("blk.0.attn_q.weight");
    let gating: Value = if is_each {
        "per-element".into()
    } else {
        true.into()
    };
    config.insert(GATING.to_owned(), gating);
    config.insert(PER_HEAD.to_owned(), (!is_each).into());
    Ok(())
}

fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    config.remove(PER_HEAD);
    named(config, dims)?;
    let window = config.get("sliding_window").and_then(Value::as_u64);
    let kind = |layer: usize| match window > Some(0) && !layer.is_multiple_of(4) {
        true => WINDOWED,
        false => FULL_ATTENTION,
    };
    config.insert(LAYER_KINDS.to_owned(), (0..dims.layers).map(kind).collect());
    by_kind(config, dims)
}

/// INT32\[\]: heads of each layer.
const HEADS_BY_LAYER: OwnSetting = required(own(
    |_, model| {
        let layers = model.dims.layer_sizes.iter();
        let all = layers.map(|sizes| i32::try_from(sizes.heads).unwrap_or(i32::MAX));
        Ok(Some(array(GgufMetadataArray::I32(all.collect()))))
    },
    |stated, config| {
        let all = match stated.value {
            GgufMetadataValue::U32(heads) => vec![*heads as i32; 1],
            _ => stated.numbers()?.to_vec(),
        };
        let first = all.first().copied().unwrap_or(0);
        config.set(HEADS[0], first.into(), stated.key)?;
        match stated.value {
            GgufMetadataValue::U32(_) => Ok(None),
            _ => Ok(Some(all.into())),
        }
    },
));
