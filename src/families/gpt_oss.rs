//! gpt-oss.
//!
//! Source: `conversion/gpt_oss.py` of llama.cpp; defaults of transformers 4.57.6.

use super::{ATTENTION_BIASES, CAUSAL, ENDS, POST_NORMS, QUERIES, VALUES};
use crate::families::engine::rows::*;

pub(super) const SINKS: &[TensorRule] = &[parameter(
    "blk.{i}.attn_sinks.weight",
    "model.layers.{i}.self_attn.sinks",
    (Transform::None, &[Heads], &[Heads]),
)];

const FUSED: &[Dim] = &[Experts, Hidden, TwoInner];
const PROJECTION: &[Dim] = &[Experts, Inner, Hidden];
const FUSED_BIAS: &[Dim] = &[Experts, TwoInner];
const BIAS: &[Dim] = &[Experts, Inner];

/// One of the two projections of which rows alternate.
const fn half(part: usize, is_transposed: bool) -> Transform {
    Transform::Parts(Parts { is_transposed, ..Parts::one(Turn::Single(2, 1), part) })
}

/// Rows of gate and up alternate in one matrix of each expert, which is stored as `[in, out]`.
const EXPERTS: &[TensorRule] = &[
    same("blk.{i}.ffn_gate_inp", "model.layers.{i}.mlp.router", &[Experts, Hidden]),
    parameter(
        "blk.{i}.ffn_gate_exps.weight",
        "model.layers.{i}.mlp.experts.gate_up_proj",
        (half(0, true), FUSED, PROJECTION),
    ),
    parameter(
        "blk.{i}.ffn_up_exps.weight",
        "model.layers.{i}.mlp.experts.gate_up_proj",
        (half(1, true), FUSED, PROJECTION),
    ),
    parameter(
        "blk.{i}.ffn_gate_exps.bias",
        "model.layers.{i}.mlp.experts.gate_up_proj_bias",
        (half(0, false), FUSED_BIAS, BIAS),
    ),
    parameter(
        "blk.{i}.ffn_up_exps.bias",
        "model.layers.{i}.mlp.experts.gate_up_proj_bias",
        (half(1, false), FUSED_BIAS, BIAS),
    ),
    parameter(
        "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.mlp.experts.down_proj",
        (Transform::Transposed, PROJECTION, &[Experts, Hidden, Inner]),
    ),
    parameter(
        "blk.{i}.ffn_down_exps.bias",
        "model.layers.{i}.mlp.experts.down_proj_bias",
        (Transform::None, &[Experts, Hidden], &[Experts, Hidden]),
    ),
];

/// Stacks of gpt-oss, whose projections have biases.
const GPT_OSS_NAMES: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps.weight", "model.layers.{i}.mlp.experts.gate_proj.weight"),
    ("blk.{i}.ffn_up_exps.weight", "model.layers.{i}.mlp.experts.up_proj.weight"),
    ("blk.{i}.ffn_gate_exps.bias", "model.layers.{i}.mlp.experts.gate_proj.bias"),
    ("blk.{i}.ffn_up_exps.bias", "model.layers.{i}.mlp.experts.up_proj.bias"),
    ("blk.{i}.ffn_down_exps.weight", "model.layers.{i}.mlp.experts.down_proj.weight"),
    ("blk.{i}.ffn_down_exps.bias", "model.layers.{i}.mlp.experts.down_proj.bias"),
];

pub(super) const GPT_OSS: ModelClass = ModelClass {
    gguf: "gpt-oss",
    classes: &["GptOssForCausalLM"],
    model_type: "gpt_oss",
    defaults: &[
        ("attention_bias", Bool(true)),
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(64)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(150_000.0)),
        ("num_local_experts", Int(128)),
        ("num_experts_per_tok", Int(4)),
        ("sliding_window", Int(128)),
    ],
    implied: &[("hidden_act", Text("silu"))],
    biases: &[("attention_bias", ATTENTION_BIASES), ("", &["blk.{i}.ffn_gate_inp"])],
    tensors: &[ENDS, POST_NORMS, QUERIES, VALUES, SINKS, EXPERTS],
    settings: &[&[
        count("attention.sliding_window", &["sliding_window"]),
        count("expert_feed_forward_length", &["intermediate_size"]),
    ]],
    traits: Traits {
        rope: RopeTraits { scalings: &[OwnScaling::ExactYarn], ..RopeTraits::PLAIN },
        also_implied: &[CAUSAL, ("swiglu_alpha", Float(1.702)), ("swiglu_limit", Float(7.0))],
        full_attention_every: Some(2),
        ..Traits::PLAIN
    },
    mlx: Some(&GPT_OSS_MLX),
    ..ModelClass::PLAIN
};

const GPT_OSS_MLX: MlxClass = MlxClass {
    renamed: GPT_OSS_NAMES,
    modes: ROUTER_8_BITS,
    keeps_mxfp4: true,
    implied: &[
        SILU,
        ("attention_bias", Bool(true)),
        ("swiglu_alpha", Float(1.702)),
        ("swiglu_limit", Float(7.0)),
    ],
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};
