//! DeepSeek MoE, the first of the name: attention of Llama, and experts behind the dense layers; and the
//! language model of DeepSeek OCR, which is the same without its order of rows.
//!
//! Source: `DeepseekModel` in `conversion/deepseek.py` of llama.cpp; defaults of the code beside
//! published models.

use super::llama::ROTATED;
use super::{DENSE_MLP, ENDS, NORMS, QUERIES, SPARSE_MLP, VALUES};
use crate::Result;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;
use crate::remember::EncodedAs;

pub(super) const DEEPSEEK: ModelClass = ModelClass {
    gguf: "deepseek",
    classes: &["DeepseekForCausalLM"],
    model_type: "deepseek",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("first_k_dense_replace", Int(0)),
        ("norm_topk_prob", Bool(false)),
        ("scoring_func", Text("softmax")),
        // What the class does not scale by.
        ("routed_scaling_factor", Float(1.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("norm_topk_prob", Bool(false)),
        ("scoring_func", Text("softmax")),
        ("moe_layer_freq", Int(1)),
        ("routed_scaling_factor", Float(1.0)),
    ],
    own_fields: &[("num_local_experts", "n_routed_experts")],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, DENSE_MLP, SPARSE_MLP],
    settings: &[&[
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
        count("leading_dense_block_count", &["first_k_dense_replace"]),
        count("vocab_size", &["vocab_size"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        setting(Kind::Required, "expert_shared_count", &["n_shared_experts"]),
    ]],
    traits: Traits { head_dim: HeadDim::Derived, ..Traits::PLAIN },
    mlx: Some(&DEEPSEEK_MLX),
    ..ModelClass::PLAIN
};

const DEEPSEEK_MLX: MlxClass = MlxClass {
    renamed: STACKS,
    modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
    implied: &[
        SILU,
        NO_BIAS,
        NO_SCALING,
        ("moe_layer_freq", Int(1)),
        ("norm_topk_prob", Bool(false)),
        ("scoring_func", Text("softmax")),
    ],
    stated_fields: &[&[
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "num_key_value_heads",
        "moe_intermediate_size",
        "first_k_dense_replace",
    ]],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

/// Source: `DeepseekV2Model` in the same file.
pub(super) const DEEPSEEK_OCR: ModelClass = ModelClass {
    gguf: "deepseek2-ocr",
    classes: &["DeepseekOCRForCausalLM", "UnlimitedOCRForCausalLM", "DeepseekOCR2ForCausalLM"],
    model_type: "deepseekocr",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("first_k_dense_replace", Int(0)),
        ("norm_topk_prob", Bool(false)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("scoring_func", Text("softmax")),
        ("moe_layer_freq", Int(1)),
        ("use_mla", Bool(false)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
    ],
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, DENSE_MLP, SPARSE_MLP],
    settings: &[&[
        setting(Kind::Required, "rope.dimension_count", &[ROTATING]),
        count("leading_dense_block_count", &["first_k_dense_replace"]),
        count("vocab_size", &["vocab_size"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        setting(Kind::Required, "expert_shared_count", &["n_shared_experts"]),
        setting(Kind::FlagIfTrue, "expert_weights_norm", &["norm_topk_prob"]),
    ]],
    traits: Traits { has_expert_groups: true, completes: &[without_latent], ..DEEPSEEK.traits },
    mlx: None,
    ..DEEPSEEK
};

/// The dimensions of a head that rotate are 0 in the config, and so in GGUF; heads rotate as a whole.
const ROTATING: &str = "rotating";

/// Sizes of latent keys and values, which no layer has.
fn without_latent(fields: &mut Fields) -> Result<()> {
    let sizes =
        ["qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"];
    for name in sizes {
        if fields.count(&[name])?.is_some_and(|size| size > 0) {
            return Err(wrong(
                name,
                "it is not 0, and llama.cpp's deepseek2-ocr has no latent keys",
            ));
        }
        fields.0.remove(name);
    }
    fields.0.insert(ROTATING.to_owned(), 0.into());
    Ok(())
}
