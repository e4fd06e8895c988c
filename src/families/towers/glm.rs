//! The towers of GLM 4.1V, 4.5V, OCR and 5: as that of Qwen 2.5-VL, with learned positions, a convolution
//! that makes one token of a square of patches, and a gated projector.
//!
//! Source: `Glm4VVisionModel` in `conversion/qwen3vl.py` and `tools/mtmd/models/glm4v.cpp` of
//! llama.cpp.

use serde_json::Value;

use super::qwen::{DEPTH, FILTER_BIAS, FILTERS, HEADS, LAYERS, TRAITS, check_text, restore_text};
use super::{
    EPSILON, FUSED, IMAGE_SIZE, MAX_PIXELS, MERGE_SIZE, MIN_PIXELS, NORM_EPSILON, PATCH_SIZE,
    PATCHES, PIXEL_FIELDS, PLAIN, PLAIN_TOWER, SETTINGS, SILU, TEXT_HIDDEN, Tower, TowerConfig,
    Whole, add_patches, down, norm, projector, up,
};
use crate::Result;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;

const TEXT: Dim = Field(TEXT_HIDDEN);

/// Layers are as wide as a hidden state of the language model; the projector has the width that the
/// config states.
const TOWER: &[TensorRule] = &[
    norm("v.norm_embd", "visual.post_conv_layernorm"),
    same("v.position_embd", "visual.embeddings.position_embedding", &[Field(PATCHES), Hidden]),
    same("v.blk.{i}.attn_qkv", "visual.blocks.{i}.attn.qkv", FUSED),
    same("v.blk.{i}.ffn_gate", "visual.blocks.{i}.mlp.gate_proj", &[TEXT, Hidden]),
    same("v.blk.{i}.ffn_up", "visual.blocks.{i}.mlp.up_proj", &[TEXT, Hidden]),
    same("v.blk.{i}.ffn_down", "visual.blocks.{i}.mlp.down_proj", &[Hidden, TEXT]),
    norm("v.post_ln", "visual.post_layernorm"),
];

const PROJECTOR: &[TensorRule] = &[
    same(
        "mm.patch_merger",
        "visual.downsample",
        &[TEXT, Hidden, Field(MERGE_SIZE), Field(MERGE_SIZE)],
    ),
    same("mm.model.fc", "visual.merger.proj", &[TEXT, TEXT]),
    same("mm.post_norm", "visual.merger.post_projection_norm", &[TEXT]),
    same("mm.gate", "visual.merger.gate_proj", &[Inner, TEXT]),
    same("mm.up", "visual.merger.up_proj", &[Inner, TEXT]),
    same("mm.down", "visual.merger.down_proj", &[TEXT, Inner]),
];

const BIASES: &[(&str, &[&str])] =
    &[("", &["mm.patch_merger", "mm.post_norm"]), ("attention_bias", &["v.blk.{i}.attn_qkv"])];

const OWN: &[Setting] = &[projector("glm4v"), SILU, NORM_EPSILON];

/// GLM-OCR norms queries and keys, and has no learned positions.
const OCR_TOWER: &[TensorRule] = &[
    TOWER[2],
    same("v.blk.{i}.attn_q_norm", "visual.blocks.{i}.attn.q_norm", &[Head]),
    same("v.blk.{i}.attn_k_norm", "visual.blocks.{i}.attn.k_norm", &[Head]),
    up("v.blk.{i}.ffn_gate", "visual.blocks.{i}.mlp.gate_proj"),
    up("v.blk.{i}.ffn_up", "visual.blocks.{i}.mlp.up_proj"),
    down("v.blk.{i}.ffn_down", "visual.blocks.{i}.mlp.down_proj"),
    TOWER[6],
];

/// Width of the projector of GLM-OCR.
const OCR_WIDTH: Dim = Product(&[TEXT, Field("in_channels")]);

const OCR_PROJECTOR: &[TensorRule] = &[
    PROJECTOR[0],
    PROJECTOR[1],
    PROJECTOR[2],
    same("mm.gate", "visual.merger.gate_proj", &[OCR_WIDTH, TEXT]),
    same("mm.up", "visual.merger.up_proj", &[OCR_WIDTH, TEXT]),
    same("mm.down", "visual.merger.down_proj", &[TEXT, OCR_WIDTH]),
];

const OCR_BIASES: &[(&str, &[&str])] = &[
    BIASES[0],
    (
        "attention_bias",
        &[
            "v.blk.{i}.attn_qkv",
            "v.blk.{i}.attn_out",
            "v.blk.{i}.ffn_gate",
            "v.blk.{i}.ffn_up",
            "v.blk.{i}.ffn_down",
        ],
    ),
];

pub(super) const GLM_OCR: Tower = Tower {
    class: ModelClass {
        classes: &["GlmOcrForConditionalGeneration"],
        model_type: "glm_ocr_vision",
        defaults: &[
            ("depth", Int(24)),
            ("hidden_size", Int(1024)),
            ("intermediate_size", Int(4096)),
            ("num_heads", Int(16)),
            ("out_hidden_size", Int(1536)),
            (IMAGE_SIZE, Int(336)),
            ("patch_size", Int(14)),
            ("attention_bias", Bool(true)),
            ("rms_norm_eps", Float(1e-5)),
        ],
        biases: OCR_BIASES,
        tensors: &[FILTERS, FILTER_BIAS, LAYERS, OCR_TOWER, OCR_PROJECTOR],
        traits: Traits { sign: Sign::Tensor("v.blk.0.attn_q_norm.weight"), ..TRAITS },
        ..GLM4V.class
    },
    wholes: &[Whole {
        class: "GlmOcrForConditionalGeneration",
        model_type: "glm_ocr",
        text_type: Some("glm_ocr_text"),
        processor: &[
            ("image_processor_type", Text("Glm46VImageProcessor")),
            ("processor_class", Text("Glm46VProcessor")),
        ],
        ..GLM4V_WHOLE
    }],
    ..GLM4V
};

/// Field of the width of the projector of GLM 5.
const WIDTH: &str = "projection_intermediate_size";

const GLM5_PROJECTOR: &[TensorRule] = &[
    PROJECTOR[0],
    PROJECTOR[1],
    PROJECTOR[2],
    same("mm.gate", "visual.merger.gate_proj", &[Field(WIDTH), TEXT]),
    same("mm.up", "visual.merger.up_proj", &[Field(WIDTH), TEXT]),
    same("mm.down", "visual.merger.down_proj", &[TEXT, Field(WIDTH)]),
];

/// Numbers of tokens of an image, and of pixels.
const TOKEN_LIMITS: [(&str, &str); 2] =
    [("min_image_tokens", PIXEL_FIELDS[0]), ("max_image_tokens", PIXEL_FIELDS[1])];

const GLM5_OWN: &[Setting] = &[
    projector("glm5v"),
    SILU,
    NORM_EPSILON,
    count("vision.spatial_merge_size", &[MERGE_SIZE]),
    number("vision.swiglu_clamp", &["swiglu_limit"]),
    MIN_PIXELS,
    MAX_PIXELS,
];

/// GLM 5 limits what goes through gates, and has a width of the projector of its own.
pub(super) const GLM5_NEXT: Tower = Tower {
    class: ModelClass {
        classes: &["Glm5NextForConditionalGeneration"],
        model_type: "glm5_next_vision",
        defaults: &[
            ("depth", Int(24)),
            ("hidden_size", Int(1024)),
            ("intermediate_size", Int(4096)),
            ("num_heads", Int(16)),
            ("out_hidden_size", Int(1536)),
            (IMAGE_SIZE, Int(336)),
            ("patch_size", Int(14)),
            ("attention_bias", Bool(true)),
            ("rms_norm_eps", Float(1e-5)),
            (WIDTH, Int(10_240)),
            ("swiglu_limit", Float(10.0)),
        ],
        tensors: &[FILTERS, FILTER_BIAS, LAYERS, OCR_TOWER, GLM5_PROJECTOR],
        settings: &[SETTINGS, GLM5_OWN],
        traits: TRAITS,
        ..GLM_OCR.class
    },
    complete: |fields, config| {
        complete(fields, config)?;
        let token = area_of_token(fields)?;
        for (name, field) in TOKEN_LIMITS {
            let tokens = config.processor.get(name).and_then(Value::as_u64);
            let pixels = tokens.and_then(|tokens| tokens.checked_mul(token));
            let pixels = pixels.ok_or_else(|| wrong(name, "the processor has no such number"))?;
            fields.0.insert(field.to_owned(), pixels.into());
        }
        Ok(())
    },
    wholes: &[Whole {
        text: "glm5-next",
        class: "Glm5NextForConditionalGeneration",
        model_type: "glm5_next",
        text_type: Some("glm5_next_text"),
        processor: &[
            ("image_processor_type", Text("Glm5NextImageProcessor")),
            ("processor_class", Text("Glm5NextProcessor")),
        ],
        ..GLM4V_WHOLE
    }],
    restore: |config| {
        let token = area_of_token(&config.fields)?;
        for (name, field) in TOKEN_LIMITS {
            let pixels = config.fields.0.remove(field).and_then(|n| n.as_u64());
            let tokens = pixels.and_then(|pixels| pixels.checked_div(token));
            config
                .processor
                .extend(tokens.map(|tokens| (name.to_owned(), tokens.into())));
        }
        (GLM4V.restore)(config)
    },
    ..GLM_OCR
};

/// Pixels of which one token is made.
fn area_of_token(fields: &Fields) -> Result<u64> {
    let side = u64::from(fields.need(&[PATCH_SIZE])?) * u64::from(fields.need(&[MERGE_SIZE])?);
    side.checked_mul(side)
        .ok_or_else(|| wrong(PATCH_SIZE, "it is too large"))
}

pub(super) const GLM4V: Tower = Tower {
    class: ModelClass {
        classes: &["Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"],
        model_type: "glm4v",
        defaults: &[
            ("depth", Int(24)),
            ("hidden_size", Int(1536)),
            ("intermediate_size", Int(13_696)),
            ("num_heads", Int(12)),
            ("out_hidden_size", Int(4096)),
            (IMAGE_SIZE, Int(336)),
            ("patch_size", Int(14)),
            ("attention_bias", Bool(false)),
            ("rms_norm_eps", Float(1e-5)),
        ],
        implied: &[("hidden_act", Text("silu"))],
        own_fields: &[DEPTH, HEADS, (EPSILON, "rms_norm_eps")],
        biases: BIASES,
        tensors: &[FILTERS, FILTER_BIAS, LAYERS, TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        traits: TRAITS,
        ..PLAIN
    },
    complete,
    wholes: &[
        GLM4V_WHOLE,
        Whole {
            text: "glm4moe",
            class: "Glm4vMoeForConditionalGeneration",
            model_type: "glm4v_moe",
            text_type: Some("glm4v_moe_text"),
            ..GLM4V_WHOLE
        },
    ],
    restore: |config| {
        let image = config.fields.0.get(IMAGE_SIZE).cloned();
        restore_text(config)?;
        config
            .fields
            .0
            .extend(image.map(|image| (IMAGE_SIZE.to_owned(), image)));
        Ok(())
    },
    ..PLAIN_TOWER
};

const GLM4V_WHOLE: Whole = Whole {
    text: "glm4",
    class: "Glm4vForConditionalGeneration",
    model_type: "glm4v",
    text_type: Some("glm4v_text"),
    inner: "model.language_model.",
    tokens: &[
        ("image_token_id", "<|image|>"),
        ("video_token_id", "<|video|>"),
        ("image_start_token_id", "<|begin_of_image|>"),
        ("image_end_token_id", "<|end_of_image|>"),
        ("video_start_token_id", "<|begin_of_video|>"),
        ("video_end_token_id", "<|end_of_video|>"),
    ],
    processor: &[
        ("image_processor_type", Text("Glm4vImageProcessor")),
        ("processor_class", Text("Glm4vProcessor")),
    ],
};

/// Adds the number of patches, and checks the length of what the language model gets.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    let size = fields.need(&["out_hidden_size"])?;
    add_patches(fields)?;
    check_text(fields, config, (size, "out_hidden_size"))
}
