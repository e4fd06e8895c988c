//! The tower of CogVLM: norms stand behind attention and feed-forward layers, and what is projected stands between two
//! vectors of its own.
//!
//! Source: `conversion/cogvlm.py` and `tools/mtmd/models/cogvlm.cpp` of llama.cpp.

use super::{
    EPSILON, FILTERS, FUSED, NORM_EPSILON, PATCHES, PLAIN, PLAIN_TOWER, SETTINGS, TEXT_HIDDEN,
    Tower, add_patches, add_text_size, down, norm, projector, square, up, whole,
};
use crate::families::engine::rows::*;

const TEXT: Dim = Field(TEXT_HIDDEN);

/// The name of a part of the tower.
macro_rules! part {
    ($name:literal) => {
        concat!("model.vision.", $name)
    };
}

const TOWER: &[TensorRule] = &[
    same("v.patch_embd", part!("patch_embedding.proj"), FILTERS),
    whole("v.class_embd", part!("patch_embedding.cls_embedding"), &[One, Hidden]),
    same(
        "v.position_embd",
        part!("patch_embedding.position_embedding"),
        &[Sum(&[One, Field(PATCHES)]), Hidden],
    ),
    same("v.blk.{i}.attn_qkv", part!("transformer.layers.{i}.attention.query_key_value"), FUSED),
    square("v.blk.{i}.attn_out", part!("transformer.layers.{i}.attention.dense")),
    norm("v.blk.{i}.ln1", part!("transformer.layers.{i}.input_layernorm")),
    norm("v.blk.{i}.ln2", part!("transformer.layers.{i}.post_attention_layernorm")),
    up("v.blk.{i}.ffn_up", part!("transformer.layers.{i}.mlp.fc1")),
    down("v.blk.{i}.ffn_down", part!("transformer.layers.{i}.mlp.fc2")),
];

/// Width of the projector.
const WIDTH: Dim = Field("projector_width");

const PROJECTOR: &[TensorRule] = &[
    same("mm.model.fc", part!("linear_proj.linear_proj"), &[TEXT, Hidden]),
    same("mm.post_fc_norm", part!("linear_proj.norm1"), &[TEXT]),
    same("mm.gate", part!("linear_proj.gate_proj"), &[WIDTH, TEXT]),
    same("mm.up", part!("linear_proj.dense_h_to_4h"), &[WIDTH, TEXT]),
    same("mm.down", part!("linear_proj.dense_4h_to_h"), &[TEXT, WIDTH]),
    whole("v.boi", part!("boi"), &[One, One, TEXT]),
    whole("v.eoi", part!("eoi"), &[One, One, TEXT]),
];

const BIASES: &[&str] = &[
    "v.patch_embd",
    "v.blk.{i}.attn_qkv",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ln1",
    "v.blk.{i}.ln2",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
    "mm.post_fc_norm",
];

const OWN: &[Setting] = &[NORM_EPSILON, projector("cogvlm")];

pub(super) const COGVLM: Tower = Tower {
    class: ModelClass {
        classes: &["CogVLMForCausalLM"],
        model_type: "cogvlm",
        defaults: &[(EPSILON, Float(1e-6))],
        implied: &[("in_channels", Int(3))],
        biases: &[("", BIASES)],
        tensors: &[TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        // Layers of the language model have parts for images.
        traits: Traits { left_out: &["model.layers."], ..PLAIN.traits },
        ..PLAIN
    },
    complete: |fields, config| {
        add_text_size(fields, config)?;
        add_patches(fields)
    },
    one_way: "its language model is no class of transformers here",
    note: Some(
        "llama.cpp has positions of other patches of CogVLM, and another function in its layers",
    ),
    ..PLAIN_TOWER
};
