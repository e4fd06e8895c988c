//! The tower of Phi 4 with images: SigLIP 2 without its last layer, whose output nothing reads, so that no directory comes
//! back.
//!
//! Source: `Phi4VisionMmprojModel` in `conversion/phi.py` and `tools/mtmd/models/siglip.cpp` of
//! llama.cpp.

use super::gemma::{SIGLIP_BIASES, SIGLIP_IMPLIED, siglip};
use super::{
    EPSILON, GELU, IMAGE_SIZE, MAX_PIXELS, MIN_PIXELS, NORM_EPSILON, PATCH_SIZE, PATCHES,
    PIXEL_FIELDS, PLAIN, PLAIN_TOWER, SETTINGS, TEXT_HIDDEN, Tower, add_text_size, down, norm,
    pixels, projector, square, up, whole,
};
use crate::families::engine::fields::{LAYERS, wrong};
use crate::families::engine::rows::*;

const SIGLIP: &[TensorRule] = siglip!("model.vision_tower.vision_tower.vision_model.");

const TEXT: Dim = Field(TEXT_HIDDEN);

const ENDS: &[TensorRule] = &[
    pixels("model.vision_tower.vision_tower.vision_model.embeddings.patch_embedding.weight"),
    whole(
        "v.patch_embd.bias",
        "model.vision_tower.vision_tower.vision_model.embeddings.patch_embedding.bias",
        &[Hidden],
    ),
    same(
        "v.position_embd",
        "model.vision_tower.vision_tower.vision_model.embeddings.position_embedding",
        &[Field(PATCHES), Hidden],
    ),
    same("mm.0", "model.mm_projector.0", &[TEXT, Hidden]),
    same("mm.2", "model.mm_projector.2", &[TEXT, TEXT]),
];

const OWN: &[Setting] = &[projector("phi4"), MIN_PIXELS, MAX_PIXELS, GELU, NORM_EPSILON];

/// The norm behind the last layer, and what pools patches.
const LEFT_OUT: &[&str] = &[
    "model.vision_tower.vision_tower.vision_model.post_layernorm.",
    "model.vision_tower.vision_tower.vision_model.head.",
];

pub(super) const PHI4: Tower = Tower {
    class: ModelClass {
        classes: &["Phi4ForCausalLMV"],
        model_type: "siglip2_vision_model",
        defaults: &[
            ("hidden_size", Int(1152)),
            ("intermediate_size", Int(4304)),
            ("num_hidden_layers", Int(27)),
            ("num_attention_heads", Int(16)),
            ("num_patches", Int(256)),
            (EPSILON, Float(1e-6)),
        ],
        biases: &[("", SIGLIP_BIASES.split_at(8).0), ("", &["mm.0", "mm.2"])],
        tensors: &[ENDS, SIGLIP.split_at(8).0],
        settings: &[SETTINGS, OWN],
        traits: Traits { also_implied: SIGLIP_IMPLIED, left_out: LEFT_OUT, ..PLAIN.traits },
        ..PLAIN
    },
    complete: |fields, config| {
        add_text_size(fields, config)?;
        let number = |name: &str| {
            let value = config.processor.get(name).or_else(|| config.root.get(name));
            let value = value
                .and_then(|value| value.as_u64())
                .filter(|n| *n < 1 << 20);
            value.ok_or_else(|| wrong(name, "the processor has no such number"))
        };
        let patch = number(PATCH_SIZE)?;
        fields.0.insert(PATCH_SIZE.to_owned(), patch.into());
        for (name, patches) in PIXEL_FIELDS
            .iter()
            .zip(["min_num_patches", "max_num_patches"])
        {
            let pixels = number(patches)?.saturating_mul(patch * patch);
            fields.0.insert((*name).to_owned(), pixels.into());
        }
        let count = fields.need(&["num_patches"])?;
        let side = count.isqrt();
        if side.checked_mul(side) != Some(count) {
            return Err(wrong("num_patches", "it is no square"));
        }
        fields.0.insert(PATCHES.to_owned(), count.into());
        fields
            .0
            .insert(IMAGE_SIZE.to_owned(), (u64::from(side) * patch).into());
        let layers = fields.need(LAYERS)?;
        let layers = layers.checked_sub(1).filter(|layers| *layers > 0);
        let layers = layers.ok_or_else(|| wrong(LAYERS[0], "there are less than two layers"))?;
        fields.0.insert(LAYERS[0].to_owned(), layers.into());
        Ok(())
    },
    unread_layer: Some("model.vision_tower.vision_tower.vision_model.encoder.layers."),
    one_way: "it lacks the last layer of the encoder, which nothing reads",
    ..PLAIN_TOWER
};
