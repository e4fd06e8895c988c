//! The tower of Janus Pro: SigLIP of a config of its own. What makes images is left out, so that no
//! directory comes back.
//!
//! Source: `JanusProVisionModel` in `conversion/januspro.py` and `tools/mtmd/models/siglip.cpp` of
//! llama.cpp.

use super::gemma::{FILTER_BIAS, SIGLIP_BIASES, patches, siglip};
use super::{
    CHANNELS, COLOURS, EPSILON, FILTERS, GELU, IMAGE_SIZE, NORM_EPSILON, PATCHES, PLAIN,
    PLAIN_TOWER, SETTINGS, TEXT_HIDDEN, Tower, add_patches, add_text_size, down, norm, projector,
    square, up,
};
use crate::families::engine::fields::{HIDDEN, INNER, wrong};
use crate::families::engine::rows::*;

const SIGLIP: &[TensorRule] = siglip!("model.vision_model.", "self_attn.projection_layer");
const IN_FRONT: &[TensorRule] = patches!("model.vision_model.");

const TEXT: Dim = Field(TEXT_HIDDEN);

const PROJECTOR: &[TensorRule] = &[
    same("mm.0", "model.aligner.fc1", &[TEXT, Hidden]),
    same("mm.1", "model.aligner.hidden_layers.0", &[TEXT, TEXT]),
];

const OWN: &[Setting] = &[projector("janus_pro"), NORM_EPSILON, GELU];

pub(super) const JANUS: Tower = Tower {
    class: ModelClass {
        classes: &["JanusForConditionalGeneration"],
        model_type: "janus_vision_model",
        defaults: &[
            ("hidden_size", Int(1024)),
            ("num_hidden_layers", Int(24)),
            ("num_attention_heads", Int(16)),
            (IMAGE_SIZE, Int(384)),
            ("patch_size", Int(16)),
            (RATIO, Float(4.0)),
            (EPSILON, Float(1e-6)),
        ],
        implied: &[
            ("hidden_act", Text("gelu")),
            ("attention_bias", Bool(true)),
            ("use_qk_norm", Bool(false)),
            // Layers of the projector.
            ("depth", Int(2)),
            (CHANNELS, COLOURS),
        ],
        biases: &[("", FILTER_BIAS), ("", SIGLIP_BIASES), ("", &["mm.0", "mm.1"])],
        tensors: &[IN_FRONT, SIGLIP, PROJECTOR],
        settings: &[SETTINGS, OWN],
        traits: Traits { left_out: &["model.vqmodel.", "model.generation_"], ..PLAIN.traits },
        ..PLAIN
    },
    complete: |fields, config| {
        add_text_size(fields, config)?;
        add_patches(fields)?;
        if fields.count(INNER)?.is_none() {
            let ratio = fields.number(&[RATIO])?.unwrap_or(4.0);
            let width = (f64::from(fields.need(HIDDEN)?) * ratio).round_ties_even();
            if !(1.0..=f64::from(u32::MAX)).contains(&width) {
                return Err(wrong(RATIO, "it is no ratio of widths"));
            }
            fields.0.insert(INNER[0].to_owned(), (width as u32).into());
        }
        Ok(())
    },
    one_way: "it lacks what makes images",
    ..PLAIN_TOWER
};

/// Field of the width of feed-forward layers, divided by that of layers.
const RATIO: &str = "mlp_ratio";
