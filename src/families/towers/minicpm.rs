//! The tower of MiniCPM-V 4.6: SigLIP, with what merges squares of patches behind one of its
//! layers, and once more in the projector.
//!
//! Source: `MiniCPMV4_6VisionModel` in `conversion/minicpm.py` and `tools/mtmd/models/minicpmv.cpp`
//! of llama.cpp.

use serde_json::Value;

use super::gemma::{FILTER_BIAS, SIGLIP_BIASES, SIGLIP_IMPLIED, patches, siglip};
use super::{
    EPSILON, FILTERS, GELU, IMAGE_SIZE, INDEXES, NORM_EPSILON, OfModel, PATCHES, PLAIN,
    PLAIN_TOWER, SETTINGS, TEXT_HIDDEN, Tower, TowerConfig, Whole, WholeConfig, add_patches,
    add_text_size, down, norm, projector, restore_image, restore_patch, square, up,
};
use crate::Result;
use crate::families::engine::fields::{Fields, wrong, wrong_key};
use crate::families::engine::rows::*;

const SIGLIP: &[TensorRule] = siglip!("model.vision_tower.");
const IN_FRONT: &[TensorRule] = patches!("model.vision_tower.");

/// Length of four patches.
const FOUR: Dim = Sum(&[Hidden, Hidden, Hidden, Hidden]);
/// Width of the layer that merges them.
const WIDTH: Dim = Sum(&[Inner, Inner, Inner, Inner]);

const MERGER: &[TensorRule] = &[
    norm("v.vit_merger.ln1", "model.vision_tower.vit_merger.layer_norm1"),
    square("v.vit_merger.attn_q", "model.vision_tower.vit_merger.self_attn.q_proj"),
    square("v.vit_merger.attn_k", "model.vision_tower.vit_merger.self_attn.k_proj"),
    square("v.vit_merger.attn_v", "model.vision_tower.vit_merger.self_attn.v_proj"),
    square("v.vit_merger.attn_out", "model.vision_tower.vit_merger.self_attn.out_proj"),
    same("v.vit_merger.ds_ln", "model.vision_tower.vit_merger.pre_norm", &[FOUR]),
    same("v.vit_merger.ds_ffn_up", "model.vision_tower.vit_merger.linear_1", &[WIDTH, FOUR]),
    same("v.vit_merger.ds_ffn_down", "model.vision_tower.vit_merger.linear_2", &[Hidden, WIDTH]),
    same("mm.input_norm", "model.merger.mlp.0.pre_norm", &[FOUR]),
    same("mm.up", "model.merger.mlp.0.linear_1", &[FOUR, FOUR]),
    same("mm.down", "model.merger.mlp.0.linear_2", &[Field(TEXT_HIDDEN), FOUR]),
];

const BIASES: &[&str] = &[
    "v.vit_merger.ln1",
    "v.vit_merger.attn_q",
    "v.vit_merger.attn_k",
    "v.vit_merger.attn_v",
    "v.vit_merger.attn_out",
    "v.vit_merger.ds_ln",
    "v.vit_merger.ds_ffn_up",
    "v.vit_merger.ds_ffn_down",
    "mm.input_norm",
    "mm.up",
    "mm.down",
];

/// How many rows of positions llama.cpp reads, and positions of a row.
const SIDE: u32 = 70;

/// Field of the layer behind which patches are merged, and of the same in GGUF, which is a list.
const LAYER: &str = "insert_layer_id";
const LAYERS: &str = "insert_layers";

const OWN: &[Setting] = &[
    projector("minicpmv4_6"),
    setting(Kind::Fixed(4), "vision.projector.scale_factor", &[]),
    setting(Kind::Own(&INDEXES), "vision.wa_layer_indexes", &[LAYERS]),
    GELU,
    NORM_EPSILON,
];

pub(super) const MINICPM_V4_6: Tower = Tower {
    class: ModelClass {
        classes: &["MiniCPMV4_6ForConditionalGeneration"],
        model_type: "minicpmv4_6_vision",
        defaults: &[
            ("hidden_size", Int(768)),
            ("intermediate_size", Int(3072)),
            ("num_hidden_layers", Int(12)),
            ("num_attention_heads", Int(12)),
            (IMAGE_SIZE, Int(224)),
            ("patch_size", Int(16)),
            (EPSILON, Float(1e-6)),
        ],
        implied: SIGLIP_IMPLIED,
        biases: &[("", FILTER_BIAS), ("", SIGLIP_BIASES), ("", BIASES)],
        tensors: &[IN_FRONT, SIGLIP, MERGER],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    swaps_square: true,
    of_model: &[OfModel { name: LAYER, field: LAYER, default: Int(6) }],
    expected: &[
        ("merger_times", Int(1), Int(1)),
        ("drop_vision_last_layer", Bool(false), Bool(false)),
    ],
    complete,
    wholes: &[Whole {
        text: "qwen35",
        class: "MiniCPMV4_6ForConditionalGeneration",
        model_type: "minicpmv4_6",
        text_type: None,
        inner: "model.language_model.",
        tokens: &[("image_token_id", "<|image_pad|>"), ("video_token_id", "<|video_pad|>")],
        processor: &[
            ("image_processor_type", Text("MiniCPMV4_6ImageProcessor")),
            ("processor_class", Text("MiniCPMV4_6Processor")),
            ("downsample_mode", Text("16x")),
        ],
    }],
    restore,
    ..PLAIN_TOWER
};

/// Adds the length of a tile, and the layer behind which patches are merged.
///
/// # Errors
/// `Parse` if there is no such layer, or the processor is one without it.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    add_patches(fields)?;
    let patches = fields.need(&[PATCHES])?;
    if patches != SIDE * SIDE {
        let what = format!("{patches} positions, and llama.cpp has {SIDE} rows of {SIDE}");
        return Err(wrong(IMAGE_SIZE, what));
    }
    let mode = config.processor.get("downsample_mode");
    if let Some(mode) = mode.filter(|mode| *mode != "16x") {
        let what = format!("it is {mode}: llama.cpp leaves out what merges patches of 16x then");
        return Err(wrong("downsample_mode", what));
    }
    let tile = config.processor.get("scale_resolution").cloned();
    fields
        .0
        .extend(tile.map(|tile| (IMAGE_SIZE.to_owned(), tile)));
    let (layer, layers) = (fields.need(&[LAYER])?, fields.need(&["num_hidden_layers"])?);
    if layer >= layers {
        return Err(wrong(LAYER, format_args!("{layer} is none of {layers} layers")));
    }
    fields.0.insert(LAYERS.to_owned(), vec![layer].into());
    Ok(())
}

/// Sets the length of a tile in the processor, and the layer behind which patches are merged.
fn restore(config: &mut WholeConfig) -> Result<()> {
    let layers = config.fields.0.remove(LAYERS);
    let layer = match layers.as_ref().and_then(Value::as_array).map(Vec::as_slice) {
        Some([layer]) => layer.clone(),
        None => 6.into(),
        _ => return Err(wrong_key("clip.vision.wa_layer_indexes", "it is no list of one layer")),
    };
    config.vision.insert(LAYER.to_owned(), layer.clone());
    config.fields.0.insert(LAYER.to_owned(), layer);
    let tile = config.fields.0.get(IMAGE_SIZE).cloned();
    config
        .processor
        .extend(tile.map(|tile| ("scale_resolution".to_owned(), tile)));
    restore_patch(config, "patch_size");
    restore_image(config)
}
