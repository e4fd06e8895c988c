//! The tower of Pixtral and of Mistral 3, whose heads rotate by rows and columns of patches.
//!
//! Source: `conversion/llava.py` and `tools/mtmd/models/pixtral.cpp` of llama.cpp.

use serde_json::{Value, json};

use super::{
    COLOURS, EPSILON, FILTERS, IMAGE_SIZE, MERGE_SIZE, MERGED, NORM_EPSILON, OfModel, PATCH_SIZE,
    PLAIN, PLAIN_TOWER, SETTINGS, TEXT_HIDDEN, Tower, TowerConfig, Whole, WholeConfig, add_base,
    add_text_size, down, norm, projector, restore_patch, square, up,
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
const PROJECTOR_BIASES: &[(&str, &[&str])] = &[(BIAS, &["mm.1", "mm.2"])];

const TOKENS: &[(&str, &str)] = &[("image_token_index", "[IMG]")];

const PROCESSOR: &[(&str, Default)] = &[
    ("image_processor_type", Text("PixtralImageProcessor")),
    ("processor_class", Text("PixtralProcessor")),
];

const MISTRAL3_WHOLE: Whole = Whole {
    text: "mistral3",
    class: "Mistral3ForConditionalGeneration",
    model_type: "mistral3",
    text_type: None,
    inner: "language_model.model.",
    tokens: TOKENS,
    processor: PROCESSOR,
};

/// Sets the function of the layers, what the projector has, and the size of images.
fn restore(config: &mut WholeConfig) -> Result<()> {
    let fields = &mut config.fields;
    let function = match (fields.flag("is_silu"), fields.flag("is_gelu")) {
        (true, false) => "silu",
        (false, true) => "gelu",
        _ => return Err(wrong("hidden_act", "GGUF says neither silu nor gelu, or both")),
    };
    config
        .vision
        .insert("hidden_act".to_owned(), function.into());
    let bias = fields.0.remove(BIAS).unwrap_or(false.into());
    config.root.insert(BIAS.to_owned(), bias);
    let longest = fields.0.get(IMAGE_SIZE).cloned();
    config
        .processor
        .extend(longest.map(|side| ("size".to_owned(), json!({"longest_edge": side}))));
    restore_patch(config, PATCH_SIZE);
    // The configs of Mistral have a window where they are silent.
    config.text.entry("sliding_window").or_insert(Value::Null);
    Ok(())
}

/// Field of whether the projector's linear layers have biases.
const BIAS: &str = "multimodal_projector_bias";

/// The function of the projector.
const GELU: (&str, Default, Default) = ("projector_hidden_act", Text("gelu"), Text("gelu"));

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
    // The class has other defaults.
    expected: &[
        GELU,
        ("vision_feature_layer", Minus(2), Minus(1)),
        ("vision_feature_select_strategy", Text("default"), Text("full")),
    ],
    complete,
    wholes: &[Whole {
        text: "llama",
        class: "LlavaForConditionalGeneration",
        model_type: "llava",
        text_type: Some("mistral"),
        inner: "language_model.model.",
        tokens: TOKENS,
        processor: PROCESSOR,
    }],
    restore,
    token: Some("[IMG_BREAK]"),
    ..PLAIN_TOWER
};

pub(super) const MISTRAL3: Tower = Tower {
    class: ModelClass {
        classes: &["Mistral3ForConditionalGeneration"],
        tensors: &[TOWER, PROJECTOR, MERGER],
        traits: Traits { sign: Sign::Tensor("mm.patch_merger.weight"), ..PIXTRAL.class.traits },
        ..PIXTRAL.class
    },
    of_model: &[OfModel { name: MERGE_SIZE, field: MERGE_SIZE, default: Int(2) }],
    expected: &[GELU, ("vision_feature_layer", Minus(1), Minus(1))],
    complete: complete_mistral3,
    wholes: &[
        MISTRAL3_WHOLE,
        // As the converter wrote Mistral Small 3.1 at first.
        Whole { text: "llama", text_type: Some("mistral"), ..MISTRAL3_WHOLE },
    ],
    ..PIXTRAL
};

fn complete_mistral3(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    complete(fields, config)?;
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
    let function = fields.0.get("hidden_act").and_then(Value::as_str);
    let is_silu = match function {
        Some("silu") => true,
        Some("gelu") => false,
        _ => return Err(wrong("hidden_act", "it is neither silu nor gelu")),
    };
    fields.0.insert("is_silu".to_owned(), is_silu.into());
    fields.0.insert("is_gelu".to_owned(), (!is_silu).into());
    let bias = config.root.get(BIAS).cloned();
    let bias = bias.map(|bias| (BIAS.to_owned(), bias));
    fields.0.extend(bias);
    add_base(fields);
    Ok(())
}
