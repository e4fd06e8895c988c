//! The draft of Gemma 4, whose layers use the keys and values of its target.
//!
//! Source: `Gemma4AssistantModel` in `conversion/gemma.py` of llama.cpp; transformers 5.24.

use serde_json::{Map, Value};

use super::sizes::{self, FULL_KV_HEADS, INPUT_TOKENS, KEYS_ARE_VALUES, SHARED, TARGET_SIZE};
use super::{ATTENTION, GEMMA4};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, LAYERS, wrong};
use crate::families::engine::rows::*;
use crate::families::gemma::FOUR_NORMS;
use crate::families::{ENDS, MLP};

const TARGET: Dim = Field(TARGET_SIZE);

const PROJECTIONS: &[TensorRule] = &[
    same("nextn.pre_projection", "pre_projection", &[Hidden, Sum(&[TARGET, TARGET])]),
    same("nextn.post_projection", "post_projection", &[TARGET, Hidden]),
];

pub(in crate::families) const GEMMA4_ASSISTANT: ModelClass = ModelClass {
    gguf: "gemma4-assistant",
    classes: &["Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"],
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(4)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("sliding_window", Int(512)),
        (INPUT_TOKENS, Int(0)),
        (TARGET_SIZE, Int(1536)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("hidden_activation", Text("gelu_pytorch_tanh")),
        ("attention_bias", Bool(false)),
        ("enable_moe_block", Bool(false)),
        ("use_double_wide_mlp", Bool(false)),
        ("hidden_size_per_layer_input", Int(0)),
    ],
    tensors: &[ENDS, FOUR_NORMS, ATTENTION, MLP, PROJECTIONS],
    settings: &[
        GEMMA4.settings[0],
        &[
            setting(Kind::Required, "embedding_length_out", &[TARGET_SIZE]),
            // All layers.
            setting(Kind::Required, "nextn_predict_layers", LAYERS),
        ],
    ],
    traits: Traits {
        is_draft: true,
        ties_output: true,
        // A choice of tokens that the output need not compute: GGUF has the whole output.
        left_out: &["masked_embedding."],
        nested: Some(&NestedConfig {
            key: "text_config",
            model_type: "gemma4_assistant",
            outer: &["architectures", "torch_dtype", "tie_word_embeddings", TARGET_SIZE],
        }),
        completes: &[share_all, sizes::complete],
        from_tensors: &[sizes::from_tensors, full_heads],
        restores: &[restore],
        laws: &[other_size],
        ..GEMMA4.traits
    },
    mlx: None,
    ..GEMMA4
};

/// Sets the number of layers that use keys of others, which transformers has as all.
fn share_all(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?;
    match fields.count(&[SHARED])?.filter(|shared| *shared > 0) {
        Some(shared) if shared != layers => {
            let what =
                format!("it is {shared}, and an assistant shares the keys of all {layers} layers");
            return Err(wrong(SHARED, what));
        }
        _ => fields.0.insert(SHARED.to_owned(), layers.into()),
    };
    Ok(())
}

/// llama.cpp tells a draft by a target of another size.
fn other_size(model: &Model<'_>) -> Result<Option<String>> {
    match model.fields.count(&[TARGET_SIZE])? {
        Some(size) if size as usize == model.dims.hidden => {
            Err(wrong(TARGET_SIZE, "it is hidden_size, and llama.cpp needs another one"))
        }
        _ => Ok(None),
    }
}

/// Sets whether layers that see the whole text have other heads of keys and values.
fn full_heads(config: &mut Map<String, Value>, _shapes: &TensorShapes<'_>) -> Result<()> {
    let full = config.get(FULL_KV_HEADS);
    let is_other = full.is_some_and(|full| Some(full) != config.get("num_key_value_heads"));
    config.insert(KEYS_ARE_VALUES.to_owned(), is_other.into());
    Ok(())
}

fn restore(config: &mut Map<String, Value>, _dims: &Dims) -> Result<()> {
    config.insert(INPUT_TOKENS.to_owned(), 0.into());
    Ok(())
}
