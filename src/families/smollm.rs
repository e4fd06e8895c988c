//! SmolLM 3 and Arcee, whose heads are stored as Llama's are.
//!
//! Source: `conversion/llama.py` of llama.cpp; defaults of transformers 4.57.6.

use serde_json::Value;

use super::llama::{LLAMA_TOKENIZER, ROTATED};
use super::{ATTENTION_BIASES, ENDS, MLP, MLP_BIASES, NORMS, UNGATED_MLP, VALUES};
use crate::Result;
use crate::families::engine::fields::Fields;
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

const SETTINGS: &[Setting] = &[
    count("vocab_size", &["vocab_size"]),
    setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
];

pub(super) const SMOLLM3: ModelClass = ModelClass {
    gguf: "smollm3",
    classes: &["SmolLM3ForCausalLM"],
    model_type: "smollm3",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(4)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(2e6)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[("hidden_act", Text("silu")), ("use_sliding_window", Bool(false))],
    biases: &[("attention_bias", ATTENTION_BIASES), ("mlp_bias", MLP_BIASES)],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, MLP],
    settings: &[SETTINGS],
    traits: Traits {
        has_pre_norms: true,
        laws: &[no_rope_in_every_fourth],
        completes: &[usual_rope],
        rope: RopeTraits::LLAMA3,
        // Those that `layer_types` calls so.
        lost_windows: LostWindows::From(u32::MAX),
        ..Traits::PLAIN
    },
    tokenizer: &LLAMA_TOKENIZER,
    mlx: Some(&SMOLLM3_MLX),
    ..ModelClass::PLAIN
};

const SMOLLM3_MLX: MlxClass = MlxClass {
    implied: &[SILU, ("use_sliding_window", Bool(false))],
    stated_fields: &[COMMON_FIELDS, &["rope_theta", "num_key_value_heads"]],
    ..LIKE_LLAMA
};

pub(super) const ARCEE: ModelClass = ModelClass {
    gguf: "arcee",
    classes: &["ArceeForCausalLM"],
    model_type: "arcee",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("relu2"))],
    biases: &[
        ("attention_bias", ATTENTION_BIASES),
        ("mlp_bias", &["blk.{i}.ffn_up", "blk.{i}.ffn_down"]),
    ],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, UNGATED_MLP],
    traits: Traits {
        has_pre_norms: true,
        head_dim: HeadDim::Stated,
        rope: RopeTraits::LLAMA3,
        ..Traits::PLAIN
    },
    mlx: None,
    ..SMOLLM3
};

/// Field of which layers have rotary positions.
const ROPE_LAYERS: &str = "no_rope_layers";

/// Published configs of Llama 4 have an empty list for the usual layers.
pub(super) fn usual_rope(fields: &mut Fields) -> Result<()> {
    let layers = fields.0.get(ROPE_LAYERS).and_then(Value::as_array);
    if layers.is_some_and(Vec::is_empty) {
        fields.0.remove(ROPE_LAYERS);
    }
    Ok(())
}

/// Every fourth layer has no rotary positions: llama.cpp knows no other pattern.
pub(super) fn no_rope_in_every_fourth(model: &Model<'_>) -> Result<Option<String>> {
    const EVERY: usize = 4;
    let has_rope = |layer: usize| u64::from(!layer.is_multiple_of(EVERY));
    let layers = 1..=model.dims.layers;
    model.expect("no_rope_layer_interval", &EVERY.into())?;
    model.expect(ROPE_LAYERS, &layers.map(has_rope).collect())
}
