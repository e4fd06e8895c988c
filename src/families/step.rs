//! Step 3.5 and 3.7: more heads in layers with a window, gates of heads, experts behind the dense
//! layers. Of layers that see the whole text, half of each head rotates.
//!
//! Source: `Step35Model` in `conversion/step3.py` of llama.cpp; configs of the published models and
//! defaults of transformers 5.24.

use serde_json::{Map, Value, json};

use super::dense_first::{DENSE, SPARSE_KINDS, in_front, named};
use super::{DENSE_MLP, ENDS, HEAD_NORMS, NORMS, QUERIES, SPARSE_MLP, VALUES, sparse};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS, OwnSizes};
use crate::families::engine::fields::{
    FULL_ATTENTION, Fields, HEADS, KV_HEADS, LAYER_KINDS, LAYERS, array, float, wrong, wrong_key,
};
use crate::families::engine::rows::*;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

const GATE: &[TensorRule] =
    &[same("blk.{i}.attn_gate", "model.layers.{i}.self_attn.g_proj", &[Heads, Hidden])];

const UP: &[Dim] = &[Experts, ExpertInner, Hidden];
const DOWN: &[Dim] = &[Experts, Hidden, ExpertInner];
const SHARED: Dim = Field("share_expert_dim");

const fn shared(at: usize, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    TensorRule { hf, shape, ..SPARSE_MLP[at] }
}

const EXPERTS: &[TensorRule] = &[
    TensorRule { hf: "model.layers.{i}.moe.gate", ..SPARSE_MLP[0] },
    sparse(same("blk.{i}.ffn_gate_exps", "model.layers.{i}.moe.gate_proj", UP)),
    sparse(same("blk.{i}.ffn_up_exps", "model.layers.{i}.moe.up_proj", UP)),
    sparse(same("blk.{i}.ffn_down_exps", "model.layers.{i}.moe.down_proj", DOWN)),
    sparse(parameter(
        "blk.{i}.exp_probs_b.bias",
        "model.layers.{i}.moe.router_bias",
        (Transform::None, &[Experts], &[Experts]),
    )),
    shared(4, "model.layers.{i}.share_expert.gate_proj", &[SHARED, Hidden]),
    shared(5, "model.layers.{i}.share_expert.up_proj", &[SHARED, Hidden]),
    shared(6, "model.layers.{i}.share_expert.down_proj", &[Hidden, SHARED]),
];

const WINDOWED: &str = "sliding_attention";
/// Object of what layers with a window have.
const OTHERS: &str = "attention_other_setting";
const WINDOW_HEADS: &str = "num_sliding_attention_heads";
const WINDOW_KV_HEADS: &str = "num_sliding_attention_groups";
/// A text with the numbers of layers with experts.
const SPARSE_LAYERS: &str = "moe_layers_enum";
/// List of the parts of heads that rotate, by layer.
const PARTS: &str = "partial_rotary_factors";

pub(super) const STEP3_5: ModelClass = ModelClass {
    gguf: "step35",
    classes: &["Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"],
    model_type: "step3p5",
    defaults: &[
        ("max_position_embeddings", Int(128_000)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(1280)),
        ("share_expert_dim", Int(1280)),
        ("num_experts_per_tok", Int(8)),
        ("n_routed_experts", Int(288)),
        ("moe_router_scaling_factor", Float(1.0)),
        ("norm_expert_weight", Bool(true)),
        ("moe_every_n_layer", Int(1)),
    ],
    implied: &[
        ("norm_expert_weight", Bool(true)),
        ("use_head_wise_attn_gate", Bool(true)),
        ("use_moe_router_bias", Bool(true)),
        ("moe_every_n_layer", Int(1)),
    ],
    own_fields: &[
        ("num_local_experts", "moe_num_experts"),
        ("num_experts_per_tok", "moe_top_k"),
        ("num_key_value_heads", "num_attention_groups"),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, GATE, DENSE_MLP, EXPERTS],
    settings: &[&[
        setting(Kind::Own(&HEADS_BY_LAYER), "attention.head_count", &["num_attention_heads"]),
        setting(Kind::Own(&KV_HEADS_BY_LAYER), "attention.head_count_kv", &["num_key_value_heads"]),
        setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
        setting(Kind::Own(&WINDOWS), "attention.sliding_window_pattern", &[LAYER_KINDS]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        count("expert_shared_feed_forward_length", &["share_expert_dim"]),
        number("expert_weights_scale", &["moe_router_scaling_factor"]),
        setting(Kind::Flag, "expert_weights_norm", &["norm_expert_weight"]),
        setting(Kind::Omitted, "expert_gating_func", &[]),
        setting(Kind::Required, "leading_dense_block_count", &[DENSE]),
        count("moe_every_n_layers", &["moe_every_n_layer"]),
        setting(Kind::Own(&LIMITS), "swiglu_clamp_exp", &["swiglu_limits"]),
        setting(Kind::Own(&LIMITS), "swiglu_clamp_shexp", &["swiglu_limits_shared"]),
    ]],
    traits: Traits {
        norms_plus_one: true,
        needs_output: true,
        rope: RopeTraits {
            partial: Some(0.5),
            by_kind: true,
            scalings: &[OwnScaling::Llama3],
            ..RopeTraits::PLAIN
        },
        also_implied: &[("moe_router_activation", Text("sigmoid"))],
        by_layer: Some(&ByLayer { sizes, restore_rope: None }),
        prediction: Prediction::LeftOut,
        completes: &[complete],
        restores: &[restore],
        ..Traits::PLAIN
    },
    mlx: Some(&STEP3_5_MLX),
    ..ModelClass::PLAIN
};

const STEP3_5_MLX: MlxClass = MlxClass {
    renamed: &[
        STACKS[0],
        STACKS[1],
        STACKS[2],
        ("blk.{i}.ffn_gate_inp", "model.layers.{i}.mlp.gate.gate"),
        ("blk.{i}.exp_probs_b.bias", "model.layers.{i}.mlp.gate.router_bias"),
        ("blk.{i}.ffn_gate_shexp", "model.layers.{i}.mlp.share_expert.gate_proj"),
        ("blk.{i}.ffn_up_shexp", "model.layers.{i}.mlp.share_expert.up_proj"),
        ("blk.{i}.ffn_down_shexp", "model.layers.{i}.mlp.share_expert.down_proj"),
    ],
    modes: ROUTER_8_BITS,
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    norms_plus_one: true,
    implied: &[
        ("moe_router_activation", Text("sigmoid")),
        ("use_moe_router_bias", Bool(true)),
        NO_BIAS,
    ],
    scalings: &["llama3", "yarn"],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "head_dim",
            "num_attention_groups",
            "sliding_window",
            LAYER_KINDS,
            PARTS,
            OTHERS,
            "max_position_embeddings",
            "moe_num_experts",
            "moe_top_k",
            "moe_intermediate_size",
            "share_expert_dim",
            SPARSE_LAYERS,
            "moe_router_scaling_factor",
        ],
    ],
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

fn sizes(fields: &Fields, dims: &Dims) -> Result<Vec<OwnSizes>> {
    let count = |field: &str, usual: usize| -> Result<usize> {
        Ok(fields.count(&[field])?.map_or(usual, |n| n as usize))
    };
    let heads = count(WINDOW_HEADS, dims.heads)?;
    let kv_heads = count(WINDOW_KV_HEADS, dims.kv_heads)?;
    if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
        let what = format!("{heads} heads with {kv_heads} of keys and values");
        return Err(wrong(WINDOW_HEADS, what));
    }
    let kinds = dims.kinds().into_iter().flatten();
    let of = |kind: &str| {
        let (heads, kv_heads) = match kind {
            WINDOWED => (heads, kv_heads),
            _ => (dims.heads, dims.kv_heads),
        };
        OwnSizes { head: dims.head, heads, kv_heads, inner: None, keys: None, values: None }
    };
    Ok(kinds.map(of).collect())
}

/// Lists of layers, to which published configs add the layers that predict further tokens.
const LISTS: &[&str] =
    &[LAYER_KINDS, SPARSE_KINDS, PARTS, "rope_theta", "swiglu_limits", "swiglu_limits_shared"];

fn complete(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
    for name in LISTS {
        if let Some(Value::Array(list)) = fields.0.get_mut(*name) {
            list.truncate(layers);
        }
    }
    fields
        .0
        .entry(LAYER_KINDS)
        .or_insert_with(|| vec![FULL_ATTENTION; layers].into());
    let kinds = fields.0.get(LAYER_KINDS).and_then(Value::as_array);
    let kinds = kinds.cloned().unwrap_or_default();
    let first = |of: &str| kinds.iter().position(|kind| kind == of);
    if let Some(Value::Array(parts)) = fields.0.remove(PARTS) {
        let part = |kind: &Value| if *kind == WINDOWED { 1.0 } else { 0.5 };
        let is_so = |(part, kind): (&Value, f64)| part.as_f64() == Some(kind);
        if parts.len() != kinds.len() || !parts.iter().zip(kinds.iter().map(part)).all(is_so) {
            let what = "llama.cpp turns whole heads in layers with a window, and halves of heads in others";
            return Err(wrong(PARTS, what));
        }
    }
    if let Some(Value::Array(bases)) = fields.0.get("rope_theta").cloned() {
        let of = |kind: &str| first(kind).and_then(|layer| bases.get(layer)).cloned();
        let (full, windowed) = (of(FULL_ATTENTION), of(WINDOWED));
        let base = full.or_else(|| windowed.clone()).unwrap_or_default();
        fields.0.insert("rope_theta".to_owned(), base);
        fields
            .0
            .extend(windowed.map(|base| ("local_rope_theta".to_owned(), base)));
    }
    if let Some(Value::Object(others)) = fields.0.remove(OTHERS) {
        for (name, own) in
            [("num_attention_heads", WINDOW_HEADS), ("num_attention_groups", WINDOW_KV_HEADS)]
        {
            let value = others.get(name).cloned();
            fields.0.extend(value.map(|value| (own.to_owned(), value)));
        }
    }
    for (own, usual) in [
        ("num_attention_groups", "num_key_value_heads"),
        ("moe_num_experts", "n_routed_experts"),
        ("moe_top_k", "num_experts_per_tok"),
        ("share_expert_dims", "share_expert_dim"),
    ] {
        if let Some(value) = fields.0.remove(own) {
            fields.0.insert(usual.to_owned(), value);
        }
    }
    let dense = dense_layers(fields, layers)?;
    fields.0.insert(DENSE.to_owned(), dense.into());
    Ok(())
}

/// Layers in front of the first one with experts.
fn dense_layers(fields: &mut Fields, layers: usize) -> Result<usize> {
    if let Some(Value::Array(kinds)) = fields.0.remove(SPARSE_KINDS) {
        return in_front(&kinds);
    }
    let Some(numbers) = fields.0.remove(SPARSE_LAYERS) else {
        return Ok(layers.min(3));
    };
    let numbers = numbers.as_str().unwrap_or_default().split(',');
    let all: Option<Vec<usize>> = numbers.map(|n| n.trim().parse().ok()).collect();
    let all = all.unwrap_or_default();
    let dense = all.first().copied().unwrap_or(layers);
    let rest = all.iter().copied().filter(|layer| *layer < layers);
    match rest.eq(dense..layers) {
        true => Ok(dense),
        false => Err(wrong(SPARSE_LAYERS, "these are not all layers from one on")),
    }
}

fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let kinds = kinds.cloned().unwrap_or_default();
    let is_windowed: Vec<bool> = kinds.iter().map(|kind| kind == WINDOWED).collect();
    let dense = config.get(DENSE).and_then(Value::as_u64).unwrap_or(0) as usize;
    let sparse: Vec<_> = (dense..dims.layers).map(|n| n.to_string()).collect();
    config.insert(SPARSE_LAYERS.to_owned(), sparse.join(",").into());
    named(config, dims)?;
    let base = config
        .remove("rope_theta")
        .unwrap_or_else(|| 10_000.0.into());
    let local = config.remove("rope_local_base_freq");
    let local = local.unwrap_or_else(|| base.clone());
    let base_of = |windowed: &bool| {
        if *windowed {
            local.clone()
        } else {
            base.clone()
        }
    };
    let bases: Value = is_windowed.iter().map(base_of).collect();
    config.insert("rope_theta".to_owned(), bases);
    let part = |windowed: &bool| if *windowed { 1.0 } else { 0.5 };
    config.insert(PARTS.to_owned(), is_windowed.iter().map(part).collect());
    let heads = config.remove(WINDOW_HEADS).unwrap_or(dims.heads.into());
    let groups = config
        .remove(WINDOW_KV_HEADS)
        .unwrap_or(dims.kv_heads.into());
    let others = json!({
        "attention_type": WINDOWED,
        "num_attention_heads": heads,
        "num_attention_groups": groups,
        "head_dim": dims.head,
    });
    config.insert(OTHERS.to_owned(), others);
    Ok(())
}

/// `number` of each layer.
fn by_layer(dims: &Dims, number: fn(&OwnSizes) -> usize) -> GgufMetadataValue {
    let all = dims.layer_sizes.iter().map(number);
    let all = all.map(|n| i32::try_from(n).unwrap_or(i32::MAX));
    array(GgufMetadataArray::I32(all.collect()))
}

/// The numbers of layers with the whole text and with a window that the list `stated` has.
fn of_kinds(stated: &StatedKey<'_>, config: &ConfigFields<'_>) -> Result<(i32, i32)> {
    let windows = config
        .metadata
        .get("step35.attention.sliding_window_pattern");
    let windows = windows.as_ref().and_then(|value| value.as_array());
    let Some(GgufMetadataArray::Bool(windows)) = windows else {
        let what = "the file does not say which layers have windows";
        return Err(wrong_key(stated.key, what));
    };
    let all = stated.numbers()?;
    let of = |is_windowed: bool| -> Result<Option<i32>> {
        let pairs = all.iter().zip(windows);
        let mut own = pairs.filter(|(_, window)| **window == is_windowed);
        let first = own.next().map(|(n, _)| *n);
        match own.all(|(n, _)| Some(*n) == first) {
            true => Ok(first),
            false => Err(wrong_key(stated.key, "layers of one kind have other heads")),
        }
    };
    let (full, windowed) = (of(false)?, of(true)?);
    let some = full.or(windowed).unwrap_or(1);
    Ok((full.unwrap_or(some), windowed.unwrap_or(some)))
}

/// INT32\[\]: heads of each layer.
const HEADS_BY_LAYER: OwnSetting = required(own(
    |_, model| Ok(Some(by_layer(&model.dims, |sizes| sizes.heads))),
    |stated, config| {
        let (full, windowed) = of_kinds(stated, config)?;
        config.set(WINDOW_HEADS, windowed.into(), stated.key)?;
        config.set(HEADS[0], full.into(), stated.key)?;
        Ok(None)
    },
));

/// INT32\[\]: heads of keys and values of each layer.
const KV_HEADS_BY_LAYER: OwnSetting = required(own(
    |_, model| Ok(Some(by_layer(&model.dims, |sizes| sizes.kv_heads))),
    |stated, config| {
        let (full, windowed) = of_kinds(stated, config)?;
        config.set(WINDOW_KV_HEADS, windowed.into(), stated.key)?;
        config.fields.insert(KV_HEADS[0].to_owned(), full.into());
        Ok(Some(full.into()))
    },
));

/// BOOL\[\]: which layers have a window.
const WINDOWS: OwnSetting = required(own(
    |_, model| {
        let windows = model.dims.layers_of(WINDOWED);
        Ok(windows.map(|all| array(GgufMetadataArray::Bool(all.collect()))))
    },
    |stated, _| {
        let kind = |windowed: &bool| if *windowed { WINDOWED } else { FULL_ATTENTION };
        match stated.value.as_array() {
            Some(GgufMetadataArray::Bool(all)) => Ok(Some(all.iter().map(kind).collect())),
            _ => Err(stated.other_type()),
        }
    },
));

/// FLOAT32\[\]: what the halves of gated layers are clamped to, 0 for those that are not.
pub(super) const LIMITS: OwnSetting = own(
    |setting, model| {
        let Some(Value::Array(all)) = model.fields.0.get(setting.fields[0]) else {
            return Ok(None);
        };
        let limit = |limit: &Value| limit.as_f64().unwrap_or(0.0) as f32;
        let mut limits: Vec<f32> = all.iter().map(limit).collect();
        limits.resize(model.dims.layers, 0.0);
        Ok(Some(array(GgufMetadataArray::F32(limits))))
    },
    |stated, _| match stated.value.as_array() {
        Some(GgufMetadataArray::F32(all)) => {
            let limit = |limit: &f32| match *limit {
                0.0 => Value::Null,
                limit => float(&GgufMetadataValue::F32(limit)).unwrap_or_default(),
            };
            Ok(Some(all.iter().map(limit).collect()))
        }
        _ => Err(stated.other_type()),
    },
);
