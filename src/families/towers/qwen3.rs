//! The tower of Qwen 3-VL and 3.5: as that of Qwen 2-VL, with learned positions. The language model
//! gets the states of some of its layers, too (deepstack).
//!
//! Source: `Qwen3VLVisionModel` in `conversion/qwen3vl.py` and `tools/mtmd/models/qwen3vl.cpp` of
//! llama.cpp.

use serde_json::Value;

use super::qwen::{
    DEPTH, FILTER_BIAS, FILTERS, HEADS, LAYERS, NORM_BIASES, QKV, TO_TEXT, TOKENS, TRAITS,
    check_text, restore_text,
};
use super::{
    EPSILON, FUSED, GELU, IMAGE_SIZE, MERGE_SIZE, MERGED, NORM_EPSILON, PATCH_SIZE, PLAIN,
    PLAIN_TOWER, SETTINGS, Tower, TowerConfig, Whole, WholeConfig, down, norm, projector, up,
};
use crate::Result;
use crate::families::engine::fields::{Fields, LAYER_KINDS, wrong, wrong_key};
use crate::families::engine::rows::*;

/// Field of the number of learned positions.
const POSITIONS: &str = "num_position_embeddings";

/// What `layer_types` calls layers whose states the language model gets, too.
const DEEPSTACK: &str = "deepstack";
pub(super) const DEEP: Need = Need::Kind(DEEPSTACK);

const TENSORS: &[TensorRule] = &[
    same("v.position_embd", "visual.pos_embed", &[Field(POSITIONS), Hidden]),
    same("v.blk.{i}.attn_qkv", QKV, FUSED),
    up("v.blk.{i}.ffn_up", "visual.blocks.{i}.mlp.linear_fc1"),
    down("v.blk.{i}.ffn_down", "visual.blocks.{i}.mlp.linear_fc2"),
    norm("v.post_ln", "visual.merger.norm"),
    same("mm.0", "visual.merger.linear_fc1", &[MERGED, MERGED]),
    same("mm.2", "visual.merger.linear_fc2", TO_TEXT),
    only(DEEP, "v.deepstack.{i}.norm", "visual.deepstack_merger_list.{i}.norm", &[MERGED]),
    only(
        DEEP,
        "v.deepstack.{i}.fc1",
        "visual.deepstack_merger_list.{i}.linear_fc1",
        &[MERGED, MERGED],
    ),
    only(DEEP, "v.deepstack.{i}.fc2", "visual.deepstack_merger_list.{i}.linear_fc2", TO_TEXT),
];

const BIASES: &[&str] = &[
    "v.blk.{i}.attn_qkv",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
    "mm.0",
    "mm.2",
];
const DEEP_BIASES: &[&str] =
    &["v.deepstack.{i}.norm", "v.deepstack.{i}.fc1", "v.deepstack.{i}.fc2"];

const OWN: &[Setting] = &[
    projector("qwen3vl_merger"),
    GELU,
    count("vision.spatial_merge_size", &[MERGE_SIZE]),
    NORM_EPSILON,
    setting(Kind::Layers(DEEPSTACK), "vision.is_deepstack_layers", &[]),
];

pub(super) const QWEN3_VL: Tower = Tower {
    class: ModelClass {
        classes: &[
            "Qwen3VLForConditionalGeneration",
            "Qwen3VLMoeForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen4ExpForConditionalGeneration",
            "ClefModel",
            "OpenJevModel",
        ],
        model_type: "qwen3_vl",
        defaults: &[
            ("depth", Int(27)),
            ("hidden_size", Int(1152)),
            ("intermediate_size", Int(4304)),
            ("num_heads", Int(16)),
            ("out_hidden_size", Int(3584)),
            ("patch_size", Int(16)),
            (POSITIONS, Int(2304)),
            (EPSILON, Float(1e-6)),
        ],
        implied: &[("hidden_act", Text("gelu_pytorch_tanh"))],
        own_fields: &[DEPTH, HEADS],
        biases: &[("", BIASES), ("", NORM_BIASES), ("", DEEP_BIASES)],
        tensors: &[FILTERS, FILTER_BIAS, LAYERS, TENSORS],
        settings: &[SETTINGS, OWN],
        traits: TRAITS,
        ..PLAIN
    },
    complete,
    wholes: &[
        QWEN3_WHOLE,
        Whole {
            text: "qwen35",
            class: "Qwen3_5ForConditionalGeneration",
            model_type: "qwen3_5",
            text_type: None,
            ..QWEN3_WHOLE
        },
        Whole {
            text: "qwen35moe",
            class: "Qwen3_5MoeForConditionalGeneration",
            model_type: "qwen3_5_moe",
            text_type: None,
            ..QWEN3_WHOLE
        },
        Whole {
            text: "qwen4exp",
            class: "Qwen4ExpForConditionalGeneration",
            model_type: "qwen4_exp",
            text_type: None,
            ..QWEN3_WHOLE
        },
    ],
    restore,
    listed: Some(("deepstack_merger_list.", DEEP_LAYERS)),
    ..PLAIN_TOWER
};

const QWEN3_WHOLE: Whole = Whole {
    text: "qwen3vl",
    class: "Qwen3VLForConditionalGeneration",
    model_type: "qwen3_vl",
    text_type: Some("qwen3_vl_text"),
    inner: "model.language_model.",
    tokens: TOKENS,
    processor: &[
        ("image_processor_type", Text("Qwen2VLImageProcessorFast")),
        ("processor_class", Text("Qwen3VLProcessor")),
    ],
};

/// Sets which layers are of [`DEEPSTACK`].
fn restore(config: &mut WholeConfig) -> Result<()> {
    let kinds = config.fields.0.remove(LAYER_KINDS);
    let kinds = kinds
        .as_ref()
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let layers = config.fields.need(&["num_hidden_layers"])? as usize;
    if !kinds.is_empty() && kinds.len() != layers {
        let what = format!("it has {} values, and there are {layers} layers", kinds.len());
        return Err(wrong_key("clip.vision.is_deepstack_layers", what));
    }
    let deep = kinds
        .iter()
        .enumerate()
        .filter(|(_, kind)| *kind == DEEPSTACK);
    let deep: Value = deep.map(|(layer, _)| layer).collect();
    config.vision.insert(DEEP_LAYERS.to_owned(), deep);
    restore_text(config)
}

/// Field of the layers whose states the language model gets, too.
pub(super) const DEEP_LAYERS: &str = "deepstack_visual_indexes";

/// Adds the length of an image, and which layers are of [`DEEPSTACK`].
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    let size = fields.need(&["out_hidden_size"])?;
    check_text(fields, config, (size, "out_hidden_size"))?;
    let side = fields.need(&[POSITIONS])?.isqrt();
    if side.checked_mul(side) != Some(fields.need(&[POSITIONS])?) {
        return Err(wrong(POSITIONS, "it is no square"));
    }
    let image = side.checked_mul(fields.need(&[PATCH_SIZE])?);
    let image = image.ok_or_else(|| wrong(PATCH_SIZE, "it is too large"))?;
    fields.0.entry(IMAGE_SIZE).or_insert(image.into());
    let layers = fields.need(&["num_hidden_layers"])? as usize;
    let kind = config.root.get("model_type").and_then(Value::as_str);
    let has_deep = kind.is_some_and(|kind| kind.starts_with("qwen3_vl"));
    let usual = || Value::from(if has_deep { vec![8, 16, 24] } else { vec![] });
    let deep = fields.0.entry(DEEP_LAYERS).or_insert_with(usual);
    let deep = deep.as_array().map(Vec::as_slice).unwrap_or_default();
    let outside = |layer: &&Value| layer.as_u64().is_none_or(|layer| layer >= layers as u64);
    if let Some(layer) = deep.iter().find(outside) {
        return Err(wrong(DEEP_LAYERS, format_args!("{layer} is none of {layers} layers")));
    }
    // llama.cpp has what they give in the order of layers.
    if !deep.is_sorted_by_key(Value::as_u64) {
        return Err(wrong(DEEP_LAYERS, "layers are not in their order"));
    }
    let kind = |layer: usize| match deep.contains(&layer.into()) {
        true => DEEPSTACK,
        false => "plain",
    };
    let kinds: Value = (0..layers).map(kind).collect();
    fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    Ok(())
}
