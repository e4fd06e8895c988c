//! The table of classes that mlx-lm has.

use super::names::{
    DOTS_STACKS, GPT_NEOX_NAMES, GPT_OSS_NAMES, LATENT_STACKS, MIXTRAL_STACKS, STACKS,
};
use super::{MlxClass, OutputLayer};
use crate::arch::dims::Dim;
use crate::arch::table::Default;
use crate::scheme::EncodedAs;

const SILU: (&str, Default) = ("hidden_act", Default::Text("silu"));
const NO_BIAS: (&str, Default) = ("attention_bias", Default::Bool(false));
const NO_SCALING: (&str, Default) = ("rope_scaling", Default::Absent);
const TIED: (&str, Default) = ("tie_word_embeddings", Default::Bool(true));

/// Heads have no size of their own.
const HEADS_FILL_HIDDEN: &[(Dim, Dim)] = &[(Dim::Queries, Dim::Hidden)];

const EIGHT_BITS: EncodedAs = EncodedAs::Integers { bits: 8, group: 64 };

/// Routers are more precise than the model.
const ROUTER_8_BITS: &[(&str, EncodedAs)] = &[("blk.{i}.ffn_gate_inp", EIGHT_BITS)];

const LLAMA: MlxClass = MlxClass {
    model_type: "llama",
    renamed: &[],
    modes: &[],
    keeps_mxfp4: false,
    kept_types: &[],
    implied: &[SILU],
    bias_fields: &["attention_bias", "mlp_bias"],
    stated_fields: &[],
    equal_sizes: &[],
    counts_windows: false,
    output: OutputLayer::AsConfigured,
    nested_prefix: None,
};

const QWEN2: MlxClass = MlxClass {
    model_type: "qwen2",
    bias_fields: &[],
    ..LLAMA
};

const QWEN3: MlxClass = MlxClass {
    model_type: "qwen3",
    implied: &[SILU, NO_BIAS],
    ..QWEN2
};

const GEMMA: MlxClass = MlxClass {
    model_type: "gemma",
    implied: &[NO_BIAS],
    output: OutputLayer::Tied,
    ..QWEN2
};

const SMOLLM3: MlxClass = MlxClass {
    model_type: "smollm3",
    stated_fields: &["rope_theta", "num_key_value_heads"],
    ..LLAMA
};

const COHERE: MlxClass = MlxClass {
    model_type: "cohere",
    // Norms of heads are matrices.
    modes: &[
        ("blk.{i}.attn_q_norm", EncodedAs::Nothing),
        ("blk.{i}.attn_k_norm", EncodedAs::Nothing),
    ],
    implied: &[SILU, NO_BIAS, TIED, NO_SCALING],
    stated_fields: &["rope_theta", "num_key_value_heads"],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Tied,
    ..QWEN2
};

pub(super) const MLX_CLASSES: &[MlxClass] = &[
    LLAMA,
    MlxClass {
        model_type: "mistral",
        ..LLAMA
    },
    QWEN2,
    QWEN3,
    MlxClass {
        model_type: "qwen2_moe",
        renamed: STACKS,
        output: OutputLayer::Stored,
        ..QWEN2
    },
    MlxClass {
        model_type: "qwen3_moe",
        renamed: STACKS,
        modes: ROUTER_8_BITS,
        ..QWEN3
    },
    MlxClass {
        model_type: "mixtral",
        renamed: MIXTRAL_STACKS,
        ..QWEN2
    },
    GEMMA,
    MlxClass {
        model_type: "gemma2",
        ..GEMMA
    },
    MlxClass {
        model_type: "gemma3_text",
        nested_prefix: Some("language_model."),
        ..GEMMA
    },
    MlxClass {
        model_type: "gpt_oss",
        renamed: GPT_OSS_NAMES,
        modes: ROUTER_8_BITS,
        keeps_mxfp4: true,
        implied: &[SILU, ("attention_bias", Default::Bool(true))],
        output: OutputLayer::Stored,
        ..QWEN2
    },
    SMOLLM3,
    MlxClass {
        model_type: "olmo2",
        ..LLAMA
    },
    MlxClass {
        model_type: "olmo3",
        stated_fields: &["rope_theta", "max_position_embeddings", "sliding_window"],
        ..LLAMA
    },
    MlxClass {
        model_type: "starcoder2",
        implied: &[("use_bias", Default::Bool(true)), NO_SCALING],
        stated_fields: &["rope_theta", "num_key_value_heads"],
        equal_sizes: HEADS_FILL_HIDDEN,
        ..QWEN2
    },
    MlxClass {
        model_type: "stablelm",
        implied: &[SILU, NO_SCALING],
        bias_fields: &["use_qkv_bias"],
        stated_fields: &[
            "rope_theta",
            "num_key_value_heads",
            "use_qkv_bias",
            "partial_rotary_factor",
            "layer_norm_eps",
        ],
        equal_sizes: HEADS_FILL_HIDDEN,
        output: OutputLayer::Stored,
        ..LLAMA
    },
    MlxClass {
        model_type: "exaone4",
        // Windows are told by a pattern that transformers need not have.
        implied: &[
            SILU,
            ("sliding_window", Default::Absent),
            ("sliding_window_pattern", Default::Absent),
        ],
        stated_fields: &[
            "rope_theta",
            "rope_scaling",
            "head_dim",
            "num_key_value_heads",
            "max_position_embeddings",
            "rms_norm_eps",
            "tie_word_embeddings",
            "sliding_window",
            "sliding_window_pattern",
        ],
        ..QWEN2
    },
    MlxClass {
        model_type: "seed_oss",
        bias_fields: &["attention_bias", "attention_out_bias", "mlp_bias"],
        stated_fields: &["rope_theta", "head_dim", "num_key_value_heads"],
        ..LLAMA
    },
    MlxClass {
        model_type: "ernie4_5",
        implied: &[SILU, ("use_bias", Default::Bool(false)), NO_SCALING],
        stated_fields: &[
            "rope_theta",
            "head_dim",
            "num_key_value_heads",
            "max_position_embeddings",
            "rms_norm_eps",
            "tie_word_embeddings",
            "use_bias",
        ],
        ..QWEN2
    },
    COHERE,
    MlxClass {
        model_type: "cohere2",
        modes: &[],
        stated_fields: &[
            "rope_theta",
            "num_key_value_heads",
            "head_dim",
            "sliding_window",
        ],
        counts_windows: true,
        ..COHERE
    },
    MlxClass {
        model_type: "nemotron",
        implied: &[("hidden_act", Default::Text("relu2"))],
        stated_fields: &["norm_eps", "num_key_value_heads"],
        ..LLAMA
    },
    MlxClass {
        model_type: "gpt_neox",
        renamed: GPT_NEOX_NAMES,
        implied: &[
            ("hidden_act", Default::Text("gelu")),
            ("attention_bias", Default::Bool(true)),
            NO_SCALING,
        ],
        stated_fields: &[
            "max_position_embeddings",
            "layer_norm_eps",
            "rotary_emb_base",
            "rotary_pct",
        ],
        equal_sizes: &[(
            Dim::Inner,
            Dim::Sum(&[Dim::Hidden, Dim::Hidden, Dim::Hidden, Dim::Hidden]),
        )],
        output: OutputLayer::Stored,
        ..QWEN2
    },
    MlxClass {
        model_type: "phi3",
        stated_fields: &["max_position_embeddings"],
        equal_sizes: HEADS_FILL_HIDDEN,
        ..QWEN2
    },
    MlxClass {
        model_type: "granite",
        modes: &[
            ("blk.{i}.attn_output", EIGHT_BITS),
            ("blk.{i}.ffn_down", EIGHT_BITS),
            ("output", EIGHT_BITS),
        ],
        stated_fields: &[
            "rope_theta",
            "rms_norm_eps",
            "logits_scaling",
            "attention_multiplier",
            "embedding_multiplier",
            "residual_multiplier",
            "max_position_embeddings",
            "num_key_value_heads",
            "attention_bias",
            "mlp_bias",
        ],
        equal_sizes: HEADS_FILL_HIDDEN,
        ..LLAMA
    },
    MlxClass {
        model_type: "glm4",
        implied: &[SILU, NO_SCALING],
        bias_fields: &["attention_bias"],
        stated_fields: &[
            "rope_theta",
            "attention_bias",
            "head_dim",
            "rms_norm_eps",
            "num_key_value_heads",
            "partial_rotary_factor",
        ],
        output: OutputLayer::Stored,
        ..LLAMA
    },
    MlxClass {
        model_type: "lfm2",
        modes: &[("blk.{i}.shortconv.conv", EncodedAs::Nothing)],
        implied: &[TIED, ("conv_bias", Default::Bool(false)), NO_SCALING],
        stated_fields: &[
            "max_position_embeddings",
            "num_key_value_heads",
            "norm_eps",
            "conv_bias",
            "conv_L_cache",
            "block_dim",
            "block_multiple_of",
            "block_ffn_dim_multiplier",
            "block_auto_adjust_ff_dim",
        ],
        equal_sizes: &[HEADS_FILL_HIDDEN[0], (Dim::Field("block_dim"), Dim::Hidden)],
        output: OutputLayer::Tied,
        ..QWEN2
    },
    MlxClass {
        model_type: "olmoe",
        renamed: STACKS,
        implied: &[SILU, ("clip_qkv", Default::Absent)],
        stated_fields: &["rms_norm_eps", "num_experts", "num_experts_per_tok"],
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
        stated_fields: &[
            "rope_theta",
            "rms_norm_eps",
            "logits_scaling",
            "attention_multiplier",
            "embedding_multiplier",
            "residual_multiplier",
            "max_position_embeddings",
            "num_key_value_heads",
            "attention_bias",
            "num_local_experts",
            "num_experts_per_tok",
        ],
        equal_sizes: HEADS_FILL_HIDDEN,
        ..LLAMA
    },
    MlxClass {
        model_type: "dots1",
        renamed: DOTS_STACKS,
        // A parameter of the router, and no linear module.
        modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
        implied: &[SILU, ("scoring_func", Default::Text("sigmoid"))],
        bias_fields: &["attention_bias", "mlp_bias"],
        stated_fields: &[
            "rope_theta",
            "rms_norm_eps",
            "max_position_embeddings",
            "num_key_value_heads",
            "first_k_dense_replace",
            "norm_topk_prob",
            "routed_scaling_factor",
        ],
        ..LLAMA
    },
    MlxClass {
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
        stated_fields: &[
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
        ],
        output: OutputLayer::Stored,
        ..QWEN2
    },
];
