//! DFlash: a draft that fills a block of masked tokens at once, from the states behind several
//! layers of its target; and DSpark, which has a Markov head behind that.
//!
//! Source: `DFlashModel` and `DSparkModel` in `conversion/qwen.py` of llama.cpp; names of the code
//! beside published models.

use serde_json::{Map, Value};

use super::engine::dims::Dims;
use super::engine::draft::{
    DRAFT_TOKENS, HAS_CONFIDENCE, TARGET, add_draft_tokens, count_of_target, set_draft_tokens,
    target_class,
};
use super::engine::fields::{FULL_ATTENTION, Fields, HIDDEN, LAYER_KINDS, array, wrong};
use super::{ENDS, HEAD_NORMS, MLP, NORMS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;

/// The config in the config, and its fields but for those that are outside of it as well.
pub(super) const NESTED: &str = "dflash_config";
const NESTED_FIELDS: &[&str] = &[
    TAPPED,
    "mask_token_id",
    "attention_value_scale",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
    "output_multiplier",
    "final_logit_softcapping",
    "input_embedding_scale",
    CAUSAL,
    SECTIONS,
];

/// Fields that are in it or outside, and come back outside.
const MORE_FIELDS: &[&str] = &["block_size", "use_swa", "swa_window_size", "markov_head_type"];

/// The layers of the target whose outputs the draft reads.
pub(super) const TAPPED: &str = "target_layer_ids";
/// How many they are. No config has this field.
pub(super) const TAPPED_COUNT: &str = "number of target layers";
const CAUSAL: &str = "causal";
pub(super) const WINDOW: &str = "sliding_window";
const WINDOWED: &str = "sliding_attention";
/// Pairs of a head that rotate by each axis: llama.cpp has four positions of a token if the target
/// is for images, and the draft knows the first alone.
const SECTIONS: &str = "rope_dimension_sections";
const FEATURES: Dim = Product(&[Field(TAPPED_COUNT), Hidden]);

pub(super) const ROOT: &[TensorRule] = &[
    optional("token_embd", "model.embed_tokens", &[Vocab, Hidden]),
    ENDS[1],
    optional("output", "lm_head", &[Field(DRAFT_TOKENS), Hidden]),
    same("fc", "model.fc", &[Hidden, FEATURES]),
    same("enc.output_norm", "model.hidden_norm", &[Hidden]),
    TensorRule {
        need: Need::Optional,
        ..parameter(
            "blk.{i}.attn_sinks.weight",
            "model.layers.{i}.self_attn.sinks",
            (Transform::None, &[Heads], &[Heads]),
        )
    },
];

const TWO: Dim = Sum(&[One, One]);
const TAPS: Dim = Field("conv_kernel_size");
const GROUPS: Dim = Quotient(&[Hidden, Field("conv_group_size")]);
const RANK: Dim = Field("selector_rank");
const KERNEL: &[Dim] = &[TWO, TAPS, Hidden];
const KERNELS: &[Dim] = &[Product(&[TWO, TAPS, GROUPS]), Hidden];

/// Convolutions of each layer, and the choice among candidates.
const DFLASH2_MORE: &[TensorRule] = &[
    parameter(
        "blk.{i}.attn_conv_base",
        "model.layers.{i}.attention_conv.base_kernel",
        (Transform::None, KERNEL, KERNEL),
    ),
    same("blk.{i}.attn_conv_proj", "model.layers.{i}.attention_conv.kernel_projection", KERNELS),
    parameter(
        "blk.{i}.ffn_conv_base",
        "model.layers.{i}.mlp_conv.base_kernel",
        (Transform::None, KERNEL, KERNEL),
    ),
    same("blk.{i}.ffn_conv_proj", "model.layers.{i}.mlp_conv.kernel_projection", KERNELS),
    parameter(
        "selector_predecessor.weight",
        "model.candidate_selector.predecessor_codebook",
        (Transform::None, &[Vocab, RANK], &[Vocab, RANK]),
    ),
    parameter(
        "selector_successor.weight",
        "model.candidate_selector.successor_codebook",
        (Transform::None, &[Vocab, RANK], &[Vocab, RANK]),
    ),
    same("selector_hidden", "model.candidate_selector.hidden_projection", &[RANK, Hidden]),
];

const MARKOV_RANK: Dim = Field("markov_rank");

/// The state, and what the Markov head has of the token before.
const STATE: Dim = Sum(&[Hidden, MARKOV_RANK]);

/// A tensor that some drafts have: how sure one is of a token.
const fn of_confidence(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    let rule = parameter(gguf, hf, (Transform::None, shape, shape));
    TensorRule { need: Need::Optional, ..rule }
}

pub(super) const MARKOV: &[TensorRule] = &[
    same("markov_w1", "model.markov_head.markov_w1", &[Vocab, MARKOV_RANK]),
    same("markov_w2", "model.markov_head.markov_w2", &[Field(DRAFT_TOKENS), MARKOV_RANK]),
    of_confidence("conf_proj.weight", "model.confidence_head.proj.weight", &[One, STATE]),
    of_confidence("conf_proj.bias", "model.confidence_head.proj.bias", &[One]),
];

pub(super) const SETTINGS: &[Setting] = &[
    setting(Kind::Required, "block_size", &["block_size"]),
    count(".tokenizer.ggml.mask_token_id", &["mask_token_id"]),
    setting(Kind::Own(&LAYERS), "target_layers", &[TAPPED]),
    number("attention.value_scale", &["attention_value_scale"]),
    number("logit_scale", &["output_multiplier"]),
    number("final_logit_softcapping", &["final_logit_softcapping"]),
    number("embedding_scale", &["input_embedding_scale"]),
    count("attention.sliding_window", &[WINDOW]),
    setting(Kind::Layers(WINDOWED), "attention.sliding_window_pattern", &[WINDOW, LAYER_KINDS]),
    setting(Kind::Flag, "attention.causal", &[CAUSAL]),
    setting(Kind::Own(&AXES), "rope.dimension_sections", &[SECTIONS]),
];

const DFLASH2_SETTINGS: &[Setting] = &[
    setting(Kind::Required, "conv_kernel_size", &["conv_kernel_size"]),
    setting(Kind::Required, "conv_group_size", &["conv_group_size"]),
    setting(Kind::Required, "selector_rank", &["selector_rank"]),
    setting(Kind::Required, "selector_top_k", &["selector_top_k"]),
];

const TRAITS: Traits = Traits {
    is_draft: true,
    completes: &[flatten],
    from_tensors: &[set_draft_tokens, count_tapped],
    restores: &[nest],
    also_implied: &[("rope_is_neox_style", Bool(true))],
    ..Traits::PLAIN
};

pub(super) const DFLASH: ModelClass = ModelClass {
    gguf: "dflash",
    classes: &["DFlashDraftModel"],
    model_type: "qwen3",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(32)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("block_size", Int(16)),
    ],
    implied: &[("hidden_act", Text("silu")), ("attention_bias", Bool(false))],
    tensors: &[ROOT, NORMS, QUERIES, VALUES, HEAD_NORMS, MLP],
    settings: &[SETTINGS],
    traits: TRAITS,
    ..ModelClass::PLAIN
};

pub(super) const DFLASH2: ModelClass = ModelClass {
    classes: &["DFlash2DraftModel"],
    tensors: &[ROOT, NORMS, QUERIES, VALUES, HEAD_NORMS, MLP, DFLASH2_MORE],
    settings: &[SETTINGS, DFLASH2_SETTINGS],
    traits: Traits { sign: Sign::Tensor("selector_hidden.weight"), ..TRAITS },
    ..DFLASH
};

pub(super) const DSPARK: ModelClass = ModelClass {
    classes: &[
        "DSparkDraftModel",
        "Qwen3DSparkModel",
        "DSparkSpeculator",
        "Lfm2DSparkDraftModel",
        "LingDSparkModel",
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("markov_head_type", Text("vanilla")),
    ],
    tensors: &[ROOT, NORMS, QUERIES, VALUES, HEAD_NORMS, MLP, MARKOV],
    settings: &[
        SETTINGS,
        &[
            setting(Kind::Flag, "sample_from_anchor", &["sample_from_anchor"]),
            setting(Kind::Flag, HAS_CONFIDENCE, &[HAS_CONFIDENCE]),
        ],
    ],
    traits: Traits { sign: Sign::Tensor("markov_w1.weight"), ..TRAITS },
    ..DFLASH
};

/// The draft of Muse Glimmer. Files of it look like those of DFlash, as which they come back.
///
/// Source: `conversion/muse_glimmer.py` of llama.cpp; defaults of transformers 5.24.
pub(super) const MUSE_ASSISTANT: ModelClass = ModelClass {
    classes: &["MuseGlimmerAssistantModel"],
    model_type: "muse_glimmer_assistant",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(500_000.0)),
        ("block_size", Int(16)),
        ("mask_token_id", Int(201_818)),
        (WINDOW, Int(2048)),
        // llama.cpp has the windows of all layers that `layer_types` calls so.
        ("use_sliding_window", Bool(true)),
    ],
    tensors: &[MUSE_ROOT, NORMS, QUERIES, VALUES, HEAD_NORMS, MLP],
    traits: Traits {
        layer_kinds: Some((WINDOWED, usize::MAX)),
        completes: &[add_tokens, flatten, widen_window],
        sign: Sign::Never,
        ..TRAITS
    },
    ..DFLASH
};

const MUSE_ROOT: &[TensorRule] = &[
    ROOT[0],
    ROOT[1],
    same("fc", "model.encoder.fc", &[Hidden, FEATURES]),
    same("enc.output_norm", "model.encoder.output_norm_enc", &[Hidden]),
];

/// Counts the token itself in the window, as llama.cpp does. Tokens of the window are before it in
/// transformers.
fn widen_window(fields: &mut Fields) -> Result<()> {
    if let Some(window) = fields.0.get(WINDOW).and_then(Value::as_u64) {
        fields
            .0
            .insert(WINDOW.to_owned(), window.saturating_add(1).into());
    }
    Ok(())
}

/// Sets the number of tokens, which a config without an embedding leaves to the target.
fn add_tokens(fields: &mut Fields) -> Result<()> {
    if !fields.0.contains_key("vocab_size") {
        let tokens = count_of_target(fields, "vocab_size", "vocab_size")?;
        fields.0.insert("vocab_size".to_owned(), tokens.into());
    }
    Ok(())
}

/// Brings the fields of the nested config to those outside of it, and adds those of the target.
pub(super) fn flatten(fields: &mut Fields) -> Result<()> {
    let of_speculators = fields.0.remove("aux_hidden_state_layer_ids");
    let samples = of_speculators.is_none() && !fields.0.contains_key("transformer_layer_config");
    fields
        .0
        .entry("sample_from_anchor")
        .or_insert(samples.into());
    if let Some(Value::Array(layers)) = of_speculators {
        let before = layers.iter().map(|layer| Some(layer.as_i64()? - 1));
        let before: Option<Vec<i64>> = before.collect();
        let before =
            before.ok_or_else(|| wrong("aux_hidden_state_layer_ids", "it is no list of layers"))?;
        fields.0.entry(TAPPED).or_insert(before.into());
    }
    if let Some(Value::Object(nested)) = fields.0.remove(NESTED) {
        // Sizes have been checked by now.
        let known = || NESTED_FIELDS.iter().chain(MORE_FIELDS);
        let is_known = |(name, value): &(String, Value)| {
            !value.is_null() && known().any(|known| known == name)
        };
        fields.0.extend(nested.into_iter().filter(is_known));
    }
    if let Some(causal) = fields.0.remove("is_causal") {
        fields.0.insert(CAUSAL.to_owned(), causal);
    }
    if fields
        .number(&["final_logit_softcapping"])?
        .is_some_and(|cap| cap <= 0.0)
    {
        fields.0.remove("final_logit_softcapping");
    }
    let layers = fields
        .0
        .get(TAPPED)
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    if layers == 0 {
        return Err(wrong(TAPPED, "it is missing or empty"));
    }
    fields.0.insert(TAPPED_COUNT.to_owned(), layers.into());
    add_draft_tokens(fields);
    set_window(fields)?;
    add_target(fields)
}

/// Makes all that say which layers have a window say it in the same way.
fn set_window(fields: &mut Fields) -> Result<()> {
    let is_everywhere = fields.flag("use_swa");
    if let Some(window) = fields
        .0
        .remove("swa_window_size")
        .filter(|window| window != 0)
    {
        fields.0.insert(WINDOW.to_owned(), window);
    }
    if is_everywhere {
        let layers = fields.need(&["num_hidden_layers"])? as usize;
        let kinds: Value = std::iter::repeat_n(WINDOWED, layers).collect();
        fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    } else if !fields.flag("use_sliding_window") {
        fields.0.remove(WINDOW);
        fields.0.remove(LAYER_KINDS);
    } else if fields.0.contains_key(WINDOW) && !fields.0.contains_key(LAYER_KINDS) {
        return Err(wrong(LAYER_KINDS, "it is missing, and some layers have a window"));
    }
    Ok(())
}

/// Adds what follows from the target.
fn add_target(fields: &mut Fields) -> Result<()> {
    let Some(target) = fields.0.get(TARGET).and_then(Value::as_object) else {
        return Ok(());
    };
    let target = Fields::of(target.clone());
    let rope = ["rope_parameters", "rope_scaling"]
        .iter()
        .find_map(|name| target.0.get(*name));
    if rope.is_some_and(|rope| rope.get("mrope_section").is_some()) {
        let pairs = Dims::new(fields)?.head / 2;
        fields
            .0
            .insert(SECTIONS.to_owned(), vec![pairs, 0, 0, 0].into());
    }
    // It has the embedding of its target, which Gemma multiplies by this.
    if target_class(fields).is_some_and(|name| name.starts_with("Gemma"))
        && !fields.0.contains_key("input_embedding_scale")
    {
        let scale = f64::from(target.need(HIDDEN)?).sqrt();
        fields
            .0
            .insert("input_embedding_scale".to_owned(), scale.into());
    }
    Ok(())
}

/// Counts the layers that are read.
pub(super) fn count_tapped(
    config: &mut Map<String, Value>,
    _tensors: &TensorShapes<'_>,
) -> Result<()> {
    let layers = config
        .get(TAPPED)
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    config.insert(TAPPED_COUNT.to_owned(), layers.into());
    Ok(())
}

/// Brings the fields to the nested config that are there.
pub(super) fn nest(config: &mut Map<String, Value>, _dims: &Dims) -> Result<()> {
    config.remove(TAPPED_COUNT);
    let nested = NESTED_FIELDS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), config.remove(*name)?)));
    let nested: Map<_, _> = nested.collect();
    config.insert(NESTED.to_owned(), nested.into());
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let is_windowed = kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind != FULL_ATTENTION));
    config.insert("use_sliding_window".to_owned(), is_windowed.into());
    Ok(())
}

/// INT32\[\]: a layer whose input is read is behind the one whose output that is.
const LAYERS: OwnSetting = required(own(
    |setting, model| {
        let layers = model.fields.0.get(TAPPED).and_then(Value::as_array);
        let number = |n: &Value| n.as_i64()?.checked_add(1)?.try_into().ok();
        let layers: Option<Vec<i32>> = layers.and_then(|all| all.iter().map(number).collect());
        let layers = layers.filter(|all| all.iter().all(|n| *n >= 0));
        let layers = layers.ok_or_else(|| setting.wrong("it is no list of layers"))?;
        Ok(Some(array(GgufMetadataArray::I32(layers))))
    },
    |key, _| {
        let layers = key.numbers()?.iter().map(|n| n.checked_sub(1));
        let layers: Option<Vec<i32>> = layers.collect();
        layers
            .map(|layers| Some(layers.into()))
            .ok_or_else(|| key.other_type())
    },
));

/// INT32\[4\].
const AXES: OwnSetting = own(
    |setting, model| {
        let Some(axes) = model.fields.0.get(SECTIONS) else {
            return Ok(None);
        };
        let axis = |n: &Value| n.as_i64()?.try_into().ok();
        let axes: Option<Vec<i32>> = axes
            .as_array()
            .and_then(|all| all.iter().map(axis).collect());
        let axes = axes.filter(|axes| axes.len() == 4);
        let axes = axes.ok_or_else(|| setting.wrong("it is no list of four numbers"))?;
        Ok(Some(array(GgufMetadataArray::I32(axes))))
    },
    |key, _| Ok(Some(key.numbers()?.into())),
);
