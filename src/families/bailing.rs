//! Ling 2 and Ring 2 (BailingMoE 2), with experts in groups that are chosen by a bias of their own.
//!
//! Source: `BailingMoeV2Model` in `conversion/bailingmoe.py` of llama.cpp; defaults of the
//! `configuration_bailing_moe_v2.py` that published models have beside them.

use super::internlm::part;
use super::{DENSE_MLP, NORMS, SPARSE_MLP, sparse};
use crate::families::engine::rows::*;

pub(super) const ENDS: &[TensorRule] = &[
    same("token_embd", "model.word_embeddings", &[Vocab, Hidden]),
    same("output_norm", "model.norm", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
];

const ATTENTION: &[TensorRule] = &[
    same(
        "blk.{i}.attn_qkv",
        "model.layers.{i}.attention.query_key_value",
        &[Sum(&[Queries, Keys, Keys]), Hidden],
    ),
    same("blk.{i}.attn_output", "model.layers.{i}.attention.dense", &[Hidden, Queries]),
    same("blk.{i}.attn_q_norm", "model.layers.{i}.attention.query_layernorm", &[Head]),
    same("blk.{i}.attn_k_norm", "model.layers.{i}.attention.key_layernorm", &[Head]),
];

pub(super) const CHOICE_BIAS: &[TensorRule] = &[sparse(parameter(
    "blk.{i}.exp_probs_b.bias",
    "model.layers.{i}.mlp.gate.expert_bias",
    (Transform::None, &[Experts], &[Experts]),
))];

const SETTINGS: &[Setting] = &[
    setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
    count("leading_dense_block_count", &["first_k_dense_replace"]),
    count("vocab_size", &["vocab_size"]),
    count("expert_feed_forward_length", &["moe_intermediate_size"]),
    count(
        "expert_shared_feed_forward_length",
        &["moe_shared_expert_intermediate_size", "moe_intermediate_size"],
    ),
    number("expert_weights_scale", &["routed_scaling_factor"]),
    setting(Kind::Required, "expert_shared_count", &["num_shared_experts"]),
    setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
];

pub(super) const BAILING_MOE2: ModelClass = ModelClass {
    gguf: "bailingmoe2",
    classes: &["BailingMoeV2ForCausalLM"],
    model_type: "bailing_moe",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(600_000.0)),
        ("routed_scaling_factor", Float(2.5)),
        ("norm_topk_prob", Bool(true)),
        ("score_function", Text("sigmoid")),
        ("moe_router_enable_expert_bias", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("use_bias", Bool(false)),
        ("use_qkv_bias", Bool(false)),
        ("use_qk_norm", Bool(true)),
        ("use_rmsnorm", Bool(true)),
        ("norm_topk_prob", Bool(true)),
        ("score_function", Text("sigmoid")),
        ("moe_router_enable_expert_bias", Bool(true)),
        // Of several, llama.cpp and the class do not take the same widths.
        ("num_shared_experts", Int(1)),
    ],
    own_fields: &[("num_local_experts", "num_experts"), ("n_shared_experts", "num_shared_experts")],
    tensors: &[ENDS, NORMS, ATTENTION, DENSE_MLP, SPARSE_MLP, CHOICE_BIAS],
    settings: &[SETTINGS],
    traits: Traits {
        has_expert_groups: true,
        rope: RopeTraits::partial(0.5),
        needs_output: true,
        ..Traits::PLAIN
    },
    mlx: Some(&BAILING_MOE2_MLX),
    ..ModelClass::PLAIN
};

const BAILING_MOE2_MLX: MlxClass = MlxClass {
    stated_fields: &[
        COMMON_FIELDS,
        MLX_FIELDS,
        &[
            "partial_rotary_factor",
            "routed_scaling_factor",
            "score_function",
            "moe_router_enable_expert_bias",
            "n_group",
            "topk_group",
            "use_qk_norm",
        ],
    ],
    ..BAILING_MOE_MLX
};

const MLX_FIELDS: &[&str] = &[
    "max_position_embeddings",
    "num_key_value_heads",
    "moe_intermediate_size",
    "num_experts",
    "num_shared_experts",
    "num_experts_per_tok",
    "norm_topk_prob",
    "first_k_dense_replace",
];

const BAILING_MOE_MLX: MlxClass = MlxClass {
    renamed: &[
        STACKS[0],
        STACKS[1],
        STACKS[2],
        ("blk.{i}.ffn_gate_inp", "model.layers.{i}.mlp.gate.gate_proj"),
    ],
    modes: ROUTER_8_BITS,
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    implied: &[
        SILU,
        ("use_bias", Bool(false)),
        ("use_qkv_bias", Bool(false)),
        ("norm_head", Bool(false)),
    ],
    stated_fields: &[COMMON_FIELDS, MLX_FIELDS],
    equal_sizes: HEADS_FILL_HIDDEN,
    ..MlxClass::PLAIN
};

const FUSED: (&str, Turn) = (ATTENTION[0].hf, Turn::Rows(&[Queries, Keys, Keys]));

/// As [`ATTENTION`] without norms, taken apart.
const SPLIT_ATTENTION: &[TensorRule] = &[
    part(FUSED, (0, Then::Heads), "blk.{i}.attn_q", &[Queries, Hidden]),
    part(FUSED, (1, Then::Heads), "blk.{i}.attn_k", &[Keys, Hidden]),
    part(FUSED, (2, Then::Nothing), "blk.{i}.attn_v", &[Keys, Hidden]),
    ATTENTION[1],
];

/// Ling 1 and Ring 1, which have experts in all layers.
///
/// Source: `BailingMoeModel` in `conversion/bailingmoe.py` of llama.cpp.
pub(super) const BAILING_MOE: ModelClass = ModelClass {
    gguf: "bailingmoe",
    classes: &["BailingMoeForCausalLM"],
    defaults: &[
        ("max_position_embeddings", Int(16_384)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("first_k_dense_replace", Int(0)),
        ("norm_topk_prob", Bool(true)),
        // What the class does not scale by.
        ("routed_scaling_factor", Float(1.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("use_bias", Bool(false)),
        ("use_qkv_bias", Bool(false)),
        // The converter divides the output's columns by their lengths, which does not come back.
        ("norm_head", Bool(false)),
        ("norm_softmax", Bool(false)),
        ("first_k_dense_replace", Int(0)),
        ("routed_scaling_factor", Float(1.0)),
    ],
    tensors: &[ENDS, NORMS, SPLIT_ATTENTION, SPARSE_MLP],
    settings: &[&[
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
        count("leading_dense_block_count", &["first_k_dense_replace"]),
        count("vocab_size", &["vocab_size"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        setting(Kind::Required, "expert_shared_count", &["num_shared_experts"]),
        setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
    ]],
    traits: Traits { needs_output: true, ..Traits::PLAIN },
    mlx: Some(&BAILING_MOE_MLX),
    ..BAILING_MOE2
};

/// Sarvam, whose heads rotate as a whole.
///
/// Source: `SarvamMoEModel` in `conversion/bailingmoe.py` of llama.cpp, which also takes the mean of the
/// choice's biases from them: the experts that are chosen are the same.
pub(super) const SARVAM_MOE: ModelClass = ModelClass {
    classes: &["SarvamMoEForCausalLM", "modeling_sarvam_moe.SarvamMoEForCausalLM"],
    model_type: "sarvam_moe",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(4)),
        ("head_dim", Int(64)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(8e6)),
        ("moe_intermediate_size", Int(1024)),
        ("num_experts", Int(128)),
        ("num_experts_per_tok", Int(6)),
        ("num_shared_experts", Int(1)),
        ("first_k_dense_replace", Int(1)),
        ("routed_scaling_factor", Float(2.5)),
        ("norm_topk_prob", Bool(true)),
        ("score_function", Text("sigmoid")),
    ],
    traits: Traits { rope: RopeTraits::partial(1.0), sign: Sign::Never, ..BAILING_MOE2.traits },
    mlx: None,
    ..BAILING_MOE2
};
