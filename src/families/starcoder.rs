//! StarCoder 2 and StableLM, whose norms have a bias.
//!
//! Source: `conversion/starcoder.py` of llama.cpp; defaults of transformers 4.57.6.

use super::{ATTENTION_BIASES, ENDS, MLP, NORMS, QUERIES, VALUES};
use crate::families::engine::rows::*;

/// The feed-forward layer without a gate.
const PLAIN_MLP: &[TensorRule] = &[
    same("blk.{i}.ffn_up", "model.layers.{i}.mlp.c_fc", &[Inner, Hidden]),
    same("blk.{i}.ffn_down", "model.layers.{i}.mlp.c_proj", &[Hidden, Inner]),
];

/// Norms, of which models with a parallel residual have only the first.
const STABLE_NORMS: &[TensorRule] = &[
    NORMS[0],
    // llama.cpp goes by this norm, and not by the flag.
    only(Need::Unless("use_parallel_residual"), NORMS[1].gguf, NORMS[1].hf, &[Hidden]),
];

pub(super) const STARCODER2: ModelClass = ModelClass {
    gguf: "starcoder2",
    classes: &["Starcoder2ForCausalLM"],
    model_type: "starcoder2",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("num_key_value_heads", Int(2)),
        ("norm_epsilon", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("tie_word_embeddings", Bool(true)),
        ("use_bias", Bool(true)),
    ],
    implied: &[("hidden_act", Text("gelu_pytorch_tanh"))],
    own_fields: &[("layer_norm_eps", "norm_epsilon")],
    biases: &[
        (
            "use_bias",
            &[
                ATTENTION_BIASES[0],
                ATTENTION_BIASES[1],
                ATTENTION_BIASES[2],
                ATTENTION_BIASES[3],
                "blk.{i}.ffn_up",
                "blk.{i}.ffn_down",
            ],
        ),
        ("", &["blk.{i}.attn_norm", "blk.{i}.ffn_norm", "output_norm"]),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, PLAIN_MLP],
    traits: Traits { lost_windows: LostWindows::Everywhere, ..Traits::PLAIN },
    mlx: Some(&STARCODER2_MLX),
    ..ModelClass::PLAIN
};

const STARCODER2_MLX: MlxClass = MlxClass {
    implied: &[("use_bias", Bool(true)), NO_SCALING],
    activation: exact_gelu("hidden_act"),
    stated_fields: &[&["rope_theta", "num_key_value_heads"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    lost_windows: LostWindows::Everywhere,
    ..MlxClass::PLAIN
};

/// Source: `conversion/stablelm.py` of llama.cpp.
pub(super) const STABLELM: ModelClass = ModelClass {
    gguf: "stablelm",
    classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM", "LlavaStableLMEpochForCausalLM"],
    model_type: "stablelm",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("num_key_value_heads", Int(32)),
        ("layer_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("use_parallel_residual", Bool(false)),
    ],
    implied: &[("hidden_act", Text("silu")), ("qk_layernorm", Bool(false))],
    own_fields: &[],
    biases: &[
        ("use_qkv_bias", &["blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v"]),
        ("", &["blk.{i}.attn_norm", "output_norm"]),
        ("", &["blk.{i}.ffn_norm"]),
    ],
    tensors: &[ENDS, STABLE_NORMS, QUERIES, VALUES, MLP],
    settings: &[&[
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
        setting(Kind::Flag, "use_parallel_residual", &["use_parallel_residual"]),
    ]],
    traits: Traits {
        rope: RopeTraits { partial: Some(0.25), is_fixed: true, ..RopeTraits::PLAIN },
        needs_output: true,
        ..Traits::PLAIN
    },
    mlx: Some(&STABLELM_MLX),
    ..STARCODER2
};

const STABLELM_MLX: MlxClass = MlxClass {
    implied: &[SILU, NO_SCALING],
    bias_fields: &["use_qkv_bias"],
    stated_fields: &[&[
        "rope_theta",
        "num_key_value_heads",
        "use_qkv_bias",
        "partial_rotary_factor",
        "layer_norm_eps",
    ]],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Stored,
    ..LIKE_LLAMA
};
