//! The tower of InternVL 2.5 and 3: a vision transformer with a token for the whole image, of whose
//! patches squares become one token.
//!
//! Source: `conversion/internvl.py` and `tools/mtmd/models/internvl.cpp` of llama.cpp.

use super::{
    CHANNELS, COLOURS, EPSILON, FILTERS, GELU, IMAGE_SIZE, MERGE_SIZE, MERGED, NORM_EPSILON,
    PATCH_SIZE, PATCHES, PLAIN, PLAIN_TOWER, SCALE_FACTOR, SETTINGS, TEXT_FIELD, TEXT_HIDDEN,
    Tower, TowerConfig, Whole, WholeConfig, add_patches, add_text_size, down, norm,
    patches_of_ratio, projector, square, take_side, third, up, whole,
};
use crate::Result;
use crate::families::engine::fields::{Fields, is_same, wrong};
use crate::families::engine::rows::*;

const SIZES: &[Dim] = &[One, One, Hidden];
const POSITIONS: &[Dim] = &[One, Sum(&[One, Field(PATCHES)]), Hidden];

const QKV: &str = "vision_model.encoder.layers.{i}.attn.qkv";

/// Field of whether queries and keys are normed.
const NORMS: &str = "qk_normalization";

const TOWER: &[TensorRule] = &[
    whole("v.class_embd", "vision_model.embeddings.class_embedding", SIZES),
    same("v.patch_embd", "vision_model.embeddings.patch_embedding", FILTERS),
    whole("v.position_embd.weight", "vision_model.embeddings.position_embedding", POSITIONS),
    third(0, "v.blk.{i}.attn_q", QKV),
    third(1, "v.blk.{i}.attn_k", QKV),
    third(2, "v.blk.{i}.attn_v", QKV),
    square("v.blk.{i}.attn_out", "vision_model.encoder.layers.{i}.attn.proj"),
    norm("v.blk.{i}.ln1", "vision_model.encoder.layers.{i}.norm1"),
    norm("v.blk.{i}.ln2", "vision_model.encoder.layers.{i}.norm2"),
    whole("v.blk.{i}.ls1.weight", "vision_model.encoder.layers.{i}.ls1", &[Hidden]),
    whole("v.blk.{i}.ls2.weight", "vision_model.encoder.layers.{i}.ls2", &[Hidden]),
    only(
        Need::If(NORMS),
        "v.blk.{i}.attn_q_norm",
        "vision_model.encoder.layers.{i}.attn.q_norm",
        &[Hidden],
    ),
    only(
        Need::If(NORMS),
        "v.blk.{i}.attn_k_norm",
        "vision_model.encoder.layers.{i}.attn.k_norm",
        &[Hidden],
    ),
    up("v.blk.{i}.ffn_up", "vision_model.encoder.layers.{i}.mlp.fc1"),
    down("v.blk.{i}.ffn_down", "vision_model.encoder.layers.{i}.mlp.fc2"),
];

const TEXT: Dim = Field(TEXT_HIDDEN);

const PROJECTOR: &[TensorRule] = &[
    same("mm.model.mlp.0", "mlp1.0", &[MERGED]),
    same("mm.model.mlp.1", "mlp1.1", &[TEXT, MERGED]),
    same("mm.model.mlp.3", "mlp1.3", &[TEXT, TEXT]),
];

const BIASES: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "v.patch_embd",
            "v.blk.{i}.attn_out",
            "v.blk.{i}.ffn_up",
            "v.blk.{i}.ffn_down",
            "mm.model.mlp.0",
            "mm.model.mlp.1",
            "mm.model.mlp.3",
        ],
    ),
    ("qkv_bias", &["v.blk.{i}.attn_q", "v.blk.{i}.attn_k", "v.blk.{i}.attn_v"]),
    ("norms_have_bias", &["v.blk.{i}.ln1", "v.blk.{i}.ln2"]),
];

const OWN: &[Setting] = &[
    projector("internvl"),
    NORM_EPSILON,
    GELU,
    SCALE_FACTOR,
    count("vision.preproc_min_tiles", &["min_dynamic_patch"]),
    count("vision.preproc_max_tiles", &["max_dynamic_patch"]),
];

pub(super) const INTERN_VL: Tower = Tower {
    class: ModelClass {
        // The second is what the tower's config calls it.
        classes: &["InternVLChatModel", "InternVisionModel"],
        model_type: "intern_vit_6b",
        defaults: &[
            ("hidden_size", Int(3200)),
            ("intermediate_size", Int(12_800)),
            ("num_hidden_layers", Int(48)),
            ("num_attention_heads", Int(25)),
            (IMAGE_SIZE, Int(224)),
            ("patch_size", Int(14)),
            ("norm_type", Text("rms_norm")),
            ("qkv_bias", Bool(false)),
            (NORMS, Bool(true)),
            (EPSILON, Float(1e-6)),
        ],
        implied: &[(CHANNELS, COLOURS), ("hidden_act", Text("gelu"))],
        biases: BIASES,
        tensors: &[TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    expected: &[("select_layer", Minus(1), Minus(1)), ("ps_version", Text("v1"), Text("v2"))],
    complete,
    wholes: &[Whole {
        text: "",
        class: "InternVLChatModel",
        model_type: "internvl_chat",
        text_type: None,
        inner: "language_model.model.",
        tokens: &[],
        processor: &[
            ("feature_extractor_type", Text("CLIPFeatureExtractor")),
            ("do_center_crop", Bool(true)),
            ("do_normalize", Bool(true)),
            ("do_resize", Bool(true)),
            ("resample", Int(3)),
        ],
    }],
    restore,
    note: Some("llama.cpp adds the position of another patch to each one of InternVL"),
    ..PLAIN_TOWER
};

/// Sets what the config of the whole model says.
///
/// # Errors
/// `Parse` if norms have biases that a tower of this size does not have, or lack them.
fn restore(config: &mut WholeConfig) -> Result<()> {
    let fields = &config.fields;
    let sizes = [fields.need(&["hidden_size"])?, fields.need(&["num_hidden_layers"])?];
    let (is_rms, field) = (sizes == RMS, "norm_type");
    if fields.flag("norms_have_bias") == is_rms {
        return Err(wrong(field, "llama.cpp's image tower of this size has other norms"));
    }
    let kind = if is_rms { "rms_norm" } else { "layer_norm" };
    config.vision.insert(field.to_owned(), kind.into());
    let merge = f64::from(fields.need(&[MERGE_SIZE])?.max(1));
    config
        .root
        .insert("downsample_ratio".to_owned(), merge.recip().into());
    for name in ["min_dynamic_patch", "max_dynamic_patch"] {
        let tiles = fields.0.get(name).cloned();
        config
            .root
            .extend(tiles.map(|tiles| (name.to_owned(), tiles)));
    }
    if let Some(image) = fields.0.get(IMAGE_SIZE).cloned() {
        for name in ["size", "crop_size"] {
            config.processor.insert(name.to_owned(), image.clone());
        }
        config.root.insert("force_image_size".to_owned(), image);
    }
    config.fields.0.remove("norms_have_bias");
    config
        .root
        .insert(TEXT_FIELD.to_owned(), "llm_config".into());
    let note = "InternVLChatModel is no class of transformers: the code of the model (`auto_map`), and `template` of config.json, are not in GGUF; take both from the model's page";
    config.notes.push(note.to_owned());
    Ok(())
}

/// The hidden size and the layers of the tower that llama.cpp takes for one with RMS norms.
const RMS: [u32; 2] = [3200, 45];

/// Adds what the config of the whole model says.
///
/// # Errors
/// `Parse` if norms or the order of patches are others than llama.cpp's.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    take_side(fields, IMAGE_SIZE);
    take_side(fields, PATCH_SIZE);
    let image = fields.need(&[IMAGE_SIZE])?;
    let field = "force_image_size";
    let forced = config.root.get(field);
    if let Some(forced) = forced.filter(|forced| !is_same(forced, &image.into())) {
        return Err(wrong(field, format!("it is {forced}, and the tower's images have {image}")));
    }
    add_patches(fields)?;
    let sizes = [fields.need(&["hidden_size"])?, fields.need(&["num_hidden_layers"])?];
    let (is_rms, field) = (sizes == RMS, "norm_type");
    let expected = if is_rms { "rms_norm" } else { "layer_norm" };
    if fields.0.get(field).is_none_or(|kind| kind != expected) {
        let what = format!("llama.cpp's image tower of this size has {expected}");
        return Err(wrong(field, what));
    }
    fields
        .0
        .insert("norms_have_bias".to_owned(), (!is_rms).into());
    let field = "downsample_ratio";
    let merge = patches_of_ratio(config.root.get(field), field)?;
    fields.0.insert(MERGE_SIZE.to_owned(), merge.into());
    for name in ["min_dynamic_patch", "max_dynamic_patch"] {
        let tiles = config
            .root
            .get(name)
            .filter(|tiles| tiles.as_u64() != Some(0));
        fields
            .0
            .extend(tiles.map(|tiles| (name.to_owned(), tiles.clone())));
    }
    Ok(())
}
