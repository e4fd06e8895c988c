//! The towers of Qwen 2-VL, 2.5-VL, 3-VL and 3.5, whose squares of patches become one token.
//!
//! Source: `conversion/qwenvl.py`, `conversion/qwen3vl.py`, and `clip_hparams` and
//! `PROJECTOR_TYPE_QWEN2VL` in `tools/mtmd/clip.cpp` of llama.cpp.

use serde_json::Value;

use super::{
    COLOURS, EPSILON, FUSED, GELU, IMAGE_SIZE, MERGE_SIZE, MERGED, MLP_WIDTH, NORM_EPSILON,
    PATCH_SIZE, PLAIN, PLAIN_TOWER, SETTINGS, SILU, TEXT_HIDDEN, Tower, TowerConfig, add_base,
    add_text_size, norm, projector, rename, square, third,
};
use crate::Result;
use crate::arch::dims::Dim;
use crate::arch::fields::{Fields, LAYER_KINDS, wrong};
use crate::arch::table::{
    Default, Kind, ModelClass, Need, Setting, TensorRule, Transform, count, only, parameter, same,
    setting,
};

/// Frames of a video that are taken together.
pub(super) const FRAMES: &str = "temporal_patch_size";

/// Filters over two frames, which llama.cpp has apart.
pub(super) const FILTERS: &[TensorRule] = &[
    frame(0, "v.patch_embd.weight"),
    frame(1, "v.patch_embd.weight.1"),
];

const fn frame(number: usize, gguf: &'static str) -> TensorRule {
    const SIDE: Dim = Dim::Field(PATCH_SIZE);
    const COLOUR: Dim = Dim::Field("in_channels");
    parameter(
        gguf,
        "visual.patch_embed.proj.weight",
        (
            Transform::Frames(number),
            &[Dim::Hidden, COLOUR, Dim::Field(FRAMES), SIDE, SIDE],
            &[Dim::Hidden, COLOUR, SIDE, SIDE],
        ),
    )
}

/// The bias of these filters.
pub(super) const FILTER_BIAS: &[TensorRule] = &[parameter(
    "v.patch_embd.bias",
    "visual.patch_embed.proj.bias",
    (Transform::None, &[Dim::Hidden], &[Dim::Hidden]),
)];

/// What all have in their layers.
pub(super) const LAYERS: &[TensorRule] = &[
    square("v.blk.{i}.attn_out", "visual.blocks.{i}.attn.proj"),
    norm("v.blk.{i}.ln1", "visual.blocks.{i}.norm1"),
    norm("v.blk.{i}.ln2", "visual.blocks.{i}.norm2"),
];

/// Queries, keys and values, which llama.cpp has apart.
const THIRDS: &[TensorRule] = &[
    third(0, "v.blk.{i}.attn_q", QKV),
    third(1, "v.blk.{i}.attn_k", QKV),
    third(2, "v.blk.{i}.attn_v", QKV),
];

const QKV: &str = "visual.blocks.{i}.attn.qkv";

/// The projector of Qwen 2 and 2.5.
const MERGER: &[TensorRule] = &[
    norm("v.post_ln", "visual.merger.ln_q"),
    same("mm.0", "visual.merger.mlp.0", &[MERGED, MERGED]),
    same("mm.2", "visual.merger.mlp.2", TO_TEXT),
];

/// From a square of patches to a token.
const TO_TEXT: &[Dim] = &[Dim::Field(TEXT_HIDDEN), MERGED];

const MLP: &[TensorRule] = &[
    same("v.blk.{i}.ffn_up", "visual.blocks.{i}.mlp.fc1", UP),
    same("v.blk.{i}.ffn_down", "visual.blocks.{i}.mlp.fc2", DOWN),
];

const GATED_MLP: &[TensorRule] = &[
    same("v.blk.{i}.ffn_gate", "visual.blocks.{i}.mlp.gate_proj", IN),
    same("v.blk.{i}.ffn_up", "visual.blocks.{i}.mlp.up_proj", IN),
    same("v.blk.{i}.ffn_down", "visual.blocks.{i}.mlp.down_proj", OUT),
];

const IN: &[Dim] = &[Dim::Inner, Dim::Hidden];
const OUT: &[Dim] = &[Dim::Hidden, Dim::Inner];

const WIDTH: Dim = Dim::Field(MLP_WIDTH);
const UP: &[Dim] = &[WIDTH, Dim::Hidden];
const DOWN: &[Dim] = &[Dim::Hidden, WIDTH];

/// Field of the number of learned positions.
pub(super) const POSITIONS: &str = "num_position_embeddings";

/// What `layer_types` calls layers whose states the language model gets, too.
const DEEPSTACK: &str = "deepstack";
const DEEP: Need = Need::Kind(DEEPSTACK);

const QWEN3_TENSORS: &[TensorRule] = &[
    same(
        "v.position_embd",
        "visual.pos_embed",
        &[Dim::Field(POSITIONS), Dim::Hidden],
    ),
    same("v.blk.{i}.attn_qkv", QKV, FUSED),
    same("v.blk.{i}.ffn_up", "visual.blocks.{i}.mlp.linear_fc1", IN),
    same(
        "v.blk.{i}.ffn_down",
        "visual.blocks.{i}.mlp.linear_fc2",
        OUT,
    ),
    norm("v.post_ln", "visual.merger.norm"),
    same("mm.0", "visual.merger.linear_fc1", &[MERGED, MERGED]),
    same("mm.2", "visual.merger.linear_fc2", TO_TEXT),
    only(
        DEEP,
        "v.deepstack.{i}.norm",
        "visual.deepstack_merger_list.{i}.norm",
        &[MERGED],
    ),
    only(
        DEEP,
        "v.deepstack.{i}.fc1",
        "visual.deepstack_merger_list.{i}.linear_fc1",
        &[MERGED, MERGED],
    ),
    only(
        DEEP,
        "v.deepstack.{i}.fc2",
        "visual.deepstack_merger_list.{i}.linear_fc2",
        TO_TEXT,
    ),
];

/// What has a bias in all of them.
const ATTENTION_BIASES: &[&str] = &[
    "v.blk.{i}.attn_q",
    "v.blk.{i}.attn_k",
    "v.blk.{i}.attn_v",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
    "mm.0",
    "mm.2",
];
const NORM_BIASES: &[&str] = &["v.blk.{i}.ln1", "v.blk.{i}.ln2", "v.post_ln"];
const GATE_BIASES: &[&str] = &["v.blk.{i}.ffn_gate"];
const QWEN3_BIASES: &[&str] = &[
    "v.blk.{i}.attn_qkv",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
    "mm.0",
    "mm.2",
];
const DEEP_BIASES: &[&str] = &[
    "v.deepstack.{i}.norm",
    "v.deepstack.{i}.fc1",
    "v.deepstack.{i}.fc2",
];

/// Graphs merge two by two patches, and take two frames.
pub(super) const IMPLIED: &[(&str, Default)] = &[
    (MERGE_SIZE, Default::Int(2)),
    (FRAMES, Default::Int(2)),
    ("in_channels", COLOURS),
    ("rope_theta", Default::Float(10_000.0)),
];

const QWEN2_OWN: &[Setting] = &[projector("qwen2vl_merger"), NORM_EPSILON];

pub(super) const QWEN2_VL: Tower = Tower {
    class: ModelClass {
        classes: &["Qwen2VLForConditionalGeneration"],
        model_type: "qwen2_vl",
        defaults: &[
            ("depth", Default::Int(32)),
            ("embed_dim", Default::Int(1280)),
            ("hidden_size", Default::Int(3584)),
            ("num_heads", Default::Int(16)),
            ("mlp_ratio", Default::Int(4)),
            ("patch_size", Default::Int(14)),
            (MERGE_SIZE, Default::Int(2)),
            (FRAMES, Default::Int(2)),
            ("in_channels", COLOURS),
            ("hidden_act", Default::Text("quick_gelu")),
            (IMAGE_SIZE, Default::Int(560)),
            (EPSILON, Default::Float(1e-6)),
        ],
        implied: &[
            IMPLIED[0],
            IMPLIED[1],
            IMPLIED[2],
            IMPLIED[3],
            ("hidden_act", Default::Text("quick_gelu")),
        ],
        biases: &[("", ATTENTION_BIASES), ("", NORM_BIASES)],
        tensors: &[FILTERS, LAYERS, THIRDS, MLP, MERGER],
        settings: &[SETTINGS, QWEN2_OWN],
        ..PLAIN
    },
    swaps_square: true,
    complete: complete2,
    ..PLAIN_TOWER
};

/// Gives the fields of Qwen 2-VL, whose `hidden_size` is that of the language model, their usual
/// names.
fn complete2(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    let width = fields
        .need(&["embed_dim"])?
        .checked_mul(fields.need(&["mlp_ratio"])?);
    let width = width.ok_or_else(|| wrong("mlp_ratio", "it is too large"))?;
    fields.0.insert(MLP_WIDTH.to_owned(), width.into());
    // llama.cpp's converter writes this, and its graphs do not read it.
    rename(fields, "hidden_size", "intermediate_size");
    rename(fields, "embed_dim", "hidden_size");
    let size = fields.need(&["intermediate_size"])?;
    usual_names(fields, config, (size, "hidden_size"))
}

/// Windows of attention, and how many layers there are from one without to the next.
const WINDOW_PERIOD: &str = "window_period";

const QWEN2_5_OWN: &[Setting] = &[
    projector("qwen2.5vl_merger"),
    SILU,
    count("vision.n_wa_pattern", &[WINDOW_PERIOD]),
    NORM_EPSILON,
];

pub(super) const QWEN2_5_VL: Tower = Tower {
    class: ModelClass {
        classes: &["Qwen2_5_VLForConditionalGeneration"],
        model_type: "qwen2_5_vl",
        defaults: &[
            ("depth", Default::Int(32)),
            ("hidden_size", Default::Int(3584)),
            ("intermediate_size", Default::Int(3420)),
            ("num_heads", Default::Int(16)),
            ("out_hidden_size", Default::Int(3584)),
            ("patch_size", Default::Int(14)),
            (MERGE_SIZE, Default::Int(2)),
            (FRAMES, Default::Int(2)),
            ("in_channels", COLOURS),
            ("hidden_act", Default::Text("silu")),
            ("window_size", Default::Int(112)),
            (IMAGE_SIZE, Default::Int(560)),
            (EPSILON, Default::Float(1e-6)),
        ],
        implied: &[
            IMPLIED[0],
            IMPLIED[1],
            IMPLIED[2],
            IMPLIED[3],
            ("hidden_act", Default::Text("silu")),
            ("window_size", Default::Int(112)),
        ],
        biases: &[("", ATTENTION_BIASES), ("", GATE_BIASES)],
        tensors: &[FILTERS, LAYERS, THIRDS, GATED_MLP, MERGER],
        settings: &[SETTINGS, QWEN2_5_OWN],
        ..PLAIN
    },
    swaps_square: true,
    complete: complete2_5,
    ..PLAIN_TOWER
};

/// Adds which layers have no windows.
///
/// # Errors
/// `Parse` if it is not every so many layers one: llama.cpp knows no other pattern.
fn complete2_5(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    let size = fields.need(&["out_hidden_size"])?;
    usual_names(fields, config, (size, "out_hidden_size"))?;
    let field = "fullatt_block_indexes";
    let layers = u64::from(fields.need(&["num_hidden_layers"])?);
    let usual = || Value::from(vec![7, 15, 23, 31]);
    let all = fields.0.get(field).cloned().unwrap_or_else(usual);
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let period = all
        .first()
        .and_then(Value::as_u64)
        .unwrap_or(layers)
        .saturating_add(1);
    let expected = (1..=layers / period).map(|n| Value::from(n * period - 1));
    if all.is_empty() || !expected.eq(all.iter().cloned()) {
        let what = format!("{all:?} is not every so many of {layers} layers one");
        return Err(wrong(field, what));
    }
    fields.0.insert(WINDOW_PERIOD.to_owned(), period.into());
    Ok(())
}

const QWEN3_OWN: &[Setting] = &[
    projector("qwen3vl_merger"),
    GELU,
    count("vision.spatial_merge_size", &[MERGE_SIZE]),
    NORM_EPSILON,
    setting(Kind::Layers(DEEPSTACK), "vision.is_deepstack_layers", &[]),
];

pub(super) const QWEN3_VL: Tower = Tower {
    class: ModelClass {
        classes: &[
            "Qwen3VLForConditionalGeneration",
            "Qwen3VLMoeForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForConditionalGeneration",
        ],
        model_type: "qwen3_vl",
        defaults: &[
            ("depth", Default::Int(27)),
            ("hidden_size", Default::Int(1152)),
            ("intermediate_size", Default::Int(4304)),
            ("num_heads", Default::Int(16)),
            ("out_hidden_size", Default::Int(3584)),
            ("patch_size", Default::Int(16)),
            (POSITIONS, Default::Int(2304)),
            (MERGE_SIZE, Default::Int(2)),
            (FRAMES, Default::Int(2)),
            ("in_channels", COLOURS),
            ("hidden_act", Default::Text("gelu_pytorch_tanh")),
            (EPSILON, Default::Float(1e-6)),
        ],
        implied: &[
            IMPLIED[0],
            IMPLIED[1],
            IMPLIED[2],
            IMPLIED[3],
            ("hidden_act", Default::Text("gelu_pytorch_tanh")),
        ],
        biases: &[("", QWEN3_BIASES), ("", NORM_BIASES), ("", DEEP_BIASES)],
        tensors: &[FILTERS, FILTER_BIAS, LAYERS, QWEN3_TENSORS],
        settings: &[SETTINGS, QWEN3_OWN],
        ..PLAIN
    },
    complete: complete3,
    table_name: name_of_deepstack,
    ..PLAIN_TOWER
};

/// Field of the layers whose states the language model gets, too.
const DEEP_LAYERS: &str = "deepstack_visual_indexes";

/// Adds the length of an image, and which layers are of [`DEEPSTACK`].
fn complete3(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    let size = fields.need(&["out_hidden_size"])?;
    usual_names(fields, config, (size, "out_hidden_size"))?;
    let side = fields.need(&[POSITIONS])?.isqrt();
    if side.checked_mul(side) != Some(fields.need(&[POSITIONS])?) {
        return Err(wrong(POSITIONS, "it is no square"));
    }
    let image = side.checked_mul(fields.need(&[PATCH_SIZE])?);
    let image = image.ok_or_else(|| wrong(PATCH_SIZE, "it is too large"))?;
    fields.0.entry(IMAGE_SIZE).or_insert(image.into());
    let layers = fields.need(&["num_hidden_layers"])? as usize;
    let usual = || {
        Value::from(match config.root["model_type"] == "qwen3_vl" {
            true => vec![8, 16, 24],
            false => vec![],
        })
    };
    let deep = fields.0.entry(DEEP_LAYERS).or_insert_with(usual);
    let deep = deep.as_array().map(Vec::as_slice).unwrap_or_default();
    let outside = |layer: &&Value| layer.as_u64().is_none_or(|layer| layer >= layers as u64);
    if let Some(layer) = deep.iter().find(outside) {
        return Err(wrong(
            DEEP_LAYERS,
            format_args!("{layer} is none of {layers} layers"),
        ));
    }
    // llama.cpp has what they give in the order of layers.
    if !deep.is_sorted_by_key(Value::as_u64) {
        return Err(wrong(DEEP_LAYERS, "layers are not in their order"));
    }
    let kind = |layer: usize| match deep.contains(&layer.into()) {
        true => DEEPSTACK,
        false => "plain",
    };
    let kinds: Value = (0..layers).map(kind).collect();
    fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    Ok(())
}

/// The name of a tensor with the number of its layer in place of that in the list of
/// [`DEEPSTACK`].
fn name_of_deepstack(name: &str, fields: &Fields) -> String {
    let renumbered = || {
        let (before, rest) = name.split_once("deepstack_merger_list.")?;
        let (number, rest) = rest.split_once('.')?;
        let layers = fields.0.get(DEEP_LAYERS)?.as_array()?;
        let layer = layers.get(number.parse::<usize>().ok()?)?;
        Some(format!("{before}deepstack_merger_list.{layer}.{rest}"))
    };
    renumbered().unwrap_or_else(|| name.to_owned())
}

/// Gives the fields of all towers of Qwen their usual names. The tower's own length of the language
/// model's hidden state, a field and what it says, must be that model's.
pub(super) fn usual_names(
    fields: &mut Fields,
    config: &TowerConfig<'_>,
    (size, field): (u32, &str),
) -> Result<()> {
    rename(fields, "depth", "num_hidden_layers");
    rename(fields, "num_heads", "num_attention_heads");
    add_base(fields);
    add_text_size(fields, config)?;
    let text = fields.need(&[TEXT_HIDDEN])?;
    if size != text {
        let what = format!("it is {size}, and the language model's hidden_size {text}");
        return Err(wrong(field, what));
    }
    Ok(())
}
