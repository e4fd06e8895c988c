//! DeepSeek V4: keys of a window and of compressed tokens, copies of the state, and experts that the
//! token alone chooses in the first layers.
//!
//! Source: `DeepseekV4Model` in `conversion/deepseek.py` of llama.cpp; `DeepseekV4Config` of
//! transformers 5.24. Names are those of published models.

use serde_json::{Map, Value};

use super::hy::{CLAMP, connection};
use super::mamba::vector;
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{Fields, LAYER_KINDS, LAYERS, array, wrong, wrong_key};
use crate::families::engine::rope::{PARAMETERS, SCALING};
use crate::families::engine::rows::*;
use crate::families::engine::table::TensorShapes;
use crate::model::gguf::GgufMetadataArray;

/// What layers are, with how many tokens become one there.
const KINDS: &[(&str, u64)] = &[("sliding_attention", 0), (SPARSE, 4), (HEAVY, 128)];
const SPARSE: &str = "compressed_sparse_attention";
const HEAVY: &str = "heavily_compressed_attention";
/// How experts are chosen in each layer.
pub(super) const CHOICE: &str = "mlp_layer_types";
const HASHED: &str = "hash_moe";
const ROUTED: &str = "moe";
/// Fields of published configs.
pub(super) const RATIOS: &str = "compress_ratios";
pub(super) const HASH_LAYERS: &str = "num_hash_layers";
const ROTATING: &str = "qk_rope_head_dim";
/// Tokens that become one in heavily compressed layers. No config has this field.
const MANY: &str = "tokens of heavy compression";

const RANK: Dim = Field("q_lora_rank");
const OUT_RANK: Dim = Product(&[Field("o_groups"), Field("o_lora_rank")]);
const COPIES: Dim = Field("hc_mult");
const STATE: Dim = Product(&[COPIES, Hidden]);
const MIX: Dim = Product(&[Sum(&[One, One, COPIES]), COPIES]);
const THREE: Dim = Sum(&[One, One, One]);
const FOUR: Dim = Sum(&[One, One, One, One]);
const SHARED: Dim = Product(&[Field("n_shared_experts"), ExpertInner]);
const INDEX: Dim = Field("index_head_dim");

pub(super) const ROOT: &[TensorRule] = &[
    same("token_embd", "embed", &[Vocab, Hidden]),
    same("output_norm", "norm", &[Hidden]),
    same("output", "head", &[Vocab, Hidden]),
    connection("output_hc_fn.weight", "hc_head_fn", &[COPIES, STATE]),
    connection("output_hc_base.weight", "hc_head_base", &[COPIES]),
    connection("output_hc_scale.weight", "hc_head_scale", &[One]),
];

/// Names of transformers 5.
const OTHER_NAMES: &[TensorRule] = &[
    TensorRule { hf: "embed_tokens", ..ROOT[0] },
    TensorRule { hf: "lm_head", ..ROOT[2] },
    TensorRule { hf: "hc_head.hc_fn", ..ROOT[3] },
    TensorRule { hf: "hc_head.hc_base", ..ROOT[4] },
    TensorRule { hf: "hc_head.hc_scale", ..ROOT[5] },
    TensorRule { hf: "layers.{i}.attn.norm", ..ATTENTION[5] },
];

pub(super) const CONNECTIONS: &[TensorRule] = &[
    connection("blk.{i}.hc_attn_fn.weight", "layers.{i}.hc_attn_fn", &[MIX, STATE]),
    connection("blk.{i}.hc_attn_base.weight", "layers.{i}.hc_attn_base", &[MIX]),
    connection("blk.{i}.hc_attn_scale.weight", "layers.{i}.hc_attn_scale", &[THREE]),
    connection("blk.{i}.hc_ffn_fn.weight", "layers.{i}.hc_ffn_fn", &[MIX, STATE]),
    connection("blk.{i}.hc_ffn_base.weight", "layers.{i}.hc_ffn_base", &[MIX]),
    connection("blk.{i}.hc_ffn_scale.weight", "layers.{i}.hc_ffn_scale", &[THREE]),
];

pub(super) const ATTENTION: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "layers.{i}.attn_norm", &[Hidden]),
    connection("blk.{i}.attn_sinks.weight", "layers.{i}.attn.attn_sink", &[Heads]),
    same("blk.{i}.attn_q_a", "layers.{i}.attn.wq_a", &[RANK, Hidden]),
    same("blk.{i}.attn_q_a_norm", "layers.{i}.attn.q_norm", &[RANK]),
    same("blk.{i}.attn_q_b", "layers.{i}.attn.wq_b", &[Queries, RANK]),
    same("blk.{i}.attn_kv_a_norm", "layers.{i}.attn.kv_norm", &[Head]),
    same("blk.{i}.attn_kv", "layers.{i}.attn.wkv", &[Head, Hidden]),
    same(
        "blk.{i}.attn_output_a",
        "layers.{i}.attn.wo_a",
        &[OUT_RANK, Quotient(&[Queries, Field("o_groups")])],
    ),
    same("blk.{i}.attn_output_b", "layers.{i}.attn.wo_b", &[Hidden, OUT_RANK]),
];

/// What makes one token of several: of a kind of layers, by its beginnings of names, with the tokens,
/// the width and the length of the norm.
macro_rules! compressor {
    ($kind:expr, $gguf:literal, $hf:literal, $tokens:expr, $width:expr, $norm:expr) => {
        &[
            in_layers(
                Need::Kind($kind),
                connection(
                    concat!("blk.{i}.", $gguf, "_compressor_ape.weight"),
                    concat!("layers.{i}.", $hf, "compressor.ape"),
                    &[$tokens, $width],
                ),
            ),
            TensorRule {
                keeps_f32: true,
                ..only(
                    Need::Kind($kind),
                    concat!("blk.{i}.", $gguf, "_compressor_kv"),
                    concat!("layers.{i}.", $hf, "compressor.wkv"),
                    &[$width, Hidden],
                )
            },
            TensorRule {
                keeps_f32: true,
                ..only(
                    Need::Kind($kind),
                    concat!("blk.{i}.", $gguf, "_compressor_gate"),
                    concat!("layers.{i}.", $hf, "compressor.wgate"),
                    &[$width, Hidden],
                )
            },
            only(
                Need::Kind($kind),
                concat!("blk.{i}.", $gguf, "_compressor_norm"),
                concat!("layers.{i}.", $hf, "compressor.norm"),
                &[$norm],
            ),
        ]
    };
}

const SPARSELY: &[TensorRule] =
    compressor!(SPARSE, "attn", "attn.", FOUR, Sum(&[Head, Head]), Head);
const HEAVILY: &[TensorRule] = compressor!(HEAVY, "attn", "attn.", Field(MANY), Head, Head);
const INDEXER: &[TensorRule] =
    compressor!(SPARSE, "indexer", "attn.indexer.", FOUR, Sum(&[INDEX, INDEX]), INDEX);

const CHOOSING: &[TensorRule] = &[
    only(
        Need::Kind(SPARSE),
        "blk.{i}.indexer.attn_q_b",
        "layers.{i}.attn.indexer.wq_b",
        &[Product(&[Field("index_n_heads"), INDEX]), RANK],
    ),
    only(
        Need::Kind(SPARSE),
        "blk.{i}.indexer.proj",
        "layers.{i}.attn.indexer.weights_proj",
        &[Field("index_n_heads"), Hidden],
    ),
];

pub(super) const FEED_FORWARD: &[TensorRule] = &[
    same("blk.{i}.ffn_norm", "layers.{i}.ffn_norm", &[Hidden]),
    // Its name is whole because its bias is another tensor.
    vector("blk.{i}.ffn_gate_inp.weight", "layers.{i}.ffn.gate.weight", &[Experts, Hidden]),
    in_layers(
        Need::KindIn(CHOICE, ROUTED),
        vector("blk.{i}.exp_probs_b.bias", "layers.{i}.ffn.gate.bias", &[Experts]),
    ),
    in_layers(
        Need::Optional,
        vector("blk.{i}.exp_probs_b_vl.bias", "layers.{i}.ffn.gate.bias_vl", &[Experts]),
    ),
    experts("blk.{i}.ffn_gate_exps", "layers.{i}.ffn.experts.{e}.w1", &[ExpertInner, Hidden]),
    experts("blk.{i}.ffn_down_exps", "layers.{i}.ffn.experts.{e}.w2", &[Hidden, ExpertInner]),
    experts("blk.{i}.ffn_up_exps", "layers.{i}.ffn.experts.{e}.w3", &[ExpertInner, Hidden]),
    same("blk.{i}.ffn_gate_shexp", "layers.{i}.ffn.shared_experts.w1", &[SHARED, Hidden]),
    same("blk.{i}.ffn_down_shexp", "layers.{i}.ffn.shared_experts.w2", &[Hidden, SHARED]),
    same("blk.{i}.ffn_up_shexp", "layers.{i}.ffn.shared_experts.w3", &[SHARED, Hidden]),
];

pub(super) const SETTINGS: &[Setting] = &[
    setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
    setting(Kind::Required, "attention.q_lora_rank", &["q_lora_rank"]),
    setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
    setting(Kind::Required, "expert_feed_forward_length", &["moe_intermediate_size"]),
    setting(Kind::Required, "expert_shared_count", &["n_shared_experts"]),
    number("expert_weights_scale", &["routed_scaling_factor"]),
    setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
    setting(Kind::Omitted, "expert_gating_func", &[]),
    setting(Kind::Own(&CLAMP), "swiglu_clamp_exp", &["swiglu_limit"]),
    setting(Kind::Own(&CLAMP), "swiglu_clamp_shexp", &["swiglu_limit"]),
    setting(Kind::Required, "attention.indexer.head_count", &["index_n_heads"]),
    setting(Kind::Required, "attention.indexer.key_length", &["index_head_dim"]),
    setting(Kind::Required, "attention.indexer.top_k", &["index_topk"]),
    setting(Kind::Required, "attention.output_group_count", &["o_groups"]),
    setting(Kind::Required, "attention.output_lora_rank", &["o_lora_rank"]),
    setting(Kind::Own(&COMPRESSION), "attention.compress_ratios", &[LAYER_KINDS]),
    number("attention.compress_rope_freq_base", &["compress_rope_theta"]),
    setting(Kind::Required, "hyper_connection.count", &["hc_mult"]),
    setting(Kind::Required, "hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"]),
    number("hyper_connection.epsilon", &["hc_eps"]),
    setting(Kind::Own(&HASHES), "hash_layer_count", &[CHOICE]),
];

pub(super) const DEEPSEEK4: ModelClass = ModelClass {
    gguf: "deepseek4",
    classes: &["DeepseekV4ForCausalLM"],
    model_type: "deepseek_v4",
    defaults: &[
        ("max_position_embeddings", Int(1_048_576)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("compress_rope_theta", Float(160_000.0)),
        ("num_key_value_heads", Int(1)),
        ("head_dim", Int(512)),
        ("q_lora_rank", Int(1024)),
        ("o_groups", Int(8)),
        ("o_lora_rank", Int(1024)),
        ("moe_intermediate_size", Int(2048)),
        ("n_routed_experts", Int(256)),
        ("n_shared_experts", Int(1)),
        ("num_experts_per_tok", Int(6)),
        ("norm_topk_prob", Bool(true)),
        ("routed_scaling_factor", Float(1.5)),
        ("scoring_func", Text("sqrtsoftplus")),
        ("swiglu_limit", Float(10.0)),
        ("sliding_window", Int(128)),
        ("index_n_heads", Int(64)),
        ("index_head_dim", Int(128)),
        ("index_topk", Int(512)),
        ("hc_mult", Int(4)),
        ("hc_eps", Float(1e-6)),
        ("hc_sinkhorn_iters", Int(20)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
        ("scoring_func", Text("sqrtsoftplus")),
        ("num_key_value_heads", Int(1)),
    ],
    own_fields: &[("num_local_experts", "n_routed_experts")],
    tensors: &[ROOT, CONNECTIONS, ATTENTION, SPARSELY, HEAVILY, INDEXER, CHOOSING, FEED_FORWARD],
    other_tensors: OTHER_NAMES,
    settings: &[SETTINGS, &[setting(Kind::Own(&WIDTH), "embedding_length_out", &[])]],
    traits: Traits {
        head_dim: HeadDim::Stated,
        needs_output: true,
        prefix: Some("model."),
        rope: RopeTraits::partial(0.125),
        prediction: Prediction::LeftOut,
        // What sees images.
        left_out: &["aligner.", "image_", "vision."],
        also_implied: &[("topk_method", Text("noaux_tc")), ("n_group", Absent)],
        integers: &[IntegerTable {
            gguf: "blk.{i}.ffn_gate_tid2eid.weight",
            hf: "layers.{i}.ffn.gate.tid2eid",
            need: Need::KindIn(CHOICE, HASHED),
            shape: [Vocab, Field("num_experts_per_tok")],
            below: Experts,
            unread: "layers.{i}.ffn.gate.bias",
        }],
        laws: &[other_lengths],
        completes: &[complete],
        from_tensors: &[add_many],
        restores: &[restore],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

/// llama.cpp ends on a cache without layers if both kinds of heads have one length.
fn other_lengths(model: &Model<'_>) -> Result<Option<String>> {
    const FIELD: &str = "index_head_dim";
    match model.fields.count(&[FIELD])? {
        Some(length) if length as usize == model.dims.head => {
            Err(wrong(FIELD, "it is head_dim, and llama.cpp needs another one"))
        }
        _ => Ok(None),
    }
}

/// Lists what layers are, and brings rope to where other classes have it.
pub(super) fn complete(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
    fields.0.insert(MANY.to_owned(), 128.into());
    if let Some(rates) = fields.0.remove("compress_rates") {
        let is_other = |(kind, ratio): &(&str, u64)| {
            rates
                .get(*kind)
                .is_some_and(|found| found.as_u64() != Some(*ratio))
        };
        if KINDS.iter().any(is_other) {
            return Err(wrong("compress_rates", "llama.cpp has 4 and 128"));
        }
    }
    if let Some(Value::Array(ratios)) = fields.0.remove(RATIOS)
        && !fields.0.contains_key(LAYER_KINDS)
    {
        let kinds: Option<Vec<_>> = ratios.iter().take(layers).map(kind_of).collect();
        let kinds = kinds.ok_or_else(|| wrong(RATIOS, "llama.cpp has 0, 4 and 128"))?;
        fields.0.insert(LAYER_KINDS.to_owned(), kinds.into());
    }
    let alternating = |layer| {
        if layer > 1 && layer % 2 == 1 {
            SPARSE
        } else {
            HEAVY
        }
    };
    fields
        .0
        .entry(LAYER_KINDS)
        .or_insert_with(|| (0..layers).map(alternating).collect());
    let hashed = fields.count(&[HASH_LAYERS])?.unwrap_or(3) as usize;
    fields.0.remove(HASH_LAYERS);
    fields
        .0
        .entry(CHOICE)
        .or_insert_with(|| choices(hashed, layers));
    let head = fields.need(&["head_dim"])?;
    if let Some(rotating) = fields.count(&[ROTATING])? {
        let part = f64::from(rotating) / f64::from(head.max(1));
        fields
            .0
            .entry("partial_rotary_factor")
            .or_insert(part.into());
    }
    fields.0.remove(ROTATING);
    flatten_rope(fields)
}

/// Rope of windows is plain, and that of compressed tokens has the scaling.
fn flatten_rope(fields: &mut Fields) -> Result<()> {
    let Some(Value::Object(mut rope)) = fields.0.remove(PARAMETERS) else {
        return Ok(());
    };
    if let (Some(main), Some(Value::Object(compressed))) =
        (rope.remove("main"), rope.remove("compress"))
    {
        if main.get("rope_type").is_some_and(|kind| kind != "default") {
            return Err(wrong(PARAMETERS, "llama.cpp scales rope of compressed tokens alone"));
        }
        let base = compressed.get("rope_theta").cloned();
        fields
            .0
            .extend(base.map(|base| ("compress_rope_theta".to_owned(), base)));
        for name in ["rope_theta", "partial_rotary_factor"] {
            let value = main.get(name).cloned();
            fields.0.extend(value.map(|value| (name.to_owned(), value)));
        }
        rope = compressed;
    }
    for name in ["rope_theta", "partial_rotary_factor"] {
        rope.remove(name);
    }
    if rope
        .remove("attention_factor")
        .is_some_and(|factor| factor.as_f64() != Some(1.0))
    {
        return Err(wrong("attention_factor", "it is not 1, as llama.cpp has it"));
    }
    fields.0.insert(SCALING.to_owned(), rope.into());
    Ok(())
}

fn kind_of(ratio: &Value) -> Option<&'static str> {
    let found = KINDS
        .iter()
        .find(|(_, known)| ratio.as_u64() == Some(*known));
    found.map(|(kind, _)| *kind)
}

fn choices(hashed: usize, layers: usize) -> Value {
    (0..layers)
        .map(|layer| if layer < hashed { HASHED } else { ROUTED })
        .collect()
}

pub(super) fn add_many(config: &mut Map<String, Value>, _: &TensorShapes<'_>) -> Result<()> {
    config.insert(MANY.to_owned(), 128.into());
    Ok(())
}

/// States layers and rope as published configs do.
pub(super) fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    config.remove(MANY);
    let [kinds, choices] = [LAYER_KINDS, CHOICE].map(|name| config.remove(name));
    let list = |list: Option<Value>| match list {
        Some(Value::Array(all)) => all,
        _ => vec![],
    };
    let ratio = |kind: Value| {
        KINDS
            .iter()
            .find(|(known, _)| kind == *known)
            .map(|(_, n)| *n)
    };
    let ratios: Option<Vec<_>> = list(kinds).into_iter().map(ratio).collect();
    config.insert(RATIOS.to_owned(), ratios.unwrap_or_default().into());
    let hashed = list(choices).iter().filter(|kind| **kind == HASHED).count();
    config.insert(HASH_LAYERS.to_owned(), hashed.into());
    let part = config
        .remove("partial_rotary_factor")
        .and_then(|part| part.as_f64());
    let rotating = (part.unwrap_or(1.0) * dims.head as f64).round() as u64;
    config.insert(ROTATING.to_owned(), rotating.into());
    Ok(())
}

/// The layers of a config that comes from GGUF.
fn layers_of(config: &Map<String, Value>) -> usize {
    config.get(LAYERS[0]).and_then(Value::as_u64).unwrap_or(0) as usize
}

/// INT32\[\]: how many tokens become one in each layer.
const COMPRESSION: OwnSetting = required(own(
    |setting, model| {
        let kinds = model.dims.kinds().into_iter().flatten();
        let ratio = |kind: &str| KINDS.iter().find(|(known, _)| *known == kind);
        let ratios: Option<Vec<_>> = kinds.map(|kind| Some(ratio(kind)?.1 as i32)).collect();
        let unknown = || setting.wrong("a layer is none that llama.cpp has");
        Ok(Some(array(GgufMetadataArray::I32(ratios.ok_or_else(unknown)?))))
    },
    |stated, config| {
        let layers = layers_of(&config.fields);
        let ratios = stated.numbers()?.iter().take(layers);
        let kinds: Option<Vec<_>> = ratios.map(|ratio| kind_of(&(*ratio).into())).collect();
        let kinds = kinds.filter(|kinds| kinds.len() == layers);
        let other =
            || wrong_key(stated.key, "it has another number of layers, or others than 0, 4, 128");
        Ok(Some(kinds.ok_or_else(other)?.into()))
    },
));

/// UINT32: the first layers, in which tokens alone choose experts.
const HASHES: OwnSetting = required(own(
    |setting, model| {
        let all = model.fields.0.get(CHOICE).and_then(Value::as_array);
        let all = all.map(Vec::as_slice).unwrap_or_default();
        let hashed = all.iter().take_while(|kind| **kind == HASHED).count();
        let is_plain = all[hashed..].iter().all(|kind| *kind == ROUTED);
        if all.len() != model.dims.layers || !is_plain {
            return Err(setting.wrong("llama.cpp has hash_moe in the first layers, and moe behind"));
        }
        setting.count(hashed).map(Some)
    },
    |stated, config| {
        let layers = layers_of(&config.fields);
        Ok(Some(choices(stated.count()? as usize, layers)))
    },
));

/// UINT32: values of all copies of a state.
const WIDTH: OwnSetting = own(
    |setting, model| {
        let copies = model.fields.need(&["hc_mult"])? as usize;
        setting
            .count(copies.saturating_mul(model.dims.hidden))
            .map(Some)
    },
    |_, _| Ok(None),
);
