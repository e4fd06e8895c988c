//! Qwen 4: layers of Qwen 3.5 on several copies of the state, a choice of the tokens that full
//! attention sees, and a table with rows for the last tokens, which one layer reads by hashes.
//!
//! Source: `conversion/qwen4exp.py` and `src/models/qwen4exp.cpp` of llama.cpp b11434;
//! `Qwen4ExpTextConfig` of transformers 5.24.

mod hashes;

use self::hashes::{HASHES, HASHES_OF_SIZE, NGRAM, OWN, TABLE};
use super::ENDS;
use super::glm::{PREDICTION, PREDICTION_SETTINGS};
use super::qwen::{EXPERTS, FUSED_EXPERTS, SHARED_EXPERT};
use super::qwen_next::{AXES, FULL, FULL_ATTENTION, QWEN3_5_MOE, SETTINGS, SPLIT_ATTENTION};
use crate::Result;
use crate::families::engine::fields::{wrong, wrong_key};
use crate::families::engine::rows::*;
use crate::families::engine::settings::numbers_of_kind;

const COPIES: Dim = Field("hc_count");
const RANK: Dim = Field("hc_lowrank");
const STATE: Dim = Product(&[COPIES, Hidden]);
const INDEX_HEAD: Dim = Field("indexer_head_dim");
const INDEX: Dim = Product(&[Field("indexer_n_heads"), INDEX_HEAD]);

const ROOT: &[TensorRule] = &[
    ENDS[0],
    ENDS[2],
    same("output_hc_norm", "model.hyper_connection_mixer.hc_norm", &[STATE]),
    same("output_hc_down", "model.hyper_connection_mixer.input_mix_weight_down", &[RANK, STATE]),
    same("output_hc_up", "model.hyper_connection_mixer.input_mix_weight_up", &[STATE, RANK]),
];

/// What mixes the copies of the state for a part of a layer, and what spreads what that gives.
macro_rules! connection {
    ($gguf:literal, $hf:literal) => {
        &[
            same(concat!($gguf, "_norm"), concat!($hf, ".hc_norm"), &[STATE]),
            same(concat!($gguf, "_down"), concat!($hf, ".input_mix_weight_down"), &[RANK, STATE]),
            same(concat!($gguf, "_up"), concat!($hf, ".input_mix_weight_up"), &[STATE, RANK]),
            same(concat!($gguf, "_inject"), concat!($hf, ".block_inject_weight"), &[COPIES, STATE]),
        ]
    };
}

const ATTENTION_CONNECTION: &[TensorRule] =
    connection!("blk.{i}.hc_attn", "model.layers.{i}.attn_hyper_connection");
const MLP_CONNECTION: &[TensorRule] =
    connection!("blk.{i}.hc_ffn", "model.layers.{i}.mlp_hyper_connection");

/// Queries and keys by which tokens are chosen, which are one matrix in transformers.
const fn index_part(part: usize, gguf: &'static str, rows: &'static [Dim]) -> TensorRule {
    TensorRule {
        transform: Transform::Parts(Parts::one(Turn::Rows(&[INDEX, INDEX_HEAD]), part)),
        gguf_shape: Some(rows),
        ..only(
            FULL,
            gguf,
            "model.layers.{i}.self_attn.indexer.index_qk_proj",
            &[Sum(&[INDEX, INDEX_HEAD]), Hidden],
        )
    }
}

const INDEXER: &[TensorRule] = &[
    index_part(0, "blk.{i}.indexer.q_proj", &[INDEX, Hidden]),
    index_part(1, "blk.{i}.indexer.k_proj", &[INDEX_HEAD, Hidden]),
    only(
        FULL,
        "blk.{i}.indexer.q_norm",
        "model.layers.{i}.self_attn.indexer.q_layernorm",
        &[INDEX_HEAD],
    ),
    only(
        FULL,
        "blk.{i}.indexer.k_norm",
        "model.layers.{i}.self_attn.indexer.k_layernorm",
        &[INDEX_HEAD],
    ),
];

const PREDICTING: &[TensorRule] = &[
    TensorRule {
        transform: Transform::Beside(&["embedding", "hidden"]),
        gguf_shape: Some(&[Hidden, Sum(&[Hidden, Hidden])]),
        shape: &[Hidden, Hidden],
        hf: "model.layers.{i}.nextn.fc.{e}",
        ..PREDICTION[0]
    },
    PREDICTION[1],
    TensorRule { shape: &[STATE], ..PREDICTION[2] },
    only(
        Need::Prediction,
        "blk.{i}.nextn.hc_head_norm",
        "model.layers.{i}.nextn.head.hc_norm",
        &[STATE],
    ),
    only(
        Need::Prediction,
        "blk.{i}.nextn.hc_head_down",
        "model.layers.{i}.nextn.head.input_mix_weight_down",
        &[RANK, STATE],
    ),
    only(
        Need::Prediction,
        "blk.{i}.nextn.hc_head_up",
        "model.layers.{i}.nextn.head.input_mix_weight_up",
        &[STATE, RANK],
    ),
];

const PREDICTION_NAMES: PredictionNames = PredictionNames {
    count: "mtp_num_hidden_layers",
    kinds: &["full_attention"],
    layers: "model.layers.",
    names: &[
        ("mtp.fc_embedding.", "nextn.fc.embedding."),
        ("mtp.fc_hidden.", "nextn.fc.hidden."),
        ("mtp.hyper_connection_mixer.", "nextn.head."),
        ("mtp.pre_fc_norm_embedding.", "enorm."),
        ("mtp.pre_fc_norm_hidden.", "hnorm."),
        ("mtp.layers.0.", ""),
    ],
};

const RATIO: &str = "indexer_compress_ratio";

pub(super) const QWEN4: ModelClass = ModelClass {
    gguf: "qwen4exp",
    classes: &["Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"],
    model_type: "qwen4_exp_text",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(2)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("moe_intermediate_size", Int(512)),
        ("shared_expert_intermediate_size", Int(512)),
        ("num_experts", Int(512)),
        ("num_experts_per_tok", Int(10)),
        ("linear_conv_kernel_dim", Int(4)),
        ("linear_key_head_dim", Int(128)),
        ("linear_value_head_dim", Int(128)),
        ("linear_num_key_heads", Int(16)),
        ("linear_num_value_heads", Int(32)),
        ("full_attention_interval", Int(4)),
        ("output_gate_type", Text("silu")),
        ("hc_count", Int(4)),
        ("hc_lowrank", Int(320)),
        (NGRAM, Int(3)),
        (HASHES_OF_SIZE, Int(8)),
        ("ple_conv_kernel_size", Int(4)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("norm_topk_prob", Bool(true)),
        ("output_gate_type", Text("sigmoid")),
        ("indexer_kv_heads", Int(1)),
    ],
    tensors: &[
        ROOT,
        ATTENTION_CONNECTION,
        MLP_CONNECTION,
        FULL_ATTENTION,
        INDEXER,
        SPLIT_ATTENTION,
        EXPERTS,
        SHARED_EXPERT,
        TABLE,
        PREDICTING,
    ],
    other_tensors: FUSED_EXPERTS,
    settings: &[
        SETTINGS,
        PREDICTION_SETTINGS,
        AXES,
        &[
            setting(Kind::Required, "hyper_connection.count", &["hc_count"]),
            setting(Kind::Required, "hyper_connection.low_rank", &["hc_lowrank"]),
            setting(Kind::Required, "attention.indexer.head_count", &["indexer_n_heads"]),
            setting(Kind::Required, "attention.indexer.key_length", &["indexer_head_dim"]),
            setting(Kind::Required, "attention.indexer.top_k", &["indexer_budget"]),
            setting(Kind::Own(&RATIOS), "attention.compress_ratios", &[RATIO]),
        ],
        HASHES,
    ],
    traits: Traits {
        rope: RopeTraits::partial(1.0),
        kind_names: &[("indexed_attention", "full_attention")],
        prediction: Prediction::Apart(&PREDICTION_NAMES),
        laws: &[other_choices],
        completes: &[hashes::complete],
        from_tensors: &[hashes::list_readers],
        restores: &[hashes::restore],
        own_tensors: Some(&OWN),
        ..QWEN3_5_MOE.traits
    },
    mlx: None,
    ..QWEN3_5_MOE
};

/// What llama.cpp does not load, or ends on.
fn other_choices(model: &Model<'_>) -> Result<Option<String>> {
    let Model { class, fields, dims, rope, .. } = model;
    if fields.need(&["hc_count"])? < 2 {
        return Err(wrong("hc_count", "there must be several copies"));
    }
    let (budget, ratio) = (fields.need(&["indexer_budget"])?, fields.need(&[RATIO])?);
    if ratio < 2 || budget == 0 || !budget.is_multiple_of(ratio) {
        let what = format!("llama.cpp needs one above 1 that divides indexer_budget, {budget}");
        return Err(wrong(RATIO, what));
    }
    let head = fields.need(&["indexer_head_dim"])? as usize;
    if rope.rotating(class, dims) > head {
        return Err(wrong(
            "indexer_head_dim",
            "it is shorter than the part of a head that rotates",
        ));
    }
    model.expect("ple_embed_dim", &dims.hidden.into())
}

/// INT32\[\]: how many tokens become one key where tokens are chosen.
const RATIOS: OwnSetting = required(own(
    |setting, model| {
        let ratio = i32::try_from(model.fields.need(setting.fields)?);
        let ratio = ratio.map_err(|_| setting.wrong("it is too large"))?;
        Ok(numbers_of_kind(&model.dims, "full_attention", ratio))
    },
    |stated, _| {
        let mut ratios = stated.numbers()?.iter().filter(|ratio| **ratio != 0);
        let Some(first) = ratios.next() else {
            let what = "no layer chooses tokens, as in files that llama.cpp's converter makes with a config of transformers 5.24; convert the model again";
            return Err(wrong_key(stated.key, what));
        };
        match ratios.all(|ratio| ratio == first) {
            true => Ok(Some((*first).into())),
            false => Err(stated.other_type()),
        }
    },
));
