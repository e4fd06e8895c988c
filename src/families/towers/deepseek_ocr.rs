//! The towers of DeepSeek-OCR, of Unlimited-OCR and of DeepSeek-OCR 2: SAM in front of CLIP, and of
//! Qwen 2 in the second.
//!
//! Source: `DeepseekOCRVisionModel` in `conversion/deepseek.py`, and
//! `tools/mtmd/models/deepseekocr.cpp` and `deepseekocr2.cpp` of llama.cpp.

use serde_json::{Map, Value, json};

use super::{
    COLOURS, EPSILON, FUSED, GELU, IMAGE_SIZE, NORM_EPSILON, PATCH_SIZE, PATCHES, PLAIN,
    PLAIN_TOWER, SETTINGS, TEXT_FIELD, TEXT_HIDDEN, Tower, TowerConfig, TowerType, Whole,
    WholeConfig, add_patches, add_text_size, down, norm, note_code, patches_of_side, projector,
    square, up, whole,
};
use crate::Result;
use crate::families::engine::fields::{
    Fields, HEADS, INNER, KV_HEADS, LAYER_KINDS, LAYERS, is_same, wrong,
};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

/// What `layer_types` calls as many layers as SAM has.
const SAM: &str = "sam";
const OF_SAM: Need = Need::Kind(SAM);

/// Fields of the width and the number of heads of SAM.
const WIDTH: &str = "sam_width";
const SAM_HEADS: &str = "sam_heads";

const WIDE: Dim = Field(WIDTH);
const WIDER: Dim = Sum(&[WIDE, WIDE, WIDE, WIDE]);
/// Widths behind SAM, which no config has.
const NECK: Dim = Field("sam_neck");
const NETS: [Dim; 2] = [Field("sam_net_2"), Field("sam_net_3")];
/// Lengths that layers with windows have, and others.
const POSITIONS: Dim = Product(&[Field("sam_positions"), Field("sam_windows")]);
const SIDE: Dim = Field("sam_side");
const PATCH: Dim = Field("sam_patch");
const THREE: Dim = Sum(&[One, One, One]);

const fn of_sam(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    only(OF_SAM, gguf, hf, shape)
}

/// A parameter of SAM, which has no end in transformers.
const fn positions(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    parameter(gguf, hf, (Transform::None, shape, shape))
}

const IN_FRONT: &[TensorRule] = &[
    positions("v.sam.pos_embd.weight", "model.sam_model.pos_embed", &[One, SIDE, SIDE, WIDE]),
    same("v.sam.patch_embd", "model.sam_model.patch_embed.proj", &[WIDE, THREE, PATCH, PATCH]),
    of_sam("v.sam.blk.{i}.pre_ln", "model.sam_model.blocks.{i}.norm1", &[WIDE]),
    of_sam("v.sam.blk.{i}.post_ln", "model.sam_model.blocks.{i}.norm2", &[WIDE]),
    of_sam(
        "v.sam.blk.{i}.attn.qkv",
        "model.sam_model.blocks.{i}.attn.qkv",
        &[Sum(&[WIDE, WIDE, WIDE]), WIDE],
    ),
    of_sam("v.sam.blk.{i}.attn.out", "model.sam_model.blocks.{i}.attn.proj", &[WIDE, WIDE]),
    in_layers(
        OF_SAM,
        positions(ROWS, "model.sam_model.blocks.{i}.attn.rel_pos_h", &[POSITIONS, SAM_HEAD]),
    ),
    in_layers(
        OF_SAM,
        positions(COLUMNS, "model.sam_model.blocks.{i}.attn.rel_pos_w", &[POSITIONS, SAM_HEAD]),
    ),
    of_sam("v.sam.blk.{i}.mlp.lin1", "model.sam_model.blocks.{i}.mlp.lin1", &[WIDER, WIDE]),
    of_sam("v.sam.blk.{i}.mlp.lin2", "model.sam_model.blocks.{i}.mlp.lin2", &[WIDE, WIDER]),
    same("v.sam.neck.0", "model.sam_model.neck.0", &[NECK, WIDE, One, One]),
    same("v.sam.neck.1", "model.sam_model.neck.1", &[NECK]),
    same("v.sam.neck.2", "model.sam_model.neck.2", &[NECK, NECK, THREE, THREE]),
    same("v.sam.neck.3", "model.sam_model.neck.3", &[NECK]),
    same("v.sam.net_2", "model.sam_model.net_2", &[NETS[0], NECK, THREE, THREE]),
    same("v.sam.net_3", "model.sam_model.net_3", &[NETS[1], NETS[0], THREE, THREE]),
];

const ROWS: &str = "v.sam.blk.{i}.attn.pos_h.weight";
const COLUMNS: &str = "v.sam.blk.{i}.attn.pos_w.weight";
const SAM_HEAD: Dim = Quotient(&[WIDE, Field(SAM_HEADS)]);

const TEXT: Dim = Field(TEXT_HIDDEN);

const SEPARATOR: &[TensorRule] = &[parameter(
    "v.view_seperator",
    "model.view_seperator",
    (Transform::RESHAPED, &[TEXT], &[One, TEXT]),
)];

/// Width of feed-forward layers of CLIP.
const CLIP_WIDTH: Dim = Sum(&[Hidden, Hidden, Hidden, Hidden]);
const AND_CLASS: &[Dim] = &[Sum(&[One, Field(PATCHES)]), Hidden];

const CLIP: &[TensorRule] = &[
    whole("v.class_embd", "model.vision_model.embeddings.class_embedding", &[Hidden]),
    same(
        "v.patch_embd",
        "model.vision_model.embeddings.patch_embedding",
        &[Hidden, THREE, Field(PATCH_SIZE), Field(PATCH_SIZE)],
    ),
    same("v.position_embd", "model.vision_model.embeddings.position_embedding", AND_CLASS),
    norm("v.pre_ln", "model.vision_model.pre_layrnorm"),
    same(
        "v.blk.{i}.attn_qkv",
        "model.vision_model.transformer.layers.{i}.self_attn.qkv_proj",
        FUSED,
    ),
    square("v.blk.{i}.attn_out", "model.vision_model.transformer.layers.{i}.self_attn.out_proj"),
    norm("v.blk.{i}.ln1", "model.vision_model.transformer.layers.{i}.layer_norm1"),
    norm("v.blk.{i}.ln2", "model.vision_model.transformer.layers.{i}.layer_norm2"),
    same(
        "v.blk.{i}.ffn_up",
        "model.vision_model.transformer.layers.{i}.mlp.fc1",
        &[CLIP_WIDTH, Hidden],
    ),
    same(
        "v.blk.{i}.ffn_down",
        "model.vision_model.transformer.layers.{i}.mlp.fc2",
        &[Hidden, CLIP_WIDTH],
    ),
    whole("v.image_newline", "model.image_newline", &[TEXT]),
    same("mm.model.fc", "model.projector.layers", &[TEXT, Sum(&[Hidden, NETS[1]])]),
];

const QWEN2: &[TensorRule] = &[
    same("v.blk.{i}.attn_q", "model.qwen2_model.model.model.layers.{i}.self_attn.q_proj", KEYS.0),
    same("v.blk.{i}.attn_k", "model.qwen2_model.model.model.layers.{i}.self_attn.k_proj", KEYS.1),
    same("v.blk.{i}.attn_v", "model.qwen2_model.model.model.layers.{i}.self_attn.v_proj", KEYS.1),
    square("v.blk.{i}.attn_out", "model.qwen2_model.model.model.layers.{i}.self_attn.o_proj"),
    norm("v.blk.{i}.ln1", "model.qwen2_model.model.model.layers.{i}.input_layernorm"),
    norm("v.blk.{i}.ln2", "model.qwen2_model.model.model.layers.{i}.post_attention_layernorm"),
    up("v.blk.{i}.ffn_gate", "model.qwen2_model.model.model.layers.{i}.mlp.gate_proj"),
    up("v.blk.{i}.ffn_up", "model.qwen2_model.model.model.layers.{i}.mlp.up_proj"),
    down("v.blk.{i}.ffn_down", "model.qwen2_model.model.model.layers.{i}.mlp.down_proj"),
    norm("v.post_ln", "model.qwen2_model.model.model.norm"),
    same("v.resample_query_768", "model.qwen2_model.query_768", &[Field("small_queries"), Hidden]),
    same(
        "v.resample_query_1024",
        "model.qwen2_model.query_1024",
        &[Field("large_queries"), Hidden],
    ),
    same("mm.model.fc", "model.projector.layers", &[TEXT, Hidden]),
];

const KEYS: (&[Dim], &[Dim]) = (&[Hidden, Hidden], &[Keys, Hidden]);

const SAM_BIASES: &[&str] = &[
    "v.sam.patch_embd",
    "v.sam.blk.{i}.pre_ln",
    "v.sam.blk.{i}.post_ln",
    "v.sam.blk.{i}.attn.qkv",
    "v.sam.blk.{i}.attn.out",
    "v.sam.blk.{i}.mlp.lin1",
    "v.sam.blk.{i}.mlp.lin2",
    "v.sam.neck.1",
    "v.sam.neck.3",
    "mm.model.fc",
];

const CLIP_BIASES: &[&str] = &[
    "v.pre_ln",
    "v.blk.{i}.attn_qkv",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ln1",
    "v.blk.{i}.ln2",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
];

/// UINT32: how many layers SAM has.
const SAM_LAYERS: OwnSetting = required(own(
    |setting, model: &Model<'_>| {
        let kinds = model.fields.0.get(LAYER_KINDS).and_then(Value::as_array);
        let count = kinds.map_or(0, |kinds| kinds.iter().filter(|kind| **kind == SAM).count());
        Ok(Some(setting.count(count)?))
    },
    |stated, config| {
        let count = stated.count()?;
        let layers = config.metadata.get("clip.vision.block_count");
        let layers = layers.and_then(|value| value.as_unsigned()).unwrap_or(0);
        let kinds = kinds(count, layers);
        Ok(Some(kinds.ok_or_else(|| wrong("clip.vision.sam.block_count", TOO_MANY))?))
    },
));

const TOO_MANY: &str = "SAM has more layers than there are behind it";

/// Most layers that llama.cpp has.
const MOST: u64 = 512;

/// The kinds of `layers` layers of which SAM has `sam`.
fn kinds(sam: u64, layers: u64) -> Option<Value> {
    let kind = |layer| if layer < sam { SAM } else { "plain" };
    (sam <= layers && layers <= MOST).then(|| (0..layers).map(kind).collect())
}

/// How many patches in a row become one token, if not 4; llama.cpp does not read it.
const SCALE: &str = "scale";

const TILES: [Setting; 2] = [
    setting(Kind::Fixed(2), "vision.preproc_min_tiles", &[]),
    setting(Kind::Fixed(9), "vision.preproc_max_tiles", &[]),
];

const OWN: &[Setting] = &[
    NORM_EPSILON,
    GELU,
    count("vision.projector.scale_factor", &[SCALE]),
    setting(Kind::Required, "vision.window_size", &[WINDOW]),
    TILES[0],
];

const OF_SAM_KEYS: &[Setting] = &[
    setting(Kind::Own(&SAM_LAYERS), "vision.sam.block_count", &[LAYER_KINDS]),
    setting(Kind::Required, "vision.sam.embedding_length", &[WIDTH]),
    setting(Kind::Required, "vision.sam.head_count", &[SAM_HEADS]),
];

const WINDOW: &str = "window_size";

const CLIP_TYPES: &[(&str, TowerType)] = &[
    ("v.patch_embd.weight", TowerType::F32),
    SAM_TYPES[0],
    SAM_TYPES[1],
    SAM_TYPES[2],
    SAM_TYPES[3],
    SAM_TYPES[4],
    SAM_TYPES[5],
    SAM_TYPES[6],
];

const SAM_TYPES: &[(&str, TowerType)] = &[
    ("v.sam.pos_embd.weight", TowerType::F32),
    (ROWS, TowerType::F32),
    (COLUMNS, TowerType::F32),
    ("v.sam.neck.0.weight", TowerType::F32),
    ("v.sam.neck.2.weight", TowerType::F32),
    ("v.sam.net_2.weight", TowerType::F32),
    ("v.sam.net_3.weight", TowerType::F32),
];

pub(super) const DEEPSEEK_OCR: Tower = Tower {
    class: ModelClass {
        classes: &["DeepseekOCRForCausalLM"],
        model_type: "vision",
        defaults: &[(WINDOW, Int(14)), (EPSILON, Float(1e-6))],
        implied: &[("num_channels", COLOURS)],
        biases: &[("", SAM_BIASES), ("", CLIP_BIASES)],
        tensors: &[IN_FRONT, CLIP, SEPARATOR],
        settings: &[SETTINGS, &[projector("deepseekocr")], OWN, &[TILES[1]], OF_SAM_KEYS],
        ..PLAIN
    },
    complete: |fields, config| complete(fields, config, &CLIP_L),
    wholes: &[WHOLE],
    restore: |config| restore(config, &CLIP_L),
    types: CLIP_TYPES,
    ..PLAIN_TOWER
};

const WHOLE: Whole = Whole {
    text: "deepseek2-ocr",
    class: "DeepseekOCRForCausalLM",
    model_type: "deepseek_vl_v2",
    text_type: None,
    inner: "model.",
    tokens: &[],
    processor: &[("processor_class", Text("DeepseekVLV2Processor"))],
};

/// Images are cut into more tiles.
pub(super) const UNLIMITED_OCR: Tower = Tower {
    class: ModelClass {
        classes: &["UnlimitedOCRForCausalLM"],
        settings: &[
            SETTINGS,
            &[projector("deepseekocr")],
            OWN,
            &[setting(Kind::Fixed(32), "vision.preproc_max_tiles", &[])],
            OF_SAM_KEYS,
        ],
        traits: Traits { sign: Sign::Key("vision.preproc_max_tiles", 32), ..PLAIN.traits },
        ..DEEPSEEK_OCR.class
    },
    wholes: &[Whole { class: "UnlimitedOCRForCausalLM", ..WHOLE }],
    ..DEEPSEEK_OCR
};

pub(super) const DEEPSEEK_OCR2: Tower = Tower {
    class: ModelClass {
        classes: &["DeepseekOCR2ForCausalLM"],
        implied: &[("num_channels", COLOURS), (KV_HEADS[0], Int(2))],
        biases: &[
            ("", SAM_BIASES),
            ("", &["v.blk.{i}.attn_q", "v.blk.{i}.attn_k", "v.blk.{i}.attn_v"]),
        ],
        tensors: &[IN_FRONT, QWEN2, SEPARATOR],
        settings: &[
            SETTINGS,
            &[projector("deepseekocr2")],
            OWN,
            &[setting(Kind::Fixed(6), "vision.preproc_max_tiles", &[])],
            OF_SAM_KEYS,
            &[count("vision.attention.head_count_kv", KV_HEADS)],
        ],
        ..DEEPSEEK_OCR.class
    },
    complete: |fields, config| complete(fields, config, &QWEN2_ENCODER),
    wholes: &[Whole { class: "DeepseekOCR2ForCausalLM", ..WHOLE }],
    restore: |config| restore(config, &QWEN2_ENCODER),
    types: SAM_TYPES,
    ..DEEPSEEK_OCR
};

/// What stands behind SAM.
struct Behind {
    /// Its name in the object of all widths.
    name: &'static str,
    /// Names of its sizes there, each with that of the table and with what models have.
    sizes: &'static [(&'static str, &'static str, u32)],
    /// Sizes that stand beside that object.
    beside: &'static [(&'static str, u32)],
}

const CLIP_L: Behind = Behind {
    name: "clip-l-14-224",
    sizes: &[
        ("width", "hidden_size", 1024),
        ("heads", "num_attention_heads", 16),
        ("layers", "num_hidden_layers", 24),
        ("image_size", IMAGE_SIZE, 224),
        ("patch_size", PATCH_SIZE, 14),
    ],
    beside: &[],
};

const QWEN2_ENCODER: Behind = Behind {
    name: "qwen2-0-5b",
    sizes: &[("dim", "hidden_size", 896)],
    beside: &[
        ("intermediate_size", 4864),
        ("num_attention_heads", 14),
        ("num_hidden_layers", 24),
        (IMAGE_SIZE, 1024),
        (PATCH_SIZE, 16),
    ],
};

/// Layers of SAM without windows: llama.cpp knows no others.
const WHOLE_LAYERS: [u32; 4] = [2, 5, 8, 11];

/// Field of the object of all widths.
const WIDTHS: &str = "width";

/// Takes the widths of both parts apart.
///
/// # Errors
/// `Parse` if SAM has other layers without windows than llama.cpp's, or a size is missing.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>, behind: &Behind) -> Result<()> {
    add_text_size(fields, config)?;
    let Some(Value::Object(mut widths)) = fields.0.remove(WIDTHS) else {
        return Err(wrong(WIDTHS, "it is no object of two parts"));
    };
    let mut part = |name: &str| match widths.remove(name) {
        Some(Value::Object(part)) => Ok(Fields(part)),
        _ => Err(wrong(WIDTHS, format_args!("it has no `{name}`"))),
    };
    let (sam, own) = (part("sam_vit_b")?, part(behind.name)?);
    for (name, field, usual) in behind.sizes {
        let size = own.count(&[name])?.unwrap_or(*usual);
        fields.0.insert((*field).to_owned(), size.into());
    }
    for (field, usual) in behind.beside {
        fields.0.entry(*field).or_insert((*usual).into());
    }
    let heads = fields.need(HEADS)?;
    if behind.beside.is_empty() {
        // What llama.cpp's converter writes for it, and llama.cpp does not read.
        let width = heads.saturating_mul(4);
        fields.0.insert(INNER[0].to_owned(), width.into());
        add_patches(fields)?;
    }
    for (name, field) in [("width", WIDTH), ("heads", SAM_HEADS)] {
        fields.0.insert(field.to_owned(), sam.need(&[name])?.into());
    }
    let field = "global_attn_indexes";
    let expected = json!(WHOLE_LAYERS);
    if let Some(found) = sam.0.get(field).filter(|found| !is_same(found, &expected)) {
        return Err(wrong(field, format_args!("it is {found}, and llama.cpp has {expected}")));
    }
    let kinds = kinds(sam.need(&["layers"])?.into(), fields.need(LAYERS)?.into());
    let kinds = kinds.ok_or_else(|| wrong("layers", TOO_MANY))?;
    fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    let tokens = config.processor.get("image_seq_length");
    let tokens = tokens.and_then(Value::as_u64).unwrap_or(256).isqrt();
    let scale = u64::from(patches_of_side(fields)?).checked_div(tokens);
    fields.0.remove(SCALE);
    if let Some(scale) = scale.filter(|scale| ![0, 4].contains(scale)) {
        fields.0.insert(SCALE.to_owned(), scale.into());
    }
    Ok(())
}

/// Puts the widths of both parts together.
fn restore(config: &mut WholeConfig, behind: &Behind) -> Result<()> {
    let take = |fields: &Fields, field: &str| fields.0.get(field).cloned().unwrap_or_default();
    let sizes = behind.sizes.iter();
    let own = sizes.map(|(name, field, _)| ((*name).to_owned(), take(&config.fields, field)));
    let own: Map<String, Value> = own.collect();
    for (field, _) in behind.beside {
        let size = take(&config.fields, field);
        config.vision.insert((*field).to_owned(), size);
    }
    let layers = config.fields.0.get(LAYER_KINDS).and_then(Value::as_array);
    let layers = layers.map_or(0, |all| all.iter().filter(|kind| **kind == SAM).count());
    let sam = json!({
        "width": take(&config.fields, WIDTH),
        "heads": take(&config.fields, SAM_HEADS),
        "layers": layers,
        "global_attn_indexes": WHOLE_LAYERS,
        "downsample_channels": NETS.map(|net| match net {
            Field(name) => take(&config.fields, name),
            _ => Value::Null,
        }),
    });
    let widths = json!({ behind.name: own, "sam_vit_b": sam });
    config.vision.insert(WIDTHS.to_owned(), widths);
    config
        .root
        .insert(TEXT_FIELD.to_owned(), "language_config".into());
    note_code(config);
    Ok(())
}
