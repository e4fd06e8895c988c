//! Towers of images and sounds of multimodal models, with the projector behind them, as llama.cpp loads them beside
//! a language model (`mmproj`). A tower is a class of its own: its tensors, and settings that come
//! from `vision_config` or `audio_config`.
//!
//! Source: `MmprojModel` in `conversion/base.py` of llama.cpp; defaults of transformers 5.24.

mod cogvlm;
mod deepseek4;
mod deepseek_ocr;
mod dots;
mod dots3;
mod exaone;
mod gemma;
mod gemma4;
mod gemma4_unified;
mod glm;
mod hunyuan;
mod idefics;
mod intern;
mod janus;
mod kimi;
mod lfm;
mod llama4;
mod minicpm;
mod minimax;
mod omni;
mod paddle;
mod phi4;
mod pixtral;
mod qwen;
mod qwen3;
mod speech;
mod step;
mod table;
pub(super) mod to_hf;
pub(super) mod to_mmproj;
mod token;
mod whisper;
mod youtu;

use serde_json::{Value, json};

use self::table::{
    FLAT, OfModel, PLAIN, PLAIN_TOWER, TEXT_FIELD, TOKEN_ROW, Tower, TowerConfig, TowerType, Whole,
    WholeConfig,
};
use crate::families::engine::fields::{
    Fields, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, array, wrong,
};
use crate::families::engine::rope::PARAMETERS;
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;
use crate::remember::layout::assembled::Change;
use crate::{AnamnesisError, Result};

/// Every tower.
const TOWERS: &[&Tower] = &[
    &cogvlm::COGVLM,
    &deepseek4::DEEPSEEK4,
    &deepseek_ocr::UNLIMITED_OCR,
    &deepseek_ocr::DEEPSEEK_OCR,
    &deepseek_ocr::DEEPSEEK_OCR2,
    &dots::DOTS_OCR,
    &dots3::DOTS3_NOTE,
    &exaone::EXAONE4_5,
    &gemma::GEMMA3,
    &gemma4::GEMMA4,
    &gemma4_unified::GEMMA4_UNIFIED,
    &hunyuan::HUNYUAN_VL,
    &idefics::IDEFICS3,
    &idefics::SMOLVLM,
    &intern::INTERN_VL,
    &janus::JANUS,
    &kimi::KIMI_VL,
    &kimi::KIMI_K25,
    &kimi::GLM5V,
    &lfm::LFM2_VL,
    &llama4::LLAMA4,
    &minicpm::MINICPM_V4_6,
    &minimax::MINIMAX_M3,
    &omni::QWEN2_5_OMNI,
    &omni::QWEN3_OMNI,
    &omni::QWEN3_ASR,
    &paddle::PADDLE_OCR,
    &phi4::PHI4,
    &pixtral::LIGHT_ON_OCR,
    &pixtral::MISTRAL3,
    &pixtral::PIXTRAL,
    &qwen::QWEN2_VL,
    &qwen::SARASHINA2,
    &qwen::QWEN2_5_VL,
    &qwen3::QWEN3_VL,
    &glm::GLM_OCR,
    &glm::GLM4V,
    &glm::GLM5_NEXT,
    &speech::GLM_ASR,
    &speech::MERALION2,
    &speech::ULTRAVOX,
    &step::STEP_VL,
    &whisper::QWEN2_AUDIO,
    &whisper::VOXTRAL,
    &whisper::AUDIO_FLAMINGO3,
    &youtu::YOUTU_VL,
];

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

/// Fields of the configs of towers of images and of sounds.
const VISION: &str = "vision_config";
const AUDIO: &str = "audio_config";

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

/// How many pixels an image has at least and at most, which the processor says.
const PIXEL_FIELDS: &[&str] = &["min_pixels", "max_pixels"];
const MIN_PIXELS: Setting = setting(Kind::Required, "vision.image_min_pixels", &["min_pixels"]);
const MAX_PIXELS: Setting = setting(Kind::Required, "vision.image_max_pixels", &["max_pixels"]);

/// INT32\[\]: the numbers of layers.
const INDEXES: OwnSetting = own(
    |setting, model| {
        let all = model.fields.get(setting.fields);
        let Some((_, all)) = all else {
            return Ok(None);
        };
        let number = |n: &Value| i32::try_from(n.as_u64()?).ok();
        let all = all
            .as_array()
            .and_then(|all| all.iter().map(number).collect::<Option<Vec<_>>>());
        let all = all.ok_or_else(|| setting.wrong("it is no list of layers"))?;
        Ok(Some(array(GgufMetadataArray::I32(all))))
    },
    |stated, _| Ok(Some(stated.numbers()?.to_vec().into())),
);

/// The setting of the projector's name.
const fn projector(name: &'static str) -> Setting {
    setting(Kind::Text(name), "projector_type", &[])
}

/// Field of the number of colours of an image.
const CHANNELS: &str = "num_channels";
/// Means and deviations of colours that CLIP was trained with.
const CLIP_COLOURS: [[f32; 3]; 2] =
    [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]];

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
        gguf_shape: Some(&[Hidden, Hidden]),
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

/// Sets the processor's size of images of one size.
fn restore_square(config: &mut WholeConfig) {
    if let Some(side) = config.fields.0.get(IMAGE_SIZE) {
        let size = json!({"height": side, "width": side});
        config.processor.insert("size".to_owned(), size);
    }
}

/// Says that transformers does not have the class.
fn note_code(config: &mut WholeConfig) {
    let note = "the class is none of transformers: the code of the model (`auto_map`) is not in GGUF; take it from the model's page";
    config.notes.push(note.to_owned());
}

/// Sets the length of an image of which there are as many patches as positions.
fn restore_image(config: &mut WholeConfig) -> Result<()> {
    let side = config.fields.need(&[PATCHES])?.isqrt();
    let side = side.saturating_mul(config.fields.need(&[PATCH_SIZE])?);
    config.fields.0.insert(IMAGE_SIZE.to_owned(), side.into());
    Ok(())
}

/// Sets the length of a patch in the processor, as it is in the tower, under `name`.
fn restore_patch(config: &mut WholeConfig, name: &str) {
    if let Some(side) = config.fields.0.get(PATCH_SIZE) {
        config.processor.insert(name.to_owned(), side.clone());
    }
}

/// Sets the length and the number of heads, as the tower has them.
fn restore_heads(config: &mut WholeConfig) -> Result<()> {
    let heads = config.fields.need(HEADS)?;
    let head = config.fields.need(HIDDEN)?.checked_div(heads).unwrap_or(0);
    config.vision.insert("head_dim".to_owned(), head.into());
    config.vision.insert(KV_HEADS[0].to_owned(), heads.into());
    Ok(())
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
