//! DeepSeek 3.2 and GLM 5: the attention of DeepSeek 3, of which an indexer in each layer chooses
//! the tokens that are seen.
//!
//! Source: `conversion/deepseek.py`, class `DeepseekV32Model`, and `conversion/glm.py`, class
//! `GlmMoeDsaModel`, of llama.cpp; defaults of transformers 5.24.

use serde_json::Value;

use super::deepseek::{
    ATTENTION, DEEPSEEK3, DEEPSEEK3_MLX, DENSE_LAYERS, EXPERTS, LATENT_FIELDS, LATENT_SIZES,
    ONE_KEY_HEAD, QUERY_RANK, YARN,
};
use super::glm::{MOE_TOKENIZER, PREDICTION, PREDICTION_ENDS, PREDICTION_SETTINGS};
use super::{DENSE_MLP, ENDS, F32_CHOICE_BIAS, NORMS, SPARSE_MLP};
use crate::Result;
use crate::families::engine::dims::MOST_LAYERS;
use crate::families::engine::fields::{Fields, LAYERS, array};
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;

const HEADS: Dim = Field("index_n_heads");
const HEAD: Dim = Field("index_head_dim");

/// The list of layers that choose tokens; the others share the choice of the one before.
pub(super) const KINDS: &str = "indexer_types";
const CHOOSING: Need = Need::KindIn(KINDS, ALL_KEYS);

pub(super) const INDEXER: &[TensorRule] = &[
    only(
        CHOOSING,
        "blk.{i}.indexer.attn_q_b",
        "model.layers.{i}.self_attn.indexer.wq_b",
        &[Product(&[HEADS, HEAD]), QUERY_RANK],
    ),
    only(
        CHOOSING,
        "blk.{i}.indexer.attn_k",
        "model.layers.{i}.self_attn.indexer.wk",
        &[HEAD, Hidden],
    ),
    only(CHOOSING, "blk.{i}.indexer.k_norm", "model.layers.{i}.self_attn.indexer.k_norm", &[HEAD]),
    only(
        CHOOSING,
        "blk.{i}.indexer.proj",
        "model.layers.{i}.self_attn.indexer.weights_proj",
        &[HEADS, Hidden],
    ),
];

pub(super) const INDEXER_SETTINGS: &[Setting] = &[
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
        also_implied: &[(KINDS, Absent)],
        kind_names: &[("indexed_attention", "full_attention")],
        ..DEEPSEEK3.traits
    },
    mlx: Some(&DEEPSEEK3_2_MLX),
    ..DEEPSEEK3
};

const DEEPSEEK3_2_MLX: MlxClass =
    MlxClass { stated_fields: &[LATENT_FIELDS, INDEXER_FIELDS], ..DEEPSEEK3_MLX };

const INDEXER_FIELDS: &[&str] = &["index_n_heads", "index_head_dim", "index_topk"];

/// GLM 5, and GLM 5.2, of which some layers share the choice of the one before.
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
        &[setting(Kind::Own(&INDEXER_KINDS), "attention.indexer.types", &[KINDS])],
    ],
    traits: Traits { also_implied: &[], completes: &[chosen], ..DEEPSEEK3_2.traits },
    tokenizer: &MOE_TOKENIZER,
    mlx: Some(&GLM5_MLX),
    ..DEEPSEEK3_2
};

const GLM5_MLX: MlxClass = MlxClass {
    // All layers have an indexer.
    alike: &[KINDS],
    stated_fields: &[
        LATENT_FIELDS,
        INDEXER_FIELDS,
        &["attention_bias", "scoring_func", "topk_method", "moe_layer_freq"],
    ],
    rope: RopeFields::NestedAlone,
    ..DEEPSEEK3_2_MLX
};

/// Lists the layers that choose, of a config that says how often they do.
///
/// Source: `GlmMoeDsaConfig` of transformers 5.24.
pub(super) fn chosen(fields: &mut Fields) -> Result<()> {
    let [frequency, pattern] = ["index_topk_freq", "index_topk_pattern"];
    if fields.0.contains_key(KINDS) {
        return Ok(());
    }
    if let Some(pattern) = fields.0.get(pattern) {
        let kind = |letter| if letter == 'F' { ALL_KEYS } else { SHARED };
        let kinds = pattern
            .as_str()
            .map(|letters| letters.chars().map(kind).collect());
        let kinds = kinds.unwrap_or_else(|| pattern.clone());
        fields.0.insert(KINDS.to_owned(), kinds);
        return Ok(());
    }
    let every = fields.count(&[frequency])?.unwrap_or(1).max(1);
    let first = fields.count(&["index_skip_topk_offset"])?.unwrap_or(2);
    if every > 1 {
        let layers = fields.need(LAYERS)?.min(MOST_LAYERS);
        let chooses = |layer: u32| (layer + 1).saturating_sub(first).is_multiple_of(every);
        let kinds = (0..layers).map(|layer| if chooses(layer) { ALL_KEYS } else { SHARED });
        fields.0.insert(KINDS.to_owned(), kinds.collect());
    }
    Ok(())
}

/// BOOL\[\]: which layers choose. Without the field, all do.
pub(super) const INDEXER_KINDS: OwnSetting = own(
    |setting, model| {
        let layers = model.dims.layers;
        let Some((_, list)) = model.fields.get(setting.fields) else {
            return Ok(Some(array(GgufMetadataArray::Bool(vec![true; layers]))));
        };
        let list = list.as_array().filter(|list| list.len() == layers);
        let chooses = |kind: &Value| match kind.as_str() {
            Some(ALL_KEYS) => Some(true),
            Some(SHARED) => Some(false),
            _ => None,
        };
        let all = list.and_then(|list| list.iter().map(chooses).collect::<Option<Vec<_>>>());
        let all = all.filter(|all| all.first() == Some(&true));
        let what = || {
            setting.wrong(format_args!(
                "it is no list of `{ALL_KEYS}` and then `{ALL_KEYS}` or `{SHARED}` for each layer"
            ))
        };
        Ok(Some(array(GgufMetadataArray::Bool(all.ok_or_else(what)?))))
    },
    |stated, config| {
        let Some(GgufMetadataArray::Bool(layers)) = stated.value.as_array() else {
            return Err(stated.other_type());
        };
        config.require_fixed(stated.key, layers.first() == Some(&true), &true)?;
        let name = |is_full: &bool| if *is_full { ALL_KEYS } else { SHARED };
        Ok(Some(layers.iter().map(name).collect()))
    },
);

/// What the config calls a layer with an indexer of its own, and one without.
const ALL_KEYS: &str = "full";
const SHARED: &str = "shared";
