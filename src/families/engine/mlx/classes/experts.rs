//! Classes with experts.

use super::{
    BASE, COMMON_FIELDS, EIGHT_BITS, GRANITE_FIELDS, HEADS_FILL_HIDDEN, LLAMA, NO_BIAS, NO_SCALING,
    ROUTER_8_BITS, SILU,
};
use crate::families::engine::mlx::names::{
    DOTS_STACKS, GPT_OSS_NAMES, LATENT_STACKS, MIXTRAL_STACKS, STACKS,
};
use crate::families::engine::mlx::{MlxClass, OutputLayer, Prefix, RopeFields};
use crate::families::engine::table::{Default, LostWindows};
use crate::remember::EncodedAs;

/// Sizes of latent attention, and counts and widths of experts.
const LATENT_FIELDS: &[&str] = &[
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

const DEEPSEEK_V3: MlxClass = MlxClass {
    model_type: "deepseek_v3",
    renamed: LATENT_STACKS,
    modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    implied: &[
        SILU,
        NO_BIAS,
        ("scoring_func", Default::Text("sigmoid")),
        ("topk_method", Default::Text("noaux_tc")),
        ("moe_layer_freq", Default::Int(1)),
        ("rope_interleave", Default::Bool(true)),
    ],
    stated_fields: &[LATENT_FIELDS],
    output: OutputLayer::Stored,
    ..BASE
};

const QWEN3_MOE: MlxClass = MlxClass {
    model_type: "qwen3_moe",
    gguf: Some("qwen3moe"),
    renamed: STACKS,
    modes: ROUTER_8_BITS,
    lost_windows: LostWindows::Flagged,
    implied: &[SILU, NO_BIAS, NO_SCALING, ("decoder_sparse_step", Default::Int(1))],
    stated_fields: &[COMMON_FIELDS, &["rope_theta", "decoder_sparse_step", "mlp_only_layers"]],
    ..BASE
};

pub(super) const CLASSES: &[MlxClass] = &[
    MlxClass {
        model_type: "qwen2_moe",
        implied: &[
            SILU,
            NO_SCALING,
            ("decoder_sparse_step", Default::Int(1)),
            ("norm_topk_prob", Default::Bool(false)),
            ("qkv_bias", Default::Bool(true)),
        ],
        stated_fields: &[COMMON_FIELDS],
        equal_sizes: HEADS_FILL_HIDDEN,
        renamed: STACKS,
        output: OutputLayer::Stored,
        lost_windows: LostWindows::Flagged,
        ..BASE
    },
    QWEN3_MOE,
    // It always has an output of its own.
    MlxClass {
        gguf: Some("qwen3vlmoe"),
        implied: &[SILU, NO_BIAS, ("decoder_sparse_step", Default::Int(1))],
        scalings: &[],
        output: OutputLayer::Stored,
        prefix: Prefix::Always("language_model."),
        ..QWEN3_MOE
    },
    MlxClass {
        model_type: "mixtral",
        renamed: MIXTRAL_STACKS,
        implied: &[SILU, NO_SCALING],
        equal_sizes: HEADS_FILL_HIDDEN,
        lost_windows: LostWindows::Everywhere,
        ..BASE
    },
    MlxClass {
        model_type: "gpt_oss",
        renamed: GPT_OSS_NAMES,
        modes: ROUTER_8_BITS,
        keeps_mxfp4: true,
        implied: &[
            SILU,
            ("attention_bias", Default::Bool(true)),
            ("swiglu_alpha", Default::Float(1.702)),
            ("swiglu_limit", Default::Float(7.0)),
        ],
        output: OutputLayer::Stored,
        ..BASE
    },
    MlxClass {
        model_type: "olmoe",
        renamed: STACKS,
        implied: &[SILU, ("clip_qkv", Default::Absent)],
        stated_fields: &[&["rms_norm_eps", "num_experts", "num_experts_per_tok"]],
        equal_sizes: HEADS_FILL_HIDDEN,
        ..LLAMA
    },
    MlxClass {
        model_type: "granitemoe",
        renamed: MIXTRAL_STACKS,
        modes: &[
            ("blk.{i}.ffn_gate_inp", EIGHT_BITS),
            ("blk.{i}.attn_output", EIGHT_BITS),
            ("blk.{i}.ffn_down_exps", EIGHT_BITS),
            ("output", EIGHT_BITS),
        ],
        bias_fields: &["attention_bias"],
        stated_fields: &[GRANITE_FIELDS, &["num_local_experts", "num_experts_per_tok"]],
        equal_sizes: HEADS_FILL_HIDDEN,
        ..LLAMA
    },
    MlxClass {
        model_type: "dots1",
        renamed: DOTS_STACKS,
        // A parameter of the router, and no linear module.
        modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
        implied: &[SILU, ("scoring_func", Default::Text("sigmoid"))],
        lost_windows: LostWindows::From(62),
        bias_fields: &["attention_bias", "mlp_bias"],
        stated_fields: &[&[
            "rope_theta",
            "rms_norm_eps",
            "max_position_embeddings",
            "num_key_value_heads",
            "first_k_dense_replace",
            "norm_topk_prob",
            "routed_scaling_factor",
        ]],
        ..LLAMA
    },
    DEEPSEEK_V3,
    MlxClass {
        model_type: "deepseek_v2",
        renamed: STACKS,
        modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
        implied: &[
            SILU,
            NO_BIAS,
            ("scoring_func", Default::Text("softmax")),
            ("norm_topk_prob", Default::Bool(false)),
            ("moe_layer_freq", Default::Int(1)),
        ],
        stated_fields: &[LATENT_FIELDS],
        rope: RopeFields::FlatYarn,
        output: OutputLayer::Stored,
        ..BASE
    },
    MlxClass { model_type: "glm4_moe_lite", has_latent_eps: true, ..DEEPSEEK_V3 },
    MlxClass {
        model_type: "glm4_moe",
        renamed: STACKS,
        modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
        kept_types: &["blk.{i}.exp_probs_b.bias"],
        implied: &[
            SILU,
            NO_SCALING,
            ("scoring_func", Default::Text("sigmoid")),
            ("topk_method", Default::Text("noaux_tc")),
        ],
        bias_fields: &["attention_bias"],
        stated_fields: &[&[
            "rope_theta",
            "rope_scaling",
            "partial_rotary_factor",
            "rms_norm_eps",
            "max_position_embeddings",
            "num_key_value_heads",
            "head_dim",
            "attention_bias",
            "use_qk_norm",
            "moe_intermediate_size",
            "n_routed_experts",
            "n_shared_experts",
            "num_experts_per_tok",
            "n_group",
            "topk_group",
            "norm_topk_prob",
            "routed_scaling_factor",
            "first_k_dense_replace",
            "tie_word_embeddings",
        ]],
        output: OutputLayer::Stored,
        ..BASE
    },
    MlxClass {
        model_type: "minimax_m2",
        renamed: MIXTRAL_STACKS,
        modes: ROUTER_8_BITS,
        kept_types: &["blk.{i}.exp_probs_b.bias"],
        implied: &[
            SILU,
            NO_SCALING,
            ("scoring_func", Default::Text("sigmoid")),
            ("use_qk_norm", Default::Bool(true)),
        ],
        stated_fields: &[&[
            "rope_theta",
            "rotary_dim",
            "rms_norm_eps",
            "max_position_embeddings",
            "num_key_value_heads",
            "head_dim",
            "num_local_experts",
            "num_experts_per_tok",
            "shared_intermediate_size",
        ]],
        ..BASE
    },
];
