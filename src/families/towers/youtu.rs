//! The tower of Youtu-VL: SigLIP 2 whose heads rotate, with windows of attention in some layers,
//! and of whose patches squares become one token.
//!
//! Source: `conversion/youtuvl.py` and `tools/mtmd/models/youtuvl.cpp` of llama.cpp.

use super::gemma::{FILTER_BIAS, SIGLIP_BIASES, SIGLIP_IMPLIED, siglip};
use super::{
    CHANNELS, EPSILON, FLAT, GELU, IMAGE_SIZE, INDEXES, MERGE_SIZE, MERGED, NORM_EPSILON, PLAIN,
    PLAIN_TOWER, SETTINGS, SIDE, TEXT_FIELD, TEXT_HIDDEN, Tower, Whole, down, norm, note_code,
    projector, restore_patch, square, up,
};
use crate::families::engine::rows::*;

const SIGLIP: &[TensorRule] = siglip!("siglip2.vision_model.");

const ENDS: &[TensorRule] = &[
    // llama.cpp has this matrix as it is.
    same(
        "v.patch_embd",
        "siglip2.vision_model.embeddings.patch_embedding",
        &[Hidden, Product(&[SIDE, SIDE, Field(CHANNELS)])],
    ),
    norm("mm.input_norm", "merger.ln_q"),
    same("mm.0", "merger.mlp.0", &[MERGED, MERGED]),
    same("mm.2", "merger.mlp.2", &[Field(TEXT_HIDDEN), MERGED]),
];

/// Field of the layers without windows of attention.
const WHOLE_LAYERS: &str = "fullatt_block_indexes";

const OWN: &[Setting] = &[
    projector("youtuvl"),
    NORM_EPSILON,
    GELU,
    count("vision.spatial_merge_size", &[MERGE_SIZE]),
    count("vision.window_size", &["window_size"]),
    setting(Kind::Own(&required(INDEXES)), "vision.wa_layer_indexes", &[WHOLE_LAYERS]),
];

pub(super) const YOUTU_VL: Tower = Tower {
    class: ModelClass {
        classes: &["YoutuVLForConditionalGeneration"],
        model_type: "siglip2_vision_model",
        defaults: &[
            ("hidden_size", Int(1152)),
            ("intermediate_size", Int(4304)),
            ("num_hidden_layers", Int(27)),
            ("num_attention_heads", Int(16)),
            ("patch_size", Int(16)),
            ("window_size", Int(256)),
            (WHOLE_LAYERS, Absent),
            (IMAGE_SIZE, Int(560)),
            (EPSILON, Float(1e-6)),
        ],
        implied: &[(MERGE_SIZE, Int(2))],
        biases: &[("", FILTER_BIAS), ("", SIGLIP_BIASES), ("", &["mm.0", "mm.2"])],
        tensors: &[SIGLIP, ENDS],
        settings: &[SETTINGS, OWN],
        traits: Traits { also_implied: SIGLIP_IMPLIED, ..PLAIN.traits },
        ..PLAIN
    },
    wholes: &[Whole {
        text: "deepseek2",
        class: "YoutuVLForConditionalGeneration",
        model_type: "youtu_vl",
        text_type: None,
        inner: "model.",
        tokens: &[("image_token_id", "<|image_pad|>")],
        processor: &[
            ("image_processor_type", Text("Siglip2ImageProcessorFast")),
            ("processor_class", Text("YoutuVLProcessor")),
        ],
    }],
    restore: |config| {
        restore_patch(config, "patch_size");
        let size = config.fields.need(&[TEXT_HIDDEN])?;
        config
            .vision
            .insert("out_hidden_size".to_owned(), size.into());
        config.root.insert(TEXT_FIELD.to_owned(), FLAT.into());
        note_code(config);
        Ok(())
    },
    ..PLAIN_TOWER
};
