//! EAGLE-3: a draft of one layer, which reads what three layers of its target get.
//!
//! Source: `conversion/llama.py` of llama.cpp, class `LlamaModel`; names of SpecForge and of the
//! speculators of vLLM (`layers.0`).

use serde_json::{Map, Value};

use super::engine::draft::{DRAFT_TOKENS, add_draft_tokens, count_of_target, set_draft_tokens};
use super::engine::fields::{Fields, array, wrong};
use super::llama::{LLAMA, LLAMA_TOKENIZER, SETTINGS};
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;
use crate::{AnamnesisError, Result};

/// The layers of the target whose inputs the draft reads.
const TAPPED: &str = "eagle_aux_hidden_state_layer_ids";
const TARGET_SIZE: &str = "target_hidden_size";
const NORM_BEFORE_FC: &str = "norm_before_fc";
const WIDTH: Dim = Field(TARGET_SIZE);
/// The inputs of three layers of the target, side by side.
const FEATURES: Dim = Sum(&[WIDTH, WIDTH, WIDTH]);
/// A token and the state before it, side by side.
const BOTH: Dim = Sum(&[Hidden, Hidden]);

const ENDS: &[TensorRule] = &[
    optional("token_embd", "embed_tokens", &[Vocab, Hidden]),
    same("output_norm", "norm", &[Hidden]),
    optional("output", "lm_head", &[Field(DRAFT_TOKENS), Hidden]),
    same("fc", "fc", &[Hidden, FEATURES]),
    optional("enc.output_norm", "input_norm", &[FEATURES]),
];

/// The layer, under names that begin with this.
macro_rules! layer {
    ($name:literal) => {
        &[
            same("blk.0.attn_norm", concat!($name, "input_layernorm"), &[Hidden]),
            same("blk.0.attn_norm_2", concat!($name, "hidden_norm"), &[Hidden]),
            heads("blk.0.attn_q", concat!($name, "self_attn.q_proj"), &[Queries, BOTH]),
            heads("blk.0.attn_k", concat!($name, "self_attn.k_proj"), &[Keys, BOTH]),
            same("blk.0.attn_v", concat!($name, "self_attn.v_proj"), &[Keys, BOTH]),
            same("blk.0.attn_output", concat!($name, "self_attn.o_proj"), &[Hidden, Queries]),
            same("blk.0.ffn_norm", concat!($name, "post_attention_layernorm"), &[Hidden]),
            same("blk.0.ffn_gate", concat!($name, "mlp.gate_proj"), &[Inner, Hidden]),
            same("blk.0.ffn_up", concat!($name, "mlp.up_proj"), &[Inner, Hidden]),
            same("blk.0.ffn_down", concat!($name, "mlp.down_proj"), &[Hidden, Inner]),
        ]
    };
}

const LAYER: &[TensorRule] = layer!("midlayer.");

pub(super) const EAGLE3: ModelClass = ModelClass {
    gguf: "eagle3",
    classes: &[
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3Speculator",
        "Eagle3DraftModel",
    ],
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("norm_before_residual", Bool(false)),
        (NORM_BEFORE_FC, Bool(false)),
    ],
    implied: &[
        ("num_hidden_layers", Int(1)),
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
    ],
    biases: &[],
    tensors: &[ENDS, LAYER],
    other_tensors: layer!("layers.0."),
    settings: &[
        &[
            setting(Kind::Own(&LAYERS), "target_layers", &[TAPPED]),
            setting(Kind::Required, TARGET_SIZE, &[TARGET_SIZE]),
            setting(Kind::Flag, "norm_before_residual", &["norm_before_residual"]),
            setting(Kind::Flag, NORM_BEFORE_FC, &[NORM_BEFORE_FC]),
        ],
        SETTINGS,
    ],
    traits: Traits {
        has_pre_norms: false,
        reads_causal: false,
        nested_type: None,
        is_draft: true,
        needs_output: true,
        prefix: Some("model."),
        completes: &[of_target],
        from_tensors: &[sizes],
        ..LLAMA.traits
    },
    tokenizer: &LLAMA_TOKENIZER,
    mlx: None,
    ..LLAMA
};

/// The first published ones, which only a field tells from Llama.
pub(super) const EAGLE3_OF_LLAMA: ModelClass = ModelClass {
    classes: &["LlamaForCausalLM"],
    traits: Traits { config_sign: Some(DRAFT_TOKENS), sign: Sign::Never, ..EAGLE3.traits },
    ..EAGLE3
};

/// Sets what a config leaves to its target.
fn of_target(fields: &mut Fields) -> Result<()> {
    add_draft_tokens(fields);
    if fields.get(&[TARGET_SIZE]).is_none() {
        let size = count_of_target(fields, "hidden_size", TARGET_SIZE)?;
        fields.0.insert(TARGET_SIZE.to_owned(), size.into());
    }
    let is_empty = |list: &Value| list.as_array().is_some_and(Vec::is_empty);
    if fields.0.get(TAPPED).is_some_and(|list| !is_empty(list)) {
        return Ok(());
    }
    let nested = fields
        .0
        .get("eagle_config")
        .and_then(|config| config.get(TAPPED));
    if nested.is_some_and(|list| list.is_array() && !is_empty(list)) {
        let what = format!(
            "it is in `eagle_config`, where programs count layers differently; state the three layers whose inputs are read beside `{DRAFT_TOKENS}`"
        );
        return Err(wrong(TAPPED, what));
    }
    let layers = count_of_target(fields, "num_hidden_layers", TAPPED)?;
    if layers < 3 {
        return Err(wrong(TAPPED, format!("it is missing, and the target has {layers} layers")));
    }
    fields
        .0
        .insert(TAPPED.to_owned(), vec![2, layers / 2, layers - 3].into());
    Ok(())
}

/// Sets what the tensors say, and fails if the norm is there that a flag denies, or the other way
/// round.
fn sizes(config: &mut Map<String, Value>, tensors: &TensorShapes<'_>) -> Result<()> {
    set_draft_tokens(config, tensors)?;
    // The output may be that of the target.
    config.insert("tie_word_embeddings".to_owned(), false.into());
    let has_norm = tensors.contains_key("enc.output_norm.weight");
    if config
        .get(NORM_BEFORE_FC)
        .and_then(Value::as_bool)
        .unwrap_or(false)
        != has_norm
    {
        let what = format!(
            "`enc.output_norm.weight` and the key `eagle3.{NORM_BEFORE_FC}` contradict each other"
        );
        return Err(AnamnesisError::parse(what));
    }
    Ok(())
}

const LAYERS: OwnSetting = required(own(
    |setting, model| {
        let layers = model.fields.0.get(TAPPED).and_then(Value::as_array);
        let number = |n: &Value| n.as_i64().and_then(|n| i32::try_from(n).ok());
        let layers: Option<Vec<i32>> = layers.and_then(|all| all.iter().map(number).collect());
        match layers.filter(|all| all.len() == 3 && all.iter().all(|n| *n >= 0)) {
            Some(layers) => Ok(Some(array(GgufMetadataArray::I32(layers)))),
            None => Err(setting.wrong("it is no list of three layers")),
        }
    },
    |key, _| match key.numbers()? {
        layers @ [_, _, _] => Ok(Some(layers.into())),
        _ => Err(key.other_type()),
    },
));
