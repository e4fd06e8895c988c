//! The towers of Idefics 3 and SmolVLM: SigLIP, of whose patches squares become one token.
//!
//! Source: `conversion/smolvlm.py` and `tools/mtmd/models/siglip.cpp` of llama.cpp.

use super::gemma::{FILTER_BIAS, SIGLIP_BIASES, SIGLIP_F32, SIGLIP_IMPLIED, patches, siglip};
use super::{
    EPSILON, FILTERS, GELU, IMAGE_SIZE, NORM_EPSILON, OfModel, PATCHES, PLAIN, PLAIN_TOWER,
    SETTINGS, TEXT_HIDDEN, Tower, TowerConfig, Whole, add_patches, add_text_size, down, norm,
    projector, square, up,
};
use serde_json::json;

use crate::Result;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;

const SIGLIP: &[TensorRule] = siglip!("model.vision_model.");
const IN_FRONT: &[TensorRule] = patches!("model.vision_model.");

/// Field of how many patches in a row, and rows of them, become one token.
const SCALE: &str = "scale_factor";

/// Field of the longest side of an image.
const LONGEST: &str = "longest_edge";

const PROJECTOR: &[TensorRule] = &[same(
    "mm.model.fc",
    "model.connector.modality_projection.proj",
    &[Field(TEXT_HIDDEN), Product(&[Field(SCALE), Field(SCALE), Hidden])],
)];

const OWN: &[Setting] = &[
    projector("idefics3"),
    NORM_EPSILON,
    setting(Kind::Required, "vision.projector.scale_factor", &[SCALE]),
    GELU,
    count("vision.preproc_image_size", &[LONGEST]),
];

const SIZES: &[(&str, Default)] = &[
    ("hidden_size", Int(1152)),
    ("intermediate_size", Int(3072)),
    ("num_hidden_layers", Int(12)),
    ("num_attention_heads", Int(16)),
    ("image_size", Int(224)),
    ("patch_size", Int(32)),
    (EPSILON, Float(1e-6)),
];

pub(super) const IDEFICS3: Tower = Tower {
    class: ModelClass {
        classes: &["Idefics3ForConditionalGeneration"],
        model_type: "idefics3_vision",
        defaults: SIZES,
        implied: SIGLIP_IMPLIED,
        biases: &[("", FILTER_BIAS), ("", SIGLIP_BIASES)],
        tensors: &[IN_FRONT, SIGLIP, PROJECTOR],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    swaps_square: true,
    of_model: &[OfModel { name: SCALE, field: SCALE, default: Int(2) }],
    complete,
    // SmolVLM computes the same, and nothing in GGUF tells it from Idefics 3.
    wholes: &[Whole {
        text: "llama",
        class: "Idefics3ForConditionalGeneration",
        model_type: "idefics3",
        text_type: None,
        inner: "model.text_model.",
        tokens: &[("image_token_id", "<image>")],
        processor: &[
            ("image_processor_type", Text("Idefics3ImageProcessor")),
            ("processor_class", Text("Idefics3Processor")),
        ],
    }],
    restore: |config| {
        for (name, field) in [("size", LONGEST), ("max_image_size", IMAGE_SIZE)] {
            if let Some(side) = config.fields.0.get(field) {
                config
                    .processor
                    .insert(name.to_owned(), json!({ LONGEST: side }));
            }
        }
        Ok(())
    },
    types: &[SIGLIP_F32],
    ..PLAIN_TOWER
};

pub(super) const SMOLVLM: Tower = Tower {
    class: ModelClass {
        classes: &["SmolVLMForConditionalGeneration"],
        model_type: "smolvlm_vision",
        ..IDEFICS3.class
    },
    ..IDEFICS3
};

/// Adds the squares of patches, and the longest side of an image.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    add_patches(fields)?;
    let of_images = |name: &str| config.processor.get(name)?.get(LONGEST).cloned();
    // llama.cpp cuts images into tiles of the size that the tower sees.
    let tile = of_images("max_image_size");
    if tile.is_some() && tile.as_ref() != fields.0.get(IMAGE_SIZE) {
        return Err(wrong(IMAGE_SIZE, "the processor's max_image_size is another"));
    }
    let longest = of_images("size");
    let longest = longest.or_else(|| fields.0.get(IMAGE_SIZE).cloned());
    fields
        .0
        .extend(longest.map(|longest| (LONGEST.to_owned(), longest)));
    Ok(())
}
