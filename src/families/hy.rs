//! Hunyuan 3: experts behind the dense layers, chosen with a bias, and norms of queries and keys.
//!
//! Source: `HYV3Model` in `conversion/hunyuan.py` of llama.cpp; defaults of transformers 5.24.

use super::dense_first::{DENSE, counted, named, of_tensors};
use super::glm::{PREDICTION, PREDICTION_SETTINGS};
use super::{DENSE_MLP, ENDS, HEAD_NORMS, NORMS, QUERIES, SPARSE_MLP, VALUES, sparse};
use crate::families::engine::rows::*;

const COUNT: &str = "num_shared_experts";
/// Width of all experts that every token sees.
const SHARED: Dim = Product(&[ExpertInner, Field(COUNT)]);

const EXPERTS: &[TensorRule] = &[
    TensorRule { hf: "model.layers.{i}.mlp.router.gate", ..SPARSE_MLP[0] },
    SPARSE_MLP[1],
    SPARSE_MLP[2],
    SPARSE_MLP[3],
    only(
        Need::SparseIf(COUNT),
        "blk.{i}.ffn_gate_shexp",
        "model.layers.{i}.mlp.shared_mlp.gate_proj",
        &[SHARED, Hidden],
    ),
    only(
        Need::SparseIf(COUNT),
        "blk.{i}.ffn_up_shexp",
        "model.layers.{i}.mlp.shared_mlp.up_proj",
        &[SHARED, Hidden],
    ),
    only(
        Need::SparseIf(COUNT),
        "blk.{i}.ffn_down_shexp",
        "model.layers.{i}.mlp.shared_mlp.down_proj",
        &[Hidden, SHARED],
    ),
    TensorRule {
        keeps_f32: true,
        ..sparse(parameter(
            "blk.{i}.exp_probs_b",
            "model.layers.{i}.mlp.expert_bias",
            (Transform::None, &[Experts], &[Experts]),
        ))
    },
];

const PREDICTING: &[TensorRule] = &[
    PREDICTION[0],
    PREDICTION[1],
    PREDICTION[2],
    TensorRule { hf: "model.layers.{i}.final_layernorm", ..PREDICTION[3] },
];

pub(super) const HY3: ModelClass = ModelClass {
    gguf: "hy_v3",
    classes: &["HYV3ForCausalLM"],
    model_type: "hy_v3",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(11_158_840.0)),
        ("num_experts", Int(192)),
        ("num_experts_per_tok", Int(8)),
        (COUNT, Int(1)),
        ("moe_intermediate_size", Int(1536)),
        ("router_scaling_factor", Float(2.826)),
        ("route_norm", Bool(true)),
        (DENSE, Int(1)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
        ("route_norm", Bool(true)),
        ("moe_router_use_sigmoid", Bool(true)),
        ("qk_norm", Bool(true)),
    ],
    own_fields: &[("num_local_experts", "num_experts")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, DENSE_MLP, EXPERTS, PREDICTING],
    settings: &[PREDICTION_SETTINGS, &[
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        setting(Kind::Product, "expert_shared_feed_forward_length", &[COUNT, "moe_intermediate_size"]),
        setting(Kind::Flag, "expert_weights_norm", &["route_norm"]),
        number("expert_weights_scale", &["router_scaling_factor"]),
        setting(Kind::Fixed(2), "expert_gating_func", &[]),
    ]],
    traits: Traits {
        prediction: Prediction::Kept,
        completes: &[counted],
        from_tensors: &[of_tensors],
        restores: &[named],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};
