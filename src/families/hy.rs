//! Hunyuan 3, with norms of queries and keys, and Hunyuan 4, with latent keys and values, a choice of the
//! tokens that are seen, and several copies of the state. Both have experts behind dense layers.
//!
//! Source: `HYV3Model` in `conversion/hunyuan.py` and `HYV4Model` in `conversion/hy_v4.py` of llama.cpp;
//! defaults of transformers 5.24.

use super::deepseek::{
    ATTENTION, DENSE_LAYERS, EXPERTS as EXPERT_SETTINGS, LATENT_SIZES, ONE_KEY_HEAD, YARN,
};
use super::dense_first::{DENSE, counted, named, of_tensors};
use super::glm::{PREDICTION, PREDICTION_SETTINGS};
use super::sparse::{INDEXER, INDEXER_KINDS, INDEXER_SETTINGS, KINDS};
use super::{
    DENSE_MLP, ENDS, F32_CHOICE_BIAS, HEAD_NORMS, NORMS, QUERIES, SPARSE_MLP, VALUES, sparse,
};
use crate::families::engine::fields::array;
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;

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
    settings: &[
        PREDICTION_SETTINGS,
        &[
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
            setting(
                Kind::Product,
                "expert_shared_feed_forward_length",
                &[COUNT, "moe_intermediate_size"],
            ),
            setting(Kind::Flag, "expert_weights_norm", &["route_norm"]),
            number("expert_weights_scale", &["router_scaling_factor"]),
            setting(Kind::Fixed(2), "expert_gating_func", &[]),
        ],
    ],
    traits: Traits {
        prediction: Prediction::Kept,
        completes: &[counted],
        from_tensors: &[of_tensors],
        restores: &[named],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

const COPIES: Dim = Field("hc_mult");
const STATE: Dim = Product(&[COPIES, Hidden]);

/// A parameter of the connections of copies of the state, which transformers has in F32.
pub(super) const fn connection(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorRule {
    TensorRule { keeps_f32: true, ..parameter(gguf, hf, (Transform::None, shape, shape)) }
}

const TWICE: Dim = Sum(&[COPIES, COPIES]);
const TWO: Dim = Sum(&[One, One]);

const CONNECTIONS: &[TensorRule] = &[
    connection("output_hc_fn.weight", "model.hc_head.hc_head_fn", &[COPIES, STATE]),
    connection("output_hc_base.weight", "model.hc_head.hc_head_base", &[COPIES]),
    connection("output_hc_scale.weight", "model.hc_head.hc_head_scale", &[One]),
    connection(
        "blk.{i}.hc_attn_fn.weight",
        "model.layers.{i}.hc_attn_layer.hc_pre.hc_fn",
        &[TWICE, STATE],
    ),
    connection(
        "blk.{i}.hc_attn_base.weight",
        "model.layers.{i}.hc_attn_layer.hc_pre.hc_base",
        &[TWICE],
    ),
    connection(
        "blk.{i}.hc_attn_scale.weight",
        "model.layers.{i}.hc_attn_layer.hc_pre.hc_scale",
        &[TWO],
    ),
    connection(
        "blk.{i}.hc_ffn_fn.weight",
        "model.layers.{i}.hc_mlp_layer.hc_pre.hc_fn",
        &[TWICE, STATE],
    ),
    connection(
        "blk.{i}.hc_ffn_base.weight",
        "model.layers.{i}.hc_mlp_layer.hc_pre.hc_base",
        &[TWICE],
    ),
    connection(
        "blk.{i}.hc_ffn_scale.weight",
        "model.layers.{i}.hc_mlp_layer.hc_pre.hc_scale",
        &[TWO],
    ),
];

const GATE: &[TensorRule] = &[
    same(
        "blk.{i}.attn_gate",
        "model.layers.{i}.self_attn.linear_gate",
        &[Product(&[Heads, Field("v_head_dim")]), Hidden],
    ),
    connection(
        "blk.{i}.attn_sinks.weight",
        "model.layers.{i}.self_attn.learnable_sink_param",
        &[Heads],
    ),
];

/// The indexer, of which transformers has norm and weights in F32.
const F32_INDEXER: &[TensorRule] = &[
    INDEXER[0],
    INDEXER[1],
    TensorRule { keeps_f32: true, ..INDEXER[2] },
    TensorRule { keeps_f32: true, ..INDEXER[3] },
];

/// One of the two projections that a matrix of each expert has.
const fn half(part: usize, gguf: &'static str) -> TensorRule {
    const FUSED: &[Dim] = &[Experts, Sum(&[ExpertInner, ExpertInner]), Hidden];
    let part = Transform::Parts(Parts::one(Turn::Equal(2), part));
    let shapes = (part, FUSED, &[Experts, ExpertInner, Hidden] as &[Dim]);
    sparse(parameter(gguf, "model.layers.{i}.mlp.experts.gate_up_proj", shapes))
}

const DOWN: &[Dim] = &[Experts, Hidden, ExpertInner];

const FUSED_EXPERTS: &[TensorRule] = &[
    SPARSE_MLP[0],
    half(0, "blk.{i}.ffn_gate_exps.weight"),
    half(1, "blk.{i}.ffn_up_exps.weight"),
    sparse(parameter(
        "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.mlp.experts.down_proj",
        (Transform::None, DOWN, DOWN),
    )),
    SPARSE_MLP[4],
    SPARSE_MLP[5],
    SPARSE_MLP[6],
    F32_CHOICE_BIAS[0],
];

pub(super) const HY4: ModelClass = ModelClass {
    gguf: "hy_v4",
    classes: &["HYV4ForCausalLM"],
    model_type: "hy_v4",
    defaults: &[
        ("max_position_embeddings", Int(262_144)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("n_routed_experts", Int(256)),
        ("num_experts_per_tok", Int(8)),
        ("n_shared_experts", Int(1)),
        ("moe_intermediate_size", Int(768)),
        ("routed_scaling_factor", Float(2.827)),
        ("norm_topk_prob", Bool(true)),
        ("q_lora_rank", Int(1536)),
        ("kv_lora_rank", Int(512)),
        ("qk_nope_head_dim", Int(192)),
        ("qk_rope_head_dim", Int(64)),
        ("v_head_dim", Int(256)),
        ("index_n_heads", Int(16)),
        ("index_head_dim", Int(128)),
        ("index_topk", Int(2048)),
        ("hc_mult", Int(4)),
        ("hc_magnitude", Float(2.0)),
        ("hc_eps", Float(1e-6)),
        (LIMIT, Float(10.0)),
        (DENSE, Int(1)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("scoring_func", Absent),
    ],
    own_fields: &[("num_local_experts", "n_routed_experts")],
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    biases: &[("", &["blk.{i}.indexer.k_norm"])],
    tensors: &[ENDS, NORMS, ATTENTION, GATE, F32_INDEXER, DENSE_MLP, FUSED_EXPERTS, CONNECTIONS],
    settings: &[
        ONE_KEY_HEAD,
        DENSE_LAYERS,
        LATENT_SIZES,
        EXPERT_SETTINGS,
        YARN,
        INDEXER_SETTINGS,
        &[
            setting(Kind::Own(&INDEXER_KINDS), "attention.indexer.types", &[KINDS]),
            setting(Kind::Omitted, "expert_group_count", &[]),
            setting(Kind::Omitted, "expert_group_used_count", &[]),
            setting(Kind::Fixed(2), "expert_gating_func", &[]),
            setting(Kind::Own(&CLAMP), "swiglu_clamp_exp", &[LIMIT]),
            setting(Kind::Required, "hyper_connection.count", &["hc_mult"]),
            number("hyper_connection.epsilon", &["hc_eps"]),
            number("hyper_connection.magnitude", &["hc_magnitude"]),
        ],
    ],
    traits: Traits {
        needs_output: true,
        rope: RopeTraits { scalings: &[OwnScaling::LostBounds], ..RopeTraits::PLAIN },
        left_out: &["model.mtp_layers."],
        kind_names: &[("indexed_attention", "full_attention")],
        completes: &[counted],
        restores: &[named],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

/// Field of the bound of what experts multiply.
const LIMIT: &str = "swiglu_limit";

/// FLOAT32\[\]: the bound of each layer, which is the same for all; none if there is no bound.
pub(super) const CLAMP: OwnSetting = own(
    |setting, model| {
        let limit = model
            .fields
            .number(setting.fields)?
            .filter(|limit| *limit > 0.0);
        let all = |limit: f64| vec![limit as f32; model.dims.layers];
        Ok(limit.map(|limit| array(GgufMetadataArray::F32(all(limit)))))
    },
    |stated, config| {
        let Some(GgufMetadataArray::F32(all)) = stated.value.as_array() else {
            return Err(stated.other_type());
        };
        let first = all.first().copied().unwrap_or_default();
        config.require_fixed(stated.key, all.iter().all(|x| *x == first), &"one bound")?;
        Ok(Some(first.into()))
    },
);
