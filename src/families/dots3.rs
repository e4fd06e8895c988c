//! dots 3: latent keys and values, of other sizes in layers with a window than in those whose indexer
//! chooses the tokens that are seen. Latent vectors are multiplied by a number, which GGUF has in their
//! norms.
//!
//! Source: `conversion/dots3.py` of llama.cpp; defaults of transformers 5.24.

use serde_json::{Map, Value};

use super::deepseek::{DENSE_LAYERS, EXPERTS, LATENT_SIZES, ONE_KEY_HEAD, QUERY_RANK};
use super::sparse::{INDEXER, INDEXER_SETTINGS};
use super::{DENSE_MLP, ENDS, F32_CHOICE_BIAS, NORMS, SPARSE_MLP};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{FULL_ATTENTION, Fields, array, wrong, wrong_key};
use crate::families::engine::rows::*;
use crate::families::engine::table::{OwnSetting, own, required};
use crate::model::gguf::GgufMetadataArray;

const WINDOWED: &str = "sliding_attention";
const IN_WINDOW: Need = Need::Kind(WINDOWED);
const FULL: Need = Need::Kind(FULL_ATTENTION);
const ROPE: Dim = Field("qk_rope_head_dim");
const PATTERN: &str = "attention.sliding_window_pattern";
/// Fields of the numbers of heads.
const HEADS: [&str; 2] = ["num_attention_heads", "swa_num_attention_heads"];

/// Attention of layers of one kind.
macro_rules! attention {
    ($need:expr, $heads:expr, $rank:expr, $nope:expr, $value:expr) => {
        &[
            only(
                $need,
                "blk.{i}.attn_q_b",
                "model.layers.{i}.self_attn.q_b_proj",
                &[Product(&[$heads, Sum(&[$nope, ROPE])]), QUERY_RANK],
            ),
            only(
                $need,
                "blk.{i}.attn_kv_a_mqa",
                "model.layers.{i}.self_attn.kv_a_proj_with_mqa",
                &[Sum(&[$rank, ROPE]), Hidden],
            ),
            TensorRule {
                transform: Transform::TimesRoot(&[Hidden, $rank]),
                ..only(
                    $need,
                    "blk.{i}.attn_kv_a_norm",
                    "model.layers.{i}.self_attn.kv_a_layernorm",
                    &[$rank],
                )
            },
            TensorRule {
                transform: Transform::Parts(Parts {
                    then: Then::Transposed,
                    ..Parts::one(Turn::Rows(&[$nope, $value]), 0)
                }),
                gguf_shape: Some(&[$heads, $rank, $nope]),
                ..only(
                    $need,
                    "blk.{i}.attn_k_b",
                    "model.layers.{i}.self_attn.kv_b_proj",
                    &[Product(&[$heads, Sum(&[$nope, $value])]), $rank],
                )
            },
            TensorRule {
                transform: Transform::Parts(Parts::one(Turn::Rows(&[$nope, $value]), 1)),
                gguf_shape: Some(&[$heads, $value, $rank]),
                ..only(
                    $need,
                    "blk.{i}.attn_v_b",
                    "model.layers.{i}.self_attn.kv_b_proj",
                    &[Product(&[$heads, Sum(&[$nope, $value])]), $rank],
                )
            },
            only(
                $need,
                "blk.{i}.attn_output",
                "model.layers.{i}.self_attn.o_proj",
                &[Hidden, Product(&[$heads, $value])],
            ),
            only(
                $need,
                "blk.{i}.attn_gate",
                "model.layers.{i}.self_attn.g_proj",
                &[$heads, Hidden],
            ),
        ]
    };
}

const CHOSEN: &[TensorRule] = attention!(
    FULL,
    Field(HEADS[0]),
    Field("kv_lora_rank"),
    Field("qk_nope_head_dim"),
    Field("v_head_dim")
);
const IN_WINDOWS: &[TensorRule] = attention!(
    IN_WINDOW,
    Field(HEADS[1]),
    Field("swa_kv_lora_rank"),
    Field("swa_qk_nope_head_dim"),
    Field("swa_v_head_dim")
);

const ALL: &[TensorRule] = &[
    same("blk.{i}.attn_q_a", "model.layers.{i}.self_attn.q_a_proj", &[QUERY_RANK, Hidden]),
    TensorRule {
        transform: Transform::TimesRoot(&[Hidden, QUERY_RANK]),
        ..same("blk.{i}.attn_q_a_norm", "model.layers.{i}.self_attn.q_a_layernorm", &[QUERY_RANK])
    },
    same("blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.k_rope_only_layernorm", &[ROPE]),
    in_layers(FULL, INDEXER[0]),
    in_layers(FULL, INDEXER[1]),
    in_layers(FULL, INDEXER[2]),
    in_layers(FULL, INDEXER[3]),
];

pub(super) const DOTS3: ModelClass = ModelClass {
    gguf: "dots3note",
    classes: &[
        "Dots3NoteForCausalLM",
        "Dots3NoteForConditionalGeneration",
        "Dots3NoteTextForCausalLM",
    ],
    model_type: "dots3_note_text",
    defaults: &[
        ("max_position_embeddings", Int(524_288)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(80_000_000.0)),
        ("swa_rope_theta", Float(50_000.0)),
        ("n_routed_experts", Int(256)),
        ("num_experts_per_tok", Int(8)),
        ("moe_intermediate_size", Int(1536)),
        ("n_shared_experts", Int(1)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("first_k_dense_replace", Int(1)),
        ("norm_topk_prob", Bool(true)),
        ("routed_scaling_factor", Float(1.0)),
        ("scoring_func", Text("sigmoid")),
        ("index_n_heads", Int(64)),
        ("index_head_dim", Int(128)),
        ("index_topk", Int(2048)),
        (RESCALED, Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("scoring_func", Text("sigmoid")),
        ("use_dsa", Bool(true)),
        // transformers always does so.
        (RESCALED, Bool(true)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("moe_layer_freq", Int(1)),
    ],
    own_fields: &[("num_local_experts", "n_routed_experts")],
    equal_fields: &[
        ("num_key_value_heads", HEADS[0]),
        ("swa_num_key_value_heads", HEADS[1]),
        ("swa_q_lora_rank", "q_lora_rank"),
        ("swa_qk_rope_head_dim", "qk_rope_head_dim"),
    ],
    biases: &[("", &["blk.{i}.indexer.k_norm"])],
    tensors: &[ENDS, NORMS, ALL, CHOSEN, IN_WINDOWS, DENSE_MLP, SPARSE_MLP, F32_CHOICE_BIAS],
    settings: &[
        ONE_KEY_HEAD,
        DENSE_LAYERS,
        LATENT_SIZES,
        EXPERTS,
        INDEXER_SETTINGS,
        &[
            setting(Kind::Own(&HEADS_BY_LAYER), "attention.head_count", &[HEADS[0]]),
            number("rope.freq_base_swa", &["swa_rope_theta"]),
            setting(Kind::Required, "attention.sliding_window", &["sliding_window_size"]),
            setting(Kind::Layers(WINDOWED), PATTERN, &[]),
            setting(Kind::Required, "attention.kv_lora_rank_swa", &["swa_kv_lora_rank"]),
            setting(Kind::Required, "attention.value_length_swa", &["swa_kv_lora_rank"]),
            setting(Kind::Required, "attention.value_length_mla_swa", &["swa_v_head_dim"]),
            setting(
                Kind::Sum,
                "attention.key_length_swa",
                &["swa_qk_rope_head_dim", "swa_kv_lora_rank"],
            ),
            setting(
                Kind::Sum,
                "attention.key_length_mla_swa",
                &["swa_qk_nope_head_dim", "swa_qk_rope_head_dim"],
            ),
            setting(Kind::Own(&CHOOSING), "attention.indexer.types", &[]),
        ],
    ],
    traits: Traits {
        has_expert_groups: true,
        prediction: Prediction::LeftOut,
        kind_names: &[("indexed_attention", FULL_ATTENTION)],
        left_out: &["model.mtp."],
        completes: &[complete],
        restores: &[restore],
        also_implied: &[
            ("attention_gate_type", Text("headwise")),
            ("swa_attention_gate_type", Text("headwise")),
            ("k_rope_only_layernorm", Bool(true)),
            ("normalization", Text("RMSNorm")),
            ("final_norm", Text("RMSNorm")),
            ("topk_method", Text("noaux_tc")),
            ("use_dynamic_rsf", Bool(false)),
            ("moe_gating_fp32", Bool(false)),
            ("per_layer_config", Absent),
        ],
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules {
        by_text: &[("eot", "<|endofassistant|>")],
        ..TokenizerRules::PLAIN
    },
    ..ModelClass::PLAIN
};

const RESCALED: &str = "apply_mla_qkv_lora_rescale";

/// Fails unless heads of layers with a window are as long as their parts. Those of others have lengths
/// of their own, and what `head_dim` says nothing reads.
fn complete(fields: &mut Fields) -> Result<()> {
    fields.0.remove("head_dim");
    let head = fields.0.remove("swa_head_dim");
    let parts = ["swa_qk_nope_head_dim", "swa_qk_rope_head_dim"].map(|field| fields.need(&[field]));
    let [nope, rope] = parts;
    let sum = u64::from(nope?) + u64::from(rope?);
    match head.filter(|head| head.as_u64() != Some(sum)) {
        None => Ok(()),
        Some(head) => {
            Err(wrong("swa_head_dim", format!("it is {head}, and its parts are {sum} together")))
        }
    }
}

/// States the length of heads in windows and the width of shared experts, of which transformers has defaults.
fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let parts = dims.need("swa_qk_nope_head_dim")? + dims.need("swa_qk_rope_head_dim")?;
    config.insert("swa_head_dim".to_owned(), parts.into());
    let width = dims.need("moe_intermediate_size")?;
    config.insert("shared_experts_intermediate_size".to_owned(), width.into());
    Ok(())
}

/// INT32\[\]: heads of each layer.
const HEADS_BY_LAYER: OwnSetting = required(own(
    |setting, model| {
        let [full, windowed] = HEADS.map(|field| model.dims.need(field));
        let (full, windowed) = (setting_count(full?), setting_count(windowed?));
        let kinds = model
            .dims
            .kinds()
            .ok_or_else(|| setting.wrong("layer_types is missing"))?;
        let heads = kinds.map(|kind| if kind == WINDOWED { windowed } else { full });
        Ok(Some(array(GgufMetadataArray::I32(heads.collect()))))
    },
    |stated, config| {
        let pattern = config
            .metadata
            .get(&format!("{}.{PATTERN}", config.class.gguf));
        let Some(GgufMetadataArray::Bool(pattern)) = pattern.as_ref().and_then(|v| v.as_array())
        else {
            return Err(wrong_key(PATTERN, "it is missing or no list of flags"));
        };
        let numbers = stated.numbers()?;
        let layers = || numbers.iter().zip(pattern);
        for (field, kind) in HEADS.into_iter().zip([false, true]) {
            let mut all = layers().filter(|(_, is_windowed)| **is_windowed == kind);
            let first = all.next().map_or(1, |(heads, _)| *heads);
            if first <= 0 || all.any(|(heads, _)| *heads != first) {
                return Err(wrong_key(stated.key, "layers of a kind have other numbers of heads"));
            }
            config.set(field, first.into(), stated.key)?;
        }
        Ok(None)
    },
));

fn setting_count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// BOOL\[\]: which layers have an indexer: those without a window.
const CHOOSING: OwnSetting = required(own(
    |_, model| {
        let layers = model.dims.layers_of(FULL_ATTENTION);
        Ok(layers.map(|layers| array(GgufMetadataArray::Bool(layers.collect()))))
    },
    |_, _| Ok(None),
));
