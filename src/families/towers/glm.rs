//! The tower of GLM 4.1V and 4.5V: as that of Qwen 2.5-VL, with learned positions, a convolution
//! that makes one token of a square of patches, and a gated projector.
//!
//! Source: `Glm4VVisionModel` in `conversion/qwen3vl.py` and `tools/mtmd/models/glm4v.cpp` of
//! llama.cpp.

use super::qwen::{DEPTH, FILTER_BIAS, FILTERS, HEADS, LAYERS, TRAITS, check_text, restore_text};
use super::{
    EPSILON, FUSED, IMAGE_SIZE, MERGE_SIZE, NORM_EPSILON, PATCHES, PLAIN, PLAIN_TOWER, SETTINGS,
    SILU, TEXT_HIDDEN, Tower, TowerConfig, Whole, add_patches, down, norm, projector, up,
};
use crate::Result;
use crate::families::engine::fields::Fields;
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
