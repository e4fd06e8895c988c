//! Gemma 4: layers with a window and layers that see the whole text have heads of different
//! lengths.
//!
//! Source: `Gemma4Model` in `conversion/gemma.py` of llama.cpp; defaults of transformers 5.23.

use super::gemma::FOUR_NORMS;
use super::{CAUSAL, ENDS, MLP, QUERIES, VALUES};
use crate::families::engine::dims::Dim;
use crate::families::engine::layer_sizes::{FULL_HEAD, SHARED};
use crate::families::engine::table::{
    Default, Kind, ModelClass, Need, TensorRule, Traits, Transform, count, only, parameter, setting,
};

const ATTENTION: &[TensorRule] = &[
    QUERIES[0],
    TensorRule { need: Need::OwnKeys, ..QUERIES[1] },
    TensorRule { need: Need::OwnValues, ..VALUES[0] },
    VALUES[1],
    super::HEAD_NORMS[0],
    TensorRule { need: Need::OwnKeys, ..super::HEAD_NORMS[1] },
    parameter(
        "blk.{i}.layer_output_scale.weight",
        "model.layers.{i}.layer_scalar",
        (Transform::None, &[Dim::One], &[Dim::One]),
    ),
];

/// Length of what each layer gets of a token beside the hidden state.
const INPUT: Dim = Dim::Field("hidden_size_per_layer_input");
const WITH_INPUTS: Need = Need::Above0("hidden_size_per_layer_input");
pub(super) const ALL_INPUTS: Dim = Dim::Product(&[INPUT, Dim::Layers]);

pub(super) const INPUTS: &[TensorRule] = &[
    only(
        WITH_INPUTS,
        "per_layer_token_embd",
        "model.embed_tokens_per_layer",
        &[Dim::Field("vocab_size_per_layer_input"), ALL_INPUTS],
    ),
    only(
        WITH_INPUTS,
        "per_layer_model_proj",
        "model.per_layer_model_projection",
        &[ALL_INPUTS, Dim::Hidden],
    ),
    only(WITH_INPUTS, "per_layer_proj_norm", "model.per_layer_projection_norm", &[INPUT]),
    only(
        WITH_INPUTS,
        "blk.{i}.inp_gate",
        "model.layers.{i}.per_layer_input_gate",
        &[INPUT, Dim::Hidden],
    ),
    only(
        WITH_INPUTS,
        "blk.{i}.proj",
        "model.layers.{i}.per_layer_projection",
        &[Dim::Hidden, INPUT],
    ),
    only(
        WITH_INPUTS,
        "blk.{i}.post_norm",
        "model.layers.{i}.post_per_layer_input_norm",
        &[Dim::Hidden],
    ),
];

/// The experts of checkpoints in NVFP4.
const EXPERTS_APART: &[(&str, &[&str])] = &[
    (
        "model.layers.{i}.experts.gate_up_proj",
        &[
            "model.layers.{i}.experts.{e}.gate_proj.weight",
            "model.layers.{i}.experts.{e}.up_proj.weight",
        ],
    ),
    ("model.layers.{i}.experts.down_proj", &["model.layers.{i}.experts.{e}.down_proj.weight"]),
];

const WITH_EXPERTS: Need = Need::If("enable_moe_block");

/// A parameter of layers with experts.
const fn of_experts(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    TensorRule { need: WITH_EXPERTS, ..parameter(gguf, hf, (Transform::None, shape, shape)) }
}

/// Experts beside the feed-forward layer.
const EXPERTS: &[TensorRule] = &[
    only(
        WITH_EXPERTS,
        "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.router.proj",
        &[Dim::Experts, Dim::Hidden],
    ),
    of_experts("blk.{i}.ffn_gate_inp.scale", "model.layers.{i}.router.scale", &[Dim::Hidden]),
    of_experts(
        "blk.{i}.ffn_down_exps.scale",
        "model.layers.{i}.router.per_expert_scale",
        &[Dim::Experts],
    ),
    of_experts(
        "blk.{i}.ffn_gate_up_exps.weight",
        "model.layers.{i}.experts.gate_up_proj",
        &[Dim::Experts, Dim::Sum(&[Dim::ExpertInner, Dim::ExpertInner]), Dim::Hidden],
    ),
    of_experts(
        "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.experts.down_proj",
        &[Dim::Experts, Dim::Hidden, Dim::ExpertInner],
    ),
    only(
        WITH_EXPERTS,
        "blk.{i}.post_ffw_norm_1",
        "model.layers.{i}.post_feedforward_layernorm_1",
        &[Dim::Hidden],
    ),
    only(
        WITH_EXPERTS,
        "blk.{i}.post_ffw_norm_2",
        "model.layers.{i}.post_feedforward_layernorm_2",
        &[Dim::Hidden],
    ),
    only(
        WITH_EXPERTS,
        "blk.{i}.pre_ffw_norm_2",
        "model.layers.{i}.pre_feedforward_layernorm_2",
        &[Dim::Hidden],
    ),
];

pub(super) const GEMMA4: ModelClass = ModelClass {
    gguf: "gemma4",
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    model_type: "gemma4_text",
    defaults: &[
        ("max_position_embeddings", Default::Int(131_072)),
        ("num_key_value_heads", Default::Int(4)),
        ("head_dim", Default::Int(256)),
        ("rms_norm_eps", Default::Float(1e-6)),
        ("sliding_window", Default::Int(512)),
        ("num_kv_shared_layers", Default::Int(0)),
        ("vocab_size_per_layer_input", Default::Int(262_144)),
        ("tie_word_embeddings", Default::Bool(true)),
    ],
    implied: &[
        ("hidden_activation", Default::Text("gelu_pytorch_tanh")),
        ("attention_bias", Default::Bool(false)),
    ],
    own_fields: &[("num_local_experts", "num_experts"), ("num_experts_per_tok", "top_k_experts")],
    equal_fields: &[],
    biases: &[],
    tensors: &[ENDS, FOUR_NORMS, ATTENTION, MLP, INPUTS, EXPERTS],
    other_tensors: &[],
    settings: &[&[
        // llama.cpp caps at 30 without the key.
        setting(Kind::NumberOrZero, "final_logit_softcapping", &["final_logit_softcapping"]),
        count("attention.sliding_window", &["sliding_window"]),
        count("attention.shared_kv_layers", &[SHARED]),
        count("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]),
        setting(Kind::Layers("sliding_attention"), "attention.sliding_window_pattern", &[]),
        setting(Kind::Required, "attention.key_length", &[FULL_HEAD]),
        setting(Kind::Required, "attention.value_length", &[FULL_HEAD]),
        setting(Kind::Required, "attention.key_length_swa", &["head_dim"]),
        setting(Kind::Required, "attention.value_length_swa", &["head_dim"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        // What follows is a list where it differs by layer.
        setting(Kind::Inner, "feed_forward_length", &["intermediate_size"]),
        setting(Kind::KvHeads, "attention.head_count_kv", &["num_key_value_heads"]),
        setting(Kind::Required, "rope.dimension_count", &[FULL_HEAD]),
        setting(Kind::Required, "rope.dimension_count_swa", &["head_dim"]),
    ]],
    traits: Traits {
        has_local_rope: true,
        experts_apart: EXPERTS_APART,
        has_layer_sizes: true,
        layer_kinds: Some(("sliding_attention", 6)),
        partial_rotary: Some(1.0),
        also_implied: &[CAUSAL],
        ..Traits::PLAIN
    },
};
