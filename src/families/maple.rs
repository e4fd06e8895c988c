//! Maple: experts in all layers, windows in some; layers that see the whole text have no positions.
//!
//! Source: `conversion/maple.py` of llama.cpp, which names what the published model states.

use super::hy::CLAMP;
use super::qwen::EXPERTS;
use super::{ENDS, HEAD_NORMS, NORMS, QUERIES, VALUES};
use crate::families::engine::rows::*;

pub(super) const MAPLE: ModelClass = ModelClass {
    gguf: "maple",
    classes: &["MapleForCausalLM"],
    model_type: "maple",
    defaults: &[
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("norm_topk_prob", Bool(true)),
        ("swiglu_limit", Float(7.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("norm_topk_prob", Bool(true)),
        ("num_shared_experts", Int(0)),
        ("nope_on_global_attention", Bool(true)),
        ("swiglu_limit", Float(7.0)),
    ],
    own_fields: &[("num_local_experts", "num_experts")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, EXPERTS],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
        setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
        setting(Kind::Layers("sliding_attention"), "attention.sliding_window_pattern", &[]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        setting(Kind::Own(&CLAMP), "swiglu_clamp_exp", &["swiglu_limit"]),
    ]],
    traits: Traits { needs_output: true, rope: RopeTraits::partial(1.0), ..Traits::PLAIN },
    ..ModelClass::PLAIN
};
