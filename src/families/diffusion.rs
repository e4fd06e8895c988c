//! Dream and RND1, which fill masks: their tokens see those behind them.
//!
//! Source: `conversion/dream.py`, and `RND1Model` in `conversion/qwen.py` of llama.cpp; defaults of the code
//! beside published models.

use super::qwen::{QWEN2, QWEN3_MOE};
use crate::families::engine::rows::*;

const SEES_ALL: &[Setting] = &[setting(Kind::FixedFlag(false), "attention.causal", &[])];

pub(super) const DREAM: ModelClass = ModelClass {
    gguf: "dream",
    classes: &["DreamModel"],
    model_type: "Dream",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    settings: &[SEES_ALL],
    traits: Traits { reads_causal: false, default_window: None, ..QWEN2.traits },
    mlx: None,
    ..QWEN2
};

/// Qwen 3 with experts that was trained on as such a model.
pub(super) const RND1: ModelClass = ModelClass {
    gguf: "rnd1",
    classes: &["RND1"],
    model_type: "rnd1",
    settings: &[SEES_ALL, QWEN3_MOE.settings[0]],
    traits: Traits::PLAIN,
    mlx: None,
    ..QWEN3_MOE
};
