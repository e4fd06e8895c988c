//! The language models of GLM 4.1V, GLM OCR and GLM 4.5V: those of GLM 4, whose heads rotate by
//! three axes of an image. The three positions of a token of a text are one, so that a file comes
//! back as the class without images.
//!
//! Source: `conversion/glm.py` of llama.cpp; defaults of transformers 5.24.

use super::glm::{FOUR_NORMS, GLM4, GLM4_MOE, PREDICTION, PREDICTION_ENDS, PREDICTION_SETTINGS};
use super::{ENDS, FUSED_MLP, VALUES};
use crate::families::engine::rows::*;

const SECTIONS: &[Setting] = &[setting(Kind::TextSections, SECTIONS_KEY, &[])];

const SECTIONS_KEY: &str = "rope.dimension_sections";

/// Queries and keys of dense models, whose pairs that rotate are neighbours in transformers.
/// llama.cpp has axes for halves alone.
const NEIGHBOURS: &[TensorRule] = &[
    neighbours("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj", &[Queries, Hidden]),
    neighbours("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj", &[Keys, Hidden]),
];

const fn neighbours(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    TensorRule { transform: Transform::Neighbours, ..same(gguf, hf, shape) }
}

pub(super) const GLM4V: ModelClass = ModelClass {
    classes: &["Glm4ForCausalLM", "Glm4vForConditionalGeneration"],
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(2)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("attention_bias", Bool(true)),
    ],
    tensors: &[ENDS, FOUR_NORMS, NEIGHBOURS, VALUES, FUSED_MLP],
    settings: &[GLM4.settings[0], SECTIONS],
    traits: Traits { sign: Sign::Has(SECTIONS_KEY), ..GLM4.traits },
    ..GLM4
};

pub(super) const GLM_OCR: ModelClass = ModelClass {
    classes: &["Glm4ForCausalLM", "GlmOcrForConditionalGeneration"],
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    tensors: &[ENDS, FOUR_NORMS, NEIGHBOURS, VALUES, FUSED_MLP, PREDICTION, PREDICTION_ENDS],
    settings: &[GLM4.settings[0], SECTIONS, PREDICTION_SETTINGS],
    traits: Traits {
        prediction: Prediction::KeptInGguf,
        sign: Sign::All(&[Sign::Has(SECTIONS_KEY), Sign::Has("nextn_predict_layers")]),
        ..GLM4.traits
    },
    ..GLM4
};

pub(super) const GLM4V_MOE: ModelClass = ModelClass {
    classes: &["Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration"],
    defaults: &[
        ("max_position_embeddings", Int(65_536)),
        ("attention_bias", Bool(true)),
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
    settings: &[GLM4_MOE.settings[0], PREDICTION_SETTINGS, SECTIONS],
    traits: Traits { sign: Sign::Has(SECTIONS_KEY), ..GLM4_MOE.traits },
    ..GLM4_MOE
};
