//! OLMo 1 to 3, and OLMoE.
//!
//! Source: `conversion/olmo.py` of llama.cpp; defaults of transformers 4.57.6.

use super::llama::ROTATED;
use super::qwen::EXPERTS;
use super::{ATTENTION_BIASES, CAUSAL, ENDS, LATER_NORMS, MLP, NORMS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::fields::wrong;
use crate::families::engine::rows::*;

/// Norms of all queries and of all keys.
pub(super) const WIDE_NORMS: &[TensorRule] = &[
    same("blk.{i}.attn_q_norm", "model.layers.{i}.self_attn.q_norm", &[Queries]),
    same("blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.k_norm", &[Keys]),
];

/// Norms have no weights.
pub(super) const OLMO: ModelClass = ModelClass {
    gguf: "olmo",
    classes: &["OlmoForCausalLM", "OLMoForCausalLM"],
    model_type: "olmo",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("layer_norm_eps", EPSILON),
        ("rope_theta", Float(10_000.0)),
    ],
    // The class has no field for the epsilon, and this is its number.
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("layer_norm_eps", EPSILON),
    ],
    biases: &[],
    tensors: &[&[ENDS[0], ENDS[2]], ROTATED, VALUES, MLP],
    settings: &[&[number("attention.clamp_kqv", &["clip_qkv"])]],
    traits: Traits { head_dim: HeadDim::Derived, laws: &[clamp], ..Traits::PLAIN },
    mlx: None,
    ..OLMO2
};

/// llama.cpp clamps queries, keys and values to what is above 0, and transformers to any number.
fn clamp(model: &Model<'_>) -> Result<Option<String>> {
    const FIELD: &str = "clip_qkv";
    match model.fields.number(&[FIELD])?.filter(|clamp| *clamp <= 0.0) {
        None => Ok(None),
        Some(clamp) => {
            let what = format!("it is {clamp}, and {} does not clamp then", model.owner());
            Err(wrong(FIELD, what))
        }
    }
}

const EPSILON: Default = Float(1e-5);

pub(super) const OLMO2: ModelClass = ModelClass {
    gguf: "olmo2",
    classes: &["Olmo2ForCausalLM"],
    model_type: "olmo2",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu"))],
    biases: &[("attention_bias", ATTENTION_BIASES)],
    tensors: &[ENDS, LATER_NORMS, QUERIES, VALUES, WIDE_NORMS, MLP],
    traits: Traits { needs_output: true, ..Traits::PLAIN },
    mlx: Some(&OLMO2_MLX),
    ..ModelClass::PLAIN
};

const OLMO2_MLX: MlxClass = MlxClass { ..LIKE_LLAMA };

/// The window, and which layers have one.
pub(super) const WINDOWS: &[Setting] = &[
    count("attention.sliding_window", &["sliding_window"]),
    setting(
        Kind::Layers("sliding_attention"),
        "attention.sliding_window_pattern",
        &["sliding_window"],
    ),
];

pub(super) const OLMO3: ModelClass = ModelClass {
    classes: &["Olmo3ForCausalLM"],
    model_type: "olmo3",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("sliding_window", Int(4096)),
    ],
    settings: &[WINDOWS],
    traits: Traits {
        rope: RopeTraits { by_kind: true, has_two_bases: true, ..OLMO2.traits.rope },
        layer_kinds: Some(("sliding_attention", 4)),
        sign: Sign::Has("attention.sliding_window"),
        also_implied: &[CAUSAL],
        ..OLMO2.traits
    },
    mlx: Some(&OLMO3_MLX),
    ..OLMO2
};

const OLMO3_MLX: MlxClass = MlxClass {
    stated_fields: &[COMMON_FIELDS, &["rope_theta", "max_position_embeddings", "sliding_window"]],
    ..LIKE_LLAMA
};

pub(super) const OLMOE: ModelClass = ModelClass {
    gguf: "olmoe",
    classes: &["OlmoeForCausalLM"],
    model_type: "olmoe",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("num_experts", Int(64)),
        ("num_experts_per_tok", Int(8)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("rms_norm_eps", Float(1e-5)),
        ("norm_topk_prob", Bool(false)),
        ("clip_qkv", Absent),
    ],
    own_fields: &[("num_local_experts", "num_experts")],
    // llama.cpp has as many heads of keys as of queries in this class.
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, WIDE_NORMS, EXPERTS],
    mlx: Some(&OLMOE_MLX),
    ..OLMO2
};

const OLMOE_MLX: MlxClass = MlxClass {
    renamed: STACKS,
    implied: &[SILU, ("clip_qkv", Absent)],
    stated_fields: &[&["rms_norm_eps", "num_experts", "num_experts_per_tok"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    ..LIKE_LLAMA
};
