//! GLM 5.3: linear attention in most layers, latent keys without positions and an indexer of pooled
//! keys in the others, copies of the state, experts behind the dense layers.
//!
//! Source: `Glm5NextModel` in `conversion/glm.py` of llama.cpp; defaults of transformers 5.24.

use serde_json::{Map, Value, json};

use super::deepseek::{ATTENTION as LATENT, QUERY_RANK};
use super::dense_first::{DENSE, SPARSE_KINDS, in_front, named};
use super::glm::MOE_TOKENIZER;
use super::hy::{CLAMP, connection};
use super::kimi::{DELTA_ATTENTION, LATENT_HEADS};
use super::sparse::{INDEXER, INDEXER_KINDS, INDEXER_SETTINGS, KINDS, chosen};
use super::{DENSE_MLP, ENDS, F32_CHOICE_BIAS, NORMS, SPARSE_MLP};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{FULL_ATTENTION, Fields, LAYER_KINDS, LAYERS, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::{Model, TensorShapes};
use crate::model::gguf::GgufMetadataValue;

const LINEAR: &str = "linear_attention";
const FULL: Need = Need::Kind(FULL_ATTENTION);
const HEAD: &str = "linear_head_dim";
const HEADS: &str = "linear_num_heads";
const FILTER: &str = "linear_conv_kernel_dim";
const BOUND: &str = "linear_lower_bound";

const DECAYS: TensorRule =
    TensorRule { shape: &[Heads], gguf_shape: Some(&[Heads]), ..DELTA_ATTENTION[13] };

/// Where no part of a head rotates, heads are as long as what does not.
const NOPE: Dim = Field("qk_nope_head_dim");
const QUERIES: Dim = Product(&[Heads, NOPE]);

const fn full(at: usize) -> TensorRule {
    in_layers(FULL, LATENT[at])
}

const LATENT_ATTENTION: &[TensorRule] = &[
    TensorRule { need: FULL, ..LATENT[1] },
    TensorRule { need: FULL, ..LATENT[2] },
    TensorRule { need: FULL, shape: &[QUERIES, QUERY_RANK], ..LATENT[3] },
    TensorRule { shape: &[Field("kv_lora_rank"), Hidden], ..full(4) },
    full(5),
    full(6),
    full(7),
    full(8),
];

/// Kinds of layers by whether they have an indexer.
const INDEXING: &str = "indexing_kinds";
const CHOOSING: Need = Need::KindIn(INDEXING, "full");
const INDEX_HEAD: Dim = Field("index_head_dim");
const POOLED: &[Dim] = &[Field("index_kpool"), INDEX_HEAD];
const GATE: &[Dim] = &[INDEX_HEAD, Hidden];

/// A parameter of the pools of the indexer.
const fn pool(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    in_layers(CHOOSING, connection(gguf, hf, shape))
}

const POOLED_INDEXER: &[TensorRule] = &[
    in_layers(CHOOSING, INDEXER[0]),
    in_layers(CHOOSING, INDEXER[1]),
    in_layers(CHOOSING, INDEXER[2]),
    in_layers(CHOOSING, INDEXER[3]),
    pool(
        "blk.{i}.indexer_compressor_gate.weight",
        "model.layers.{i}.self_attn.indexer.index_kpool_compress_gate",
        GATE,
    ),
    pool(
        "blk.{i}.indexer_compressor_ape.weight",
        "model.layers.{i}.self_attn.indexer.index_kpool_compress_ape",
        POOLED,
    ),
];

const COPIES: Dim = Field("hc_mult");
const STATE: Dim = Product(&[COPIES, Hidden]);
/// What goes in, what comes out, and how copies are mixed.
const MIX: Dim = Product(&[Sum(&[One, One, COPIES]), COPIES]);
const THREE: Dim = Sum(&[One, One, One]);

const CONNECTIONS: &[TensorRule] = &[
    connection("blk.{i}.hc_attn_fn.weight", "model.layers.{i}.hc_attn_fn", &[MIX, STATE]),
    connection("blk.{i}.hc_attn_base.weight", "model.layers.{i}.hc_attn_base", &[MIX]),
    connection("blk.{i}.hc_attn_scale.weight", "model.layers.{i}.hc_attn_scale", &[THREE]),
    connection("blk.{i}.hc_ffn_fn.weight", "model.layers.{i}.hc_ffn_fn", &[MIX, STATE]),
    connection("blk.{i}.hc_ffn_base.weight", "model.layers.{i}.hc_ffn_base", &[MIX]),
    connection("blk.{i}.hc_ffn_scale.weight", "model.layers.{i}.hc_ffn_scale", &[THREE]),
];

const TAIL: &str = "index_kpool_always_select_tail";

pub(super) const GLM5_NEXT: ModelClass = ModelClass {
    gguf: "glm5-next",
    classes: &["Glm5NextForConditionalGeneration"],
    model_type: "glm5_next_text",
    defaults: &[
        ("max_position_embeddings", Int(1_048_576)),
        ("rms_norm_eps", Float(1e-5)),
        ("moe_intermediate_size", Int(2048)),
        ("n_routed_experts", Int(288)),
        ("num_experts_per_tok", Int(8)),
        ("n_shared_experts", Int(1)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("scoring_func", Text("sigmoid")),
        ("norm_topk_prob", Bool(true)),
        ("routed_scaling_factor", Float(2.5)),
        ("q_lora_rank", Int(1536)),
        ("kv_lora_rank", Int(512)),
        ("qk_nope_head_dim", Int(256)),
        ("v_head_dim", Int(256)),
        ("index_n_heads", Int(32)),
        ("index_head_dim", Int(128)),
        ("index_topk", Int(2048)),
        ("index_kpool", Int(16)),
        (TAIL, Bool(true)),
        ("hc_mult", Int(4)),
        ("hc_eps", Float(1e-6)),
        ("hc_sinkhorn_iters", Int(20)),
        ("swiglu_limit", Float(10.0)),
        (HEAD, Int(128)),
        (FILTER, Int(4)),
        (BOUND, Float(-5.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("scoring_func", Text("sigmoid")),
        ("mla_use_nope", Bool(true)),
        ("mhc", Bool(true)),
        // llama.cpp has no other number of copies.
        ("hc_mult", Int(4)),
    ],
    own_fields: &[("num_local_experts", "n_routed_experts")],
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    biases: &[("", &["blk.{i}.indexer.k_norm"])],
    tensors: &[
        ENDS,
        NORMS,
        DELTA_ATTENTION_BUT_DECAYS,
        LATENT_ATTENTION,
        POOLED_INDEXER,
        DENSE_MLP,
        SPARSE_MLP,
        F32_CHOICE_BIAS,
        CONNECTIONS,
    ],
    settings: &[
        INDEXER_SETTINGS,
        &[
            setting(Kind::Own(&LATENT_HEADS), "attention.head_count_kv", &[LAYER_KINDS]),
            count("vocab_size", &["vocab_size"]),
            setting(Kind::Own(&EPSILON), "attention.layer_norm_epsilon", &[]),
            setting(Kind::Required, "ssm.conv_kernel", &[FILTER]),
            setting(Kind::Required, "kda.head_dim", &[HEAD]),
            number("kda.gate_lower_bound", &[BOUND]),
            setting(Kind::Required, "attention.q_lora_rank", &["q_lora_rank"]),
            setting(Kind::Required, "attention.kv_lora_rank", &["kv_lora_rank"]),
            setting(Kind::Fixed(0), "rope.dimension_count", &[]),
            setting(Kind::Required, "attention.key_length", &["kv_lora_rank"]),
            setting(Kind::Required, "attention.value_length", &["kv_lora_rank"]),
            setting(Kind::Required, "attention.key_length_mla", &["qk_nope_head_dim"]),
            setting(Kind::Required, "attention.value_length_mla", &["v_head_dim"]),
            setting(Kind::Required, "attention.indexer.kpool", &["index_kpool"]),
            setting(Kind::Flag, "attention.indexer.kpool_select_tail", &[TAIL]),
            setting(Kind::Own(&INDEXER_KINDS), "attention.indexer.types", &[KINDS]),
            setting(Kind::Required, "hyper_connection.count", &["hc_mult"]),
            setting(Kind::Required, "hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"]),
            number("hyper_connection.epsilon", &["hc_eps"]),
            setting(Kind::Required, "leading_dense_block_count", &[DENSE]),
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
            setting(Kind::Required, "expert_shared_count", &["n_shared_experts"]),
            number("expert_weights_scale", &["routed_scaling_factor"]),
            setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
            setting(Kind::Omitted, "expert_gating_func", &[]),
            setting(Kind::Own(&CLAMP), "swiglu_clamp_exp", &["swiglu_limit"]),
            setting(Kind::Own(&CLAMP), "swiglu_clamp_shexp", &["swiglu_limit"]),
        ],
    ],
    traits: Traits {
        has_expert_groups: true,
        needs_output: true,
        rope: RopeTraits::FIXED,
        kind_names: &[("indexed_attention", FULL_ATTENTION)],
        prediction: Prediction::LeftOut,
        laws: &[pools],
        completes: &[complete],
        from_tensors: &[indexing],
        restores: &[restore],
        ..Traits::PLAIN
    },
    tokenizer: &MOE_TOKENIZER,
    ..ModelClass::PLAIN
};

const DELTA_ATTENTION_BUT_DECAYS: &[TensorRule] = &[
    DELTA_ATTENTION[0],
    DELTA_ATTENTION[1],
    DELTA_ATTENTION[2],
    DELTA_ATTENTION[3],
    DELTA_ATTENTION[4],
    DELTA_ATTENTION[5],
    DELTA_ATTENTION[6],
    DELTA_ATTENTION[7],
    DELTA_ATTENTION[8],
    DELTA_ATTENTION[9],
    DELTA_ATTENTION[10],
    DELTA_ATTENTION[11],
    DELTA_ATTENTION[12],
    DECAYS,
    DELTA_ATTENTION[14],
];

/// Moves fields out of the object of linear attention, and lists kinds.
fn complete(fields: &mut Fields) -> Result<()> {
    if let Some(Value::Object(linear)) = fields.0.remove("linear_attn_config") {
        let own = [
            ("head_dim", HEAD),
            ("num_heads", HEADS),
            ("short_conv_kernel_size", FILTER),
            ("gate_lower_bound", BOUND),
        ];
        for (name, own) in own {
            let value = linear.get(name).cloned();
            fields.0.extend(value.map(|value| (own.to_owned(), value)));
        }
    }
    for name in ["qk_rope_head_dim", "head_dim"] {
        if fields.0.remove(name).is_some_and(|found| found != 0) {
            return Err(wrong(name, "it is not 0: llama.cpp's glm5-next has no positions"));
        }
    }
    // What only sizes of heads that nothing has would need.
    let head = fields.need(&["qk_nope_head_dim"])?;
    fields.0.insert("head_dim".to_owned(), head.into());
    let heads = fields.need(&["num_attention_heads"])?;
    if fields.count(&[HEADS])?.is_some_and(|found| found != heads) {
        return Err(wrong(HEADS, format!("it is not num_attention_heads, {heads}")));
    }
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS);
    let kind = |layer: u32| {
        if layer % 4 == 3 {
            FULL_ATTENTION
        } else {
            LINEAR
        }
    };
    fields
        .0
        .entry(LAYER_KINDS)
        .or_insert_with(|| (0..layers).map(kind).collect());
    chosen(fields)?;
    let dense = match fields.0.remove(SPARSE_KINDS) {
        Some(Value::Array(kinds)) => in_front(&kinds)?,
        _ => fields.count(&[DENSE])?.unwrap_or(3).min(layers) as usize,
    };
    fields.0.insert(DENSE.to_owned(), dense.into());
    list_indexing(&mut fields.0);
    Ok(())
}

/// Lists which layers have an indexer: those without linear attention that choose.
fn list_indexing(config: &mut Map<String, Value>) {
    let chosen = config.get(KINDS).and_then(Value::as_array).cloned();
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let kinds = kinds.into_iter().flatten().enumerate();
    let of = |(layer, kind): (usize, &Value)| match chosen.as_ref().and_then(|all| all.get(layer)) {
        _ if *kind == LINEAR => Value::from(LINEAR),
        Some(chosen) => chosen.clone(),
        None => "full".into(),
    };
    let all: Value = kinds.map(of).collect();
    config.insert(INDEXING.to_owned(), all);
}

fn indexing(config: &mut Map<String, Value>, _: &TensorShapes<'_>) -> Result<()> {
    let head = config.get("qk_nope_head_dim").cloned();
    config.extend(head.map(|head| ("head_dim".to_owned(), head)));
    list_indexing(config);
    Ok(())
}

/// llama.cpp chooses whole pools.
fn pools(model: &Model<'_>) -> Result<Option<String>> {
    const FIELD: &str = "index_kpool";
    let (pool, chosen) = (model.fields.need(&[FIELD])?, model.fields.need(&["index_topk"])?);
    match pool > 1 && chosen.is_multiple_of(pool) {
        true => Ok(None),
        false => {
            Err(wrong(FIELD, format!("index_topk, {chosen}, is no multiple of {pool} above 1")))
        }
    }
}

fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    config.remove(INDEXING);
    let dense = config.get(DENSE).and_then(Value::as_u64).unwrap_or(0);
    named(config, dims)?;
    config.insert(DENSE.to_owned(), dense.into());
    let linear = json!({
        "head_dim": config.get(HEAD),
        "num_heads": dims.heads,
        "short_conv_kernel_size": config.get(FILTER),
        "gate_lower_bound": config.get(BOUND),
    });
    config.insert("linear_attn_config".to_owned(), linear);
    for name in ["qk_rope_head_dim", "head_dim"] {
        config.insert(name.to_owned(), 0.into());
    }
    Ok(())
}

/// FLOAT32 that is the same in all models: that of the indexer's norm.
const EPSILON: OwnSetting = own(
    |_, _| Ok(Some(GgufMetadataValue::F32(1e-6))),
    |stated, config| {
        let is_same = *stated.value == GgufMetadataValue::F32(1e-6);
        config.require_fixed(stated.key, is_same, &1e-6)?;
        Ok(None)
    },
);
