//! The tower of MiniMax M3, whose heads rotate by moments, rows and columns, with a projector whose
//! outputs are merged.
//!
//! Source: `MiniMaxM3VisionModel` in `conversion/minimax.py` and `tools/mtmd/models/minimax-m3.cpp`
//! of llama.cpp.

use serde_json::Value;

use super::gemma::SIGLIP_BIASES;
use super::{
    CHANNELS, COLOURS, EPSILON, FILTERS, GELU, IMAGE_SIZE, MERGE_SIZE, NORM_EPSILON, OfModel,
    PATCH_SIZE, PLAIN, PLAIN_TOWER, SETTINGS, SIDE, TEXT_HIDDEN, Tower, TowerConfig, Whole,
    add_base, add_text_size, down, norm, projector, restore_patch, square, up,
};
use crate::error::InTensor;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor};
use crate::remember::layout::assembled::RowOrder;
use crate::{AnamnesisError, Result};

const FRAMES: &str = "temporal_patch_size";

/// The filters of one of two frames.
const fn frame(number: usize, gguf: &'static str) -> TensorRule {
    const WHOLE: &[Dim] = &[Hidden, Field(CHANNELS), Field(FRAMES), SIDE, SIDE];
    parameter(
        gguf,
        "vision_tower.vision_model.embeddings.patch_embedding.weight",
        (Transform::Parts(Parts::one(Turn::Single(2, 2), number)), WHOLE, FILTERS),
    )
}

/// A projection whose rows turn by several axes.
const fn turning(gguf: &'static str, hf: &'static str) -> TensorRule {
    TensorRule { transform: Transform::Own(&BY_AXES), ..square(gguf, hf) }
}

const WIDTH: &str = "projector_hidden_size";
const TEXT: Dim = Field(TEXT_HIDDEN);
const MERGED_TEXT: Dim = Product(&[Field(MERGE_SIZE), Field(MERGE_SIZE), TEXT]);

const TENSORS: &[TensorRule] = &[
    frame(0, "v.patch_embd.weight"),
    frame(1, "v.patch_embd.weight.1"),
    norm("v.pre_ln", "vision_tower.vision_model.pre_layrnorm"),
    turning("v.blk.{i}.attn_q", "vision_tower.vision_model.encoder.layers.{i}.self_attn.q_proj"),
    turning("v.blk.{i}.attn_k", "vision_tower.vision_model.encoder.layers.{i}.self_attn.k_proj"),
    square("v.blk.{i}.attn_v", "vision_tower.vision_model.encoder.layers.{i}.self_attn.v_proj"),
    square("v.blk.{i}.attn_out", "vision_tower.vision_model.encoder.layers.{i}.self_attn.out_proj"),
    norm("v.blk.{i}.ln1", "vision_tower.vision_model.encoder.layers.{i}.layer_norm1"),
    norm("v.blk.{i}.ln2", "vision_tower.vision_model.encoder.layers.{i}.layer_norm2"),
    up("v.blk.{i}.ffn_up", "vision_tower.vision_model.encoder.layers.{i}.mlp.fc1"),
    down("v.blk.{i}.ffn_down", "vision_tower.vision_model.encoder.layers.{i}.mlp.fc2"),
    same("mm.1", "multi_modal_projector.linear_1", &[Field(WIDTH), Hidden]),
    same("mm.2", "multi_modal_projector.linear_2", &[TEXT, Field(WIDTH)]),
    same("mm.merger.fc1", "patch_merge_mlp.linear_1", &[Field(WIDTH), MERGED_TEXT]),
    same("mm.merger.fc2", "patch_merge_mlp.linear_2", &[TEXT, Field(WIDTH)]),
];

/// All of SigLIP's layers; there is no norm behind the last one.
const LAYER_BIASES: &[&str] = SIGLIP_BIASES.split_at(8).0;
const BIASES: &[&str] = &["v.pre_ln", "mm.1", "mm.2", "mm.merger.fc1", "mm.merger.fc2"];

/// The function of layers, which llama.cpp computes exactly, whatever the metadata say.
const FUNCTION: &str = "activation_function";

const OWN: &[Setting] = &[
    projector("minimax_m3"),
    GELU,
    NORM_EPSILON,
    setting(Kind::Required, "vision.spatial_merge_size", &[MERGE_SIZE]),
];

pub(super) const MINIMAX_M3: Tower = Tower {
    class: ModelClass {
        classes: &["MiniMaxM3SparseForConditionalGeneration"],
        model_type: "minimax_m3_vl_vision",
        defaults: &[
            ("hidden_size", Int(1280)),
            ("intermediate_size", Int(5120)),
            ("num_hidden_layers", Int(32)),
            ("num_attention_heads", Int(16)),
            (IMAGE_SIZE, Int(2016)),
            (PATCH_SIZE, Int(14)),
            (EPSILON, Float(1e-5)),
        ],
        implied: &[
            (FUNCTION, Text("gelu")),
            (CHANNELS, COLOURS),
            (FRAMES, Int(2)),
            ("rope_theta", Float(10_000.0)),
        ],
        own_fields: &[(FUNCTION, "hidden_act")],
        biases: &[("", LAYER_BIASES), ("", BIASES)],
        tensors: &[TENSORS],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    of_model: &[OfModel { name: WIDTH, field: WIDTH, default: Int(6144) }],
    complete,
    wholes: &[Whole {
        text: "minimax-m3",
        class: "MiniMaxM3SparseForConditionalGeneration",
        model_type: "minimax_m3_vl",
        text_type: Some("minimax_m3_vl_text"),
        inner: "language_model.model.",
        tokens: &[("image_token_index", "]<]image[>["), ("video_token_index", "]<]video[>[")],
        processor: &[
            ("image_processor_type", Text("MiniMaxM3VLImageProcessor")),
            ("processor_class", Text("MiniMaxM3VLProcessor")),
        ],
    }],
    restore: |config| {
        restore_patch(config, "patch_size");
        for (name, field) in [("merge_size", MERGE_SIZE), (FRAMES, FRAMES)] {
            let value = config.fields.0.get(field).cloned();
            config
                .processor
                .extend(value.map(|value| (name.to_owned(), value)));
        }
        Ok(())
    },
    ..PLAIN_TOWER
};

/// Adds how many patches become one token, which is 2 by 2 where no part of the config says it.
///
/// # Errors
/// `Parse` if two parts of the config contradict each other.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    add_base(fields);
    let nested = fields.0.get("img_token_compression_config");
    let nested = nested.and_then(|nested| nested.get(MERGE_SIZE)).cloned();
    let size = fields.0.get(MERGE_SIZE).cloned();
    if let (Some(nested), Some(size)) = (&nested, &size)
        && nested != size
    {
        return Err(wrong(MERGE_SIZE, format_args!("it is {size} and {nested}")));
    }
    let size = size.or(nested).unwrap_or(Value::from(2));
    fields.0.insert(MERGE_SIZE.to_owned(), size);
    Ok(())
}

/// Rows of each head of queries and keys: the first halves of what turns by moments, rows and
/// columns come before the second halves, and then what does not turn. In GGUF both halves of an
/// axis are together.
const BY_AXES: OwnTransform = OwnTransform {
    to_gguf: |sources, name, dims| turned(sources, name, dims, false),
    to_hf: |sources, name, dims| turned(sources, name, dims, true),
};

fn turned(
    sources: &mut [SourceTensor<'_>],
    name: &str,
    dims: &Dims,
    is_inverse: bool,
) -> Result<(Rearrangement, Vec<usize>)> {
    let shape = sources[0].shape.clone();
    let cols = shape[1..].iter().product();
    let head = shape[0].checked_div(dims.heads).unwrap_or(0);
    // Half of what turns by an axis.
    let half = head / 6;
    if half == 0 || !shape[0].is_multiple_of(dims.heads) {
        let what = format!("{}: its rows are no heads that turn by three axes", InTensor(&name));
        return Err(AnamnesisError::parse(what));
    }
    // Of one side a matrix of 2 by 3 pieces, and of the other that transposed.
    let at = |first: usize, second: usize| match is_inverse {
        false => (first + 3 * second) * half,
        true => (2 * first + second) * half,
    };
    let pairs = (0..6).map(|piece| match is_inverse {
        false => at(piece / 2, piece % 2),
        true => at(piece % 3, piece / 3),
    });
    let piece = |first, len| SourceRows {
        source: 0,
        order: RowOrder::Slice { first, len, of: head },
        rows: dims.heads * len,
        turn: len,
    };
    let mut pieces: Vec<_> = pairs.map(|first| piece(first, half)).collect();
    if head > 6 * half {
        pieces.push(piece(6 * half, head - 6 * half));
    }
    let moved = Rearrangement {
        pieces,
        takes_turns: true,
        ..Rearrangement::of_each(0, RowOrder::From(0), (0, cols))
    };
    Ok((moved, shape))
}
