//! DeepSeek 2 and 3, models of their classes such as Kimi K2, and GLM 4.7 Flash: keys and values
//! are made of one latent vector.
//!
//! llama.cpp multiplies queries by what makes the keys, so that all heads share the latent vector
//! as their only key; hence one head of keys and values, and `kv_b_proj` in two tensors.
//!
//! Source: `conversion/deepseek.py` of llama.cpp, class `DeepseekV2Model`; defaults of transformers
//! 4.57.6.

use serde_json::{Map, Value};

use crate::families::engine::rows::*;
use crate::families::engine::table::Model;
use crate::remember::EncodedAs;

use super::glm::{MOE_TOKENIZER, PREDICTION, PREDICTION_ENDS, PREDICTION_SETTINGS};
use super::{CHOICE_BIAS, DENSE_MLP, ENDS, F32_CHOICE_BIAS, MLP, NORMS, SPARSE_MLP};
use crate::Result;
use crate::families::engine::checks::has_groups;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::wrong;

const NOPE: Dim = Field("qk_nope_head_dim");
const ROPE: Dim = Field("qk_rope_head_dim");
const VALUE: Dim = Field("v_head_dim");
const LATENT: Dim = Field("kv_lora_rank");
pub(super) const QUERY_RANK: Dim = Field("q_lora_rank");
const QUERIES: Dim = Product(&[Heads, Sum(&[NOPE, ROPE])]);
/// Rows of a head that make its keys, without the part that rotates, and its values.
const HEAD: Turn = Turn::Rows(&[NOPE, VALUE]);

pub(super) const ATTENTION: &[TensorRule] = &[
    only(
        Need::Without("q_lora_rank"),
        "blk.{i}.attn_q",
        "model.layers.{i}.self_attn.q_proj",
        &[QUERIES, Hidden],
    ),
    only(
        Need::With("q_lora_rank"),
        "blk.{i}.attn_q_a",
        "model.layers.{i}.self_attn.q_a_proj",
        &[QUERY_RANK, Hidden],
    ),
    only(
        Need::With("q_lora_rank"),
        "blk.{i}.attn_q_a_norm",
        "model.layers.{i}.self_attn.q_a_layernorm",
        &[QUERY_RANK],
    ),
    only(
        Need::With("q_lora_rank"),
        "blk.{i}.attn_q_b",
        "model.layers.{i}.self_attn.q_b_proj",
        &[QUERIES, QUERY_RANK],
    ),
    same(
        "blk.{i}.attn_kv_a_mqa",
        "model.layers.{i}.self_attn.kv_a_proj_with_mqa",
        &[Sum(&[LATENT, ROPE]), Hidden],
    ),
    same("blk.{i}.attn_kv_a_norm", "model.layers.{i}.self_attn.kv_a_layernorm", &[LATENT]),
    latent(
        Parts { then: Then::Transposed, ..Parts::one(HEAD, 0) },
        "blk.{i}.attn_k_b",
        &[Heads, LATENT, NOPE],
    ),
    latent(Parts::one(HEAD, 1), "blk.{i}.attn_v_b", &[Heads, VALUE, LATENT]),
    same(
        "blk.{i}.attn_output",
        "model.layers.{i}.self_attn.o_proj",
        &[Hidden, Product(&[Heads, VALUE])],
    ),
];

/// A part of the projection from the latent vector.
const fn latent(part: Parts, gguf: &'static str, gguf_shape: &'static [Dim]) -> TensorRule {
    const WHOLE: &[Dim] = &[Product(&[Heads, Sum(&[NOPE, VALUE])]), LATENT];
    TensorRule {
        transform: Transform::Parts(part),
        gguf_shape: Some(gguf_shape),
        ..same(gguf, "model.layers.{i}.self_attn.kv_b_proj", WHOLE)
    }
}

pub(super) const ONE_KEY_HEAD: &[Setting] =
    &[setting(Kind::Fixed(1), "attention.head_count_kv", &[])];

pub(super) const DENSE_LAYERS: &[Setting] =
    &[count("leading_dense_block_count", &["first_k_dense_replace"])];

/// Sizes of latent queries, keys and values.
pub(super) const LATENT_SIZES: &[Setting] = &[
    count("vocab_size", &["vocab_size"]),
    setting(Kind::Nullable, "attention.q_lora_rank", &["q_lora_rank"]),
    setting(Kind::Required, "attention.kv_lora_rank", &["kv_lora_rank"]),
    setting(Kind::Required, "rope.dimension_count", &["qk_rope_head_dim"]),
    setting(Kind::Sum, "attention.key_length", &["kv_lora_rank", "qk_rope_head_dim"]),
    setting(Kind::Required, "attention.value_length", &["kv_lora_rank"]),
    setting(Kind::Sum, "attention.key_length_mla", &["qk_nope_head_dim", "qk_rope_head_dim"]),
    setting(Kind::Required, "attention.value_length_mla", &["v_head_dim"]),
];

pub(super) const EXPERTS: &[Setting] = &[
    count("expert_feed_forward_length", &["moe_intermediate_size"]),
    setting(Kind::Required, "expert_shared_count", &["n_shared_experts"]),
    number("expert_weights_scale", &["routed_scaling_factor"]),
    setting(Kind::FlagIfTrue, "expert_weights_norm", &["norm_topk_prob"]),
];

pub(super) const YARN: &[Setting] =
    &[setting(Kind::YarnLog, "rope.scaling.yarn_log_multiplier", &["mscale_all_dim"])];

/// As [`STACKS`], and the two parts of the projection from the latent vector of keys and values.
pub(super) const LATENT_STACKS: &[(&str, &str)] = &[
    STACKS[0],
    STACKS[1],
    STACKS[2],
    ("blk.{i}.attn_k_b", "model.layers.{i}.self_attn.embed_q"),
    ("blk.{i}.attn_v_b", "model.layers.{i}.self_attn.unembed_out"),
];

/// Sizes of latent attention, and counts and widths of experts.
pub(super) const LATENT_FIELDS: &[&str] = &[
    "rope_theta",
    "rms_norm_eps",
    "max_position_embeddings",
    "num_key_value_heads",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "first_k_dense_replace",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
];

pub(super) const DEEPSEEK2: ModelClass = ModelClass {
    gguf: "deepseek2",
    classes: &["DeepseekV2ForCausalLM"],
    model_type: "deepseek_v2",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(1407)),
        ("n_routed_experts", Int(64)),
        ("first_k_dense_replace", Int(0)),
        ("norm_topk_prob", Bool(false)),
        ("routed_scaling_factor", Float(1.0)),
        ("qk_rope_head_dim", Int(64)),
        ("qk_nope_head_dim", Int(128)),
        ("v_head_dim", Int(128)),
        ("kv_lora_rank", Int(512)),
        ("n_shared_experts", Int(2)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("scoring_func", Text("softmax")),
    ],
    own_fields: &[("num_local_experts", "n_routed_experts")],
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    tensors: &[ENDS, NORMS, ATTENTION, DENSE_MLP, SPARSE_MLP],
    settings: &[ONE_KEY_HEAD, DENSE_LAYERS, LATENT_SIZES, EXPERTS, YARN],
    traits: Traits {
        has_expert_groups: true,
        laws: &[groups_by_method, unread_norm],
        restores: &[restore_method],
        prediction: Prediction::LeftOut,
        ..Traits::PLAIN
    },
    mlx: Some(&DEEPSEEK2_MLX),
    ..ModelClass::PLAIN
};

const DEEPSEEK2_MLX: MlxClass = MlxClass {
    renamed: STACKS,
    modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
    implied: &[
        SILU,
        NO_BIAS,
        ("scoring_func", Text("softmax")),
        ("norm_topk_prob", Bool(false)),
        ("moe_layer_freq", Int(1)),
    ],
    stated_fields: &[LATENT_FIELDS],
    rope: RopeFields::FlatYarn,
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

pub(super) const DEEPSEEK3: ModelClass = ModelClass {
    classes: &[
        "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "KimiVLForConditionalGeneration",
    ],
    model_type: "deepseek_v3",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(2048)),
        ("n_routed_experts", Int(256)),
        ("num_experts_per_tok", Int(8)),
        ("n_group", Int(8)),
        ("topk_group", Int(4)),
        ("scoring_func", Text("sigmoid")),
        ("first_k_dense_replace", Int(3)),
        ("norm_topk_prob", Bool(true)),
        ("routed_scaling_factor", Float(2.5)),
        ("qk_rope_head_dim", Int(64)),
        ("qk_nope_head_dim", Int(128)),
        ("v_head_dim", Int(128)),
        ("kv_lora_rank", Int(512)),
        ("n_shared_experts", Int(1)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("scoring_func", Text("sigmoid")),
        ("rope_interleave", Bool(true)),
    ],
    tensors: &[ENDS, NORMS, ATTENTION, DENSE_MLP, SPARSE_MLP, CHOICE_BIAS],
    traits: Traits {
        has_expert_groups: true,
        prediction: Prediction::LeftOut,
        rope: RopeTraits { scalings: &[OwnScaling::LostBounds], ..RopeTraits::PLAIN },
        sign: Sign::Key("expert_gating_func", 2),
        ..Traits::PLAIN
    },
    mlx: Some(&KIMI_K2_MLX),
    ..DEEPSEEK2
};

/// Youtu, with images and without: latent keys and values, and no experts.
///
/// Source: `DeepseekV2Model` in `conversion/deepseek.py` of llama.cpp; defaults of transformers 5.24.
pub(super) const YOUTU: ModelClass = ModelClass {
    classes: &["YoutuForCausalLM", "YoutuVLForConditionalGeneration"],
    model_type: "youtu",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("q_lora_rank", Int(1536)),
        ("qk_rope_head_dim", Int(64)),
        ("qk_nope_head_dim", Int(128)),
        ("v_head_dim", Int(128)),
        ("kv_lora_rank", Int(512)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
        ("rope_interleave", Bool(true)),
    ],
    own_fields: &[],
    tensors: &[ENDS, NORMS, ATTENTION, MLP],
    settings: &[
        ONE_KEY_HEAD,
        LATENT_SIZES,
        YARN,
        // llama.cpp asks for sizes of experts.
        &[
            count("leading_dense_block_count", &["num_hidden_layers"]),
            count("expert_feed_forward_length", &["intermediate_size"]),
            setting(Kind::Fixed(0), "expert_shared_count", &[]),
        ],
    ],
    traits: Traits { sign: Sign::Key("expert_shared_count", 0), ..Traits::PLAIN },
    mlx: Some(&YOUTU_MLX),
    ..DEEPSEEK3
};

const YOUTU_MLX: MlxClass = MlxClass {
    mlx_type: Some("youtu_llm"),
    implied: &[
        SILU,
        NO_BIAS,
        ("mlp_bias", Bool(false)),
        ("rope_interleave", Bool(true)),
        ("rope_traditional", Bool(true)),
    ],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "max_position_embeddings",
            "num_key_value_heads",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_rope_head_dim",
            "qk_nope_head_dim",
            "v_head_dim",
            "tie_word_embeddings",
        ],
    ],
    ..MlxClass::PLAIN
};

/// With the config of images around it, too.
const KIMI_K2_MLX: MlxClass =
    MlxClass { prefix: Prefix::IfNested("language_model."), ..DEEPSEEK3_MLX };

pub(super) const DEEPSEEK3_MLX: MlxClass = MlxClass {
    renamed: LATENT_STACKS,
    modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    implied: &[
        SILU,
        NO_BIAS,
        ("scoring_func", Text("sigmoid")),
        ("topk_method", Text("noaux_tc")),
        ("moe_layer_freq", Int(1)),
        ("rope_interleave", Bool(true)),
    ],
    stated_fields: &[LATENT_FIELDS],
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

/// Source: `conversion/glm.py` of llama.cpp, class `Glm4MoeLiteModel`; defaults of transformers
/// 5.23.
pub(super) const GLM4_MOE_LITE: ModelClass = ModelClass {
    classes: &["Glm4MoeLiteForCausalLM"],
    model_type: "glm4_moe_lite",
    defaults: &[
        ("max_position_embeddings", Int(202_752)),
        ("rms_norm_eps", Float(1e-5)),
        ("moe_intermediate_size", Int(1536)),
        ("n_routed_experts", Int(64)),
        ("num_experts_per_tok", Int(4)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("scoring_func", Text("sigmoid")),
        ("first_k_dense_replace", Int(1)),
        ("norm_topk_prob", Bool(true)),
        ("routed_scaling_factor", Float(1.8)),
        ("qk_rope_head_dim", Int(64)),
        ("qk_nope_head_dim", Int(192)),
        ("v_head_dim", Int(256)),
        ("kv_lora_rank", Int(512)),
        ("n_shared_experts", Int(1)),
    ],
    tensors: &[
        ENDS,
        NORMS,
        ATTENTION,
        DENSE_MLP,
        SPARSE_MLP,
        F32_CHOICE_BIAS,
        PREDICTION,
        PREDICTION_ENDS,
    ],
    settings: &[ONE_KEY_HEAD, DENSE_LAYERS, LATENT_SIZES, EXPERTS, YARN, PREDICTION_SETTINGS],
    traits: Traits {
        has_expert_groups: true,
        prediction: Prediction::Kept,
        sign: Sign::PreTokenizer("glm4"),
        ..Traits::PLAIN
    },
    tokenizer: &MOE_TOKENIZER,
    mlx: Some(&GLM4_MOE_LITE_MLX),
    ..DEEPSEEK3
};

const GLM4_MOE_LITE_MLX: MlxClass = MlxClass { has_latent_eps: true, ..DEEPSEEK3_MLX };

/// How experts are chosen, and the way by the best groups of them, which llama.cpp has wherever
/// there are groups.
const METHOD: &str = "topk_method";
const BY_GROUPS: &str = "group_limited_greedy";

/// GGUF does not say how groups of experts are chosen.
fn groups_by_method(model: &Model<'_>) -> Result<Option<String>> {
    if !has_groups(&model.fields.0) {
        return Ok(None);
    }
    // The default of transformers.
    let method = model.fields.0.get(METHOD).and_then(Value::as_str);
    let method = method.unwrap_or("greedy");
    if method != BY_GROUPS {
        let what = format!("it is `{method}`, and llama.cpp chooses among `n_group` groups");
        return Err(wrong(METHOD, what));
    }
    let what = "transformers scores a group of experts by the best of them, llama.cpp by the sum of the best two";
    Ok(Some(format!("`{METHOD}`: {what}")))
}

/// llama.cpp and the code beside published models divide the weights of experts by their sum.
///
/// Source: `DeepseekV2TopkRouter` in `modeling_deepseek_v2.py` of transformers.
fn unread_norm(model: &Model<'_>) -> Result<Option<String>> {
    let what = "`norm_topk_prob`: transformers' class does not read it, so that llama.cpp computes other weights of experts";
    Ok(model.fields.flag("norm_topk_prob").then(|| what.to_owned()))
}

fn restore_method(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    if has_groups(config) {
        config.insert(METHOD.to_owned(), BY_GROUPS.into());
    }
    Ok(())
}
