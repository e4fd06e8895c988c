//! NeoBERT: an encoder whose positions rotate, with gates.
//!
//! Source: `NeoBert` in `conversion/bert.py` of llama.cpp; defaults of the code beside published
//! models.

use serde_json::Value;

use super::bert::{RANK_SETTINGS, SETTINGS};
use super::gpt_neox::QUERIES_KEYS_VALUES;
use crate::families::engine::rows::*;

/// Width of the feed-forward layer, which `intermediate_size` is more than. No config has this field.
const WIDTH: &str = "width of the feed-forward layer";
const WIDE: Dim = Field(WIDTH);

/// What the class rounds the width up to.
const STEP: u64 = 8;

/// Tensors whose names in transformers begin with a prefix.
macro_rules! encoder {
    ($prefix:literal) => {
        &[
            same("token_embd", concat!($prefix, "encoder"), &[Vocab, Hidden]),
            same("enc.output_norm", concat!($prefix, "layer_norm"), &[Hidden]),
            same(
                "blk.{i}.attn_norm",
                concat!($prefix, "transformer_encoder.{i}.attention_norm"),
                &[Hidden],
            ),
            TensorRule {
                transform: Transform::Parts(QUERIES_KEYS_VALUES),
                ..same(
                    "blk.{i}.attn_qkv",
                    concat!($prefix, "transformer_encoder.{i}.qkv"),
                    &[Sum(&[Hidden, Hidden, Hidden]), Hidden],
                )
            },
            same(
                "blk.{i}.attn_output",
                concat!($prefix, "transformer_encoder.{i}.wo"),
                &[Hidden, Hidden],
            ),
            same(
                "blk.{i}.ffn_norm",
                concat!($prefix, "transformer_encoder.{i}.ffn_norm"),
                &[Hidden],
            ),
            // The gate and the projection are one matrix.
            same(
                "blk.{i}.ffn_up",
                concat!($prefix, "transformer_encoder.{i}.ffn.w12"),
                &[Sum(&[WIDE, WIDE]), Hidden],
            ),
            same(
                "blk.{i}.ffn_down",
                concat!($prefix, "transformer_encoder.{i}.ffn.w3"),
                &[Hidden, WIDE],
            ),
        ]
    };
}

const CLASSIFIER: &[TensorRule] =
    &[same("cls", "dense", &[Hidden, Hidden]), same("cls.output", "classifier", &[Labels, Hidden])];

const MORE: &[Setting] = &[
    setting(Kind::Own(&INNER), "feed_forward_length", &["intermediate_size"]),
    setting(Kind::Text("none"), "rope.scaling.type", &[]),
];

pub(super) const NEO_BERT: ModelClass = ModelClass {
    gguf: "neo-bert",
    classes: &["NeoBERT", "NeoBERTLMHead"],
    model_type: "neobert",
    defaults: &[
        ("hidden_size", Int(768)),
        ("num_hidden_layers", Int(28)),
        ("num_attention_heads", Int(12)),
        ("intermediate_size", Int(3072)),
        ("vocab_size", Int(30_522)),
        ("norm_eps", Float(1e-6)),
        ("max_length", Int(1024)),
        // Pooling of published models.
        ("pooling_type", Int(2)),
    ],
    own_fields: &[("rms_norm_eps", "norm_eps"), ("max_position_embeddings", "max_length")],
    tensors: &[encoder!("")],
    settings: &[SETTINGS, MORE],
    traits: Traits {
        head_dim: HeadDim::Derived,
        // An encoder has no `lm_head`.
        ties_output: true,
        prefix: Some("model."),
        also_implied: &[
            ("rope", Bool(true)),
            ("rms_norm", Bool(true)),
            ("hidden_act", Text("SwiGLU")),
            ("ngpt", Bool(false)),
        ],
        // What predicts masked tokens.
        left_out: &["decoder."],
        completes: &[|fields| {
            let inner = fields.need(&["intermediate_size"])?;
            fields
                .0
                .insert(WIDTH.to_owned(), width(u64::from(inner)).into());
            fields.0.entry("rope_theta").or_insert(10_000.0.into());
            Ok(())
        }],
        from_tensors: &[|config, _| {
            let inner = config.get("intermediate_size").and_then(Value::as_u64);
            config.insert(WIDTH.to_owned(), width(inner.unwrap_or(0)).into());
            Ok(())
        }],
        restores: &[|config, dims| {
            config.remove(WIDTH);
            config.remove("rope_theta");
            config.insert("dim_head".to_owned(), dims.head.into());
            Ok(())
        }],
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules {
        after: &[KeyRule::Own(|_, keys| {
            if keys.get("tokenizer.ggml.token_type_count").is_none() {
                keys.ggml_number("token_type_count", 1);
            }
            Ok(())
        })],
        ..TokenizerRules::PLAIN
    },
    ..ModelClass::PLAIN
};

/// NeoBERT that ranks or classifies texts.
pub(super) const NEO_BERT_CLASSIFIER: ModelClass = ModelClass {
    classes: &["NeoBERTForSequenceClassification"],
    biases: &[("", &["cls", "cls.output"])],
    tensors: &[encoder!("model."), CLASSIFIER],
    settings: &[RANK_SETTINGS, MORE],
    traits: Traits { left_out: &[], sign: Sign::Tensor("cls.output.weight"), ..NEO_BERT.traits },
    ..NEO_BERT
};

fn width(inner: u64) -> u64 {
    (inner.saturating_mul(2) / 3).next_multiple_of(STEP)
}

/// UINT32: the width, which is two thirds of the field, rounded up.
const INNER: OwnSetting = required(own(
    |setting, model| setting.count(model.dims.need(WIDTH)?).map(Some),
    |stated, _| {
        let found = stated.count()?;
        let inner = found.saturating_mul(3) / 2;
        if found == 0 || width(inner) != found {
            return Err(stated.other_type());
        }
        Ok(Some(inner.into()))
    },
));
