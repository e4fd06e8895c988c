//! CogVLM: each layer has matrices for tokens, and others for images.
//!
//! Source: `conversion/cogvlm.py` and `src/models/cogvlm.cpp` of llama.cpp. Its converter leaves out what is for images, without which
//! llama.cpp does not load the file.

use super::{ENDS, NORMS};
use crate::families::engine::rows::*;

const THREE: Dim = Sum(&[Queries, Queries, Queries]);

macro_rules! expert {
    ($gguf:literal, $vision:literal, $name:literal) => {
        &[
            same(
                concat!("blk.{i}.", $vision, "attn_qkv"),
                concat!("model.layers.{i}.self_attn.", $name, "_expert_query_key_value"),
                &[THREE, Hidden],
            ),
            same(
                concat!("blk.{i}.", $vision, "attn_output"),
                concat!("model.layers.{i}.self_attn.", $name, "_expert_dense"),
                &[Hidden, Queries],
            ),
            same(
                concat!("blk.{i}.", $gguf, "gate"),
                concat!("model.layers.{i}.mlp.", $name, "_mlp.gate_proj"),
                &[Inner, Hidden],
            ),
            same(
                concat!("blk.{i}.", $gguf, "up"),
                concat!("model.layers.{i}.mlp.", $name, "_mlp.up_proj"),
                &[Inner, Hidden],
            ),
            same(
                concat!("blk.{i}.", $gguf, "down"),
                concat!("model.layers.{i}.mlp.", $name, "_mlp.down_proj"),
                &[Hidden, Inner],
            ),
        ]
    };
}

const LANGUAGE: &[TensorRule] = expert!("ffn_", "", "language");
const VISION: &[TensorRule] = expert!("vis_", "vis_", "vision");

pub(super) const COGVLM: ModelClass = ModelClass {
    gguf: "cogvlm",
    classes: &["CogVLMForCausalLM"],
    model_type: "cogvlm",
    defaults: &[("max_position_embeddings", Int(2048)), ("rms_norm_eps", Float(1e-6))],
    implied: &[
        ("hidden_act", Text("silu")),
        // CogVLM 2 has others.
        ("rope_theta", Float(10_000.0)),
        ("num_multi_query_heads", Absent),
    ],
    tensors: &[ENDS, NORMS, LANGUAGE, VISION],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
    ]],
    traits: Traits { head_dim: HeadDim::Derived, rope: RopeTraits::FIXED, ..Traits::PLAIN },
    ..ModelClass::PLAIN
};
