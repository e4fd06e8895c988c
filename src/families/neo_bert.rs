//! NeoBERT: an encoder with norms in front of both halves of a layer, and positions by rotation.
//!
//! Source: `NeoBert` in `conversion/bert.py` of llama.cpp; `model.py` beside the published model.

use serde_json::Value;

use super::bert::SETTINGS;
use super::gpt2::THREEFOLD;
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataValue;

/// A third of the field twice.
const WIDTH: Dim = Quotient(&[TwoInner, Sum(&[One, One, One])]);

const TENSORS: &[TensorRule] = &[
    same("token_embd", "encoder", &[Vocab, Hidden]),
    same("enc.output_norm", "layer_norm", &[Hidden]),
    same("blk.{i}.attn_norm", "transformer_encoder.{i}.attention_norm", &[Hidden]),
    // Queries, keys and values of each head lie side by side, where llama.cpp has those of all heads
    // one after another. The converter does not move them.
    TensorRule {
        transform: Transform::Parts(Parts::all(Turn::Rows(&[Head, Head, Head]))),
        ..same("blk.{i}.attn_qkv", "transformer_encoder.{i}.qkv", &[THREEFOLD, Hidden])
    },
    same("blk.{i}.attn_output", "transformer_encoder.{i}.wo", &[Hidden, Hidden]),
    same("blk.{i}.ffn_norm", "transformer_encoder.{i}.ffn_norm", &[Hidden]),
    same("blk.{i}.ffn_up", "transformer_encoder.{i}.ffn.w12", &[Sum(&[WIDTH, WIDTH]), Hidden]),
    same("blk.{i}.ffn_down", "transformer_encoder.{i}.ffn.w3", &[Hidden, WIDTH]),
];

pub(super) const NEO_BERT: ModelClass = ModelClass {
    gguf: "neo-bert",
    classes: &["NeoBERT", "NeoBERTLMHead"],
    model_type: "neobert",
    defaults: &[
        ("norm_eps", Float(1e-6)),
        ("max_length", Int(1024)),
        ("hidden_act", Text("SwiGLU")),
        ("rope", Bool(true)),
        ("rms_norm", Bool(true)),
    ],
    implied: &[("hidden_act", Text("SwiGLU")), ("rope", Bool(true)), ("rms_norm", Bool(true))],
    own_fields: &[("max_position_embeddings", "max_length"), ("rms_norm_eps", "norm_eps")],
    tensors: &[TENSORS],
    settings: &[&[
        setting(Kind::Own(&LENGTH), "feed_forward_length", &["intermediate_size"]),
        SETTINGS[0],
        setting(Kind::Fixed(2), "pooling_type", &[]),
        SETTINGS[2],
        SETTINGS[3],
        setting(Kind::Own(&BASE), "rope.freq_base", &["rope_theta"]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        has_fixed_rope: true,
        // An encoder has no `lm_head`.
        ties_output: true,
        prefix: Some("model."),
        left_out: &["decoder."],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

/// UINT32: two thirds of the field.
const LENGTH: OwnSetting = required(own(
    |setting, model| {
        let width = model.dims.need_size(WIDTH)?;
        Ok(Some(setting.count(width)?))
    },
    |stated, _| Ok(Some(stated.count()?.saturating_mul(3).div_ceil(2).into())),
));

/// FLOAT32 that is the same in all models.
const BASE: OwnSetting = own(
    |_, _| Ok(Some(GgufMetadataValue::F32(10_000.0))),
    |stated, config| {
        let is_same = *stated.value == GgufMetadataValue::F32(10_000.0);
        config.require_fixed(stated.key, is_same, &10_000)?;
        Ok(None::<Value>)
    },
);
