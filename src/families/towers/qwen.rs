//! The towers of Qwen 2-VL and 2.5-VL, whose squares of patches become one token, and what later
//! ones share with them.
//!
//! Source: `conversion/qwenvl.py`, and `PROJECTOR_TYPE_QWEN2VL` and `PROJECTOR_TYPE_QWEN25VL` in
//! `tools/mtmd/clip.cpp` of llama.cpp.

use serde_json::Value;

use super::{
    COLOURS, EPSILON, IMAGE_SIZE, MERGE_SIZE, MERGED, MLP_WIDTH, NORM_EPSILON, PATCH_SIZE, PLAIN,
    PLAIN_TOWER, SETTINGS, SILU, TEXT_HIDDEN, Tower, TowerConfig, Whole, WholeConfig, add_base,
    add_text_size, down, norm, projector, restore_patch, square, third, up, whole,
};
use crate::Result;
use crate::families::engine::dims::check_layers;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;

/// Frames of a video that are taken together.
const FRAMES: &str = "temporal_patch_size";

/// Filters over two frames, which llama.cpp has apart.
pub(super) const FILTERS: &[TensorRule] =
    &[frame(0, "v.patch_embd.weight"), frame(1, "v.patch_embd.weight.1")];

const fn frame(number: usize, gguf: &'static str) -> TensorRule {
    const SIDE: Dim = Field(PATCH_SIZE);
    const COLOUR: Dim = Field("in_channels");
    parameter(
        gguf,
        "visual.patch_embed.proj.weight",
        (
            Transform::Parts(Parts::one(Turn::Single(2, 2), number)),
            &[Hidden, COLOUR, Field(FRAMES), SIDE, SIDE],
            &[Hidden, COLOUR, SIDE, SIDE],
        ),
    )
}

/// The bias of these filters.
pub(super) const FILTER_BIAS: &[TensorRule] =
    &[whole("v.patch_embd.bias", "visual.patch_embed.proj.bias", &[Hidden])];

/// What all have in their layers.
pub(super) const LAYERS: &[TensorRule] = &[
    square("v.blk.{i}.attn_out", "visual.blocks.{i}.attn.proj"),
    norm("v.blk.{i}.ln1", "visual.blocks.{i}.norm1"),
    norm("v.blk.{i}.ln2", "visual.blocks.{i}.norm2"),
];

/// Queries, keys and values, which llama.cpp has apart.
const THIRDS: &[TensorRule] = &[
    third(0, "v.blk.{i}.attn_q", QKV),
    third(1, "v.blk.{i}.attn_k", QKV),
    third(2, "v.blk.{i}.attn_v", QKV),
];

pub(super) const QKV: &str = "visual.blocks.{i}.attn.qkv";

/// The projector of Qwen 2 and 2.5.
pub(super) const MERGER: &[TensorRule] = &[
    norm("v.post_ln", "visual.merger.ln_q"),
    same("mm.0", "visual.merger.mlp.0", &[MERGED, MERGED]),
    same("mm.2", "visual.merger.mlp.2", TO_TEXT),
];

/// From a square of patches to a token.
pub(super) const TO_TEXT: &[Dim] = &[Field(TEXT_HIDDEN), MERGED];

const MLP: &[TensorRule] = &[
    same("v.blk.{i}.ffn_up", "visual.blocks.{i}.mlp.fc1", UP),
    same("v.blk.{i}.ffn_down", "visual.blocks.{i}.mlp.fc2", DOWN),
];

pub(super) const GATED_MLP: &[TensorRule] = &[
    up("v.blk.{i}.ffn_gate", "visual.blocks.{i}.mlp.gate_proj"),
    up("v.blk.{i}.ffn_up", "visual.blocks.{i}.mlp.up_proj"),
    down("v.blk.{i}.ffn_down", "visual.blocks.{i}.mlp.down_proj"),
];

const WIDTH: Dim = Field(MLP_WIDTH);
const UP: &[Dim] = &[WIDTH, Hidden];
const DOWN: &[Dim] = &[Hidden, WIDTH];

/// What has a bias in all of them.
const ATTENTION_BIASES: &[&str] = &[
    "v.blk.{i}.attn_q",
    "v.blk.{i}.attn_k",
    "v.blk.{i}.attn_v",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
    "mm.0",
    "mm.2",
];
pub(super) const NORM_BIASES: &[&str] = &["v.blk.{i}.ln1", "v.blk.{i}.ln2", "v.post_ln"];
const GATE_BIASES: &[&str] = &["v.blk.{i}.ffn_gate"];

/// What later towers have as well.
pub(super) const TRAITS: Traits = Traits { also_implied: IMPLIED, ..PLAIN.traits };

/// Graphs merge two by two patches, and take two frames.
const IMPLIED: &[(&str, Default)] = &[
    (MERGE_SIZE, Int(2)),
    (FRAMES, Int(2)),
    ("in_channels", COLOURS),
    ("rope_theta", Float(10_000.0)),
];

/// The tokens that stand for images in all models of Qwen.
pub(super) const TOKENS: &[(&str, &str)] = &[
    ("image_token_id", "<|image_pad|>"),
    ("video_token_id", "<|video_pad|>"),
    ("vision_start_token_id", "<|vision_start|>"),
    ("vision_end_token_id", "<|vision_end|>"),
];

const PROCESSOR: &[(&str, Default)] = &[
    ("image_processor_type", Text("Qwen2VLImageProcessor")),
    ("processor_class", Text("Qwen2VLProcessor")),
];

const QWEN2_5_PROCESSOR: &[(&str, Default)] =
    &[PROCESSOR[0], ("processor_class", Text("Qwen2_5_VLProcessor"))];

/// Sets how images become patches.
pub(super) fn restore_images(config: &mut WholeConfig) {
    restore_patch(config, PATCH_SIZE);
    for (name, field) in [("merge_size", MERGE_SIZE), (FRAMES, FRAMES)] {
        let value = config.fields.0.get(field).cloned();
        config
            .processor
            .extend(value.map(|value| (name.to_owned(), value)));
    }
    // The length that GGUF has is that of no model.
    config.fields.0.remove(IMAGE_SIZE);
}

/// Sets the length of what the language model gets, and how images become patches.
pub(super) fn restore_text(config: &mut WholeConfig) -> Result<()> {
    let size = config.fields.need(&[TEXT_HIDDEN])?;
    config
        .vision
        .insert("out_hidden_size".to_owned(), size.into());
    restore_images(config);
    Ok(())
}

const QWEN2_OWN: &[Setting] = &[projector("qwen2vl_merger"), NORM_EPSILON];

pub(super) const QWEN2_VL: Tower = Tower {
    class: ModelClass {
        classes: &["Qwen2VLForConditionalGeneration", "Qwen2VLModel"],
        model_type: "qwen2_vl",
        defaults: &[
            ("depth", Int(32)),
            ("embed_dim", Int(1280)),
            ("hidden_size", Int(3584)),
            ("num_heads", Int(16)),
            ("mlp_ratio", Int(4)),
            ("patch_size", Int(14)),
            (IMAGE_SIZE, Int(560)),
            (EPSILON, Float(1e-6)),
        ],
        implied: &[("hidden_act", Text("quick_gelu"))],
        // llama.cpp's converter writes the first as the width of a layer, and its graphs do not
        // read it.
        own_fields: &[
            ("intermediate_size", "hidden_size"),
            ("hidden_size", "embed_dim"),
            DEPTH,
            HEADS,
        ],
        biases: &[("", ATTENTION_BIASES), ("", NORM_BIASES)],
        tensors: &[FILTERS, LAYERS, THIRDS, MLP, MERGER],
        settings: &[SETTINGS, QWEN2_OWN],
        traits: TRAITS,
        ..PLAIN
    },
    swaps_square: true,
    complete: complete_2,
    wholes: &[Whole {
        text: "qwen2vl",
        class: "Qwen2VLForConditionalGeneration",
        model_type: "qwen2_vl",
        text_type: Some("qwen2_vl_text"),
        inner: "model.",
        tokens: TOKENS,
        processor: PROCESSOR,
    }],
    restore: |config| {
        let width = config.fields.need(&[MLP_WIDTH])?;
        let hidden = config.fields.need(&["hidden_size"])?;
        let ratio = width
            .checked_div(hidden)
            .filter(|ratio| ratio.checked_mul(hidden) == Some(width));
        let ratio =
            ratio.ok_or_else(|| wrong("mlp_ratio", "layers are no multiple of the width"))?;
        config.vision.insert("mlp_ratio".to_owned(), ratio.into());
        // What some versions of the converter write there is another number.
        let text = config.fields.need(&[TEXT_HIDDEN])?;
        config
            .fields
            .0
            .insert("intermediate_size".to_owned(), text.into());
        restore_images(config);
        Ok(())
    },
    ..PLAIN_TOWER
};

/// Sarashina 2 with images, which has the same tower.
pub(super) const SARASHINA2: Tower = Tower {
    class: ModelClass { classes: &["Sarashina2VisionForCausalLM"], ..QWEN2_VL.class },
    wholes: &[],
    one_way: "it lacks the norm behind the projector",
    note: Some("llama.cpp leaves out the norm behind the projector of Sarashina 2"),
    ..QWEN2_VL
};

/// Adds the width of layers of Qwen 2-VL, whose `hidden_size` is that of the language model.
fn complete_2(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    let width = fields
        .need(&["hidden_size"])?
        .checked_mul(fields.need(&["mlp_ratio"])?);
    let width = width.ok_or_else(|| wrong("mlp_ratio", "it is too large"))?;
    fields.0.insert(MLP_WIDTH.to_owned(), width.into());
    let size = fields.need(&["intermediate_size"])?;
    check_text(fields, config, (size, "hidden_size"))
}

/// Field of the layers without windows of attention.
const WHOLE_LAYERS: &str = "fullatt_block_indexes";

/// Windows of attention, and how many layers there are from one without to the next.
pub(super) const WINDOW_PERIOD: &str = "window_period";

const QWEN2_5_OWN: &[Setting] = &[
    projector("qwen2.5vl_merger"),
    SILU,
    count("vision.n_wa_pattern", &[WINDOW_PERIOD]),
    NORM_EPSILON,
];

pub(super) const QWEN2_5_VL: Tower = Tower {
    class: ModelClass {
        classes: &["Qwen2_5_VLForConditionalGeneration"],
        model_type: "qwen2_5_vl",
        defaults: &[
            ("depth", Int(32)),
            ("hidden_size", Int(3584)),
            ("intermediate_size", Int(3420)),
            ("num_heads", Int(16)),
            ("out_hidden_size", Int(3584)),
            ("patch_size", Int(14)),
            (IMAGE_SIZE, Int(560)),
            (EPSILON, Float(1e-6)),
        ],
        implied: &[("hidden_act", Text("silu")), ("window_size", Int(112))],
        own_fields: &[DEPTH, HEADS],
        biases: &[("", ATTENTION_BIASES), ("", GATE_BIASES)],
        tensors: &[FILTERS, LAYERS, THIRDS, GATED_MLP, MERGER],
        settings: &[SETTINGS, QWEN2_5_OWN],
        traits: TRAITS,
        ..PLAIN
    },
    swaps_square: true,
    complete: complete_2_5,
    wholes: &[Whole {
        text: "qwen2vl",
        class: "Qwen2_5_VLForConditionalGeneration",
        model_type: "qwen2_5_vl",
        text_type: Some("qwen2_5_vl_text"),
        inner: "model.",
        tokens: TOKENS,
        processor: QWEN2_5_PROCESSOR,
    }],
    restore: restore_2_5,
    ..PLAIN_TOWER
};

/// Sets which layers have no windows.
pub(super) fn restore_2_5(config: &mut WholeConfig) -> Result<()> {
    let layers = config.fields.need(&["num_hidden_layers"])?;
    let period = config.fields.need(&[WINDOW_PERIOD])?;
    let last = (1..=layers.checked_div(period).unwrap_or(0)).map(|n| n * period - 1);
    config
        .vision
        .insert(WHOLE_LAYERS.to_owned(), last.collect());
    restore_text(config)
}

/// Adds which layers have no windows.
///
/// # Errors
/// `Parse` if it is not every so many layers one: llama.cpp knows no other pattern.
pub(super) fn complete_2_5(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    let size = fields.need(&["out_hidden_size"])?;
    check_text(fields, config, (size, "out_hidden_size"))?;
    let field = WHOLE_LAYERS;
    let layers = u64::from(fields.need(&["num_hidden_layers"])?);
    let usual = || Value::from(vec![7, 15, 23, 31]);
    let all = fields.0.get(field).cloned().unwrap_or_else(usual);
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let period = all
        .first()
        .and_then(Value::as_u64)
        .unwrap_or(layers)
        .saturating_add(1);
    let expected = (1..=layers / period).map(|n| Value::from(n * period - 1));
    if all.is_empty() || !expected.eq(all.iter().cloned()) {
        let what = format!("{all:?} is not every so many of {layers} layers one");
        return Err(wrong(field, what));
    }
    fields.0.insert(WINDOW_PERIOD.to_owned(), period.into());
    Ok(())
}

/// What towers of Qwen call the number of layers and that of heads.
pub(super) const DEPTH: (&str, &str) = ("num_hidden_layers", "depth");
pub(super) const HEADS: (&str, &str) = ("num_attention_heads", "num_heads");

/// Adds what all towers of Qwen have. The tower's own length of the language model's hidden state,
/// a field and what it says, must be that model's.
pub(super) fn check_text(
    fields: &mut Fields,
    config: &TowerConfig<'_>,
    (size, field): (u32, &str),
) -> Result<()> {
    check_layers(fields)?;
    add_base(fields);
    add_text_size(fields, config)?;
    let text = fields.need(&[TEXT_HIDDEN])?;
    if size != text {
        let what = format!("it is {size}, and the language model's hidden_size {text}");
        return Err(wrong(field, what));
    }
    Ok(())
}
