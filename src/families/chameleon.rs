//! Chameleon: norms of queries and keys for each head.
//!
//! Source: `conversion/chameleon.py` of llama.cpp, which writes the norms of the first head for all:
//! of models that were trained on several devices each head has its own. Defaults of transformers 5.24.

use super::llama::ROTATED;
use super::{ENDS, MLP, NORMS, VALUES};
use crate::families::engine::rows::*;
use crate::remember::layout::assembled::Change;

const TWO: Dim = Sum(&[One, One]);

/// Values of a head alternate between its halves, as rows of queries and keys do.
const HALVES: Tiling = Tiling {
    groups: TWO,
    parts: Quotient(&[Head, TWO]),
    len: One,
    behind: None,
    is_of_columns: true,
    change: Change::None,
};

macro_rules! norm {
    ($letter:literal, $end:literal, $heads:expr) => {
        parameter(
            concat!("blk.{i}.attn_", $letter, "_norm.", $end),
            concat!("model.layers.{i}.self_attn.", $letter, "_norm.", $end),
            (Transform::Tiled(&HALVES), &[$heads, Head], &[$heads, Head]),
        )
    };
}

const KEY_HEADS: Dim = Quotient(&[Keys, Head]);

const HEAD_NORMS: &[TensorRule] = &[
    norm!("q", "weight", Heads),
    norm!("q", "bias", Heads),
    norm!("k", "weight", KEY_HEADS),
    norm!("k", "bias", KEY_HEADS),
];

pub(super) const CHAMELEON: ModelClass = ModelClass {
    gguf: "chameleon",
    classes: &["ChameleonForConditionalGeneration", "ChameleonForCausalLM"],
    model_type: "chameleon",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("num_key_value_heads", Int(32)),
        ("swin_norm", Bool(false)),
    ],
    implied: &[
        // llama.cpp has nothing of the residual in what the feed-forward layer of such gets.
        ("swin_norm", Bool(false)),
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
    ],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, MLP, HEAD_NORMS],
    settings: &[&[setting(Kind::Flag, "swin_norm", &["swin_norm"])]],
    traits: Traits { head_dim: HeadDim::Derived, ..Traits::PLAIN },
    ..ModelClass::PLAIN
};
