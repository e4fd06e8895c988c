//! GLM 4, dense and with experts.
//!
//! Source: `conversion/glm.py` and `conversion/chatglm.py` of llama.cpp; defaults of transformers 4.57.6.

use serde_json::{Map, Value};

use super::{
    DENSE_MLP, ENDS, F32_CHOICE_BIAS, FUSED_MLP, HEAD_NORMS, NORMS, POST_NORMS, QUERIES,
    SPARSE_MLP, VALUES,
};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::wrong;
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;
use crate::remember::EncodedAs;

/// Norms before and behind both halves of a layer.
pub(super) const FOUR_NORMS: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", &[Hidden]),
    same("blk.{i}.post_attention_norm", "model.layers.{i}.post_self_attn_layernorm", &[Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", &[Hidden]),
    same("blk.{i}.post_ffw_norm", "model.layers.{i}.post_mlp_layernorm", &[Hidden]),
];

/// Norms of queries and keys, in models that have them.
const SOME_HEAD_NORMS: &[TensorRule] = &[
    only(Need::If("use_qk_norm"), HEAD_NORMS[0].gguf, HEAD_NORMS[0].hf, &[Head]),
    only(Need::If("use_qk_norm"), HEAD_NORMS[1].gguf, HEAD_NORMS[1].hf, &[Head]),
];

/// What a layer that predicts a further token has beside those of other layers.
pub(super) const PREDICTION: &[TensorRule] = &[
    only(
        Need::Prediction,
        "blk.{i}.nextn.eh_proj",
        "model.layers.{i}.eh_proj",
        &[Hidden, Sum(&[Hidden, Hidden])],
    ),
    only(Need::Prediction, "blk.{i}.nextn.enorm", "model.layers.{i}.enorm", &[Hidden]),
    only(Need::Prediction, "blk.{i}.nextn.hnorm", "model.layers.{i}.hnorm", &[Hidden]),
    only(
        Need::Prediction,
        "blk.{i}.nextn.shared_head_norm",
        "model.layers.{i}.shared_head.norm",
        &[Hidden],
    ),
];

/// Copies of the embedding and of the output layer that some checkpoints have in such a layer.
pub(super) const PREDICTION_ENDS: &[TensorRule] = &[
    optional(
        "blk.{i}.nextn.shared_head_head",
        "model.layers.{i}.shared_head.head",
        &[Vocab, Hidden],
    ),
    optional("blk.{i}.nextn.embed_tokens", "model.layers.{i}.embed_tokens", &[Vocab, Hidden]),
];

/// How many layers predict a further token. They count as layers in GGUF.
pub(super) const PREDICTION_SETTINGS: &[Setting] = &[
    count("nextn_predict_layers", &["num_nextn_predict_layers"]),
    setting(Kind::Sum, "block_count", &["num_hidden_layers", "num_nextn_predict_layers"]),
];

/// Projections that have a bias.
const BIASES: &[&str] = &["blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v"];

pub(super) const GLM4: ModelClass = ModelClass {
    gguf: "glm4",
    classes: &["Glm4ForCausalLM"],
    model_type: "glm4",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(2)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(0.000_000_156_25)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu"))],
    biases: &[("attention_bias", BIASES)],
    tensors: &[ENDS, FOUR_NORMS, QUERIES, VALUES, FUSED_MLP],
    settings: &[&[setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"])]],
    traits: Traits { rope: RopeTraits::partial(0.5), ..Traits::PLAIN },
    tokenizer: &TokenizerRules { by_text: GLM4_TOKENS, ..TokenizerRules::PLAIN },
    mlx: Some(&GLM4_MLX),
    ..ModelClass::PLAIN
};

const GLM4_MLX: MlxClass = MlxClass {
    implied: &[SILU, NO_SCALING, ("rope_traditional", Bool(true))],
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
    ..LIKE_LLAMA
};

/// GLM 4 of 2024 (glm-4-9b-chat-hf), whose architecture llama.cpp calls by the name of the models in
/// front of it.
pub(super) const GLM: ModelClass = ModelClass {
    gguf: "chatglm",
    classes: &["GlmForCausalLM"],
    model_type: "glm",
    tensors: &[ENDS, NORMS, QUERIES, VALUES, FUSED_MLP],
    traits: Traits { head_dim: HeadDim::Derived, ..GLM4.traits },
    tokenizer: &TokenizerRules { by_text: CHATGLM_TOKENS, ..TokenizerRules::PLAIN },
    mlx: Some(&GLM_MLX),
    ..GLM4
};

/// mlx-lm turns whole heads, which no published model does.
const GLM_MLX: MlxClass = MlxClass {
    laws: &[whole_heads],
    stated_fields: &[COMMON_FIELDS, &["attention_bias", "head_dim", "num_key_value_heads"]],
    output: OutputLayer::AsConfigured,
    ..GLM4_MLX
};

fn whole_heads(model: &Model<'_>) -> Result<Option<String>> {
    match model.rope.partial.or(model.class.traits.rope.partial) {
        Some(1.0) | None => Ok(None),
        Some(part) => Err(wrong(
            "partial_rotary_factor",
            format!("it is {part}, and mlx-lm's glm turns whole heads"),
        )),
    }
}

pub(super) const GLM4_MOE: ModelClass = ModelClass {
    gguf: "glm4moe",
    classes: &["Glm4MoeForCausalLM"],
    model_type: "glm4_moe",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(1408)),
        ("num_experts_per_tok", Int(8)),
        ("n_shared_experts", Int(1)),
        ("n_routed_experts", Int(128)),
        ("routed_scaling_factor", Float(1.0)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("first_k_dense_replace", Int(1)),
        ("norm_topk_prob", Bool(true)),
        ("use_qk_norm", Bool(false)),
    ],
    own_fields: &[("num_local_experts", "n_routed_experts")],
    tensors: &[
        ENDS,
        POST_NORMS,
        QUERIES,
        VALUES,
        SOME_HEAD_NORMS,
        DENSE_MLP,
        SPARSE_MLP,
        F32_CHOICE_BIAS,
        PREDICTION,
        PREDICTION_ENDS,
    ],
    settings: &[
        &[
            setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
            count("expert_shared_count", &["n_shared_experts"]),
            count("leading_dense_block_count", &["first_k_dense_replace"]),
            setting(Kind::Fixed(2), "expert_gating_func", &[]),
            number("expert_weights_scale", &["routed_scaling_factor"]),
            setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
        ],
        PREDICTION_SETTINGS,
    ],
    traits: Traits {
        has_expert_groups: true,
        prediction: Prediction::Kept,
        restores: &[no_dense_layers],
        ..GLM4.traits
    },
    tokenizer: &MOE_TOKENIZER,
    mlx: Some(&GLM4_MOE_MLX),
    ..GLM4
};

/// Solar Open: experts in all layers, and heads that rotate as a whole.
///
/// Source: `SolarOpenModel` in `conversion/glm.py` of llama.cpp; defaults of transformers 5.24.
pub(super) const SOLAR_OPEN: ModelClass = ModelClass {
    classes: &["SolarOpenForCausalLM"],
    model_type: "solar_open",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(1e6)),
        ("moe_intermediate_size", Int(1280)),
        ("num_experts_per_tok", Int(8)),
        ("n_shared_experts", Int(1)),
        ("n_routed_experts", Int(128)),
        ("routed_scaling_factor", Float(1.0)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("norm_topk_prob", Bool(true)),
    ],
    implied: &[("hidden_act", Text("silu")), ("first_k_dense_replace", Int(0))],
    tensors: &[ENDS, POST_NORMS, QUERIES, VALUES, DENSE_MLP, SPARSE_MLP, F32_CHOICE_BIAS],
    settings: &[GLM4_MOE.settings[0]],
    traits: Traits {
        has_expert_groups: true,
        rope: RopeTraits::partial(1.0),
        restores: &[no_dense_layers],
        sign: Sign::PreTokenizer("solar-open"),
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules { by_text: SOLAR_OPEN_TOKENS, ..TokenizerRules::PLAIN },
    mlx: Some(&GLM4_MOE_MLX),
    ..GLM4_MOE
};

/// No layer is dense in llama.cpp unless a file says so; the class of GLM has another default.
fn no_dense_layers(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    config.entry("first_k_dense_replace").or_insert(0.into());
    Ok(())
}

const GLM4_MOE_MLX: MlxClass = MlxClass {
    renamed: STACKS,
    modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    implied: &[
        SILU,
        NO_SCALING,
        ("scoring_func", Text("sigmoid")),
        ("topk_method", Text("noaux_tc")),
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
    ..MlxClass::PLAIN
};

/// Tokens of dense models that are special by their texts.
const GLM4_TOKENS: &[(&str, &str)] = &[
    ("eos", "<|endoftext|>"),
    ("eot", "<|user|>"),
    ("unk", "<|endoftext|>"),
    ("bos", "<|endoftext|>"),
];

const CHATGLM_TOKENS: &[(&str, &str)] =
    &[("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unk", "<|endoftext|>")];

const SOLAR_OPEN_TOKENS: &[(&str, &str)] = &[
    ("eos", "<|endoftext|>"),
    ("eot", "<|endoftext|>"),
    ("unk", "<unk>"),
    ("bos", "<|startoftext|>"),
];

/// The tokenizers of mixtures of experts.
pub(super) const MOE_TOKENIZER: TokenizerRules = TokenizerRules {
    by_text: &[
        ("bos", "[gMASK]"),
        ("eot", "<|user|>"),
        ("unk", "<|endoftext|>"),
        ("eom", "<|observation|>"),
    ],
    ..TokenizerRules::PLAIN
};
