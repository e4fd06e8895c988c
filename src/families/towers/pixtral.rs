//! The tower of Pixtral, of Mistral 3 and of LightOnOCR, whose heads rotate by rows and columns of
//! patches.
//!
//! Source: `conversion/llava.py`, `conversion/lighton_ocr.py` and `tools/mtmd/models/pixtral.cpp` of llama.cpp.

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

/// The tower below `$prefix`.
macro_rules! tower {
    ($prefix:literal) => {
        &[
            same("v.patch_embd", concat!($prefix, "patch_conv"), FILTERS),
            norm("v.pre_ln", concat!($prefix, "ln_pre")),
            heads(
                "v.blk.{i}.attn_q",
                concat!($prefix, "transformer.layers.{i}.attention.q_proj"),
                SQUARE,
            ),
            heads(
                "v.blk.{i}.attn_k",
                concat!($prefix, "transformer.layers.{i}.attention.k_proj"),
                SQUARE,
            ),
            square("v.blk.{i}.attn_v", concat!($prefix, "transformer.layers.{i}.attention.v_proj")),
            square(
                "v.blk.{i}.attn_out",
                concat!($prefix, "transformer.layers.{i}.attention.o_proj"),
            ),
            norm("v.blk.{i}.ln1", concat!($prefix, "transformer.layers.{i}.attention_norm")),
            norm("v.blk.{i}.ln2", concat!($prefix, "transformer.layers.{i}.ffn_norm")),
            up(
                "v.blk.{i}.ffn_gate",
                concat!($prefix, "transformer.layers.{i}.feed_forward.gate_proj"),
            ),
            up("v.blk.{i}.ffn_up", concat!($prefix, "transformer.layers.{i}.feed_forward.up_proj")),
            down(
                "v.blk.{i}.ffn_down",
                concat!($prefix, "transformer.layers.{i}.feed_forward.down_proj"),
            ),
        ]
    };
}

/// The projector below `$prefix`, and what makes one token of a square of patches.
macro_rules! projector {
    ($prefix:literal) => {
        (
            &[
                same("mm.1", concat!($prefix, "linear_1"), &[TEXT, Hidden]),
                same("mm.2", concat!($prefix, "linear_2"), &[TEXT, TEXT]),
            ],
            &[
                norm("mm.input_norm", concat!($prefix, "norm")),
                same(
                    "mm.patch_merger",
                    concat!($prefix, "patch_merger.merging_layer"),
                    &[Hidden, MERGED],
                ),
            ],
        )
    };
}

type Rules = &'static [TensorRule];

const TOWER: Rules = tower!("vision_tower.");
const PROJECTOR: (Rules, Rules) = projector!("multi_modal_projector.");

const TEXT: Dim = Field(TEXT_HIDDEN);

const OWN: &[Setting] = &[
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
    let bias = config.fields.0.remove(BIAS).unwrap_or(false.into());
    config.root.insert(BIAS.to_owned(), bias);
    // The configs of Mistral have a window where they are silent.
    config.text.entry("sliding_window").or_insert(Value::Null);
    restore_tower(config)
}

/// Sets the function of the layers, and the size of images.
fn restore_tower(config: &mut WholeConfig) -> Result<()> {
    let fields = &mut config.fields;
    let function = match (fields.flag("is_silu"), fields.flag("is_gelu")) {
        (true, false) => "silu",
        (false, true) => "gelu",
        _ => return Err(wrong("hidden_act", "GGUF says neither silu nor gelu, or both")),
    };
    config
        .vision
        .insert("hidden_act".to_owned(), function.into());
    let longest = fields.0.get(IMAGE_SIZE).cloned();
    config
        .processor
        .extend(longest.map(|side| ("size".to_owned(), json!({"longest_edge": side}))));
    restore_patch(config, PATCH_SIZE);
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
        tensors: &[TOWER, PROJECTOR.0],
        settings: &[SETTINGS, &[projector("pixtral")], OWN],
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
        tensors: &[TOWER, PROJECTOR.0, PROJECTOR.1],
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

const LIGHT_ON: (Rules, Rules) = projector!("model.vision_projection.");

pub(super) const LIGHT_ON_OCR: Tower = Tower {
    class: ModelClass {
        // The second is that of models published before transformers had the class.
        classes: &["LightOnOcrForConditionalGeneration", "LightOnOCRForConditionalGeneration"],
        biases: &[],
        tensors: &[tower!("model.vision_encoder."), LIGHT_ON.0, LIGHT_ON.1],
        settings: &[SETTINGS, &[projector("lightonocr")], OWN],
        ..PIXTRAL.class
    },
    of_model: MISTRAL3.of_model,
    expected: &[],
    complete,
    wholes: &[Whole {
        text: "qwen3",
        class: "LightOnOcrForConditionalGeneration",
        model_type: "lighton_ocr",
        inner: "model.language_model.",
        tokens: &[("image_token_id", "<|image_pad|>")],
        processor: &[PROCESSOR[0], ("processor_class", Text("LightOnOcrProcessor"))],
        ..MISTRAL3_WHOLE
    }],
    restore: restore_tower,
    token: None,
    note: Some("llama.cpp's norm of the projector has the epsilon of the tower, 1e-5"),
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
