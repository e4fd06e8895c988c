//! Spark X 2.5: one matrix of queries, keys and values, a gate for each head, and windows in some layers, of
//! whose heads another part rotates.
//!
//! Source: `conversion/spark2_5.py` of llama.cpp.

use serde_json::{Map, Value, json};

use super::{ENDS, MLP, NORMS, VALUES};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::rows::*;
use crate::remember::EncodedAs;

const ATTENTION: &[TensorRule] = &[
    same(
        "blk.{i}.attn_qkv",
        "model.layers.{i}.self_attn.q_k_v_proj",
        &[Sum(&[Queries, Keys, Keys]), Hidden],
    ),
    same("blk.{i}.attn_gate", "model.layers.{i}.self_attn.g_proj", &[Heads, Hidden]),
    TensorRule { hf: "model.layers.{i}.self_attn.out_proj", ..VALUES[1] },
];

const OWN_ENDS: &[TensorRule] =
    &[TensorRule { hf: "model.embedding", ..ENDS[0] }, ENDS[1], ENDS[2]];

/// Names of the embedding and of what is behind attention in most classes.
const USUAL_NAMES: &[TensorRule] = &[ENDS[0], VALUES[1]];

pub(super) const SPARK2_5: ModelClass = ModelClass {
    gguf: "spark2_5",
    classes: &["Spark2_5ForCausalLM"],
    model_type: "spark2_5",
    defaults: &[("rms_norm_eps", Float(1e-6))],
    implied: &[
        ("hidden_act", Text("gelu")),
        ("attention_bias", Bool(false)),
        ("gate_attn_act_mode", Text("sigmoid")),
        ("headwise_attn_output_gate", Bool(true)),
    ],
    tensors: &[OWN_ENDS, NORMS, ATTENTION, MLP],
    other_tensors: USUAL_NAMES,
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
        setting(Kind::Layers("sliding_attention"), "attention.sliding_window_pattern", &[]),
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
        // Of layers with a window, whole heads rotate.
        setting(Kind::HeadSize, "rope.dimension_count_swa", &["head_dim"]),
    ]],
    traits: Traits {
        rope: RopeTraits { partial: Some(1.0), by_kind: true, ..RopeTraits::PLAIN },
        restores: &[by_kind],
        ..Traits::PLAIN
    },
    mlx: Some(&SPARK2_5_MLX),
    ..ModelClass::PLAIN
};

const SPARK2_5_MLX: MlxClass = MlxClass {
    modes: &[("blk.{i}.attn_gate", EncodedAs::Nothing)],
    implied: &[
        ("hidden_act", Text("gelu")),
        ("gate_attn_act_mode", Text("sigmoid")),
        ("headwise_attn_output_gate", Bool(true)),
        NO_SCALING,
    ],
    bias_fields: &["attention_bias", "mlp_bias"],
    stated_fields: &[&[
        "rms_norm_eps",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "sliding_window",
        "layer_types",
        "hidden_act",
        "gate_attn_act_mode",
        "headwise_attn_output_gate",
    ]],
    rope: RopeFields::NestedByKind,
    ..MlxClass::PLAIN
};

/// States rope by the kind of the layers.
pub(super) fn by_kind(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    let part = config
        .remove("partial_rotary_factor")
        .unwrap_or_else(|| 1.0.into());
    let base = config
        .remove("rope_theta")
        .unwrap_or_else(|| 10_000.0.into());
    let local = config
        .remove("rope_local_base_freq")
        .unwrap_or_else(|| base.clone());
    let rope = |base, part| json!({"rope_type": "default", "rope_theta": base, "partial_rotary_factor": part});
    let kinds =
        json!({"full_attention": rope(base, part), "sliding_attention": rope(local, 1.0.into())});
    config.insert("rope_parameters".to_owned(), kinds);
    Ok(())
}
