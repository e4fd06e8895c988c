//! The towers of Gemma 4 Unified, which have no layers: a patch of an image, and a moment of a sound, are
//! projected to a token.
//!
//! Source: `Gemma4UnifiedVisionAudioModel` in `conversion/gemma.py`, and
//! `tools/mtmd/models/gemma4uv.cpp` and `gemma4ua.cpp` of llama.cpp.

use super::gemma4::BIDIRECTIONAL;
use super::whisper::BANDS;
use super::{
    AUDIO, CHANNELS, COLOURS, EPSILON, IMAGE_SIZE, NORM_EPSILON, PATCH_SIZE, PLAIN, PLAIN_TOWER,
    TEXT_HIDDEN, Tower, Whole, WholeConfig, add_text_size, norm, restore_patch, whole,
};
use crate::error::InTensor;
use crate::families::engine::fields::{HEADS, HIDDEN, LAYERS, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::source::{Rearrangement, SourceTensor};
use crate::remember::layout::assembled::{RowOrder, Tiles};
use crate::{AnamnesisError, Result};

/// Length of the square of patches that becomes a token.
const SIDE: Dim = Product(&[Field(PATCH_SIZE), Field(POOL)]);
const POOL: &str = "pooling_kernel_size";

/// Pixels of such a square, each with its colours.
const VALUES: Dim = Product(&[SIDE, SIDE, Field(CHANNELS)]);

const PIXELS: Tiling = Tiling { groups: Product(&[SIDE, SIDE]), ..super::PIXELS };
const IN_ROWS: Tiling = Tiling { is_of_columns: false, ..PIXELS };

/// Positions by row and by column.
const POSITIONS: Dim = Field("mm_posemb_size");
const AXES: Dim = Sum(&[One, One]);

/// The first two dimensions of three change places.
const SWAPPED: OwnTransform = OwnTransform {
    to_gguf: |all, name, _| swapped(all, name),
    to_hf: |all, name, _| swapped(all, name),
};

fn swapped(all: &[SourceTensor<'_>], name: &str) -> Result<(Rearrangement, Vec<usize>)> {
    let [groups, parts, cols] = all[0].shape[..] else {
        let what = format!("{}: it has not three dimensions", InTensor(&name));
        return Err(AnamnesisError::parse(what));
    };
    let order = RowOrder::Tiled { first: 0, tiles: Tiles { groups, parts, len: 1 } };
    let moved = Rearrangement::of_each(1, order, (groups * parts, cols));
    Ok((moved, vec![parts, groups, cols]))
}

/// The norm of pixels.
const fn pixel_norm(gguf: &'static str, hf: &'static str) -> TensorRule {
    parameter(gguf, hf, (Transform::Tiled(&IN_ROWS), &[VALUES], &[VALUES]))
}

const TENSORS: &[TensorRule] = &[
    pixel_norm("v.patch_norm.1.weight", "model.vision_embedder.patch_ln1.weight"),
    pixel_norm("v.patch_norm.1.bias", "model.vision_embedder.patch_ln1.bias"),
    parameter(
        "v.patch_embd.weight",
        "model.vision_embedder.patch_dense.weight",
        (Transform::Tiled(&PIXELS), &[Hidden, VALUES], &[Hidden, VALUES]),
    ),
    whole("v.patch_embd.bias", "model.vision_embedder.patch_dense.bias", &[Hidden]),
    norm("v.patch_norm.2", "model.vision_embedder.patch_ln2"),
    norm("v.patch_norm.3", "model.vision_embedder.pos_norm"),
    parameter(
        "v.position_embd.weight",
        "model.vision_embedder.pos_embedding",
        (Transform::Own(&SWAPPED), &[POSITIONS, AXES, Hidden], &[AXES, POSITIONS, Hidden]),
    ),
    same(
        "mm.input_projection",
        "model.embed_vision.embedding_projection",
        &[Field(TEXT_HIDDEN), Hidden],
    ),
];

const SETTINGS: &[Setting] = &[
    super::SETTINGS[0],
    super::SETTINGS[1],
    super::SETTINGS[2],
    super::SETTINGS[3],
    super::SETTINGS[4],
    setting(Kind::Fixed(0), "vision.feed_forward_length", &[]),
    setting(Kind::Fixed(0), "vision.block_count", &[]),
    setting(Kind::Fixed(0), "vision.attention.head_count", &[]),
    NORM_EPSILON,
    setting(Kind::Text("gemma4uv"), "vision.projector_type", &[]),
];

/// Sizes of what has no layers, which the tables ask for.
const NO_LAYERS: &[(&str, Default)] = &[(LAYERS[0], Int(1)), (HEADS[0], Int(1))];

const CLASSES: &[&str] = &["Gemma4UnifiedForConditionalGeneration"];

pub(super) const GEMMA4_UNIFIED: Tower = Tower {
    class: ModelClass {
        classes: CLASSES,
        model_type: "gemma4_unified_vision",
        defaults: &[
            ("mm_embed_dim", Int(3840)),
            ("mm_posemb_size", Int(1120)),
            ("patch_size", Int(16)),
            ("rms_norm_eps", Float(1e-6)),
            (CHANNELS, COLOURS),
        ],
        implied: &[(POOL, Int(3)), (EPSILON, Float(1e-6))],
        own_fields: &[(EPSILON, "rms_norm_eps"), (HIDDEN[0], "mm_embed_dim")],
        biases: &[("", &["v.patch_norm.2", "v.patch_norm.3"])],
        tensors: &[TENSORS],
        settings: &[SETTINGS],
        traits: Traits { also_implied: NO_LAYERS, ..PLAIN.traits },
        ..PLAIN
    },
    complete: |fields, config| {
        add_text_size(fields, config)?;
        // Images keep their shape, and nothing reads this.
        fields.0.insert(IMAGE_SIZE.to_owned(), 224.into());
        let sees = config.text(BIDIRECTIONAL);
        match sees.is_none_or(|value| value == "vision") {
            true => Ok(()),
            false => Err(wrong(BIDIRECTIONAL, "llama.cpp reads images as for vision")),
        }
    },
    sounds: Some(&SOUNDS),
    wholes: &[Whole {
        text: "gemma4",
        class: CLASSES[0],
        model_type: "gemma4_unified",
        text_type: Some("gemma4_unified_text"),
        inner: "model.language_model.",
        tokens: &[
            ("image_token_id", "<|image|>"),
            ("boi_token_id", "<|image>"),
            ("eoi_token_id", "<image|>"),
            ("video_token_id", "<|video|>"),
            ("audio_token_id", "<|audio|>"),
            ("boa_token_id", "<|audio>"),
            ("eoa_token_index", "<audio|>"),
        ],
        processor: &[
            ("image_processor_type", Text("Gemma4UnifiedImageProcessor")),
            ("processor_class", Text("Gemma4UnifiedProcessor")),
            ("pooling_kernel_size", Int(3)),
        ],
    }],
    restore: |config| {
        config
            .text
            .insert(BIDIRECTIONAL.to_owned(), "vision".into());
        let size = config.fields.need(HIDDEN)?;
        config
            .vision
            .insert("output_proj_dims".to_owned(), size.into());
        config.fields.0.remove(CHANNELS);
        restore_patch(config, PATCH_SIZE);
        without_layers(config)
    },
    ..PLAIN_TOWER
};

const SOUND_TENSORS: &[TensorRule] = &[same(
    "mm.a.input_projection",
    "model.embed_audio.embedding_projection",
    &[Field(TEXT_HIDDEN), Hidden],
)];

const SOUND_SETTINGS: &[Setting] = &[
    setting(Kind::FixedFlag(true), "has_audio_encoder", &[]),
    setting(Kind::Required, "audio.projection_dim", &[TEXT_HIDDEN]),
    setting(Kind::Required, "audio.embedding_length", HIDDEN),
    setting(Kind::Fixed(0), "audio.feed_forward_length", &[]),
    setting(Kind::Fixed(0), "audio.block_count", &[]),
    setting(Kind::Fixed(0), "audio.attention.head_count", &[]),
    setting(Kind::Required, "audio.num_mel_bins", &[BANDS]),
    number("audio.attention.layer_norm_epsilon", &[EPSILON]),
    setting(Kind::Text("gemma4ua"), "audio.projector_type", &[]),
];

/// Sounds, of which so many moments are a token.
const SOUNDS: Tower = Tower {
    class: ModelClass {
        classes: CLASSES,
        model_type: "gemma4_unified_audio",
        defaults: &[("rms_norm_eps", Float(1e-6)), ("audio_embed_dim", Int(640))],
        implied: &[(HIDDEN[0], Int(640)), (EPSILON, Float(1e-6))],
        own_fields: &[(EPSILON, "rms_norm_eps"), (HIDDEN[0], "audio_embed_dim")],
        tensors: &[SOUND_TENSORS],
        settings: &[SOUND_SETTINGS],
        traits: Traits { also_implied: NO_LAYERS, ..PLAIN.traits },
        ..PLAIN
    },
    config: AUDIO,
    complete: |fields, config| {
        add_text_size(fields, config)?;
        // Nothing reads it.
        fields.0.insert(BANDS.to_owned(), 128.into());
        Ok(())
    },
    restore: without_layers,
    ..PLAIN_TOWER
};

/// Takes away the sizes of layers, which no config has.
fn without_layers(config: &mut WholeConfig) -> Result<()> {
    for (name, _) in NO_LAYERS {
        config.fields.0.remove(*name);
    }
    Ok(())
}
