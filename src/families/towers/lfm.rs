//! The tower of LFM2-VL: SigLIP 2, whose filters are a matrix, and of whose patches squares become
//! one token.
//!
//! Source: `LFM2VLModel` in `conversion/lfm2.py` and `tools/mtmd/models/siglip.cpp` of llama.cpp.

use super::gemma::{SIGLIP_BIASES, SIGLIP_F32, SIGLIP_IMPLIED, siglip};
use super::{
    EPSILON, GELU, IMAGE_SIZE, MERGE_SIZE, MERGED, NORM_EPSILON, OfModel, PATCH_SIZE, PLAIN,
    PLAIN_TOWER, SCALE_FACTOR, SETTINGS, TEXT_HIDDEN, Tower, TowerConfig, Whole, add_text_size,
    down, norm, pixels, projector, restore_patch, square, up, whole,
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
    of_model: &[
        OfModel { name: MERGE_SIZE, field: "downsample_factor", default: Int(2) },
        OfModel { name: WIDTH, field: WIDTH, default: Int(2560) },
        OfModel { name: NORMS, field: NORMS, default: Bool(true) },
    ],
    expected: &[
        ("vision_feature_layer", Minus(1), Minus(1)),
        ("projector_hidden_act", Text("gelu"), Text("gelu")),
        ("projector_bias", Bool(true), Bool(true)),
    ],
    complete,
    wholes: &[Whole {
        text: "lfm2",
        class: "Lfm2VlForConditionalGeneration",
        model_type: "lfm2_vl",
        text_type: None,
        inner: "model.language_model.",
        tokens: &[("image_token_id", "<image>")],
        processor: &[
            ("image_processor_type", Text("Lfm2VlImageProcessorFast")),
            ("processor_class", Text("Lfm2VlProcessor")),
        ],
    }],
    restore: |config| {
        restore_patch(config, "encoder_patch_size");
        let merge = config.fields.0.get(MERGE_SIZE).cloned();
        config
            .processor
            .extend(merge.map(|merge| ("downsample_factor".to_owned(), merge)));
        config
            .vision
            .insert("vision_use_head".to_owned(), false.into());
        Ok(())
    },
    types: &[SIGLIP_F32],
    ..PLAIN_TOWER
};

/// Adds the length of an image.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    // Images keep their shape, and nothing reads this.
    fields.0.insert(IMAGE_SIZE.to_owned(), 256.into());
    Ok(())
}
