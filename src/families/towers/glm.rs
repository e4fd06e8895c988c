//! The tower of GLM 4.1V and 4.5V: as that of Qwen 2.5-VL, with learned positions, a convolution
//! that makes one token of a square of patches, and a gated projector.
//!
//! Source: `Glm4VVisionModel` in `conversion/qwen3vl.py` and `tools/mtmd/models/glm4v.cpp` of
//! llama.cpp.

use super::qwen::{FILTER_BIAS, FILTERS, LAYERS, TRAITS, usual_names};
use super::{
    EPSILON, FUSED, IMAGE_SIZE, MERGE_SIZE, NORM_EPSILON, PATCHES, PLAIN, PLAIN_TOWER, SETTINGS,
    SILU, TEXT_HIDDEN, Tower, TowerConfig, add_patches, norm, projector, rename,
};
use crate::Result;
use crate::families::engine::fields::Fields;
use crate::families::engine::rows::*;

const TEXT: Dim = Field(TEXT_HIDDEN);

/// Layers are as wide as a hidden state of the language model; the projector has the width that the
/// config states.
const TOWER: &[TensorRule] = &[
    norm("v.norm_embd", "visual.post_conv_layernorm"),
    same("v.position_embd", "visual.embeddings.position_embedding", &[Field(PATCHES), Hidden]),
    same("v.blk.{i}.attn_qkv", "visual.blocks.{i}.attn.qkv", FUSED),
    same("v.blk.{i}.ffn_gate", "visual.blocks.{i}.mlp.gate_proj", &[TEXT, Hidden]),
    same("v.blk.{i}.ffn_up", "visual.blocks.{i}.mlp.up_proj", &[TEXT, Hidden]),
    same("v.blk.{i}.ffn_down", "visual.blocks.{i}.mlp.down_proj", &[Hidden, TEXT]),
    norm("v.post_ln", "visual.post_layernorm"),
];

const PROJECTOR: &[TensorRule] = &[
    same(
        "mm.patch_merger",
        "visual.downsample",
        &[TEXT, Hidden, Field(MERGE_SIZE), Field(MERGE_SIZE)],
    ),
    same("mm.model.fc", "visual.merger.proj", &[TEXT, TEXT]),
    same("mm.post_norm", "visual.merger.post_projection_norm", &[TEXT]),
    same("mm.gate", "visual.merger.gate_proj", &[Inner, TEXT]),
    same("mm.up", "visual.merger.up_proj", &[Inner, TEXT]),
    same("mm.down", "visual.merger.down_proj", &[TEXT, Inner]),
];

const BIASES: &[(&str, &[&str])] =
    &[("", &["mm.patch_merger", "mm.post_norm"]), ("attention_bias", &["v.blk.{i}.attn_qkv"])];

const OWN: &[Setting] = &[projector("glm4v"), SILU, NORM_EPSILON];

pub(super) const GLM4V: Tower = Tower {
    class: ModelClass {
        classes: &["Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"],
        model_type: "glm4v",
        defaults: &[
            ("depth", Int(24)),
            ("hidden_size", Int(1536)),
            ("intermediate_size", Int(13_696)),
            ("num_heads", Int(12)),
            ("out_hidden_size", Int(4096)),
            (IMAGE_SIZE, Int(336)),
            ("patch_size", Int(14)),
            ("attention_bias", Bool(false)),
            ("rms_norm_eps", Float(1e-5)),
        ],
        implied: &[("hidden_act", Text("silu"))],
        biases: BIASES,
        tensors: &[FILTERS, FILTER_BIAS, LAYERS, TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        traits: TRAITS,
        ..PLAIN
    },
    complete,
    ..PLAIN_TOWER
};

/// Gives the fields their usual names.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    let size = fields.need(&["out_hidden_size"])?;
    rename(fields, "rms_norm_eps", EPSILON);
    add_patches(fields)?;
    usual_names(fields, config, (size, "out_hidden_size"))
}
