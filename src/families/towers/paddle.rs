//! The tower of PaddleOCR-VL: SigLIP whose heads rotate, too, of whose patches squares become one
//! token.
//!
//! Source: `PaddleOCRVisionModel` in `conversion/ernie.py` and `tools/mtmd/models/paddleocr.cpp` of
//! llama.cpp.

use serde_json::Value;

use super::gemma::{FILTER_BIAS, SIGLIP_BIASES, SIGLIP_IMPLIED, patches, siglip};
use super::{
    EPSILON, FILTERS, GELU, IMAGE_SIZE, MAX_PIXELS, MERGE_SIZE, MERGED, MIN_PIXELS, NORM_EPSILON,
    PATCHES, PIXEL_FIELDS, PLAIN, PLAIN_TOWER, SETTINGS, TEXT_HIDDEN, Tower, Whole, add_base,
    add_patches, add_text_size, down, norm, projector, restore_image, restore_patch, square, up,
};
use crate::families::engine::fields::wrong;
use crate::families::engine::rows::*;

const SIGLIP: &[TensorRule] = siglip!("visual.vision_model.");
const IN_FRONT: &[TensorRule] = patches!("visual.vision_model.");

const PROJECTOR: &[TensorRule] = &[
    norm("mm.input_norm", "mlp_AR.pre_norm"),
    same("mm.1", "mlp_AR.linear_1", &[MERGED, MERGED]),
    same("mm.2", "mlp_AR.linear_2", &[Field(TEXT_HIDDEN), MERGED]),
];

const OWN: &[Setting] = &[projector("paddleocr"), MAX_PIXELS, MIN_PIXELS, GELU, NORM_EPSILON];

pub(super) const PADDLE_OCR: Tower = Tower {
    class: ModelClass {
        // The second is what the tower's config calls it.
        classes: &["PaddleOCRVLForConditionalGeneration", "PaddleOCRVisionModel"],
        model_type: "paddleocr_vl_vision",
        defaults: &[
            ("hidden_size", Int(1152)),
            ("intermediate_size", Int(4304)),
            ("num_hidden_layers", Int(27)),
            ("num_attention_heads", Int(16)),
            (IMAGE_SIZE, Int(384)),
            ("patch_size", Int(14)),
            (EPSILON, Float(1e-6)),
        ],
        implied: &[(MERGE_SIZE, Int(2)), ("rope_theta", Float(10_000.0))],
        biases: &[("", FILTER_BIAS), ("", SIGLIP_BIASES), ("", &["mm.input_norm", "mm.1", "mm.2"])],
        tensors: &[IN_FRONT, SIGLIP, PROJECTOR],
        settings: &[SETTINGS, OWN],
        traits: Traits {
            also_implied: SIGLIP_IMPLIED,
            // What transformers does not compute with.
            left_out: &[
                "visual.vision_model.head.",
                "visual.vision_model.embeddings.packing_position_embedding.",
            ],
            ..PLAIN.traits
        },
        ..PLAIN
    },
    of_processor: PIXEL_FIELDS,
    complete: |fields, config| {
        add_text_size(fields, config)?;
        add_patches(fields)?;
        add_base(fields);
        // llama.cpp's images are as large as one may be, and positions are made to fit.
        let pixels = fields.0.get("max_pixels").and_then(Value::as_u64);
        let pixels = pixels.ok_or_else(|| wrong("max_pixels", "it is no number"))?;
        fields
            .0
            .insert(IMAGE_SIZE.to_owned(), pixels.isqrt().into());
        Ok(())
    },
    wholes: &[Whole {
        text: "paddleocr",
        class: "PaddleOCRVLForConditionalGeneration",
        model_type: "paddleocr_vl",
        text_type: Some("paddleocr_vl_text"),
        inner: "model.",
        tokens: &[
            ("image_token_id", "<|IMAGE_PLACEHOLDER|>"),
            ("video_token_id", "<|video_pad|>"),
            ("vision_start_token_id", "<|IMAGE_START|>"),
            ("vision_end_token_id", "<|IMAGE_END|>"),
        ],
        processor: &[
            ("image_processor_type", Text("PaddleOCRVLImageProcessor")),
            ("processor_class", Text("PaddleOCRVLProcessor")),
            ("merge_size", Int(2)),
        ],
    }],
    restore: |config| {
        restore_patch(config, "patch_size");
        restore_image(config)
    },
    ..PLAIN_TOWER
};
