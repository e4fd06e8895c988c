//! DeepSeek 3.2 and GLM 5: the attention of DeepSeek 3, of which an indexer in each layer chooses
//! the tokens that are seen.
//!
//! Source: `conversion/deepseek.py`, class `DeepseekV32Model`, and `conversion/glm.py`, class
//! `GlmMoeDsaModel`, of llama.cpp; defaults of transformers 5.24.

use serde_json::Value;

use super::deepseek::{
    ATTENTION, DEEPSEEK3, DENSE_LAYERS, EXPERTS, LATENT_SIZES, ONE_KEY_HEAD, QUERY_RANK, YARN,
};
use super::glm::{PREDICTION, PREDICTION_ENDS, PREDICTION_SETTINGS};
use super::{DENSE_MLP, ENDS, F32_CHOICE_BIAS, NORMS, SPARSE_MLP};
use crate::families::engine::fields::array;
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;

const HEADS: Dim = Field("index_n_heads");
const HEAD: Dim = Field("index_head_dim");

const INDEXER: &[TensorRule] = &[
    same(
        "blk.{i}.indexer.attn_q_b",
        "model.layers.{i}.self_attn.indexer.wq_b",
        &[Product(&[HEADS, HEAD]), QUERY_RANK],
    ),
    same("blk.{i}.indexer.attn_k", "model.layers.{i}.self_attn.indexer.wk", &[HEAD, Hidden]),
    same("blk.{i}.indexer.k_norm", "model.layers.{i}.self_attn.indexer.k_norm", &[HEAD]),
    same(
        "blk.{i}.indexer.proj",
        "model.layers.{i}.self_attn.indexer.weights_proj",
        &[HEADS, Hidden],
    ),
];

const INDEXER_SETTINGS: &[Setting] = &[
    count("attention.indexer.head_count", &["index_n_heads"]),
    count("attention.indexer.key_length", &["index_head_dim"]),
    count("attention.indexer.top_k", &["index_topk"]),
];

pub(super) const DEEPSEEK3_2: ModelClass = ModelClass {
    gguf: "deepseek32",
    classes: &["DeepseekV32ForCausalLM"],
    model_type: "deepseek_v32",
    defaults: &[
        ("max_position_embeddings", Int(163_840)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(2048)),
        ("n_routed_experts", Int(256)),
        ("num_experts_per_tok", Int(8)),
        ("n_group", Int(8)),
        ("topk_group", Int(4)),
        ("scoring_func", Text("sigmoid")),
        ("first_k_dense_replace", Int(3)),
        ("norm_topk_prob", Bool(true)),
        ("routed_scaling_factor", Float(2.5)),
        ("q_lora_rank", Int(1536)),
        ("qk_rope_head_dim", Int(64)),
        ("qk_nope_head_dim", Int(128)),
        ("v_head_dim", Int(128)),
        ("kv_lora_rank", Int(512)),
        ("n_shared_experts", Int(1)),
        ("index_n_heads", Int(64)),
        ("index_head_dim", Int(128)),
        ("index_topk", Int(2048)),
    ],
    biases: &[("", &["blk.{i}.indexer.k_norm"])],
    tensors: &[
        ENDS,
        NORMS,
        ATTENTION,
        INDEXER,
        DENSE_MLP,
        SPARSE_MLP,
        F32_CHOICE_BIAS,
        PREDICTION,
        PREDICTION_ENDS,
    ],
    settings: &[
        ONE_KEY_HEAD,
        DENSE_LAYERS,
        LATENT_SIZES,
        EXPERTS,
        YARN,
        PREDICTION_SETTINGS,
        INDEXER_SETTINGS,
    ],
    traits: Traits {
        prediction: Prediction::Kept,
        sign: Sign::Rest,
        // All layers have an indexer.
        kind_names: &[("indexed_attention", "full_attention")],
        ..DEEPSEEK3.traits
    },
    mlx: None,
    ..DEEPSEEK3
};

/// GLM 5 and 5.1. Some layers of GLM 5.2 share the choice of the one before.
pub(super) const GLM5: ModelClass = ModelClass {
    gguf: "glm-dsa",
    classes: &["GlmMoeDsaForCausalLM"],
    model_type: "glm_moe_dsa",
    defaults: &[
        ("max_position_embeddings", Int(202_752)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(2048)),
        ("n_routed_experts", Int(256)),
        ("num_experts_per_tok", Int(8)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("scoring_func", Text("sigmoid")),
        ("first_k_dense_replace", Int(3)),
        ("norm_topk_prob", Bool(true)),
        ("routed_scaling_factor", Float(2.5)),
        ("q_lora_rank", Int(2048)),
        ("qk_rope_head_dim", Int(64)),
        ("qk_nope_head_dim", Int(192)),
        ("v_head_dim", Int(256)),
        ("kv_lora_rank", Int(512)),
        ("n_shared_experts", Int(1)),
        ("index_n_heads", Int(32)),
        ("index_head_dim", Int(128)),
        ("index_topk", Int(2048)),
    ],
    settings: &[
        ONE_KEY_HEAD,
        DENSE_LAYERS,
        LATENT_SIZES,
        EXPERTS,
        YARN,
        PREDICTION_SETTINGS,
        INDEXER_SETTINGS,
        &[setting(Kind::Own(&INDEXER_KINDS), "attention.indexer.types", &["indexer_types"])],
    ],
    traits: Traits {
        also_implied: &[("index_topk_freq", Int(1)), ("index_topk_pattern", Absent)],
        ..DEEPSEEK3_2.traits
    },
    ..DEEPSEEK3_2
};

/// BOOL\[\] that is true for every layer. The field, if there is one, must say so.
const INDEXER_KINDS: OwnSetting = own(
    |setting, model| {
        let layers = model.dims.layers;
        let other = model.fields.get(setting.fields);
        if other.is_some_and(|(_, list)| *list != Value::from(vec![ALL_KEYS; layers])) {
            return Err(setting.wrong(format_args!("it is not `{ALL_KEYS}` for each layer")));
        }
        Ok(Some(array(GgufMetadataArray::Bool(vec![true; layers]))))
    },
    |stated, config| {
        let Some(GgufMetadataArray::Bool(layers)) = stated.value.as_array() else {
            return Err(stated.other_type());
        };
        config.require_fixed(stated.key, layers.iter().all(|is_so| *is_so), &true)?;
        Ok(Some(vec![ALL_KEYS; layers.len()].into()))
    },
);

/// What the config calls a layer with an indexer of its own.
const ALL_KEYS: &str = "full";
