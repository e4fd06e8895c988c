//! The tower of Step 3-VL and 3.7: layers are scaled, heads rotate by rows and columns, and two convolutions make one
//! token of a square of patches.
//!
//! Source: `Step3VLVisionModel` in `conversion/step3.py` and `tools/mtmd/models/step3vl.cpp` of
//! llama.cpp.

use super::whisper::MOMENTS;
use super::{
    CHANNELS, COLOURS, EPSILON, FILTERS, FUSED, NORM_EPSILON, PATCHES, PLAIN, PLAIN_TOWER,
    SETTINGS, TEXT_HIDDEN, Tower, TowerType, Whole, add_patches, add_text_size, down, norm,
    note_code, projector, square, up, whole,
};
use crate::families::engine::fields::{HEADS, HIDDEN, INNER, LAYERS, wrong};
use crate::families::engine::rows::*;

/// The name of a part of a layer.
macro_rules! layer {
    ($name:literal) => {
        concat!("vision_model.transformer.resblocks.{i}.", $name)
    };
}

const TOWER: &[TensorRule] = &[
    same("v.patch_embd", "vision_model.conv1", FILTERS),
    whole("v.position_embd.weight", "vision_model.positional_embedding", &[Field(PATCHES), Hidden]),
    norm("v.pre_ln", "vision_model.ln_pre"),
    whole("v.blk.{i}.attn_qkv.weight", layer!("attn.in_proj_weight"), FUSED),
    whole("v.blk.{i}.attn_qkv.bias", layer!("attn.in_proj_bias"), &[THREE]),
    square("v.blk.{i}.attn_out", layer!("attn.out_proj")),
    norm("v.blk.{i}.ln1", layer!("ln_1")),
    norm("v.blk.{i}.ln2", layer!("ln_2")),
    whole("v.blk.{i}.ls1.weight", layer!("ls_1.gamma"), &[Hidden]),
    whole("v.blk.{i}.ls2.weight", layer!("ls_2.gamma"), &[Hidden]),
    up("v.blk.{i}.ffn_up", layer!("mlp.c_fc")),
    down("v.blk.{i}.ffn_down", layer!("mlp.c_proj")),
];

const THREE: Dim = Sum(&[Hidden, Hidden, Hidden]);
const TWICE: Dim = Sum(&[Hidden, Hidden]);
const FOUR_TIMES: Dim = Sum(&[TWICE, TWICE]);

const PROJECTOR: &[TensorRule] = &[
    same("mm.0", "vision_model.vit_downsampler1", &[TWICE, Hidden, MOMENTS, MOMENTS]),
    same("mm.1", "vision_model.vit_downsampler2", &[FOUR_TIMES, TWICE, MOMENTS, MOMENTS]),
    same("mm.model.fc", "vit_large_projector", &[Field(TEXT_HIDDEN), FOUR_TIMES]),
];

const BIASES: &[&str] = &[
    "v.pre_ln",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ln1",
    "v.blk.{i}.ln2",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
];

const OWN: &[Setting] = &[
    projector("step3vl"),
    NORM_EPSILON,
    setting(Kind::Fixed(4), "vision.projector.scale_factor", &[]),
    setting(Kind::Fixed(3024), "vision.preproc_image_size", &[]),
];

/// Field of the width of feed-forward layers, divided by that of layers.
const RATIO: &str = "mlp_ratio";

pub(super) const STEP_VL: Tower = Tower {
    class: ModelClass {
        classes: &["StepVLForConditionalGeneration", "Step3p7ForConditionalGeneration"],
        model_type: "perception_encoder",
        defaults: &[
            ("width", Int(1536)),
            ("layers", Int(47)),
            ("heads", Int(16)),
            ("image_size", Int(728)),
            ("patch_size", Int(14)),
            (EPSILON, Float(1e-5)),
            (RATIO, Float(8960.0 / 1536.0)),
            (CHANNELS, COLOURS),
        ],
        implied: &[
            ("hidden_act", Text("quick_gelu")),
            ("use_cls_token", Bool(false)),
            ("use_ln_post", Bool(false)),
            ("use_ln_pre", Bool(true)),
            ("use_abs_posemb", Bool(true)),
            ("use_rope2d", Bool(true)),
        ],
        own_fields: &[(HIDDEN[0], "width"), (LAYERS[0], "layers"), (HEADS[0], "heads")],
        biases: &[("", BIASES), ("", &["mm.0", "mm.1"])],
        tensors: &[TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    colours: Some(super::CLIP_COLOURS),
    expected: &[("understand_projector_stride", Int(2), Int(2))],
    complete: |fields, config| {
        add_text_size(fields, config)?;
        add_patches(fields)?;
        if fields.count(INNER)?.is_none() {
            let ratio = fields.number(&[RATIO])?.unwrap_or(0.0);
            let width = (f64::from(fields.need(HIDDEN)?) * ratio).round_ties_even();
            if !(1.0..=f64::from(u32::MAX)).contains(&width) {
                return Err(wrong(RATIO, "it is no ratio of widths"));
            }
            fields.0.insert(INNER[0].to_owned(), (width as u32).into());
        }
        Ok(())
    },
    types: &[("mm.0.weight", TowerType::Filter), ("mm.1.weight", TowerType::Filter)],
    wholes: &[
        STEP_WHOLE,
        Whole {
            text: "step35",
            class: "Step3p7ForConditionalGeneration",
            model_type: "step3p7",
            ..STEP_WHOLE
        },
    ],
    restore: |config| {
        let width = f64::from(config.fields.need(INNER)?);
        let ratio = width / f64::from(config.fields.need(HIDDEN)?);
        config.vision.insert(RATIO.to_owned(), ratio.into());
        config.fields.0.remove(INNER[0]);
        note_code(config);
        Ok(())
    },
    ..PLAIN_TOWER
};

const STEP_WHOLE: Whole = Whole {
    text: "qwen3",
    class: "StepVLForConditionalGeneration",
    model_type: "step_robotics",
    text_type: None,
    inner: "model.",
    tokens: &[("image_token_id", "<im_patch>")],
    processor: &[],
};
