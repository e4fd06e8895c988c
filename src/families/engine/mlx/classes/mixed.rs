//! Classes of layers of several kinds: convolutions, linear attention, state spaces.

use super::{
    BASE, EIGHT_BITS, GRANITE_FIELDS, HEADS_FILL_HIDDEN, NO_BIAS, NO_SCALING, ROUTER_8_BITS, SILU,
};
use crate::families::engine::dims::Dim;
use crate::families::engine::mlx::names::{
    GEMMA4_STACKS, GRANITE_HYBRID_NAMES, LFM2_MOE_NAMES, NEMOTRON_STACKS, STACKS,
};
use crate::families::engine::mlx::{MlxClass, OutputLayer, Prefix, RopeFields};
use crate::families::engine::table::{Default, Need, TensorRule, Transform, parameter};
use crate::remember::EncodedAs;

/// Routers, and what weighs the expert that all tokens see.
const GATES_8_BITS: &[(&str, EncodedAs)] =
    &[("blk.{i}.ffn_gate_inp", EIGHT_BITS), ("blk.{i}.ffn_gate_inp_shexp", EIGHT_BITS)];

/// Sizes of linear attention and of the attention of other layers, which mlx-lm needs, or has other
/// defaults for.
const LINEAR_FIELDS: &[&str] = &[
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
];

/// Counts and widths of experts.
const EXPERT_FIELDS: &[&str] = &[
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
];

/// What mlx-lm goes by in place of `layer_types`.
const COUNTED: Option<(&str, &str)> = Some(("full_attention_interval", "linear_attention"));

/// One of the projections of the experts of Gemma 4, which GGUF has in one.
const fn gemma4_half(half: usize, gguf: &'static str) -> TensorRule {
    const WIDTH: Dim = Dim::ExpertInner;
    TensorRule {
        need: Need::If("enable_moe_block"),
        ..parameter(
            gguf,
            "model.layers.{i}.experts.gate_up_proj",
            (
                Transform::Halves(half),
                &[Dim::Experts, Dim::Sum(&[WIDTH, WIDTH]), Dim::Hidden],
                &[Dim::Experts, WIDTH, Dim::Hidden],
            ),
        )
    }
}

/// mlx-lm has one norm for the whole width of a state space, and transformers one for each group.
const ONE_GROUP: (&str, Default) = ("n_groups", Default::Int(1));

const QWEN3_5: MlxClass = MlxClass {
    model_type: "qwen3_5_text",
    mlx_type: Some("qwen3_5"),
    kept_types: &["blk.{i}.ssm_a"],
    norms_plus_one: true,
    implied: &[SILU, NO_BIAS],
    stated_fields: &[LINEAR_FIELDS],
    counted_kind: COUNTED,
    rope: RopeFields::NestedAlone,
    prefix: Prefix::Always("language_model."),
    ..BASE
};

const NEMOTRON_H: MlxClass = MlxClass {
    model_type: "nemotron_h",
    gguf: Some("nemotron_h"),
    kept_types: &["blk.{i}.ssm_a"],
    implied: &[
        ("mlp_hidden_act", Default::Text("relu2")),
        ("mamba_hidden_act", Default::Text("silu")),
        NO_BIAS,
    ],
    stated_fields: &[&[
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "layer_norm_epsilon",
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
        "attention_bias",
        "mlp_bias",
        "mamba_proj_bias",
        "use_bias",
        "use_conv_bias",
    ]],
    output: OutputLayer::Stored,
    ..BASE
};

pub(super) const CLASSES: &[MlxClass] = &[
    MlxClass {
        model_type: "lfm2",
        implied: &[("conv_bias", Default::Bool(false)), NO_SCALING],
        stated_fields: &[&[
            "max_position_embeddings",
            "num_key_value_heads",
            "norm_eps",
            "conv_bias",
            "conv_L_cache",
            "block_dim",
            "block_multiple_of",
            "block_ffn_dim_multiplier",
            "block_auto_adjust_ff_dim",
        ]],
        equal_sizes: &[HEADS_FILL_HIDDEN[0], (Dim::Field("block_dim"), Dim::Hidden)],
        output: OutputLayer::Tied,
        rope: RopeFields::Nested,
        ..BASE
    },
    MlxClass {
        model_type: "lfm2_moe",
        renamed: LFM2_MOE_NAMES,
        modes: ROUTER_8_BITS,
        kept_types: &["blk.{i}.exp_probs_b.bias"],
        implied: &[("conv_bias", Default::Bool(false)), NO_SCALING],
        stated_fields: &[&[
            "max_position_embeddings",
            "num_key_value_heads",
            "norm_eps",
            "conv_bias",
            "conv_L_cache",
            "moe_intermediate_size",
            "num_dense_layers",
            "num_experts",
            "num_experts_per_tok",
            "norm_topk_prob",
            "use_expert_bias",
        ]],
        equal_sizes: HEADS_FILL_HIDDEN,
        output: OutputLayer::Tied,
        rope: RopeFields::Nested,
        ..BASE
    },
    MlxClass {
        model_type: "qwen3_next",
        renamed: STACKS,
        modes: GATES_8_BITS,
        norms_plus_one: true,
        implied: &[SILU, NO_BIAS, ("decoder_sparse_step", Default::Int(1))],
        stated_fields: &[
            LINEAR_FIELDS,
            EXPERT_FIELDS,
            &[
                "rope_theta",
                "partial_rotary_factor",
                "intermediate_size",
                "decoder_sparse_step",
                "mlp_only_layers",
                "norm_topk_prob",
            ],
        ],
        counted_kind: COUNTED,
        ..BASE
    },
    QWEN3_5,
    MlxClass {
        model_type: "qwen3_5_moe_text",
        mlx_type: Some("qwen3_5_moe"),
        renamed: STACKS,
        modes: GATES_8_BITS,
        // Fields of mlx-lm alone.
        implied: &[
            SILU,
            NO_BIAS,
            ("norm_topk_prob", Default::Bool(true)),
            ("decoder_sparse_step", Default::Int(1)),
        ],
        stated_fields: &[LINEAR_FIELDS, EXPERT_FIELDS],
        ..QWEN3_5
    },
    MlxClass {
        model_type: "granitemoehybrid",
        renamed: GRANITE_HYBRID_NAMES,
        modes: ROUTER_8_BITS,
        implied: &[SILU, NO_BIAS, NO_SCALING, ("mamba_n_groups", ONE_GROUP.1)],
        stated_fields: &[
            GRANITE_FIELDS,
            &[
                "num_local_experts",
                "num_experts_per_tok",
                "shared_intermediate_size",
                "mamba_n_heads",
                "mamba_n_groups",
                "mamba_d_state",
                "mamba_d_conv",
                "mamba_conv_bias",
                "mamba_proj_bias",
                "position_embedding_type",
                "time_step_limit",
            ],
        ],
        equal_sizes: HEADS_FILL_HIDDEN,
        rope: RopeFields::Nested,
        ..BASE
    },
    NEMOTRON_H,
    MlxClass {
        gguf: Some("nemotron_h_moe"),
        implied: &[
            NEMOTRON_H.implied[0],
            NEMOTRON_H.implied[1],
            NEMOTRON_H.implied[2],
            ("moe_latent_size", Default::Absent),
        ],
        renamed: NEMOTRON_STACKS,
        // A parameter of the router, and no linear module.
        modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
        kept_types: &["blk.{i}.ssm_a", "blk.{i}.exp_probs_b.bias"],
        stated_fields: &[
            NEMOTRON_H.stated_fields[0],
            &[
                "moe_intermediate_size",
                "moe_shared_expert_intermediate_size",
                "n_group",
                "n_routed_experts",
                "n_shared_experts",
                "topk_group",
                "norm_topk_prob",
                "routed_scaling_factor",
            ],
        ],
        ..NEMOTRON_H
    },
    MlxClass {
        model_type: "mamba",
        implied: &[
            SILU,
            ("layer_norm_epsilon", Default::Float(1e-5)),
            ("use_bias", Default::Bool(false)),
            ("use_bcdt_rms", Default::Bool(false)),
            ("use_conv_bias", Default::Bool(true)),
        ],
        stated_fields: &[&[
            "state_size",
            "conv_kernel",
            "time_step_rank",
            "intermediate_size",
            "use_bias",
            "use_conv_bias",
        ]],
        ..BASE
    },
    MlxClass {
        model_type: "mamba2",
        implied: &[
            SILU,
            ONE_GROUP,
            ("use_bias", Default::Bool(false)),
            ("use_conv_bias", Default::Bool(true)),
        ],
        stated_fields: &[&[
            "num_heads",
            "head_dim",
            "n_groups",
            "state_size",
            "conv_kernel",
            "layer_norm_epsilon",
            "intermediate_size",
            "time_step_rank",
            "time_step_limit",
            "use_bias",
            "use_conv_bias",
        ]],
        ..BASE
    },
    MlxClass {
        model_type: "gemma4_text",
        renamed: GEMMA4_STACKS,
        parts: &[gemma4_half(0, GEMMA4_STACKS[0].0), gemma4_half(1, GEMMA4_STACKS[1].0)],
        modes: ROUTER_8_BITS,
        implied: &[("hidden_activation", Default::Text("gelu_pytorch_tanh")), NO_BIAS],
        scalings: &["proportional"],
        stated_fields: &[&[
            "num_key_value_heads",
            "head_dim",
            "global_head_dim",
            "num_global_key_value_heads",
            "num_kv_shared_layers",
            "attention_k_eq_v",
            "use_double_wide_mlp",
            "enable_moe_block",
            "hidden_size_per_layer_input",
            "vocab_size_per_layer_input",
            "layer_types",
            "sliding_window",
            "final_logit_softcapping",
        ]],
        rope: RopeFields::Nested,
        reads_outer_vocab: true,
        prefix: Prefix::IfNested("language_model."),
        ..BASE
    },
];
