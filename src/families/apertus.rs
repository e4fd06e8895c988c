//! Apertus: a feed-forward layer without a gate, whose activation function (xIELU) has parameters
//! of its own in each layer. GGUF has these in its metadata.
//!
//! Source: `ApertusModel` in `conversion/llama.py` of llama.cpp; defaults of transformers 5.24.

use super::llama::{LLAMA, SETTINGS};
use super::{ATTENTION_BIASES, ENDS, HEAD_NORMS, QUERIES, UNGATED_MLP, VALUES};
use crate::families::engine::rows::*;

const NORMS: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "model.layers.{i}.attention_layernorm", &[Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.feedforward_layernorm", &[Hidden]),
];

/// The names in GGUF are none of tensors that are written.
const ACTIVATION: &[TensorRule] = &[
    parameter(
        "blk.{i}.xielu.alpha_n",
        "model.layers.{i}.mlp.act_fn.alpha_n",
        (Transform::Key("xielu.alpha_n"), &[One], &[One]),
    ),
    parameter(
        "blk.{i}.xielu.alpha_p",
        "model.layers.{i}.mlp.act_fn.alpha_p",
        (Transform::Key("xielu.alpha_p"), &[One], &[One]),
    ),
    parameter(
        "blk.{i}.xielu.beta",
        "model.layers.{i}.mlp.act_fn.beta",
        (Transform::Key("xielu.beta"), &[], &[One]),
    ),
    parameter(
        "blk.{i}.xielu.eps",
        "model.layers.{i}.mlp.act_fn.eps",
        (Transform::Key("xielu.eps"), &[], &[One]),
    ),
];

pub(super) const APERTUS: ModelClass = ModelClass {
    gguf: "apertus",
    classes: &["ApertusForCausalLM"],
    model_type: "apertus",
    defaults: &[
        ("max_position_embeddings", Int(65_536)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(12e6)),
        ("hidden_act", Text("xielu")),
    ],
    implied: &[
        ("hidden_act", Text("xielu")),
        ("mlp_bias", Bool(false)),
        ("qk_norm", Bool(true)),
        ("post_norm", Bool(false)),
    ],
    biases: &[("attention_bias", ATTENTION_BIASES)],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, UNGATED_MLP, ACTIVATION],
    settings: &[SETTINGS],
    traits: Traits { rope: RopeTraits::LLAMA3, needs_output: true, ..Traits::PLAIN },
    mlx: Some(&APERTUS_MLX),
    ..LLAMA
};

const APERTUS_MLX: MlxClass = MlxClass {
    implied: &[
        ("hidden_act", Text("xielu")),
        NO_BIAS,
        ("mlp_bias", Bool(false)),
        ("qk_norm", Bool(true)),
        ("post_norm", Bool(false)),
    ],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "max_position_embeddings",
            "num_key_value_heads",
            "attention_bias",
            "mlp_bias",
            "qk_norm",
            "post_norm",
            "tie_word_embeddings",
        ],
    ],
    bare_numbers: true,
    equal_sizes: HEADS_FILL_HIDDEN,
    ..MlxClass::PLAIN
};
