//! The tower of DeepSeek V4: heads rotate by rows and columns, and of whose patches squares become one token, with
//! vectors for the ends of rows and of images.
//!
//! Source: `DeepseekV4FlashVisionModel` in `conversion/deepseek.py` and
//! `tools/mtmd/models/deepseek4v.cpp` of llama.cpp.

use super::{
    CHANNELS, COLOURS, EPSILON, FILTERS, FUSED, IMAGE_SIZE, MERGE_SIZE, MERGED, NORM_EPSILON,
    PATCH_SIZE, PLAIN, PLAIN_TOWER, SCALE_FACTOR, SETTINGS, SIDE, SILU, TEXT_HIDDEN, Tower,
    add_text_size, down, norm, projector, square, whole,
};
use crate::families::engine::fields::{HEADS, HIDDEN, INNER, LAYERS, wrong};
use crate::families::engine::rows::*;

const TEXT: Dim = Field(TEXT_HIDDEN);

/// Length of a patch with its colours.
const VALUES: Dim = Product(&[Field(CHANNELS), SIDE, SIDE]);

/// Gates (0) or the rest (1) of a feed-forward layer.
const fn half(part: usize, gguf: &'static str) -> TensorRule {
    TensorRule {
        transform: Transform::Parts(Parts::one(Turn::Equal(2), part)),
        gguf_shape: Some(&[Inner, Hidden]),
        ..same(gguf, "vision.blocks.{i}.mlp.w1", &[TwoInner, Hidden])
    }
}

const TOWER: &[TensorRule] = &[
    parameter(
        "v.patch_embd.weight",
        "vision.patch_embed.proj.weight",
        (Transform::RESHAPED, &[Hidden, VALUES], FILTERS),
    ),
    in_layers(
        Need::Optional,
        whole("v.patch_embd.bias", "vision.patch_embed.proj.bias", &[Hidden]),
    ),
    same("v.blk.{i}.attn_qkv", "vision.blocks.{i}.attn.wqkv", FUSED),
    square("v.blk.{i}.attn_out", "vision.blocks.{i}.attn.wo"),
    norm("v.blk.{i}.ln1", "vision.blocks.{i}.norm1"),
    norm("v.blk.{i}.ln2", "vision.blocks.{i}.norm2"),
    half(0, "v.blk.{i}.ffn_gate"),
    half(1, "v.blk.{i}.ffn_up"),
    down("v.blk.{i}.ffn_down", "vision.blocks.{i}.mlp.w2"),
    norm("v.post_ln", "vision.norm"),
];

const PROJECTOR: &[TensorRule] = &[
    same("mm.1", "aligner.w1", &[Field("aligner_width"), MERGED]),
    same("mm.2", "aligner.w2", &[TEXT, Field("aligner_width")]),
    whole("v.image_newline", "image_newline", &[TEXT]),
    whole("v.token_embd.img_start", "image_start", &[TEXT]),
    whole("v.token_embd.img_end", "image_end", &[TEXT]),
    whole("v.token_embd.img_pad", "image_pad", &[TEXT]),
];

const OWN: &[Setting] = &[
    projector("deepseek4v"),
    NORM_EPSILON,
    SILU,
    SCALE_FACTOR,
    setting(Kind::Required, "vision.image_min_pixels", &["vision_min_pixels"]),
];

pub(super) const DEEPSEEK4: Tower = Tower {
    class: ModelClass {
        classes: &["DeepseekV4ForCausalLM"],
        model_type: "deepseek_v4",
        defaults: &[(CHANNELS, COLOURS)],
        implied: &[
            ("vision_rope_theta", Float(10_000.0)),
            ("vision_max_n_token", Int(384)),
            ("vision_max_wh_ratio", Int(8)),
        ],
        biases: &[("", &["mm.1", "mm.2"])],
        tensors: &[TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    config: super::FLAT,
    colours: Some([[0.5; 3]; 2]),
    complete: |fields, config| {
        fields
            .0
            .retain(|name, _| name.starts_with("vision_") || name == CHANNELS);
        add_text_size(fields, config)?;
        for (name, field) in [
            (LAYERS[0], "vision_n_layers"),
            (HIDDEN[0], "vision_dim"),
            (HEADS[0], "vision_n_heads"),
            (INNER[0], "vision_inter_dim"),
            (PATCH_SIZE, "vision_patch_size"),
            (MERGE_SIZE, "vision_downsample_ratio"),
        ] {
            let value = fields.need(&[field])?;
            fields.0.insert(name.to_owned(), value.into());
        }
        fields.0.insert(EPSILON.to_owned(), 1e-6.into());
        let side = fields
            .need(&[PATCH_SIZE])?
            .checked_mul(fields.need(&[MERGE_SIZE])?);
        let side = side.and_then(|side| side.checked_mul(16));
        let side = side.ok_or_else(|| wrong("vision_patch_size", "it is too large"))?;
        fields.0.insert(IMAGE_SIZE.to_owned(), side.into());
        Ok(())
    },
    one_way: "its language model is no class of transformers here",
    ..PLAIN_TOWER
};
