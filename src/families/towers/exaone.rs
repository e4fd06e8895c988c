//! The tower of EXAONE 4.5: that of Qwen 2.5-VL, whose heads of queries share those of keys and
//! values.
//!
//! Source: `Exaone4_5VisionModel` in `conversion/exaone.py` and `tools/mtmd/models/exaone4_5.cpp`
//! of llama.cpp.

use super::qwen::{
    DEPTH, FILTERS, GATED_MLP, HEADS, LAYERS, MERGER, QKV, QWEN2_5_VL, TOKENS, WINDOW_PERIOD,
    complete_2_5, restore_2_5,
};
use super::{
    EPSILON, IMAGE_SIZE, MAX_PIXELS, MIN_PIXELS, NORM_EPSILON, PIXEL_FIELDS, SETTINGS, SILU, Tower,
    Whole, projector,
};
use crate::families::engine::fields::KV_HEADS;
use crate::families::engine::rows::*;

const FUSED: &[TensorRule] =
    &[same("v.blk.{i}.attn_qkv", QKV, &[Sum(&[Hidden, Keys, Keys]), Hidden])];

const BIASES: &[&str] = &[
    "v.blk.{i}.attn_qkv",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ffn_gate",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
    "mm.0",
    "mm.2",
];

const OWN: &[Setting] = &[
    projector("exaone4_5"),
    SILU,
    MIN_PIXELS,
    MAX_PIXELS,
    count("vision.attention.head_count_kv", KV_HEADS),
    NORM_EPSILON,
    count("vision.window_size", &["window_size"]),
    count("vision.n_wa_pattern", &[WINDOW_PERIOD]),
];

pub(super) const EXAONE4_5: Tower = Tower {
    class: ModelClass {
        classes: &["Exaone4_5_ForConditionalGeneration"],
        model_type: "exaone4_5_vision",
        defaults: &[
            ("depth", Int(32)),
            ("hidden_size", Int(3584)),
            ("intermediate_size", Int(3420)),
            ("num_heads", Int(16)),
            (KV_HEADS[0], Int(8)),
            ("out_hidden_size", Int(3584)),
            ("patch_size", Int(14)),
            (IMAGE_SIZE, Int(560)),
            (EPSILON, Float(1e-6)),
        ],
        own_fields: &[DEPTH, HEADS],
        biases: &[("", BIASES)],
        tensors: &[FILTERS, LAYERS, FUSED, GATED_MLP, MERGER],
        settings: &[SETTINGS, OWN],
        ..QWEN2_5_VL.class
    },
    of_processor: PIXEL_FIELDS,
    complete: complete_2_5,
    wholes: &[Whole {
        text: "exaone4",
        class: "Exaone4_5_ForConditionalGeneration",
        model_type: "exaone4_5",
        text_type: None,
        inner: "model.language_model.",
        tokens: &[TOKENS[0], TOKENS[1]],
        processor: &[
            ("image_processor_type", Text("Qwen2VLImageProcessor")),
            ("processor_class", Text("Exaone4_5_Processor")),
        ],
    }],
    restore: restore_2_5,
    ..QWEN2_5_VL
};
