//! Cohere's Command R, and Nemotron.
//!
//! Source: `conversion/command_r.py` and `nemotron.py` of llama.cpp; defaults of transformers
//! 4.57.6.

use super::{ATTENTION_BIASES, ENDS, MLP, NORMS, QUERIES, UNGATED_MLP, VALUES};
use crate::families::engine::rows::*;
use crate::remember::EncodedAs;

/// The only norm of a layer: attention and the feed-forward layer stand side by side.
const ONE_NORM: &[TensorRule] = &[NORMS[0]];

/// Norms of each head of queries and of keys.
const ALL_HEAD_NORMS: &[TensorRule] = &[
    only(
        Need::If("use_qk_norm"),
        "blk.{i}.attn_q_norm",
        "model.layers.{i}.self_attn.q_norm",
        &[Heads, Head],
    ),
    only(
        Need::If("use_qk_norm"),
        "blk.{i}.attn_k_norm",
        "model.layers.{i}.self_attn.k_norm",
        &[Field("num_key_value_heads"), Head],
    ),
];

pub(super) const COHERE: ModelClass = ModelClass {
    gguf: "command-r",
    classes: &["CohereForCausalLM"],
    model_type: "cohere",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("layer_norm_eps", Float(1e-5)),
        ("logit_scale", Float(0.0625)),
        ("rope_theta", Float(10_000.0)),
        ("use_qk_norm", Bool(false)),
    ],
    implied: &[("hidden_act", Text("silu")), ("attention_bias", Bool(false))],
    // The longest text that the model was trained on is longer than its positions.
    own_fields: &[("model_max_length", "max_position_embeddings")],
    tensors: &[ENDS, ONE_NORM, QUERIES, VALUES, ALL_HEAD_NORMS, MLP],
    settings: &[&[
        count("context_length", &["model_max_length", "max_position_embeddings"]),
        number("logit_scale", &["logit_scale"]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
    ]],
    traits: Traits { ties_output: true, has_two_bases: true, ..Traits::PLAIN },
    mlx: Some(&COHERE_MLX),
    ..ModelClass::PLAIN
};

const COHERE_MLX: MlxClass = MlxClass {
    // Norms of heads are matrices.
    modes: &[
        ("blk.{i}.attn_q_norm", EncodedAs::Nothing),
        ("blk.{i}.attn_k_norm", EncodedAs::Nothing),
    ],
    implied: &[SILU, NO_BIAS, NO_SCALING],
    stated_fields: &[&["rope_theta", "num_key_value_heads"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Tied,
    ..MlxClass::PLAIN
};

pub(super) const COHERE2: ModelClass = ModelClass {
    gguf: "cohere2",
    classes: &["Cohere2ForCausalLM"],
    model_type: "cohere2",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("layer_norm_eps", Float(1e-5)),
        ("logit_scale", Float(0.0625)),
        ("rope_theta", Float(10_000.0)),
        ("sliding_window", Int(4096)),
    ],
    own_fields: &[],
    tensors: &[ENDS, ONE_NORM, QUERIES, VALUES, MLP],
    settings: &[&[
        number("logit_scale", &["logit_scale"]),
        count("attention.sliding_window", &["sliding_window"]),
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Rotating, "rope.dimension_count", &["rotary_pct"]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
    ]],
    traits: Traits {
        ties_output: true,
        full_attention_every: Some(4),
        partial_rotary: Some(1.0),
        // transformers turns whole heads, whatever the field says.
        also_implied: &[("rotary_pct", Float(1.0))],
        ..Traits::PLAIN
    },
    mlx: Some(&COHERE2_MLX),
    ..COHERE
};

const COHERE2_MLX: MlxClass = MlxClass {
    modes: &[],
    stated_fields: &[&["rope_theta", "num_key_value_heads", "head_dim", "sliding_window"]],
    implied: &[SILU, NO_BIAS, NO_SCALING, ("partial_rotary_factor", Float(1.0))],
    counted_kind: Some(("sliding_window_pattern", "sliding_attention")),
    ..COHERE_MLX
};

pub(super) const NEMOTRON: ModelClass = ModelClass {
    gguf: "nemotron",
    classes: &["NemotronForCausalLM"],
    model_type: "nemotron",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("relu2"))],
    own_fields: &[("rms_norm_eps", "norm_eps")],
    biases: &[
        ("attention_bias", ATTENTION_BIASES),
        ("mlp_bias", &["blk.{i}.ffn_up", "blk.{i}.ffn_down"]),
        ("", &["blk.{i}.attn_norm", "blk.{i}.ffn_norm", "output_norm"]),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, UNGATED_MLP],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        number("attention.layer_norm_epsilon", &["norm_eps"]),
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
        setting(Kind::LinearOrNone, "rope.scaling.type", &[]),
    ]],
    traits: Traits {
        norms_plus_one: true,
        needs_output: true,
        partial_rotary: Some(0.5),
        ..Traits::PLAIN
    },
    mlx: Some(&NEMOTRON_MLX),
    ..COHERE
};

const NEMOTRON_MLX: MlxClass = MlxClass {
    implied: &[("hidden_act", Text("relu2"))],
    scalings: &["linear"],
    stated_fields: &[&["hidden_act"], &["norm_eps", "num_key_value_heads"]],
    ..LIKE_LLAMA
};
