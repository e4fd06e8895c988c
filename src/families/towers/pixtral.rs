//! The tower of Pixtral and of Mistral 3, whose heads rotate by rows and columns of patches.
//!
//! Source: `conversion/llava.py` and `tools/mtmd/models/pixtral.cpp` of llama.cpp.

use serde_json::Value;

use super::{
    COLOURS, EPSILON, FILTERS, MERGE_SIZE, MERGED, NORM_EPSILON, PLAIN, PLAIN_TOWER, SETTINGS,
    TEXT_HIDDEN, Tower, TowerConfig, add_base, add_of_model, add_text_size, down, expect, norm,
    projector, square, up,
};
use crate::Result;
use crate::families::engine::fields::{Fields, is_same, wrong};
use crate::families::engine::rows::*;

/// Rows of queries and keys are those of heads.
const SQUARE: &[Dim] = &[Hidden, Hidden];

const TOWER: &[TensorRule] = &[
    same("v.patch_embd", "vision_tower.patch_conv", FILTERS),
    norm("v.pre_ln", "vision_tower.ln_pre"),
    heads("v.blk.{i}.attn_q", "vision_tower.transformer.layers.{i}.attention.q_proj", SQUARE),
    heads("v.blk.{i}.attn_k", "vision_tower.transformer.layers.{i}.attention.k_proj", SQUARE),
    square("v.blk.{i}.attn_v", "vision_tower.transformer.layers.{i}.attention.v_proj"),
    square("v.blk.{i}.attn_out", "vision_tower.transformer.layers.{i}.attention.o_proj"),
    norm("v.blk.{i}.ln1", "vision_tower.transformer.layers.{i}.attention_norm"),
    norm("v.blk.{i}.ln2", "vision_tower.transformer.layers.{i}.ffn_norm"),
    up("v.blk.{i}.ffn_gate", "vision_tower.transformer.layers.{i}.feed_forward.gate_proj"),
    up("v.blk.{i}.ffn_up", "vision_tower.transformer.layers.{i}.feed_forward.up_proj"),
    down("v.blk.{i}.ffn_down", "vision_tower.transformer.layers.{i}.feed_forward.down_proj"),
];

const TEXT: Dim = Field(TEXT_HIDDEN);

const PROJECTOR: &[TensorRule] = &[
    same("mm.1", "multi_modal_projector.linear_1", &[TEXT, Hidden]),
    same("mm.2", "multi_modal_projector.linear_2", &[TEXT, TEXT]),
];

/// What makes one token of a square of patches.
const MERGER: &[TensorRule] = &[
    norm("mm.input_norm", "multi_modal_projector.norm"),
    same("mm.patch_merger", "multi_modal_projector.patch_merger.merging_layer", &[Hidden, MERGED]),
];

const OWN: &[Setting] = &[
    projector("pixtral"),
    NORM_EPSILON,
    setting(Kind::FlagIfTrue, "use_silu", &["is_silu"]),
    setting(Kind::FlagIfTrue, "use_gelu", &["is_gelu"]),
    count("vision.spatial_merge_size", &[MERGE_SIZE]),
];

/// The projector's linear layers have biases, or none has.
const PROJECTOR_BIASES: &[(&str, &[&str])] = &[("multimodal_projector_bias", &["mm.1", "mm.2"])];

pub(super) const PIXTRAL: Tower = Tower {
    class: ModelClass {
        // Other models of this class have other towers, with other names.
        classes: &["LlavaForConditionalGeneration"],
        model_type: "pixtral",
        defaults: &[
            ("hidden_size", Int(1024)),
            ("intermediate_size", Int(4096)),
            ("num_hidden_layers", Int(24)),
            ("num_attention_heads", Int(16)),
            ("image_size", Int(1024)),
            ("patch_size", Int(16)),
            ("hidden_act", Text("gelu")),
        ],
        implied: &[
            ("model_type", Text("pixtral")),
            ("num_channels", COLOURS),
            (EPSILON, Float(1e-5)),
            ("rope_theta", Float(10_000.0)),
        ],
        biases: PROJECTOR_BIASES,
        tensors: &[TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    complete: complete_pixtral,
    token: Some("[IMG_BREAK]"),
    ..PLAIN_TOWER
};

pub(super) const MISTRAL3: Tower = Tower {
    class: ModelClass {
        classes: &["Mistral3ForConditionalGeneration"],
        tensors: &[TOWER, PROJECTOR, MERGER],
        ..PIXTRAL.class
    },
    complete: complete_mistral3,
    ..PIXTRAL
};

/// Checks what the projector takes for granted.
fn complete_pixtral(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    complete(fields, config)?;
    // The class has other defaults.
    expect(config, "vision_feature_layer", -2, -1)?;
    let strategy = "vision_feature_select_strategy";
    expect(config, strategy, "default", "full")
}

fn complete_mistral3(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    complete(fields, config)?;
    expect(config, "vision_feature_layer", -1, -1)?;
    add_of_model(fields, config, (MERGE_SIZE, MERGE_SIZE), 2);
    let epsilon = config.text("rms_norm_eps");
    match epsilon.filter(|epsilon| !is_same(epsilon, &1e-5.into())) {
        None => Ok(()),
        Some(epsilon) => {
            let what = format!("it is {epsilon}, and the norm of llama.cpp's projector has 1e-5");
            Err(wrong("rms_norm_eps", what))
        }
    }
}

/// Adds what both have.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    expect(config, "projector_hidden_act", "gelu", "gelu")?;
    let function = fields.0.get("hidden_act").and_then(Value::as_str);
    let is_silu = match function {
        Some("silu") => true,
        Some("gelu") => false,
        _ => return Err(wrong("hidden_act", "it is neither silu nor gelu")),
    };
    fields.0.insert("is_silu".to_owned(), is_silu.into());
    fields.0.insert("is_gelu".to_owned(), (!is_silu).into());
    let bias = config.root.get("multimodal_projector_bias").cloned();
    let bias = bias.map(|bias| ("multimodal_projector_bias".to_owned(), bias));
    fields.0.extend(bias);
    add_base(fields);
    Ok(())
}
