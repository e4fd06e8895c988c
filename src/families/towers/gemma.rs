//! The tower of Gemma 3: SigLIP, whose patches are averaged, normed and projected.
//!
//! Source: `Gemma3VisionModel` in `conversion/gemma.py` and `tools/mtmd/models/siglip.cpp` of
//! llama.cpp.

use serde_json::{Map, Value};

use super::{
    COLOURS, EPSILON, FILTERS, GELU, NORM_EPSILON, PATCHES, PLAIN, PLAIN_TOWER, SETTINGS,
    TEXT_HIDDEN, Tower, TowerConfig, TowerType, Whole, WholeConfig, add_patches, add_text_size,
    down, norm, patches_of_side, projector, restore_square, square, up, whole,
};
use crate::Result;
use crate::families::engine::fields::{Fields, wrong, wrong_key};
use crate::families::engine::rows::*;

/// The layers of SigLIP below `$prefix`, with `$out` behind attention.
macro_rules! siglip {
    ($prefix:literal) => {
        siglip!($prefix, "self_attn.out_proj")
    };
    ($prefix:literal, $out:literal) => {
        &[
            square("v.blk.{i}.attn_q", concat!($prefix, "encoder.layers.{i}.self_attn.q_proj")),
            square("v.blk.{i}.attn_k", concat!($prefix, "encoder.layers.{i}.self_attn.k_proj")),
            square("v.blk.{i}.attn_v", concat!($prefix, "encoder.layers.{i}.self_attn.v_proj")),
            square("v.blk.{i}.attn_out", concat!($prefix, "encoder.layers.{i}.", $out)),
            norm("v.blk.{i}.ln1", concat!($prefix, "encoder.layers.{i}.layer_norm1")),
            norm("v.blk.{i}.ln2", concat!($prefix, "encoder.layers.{i}.layer_norm2")),
            up("v.blk.{i}.ffn_up", concat!($prefix, "encoder.layers.{i}.mlp.fc1")),
            down("v.blk.{i}.ffn_down", concat!($prefix, "encoder.layers.{i}.mlp.fc2")),
            norm("v.post_ln", concat!($prefix, "post_layernorm")),
        ]
    };
}
pub(super) use siglip;

/// What is in front of the layers of SigLIP below `$prefix`.
macro_rules! patches {
    ($prefix:literal) => {
        &[
            same("v.patch_embd", concat!($prefix, "embeddings.patch_embedding"), FILTERS),
            same(
                "v.position_embd",
                concat!($prefix, "embeddings.position_embedding"),
                &[Field(PATCHES), Hidden],
            ),
        ]
    };
}
pub(super) use patches;

/// What all layers of SigLIP have a bias of.
pub(super) const SIGLIP_BIASES: &[&str] = &[
    "v.blk.{i}.attn_q",
    "v.blk.{i}.attn_k",
    "v.blk.{i}.attn_v",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ln1",
    "v.blk.{i}.ln2",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
    "v.post_ln",
];

/// The filters of SigLIP have a bias as well.
pub(super) const FILTER_BIAS: &[&str] = &["v.patch_embd"];

/// Filters and positions of SigLIP are in F32.
pub(super) const SIGLIP_F32: (&str, TowerType) = ("v.patch_embd.weight", TowerType::F32);

/// What the graph of SigLIP takes for granted.
pub(super) const SIGLIP_IMPLIED: &[(&str, Default)] =
    &[("hidden_act", Text("gelu_pytorch_tanh")), ("num_channels", COLOURS)];

const SIGLIP: &[TensorRule] = siglip!("vision_tower.vision_model.");
const IN_FRONT: &[TensorRule] = patches!("vision_tower.vision_model.");

const PROJECTOR: &[TensorRule] = &[
    whole(
        "mm.input_projection.weight",
        "multi_modal_projector.mm_input_projection_weight",
        &[Hidden, Field(TEXT_HIDDEN)],
    ),
    norm("mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"),
];

/// Rows of patches that become one token, unless it is this.
const USUAL_POOL: u32 = 4;

/// Field of the same.
const POOL: &str = "pool_size";

const OWN: &[Setting] =
    &[projector("gemma3"), NORM_EPSILON, GELU, count("vision.projector.scale_factor", &[POOL])];

pub(super) const GEMMA3: Tower = Tower {
    class: ModelClass {
        classes: &["Gemma3ForConditionalGeneration"],
        model_type: "siglip_vision_model",
        defaults: &[
            ("hidden_size", Int(768)),
            ("intermediate_size", Int(3072)),
            ("num_hidden_layers", Int(12)),
            ("num_attention_heads", Int(12)),
            ("image_size", Int(224)),
            ("patch_size", Int(16)),
            (EPSILON, Float(1e-6)),
        ],
        implied: SIGLIP_IMPLIED,
        biases: &[("", FILTER_BIAS), ("", SIGLIP_BIASES)],
        tensors: &[IN_FRONT, SIGLIP, PROJECTOR],
        settings: &[SETTINGS, OWN],
        traits: Traits {
            norms_plus_one: true,
            // A head for classes of images, which Gemma does not use.
            left_out: &["vision_tower.vision_model.head."],
            ..PLAIN.traits
        },
        ..PLAIN
    },
    swaps_square: true,
    complete,
    wholes: &[Whole {
        text: "gemma3",
        class: "Gemma3ForConditionalGeneration",
        model_type: "gemma3",
        text_type: None,
        inner: "language_model.model.",
        tokens: &[
            ("image_token_index", "<image_soft_token>"),
            ("boi_token_index", "<start_of_image>"),
            ("eoi_token_index", "<end_of_image>"),
        ],
        processor: &[
            ("image_processor_type", Text("Gemma3ImageProcessor")),
            ("processor_class", Text("Gemma3Processor")),
        ],
    }],
    restore,
    types: &[SIGLIP_F32, ("mm.input_projection.weight", TowerType::F16)],
    ..PLAIN_TOWER
};

/// Sets the number of tokens of an image, and its size.
fn restore(config: &mut WholeConfig) -> Result<()> {
    let side = patches_of_side(&config.fields)?;
    let pool = config.fields.count(&[POOL])?.unwrap_or(USUAL_POOL);
    let of_tokens = side
        .checked_div(pool)
        .filter(|n| n.checked_mul(pool) == Some(side));
    let of_tokens = of_tokens.ok_or_else(|| {
        let what = format!("{pool} is no part of the {side} patches in a row");
        wrong_key("clip.vision.projector.scale_factor", what)
    })?;
    let tokens: Value = of_tokens.saturating_mul(of_tokens).into();
    config.root.insert(TOKENS.to_owned(), tokens.clone());
    config
        .processor
        .insert("image_seq_length".to_owned(), tokens);
    config
        .vision
        .insert("vision_use_head".to_owned(), false.into());
    restore_square(config);
    Ok(())
}

/// Field of the number of tokens of an image.
const TOKENS: &str = "mm_tokens_per_image";

/// Adds the rows of patches that become one token, if they are not as many as usual.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    add_patches(fields)?;
    let field = TOKENS;
    let count = |map: &Map<String, Value>, name| {
        let value = map
            .get(name)
            .map(|value| (String::from(name), value.clone()));
        Fields::of(value.into_iter().collect()).count(&[name])
    };
    let tokens = count(config.root, field)?.unwrap_or(256);
    if let Some(stated) = count(config.processor, "image_seq_length")?
        && stated != tokens
    {
        let what = format!("it is {tokens}, and `image_seq_length` of the processor {stated}");
        return Err(wrong(field, what));
    }
    let (side, of_tokens) = (patches_of_side(fields)?, tokens.isqrt());
    let pool = side.checked_div(of_tokens).unwrap_or(0);
    if pool == 0 || pool * of_tokens != side || of_tokens * of_tokens != tokens {
        let what = format!("{tokens} tokens are no square that divides {side} × {side} patches");
        return Err(wrong(field, what));
    }
    fields.0.remove(POOL);
    if pool != USUAL_POOL {
        fields.0.insert(POOL.to_owned(), pool.into());
    }
    Ok(())
}
