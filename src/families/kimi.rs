//! Kimi Linear: linear attention in most layers, and latent keys and values without positions in the others;
//! experts behind dense layers.
//!
//! Source: `conversion/kimi_linear.py` of llama.cpp; defaults of the code beside the published model.

use serde_json::{Map, Value, json};

use super::deepseek::{ATTENTION as LATENT, LATENT_STACKS};
use super::llama::MIXTRAL_EXPERTS;
use super::minimax::shared;
use super::{DENSE_MLP, ENDS, F32_CHOICE_BIAS, NORMS, sparse};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::dims::MOST_LAYERS;
use crate::families::engine::fields::{FULL_ATTENTION, Fields, LAYER_KINDS, LAYERS, array, wrong};
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;

const LINEAR: &str = "linear_attention";
const DELTA: Need = Need::Kind(LINEAR);

/// What the published config has in an object of its own.
pub(super) const HEAD: &str = "linear_head_dim";
const HEADS: &str = "linear_num_heads";
pub(super) const FILTER: &str = "linear_conv_kernel_dim";

const WIDTH: Dim = Product(&[Heads, Field(HEAD)]);
const FILTERS: &[Dim] = &[WIDTH, One, Field(FILTER)];
const GGUF_FILTERS: &[Dim] = &[One, WIDTH, One, Field(FILTER)];
const DECAYS: &[Dim] = &[One, One, Heads, One];

/// Filters of queries, keys or values.
const fn filter(gguf: &'static str, hf: &'static str) -> TensorRule {
    in_layers(DELTA, parameter(gguf, hf, (Transform::RESHAPED, FILTERS, GGUF_FILTERS)))
}

const fn linear(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    only(DELTA, gguf, hf, shape)
}

pub(super) const fn f32(
    gguf: &'static str,
    hf: &'static str,
    shapes: (Transform, &'static [Dim], &'static [Dim]),
) -> TensorRule {
    TensorRule { keeps_f32: true, ..in_layers(DELTA, parameter(gguf, hf, shapes)) }
}

pub(super) const DELTA_ATTENTION: &[TensorRule] = &[
    linear("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj", &[WIDTH, Hidden]),
    linear("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj", &[WIDTH, Hidden]),
    linear("blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj", &[WIDTH, Hidden]),
    filter("blk.{i}.ssm_conv1d_q.weight", "model.layers.{i}.self_attn.q_conv1d.weight"),
    filter("blk.{i}.ssm_conv1d_k.weight", "model.layers.{i}.self_attn.k_conv1d.weight"),
    filter("blk.{i}.ssm_conv1d_v.weight", "model.layers.{i}.self_attn.v_conv1d.weight"),
    linear("blk.{i}.ssm_f_a", "model.layers.{i}.self_attn.f_a_proj", &[Field(HEAD), Hidden]),
    linear("blk.{i}.ssm_f_b", "model.layers.{i}.self_attn.f_b_proj", &[WIDTH, Field(HEAD)]),
    linear("blk.{i}.ssm_g_a", "model.layers.{i}.self_attn.g_a_proj", &[Field(HEAD), Hidden]),
    linear("blk.{i}.ssm_g_b", "model.layers.{i}.self_attn.g_b_proj", &[WIDTH, Field(HEAD)]),
    linear("blk.{i}.ssm_beta", "model.layers.{i}.self_attn.b_proj", &[Heads, Hidden]),
    linear("blk.{i}.ssm_norm", "model.layers.{i}.self_attn.o_norm", &[Field(HEAD)]),
    linear("blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj", &[Hidden, WIDTH]),
    f32("blk.{i}.ssm_a", "model.layers.{i}.self_attn.A_log", (Transform::NEG_EXP, DECAYS, DECAYS)),
    f32(
        "blk.{i}.ssm_dt.bias",
        "model.layers.{i}.self_attn.dt_bias",
        (Transform::None, &[WIDTH], &[WIDTH]),
    ),
];

const FULL: Need = Need::Kind(FULL_ATTENTION);

const LATENT_ATTENTION: &[TensorRule] = &[
    in_layers(FULL, LATENT[0]),
    in_layers(FULL, LATENT[4]),
    in_layers(FULL, LATENT[5]),
    in_layers(FULL, LATENT[6]),
    in_layers(FULL, LATENT[7]),
    in_layers(FULL, LATENT[8]),
];

const SHARED: Dim = Product(&[ExpertInner, Field("num_shared_experts")]);

const EXPERTS: &[TensorRule] = &[
    sparse(MIXTRAL_EXPERTS[0]),
    TensorRule { shape: &[ExpertInner, Hidden], ..sparse(MIXTRAL_EXPERTS[1]) },
    TensorRule { shape: &[Hidden, ExpertInner], ..sparse(MIXTRAL_EXPERTS[2]) },
    TensorRule { shape: &[ExpertInner, Hidden], ..sparse(MIXTRAL_EXPERTS[3]) },
    TensorRule {
        hf: "model.layers.{i}.block_sparse_moe.gate.e_score_correction_bias",
        ..F32_CHOICE_BIAS[0]
    },
    shared(4, "model.layers.{i}.block_sparse_moe.shared_experts.gate_proj", &[SHARED, Hidden]),
    shared(5, "model.layers.{i}.block_sparse_moe.shared_experts.up_proj", &[SHARED, Hidden]),
    shared(6, "model.layers.{i}.block_sparse_moe.shared_experts.down_proj", &[Hidden, SHARED]),
];

pub(super) const KIMI_LINEAR: ModelClass = ModelClass {
    gguf: "kimi-linear",
    classes: &["KimiLinearForCausalLM"],
    model_type: "kimi_linear",
    defaults: &[
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("first_k_dense_replace", Int(1)),
        ("num_experts_per_token", Int(8)),
        ("num_shared_experts", Int(1)),
        ("moe_intermediate_size", Int(1024)),
        ("moe_router_activation_func", Text("sigmoid")),
        ("num_expert_group", Int(1)),
        ("topk_group", Int(1)),
        ("routed_scaling_factor", Float(1.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("mla_use_nope", Bool(true)),
        ("q_lora_rank", Absent),
        ("moe_layer_freq", Int(1)),
        ("moe_renormalize", Bool(true)),
        ("moe_router_activation_func", Text("sigmoid")),
        ("num_expert_group", Int(1)),
        ("topk_group", Int(1)),
    ],
    own_fields: &[
        ("num_local_experts", "num_experts"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("max_position_embeddings", "model_max_length"),
    ],
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    tensors: &[ENDS, NORMS, DELTA_ATTENTION, LATENT_ATTENTION, DENSE_MLP, EXPERTS],
    settings: &[&[
        setting(Kind::Own(&LATENT_HEADS), "attention.head_count_kv", &[LAYER_KINDS]),
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Required, "ssm.conv_kernel", &[FILTER]),
        setting(Kind::Required, "kda.head_dim", &[HEAD]),
        setting(Kind::Required, "attention.kv_lora_rank", &["kv_lora_rank"]),
        setting(Kind::Required, "rope.dimension_count", &["qk_rope_head_dim"]),
        setting(Kind::Sum, "attention.key_length", &["kv_lora_rank", "qk_rope_head_dim"]),
        count("attention.value_length", &[STATED_HEAD]),
        setting(Kind::Sum, "attention.key_length_mla", &["qk_nope_head_dim", "qk_rope_head_dim"]),
        setting(Kind::Required, "attention.value_length_mla", &["v_head_dim"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        setting(Kind::Required, "expert_shared_count", &["num_shared_experts"]),
        setting(Kind::Required, "leading_dense_block_count", &["first_k_dense_replace"]),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        setting(Kind::Omitted, "expert_group_count", &[]),
    ]],
    traits: Traits {
        has_expert_groups: true,
        needs_output: true,
        needs_kind: Some(LINEAR),
        completes: &[flat],
        restores: &[nested],
        ..Traits::PLAIN
    },
    mlx: Some(&KIMI_LINEAR_MLX),
    ..ModelClass::PLAIN
};

const KIMI_LINEAR_MLX: MlxClass = MlxClass {
    renamed: &[
        STACKS[0],
        STACKS[1],
        STACKS[2],
        ("blk.{i}.ffn_gate_inp", "model.layers.{i}.mlp.gate"),
        (F32_CHOICE_BIAS[0].gguf, "model.layers.{i}.mlp.e_score_correction_bias"),
        ("blk.{i}.ffn_gate_shexp", "model.layers.{i}.mlp.shared_experts.gate_proj"),
        ("blk.{i}.ffn_up_shexp", "model.layers.{i}.mlp.shared_experts.up_proj"),
        ("blk.{i}.ffn_down_shexp", "model.layers.{i}.mlp.shared_experts.down_proj"),
        ("blk.{i}.ssm_conv1d_q.weight", "model.layers.{i}.self_attn.q_conv.conv.weight"),
        ("blk.{i}.ssm_conv1d_k.weight", "model.layers.{i}.self_attn.k_conv.conv.weight"),
        ("blk.{i}.ssm_conv1d_v.weight", "model.layers.{i}.self_attn.v_conv.conv.weight"),
        LATENT_STACKS[3],
        LATENT_STACKS[4],
    ],
    modes: ROUTER_8_BITS,
    kept_types: &[F32_CHOICE_BIAS[0].gguf, "blk.{i}.ssm_a", "blk.{i}.ssm_dt.bias"],
    implied: &[
        SILU,
        ("mla_use_nope", Bool(true)),
        ("q_lora_rank", Absent),
        ("moe_layer_freq", Int(1)),
    ],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "num_key_value_heads",
            "head_dim",
            "model_max_length",
            OBJECT,
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "first_k_dense_replace",
            "num_experts",
            "num_experts_per_token",
            "num_shared_experts",
            "moe_intermediate_size",
            "routed_scaling_factor",
        ],
    ],
    has_latent_eps: true,
    ..MlxClass::PLAIN
};

/// The object of linear attention, and the head that the config states, which no layer has.
const OBJECT: &str = "linear_attn_config";
const STATED_HEAD: &str = "stated_head_dim";
const FLAT: &[(&str, &str)] =
    &[("head_dim", HEAD), ("num_heads", HEADS), ("short_conv_kernel_size", FILTER)];

fn flat(fields: &mut Fields) -> Result<()> {
    if let Some(head) = fields.0.remove("head_dim") {
        fields.0.insert(STATED_HEAD.to_owned(), head);
    }
    let Some(Value::Object(mut object)) = fields.0.remove(OBJECT) else {
        return Ok(());
    };
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS);
    let full = object.get("full_attn_layers").and_then(Value::as_array);
    let full = full.ok_or_else(|| wrong("full_attn_layers", "it is missing"))?;
    // They are counted from 1.
    let is_full = |layer: u32| full.contains(&layer.into());
    let kind = |layer: u32| {
        if is_full(layer) {
            FULL_ATTENTION
        } else {
            LINEAR
        }
    };
    fields
        .0
        .insert(LAYER_KINDS.to_owned(), (1..=layers).map(kind).collect());
    for (name, own) in FLAT {
        fields
            .0
            .extend(object.remove(*name).map(|value| ((*own).to_owned(), value)));
    }
    let heads = fields.need(&["num_attention_heads"])?;
    match fields.need(&[HEADS])? {
        found if found == heads => Ok(()),
        found => Err(wrong("num_heads", format!("it is {found}, and num_attention_heads {heads}"))),
    }
}

fn nested(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let kinds = config.remove(LAYER_KINDS).unwrap_or_default();
    let of = |kind: &str| -> Vec<usize> {
        let kinds = kinds.as_array().into_iter().flatten().enumerate();
        kinds
            .filter(|(_, found)| *found == kind)
            .map(|(layer, _)| layer + 1)
            .collect()
    };
    let mut object = Map::new();
    object.insert("full_attn_layers".to_owned(), json!(of(FULL_ATTENTION)));
    object.insert("kda_layers".to_owned(), json!(of(LINEAR)));
    config.insert(HEADS.to_owned(), dims.heads.into());
    for (name, own) in FLAT {
        object.extend(config.remove(*own).map(|value| ((*name).to_owned(), value)));
    }
    config.insert(OBJECT.to_owned(), object.into());
    if let Some(head) = config.remove(STATED_HEAD) {
        config.insert("head_dim".to_owned(), head);
    }
    Ok(())
}

/// INT32\[\]: one head of latent keys and values, 0 for layers of linear attention.
pub(super) const LATENT_HEADS: OwnSetting = required(own(
    |_, model| {
        let kinds = model.dims.kinds().into_iter().flatten();
        let heads = kinds.map(|kind| i32::from(kind != LINEAR)).collect();
        Ok(Some(array(GgufMetadataArray::I32(heads))))
    },
    |stated, _| {
        let kind = |n: &i32| if *n == 0 { LINEAR } else { FULL_ATTENTION };
        Ok(Some(stated.numbers()?.iter().map(kind).collect()))
    },
));
