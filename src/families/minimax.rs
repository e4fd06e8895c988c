//! MiniMax M2.
//!
//! Source: `conversion/minimax.py` of llama.cpp, class `MiniMaxM2Model`; defaults of transformers
//! 5.23.

use super::llama::{MIXTRAL_EXPERTS, MIXTRAL_STACKS};
use super::olmo::WIDE_NORMS;
use super::{ENDS, NORMS, QUERIES, VALUES};
use crate::families::engine::rows::*;

/// The bias that is added to scores only to choose experts.
const CHOICE_BIAS: &[TensorRule] = &[parameter(
    "blk.{i}.exp_probs_b.bias",
    "model.layers.{i}.block_sparse_moe.e_score_correction_bias",
    (Transform::None, &[Experts], &[Experts]),
)];

pub(super) const MINIMAX_M2: ModelClass = ModelClass {
    gguf: "minimax-m2",
    classes: &["MiniMaxM2ForCausalLM"],
    model_type: "minimax_m2",
    defaults: &[
        ("max_position_embeddings", Int(196_608)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(5e6)),
        ("num_local_experts", Int(256)),
        ("num_experts_per_tok", Int(8)),
        ("scoring_func", Text("sigmoid")),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("scoring_func", Text("sigmoid")),
        ("use_qk_norm", Bool(true)),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, WIDE_NORMS, MIXTRAL_EXPERTS, CHOICE_BIAS],
    settings: &[&[
        count("expert_feed_forward_length", &["intermediate_size"]),
        setting(Kind::Required, "rope.dimension_count", &["rotary_dim"]),
    ]],
    traits: Traits { needs_output: true, partial_rotary: Some(1.0), ..Traits::PLAIN },
    mlx: Some(&MINIMAX_M2_MLX),
    ..ModelClass::PLAIN
};

const MINIMAX_M2_MLX: MlxClass = MlxClass {
    renamed: MIXTRAL_STACKS,
    modes: ROUTER_8_BITS,
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    implied: &[SILU, NO_SCALING, ("scoring_func", Text("sigmoid")), ("use_qk_norm", Bool(true))],
    stated_fields: &[&[
        "rope_theta",
        "rotary_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "num_key_value_heads",
        "head_dim",
        "num_local_experts",
        "num_experts_per_tok",
        "shared_intermediate_size",
    ]],
    ..MlxClass::PLAIN
};
