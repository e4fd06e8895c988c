//! The tower of Gemma 4, whose projections may clip what goes in and what comes out. Its tower of
//! sounds is left out.
//!
//! Source: `Gemma4VisionAudioModel` in `conversion/gemma.py` and `tools/mtmd/models/gemma4v.cpp` of
//! llama.cpp.

use super::{
    CHANNELS, COLOURS, EPSILON, GELU, IMAGE_SIZE, NORM_EPSILON, PATCH_SIZE, PLAIN, PLAIN_TOWER,
    SETTINGS, TEXT_HIDDEN, Tower, TowerConfig, Whole, WholeConfig, add_base, add_text_size, down,
    norm, pixels, restore_heads, restore_patch, square, up, whole,
};
use serde_json::Value;

use crate::Result;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;

/// The name of a part of a layer.
macro_rules! layer {
    ($($part:literal),+) => {
        concat!("model.vision_tower.encoder.layers.{i}.", $($part),+)
    };
}

/// The bounds of a projection: of what goes in, and of what comes out.
macro_rules! bounds {
    ($gguf:literal, $hf:literal) => {
        &[
            bound(concat!($gguf, ".input_min"), layer!($hf, ".input_min")),
            bound(concat!($gguf, ".input_max"), layer!($hf, ".input_max")),
            bound(concat!($gguf, ".output_min"), layer!($hf, ".output_min")),
            bound(concat!($gguf, ".output_max"), layer!($hf, ".output_max")),
        ]
    };
}

/// A single value, of projections that clip.
const fn bound(gguf: &'static str, hf: &'static str) -> TensorRule {
    let rule = parameter(gguf, hf, (Transform::RESHAPED, &[], &[One]));
    in_layers(Need::If(CLIPS), rule)
}

/// Field of whether projections clip.
const CLIPS: &str = "use_clipped_linears";

const LAYERS: &[TensorRule] = &[
    square("v.blk.{i}.attn_q", layer!("self_attn.q_proj.linear")),
    square("v.blk.{i}.attn_k", layer!("self_attn.k_proj.linear")),
    square("v.blk.{i}.attn_v", layer!("self_attn.v_proj.linear")),
    square("v.blk.{i}.attn_out", layer!("self_attn.o_proj.linear")),
    same("v.blk.{i}.attn_q_norm", layer!("self_attn.q_norm"), &[Head]),
    same("v.blk.{i}.attn_k_norm", layer!("self_attn.k_norm"), &[Head]),
    norm("v.blk.{i}.ln1", layer!("input_layernorm")),
    norm("v.blk.{i}.attn_post_norm", layer!("post_attention_layernorm")),
    norm("v.blk.{i}.ln2", layer!("pre_feedforward_layernorm")),
    norm("v.blk.{i}.ffn_post_norm", layer!("post_feedforward_layernorm")),
    up("v.blk.{i}.ffn_gate", layer!("mlp.gate_proj.linear")),
    up("v.blk.{i}.ffn_up", layer!("mlp.up_proj.linear")),
    down("v.blk.{i}.ffn_down", layer!("mlp.down_proj.linear")),
];

const BOUNDS: [&[TensorRule]; 7] = [
    bounds!("v.blk.{i}.attn_q", "self_attn.q_proj"),
    bounds!("v.blk.{i}.attn_k", "self_attn.k_proj"),
    bounds!("v.blk.{i}.attn_v", "self_attn.v_proj"),
    bounds!("v.blk.{i}.attn_out", "self_attn.o_proj"),
    bounds!("v.blk.{i}.ffn_gate", "mlp.gate_proj"),
    bounds!("v.blk.{i}.ffn_up", "mlp.up_proj"),
    bounds!("v.blk.{i}.ffn_down", "mlp.down_proj"),
];

/// Field of the number of positions by row and by column.
const POSITIONS: Dim = Field("position_embedding_size");

/// Field of whether what the tower returns is scaled.
const SCALES: &str = "standardize";

const ENDS: &[TensorRule] = &[
    pixels("model.vision_tower.patch_embedder.input_proj.weight"),
    whole(
        "v.position_embd.weight",
        "model.vision_tower.patch_embedder.position_embedding_table",
        &[Field("axes"), POSITIONS, Hidden],
    ),
    scaled("v.std_bias", "model.vision_tower.std_bias"),
    scaled("v.std_scale", "model.vision_tower.std_scale"),
    same(
        "mm.input_projection",
        "model.embed_vision.embedding_projection",
        &[Field(TEXT_HIDDEN), Hidden],
    ),
];

const fn scaled(gguf: &'static str, hf: &'static str) -> TensorRule {
    let rule = whole(gguf, hf, &[Hidden]);
    in_layers(Need::If(SCALES), rule)
}

const OWN: &[Setting] = &[
    setting(Kind::Text("gemma4v"), "vision.projector_type", &[]),
    // llama.cpp's converter leaves it out, and another function is computed than in transformers.
    GELU,
    NORM_EPSILON,
];

pub(super) const GEMMA4: Tower = Tower {
    class: ModelClass {
        classes: &["Gemma4ForConditionalGeneration"],
        model_type: "gemma4_vision",
        defaults: &[
            ("hidden_size", Int(768)),
            ("intermediate_size", Int(3072)),
            ("num_hidden_layers", Int(16)),
            ("num_attention_heads", Int(12)),
            ("num_key_value_heads", Int(12)),
            ("head_dim", Int(64)),
            ("patch_size", Int(16)),
            ("position_embedding_size", Int(10_240)),
            ("rms_norm_eps", Float(1e-6)),
            (CLIPS, Bool(false)),
            (SCALES, Bool(false)),
            (CHANNELS, COLOURS),
            ("axes", Int(2)),
        ],
        implied: &[
            ("pooling_kernel_size", Int(3)),
            ("hidden_activation", Text("gelu_pytorch_tanh")),
            ("attention_bias", Bool(false)),
            ("rope_theta", Float(100.0)),
        ],
        own_fields: &[(EPSILON, "rms_norm_eps")],
        tensors: &[
            ENDS, LAYERS, BOUNDS[0], BOUNDS[1], BOUNDS[2], BOUNDS[3], BOUNDS[4], BOUNDS[5],
            BOUNDS[6],
        ],
        settings: &[SETTINGS, OWN],
        traits: Traits { left_out: &["model.audio_tower.", "model.embed_audio."], ..PLAIN.traits },
        ..PLAIN
    },
    complete,
    wholes: &[Whole {
        text: "gemma4",
        class: "Gemma4ForConditionalGeneration",
        model_type: "gemma4",
        text_type: None,
        inner: "model.language_model.",
        tokens: &[
            ("image_token_id", "<|image|>"),
            ("boi_token_id", "<|image>"),
            ("eoi_token_id", "<image|>"),
            ("video_token_id", "<|video|>"),
        ],
        processor: &[
            ("image_processor_type", Text("Gemma4ImageProcessor")),
            ("processor_class", Text("Gemma4Processor")),
            ("pooling_kernel_size", Int(3)),
        ],
    }],
    restore,
    ..PLAIN_TOWER
};

/// Sets how the language model reads images: llama.cpp knows it by the width.
fn restore(config: &mut WholeConfig) -> Result<()> {
    let is_causal = CAUSAL.contains(&config.fields.need(&[TEXT_HIDDEN])?);
    let sees = if is_causal {
        Value::Null
    } else {
        "vision".into()
    };
    config.text.insert(BIDIRECTIONAL.to_owned(), sees);
    config.root.insert("audio_config".to_owned(), Value::Null);
    for name in [CHANNELS, "axes"] {
        config.fields.0.remove(name);
    }
    restore_heads(config)?;
    restore_patch(config, PATCH_SIZE);
    Ok(())
}

/// Field of which tokens of the language model see later ones.
pub(super) const BIDIRECTIONAL: &str = "use_bidirectional_attention";

/// Adds what the table has under other names.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    // Images keep their shape, and nothing reads this.
    fields.0.insert(IMAGE_SIZE.to_owned(), 224.into());
    add_base(fields);
    check_text(fields, config)
}

/// Lengths of a hidden state of the language models whose images llama.cpp reads from left to right.
const CAUSAL: [u32; 2] = [1536, 2560];

/// Fails if the language model reads the tokens of an image otherwise than llama.cpp.
fn check_text(fields: &Fields, config: &TowerConfig<'_>) -> Result<()> {
    let size = fields.need(&[TEXT_HIDDEN])?;
    let (field, is_causal) = (BIDIRECTIONAL, CAUSAL.contains(&size));
    let sees_all = config.text(field).is_some_and(|value| value == "vision");
    if sees_all == is_causal {
        let expected = if is_causal { "null" } else { "vision" };
        let what = format!("llama.cpp reads images as for {expected} beside a width of {size}");
        return Err(wrong(field, what));
    }
    // Tokens of an image get what the padding token adds to each layer, and the first one's in
    // llama.cpp.
    let field = "pad_token_id";
    let is_other = config.text(field).is_some_and(|id| *id != 0);
    let has_inputs = config.text(LAYER_INPUT).is_none_or(|size| *size != 0);
    match is_other && has_inputs {
        true => Err(wrong(field, "llama.cpp gives images what token 0 adds to each layer")),
        false => Ok(()),
    }
}

/// Field of the length of what a token adds to each layer.
const LAYER_INPUT: &str = "hidden_size_per_layer_input";
