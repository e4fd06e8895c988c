//! The tower of LFM2-VL: SigLIP 2, whose filters are a matrix, and of whose patches squares become
//! one token.
//!
//! Source: `LFM2VLModel` in `conversion/lfm2.py` and `tools/mtmd/models/siglip.cpp` of llama.cpp.

use serde_json::Value;

use super::gemma::{SIGLIP_BIASES, SIGLIP_F32, SIGLIP_IMPLIED, siglip};
use super::{
    CHANNELS, COLOURS, EPSILON, GELU, IMAGE_SIZE, MERGE_SIZE, MERGED, NORM_EPSILON, PATCH_SIZE,
    PLAIN, PLAIN_TOWER, SETTINGS, TEXT_HIDDEN, Tower, TowerConfig, add_text_size, expect, norm,
    pixels, projector, square,
};
use crate::Result;
use crate::arch::dims::Dim;
use crate::arch::fields::Fields;
use crate::arch::table::{
    Default, Kind, ModelClass, Need, Setting, TensorRule, Transform, only, parameter, same, setting,
};

const SIGLIP: &[TensorRule] = siglip!("model.vision_tower.vision_model.");

const IN_FRONT: &[TensorRule] = &[
    pixels("model.vision_tower.vision_model.embeddings.patch_embedding.weight"),
    parameter(
        "v.patch_embd.bias",
        "model.vision_tower.vision_model.embeddings.patch_embedding.bias",
        (Transform::None, &[Dim::Hidden], &[Dim::Hidden]),
    ),
    same(
        "v.position_embd",
        "model.vision_tower.vision_model.embeddings.position_embedding",
        &[Dim::Field("num_patches"), Dim::Hidden],
    ),
];

/// Field of whether the projector norms what it gets.
const NORMS: &str = "projector_use_layernorm";

/// Field of the width of the projector.
const WIDTH: &str = "projector_hidden_size";

const PROJECTOR: &[TensorRule] = &[
    only(
        Need::If(NORMS),
        "mm.input_norm",
        "model.multi_modal_projector.layer_norm",
        &[MERGED],
    ),
    same(
        "mm.1",
        "model.multi_modal_projector.linear_1",
        &[Dim::Field(WIDTH), MERGED],
    ),
    same(
        "mm.2",
        "model.multi_modal_projector.linear_2",
        &[Dim::Field(TEXT_HIDDEN), Dim::Field(WIDTH)],
    ),
];

const PROJECTOR_BIASES: &[&str] = &["mm.1", "mm.2"];
const NORM_BIASES: &[&str] = &["mm.input_norm"];

const OWN: &[Setting] = &[
    projector("lfm2"),
    NORM_EPSILON,
    setting(
        Kind::Required,
        "vision.projector.scale_factor",
        &[MERGE_SIZE],
    ),
    GELU,
];

pub(super) const LFM2_VL: Tower = Tower {
    class: ModelClass {
        classes: &["Lfm2VlForConditionalGeneration"],
        model_type: "siglip2_vision_model",
        defaults: &[
            ("hidden_size", Default::Int(768)),
            ("intermediate_size", Default::Int(3072)),
            ("num_hidden_layers", Default::Int(12)),
            ("num_attention_heads", Default::Int(12)),
            (CHANNELS, COLOURS),
            ("num_patches", Default::Int(256)),
            (PATCH_SIZE, Default::Int(16)),
            ("hidden_act", Default::Text("gelu_pytorch_tanh")),
            (EPSILON, Default::Float(1e-6)),
        ],
        implied: &[
            SIGLIP_IMPLIED[0],
            SIGLIP_IMPLIED[1],
            (PATCH_SIZE, Default::Int(16)),
        ],
        biases: &[
            ("", SIGLIP_BIASES),
            ("", PROJECTOR_BIASES),
            (NORMS, NORM_BIASES),
        ],
        tensors: &[IN_FRONT, SIGLIP, PROJECTOR],
        settings: &[SETTINGS, OWN],
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
    for (name, own, default) in [
        (MERGE_SIZE, "downsample_factor", Value::from(2)),
        (WIDTH, WIDTH, 2560.into()),
        (NORMS, NORMS, true.into()),
    ] {
        let value = config.root.get(own).cloned().unwrap_or(default);
        fields.0.insert(name.to_owned(), value);
    }
    Ok(())
}
