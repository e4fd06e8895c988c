//! The tower of Llama 4: a vision transformer whose patches rotate by rows and columns, of which
//! squares become one token.
//!
//! Source: `conversion/llama4.py` and `tools/mtmd/models/llama4.cpp` of llama.cpp. The converter
//! gives the second norm of each layer the name of another norm, which llama.cpp would apply
//! elsewhere; here it has its own.

use super::{
    CHANNELS, COLOURS, EPSILON, GELU, IMAGE_SIZE, MERGE_SIZE, NORM_EPSILON, PATCH_SIZE, PATCHES,
    PLAIN, PLAIN_TOWER, SCALE_FACTOR, SETTINGS, TEXT_HIDDEN, Tower, TowerConfig, Whole, add_base,
    add_patches, add_text_size, down, norm, patches_of_ratio, projector, restore_square, square,
    up, whole,
};
use crate::Result;
use crate::families::engine::fields::Fields;
use crate::families::engine::rows::*;

const SIDE: Dim = Field(PATCH_SIZE);

const POSITIONS: &[Dim] = &[Sum(&[One, Field(PATCHES)]), Hidden];

const TOWER: &[TensorRule] = &[
    whole("v.class_embd", "vision_model.class_embedding", &[Hidden]),
    same(
        "v.patch_embd",
        "vision_model.patch_embedding.linear",
        &[Hidden, Product(&[SIDE, SIDE, Field(CHANNELS)])],
    ),
    whole("v.position_embd.weight", "vision_model.positional_embedding_vlm", POSITIONS),
    norm("v.pre_ln", "vision_model.layernorm_pre"),
    square("v.blk.{i}.attn_q", "vision_model.model.layers.{i}.self_attn.q_proj"),
    square("v.blk.{i}.attn_k", "vision_model.model.layers.{i}.self_attn.k_proj"),
    square("v.blk.{i}.attn_v", "vision_model.model.layers.{i}.self_attn.v_proj"),
    square("v.blk.{i}.attn_out", "vision_model.model.layers.{i}.self_attn.o_proj"),
    norm("v.blk.{i}.ln1", "vision_model.model.layers.{i}.input_layernorm"),
    norm("v.blk.{i}.ln2", "vision_model.model.layers.{i}.post_attention_layernorm"),
    up("v.blk.{i}.ffn_up", "vision_model.model.layers.{i}.mlp.fc1"),
    down("v.blk.{i}.ffn_down", "vision_model.model.layers.{i}.mlp.fc2"),
    norm("v.post_ln", "vision_model.layernorm_post"),
];

/// Fields of the widths of the adapter, and of what the projector gets.
const WIDTHS: [&str; 3] = ["projector_input_dim", "projector_output_dim", "vision_output_dim"];
const ADAPTER: Dim = Field(WIDTHS[0]);
const ADAPTED: Dim = Field(WIDTHS[1]);
const SEEN: Dim = Field(WIDTHS[2]);

/// Field of how many tokens there are of a patch in a row.
const RATIO: &str = "pixel_shuffle_ratio";

const PROJECTOR: &[TensorRule] = &[
    same("mm.model.mlp.1", "vision_model.vision_adapter.mlp.fc1", &[ADAPTER, Inner]),
    same("mm.model.mlp.2", "vision_model.vision_adapter.mlp.fc2", &[ADAPTED, ADAPTER]),
    same("mm.model.fc", "multi_modal_projector.linear_1", &[Field(TEXT_HIDDEN), SEEN]),
];

const BIASES: &[&str] = &[
    "v.pre_ln",
    "v.blk.{i}.attn_q",
    "v.blk.{i}.attn_k",
    "v.blk.{i}.attn_v",
    "v.blk.{i}.attn_out",
    "v.blk.{i}.ln1",
    "v.blk.{i}.ln2",
    "v.blk.{i}.ffn_up",
    "v.blk.{i}.ffn_down",
    "v.post_ln",
];

const OWN: &[Setting] = &[projector("llama4"), NORM_EPSILON, SCALE_FACTOR, GELU];

pub(super) const LLAMA4: Tower = Tower {
    class: ModelClass {
        classes: &["Llama4ForConditionalGeneration"],
        model_type: "llama4_vision_model",
        defaults: &[
            ("hidden_size", Int(768)),
            ("intermediate_size", Int(5632)),
            ("num_hidden_layers", Int(34)),
            ("num_attention_heads", Int(16)),
            (IMAGE_SIZE, Int(448)),
            (PATCH_SIZE, Int(14)),
            ("norm_eps", Float(1e-5)),
        ],
        implied: &[
            (CHANNELS, COLOURS),
            ("hidden_act", Text("gelu")),
            (EPSILON, Float(1e-5)),
            ("rope_theta", Float(10_000.0)),
            ("multi_modal_projector_bias", Bool(false)),
        ],
        own_fields: &[(EPSILON, "norm_eps")],
        biases: &[("", BIASES)],
        tensors: &[TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    complete,
    wholes: &[Whole {
        text: "llama4",
        class: "Llama4ForConditionalGeneration",
        model_type: "llama4",
        text_type: None,
        inner: "language_model.model.",
        tokens: &[
            ("image_token_index", "<|patch|>"),
            ("boi_token_index", "<|image_start|>"),
            ("eoi_token_index", "<|image_end|>"),
        ],
        processor: &[
            ("image_processor_type", Text("Llama4ImageProcessorFast")),
            ("processor_class", Text("Llama4Processor")),
        ],
    }],
    restore: |config| {
        let merge = f64::from(config.fields.need(&[MERGE_SIZE])?.max(1));
        config.vision.insert(RATIO.to_owned(), merge.recip().into());
        for name in WIDTHS {
            let width = config.fields.0.remove(name);
            config
                .vision
                .extend(width.map(|width| (name.to_owned(), width)));
        }
        restore_square(config);
        Ok(())
    },
    note: Some("llama.cpp gives the tokens of Llama 4's images column by column, not row by row"),
    ..PLAIN_TOWER
};

/// Adds what follows from the fields.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    add_patches(fields)?;
    add_base(fields);
    let merge = patches_of_ratio(fields.0.get(RATIO), RATIO)?;
    fields.0.insert(MERGE_SIZE.to_owned(), merge.into());
    Ok(())
}
