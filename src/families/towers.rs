//! Image towers of multimodal models, with the projector behind them, as llama.cpp loads them beside
//! a language model (`mmproj`). A tower is a class of its own: its tensors, and settings that come
//! from `vision_config`.
//!
//! Source: `MmprojModel` in `conversion/base.py` of llama.cpp; defaults of transformers 5.24.

mod gemma;
mod gemma4;
mod glm;
mod idefics;
mod intern;
mod lfm;
mod llama4;
mod pixtral;
mod qwen;
mod qwen3;
pub(super) mod to_mmproj;

use serde_json::{Map, Value};

use crate::config::TEXT_CONFIGS;
use crate::families::engine::fields::{Fields, HEADS, HIDDEN, INNER, LAYERS, is_same, wrong};
use crate::families::engine::rope::PARAMETERS;
use crate::families::engine::rows::*;
use crate::remember::layout::assembled::Change;
use crate::{AnamnesisError, Result};

/// Every tower.
const TOWERS: &[&Tower] = &[
    &gemma::GEMMA3,
    &gemma4::GEMMA4,
    &idefics::IDEFICS3,
    &idefics::SMOLVLM,
    &intern::INTERN_VL,
    &lfm::LFM2_VL,
    &llama4::LLAMA4,
    &pixtral::PIXTRAL,
    &pixtral::MISTRAL3,
    &qwen::QWEN2_VL,
    &qwen::QWEN2_5_VL,
    &qwen3::QWEN3_VL,
    &glm::GLM4V,
];

/// An image tower.
pub(super) struct Tower {
    /// Its tensors and settings. Its classes are those of the whole models. What is implied holds
    /// where a config is silent, too.
    pub class: ModelClass,
    /// Whether llama.cpp takes the two projections of feed-forward layers for each other if they are
    /// square, as some old files have them.
    pub swaps_square: bool,
    /// Adds to the fields of `vision_config` what the table has under other names, and what other
    /// parts of the config say.
    pub complete: fn(&mut Fields, &TowerConfig<'_>) -> Result<()>,
    /// The name that the table has for a stored one, by the fields of the config.
    pub table_name: fn(&str, &Fields) -> String,
    /// Tensors that llama.cpp has in one type, whatever the model's.
    pub types: &'static [(&'static str, TowerType)],
    /// The token whose row of the embedding the tower has, too.
    pub token: Option<&'static str>,
    /// What llama.cpp computes otherwise, whatever the file says.
    pub note: Option<&'static str>,
}

/// The type of a tensor of a tower that does not follow the model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TowerType {
    F16,
    F32,
}

/// The configs of a multimodal model, beside that of its tower.
pub(super) struct TowerConfig<'a> {
    /// `config.json`.
    pub root: &'a Map<String, Value>,
    /// How images become pixels.
    pub processor: &'a Map<String, Value>,
}

impl TowerConfig<'_> {
    /// The field `name` of the language model.
    pub(super) fn text(&self, name: &str) -> Option<&Value> {
        let mut nested = TEXT_CONFIGS.iter().filter_map(|key| self.root.get(*key));
        let nested = nested.find_map(|text| text.get(name));
        nested.or_else(|| self.root.get(name))
    }
}

/// The tower of models of the class that `config` names.
///
/// # Errors
/// `Unsupported` if there is none.
pub(super) fn tower_of(config: &Value) -> Result<(&'static Tower, &str)> {
    let class = config.pointer("/architectures/0").and_then(Value::as_str);
    let class = class.unwrap_or_default();
    let found = TOWERS
        .iter()
        .find(|tower| tower.class.classes.contains(&class));
    let found = found.ok_or_else(|| {
        let what = "config.json: the class of the model has no image tower with GGUF names here";
        AnamnesisError::unsupported(class, what)
    })?;
    Ok((found, class))
}

/// Field of the length of a hidden state of the language model.
pub(super) const TEXT_HIDDEN: &str = "text_hidden_size";
/// Field of the number of patches of an image.
const PATCHES: &str = "patches";
/// Field of the length of an image.
const IMAGE_SIZE: &str = "image_size";
/// Field of the length of a patch.
const PATCH_SIZE: &str = "patch_size";
/// Field of how many patches in a row, and rows of them, become one token.
const MERGE_SIZE: &str = "spatial_merge_size";
/// Field of the epsilon of norms.
const EPSILON: &str = "layer_norm_eps";

/// Field of the width of feed-forward layers, where that is not what GGUF says of it.
pub(super) const MLP_WIDTH: &str = "mlp_width";

/// Length of what several patches have together that become one token.
const MERGED: Dim = Product(&[Field(MERGE_SIZE), Field(MERGE_SIZE), Hidden]);

/// The settings of all towers of images.
pub(super) const SETTINGS: &[Setting] = &[
    setting(Kind::FixedFlag(true), "has_vision_encoder", &[]),
    setting(Kind::Required, "vision.projection_dim", &[TEXT_HIDDEN]),
    setting(Kind::Required, "vision.image_size", &[IMAGE_SIZE]),
    setting(Kind::Required, "vision.patch_size", &[PATCH_SIZE]),
    setting(Kind::Required, "vision.embedding_length", HIDDEN),
    setting(Kind::Required, "vision.feed_forward_length", INNER),
    setting(Kind::Required, "vision.block_count", LAYERS),
    setting(Kind::Required, "vision.attention.head_count", HEADS),
];

/// The setting of how many patches become one token, in most towers.
const SCALE_FACTOR: Setting =
    setting(Kind::Required, "vision.projector.scale_factor", &[MERGE_SIZE]);
const NORM_EPSILON: Setting = number("vision.attention.layer_norm_epsilon", &[EPSILON]);
const GELU: Setting = setting(Kind::FixedFlag(true), "use_gelu", &[]);
const SILU: Setting = setting(Kind::FixedFlag(true), "use_silu", &[]);

/// The setting of the projector's name.
const fn projector(name: &'static str) -> Setting {
    setting(Kind::Text(name), "projector_type", &[])
}

/// A class without anything in which towers differ.
const PLAIN: ModelClass = ModelClass {
    gguf: "clip",
    traits: Traits {
        is_tower: true,
        sign: Sign::Never,
        // transformers has it in some versions, and not in others.
        prefix: Some("model."),
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

const PLAIN_TOWER: Tower = Tower {
    class: PLAIN,
    swaps_square: false,
    complete: add_text_size,
    table_name: |name, _| name.to_owned(),
    types: &[],
    token: None,
    note: None,
};

/// Field of the number of colours of an image.
const CHANNELS: &str = "num_channels";
/// Number of colours of an image.
const COLOURS: Default = Int(3);

/// Filters of patches `[hidden, colours, height, width]`.
const FILTERS: &[Dim] = &[Hidden, Field(CHANNELS), Field(PATCH_SIZE), Field(PATCH_SIZE)];

const SIDE: Dim = Field(PATCH_SIZE);

/// Columns that are pixels, each with its colours.
const PIXELS: Tiling = Tiling {
    groups: Product(&[SIDE, SIDE]),
    parts: Field(CHANNELS),
    len: One,
    behind: None,
    is_of_columns: true,
    change: Change::None,
};

/// Filters of patches that are the matrix `hf` in transformers.
const fn pixels(hf: &'static str) -> TensorRule {
    const VALUES: Dim = Product(&[SIDE, SIDE, Field(CHANNELS)]);
    parameter("v.patch_embd.weight", hf, (Transform::Tiled(&PIXELS), &[Hidden, VALUES], FILTERS))
}

/// A tensor whose names are whole, and which is the same on both sides.
const fn whole(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    parameter(gguf, hf, (Transform::None, shape, shape))
}

/// A projection to the width of a feed-forward layer.
const fn up(gguf: &'static str, hf: &'static str) -> TensorRule {
    same(gguf, hf, &[Inner, Hidden])
}

/// A projection from that width.
const fn down(gguf: &'static str, hf: &'static str) -> TensorRule {
    same(gguf, hf, &[Hidden, Inner])
}

/// A projection of the square of the hidden state.
const fn square(gguf: &'static str, hf: &'static str) -> TensorRule {
    same(gguf, hf, &[Hidden, Hidden])
}

/// Rows of queries, keys and values.
const FUSED: &[Dim] = &[Sum(&[Hidden, Hidden, Hidden]), Hidden];

/// Queries, keys or values (0, 1, 2) of a projection that has all of them.
const fn third(part: usize, gguf: &'static str, hf: &'static str) -> TensorRule {
    TensorRule {
        transform: Transform::Parts(Parts::one(Turn::Equal(3), part)),
        ..same(gguf, hf, FUSED)
    }
}

/// A norm of the hidden state.
const fn norm(gguf: &'static str, hf: &'static str) -> TensorRule {
    same(gguf, hf, &[Hidden])
}

/// Sets the length of a hidden state of the language model.
fn add_text_size(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    let size = config.text("hidden_size");
    let size = size.ok_or_else(|| wrong("hidden_size", "the language model's is missing"))?;
    fields.0.insert(TEXT_HIDDEN.to_owned(), size.clone());
    Ok(())
}

/// Sets the field `name` to what the config of the whole model has under `field`, or to `default`.
fn add_of_model(
    fields: &mut Fields,
    config: &TowerConfig<'_>,
    (name, field): (&str, &str),
    default: impl Into<Value>,
) {
    let stated = config.root.get(field).cloned();
    let value = stated.unwrap_or_else(|| default.into());
    fields.0.insert(name.to_owned(), value);
}

/// Sets the number of patches of an image.
fn add_patches(fields: &mut Fields) -> Result<()> {
    let side = patches_of_side(fields)?;
    let patches = side.checked_mul(side);
    let patches = patches.ok_or_else(|| wrong(IMAGE_SIZE, "it is too large"))?;
    fields.0.insert(PATCHES.to_owned(), patches.into());
    Ok(())
}

/// Number of patches in a row of an image.
fn patches_of_side(fields: &Fields) -> Result<u32> {
    let (image, patch) = (fields.need(&[IMAGE_SIZE])?, fields.need(&[PATCH_SIZE])?);
    image.checked_div(patch).filter(|n| *n > 0).ok_or_else(|| {
        wrong(PATCH_SIZE, format_args!("no patch of {patch} is in an image of {image}"))
    })
}

/// How many patches in a row become one token of which a row has the part `ratio`.
fn patches_of_ratio(ratio: Option<&Value>, field: &str) -> Result<u32> {
    let count = ratio
        .map_or(Some(0.5), Value::as_f64)
        .map(|ratio| 1.0 / ratio);
    let count = count.filter(|n| n.fract() == 0.0 && (1.0..=64.0).contains(n));
    let count = count.ok_or_else(|| wrong(field, "it is not one divided by a whole number"))?;
    Ok(count as u32)
}

/// Takes the first of two equal sides where the field `name` has both.
fn take_side(fields: &mut Fields, name: &str) {
    let sides = fields.0.get(name).and_then(Value::as_array);
    if let Some([width, height]) = sides.map(Vec::as_slice)
        && width == height
    {
        let side = width.clone();
        fields.0.insert(name.to_owned(), side);
    }
}

/// Adds the base of rope, if `rope_parameters` states it.
fn add_base(fields: &mut Fields) {
    let rope = fields
        .0
        .get(PARAMETERS)
        .and_then(|rope| rope.get("rope_theta"));
    if let Some(base) = rope.cloned() {
        fields.0.insert("rope_theta".to_owned(), base);
    }
}

/// Renames the field `from` as `to`.
fn rename(fields: &mut Fields, from: &str, to: &str) {
    if let Some(value) = fields.0.remove(from) {
        fields.0.insert(to.to_owned(), value);
    }
}

/// Fails unless the field `name` of the whole model, or `default` where it is silent, is `expected`.
fn expect(
    config: &TowerConfig<'_>,
    name: &str,
    default: impl Into<Value>,
    expected: impl Into<Value>,
) -> Result<()> {
    let (default, expected) = (default.into(), expected.into());
    let found = config.root.get(name).unwrap_or(&default);
    match is_same(found, &expected) {
        true => Ok(()),
        false => {
            let what = format!("it is {found}, and llama.cpp's projector has {expected}");
            Err(wrong(name, what))
        }
    }
}
