//! MoonViT, the tower of Kimi-VL, Kimi K2.5 and GLM 5 with images: heads rotate by rows and columns
//! of patches, of which squares become one token.
//!
//! Source: `conversion/kimivl.py`, and `tools/mtmd/models/kimivl.cpp` and `kimik25.cpp` of
//! llama.cpp.

use serde_json::{Value, json};

use super::{
    CHANNELS, COLOURS, EPSILON, FILTERS, FUSED, GELU, IMAGE_SIZE, MAX_PIXELS, MERGE_SIZE, MERGED,
    MIN_PIXELS, NORM_EPSILON, PATCH_SIZE, PLAIN, PLAIN_TOWER, SCALE_FACTOR, SETTINGS, TEXT_HIDDEN,
    Tower, TowerConfig, Whole, WholeConfig, add_text_size, down, norm, note_code, projector,
    restore_patch, square, third, up,
};
use crate::error::InTensor;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, HEADS, HIDDEN, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor};
use crate::remember::layout::assembled::RowOrder;
use crate::{AnamnesisError, Result};

/// Fields of the number of rows and of columns that have positions, and of moments.
const ROWS: &str = "init_pos_emb_height";
const COLUMNS: &str = "init_pos_emb_width";
const MOMENTS: &str = "init_pos_emb_time";

const TOWER: &[TensorRule] = &[
    same("v.patch_embd", "vision_tower.patch_embed.proj", FILTERS),
    square("v.blk.{i}.attn_out", "vision_tower.encoder.blocks.{i}.wo"),
    norm("v.blk.{i}.ln1", "vision_tower.encoder.blocks.{i}.norm0"),
    norm("v.blk.{i}.ln2", "vision_tower.encoder.blocks.{i}.norm1"),
    up("v.blk.{i}.ffn_up", "vision_tower.encoder.blocks.{i}.mlp.fc0"),
    down("v.blk.{i}.ffn_down", "vision_tower.encoder.blocks.{i}.mlp.fc1"),
    norm("v.post_ln", "vision_tower.encoder.final_layernorm"),
];

const POSITIONS: &str = "vision_tower.patch_embed.pos_emb";
const QKV: &str = "vision_tower.encoder.blocks.{i}.wqkv";

/// Positions are a matrix, and queries, keys and values apart.
const VL: &[TensorRule] = &[
    TensorRule {
        transform: Transform::RESHAPED,
        // GGUF does not say how many rows there are: as many as columns.
        gguf_shape: Some(&[Product(&[Field(ROWS), Field(ROWS)]), Hidden]),
        ..same("v.position_embd", POSITIONS, &[Field(ROWS), Field(ROWS), Hidden])
    },
    third(0, "v.blk.{i}.attn_q", QKV),
    third(1, "v.blk.{i}.attn_k", QKV),
    third(2, "v.blk.{i}.attn_v", QKV),
];

const K25: &[TensorRule] = &[
    same("v.position_embd", POSITIONS, &[Field(ROWS), Field(COLUMNS), Hidden]),
    TensorRule { transform: Transform::Own(&BY_AXES), ..same("v.blk.{i}.attn_qkv", QKV, FUSED) },
];

const TO_TEXT: &[Dim] = &[Field(TEXT_HIDDEN), MERGED];

const VL_PROJECTOR: &[TensorRule] = &[
    norm("mm.input_norm", "multi_modal_projector.pre_norm"),
    same("mm.1", "multi_modal_projector.linear_1", &[MERGED, MERGED]),
    same("mm.2", "multi_modal_projector.linear_2", TO_TEXT),
];

const K25_PROJECTOR: &[TensorRule] = &[
    norm("mm.input_norm", "mm_projector.pre_norm"),
    same("mm.1", "mm_projector.proj.0", &[MERGED, MERGED]),
    same("mm.2", "mm_projector.proj.2", TO_TEXT),
];

const GLM_PROJECTOR: &[TensorRule] = &[
    K25_PROJECTOR[0],
    same("mm.1", "mm_projector.linear_1", &[MERGED, MERGED]),
    same("mm.2", "mm_projector.linear_2", TO_TEXT),
];

const BIASES: &[&str] = &[
    "v.patch_embd",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ln1",
    "v.blk.{i}.ln2",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
    "v.post_ln",
    "mm.input_norm",
    "mm.1",
    "mm.2",
];

const VL_OWN: &[Setting] = &[
    projector("kimivl"),
    GELU,
    setting(Kind::Fixed(2), "vision.projector.scale_factor", &[]),
    NORM_EPSILON,
];

pub(super) const KIMI_VL: Tower = Tower {
    class: ModelClass {
        classes: &["KimiVLForConditionalGeneration"],
        model_type: "moonvit",
        defaults: &[
            ("hidden_size", Int(1152)),
            ("intermediate_size", Int(4304)),
            ("num_hidden_layers", Int(27)),
            ("num_attention_heads", Int(16)),
            ("patch_size", Int(14)),
            (ROWS, Int(64)),
        ],
        implied: &[(EPSILON, Float(1e-5)), (MERGE_SIZE, Int(2)), (CHANNELS, COLOURS)],
        biases: &[
            ("", BIASES),
            ("", &["v.blk.{i}.attn_q", "v.blk.{i}.attn_k", "v.blk.{i}.attn_v"]),
        ],
        tensors: &[TOWER, VL, VL_PROJECTOR],
        settings: &[SETTINGS, VL_OWN],
        ..PLAIN
    },
    complete: |fields, config| {
        complete(fields, config)?;
        if fields.0.get(ROWS) != fields.0.get(COLUMNS) {
            return Err(wrong(COLUMNS, format_args!("it is not {ROWS}")));
        }
        // What llama.cpp's converter writes of all models.
        fields.0.insert(IMAGE_SIZE.to_owned(), (64 * 14).into());
        Ok(())
    },
    wholes: &[KIMI_VL_WHOLE],
    note: Some("llama.cpp turns other pairs of Kimi-VL's heads by the rows and columns of patches"),
    restore: |config| {
        let rows = config.fields.need(&[ROWS])?;
        config.vision.insert(COLUMNS.to_owned(), rows.into());
        restore(config);
        Ok(())
    },
    ..PLAIN_TOWER
};

const KIMI_VL_WHOLE: Whole = Whole {
    text: "deepseek2",
    class: "KimiVLForConditionalGeneration",
    model_type: "kimi_vl",
    text_type: None,
    inner: "language_model.model.",
    tokens: &[("media_placeholder_token_id", "<|media_pad|>")],
    processor: &[("image_processor_type", Text("KimiVLImageProcessor"))],
};

/// Field of the largest number of patches of an image, and what models have.
const PATCH_LIMIT: &str = "in_patch_limit";
const USUAL_LIMIT: u32 = 16_384;

const K25_OWN: &[Setting] = &[
    projector("kimik25"),
    count(".vision.pos_emb_height", &[ROWS]),
    count(".vision.pos_emb_width", &[COLUMNS]),
    count(".vision.pos_emb_time", &[MOMENTS]),
    GELU,
    NORM_EPSILON,
    SCALE_FACTOR,
    MIN_PIXELS,
    MAX_PIXELS,
];

pub(super) const KIMI_K25: Tower = Tower {
    class: ModelClass {
        classes: &["KimiK25ForConditionalGeneration"],
        model_type: "kimi_k25_vision",
        defaults: &[
            ("vt_hidden_size", Int(1152)),
            ("vt_intermediate_size", Int(4304)),
            ("vt_num_hidden_layers", Int(27)),
            ("vt_num_attention_heads", Int(16)),
            ("patch_size", Int(14)),
            (ROWS, Int(64)),
            (COLUMNS, Int(64)),
            (MOMENTS, Int(4)),
            ("projector_ln_eps", Float(1e-5)),
        ],
        implied: &[
            ("projector_hidden_act", Text("gelu")),
            ("mm_projector_type", Text("patchmerger")),
            ("pos_emb_type", Text("divided_fixed")),
            ("merge_type", Text("sd2_tpool")),
            ("video_attn_type", Text("spatial_temporal")),
            (MERGE_SIZE, Int(2)),
            (CHANNELS, COLOURS),
        ],
        own_fields: &[
            ("hidden_size", "vt_hidden_size"),
            ("intermediate_size", "vt_intermediate_size"),
            ("num_hidden_layers", "vt_num_hidden_layers"),
            ("num_attention_heads", "vt_num_attention_heads"),
            (EPSILON, "projector_ln_eps"),
        ],
        biases: &[("", BIASES), ("", &["v.blk.{i}.attn_qkv"])],
        tensors: &[TOWER, K25, K25_PROJECTOR],
        settings: &[SETTINGS, K25_OWN],
        ..PLAIN
    },
    complete: complete_k25,
    wholes: &[Whole {
        class: "KimiK25ForConditionalGeneration",
        model_type: "kimi_k25",
        processor: &[("processor_class", Text("KimiK25Processor"))],
        ..KIMI_VL_WHOLE
    }],
    restore: restore_k25,
    ..PLAIN_TOWER
};

/// The language model of these is none of transformers with images.
pub(super) const GLM5V: Tower = Tower {
    class: ModelClass {
        classes: &["Glm5vForConditionalGeneration"],
        tensors: &[TOWER, K25, GLM_PROJECTOR],
        ..KIMI_K25.class
    },
    wholes: &[],
    ..KIMI_K25
};

/// Adds the length of the language model's states, and compares the squares of patches.
///
/// # Errors
/// `Parse` if other numbers of patches become one token.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    let field = "merge_kernel_size";
    match fields.0.get(field) {
        Some(found) if *found != json!([2, 2]) && *found != 2 => {
            Err(wrong(field, format_args!("it is {found}, and llama.cpp has [2, 2]")))
        }
        _ => Ok(()),
    }
}

/// As [`complete`], with the numbers of pixels that images may have.
fn complete_k25(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    complete(fields, config)?;
    let side = fields.need(&[PATCH_SIZE])?;
    let image = fields.need(&[ROWS])?.checked_mul(side);
    let limit = config.processor.get(PATCH_LIMIT).cloned();
    let limit = Fields::of(
        limit
            .map(|n| (PATCH_LIMIT.to_owned(), n))
            .into_iter()
            .collect(),
    );
    let limit = limit.count(&[PATCH_LIMIT])?.unwrap_or(USUAL_LIMIT);
    let pixels = |patches: u32| side.checked_mul(side)?.checked_mul(patches);
    // An image has 8 patches at least.
    let sizes = [(IMAGE_SIZE, image), ("min_pixels", pixels(8)), ("max_pixels", pixels(limit))];
    for (field, size) in sizes {
        let size = size.ok_or_else(|| wrong(field, "it is too large"))?;
        fields.0.insert(field.to_owned(), size.into());
    }
    Ok(())
}

/// Sets what the processor says of patches, too.
fn restore(config: &mut WholeConfig) {
    restore_patch(config, PATCH_SIZE);
    let kernel = json!([2, 2]);
    config
        .vision
        .insert("merge_kernel_size".to_owned(), kernel.clone());
    config
        .processor
        .insert("merge_kernel_size".to_owned(), kernel);
    // The length that GGUF has follows from others.
    config.fields.0.remove(IMAGE_SIZE);
    note_code(config);
}

/// As [`restore`], with sizes that the config has twice.
fn restore_k25(config: &mut WholeConfig) -> Result<()> {
    restore(config);
    let [hidden, heads] = [HIDDEN, HEADS].map(|names| config.fields.need(names));
    let sizes = [
        ("mm_hidden_size", hidden?),
        ("num_attention_heads", heads?),
        ("text_hidden_size", config.fields.need(&[TEXT_HIDDEN])?),
    ];
    let sizes = sizes.map(|(name, size)| (name.to_owned(), Value::from(size)));
    config.vision.extend(sizes);
    let side = config.fields.need(&[PATCH_SIZE])?;
    let most = config.fields.need(&["max_pixels"])?;
    let limit = most.checked_div(side.saturating_mul(side)).unwrap_or(0);
    config
        .processor
        .insert(PATCH_LIMIT.to_owned(), limit.into());
    Ok(())
}

/// Pairs of rows of each head of queries and keys, which turn by columns and by rows of patches in
/// turn: in GGUF those that turn by columns come first.
const BY_AXES: OwnTransform = OwnTransform {
    to_gguf: |sources, name, dims| turned(sources, name, dims, false),
    to_hf: |sources, name, dims| turned(sources, name, dims, true),
};

fn turned(
    sources: &mut Vec<SourceTensor<'_>>,
    name: &str,
    dims: &Dims,
    is_inverse: bool,
) -> Result<(Rearrangement, Vec<usize>)> {
    let shape = sources[0].shape.clone();
    let (third, cols) = (dims.hidden, shape[1..].iter().product());
    let head = third.checked_div(dims.heads).unwrap_or(0);
    let is_whole = head > 0 && third.is_multiple_of(dims.heads) && head.is_multiple_of(4);
    if !is_whole || shape[0] != 3 * third {
        let what = format!("{}: its rows are no heads of pairs by two axes", InTensor(&name));
        return Err(AnamnesisError::parse(what));
    }
    // Runs of `of` rows, of which a half each goes to the two parts of a head.
    let (of, turn) = if is_inverse { (head, 2) } else { (4, head / 2) };
    let half = |first| {
        let order = RowOrder::Slice { first, len: of / 2, of };
        SourceRows { source: 0, order, rows: third, turn }
    };
    let moved = Rearrangement {
        pieces: vec![half(0), half(of / 2)],
        takes_turns: true,
        ..Rearrangement::of_each(0, RowOrder::From(0), (0, cols))
    };
    let mut both = shape.clone();
    both[0] = 2 * third;
    sources.push(sources[0].rearranged((name.to_owned(), both), &moved));
    let rows =
        |source, first, rows| SourceRows { source, order: RowOrder::From(first), rows, turn: 1 };
    let moved = Rearrangement {
        pieces: vec![rows(1, 0, 2 * third), rows(0, 2 * third, third)],
        takes_turns: false,
        ..moved
    };
    Ok((moved, shape))
}
