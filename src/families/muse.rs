//! Muse Glimmer: gates behind attention, norms before and behind both halves of a layer, windows in
//! three of four layers. Layers that see the whole text have no positions.
//!
//! Source: `conversion/muse_glimmer.py` of llama.cpp; defaults of transformers 5.24.

use serde_json::{Map, Value};

use super::afmoe::GATE;
use super::llama::ROTATED;
use super::{ATTENTION_BIASES, ENDS, MLP, NORMS, VALUES};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{
    FULL_ATTENTION, Fields, LAYER_KINDS, LAYERS, is_same, wrong,
};
use crate::families::engine::rows::*;
use crate::families::engine::table::Fill;
use crate::remember::layout::assembled::Change;

/// A norm that is stored with 1 taken off.
const fn norm(gguf: &'static str, hf: &'static str) -> TensorRule {
    TensorRule { transform: Transform::Reshaped(Change::PlusOne), ..same(gguf, hf, &[Hidden]) }
}

const SHIFTED: &[TensorRule] = &[
    norm(NORMS[0].gguf, NORMS[0].hf),
    norm("blk.{i}.post_attention_norm", NORMS[1].hf),
    norm("blk.{i}.ffn_norm", "model.layers.{i}.pre_feedforward_layernorm"),
    norm("blk.{i}.post_ffw_norm", "model.layers.{i}.post_feedforward_layernorm"),
];

pub(super) const MUSE_GLIMMER: ModelClass = ModelClass {
    gguf: "muse-glimmer",
    classes: &["MuseGlimmerForConditionalGeneration"],
    model_type: "muse_glimmer_text",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(2)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        ("sliding_window", Int(2048)),
        ("final_logit_softcapping", Float(20.0)),
        (SCALE, Float(3.87)),
        ("output_multiplier", Float(0.196_116_135_138_184_04)),
    ],
    implied: &[
        ("hidden_activation", Text("silu")),
        ("attention_bias", Bool(false)),
        ("post_norm_eps", Float(1e-8)),
    ],
    biases: &[("attention_bias", ATTENTION_BIASES)],
    tensors: &[ENDS, SHIFTED, ROTATED, VALUES, GATE, MLP],
    settings: &[&[
        number("final_logit_softcapping", &["final_logit_softcapping"]),
        number("logit_scale", &["output_multiplier"]),
        setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
        setting(Kind::Layers(WINDOWED), "attention.sliding_window_pattern", &[]),
    ]],
    traits: Traits {
        needs_output: true,
        fills: &[
            Fill { gguf: "blk.{i}.attn_q_norm.weight", len: Head, field: Some(SCALE) },
            Fill { gguf: "blk.{i}.attn_k_norm.weight", len: Head, field: None },
        ],
        completes: &[complete],
        restores: &[restore],
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules { by_text: &[("eot", "<|eot|>")], ..TokenizerRules::PLAIN },
    mlx: Some(&MUSE_GLIMMER_MLX),
    ..ModelClass::PLAIN
};

const MUSE_GLIMMER_MLX: MlxClass = MlxClass {
    mlx_type: Some("muse_glimmer"),
    implied: &[("hidden_activation", Text("silu")), NO_BIAS, NO_SCALING],
    stated_fields: &[&[
        "rms_norm_eps",
        "rope_theta",
        "max_position_embeddings",
        "num_key_value_heads",
        "head_dim",
        "sliding_window",
        "final_logit_softcapping",
        SCALE,
        "output_multiplier",
        LAYER_KINDS,
        BASES,
    ]],
    prefix: Prefix::Nowhere,
    ..MlxClass::PLAIN
};

const WINDOWED: &str = "sliding_attention";
/// Field of what normed queries are multiplied with.
const SCALE: &str = "qk_scale_factor";
/// Field of the base of each layer; 0 in layers without positions.
const BASES: &str = "layer_rope_theta";
const BASE: &str = "rope_theta";

/// Lists kinds of layers, and fails unless those with a window are those with positions.
fn complete(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS);
    let every_fourth = |layer: u32| (layers - 1 - layer).is_multiple_of(4);
    let kind = |is_full: bool| if is_full { FULL_ATTENTION } else { WINDOWED };
    let kinds = || -> Value { (0..layers).map(|layer| kind(every_fourth(layer))).collect() };
    fields.0.entry(LAYER_KINDS).or_insert_with(kinds);
    let kinds = fields.0.get(LAYER_KINDS).and_then(Value::as_array);
    let kinds = kinds.into_iter().flatten();
    let base = fields
        .0
        .get(BASE)
        .or_else(|| fields.0.get("rope_parameters")?.get(BASE));
    let has_positions = |found: &Value| !is_same(found, &0.into());
    let fits = match fields.0.get(BASES).and_then(Value::as_array) {
        Some(bases) => kinds
            .zip(bases)
            .all(|(kind, found)| match kind == WINDOWED {
                true => has_positions(found) && base.is_none_or(|base| is_same(base, found)),
                false => !has_positions(found),
            }),
        None => kinds
            .zip(0..)
            .all(|(kind, layer)| (kind != WINDOWED) == every_fourth(layer)),
    };
    if !fits {
        let what =
            "llama.cpp's muse-glimmer has positions in layers with a window alone, all of one base";
        return Err(wrong(BASES, what));
    }
    fields.0.remove(BASES);
    Ok(())
}

fn restore(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    let base = config.get(BASE).cloned().unwrap_or_else(|| 10_000.0.into());
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let of = |kind: &Value| {
        if kind == WINDOWED {
            base.clone()
        } else {
            0.into()
        }
    };
    let bases: Value = kinds.into_iter().flatten().map(of).collect();
    config.insert(BASES.to_owned(), bases);
    Ok(())
}
