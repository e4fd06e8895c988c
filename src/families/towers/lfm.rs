//! The tower of LFM2-VL: SigLIP 2, whose filters are a matrix, and of whose patches squares become
//! one token.
//!
//! Source: `LFM2VLModel` in `conversion/lfm2.py` and `tools/mtmd/models/siglip.cpp` of llama.cpp.

use super::gemma::{SIGLIP_BIASES, SIGLIP_F32, SIGLIP_IMPLIED, siglip};
use super::{
    EPSILON, GELU, IMAGE_SIZE, MERGE_SIZE, MERGED, NORM_EPSILON, PATCH_SIZE, PLAIN, PLAIN_TOWER,
    SCALE_FACTOR, SETTINGS, TEXT_HIDDEN, Tower, TowerConfig, add_of_model, add_text_size, down,
    expect, norm, pixels, projector, square, up, whole,
};
use crate::Result;
use crate::families::engine::fields::Fields;
use crate::families::engine::rows::*;

const SIGLIP: &[TensorRule] = siglip!("model.vision_tower.vision_model.");

const IN_FRONT: &[TensorRule] = &[
    pixels("model.vision_tower.vision_model.embeddings.patch_embedding.weight"),
    whole(
        "v.patch_embd.bias",
        "model.vision_tower.vision_model.embeddings.patch_embedding.bias",
        &[Hidden],
    ),
    same(
        "v.position_embd",
        "model.vision_tower.vision_model.embeddings.position_embedding",
        &[Field("num_patches"), Hidden],
    ),
];

/// Field of whether the projector norms what it gets.
const NORMS: &str = "projector_use_layernorm";

/// Field of the width of the projector.
const WIDTH: &str = "projector_hidden_size";

const PROJECTOR: &[TensorRule] = &[
    only(Need::If(NORMS), "mm.input_norm", "model.multi_modal_projector.layer_norm", &[MERGED]),
    same("mm.1", "model.multi_modal_projector.linear_1", &[Field(WIDTH), MERGED]),
    same("mm.2", "model.multi_modal_projector.linear_2", &[Field(TEXT_HIDDEN), Field(WIDTH)]),
];

const PROJECTOR_BIASES: &[&str] = &["mm.1", "mm.2"];
const NORM_BIASES: &[&str] = &["mm.input_norm"];

const OWN: &[Setting] = &[projector("lfm2"), NORM_EPSILON, SCALE_FACTOR, GELU];

pub(super) const LFM2_VL: Tower = Tower {
    class: ModelClass {
        classes: &["Lfm2VlForConditionalGeneration"],
        model_type: "siglip2_vision_model",
        defaults: &[
            ("hidden_size", Int(768)),
            ("intermediate_size", Int(3072)),
            ("num_hidden_layers", Int(12)),
            ("num_attention_heads", Int(12)),
            ("num_patches", Int(256)),
            (EPSILON, Float(1e-6)),
        ],
        implied: &[(PATCH_SIZE, Int(16))],
        biases: &[("", SIGLIP_BIASES), ("", PROJECTOR_BIASES), (NORMS, NORM_BIASES)],
        tensors: &[IN_FRONT, SIGLIP, PROJECTOR],
        settings: &[SETTINGS, OWN],
        traits: Traits { also_implied: SIGLIP_IMPLIED, ..PLAIN.traits },
        ..PLAIN
    },
    complete,
    types: &[SIGLIP_F32],
    ..PLAIN_TOWER
};

/// Adds what the config of the whole model says of the projector.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    expect(config, "vision_feature_layer", -1, -1)?;
    expect(config, "projector_hidden_act", "gelu", "gelu")?;
    expect(config, "projector_bias", true, true)?;
    // Images keep their shape, and nothing reads this.
    fields.0.insert(IMAGE_SIZE.to_owned(), 256.into());
    add_of_model(fields, config, (MERGE_SIZE, "downsample_factor"), 2);
    add_of_model(fields, config, (WIDTH, WIDTH), 2560);
    add_of_model(fields, config, (NORMS, NORMS), true);
    Ok(())
}
