//! Phi 2, and Phi 3 and 4, whose projections are fused.
//!
//! Source: `conversion/phi.py` of llama.cpp; defaults of transformers 4.57.6.

use serde_json::Value;

use super::gpt2::FOURFOLD;
use super::llama::{MIXTRAL_EXPERTS, MIXTRAL_STACKS};
use super::{ATTENTION_BIASES, ENDS, FUSED_MLP, NORMS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;
use crate::model::gguf::GgufMetadataValue;

const FUSED_ATTENTION: &[TensorRule] = &[
    same(
        "blk.{i}.attn_qkv",
        "model.layers.{i}.self_attn.qkv_proj",
        &[Sum(&[Queries, Keys, Keys]), Hidden],
    ),
    same("blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj", &[Hidden, Queries]),
];

pub(super) const PHI3: ModelClass = ModelClass {
    gguf: "phi3",
    classes: &["Phi3ForCausalLM"],
    model_type: "phi3",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("original_max_position_embeddings", Int(4096)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu"))],
    tensors: &[ENDS, NORMS, FUSED_ATTENTION, FUSED_MLP],
    settings: &[&[
        count("rope.scaling.original_context_length", &["original_max_position_embeddings"]),
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
        // 0 tells Phi 4 from Phi 3 in llama.cpp.
        setting(Kind::Own(&WINDOW), "attention.sliding_window", &["sliding_window"]),
    ]],
    traits: Traits {
        has_pre_norms: true,
        head_dim: HeadDim::Derived,
        lost_windows: LostWindows::Everywhere,
        rope: RopeTraits { partial: Some(1.0), scalings: &[OwnScaling::Long], ..RopeTraits::PLAIN },
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules { added: AddedStyle::AsFlagged, ..TokenizerRules::PLAIN },
    mlx: Some(&PHI3_MLX),
    ..ModelClass::PLAIN
};

/// Phi 4 with images.
pub(super) const PHI4_V: ModelClass = ModelClass {
    classes: &["Phi4ForCausalLMV"],
    traits: Traits { sign: Sign::Never, ..PHI3.traits },
    mlx: None,
    ..PHI3
};

/// Phi 3.5 with experts, whose norms have biases.
pub(super) const PHI_MOE: ModelClass = ModelClass {
    gguf: "phimoe",
    classes: &["PhiMoEForCausalLM", "PhimoeForCausalLM"],
    model_type: "phimoe",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("original_max_position_embeddings", Int(4096)),
        ("num_key_value_heads", Int(8)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(1e6)),
        ("num_local_experts", Int(16)),
        ("num_experts_per_tok", Int(2)),
        ("attention_bias", Bool(false)),
        ("lm_head_bias", Bool(false)),
    ],
    // llama.cpp needs both biases.
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(true)),
        ("lm_head_bias", Bool(true)),
    ],
    biases: &[
        ("", &["output_norm", "output", "blk.{i}.attn_norm", "blk.{i}.ffn_norm"]),
        ("", ATTENTION_BIASES),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, MIXTRAL_EXPERTS],
    traits: Traits { needs_output: true, laws: &[other_graph], ..PHI3.traits },
    mlx: Some(&PHI_MOE_MLX),
    ..PHI3
};

const PHI_MOE_MLX: MlxClass = MlxClass {
    renamed: MIXTRAL_STACKS,
    implied: &[SILU, ("attention_bias", Bool(true)), ("lm_head_bias", Bool(true))],
    scalings: &["longrope", "su"],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "max_position_embeddings",
            "original_max_position_embeddings",
            "num_key_value_heads",
            "num_local_experts",
            "num_experts_per_tok",
            "router_jitter_noise",
        ],
    ],
    output: OutputLayer::Stored,
    ..PHI3_MLX
};

/// llama.cpp's graph is that of Phi 3, whose norms and weights of experts are others.
fn other_graph(_: &Model<'_>) -> Result<Option<String>> {
    let what = "llama.cpp computes something else of this class than transformers: its norms do not subtract the mean, and experts are weighed by all scores in place of those near their own, and `short_mscale` and `long_mscale` are not read";
    Ok(Some(what.to_owned()))
}

const PHI3_MLX: MlxClass = MlxClass {
    scalings: &["longrope", "su"],
    stated_fields: &[COMMON_FIELDS, &["max_position_embeddings"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    lost_windows: LostWindows::Everywhere,
    ..MlxClass::PLAIN
};

const PHI2_TENSORS: &[TensorRule] = &[
    ENDS[0],
    same("output_norm", "model.final_layernorm", &[Hidden]),
    ENDS[2],
    NORMS[0],
    VALUES[0],
    same("blk.{i}.attn_output", "model.layers.{i}.self_attn.dense", &[Hidden, Hidden]),
    same("blk.{i}.ffn_up", "model.layers.{i}.mlp.fc1", &[FOURFOLD, Hidden]),
    same("blk.{i}.ffn_down", "model.layers.{i}.mlp.fc2", &[Hidden, FOURFOLD]),
];

pub(super) const PHI2: ModelClass = ModelClass {
    gguf: "phi2",
    classes: &["PhiForCausalLM"],
    model_type: "phi",
    defaults: &[("max_position_embeddings", Int(2048)), ("layer_norm_eps", Float(1e-5))],
    implied: &[("hidden_act", Text("gelu_new")), ("qk_layernorm", Bool(false))],
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    biases: &[(
        "",
        &[
            "output_norm",
            "output",
            "blk.{i}.attn_norm",
            "blk.{i}.attn_q",
            "blk.{i}.attn_k",
            "blk.{i}.attn_v",
            "blk.{i}.attn_output",
            "blk.{i}.ffn_up",
            "blk.{i}.ffn_down",
        ],
    )],
    tensors: &[PHI2_TENSORS, QUERIES],
    settings: &[&[
        setting(Kind::TimesHidden(4), "feed_forward_length", &["intermediate_size"]),
        count("attention.head_count_kv", &["num_attention_heads"]),
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits { partial: Some(0.5), is_fixed: true, ..RopeTraits::PLAIN },
        needs_output: true,
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules {
        after: &[KeyRule::Flag("add_bos_token", false)],
        ..TokenizerRules::PLAIN
    },
    mlx: Some(&PHI2_MLX),
    ..ModelClass::PLAIN
};

const PHI2_MLX: MlxClass = MlxClass {
    implied: &[("hidden_act", Text("gelu_new")), ("qk_layernorm", Bool(false)), NO_SCALING],
    stated_fields: &[&[
        "max_position_embeddings",
        "num_key_value_heads",
        "partial_rotary_factor",
        "layer_norm_eps",
    ]],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

/// UINT32 that is 0 if the field is null.
const WINDOW: OwnSetting = own(
    |setting, model| {
        let window = model.fields.count(setting.fields)?.unwrap_or(0);
        Ok(Some(GgufMetadataValue::U32(window)))
    },
    |stated, _| match stated.count()? {
        0 => Ok(Some(Value::Null)),
        window => Ok(Some(window.into())),
    },
);
