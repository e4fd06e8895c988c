//! Orion, openPangu Embedded, Jais 2, Maincoder and XVERSE: plain models of one class each.
//!
//! Source: `conversion/orion.py`, `pangu.py`, `maincoder.py` and `xverse.py` of llama.cpp; defaults of the code
//! beside published models.

use super::llama::ROTATED;
use super::{ATTENTION_BIASES, ENDS, HEAD_NORMS, MLP, NORMS, QUERIES, UNGATED_MLP, VALUES};
use crate::families::engine::rows::*;

pub(super) const ORION: ModelClass = ModelClass {
    gguf: "orion",
    classes: &["OrionForCausalLM"],
    model_type: "orion",
    defaults: &[("max_position_embeddings", Int(4096)), ("rms_norm_eps", Float(1e-5))],
    implied: &[("hidden_act", Text("silu")), ("attention_bias", Bool(false))],
    biases: &[("", &["output_norm", "blk.{i}.attn_norm", "blk.{i}.ffn_norm"])],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, MLP],
    settings: &[&[
        setting(Kind::Text("Meta AI original pth"), "tensor_data_layout", &[]),
        // The norms are none of the kind that the field is called by.
        number("attention.layer_norm_epsilon", &["rms_norm_eps"]),
        setting(Kind::Omitted, "attention.layer_norm_rms_epsilon", &[]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        needs_output: true,
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

pub(super) const PANGU: ModelClass = ModelClass {
    gguf: "pangu-embedded",
    classes: &["PanguEmbeddedForCausalLM"],
    model_type: "PanguEmbedded",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(16_000_000.0)),
        ("bias", Bool(true)),
    ],
    implied: &[("hidden_act", Text("silu")), ("bias", Bool(true))],
    biases: &[("", ATTENTION_BIASES)],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, MLP],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
        setting(Kind::HeadSize, "attention.key_length", &["head_dim"]),
        setting(Kind::HeadSize, "attention.value_length", &["head_dim"]),
    ]],
    tokenizer: &TokenizerRules { after: &[KeyRule::SpacePrefix], ..TokenizerRules::PLAIN },
    ..ModelClass::PLAIN
};

/// Source: `Jais2Model` in `conversion/jais.py` of llama.cpp; defaults of transformers 5.24.
pub(super) const JAIS2: ModelClass = ModelClass {
    gguf: "jais2",
    classes: &["Jais2ForCausalLM"],
    model_type: "jais2",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("layer_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[
        ("hidden_act", Text("relu2")),
        ("attention_bias", Bool(true)),
        ("mlp_bias", Bool(true)),
    ],
    biases: &[
        ("", &["output_norm", "blk.{i}.attn_norm", "blk.{i}.ffn_norm"]),
        ("", ATTENTION_BIASES),
        ("", &["blk.{i}.ffn_up", "blk.{i}.ffn_down"]),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, UNGATED_MLP],
    settings: &[&[setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"])]],
    ..ModelClass::PLAIN
};

pub(super) const MAINCODER: ModelClass = ModelClass {
    gguf: "maincoder",
    classes: &["MaincoderForCausalLM"],
    model_type: "maincoder",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(1e6)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
        ("use_qk_norm", Bool(true)),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, MLP],
    settings: &[&[count("rope.dimension_count", &["head_dim"])]],
    ..ModelClass::PLAIN
};

/// The converter mixes up rows of keys of models with fewer heads of them; none is published.
pub(super) const XVERSE: ModelClass = ModelClass {
    gguf: "xverse",
    classes: &["XverseForCausalLM"],
    model_type: "xverse",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu"))],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, MLP],
    settings: &[&[
        setting(Kind::Text("Meta AI original pth"), "tensor_data_layout", &[]),
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
    ]],
    traits: Traits { head_dim: HeadDim::Derived, needs_output: true, ..Traits::PLAIN },
    mlx: Some(&XVERSE_MLX),
    ..ModelClass::PLAIN
};

const XVERSE_MLX: MlxClass = MlxClass { equal_sizes: HEADS_FILL_HIDDEN, ..LIKE_LLAMA };
