//! Qwen 2 and 3, dense and with experts.
//!
//! Source: `conversion/qwen.py` of llama.cpp; defaults of transformers 4.57.6.

use super::{ATTENTION_BIASES, ENDS, HEAD_NORMS, MLP, NORMS, QUERIES, VALUES};
use crate::families::engine::pooling::{POOLING, RANK};
use crate::families::engine::rows::*;

pub(super) const EXPERTS: &[TensorRule] = &[
    same("blk.{i}.ffn_gate_inp", "model.layers.{i}.mlp.gate", &[Experts, Hidden]),
    experts(
        "blk.{i}.ffn_gate_exps",
        "model.layers.{i}.mlp.experts.{e}.gate_proj",
        &[ExpertInner, Hidden],
    ),
    experts(
        "blk.{i}.ffn_up_exps",
        "model.layers.{i}.mlp.experts.{e}.up_proj",
        &[ExpertInner, Hidden],
    ),
    experts(
        "blk.{i}.ffn_down_exps",
        "model.layers.{i}.mlp.experts.{e}.down_proj",
        &[Hidden, ExpertInner],
    ),
];

/// All experts of a layer in one tensor, gate and projection in another, as transformers 5 has them
/// in memory and in some checkpoints.
pub(super) const FUSED_EXPERTS: &[TensorRule] = &[
    half(0, "blk.{i}.ffn_gate_exps.weight"),
    half(1, "blk.{i}.ffn_up_exps.weight"),
    parameter(
        "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.mlp.experts.down_proj",
        (Transform::None, DOWN, DOWN),
    ),
];

const DOWN: &[Dim] = &[Experts, Hidden, ExpertInner];

/// One half of the rows of each expert.
const fn half(half: usize, gguf: &'static str) -> TensorRule {
    parameter(
        gguf,
        "model.layers.{i}.mlp.experts.gate_up_proj",
        (
            Transform::Parts(Parts::one(Turn::Equal(2), half)),
            &[Experts, Sum(&[ExpertInner, ExpertInner]), Hidden],
            &[Experts, ExpertInner, Hidden],
        ),
    )
}

pub(super) const SHARED_EXPERT: &[TensorRule] = &[
    same("blk.{i}.ffn_gate_inp_shexp", "model.layers.{i}.mlp.shared_expert_gate", &[One, Hidden]),
    same(
        "blk.{i}.ffn_gate_shexp",
        "model.layers.{i}.mlp.shared_expert.gate_proj",
        &[SharedInner, Hidden],
    ),
    same(
        "blk.{i}.ffn_up_shexp",
        "model.layers.{i}.mlp.shared_expert.up_proj",
        &[SharedInner, Hidden],
    ),
    same(
        "blk.{i}.ffn_down_shexp",
        "model.layers.{i}.mlp.shared_expert.down_proj",
        &[Hidden, SharedInner],
    ),
];

const OWN_FIELDS: &[(&str, &str)] = &[("num_local_experts", "num_experts")];

pub(super) const QWEN2: ModelClass = ModelClass {
    gguf: "qwen2",
    classes: &["Qwen2ForCausalLM", "Qwen2Model", "KORMoForCausalLM"],
    model_type: "qwen2",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(32)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu")), ("use_sliding_window", Bool(false))],
    biases: &[("", &["blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v"])],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, MLP],
    // Models that embed texts have one.
    settings: &[&[count(POOLING, &[POOLING])]],
    traits: Traits {
        has_pre_norms: true,
        reads_causal: true,
        default_window: Some(4096),
        ..Traits::PLAIN
    },
    mlx: Some(&QWEN2_MLX),
    ..ModelClass::PLAIN
};

/// Language models of others, for images and for sounds.
pub(super) const QWEN2_NESTED: ModelClass = ModelClass {
    classes: &["DotsOCRForCausalLM", "AudioFlamingo3ForConditionalGeneration"],
    traits: NESTED,
    mlx: None,
    ..QWEN2
};

const NESTED: Traits = Traits { sign: Sign::Never, ..QWEN2.traits };

/// Qwen 2-Audio, whose published config leaves to the class what all have alike.
pub(super) const QWEN2_AUDIO: ModelClass = ModelClass {
    classes: &["Qwen2AudioForConditionalGeneration"],
    defaults: &[
        ("vocab_size", Int(151_936)),
        ("hidden_size", Int(4096)),
        ("intermediate_size", Int(22_016)),
        ("num_hidden_layers", Int(32)),
        ("num_attention_heads", Int(32)),
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(32)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    ..QWEN2_NESTED
};

pub(super) const QWEN2_MLX: MlxClass = MlxClass {
    stated_fields: &[COMMON_FIELDS],
    equal_sizes: HEADS_FILL_HIDDEN,
    lost_windows: LostWindows::Flagged,
    ..MlxClass::PLAIN
};

pub(super) const QWEN3: ModelClass = ModelClass {
    gguf: "qwen3",
    classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    model_type: "qwen3",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(32)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    biases: &[("attention_bias", ATTENTION_BIASES)],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, MLP],
    mlx: Some(&QWEN3_MLX),
    ..QWEN2
};

/// Step3-VL and LightOnOCR, whose language model is Qwen 3.
pub(super) const QWEN3_NESTED: ModelClass = ModelClass {
    classes: &[
        "StepVLForConditionalGeneration",
        "LightOnOcrForConditionalGeneration",
        "LightOnOCRForConditionalGeneration",
    ],
    traits: Traits { sign: Sign::Never, ..QWEN3.traits },
    mlx: None,
    ..QWEN3
};

pub(super) const QWEN3_MLX: MlxClass = MlxClass {
    stated_fields: &[COMMON_FIELDS, &["head_dim"]],
    implied: &[SILU, NO_BIAS],
    lost_windows: LostWindows::Flagged,
    rope: RopeFields::Nested,
    ..MlxClass::PLAIN
};

/// Settings of classifiers, which llama.cpp makes rerankers.
const RANK_SETTINGS: &[Setting] = &[
    setting(Kind::Fixed(RANK), POOLING, &[]),
    setting(Kind::Labels(true), "classifier.output_labels", &["id2label"]),
];

/// Qwen 3 whose output is a classifier: a reranker has two classes, "yes" and "no".
pub(super) const QWEN3_RERANKER: ModelClass = ModelClass {
    classes: &["Qwen3ForSequenceClassification"],
    tensors: &[CLASSIFIER_ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, MLP],
    settings: &[RANK_SETTINGS],
    traits: Traits {
        // There is no output but the classifier.
        ties_output: true,
        sign: Sign::Tensor("cls.output.weight"),
        ..QWEN3.traits
    },
    ..QWEN3
};

/// Embedding, last norm and classifier.
const CLASSIFIER_ENDS: &[TensorRule] =
    &[ENDS[0], ENDS[1], same("cls.output", "score", &[Labels, Hidden])];

pub(super) const QWEN2_MOE: ModelClass = ModelClass {
    gguf: "qwen2moe",
    classes: &["Qwen2MoeForCausalLM"],
    model_type: "qwen2_moe",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(16)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(1408)),
        ("shared_expert_intermediate_size", Int(5632)),
        ("num_experts", Int(60)),
        ("num_experts_per_tok", Int(4)),
        ("qkv_bias", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("use_sliding_window", Bool(false)),
        ("norm_topk_prob", Bool(false)),
        ("decoder_sparse_step", Int(1)),
    ],
    own_fields: OWN_FIELDS,
    biases: &[("qkv_bias", QWEN2.biases[0].1)],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, EXPERTS, SHARED_EXPERT],
    other_tensors: FUSED_EXPERTS,
    settings: &[&[
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
    ]],
    mlx: Some(&QWEN2_MOE_MLX),
    ..QWEN2
};

const QWEN2_MOE_MLX: MlxClass = MlxClass {
    implied: &[
        SILU,
        NO_SCALING,
        ("decoder_sparse_step", Int(1)),
        ("norm_topk_prob", Bool(false)),
        ("qkv_bias", Bool(true)),
    ],
    stated_fields: &[COMMON_FIELDS],
    equal_sizes: HEADS_FILL_HIDDEN,
    renamed: STACKS,
    output: OutputLayer::Stored,
    lost_windows: LostWindows::Flagged,
    ..MlxClass::PLAIN
};

pub(super) const QWEN3_MOE: ModelClass = ModelClass {
    gguf: "qwen3moe",
    classes: &["Qwen3MoeForCausalLM"],
    model_type: "qwen3_moe",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(4)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(768)),
        ("use_sliding_window", Bool(false)),
        ("norm_topk_prob", Bool(false)),
        ("num_experts", Int(128)),
        ("num_experts_per_tok", Int(8)),
    ],
    // llama.cpp always normalises these weights, and no file says so.
    implied: &[
        ("hidden_act", Text("silu")),
        ("norm_topk_prob", Bool(true)),
        ("decoder_sparse_step", Int(1)),
    ],
    own_fields: OWN_FIELDS,
    biases: &[("attention_bias", ATTENTION_BIASES)],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, EXPERTS],
    other_tensors: FUSED_EXPERTS,
    settings: &[&[count("expert_feed_forward_length", &["moe_intermediate_size"])]],
    traits: Traits {
        has_pre_norms: true,
        lost_windows: LostWindows::Everywhere,
        default_window: Some(4096),
        ..Traits::PLAIN
    },
    mlx: Some(&QWEN3_MOE_MLX),
    ..QWEN2
};

pub(super) const QWEN3_MOE_MLX: MlxClass = MlxClass {
    renamed: STACKS,
    modes: ROUTER_8_BITS,
    lost_windows: LostWindows::Flagged,
    implied: &[SILU, NO_BIAS, NO_SCALING, ("decoder_sparse_step", Int(1))],
    stated_fields: &[COMMON_FIELDS, &["rope_theta", "decoder_sparse_step", "mlp_only_layers"]],
    ..MlxClass::PLAIN
};
