//! Qwen 3 Next and Qwen 3.5: linear attention in three layers of four.
//!
//! Source: `conversion/qwen.py` of llama.cpp; defaults of transformers 4.57.6, of Qwen 3.5 those of
//! 5.23.

use super::glm::{PREDICTION, PREDICTION_SETTINGS};
use super::qwen::{EXPERTS, FUSED_EXPERTS, SHARED_EXPERT};
use super::{ENDS, HEAD_NORMS, MLP, POST_NORMS};
use crate::families::engine::fields::array;
use crate::families::engine::rope;
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;
use crate::remember::EncodedAs;
use crate::remember::layout::assembled::Change;

const LINEAR: Need = Need::Kind("linear_attention");
pub(super) const FULL: Need = Need::Kind("full_attention");

const KEY_HEADS: Dim = Field("linear_num_key_heads");
const VALUE_HEADS: Dim = Field("linear_num_value_heads");
const VALUE: Dim = Field("linear_value_head_dim");
const KEY: Dim = Field("linear_key_head_dim");
const KEYS: Dim = Product(&[KEY_HEADS, KEY]);
const VALUES: Dim = Product(&[VALUE_HEADS, VALUE]);
const HEADS_OF_KEY: Dim = Quotient(&[VALUE_HEADS, KEY_HEADS]);
const VALUES_OF_KEY: Dim = Product(&[VALUE, HEADS_OF_KEY]);
const PROJECTIONS: Dim = Sum(&[KEYS, KEYS, VALUES]);
const FILTER: Dim = Field("linear_conv_kernel_dim");

pub(super) const FULL_ATTENTION: &[TensorRule] = &[
    // Each head has a gate behind its queries.
    only(
        FULL,
        "blk.{i}.attn_q",
        "model.layers.{i}.self_attn.q_proj",
        &[Sum(&[Queries, Queries]), Hidden],
    ),
    only(FULL, "blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj", &[Keys, Hidden]),
    only(FULL, "blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj", &[Keys, Hidden]),
    only(FULL, "blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj", &[Hidden, Queries]),
    only(FULL, HEAD_NORMS[0].gguf, HEAD_NORMS[0].hf, &[Head]),
    only(FULL, HEAD_NORMS[1].gguf, HEAD_NORMS[1].hf, &[Head]),
];

/// Queries, keys, values and gates of a head of keys.
const TURN: Turn = Turn::Rows(&[KEY, KEY, VALUES_OF_KEY, VALUES_OF_KEY]);

/// Some parts of the matrix that has those of each head of keys.
const fn part(parts: Parts, gguf: &'static str, gguf_shape: &'static [Dim]) -> TensorRule {
    TensorRule {
        transform: Transform::Parts(parts),
        gguf_shape: Some(gguf_shape),
        ..only(
            LINEAR,
            gguf,
            "model.layers.{i}.linear_attn.in_proj_qkvz",
            &[Sum(&[KEYS, KEYS, VALUES, VALUES]), Hidden],
        )
    }
}

const LINEAR_ATTENTION: &[TensorRule] = &[
    part(Parts { end: 3, ..Parts::all(TURN) }, "blk.{i}.attn_qkv", &[PROJECTIONS, Hidden]),
    part(Parts::one(TURN, 3), "blk.{i}.attn_gate", &[VALUES, Hidden]),
    only(
        LINEAR,
        "blk.{i}.ssm_ba",
        "model.layers.{i}.linear_attn.in_proj_ba",
        &[Sum(&[VALUE_HEADS, VALUE_HEADS]), Hidden],
    ),
    TensorRule {
        transform: Transform::RESHAPED,
        gguf_shape: Some(&[PROJECTIONS, FILTER]),
        ..only(
            LINEAR,
            "blk.{i}.ssm_conv1d",
            "model.layers.{i}.linear_attn.conv1d",
            &[PROJECTIONS, One, FILTER],
        )
    },
    TensorRule {
        transform: Transform::NEG_EXP,
        is_whole_name: true,
        ..only(LINEAR, "blk.{i}.ssm_a", "model.layers.{i}.linear_attn.A_log", &[VALUE_HEADS])
    },
    TensorRule {
        is_whole_name: true,
        ..only(
            LINEAR,
            "blk.{i}.ssm_dt.bias",
            "model.layers.{i}.linear_attn.dt_bias",
            &[VALUE_HEADS],
        )
    },
    only(LINEAR, "blk.{i}.ssm_norm", "model.layers.{i}.linear_attn.norm", &[VALUE]),
    only(LINEAR, "blk.{i}.ssm_out", "model.layers.{i}.linear_attn.out_proj", &[Hidden, VALUES]),
];

/// Heads of values, of which each head of keys has some side by side, as rows.
const ROWS: Tiling = Tiling {
    groups: KEY_HEADS,
    parts: HEADS_OF_KEY,
    len: VALUE,
    behind: None,
    is_of_columns: false,
    change: Change::None,
};
/// As [`ROWS`], behind queries and keys.
const BEHIND_KEYS: Tiling = Tiling { behind: Some(Sum(&[KEYS, KEYS])), ..ROWS };
/// One row, or one value, for each head.
const ROW: Tiling = Tiling { len: One, ..ROWS };

/// A tensor that has heads of values, of the layers with linear attention.
const fn values(
    tiling: &'static Tiling,
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorRule {
    TensorRule { transform: Transform::Tiled(tiling), ..only(LINEAR, gguf, hf, shape) }
}

/// As [`LINEAR_ATTENTION`], with a matrix for each part.
pub(super) const SPLIT_ATTENTION: &[TensorRule] = &[
    values(
        &BEHIND_KEYS,
        "blk.{i}.attn_qkv",
        "model.layers.{i}.linear_attn.in_proj_qkv",
        &[PROJECTIONS, Hidden],
    ),
    values(&ROWS, "blk.{i}.attn_gate", "model.layers.{i}.linear_attn.in_proj_z", &[VALUES, Hidden]),
    values(
        &ROW,
        "blk.{i}.ssm_alpha",
        "model.layers.{i}.linear_attn.in_proj_a",
        &[VALUE_HEADS, Hidden],
    ),
    values(
        &ROW,
        "blk.{i}.ssm_beta",
        "model.layers.{i}.linear_attn.in_proj_b",
        &[VALUE_HEADS, Hidden],
    ),
    TensorRule {
        gguf_shape: Some(&[PROJECTIONS, FILTER]),
        ..values(
            &BEHIND_KEYS,
            "blk.{i}.ssm_conv1d",
            "model.layers.{i}.linear_attn.conv1d",
            &[PROJECTIONS, One, FILTER],
        )
    },
    TensorRule {
        is_whole_name: true,
        ..values(
            &Tiling { change: Change::NegExp, ..ROW },
            "blk.{i}.ssm_a",
            "model.layers.{i}.linear_attn.A_log",
            &[VALUE_HEADS],
        )
    },
    TensorRule {
        is_whole_name: true,
        ..values(
            &ROW,
            "blk.{i}.ssm_dt.bias",
            "model.layers.{i}.linear_attn.dt_bias",
            &[VALUE_HEADS],
        )
    },
    only(LINEAR, "blk.{i}.ssm_norm", "model.layers.{i}.linear_attn.norm", &[VALUE]),
    values(
        &Tiling { is_of_columns: true, ..ROWS },
        "blk.{i}.ssm_out",
        "model.layers.{i}.linear_attn.out_proj",
        &[Hidden, VALUES],
    ),
];

pub(super) const SETTINGS: &[Setting] = &[
    count("expert_feed_forward_length", &["moe_intermediate_size"]),
    count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
    count("ssm.conv_kernel", &["linear_conv_kernel_dim"]),
    count("ssm.state_size", &["linear_key_head_dim"]),
    count("ssm.group_count", &["linear_num_key_heads"]),
    count("ssm.time_step_rank", &["linear_num_value_heads"]),
    setting(Kind::Product, "ssm.inner_size", &["linear_value_head_dim", "linear_num_value_heads"]),
    setting(Kind::Layers("linear_attention"), "attention.recurrent_layers", &[]),
    count("full_attention_interval", &["full_attention_interval"]),
    setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
];

/// How heads rotate by the axes of an image, which llama.cpp needs for text as well.
pub(super) const AXES: &[Setting] =
    &[setting(Kind::Own(&SECTIONS), "rope.dimension_sections", &[rope::SECTIONS])];

/// The layer that predicts a further token: full attention, and what makes its input.
const PREDICTION_NAMES: PredictionNames = PredictionNames {
    count: "mtp_num_hidden_layers",
    kinds: &["full_attention"],
    layers: "model.layers.",
    names: &[
        ("mtp.fc.", "eh_proj."),
        ("mtp.pre_fc_norm_embedding.", "enorm."),
        ("mtp.pre_fc_norm_hidden.", "hnorm."),
        ("mtp.norm.", "shared_head.norm."),
        ("mtp.layers.0.", ""),
    ],
};

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

pub(super) const QWEN3_NEXT: ModelClass = ModelClass {
    gguf: "qwen3next",
    classes: &["Qwen3NextForCausalLM"],
    model_type: "qwen3_next",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(2)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(512)),
        ("shared_expert_intermediate_size", Int(512)),
        ("num_experts", Int(512)),
        ("num_experts_per_tok", Int(10)),
        ("linear_conv_kernel_dim", Int(4)),
        ("linear_key_head_dim", Int(128)),
        ("linear_value_head_dim", Int(128)),
        ("linear_num_key_heads", Int(16)),
        ("linear_num_value_heads", Int(32)),
        ("full_attention_interval", Int(4)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("norm_topk_prob", Bool(true)),
        ("decoder_sparse_step", Int(1)),
    ],
    own_fields: &[("num_local_experts", "num_experts")],
    tensors: &[
        ENDS,
        POST_NORMS,
        FULL_ATTENTION,
        LINEAR_ATTENTION,
        EXPERTS,
        SHARED_EXPERT,
        PREDICTION,
    ],
    other_tensors: FUSED_EXPERTS,
    settings: &[SETTINGS, PREDICTION_SETTINGS],
    traits: Traits {
        norms_plus_one: true,
        layer_kinds: Some(("linear_attention", 4)),
        rope: RopeTraits::partial(0.25),
        prediction: Prediction::Apart(&PREDICTION_NAMES),
        ..Traits::PLAIN
    },
    mlx: Some(&QWEN3_NEXT_MLX),
    ..ModelClass::PLAIN
};

const QWEN3_NEXT_MLX: MlxClass = MlxClass {
    renamed: STACKS,
    modes: GATES_8_BITS,
    norms_plus_one: true,
    implied: &[SILU, NO_BIAS, ("decoder_sparse_step", Int(1))],
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
    ..MlxClass::PLAIN
};

pub(super) const QWEN3_5: ModelClass = ModelClass {
    gguf: "qwen35",
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    model_type: "qwen3_5_text",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(4)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("linear_conv_kernel_dim", Int(4)),
        ("linear_key_head_dim", Int(128)),
        ("linear_value_head_dim", Int(128)),
        ("linear_num_key_heads", Int(16)),
        ("linear_num_value_heads", Int(32)),
        ("full_attention_interval", Int(4)),
    ],
    implied: &[("hidden_act", Text("silu")), ("attention_bias", Bool(false))],
    tensors: &[ENDS, POST_NORMS, FULL_ATTENTION, SPLIT_ATTENTION, MLP, PREDICTION],
    other_tensors: &[],
    settings: &[SETTINGS, PREDICTION_SETTINGS, AXES],
    mlx: Some(&QWEN3_5_MLX),
    ..QWEN3_NEXT
};

/// MiniCPM-V 4.6, whose language model is Qwen 3.5.
pub(super) const QWEN3_5_NESTED: ModelClass = ModelClass {
    classes: &["MiniCPMV4_6ForConditionalGeneration"],
    traits: Traits { sign: Sign::Never, ..QWEN3_5.traits },
    mlx: None,
    ..QWEN3_5
};

const QWEN3_5_MLX: MlxClass = MlxClass {
    mlx_type: Some("qwen3_5"),
    kept_types: &["blk.{i}.ssm_a"],
    norms_plus_one: true,
    implied: &[SILU, NO_BIAS],
    stated_fields: &[LINEAR_FIELDS],
    counted_kind: COUNTED,
    rope: RopeFields::NestedAlone,
    prefix: Prefix::Always("language_model."),
    ..MlxClass::PLAIN
};

pub(super) const QWEN3_5_MOE: ModelClass = ModelClass {
    gguf: "qwen35moe",
    classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    model_type: "qwen3_5_moe_text",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(2)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("moe_intermediate_size", Int(512)),
        ("shared_expert_intermediate_size", Int(512)),
        ("num_experts", Int(256)),
        ("num_experts_per_tok", Int(8)),
        ("linear_conv_kernel_dim", Int(4)),
        ("linear_key_head_dim", Int(128)),
        ("linear_value_head_dim", Int(128)),
        ("linear_num_key_heads", Int(16)),
        ("linear_num_value_heads", Int(32)),
        ("full_attention_interval", Int(4)),
    ],
    tensors: &[
        ENDS,
        POST_NORMS,
        FULL_ATTENTION,
        SPLIT_ATTENTION,
        EXPERTS,
        SHARED_EXPERT,
        PREDICTION,
    ],
    other_tensors: FUSED_EXPERTS,
    mlx: Some(&QWEN3_5_MOE_MLX),
    ..QWEN3_5
};

const QWEN3_5_MOE_MLX: MlxClass = MlxClass {
    mlx_type: Some("qwen3_5_moe"),
    renamed: STACKS,
    modes: GATES_8_BITS,
    // Fields of mlx-lm alone.
    implied: &[SILU, NO_BIAS, ("norm_topk_prob", Bool(true)), ("decoder_sparse_step", Int(1))],
    stated_fields: &[LINEAR_FIELDS, EXPERT_FIELDS],
    ..QWEN3_5_MLX
};

/// INT32\[4\]: how many pairs of a head rotate by each axis of an image.
const SECTIONS: OwnSetting = own(
    |_, model| {
        let rotating = model.rope.rotating(model.class, &model.dims);
        let sections = model.rope.sections(Some([11, 11, 10, 0]), rotating)?;
        Ok(Some(array(GgufMetadataArray::I32(sections))))
    },
    |stated, _| match stated.numbers()? {
        sections @ [_, _, _, 0] => Ok(Some(sections[..3].into())),
        sections @ [_, _, _, _] => Ok(Some(sections.into())),
        _ => Err(stated.other_type()),
    },
);
