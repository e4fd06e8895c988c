//! Ling 3 (BailingMoE 3): linear attention in most layers, latent keys and values with gates of heads in
//! the others, experts behind the dense layers.
//!
//! Source: `conversion/bailingmoe3.py` of llama.cpp; defaults of `bailing_hybrid` of transformers 5.24.

use serde_json::{Map, Value};

use super::bailing::{CHOICE_BIAS, ENDS};
use super::deepseek::{ATTENTION as LATENT, LATENT_STACKS};
use super::kimi::f32;
use super::step::LIMITS;
use super::{DENSE_MLP, NORMS, SPARSE_MLP};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{FULL_ATTENTION, Fields, LAYER_KINDS, LAYERS, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::{Model, TensorShapes};
use crate::remember::EncodedAs;
use crate::remember::layout::assembled::Change;

const LINEAR: &str = "linear_attention";
const DELTA: Need = Need::Kind(LINEAR);
const FULL: Need = Need::Kind(FULL_ATTENTION);

/// Length of a head of linear attention. Where keys are latent, that of the config is another.
const HEAD: &str = "linear_head_dim";
const FILTER: &str = "short_conv_kernel_size";
const GROUP: &str = "layer_group_size";

const WIDTH: Dim = Product(&[Heads, Field(HEAD)]);
const FILTERS: &[Dim] = &[WIDTH, One, Field(FILTER)];
const GGUF_FILTERS: &[Dim] = &[One, WIDTH, One, Field(FILTER)];

const fn filter(gguf: &'static str, hf: &'static str) -> TensorRule {
    in_layers(DELTA, parameter(gguf, hf, (Transform::RESHAPED, FILTERS, GGUF_FILTERS)))
}

const fn linear(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    only(DELTA, gguf, hf, shape)
}

const DELTA_ATTENTION: &[TensorRule] = &[
    linear("blk.{i}.attn_q", "model.layers.{i}.attention.q_proj", &[WIDTH, Hidden]),
    linear("blk.{i}.attn_k", "model.layers.{i}.attention.k_proj", &[WIDTH, Hidden]),
    linear("blk.{i}.attn_v", "model.layers.{i}.attention.v_proj", &[WIDTH, Hidden]),
    filter("blk.{i}.ssm_conv1d_q.weight", "model.layers.{i}.attention.q_conv1d.weight"),
    filter("blk.{i}.ssm_conv1d_k.weight", "model.layers.{i}.attention.k_conv1d.weight"),
    filter("blk.{i}.ssm_conv1d_v.weight", "model.layers.{i}.attention.v_conv1d.weight"),
    linear("blk.{i}.ssm_f_a", "model.layers.{i}.attention.f_proj", &[WIDTH, Hidden]),
    linear("blk.{i}.ssm_g_a", "model.layers.{i}.attention.g_proj", &[WIDTH, Hidden]),
    linear("blk.{i}.ssm_beta", "model.layers.{i}.attention.b_proj", &[Heads, Hidden]),
    linear("blk.{i}.ssm_norm", "model.layers.{i}.attention.o_norm", &[Field(HEAD)]),
    linear("blk.{i}.attn_output", "model.layers.{i}.attention.o_proj", &[Hidden, WIDTH]),
    f32(
        "blk.{i}.ssm_a",
        "model.layers.{i}.attention.A_log",
        (Transform::Reshaped(Change::Exp), &[Heads], &[Heads, One]),
    ),
    f32(
        "blk.{i}.ssm_dt.bias",
        "model.layers.{i}.attention.dt_bias",
        (Transform::None, &[WIDTH], &[WIDTH]),
    ),
];

/// What transformers saves the output of linear attention as.
const SAVED_OUTPUT: &[TensorRule] =
    &[linear("blk.{i}.attn_output", "model.layers.{i}.attention.dense", &[Hidden, WIDTH])];

const QUERIES: Dim =
    Product(&[Heads, Sum(&[Field("qk_nope_head_dim"), Field("qk_rope_head_dim")])]);

/// A rule of latent attention under the name that the class has for it.
const fn latent(at: usize, hf: &'static str) -> TensorRule {
    TensorRule { hf, need: FULL, ..LATENT[at] }
}

/// Kinds of layers by how their queries are made.
const QUERY_KINDS: &str = "query_kinds";
const PLAIN: &str = "plain";

const fn queries(kind: &'static str, rule: TensorRule) -> TensorRule {
    in_layers(Need::KindIn(QUERY_KINDS, kind), rule)
}

const LATENT_ATTENTION: &[TensorRule] = &[
    queries(PLAIN, same("blk.{i}.attn_q", "model.layers.{i}.attention.q_proj", &[QUERIES, Hidden])),
    queries("latent", latent(1, "model.layers.{i}.attention.q_a_proj")),
    queries("latent", latent(2, "model.layers.{i}.attention.q_a_layernorm")),
    queries("latent", latent(3, "model.layers.{i}.attention.q_b_proj")),
    latent(4, "model.layers.{i}.attention.kv_a_proj_with_mqa"),
    latent(5, "model.layers.{i}.attention.kv_a_layernorm"),
    latent(6, "model.layers.{i}.attention.kv_b_proj"),
    latent(7, "model.layers.{i}.attention.kv_b_proj"),
    latent(8, "model.layers.{i}.attention.dense"),
    only(FULL, "blk.{i}.attn_gate", "model.layers.{i}.attention.g_proj", &[Heads, Hidden]),
];

const SHARED: Dim =
    Product(&[Field("moe_shared_expert_intermediate_size"), Field("num_shared_experts")]);

const EXPERTS: &[TensorRule] = &[
    SPARSE_MLP[0],
    SPARSE_MLP[1],
    SPARSE_MLP[2],
    SPARSE_MLP[3],
    TensorRule { shape: &[SHARED, Hidden], ..SPARSE_MLP[4] },
    TensorRule { shape: &[SHARED, Hidden], ..SPARSE_MLP[5] },
    TensorRule { shape: &[Hidden, SHARED], ..SPARSE_MLP[6] },
    TensorRule { keeps_f32: true, ..CHOICE_BIAS[0] },
];

pub(super) const BAILING_MOE3: ModelClass = ModelClass {
    gguf: "bailingmoe3",
    classes: &["BailingMoeV3ForCausalLM"],
    model_type: "bailing_hybrid",
    defaults: &[
        ("max_position_embeddings", Int(262_144)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(6e6)),
        ("routed_scaling_factor", Float(2.5)),
        ("norm_topk_prob", Bool(true)),
        ("score_function", Text("sigmoid")),
        ("first_k_dense_replace", Int(2)),
        ("num_shared_experts", Int(1)),
        (FILTER, Int(4)),
        (GROUP, Int(6)),
        ("kda_lower_bound", Float(-5.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("no_kda_lora", Bool(true)),
        ("kda_safe_gate", Bool(true)),
        ("gated_attention_proj_granularity_type", Text("head_wise")),
        ("score_function", Text("sigmoid")),
        // Of several, llama.cpp and the class do not take the same widths.
        ("num_shared_experts", Int(1)),
    ],
    own_fields: &[("num_local_experts", "num_experts"), ("n_shared_experts", "num_shared_experts")],
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    tensors: &[ENDS, NORMS, DELTA_ATTENTION, LATENT_ATTENTION, DENSE_MLP, EXPERTS],
    other_tensors: SAVED_OUTPUT,
    settings: &[&[
        setting(Kind::Own(&LATENT_HEADS), "attention.head_count_kv", &[GROUP]),
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Required, "ssm.conv_kernel", &[FILTER]),
        setting(Kind::Required, "kda.head_dim", &[HEAD]),
        setting(Kind::FixedFlag(true), "kda.safe_gate", &[]),
        number("kda.gate_lower_bound", &["kda_lower_bound"]),
        setting(Kind::Nullable, "attention.q_lora_rank", &["q_lora_rank"]),
        setting(Kind::Required, "attention.kv_lora_rank", &["kv_lora_rank"]),
        setting(Kind::Required, "rope.dimension_count", &["qk_rope_head_dim"]),
        setting(Kind::Sum, "attention.key_length", &["kv_lora_rank", "qk_rope_head_dim"]),
        count("attention.value_length", &[HEAD]),
        setting(Kind::Sum, "attention.key_length_mla", &["qk_nope_head_dim", "qk_rope_head_dim"]),
        setting(Kind::Required, "attention.value_length_mla", &["v_head_dim"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        count(
            "expert_shared_feed_forward_length",
            &["moe_shared_expert_intermediate_size", "moe_intermediate_size"],
        ),
        setting(Kind::Required, "expert_shared_count", &["num_shared_experts"]),
        setting(Kind::Required, "leading_dense_block_count", &["first_k_dense_replace"]),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
        setting(Kind::Own(&LIMITS), "swiglu_clamp_exp", &["expert_swiglu_limit_list"]),
        setting(Kind::Own(&LIMITS), "swiglu_clamp_shexp", &["share_expert_swiglu_limit_list"]),
    ]],
    traits: Traits {
        has_expert_groups: true,
        prediction: Prediction::LeftOut,
        completes: &[complete],
        from_tensors: &[kinds],
        restores: &[restore],
        ..Traits::PLAIN
    },
    mlx: Some(&BAILING_MOE3_MLX),
    ..ModelClass::PLAIN
};

const BAILING_MOE3_MLX: MlxClass = MlxClass {
    renamed: &[
        STACKS[0],
        STACKS[1],
        STACKS[2],
        (LATENT_STACKS[3].0, "model.layers.{i}.attention.embed_q"),
        (LATENT_STACKS[4].0, "model.layers.{i}.attention.unembed_out"),
    ],
    modes: &[
        ("token_embd", EncodedAs::Nothing),
        ("output", EncodedAs::Nothing),
        ("blk.{i}.ffn_gate_inp", EncodedAs::Nothing),
        ("blk.{i}.attn_q_a", EncodedAs::Nothing),
        ("blk.{i}.attn_q_b", EncodedAs::Nothing),
        ("blk.{i}.attn_kv_a_mqa", EncodedAs::Nothing),
        ("blk.{i}.attn_k_b", EncodedAs::Nothing),
        ("blk.{i}.attn_v_b", EncodedAs::Nothing),
        ("blk.{i}.attn_gate", EncodedAs::Nothing),
        ("blk.{i}.ssm_beta", EncodedAs::Nothing),
    ],
    unencoded: Some(("blk.{i}.attn_q", Need::KindIn(QUERY_KINDS, PLAIN))),
    implied: &[
        SILU,
        NO_BIAS,
        ("no_kda_lora", Bool(true)),
        ("kda_safe_gate", Bool(true)),
        ("rope_interleave", Bool(true)),
        ("norm_topk_prob", Bool(true)),
        ("score_function", Text("sigmoid")),
        ("gated_attention_proj_granularity_type", Text("head_wise")),
    ],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "max_position_embeddings",
            "head_dim",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            FILTER,
            GROUP,
            "kda_lower_bound",
            "moe_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "num_experts",
            "num_experts_per_tok",
            "num_shared_experts",
            "first_k_dense_replace",
            "n_group",
            "topk_group",
            "routed_scaling_factor",
        ],
    ],
    laws: &[unlimited],
    ..MlxClass::PLAIN
};

/// mlx-lm does not clamp the halves of gated layers.
fn unlimited(model: &Model<'_>) -> Result<Option<String>> {
    for field in ["expert_swiglu_limit_list", "share_expert_swiglu_limit_list"] {
        let limits = model.fields.0.get(field).and_then(Value::as_array);
        let is_limit = |limit: &Value| limit.as_f64().is_some_and(|limit| limit > 0.0);
        if limits.is_some_and(|limits| limits.iter().any(is_limit)) {
            return Err(wrong(field, "mlx-lm's bailing_moe_v3 clamps nothing"));
        }
    }
    Ok(None)
}

fn complete(fields: &mut Fields) -> Result<()> {
    if let Some(head) = fields.0.remove("head_dim") {
        fields.0.entry(HEAD).or_insert(head);
    }
    let width = fields.0.get("moe_intermediate_size").cloned();
    if let Some(width) = width {
        fields
            .0
            .entry("moe_shared_expert_intermediate_size")
            .or_insert(width);
    }
    let (layers, group) = (fields.need(LAYERS)?.min(MOST_LAYERS), fields.need(&[GROUP])?);
    if group == 0 || !layers.is_multiple_of(group) {
        let what = format!(
            "{layers} layers are no groups of {group}, of which llama.cpp and transformers take other layers for linear ones"
        );
        return Err(wrong(GROUP, what));
    }
    let stated = fields.0.remove(LAYER_KINDS);
    list_kinds(&mut fields.0, (layers, group));
    match stated.filter(|stated| fields.0.get(LAYER_KINDS) != Some(stated)) {
        Some(_) => {
            let what = format!("the last of each {group} layers alone is no linear one");
            Err(wrong(LAYER_KINDS, what))
        }
        None => Ok(()),
    }
}

/// Makes lists of what attention layers have, and of their queries.
fn list_kinds(config: &mut Map<String, Value>, (layers, group): (u32, u32)) {
    let full = match config
        .get("q_lora_rank")
        .is_some_and(|rank| !rank.is_null())
    {
        true => "latent",
        false => PLAIN,
    };
    for (field, full) in [(LAYER_KINDS, FULL_ATTENTION), (QUERY_KINDS, full)] {
        let is_full = |layer: u32| (layer + 1).is_multiple_of(group);
        let kinds = (0..layers).map(|layer| if is_full(layer) { full } else { LINEAR });
        config.insert(field.to_owned(), kinds.collect());
    }
}

fn kinds(config: &mut Map<String, Value>, _: &TensorShapes<'_>) -> Result<()> {
    let fields = Fields::of(config.clone());
    let (layers, group) = (fields.need(LAYERS)?.min(MOST_LAYERS), fields.need(&[GROUP])?);
    list_kinds(config, (layers, group.max(1)));
    Ok(())
}

fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    for field in [LAYER_KINDS, QUERY_KINDS] {
        config.remove(field);
    }
    if let Some(head) = config.remove(HEAD) {
        config.insert("head_dim".to_owned(), head);
    }
    config.insert("num_key_value_heads".to_owned(), dims.heads.into());
    Ok(())
}

/// INT32\[\]: one head of latent keys and values, 0 for layers of linear attention.
const LATENT_HEADS: OwnSetting = required(own(super::kimi::LATENT_HEADS.to_gguf, |stated, _| {
    let all = stated.numbers()?;
    let group = all
        .iter()
        .position(|n| *n != 0)
        .map_or(all.len(), |at| at + 1);
    let is_so = |(layer, n): (usize, &i32)| (*n != 0) == (layer + 1).is_multiple_of(group.max(1));
    match all.iter().enumerate().all(is_so) {
        true => Ok(Some(group.into())),
        false => Err(stated.other_type()),
    }
}));
