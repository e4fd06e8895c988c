//! Classes whose layers are all alike, and have no experts.

use super::{
    BASE, COMMON_FIELDS, EIGHT_BITS, GRANITE_FIELDS, HEADS_FILL_HIDDEN, LLAMA, NO_BIAS, NO_SCALING,
    SILU, exact_gelu,
};
use crate::families::engine::dims::Dim;
use crate::families::engine::mlx::names::{GPT_NEOX_NAMES, GPT2_NAMES};
use crate::families::engine::mlx::{Activation, MlxClass, OutputLayer, Prefix, RopeFields};
use crate::families::engine::table::{Default, LostWindows};
use crate::remember::EncodedAs;

const TANH_GELU: (&str, Default) = ("hidden_activation", Default::Text("gelu_pytorch_tanh"));

const GEMMA: MlxClass = MlxClass {
    model_type: "gemma",
    stated_fields: &[COMMON_FIELDS, &["head_dim", "num_key_value_heads"]],
    implied: &[TANH_GELU, NO_BIAS, NO_SCALING],
    output: OutputLayer::Tied,
    ..BASE
};

const COHERE: MlxClass = MlxClass {
    model_type: "cohere",
    // Norms of heads are matrices.
    modes: &[
        ("blk.{i}.attn_q_norm", EncodedAs::Nothing),
        ("blk.{i}.attn_k_norm", EncodedAs::Nothing),
    ],
    implied: &[SILU, NO_BIAS, NO_SCALING],
    stated_fields: &[&["rope_theta", "num_key_value_heads"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Tied,
    ..BASE
};

const QWEN2: MlxClass = MlxClass {
    model_type: "qwen2",
    gguf: Some("qwen2"),
    stated_fields: &[COMMON_FIELDS],
    equal_sizes: HEADS_FILL_HIDDEN,
    lost_windows: LostWindows::Flagged,
    ..BASE
};

const QWEN3: MlxClass = MlxClass {
    model_type: "qwen3",
    gguf: Some("qwen3"),
    stated_fields: &[COMMON_FIELDS, &["head_dim"]],
    implied: &[SILU, NO_BIAS],
    lost_windows: LostWindows::Flagged,
    rope: RopeFields::Nested,
    ..BASE
};

pub(super) const CLASSES: &[MlxClass] = &[
    MlxClass { reads_kinds: true, ..LLAMA },
    MlxClass {
        model_type: "mistral",
        gguf: Some("llama"),
        reads_kinds: true,
        stated_fields: &[COMMON_FIELDS, &["num_key_value_heads"]],
        lost_windows: LostWindows::Everywhere,
        ..LLAMA
    },
    // The language model of a Mistral 3.
    MlxClass {
        model_type: "mistral",
        gguf: Some("mistral3"),
        reads_kinds: true,
        stated_fields: &[COMMON_FIELDS, &["num_key_value_heads"]],
        lost_windows: LostWindows::Everywhere,
        prefix: Prefix::IfNested("language_model."),
        ..LLAMA
    },
    MlxClass {
        model_type: "ministral3",
        implied: &[SILU, NO_BIAS, ("sliding_window", Default::Absent)],
        scalings: &["yarn"],
        stated_fields: &[&[
            "rms_norm_eps",
            "num_key_value_heads",
            "head_dim",
            "tie_word_embeddings",
        ]],
        rope: RopeFields::NestedAlone,
        prefix: Prefix::IfNested("language_model."),
        ..BASE
    },
    QWEN2,
    MlxClass {
        gguf: Some("qwen2vl"),
        scalings: &["mrope"],
        prefix: Prefix::Always("language_model."),
        ..QWEN2
    },
    QWEN3,
    MlxClass { gguf: Some("qwen3vl"), prefix: Prefix::Always("language_model."), ..QWEN3 },
    MlxClass { activation: exact_gelu("hidden_act"), ..GEMMA },
    MlxClass {
        model_type: "gemma2",
        stated_fields: &[
            COMMON_FIELDS,
            &["head_dim", "num_key_value_heads", "query_pre_attn_scalar"],
        ],
        // By `layer_types`, or all.
        lost_windows: LostWindows::From(0),
        ..GEMMA
    },
    MlxClass {
        model_type: "gemma3_text",
        gguf: Some("gemma3"),
        reads_outer_vocab: true,
        prefix: Prefix::IfNested("language_model."),
        implied: &[
            TANH_GELU,
            NO_BIAS,
            ("attn_logit_softcapping", Default::Absent),
            ("final_logit_softcapping", Default::Absent),
        ],
        stated_fields: &[
            COMMON_FIELDS,
            &[
                "head_dim",
                "num_attention_heads",
                "num_key_value_heads",
                "query_pre_attn_scalar",
                "sliding_window",
            ],
        ],
        counted_kind: Some(("sliding_window_pattern", "sliding_attention")),
        ..GEMMA
    },
    MlxClass {
        model_type: "smollm3",
        implied: &[SILU, ("use_sliding_window", Default::Bool(false))],
        stated_fields: &[COMMON_FIELDS, &["rope_theta", "num_key_value_heads"]],
        ..LLAMA
    },
    MlxClass { model_type: "olmo2", ..LLAMA },
    MlxClass {
        model_type: "olmo3",
        stated_fields: &[
            COMMON_FIELDS,
            &["rope_theta", "max_position_embeddings", "sliding_window"],
        ],
        ..LLAMA
    },
    MlxClass {
        model_type: "starcoder2",
        implied: &[("use_bias", Default::Bool(true)), NO_SCALING],
        activation: exact_gelu("hidden_act"),
        stated_fields: &[&["rope_theta", "num_key_value_heads"]],
        equal_sizes: HEADS_FILL_HIDDEN,
        lost_windows: LostWindows::Everywhere,
        ..BASE
    },
    MlxClass {
        model_type: "stablelm",
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
        stated_fields: &[&[
            "rope_theta",
            "rope_scaling",
            "head_dim",
            "num_key_value_heads",
            "max_position_embeddings",
            "rms_norm_eps",
            "tie_word_embeddings",
            "sliding_window",
            "sliding_window_pattern",
        ]],
        ..BASE
    },
    MlxClass {
        model_type: "seed_oss",
        bias_fields: &["attention_bias", "attention_out_bias", "mlp_bias"],
        stated_fields: &[&["rope_theta", "head_dim", "num_key_value_heads"]],
        ..LLAMA
    },
    MlxClass {
        model_type: "ernie4_5",
        implied: &[SILU, ("use_bias", Default::Bool(false)), NO_SCALING],
        stated_fields: &[&[
            "rope_theta",
            "head_dim",
            "num_key_value_heads",
            "max_position_embeddings",
            "rms_norm_eps",
            "tie_word_embeddings",
            "use_bias",
        ]],
        ..BASE
    },
    COHERE,
    MlxClass {
        model_type: "cohere2",
        modes: &[],
        stated_fields: &[&["rope_theta", "num_key_value_heads", "head_dim", "sliding_window"]],
        implied: &[SILU, NO_BIAS, NO_SCALING, ("partial_rotary_factor", Default::Float(1.0))],
        counted_kind: Some(("sliding_window_pattern", "sliding_attention")),
        ..COHERE
    },
    MlxClass {
        model_type: "nemotron",
        implied: &[("hidden_act", Default::Text("relu2"))],
        scalings: &["linear"],
        stated_fields: &[&["hidden_act"], &["norm_eps", "num_key_value_heads"]],
        ..LLAMA
    },
    MlxClass {
        model_type: "gpt_neox",
        renamed: GPT_NEOX_NAMES,
        implied: &[("attention_bias", Default::Bool(true)), NO_SCALING],
        activation: Some(Activation {
            field: "hidden_act",
            computed: &["gelu_fast", "gelu_new", "gelu_pytorch_tanh"],
            usual: "gelu",
        }),
        stated_fields: &[&[
            "max_position_embeddings",
            "layer_norm_eps",
            "rotary_emb_base",
            "rotary_pct",
        ]],
        equal_sizes: &[(
            Dim::Inner,
            Dim::Sum(&[Dim::Hidden, Dim::Hidden, Dim::Hidden, Dim::Hidden]),
        )],
        output: OutputLayer::Stored,
        ..BASE
    },
    MlxClass {
        model_type: "gpt2",
        renamed: GPT2_NAMES,
        implied: &[
            ("activation_function", Default::Text("gelu_new")),
            ("scale_attn_weights", Default::Bool(true)),
            ("scale_attn_by_inverse_layer_idx", Default::Bool(false)),
            ("add_cross_attention", Default::Bool(false)),
        ],
        stated_fields: &[&["n_ctx", "n_positions", "layer_norm_epsilon"]],
        output: OutputLayer::Tied,
        ..BASE
    },
    MlxClass {
        model_type: "phi",
        implied: &[
            ("hidden_act", Default::Text("gelu_new")),
            ("qk_layernorm", Default::Bool(false)),
            NO_SCALING,
        ],
        stated_fields: &[&[
            "max_position_embeddings",
            "num_key_value_heads",
            "partial_rotary_factor",
            "layer_norm_eps",
        ]],
        equal_sizes: HEADS_FILL_HIDDEN,
        output: OutputLayer::Stored,
        ..BASE
    },
    MlxClass {
        model_type: "hunyuan_v1_dense",
        implied: &[SILU, ("use_qk_norm", Default::Bool(true))],
        scalings: &["dynamic"],
        bias_fields: &["attention_bias"],
        stated_fields: &[
            COMMON_FIELDS,
            &["max_position_embeddings", "num_key_value_heads", "head_dim", "attention_bias"],
        ],
        rope: RopeFields::FlatTyped,
        ..BASE
    },
    MlxClass {
        model_type: "internlm2",
        implied: &[SILU, ("bias", Default::Bool(false))],
        scalings: &["linear", "dynamic"],
        stated_fields: &[
            COMMON_FIELDS,
            &["max_position_embeddings", "num_key_value_heads", "bias"],
        ],
        equal_sizes: HEADS_FILL_HIDDEN,
        rope: RopeFields::FlatTyped,
        ..BASE
    },
    MlxClass {
        model_type: "phi3",
        scalings: &["longrope", "su"],
        stated_fields: &[COMMON_FIELDS, &["max_position_embeddings"]],
        equal_sizes: HEADS_FILL_HIDDEN,
        lost_windows: LostWindows::Everywhere,
        ..BASE
    },
    MlxClass {
        model_type: "granite",
        modes: &[
            ("blk.{i}.attn_output", EIGHT_BITS),
            ("blk.{i}.ffn_down", EIGHT_BITS),
            ("output", EIGHT_BITS),
        ],
        stated_fields: &[GRANITE_FIELDS, &["mlp_bias"]],
        equal_sizes: HEADS_FILL_HIDDEN,
        ..LLAMA
    },
    MlxClass {
        model_type: "glm4",
        implied: &[SILU, NO_SCALING, ("rope_traditional", Default::Bool(true))],
        bias_fields: &["attention_bias"],
        stated_fields: &[&[
            "rope_theta",
            "attention_bias",
            "head_dim",
            "rms_norm_eps",
            "num_key_value_heads",
            "partial_rotary_factor",
        ]],
        output: OutputLayer::Stored,
        ..LLAMA
    },
];
