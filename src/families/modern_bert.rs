//! ModernBERT: an encoder with rotary positions, in which most layers see a window of the text.
//!
//! Source: `conversion/bert.py` of llama.cpp; defaults of transformers 4.57.6.

use serde_json::{Map, Value};

use super::bert::{LABELS, RANK_SETTINGS, SETTINGS};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{FULL_ATTENTION, LAYER_KINDS};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;
use crate::model::gguf::GgufMetadataValue;

/// Tensors whose names in transformers begin with a prefix.
macro_rules! encoder {
    ($prefix:literal) => {
        &[
            same("token_embd", concat!($prefix, "embeddings.tok_embeddings"), &[Vocab, Hidden]),
            same("token_embd_norm", concat!($prefix, "embeddings.norm"), &[Hidden]),
            same("output_norm", concat!($prefix, "final_norm"), &[Hidden]),
            // The first layer follows the norm of the embedding.
            only(
                Need::AllButFirst,
                "blk.{i}.attn_norm",
                concat!($prefix, "layers.{i}.attn_norm"),
                &[Hidden],
            ),
            same(
                "blk.{i}.attn_qkv",
                concat!($prefix, "layers.{i}.attn.Wqkv"),
                &[Sum(&[Hidden, Hidden, Hidden]), Hidden],
            ),
            same("blk.{i}.attn_output", concat!($prefix, "layers.{i}.attn.Wo"), &[Hidden, Hidden]),
            same("blk.{i}.ffn_norm", concat!($prefix, "layers.{i}.mlp_norm"), &[Hidden]),
            same("blk.{i}.ffn_up", concat!($prefix, "layers.{i}.mlp.Wi"), &[TwoInner, Hidden]),
            same("blk.{i}.ffn_down", concat!($prefix, "layers.{i}.mlp.Wo"), &[Hidden, Inner]),
        ]
    };
}

const POOLING: &[Setting] = &[
    setting(Kind::FixedFlag(false), "attention.causal", &[]),
    count("pooling_type", &["pooling_type"]),
    setting(Kind::Own(&CLASSIFIER_POOLING), "classifier.pooling_type", &[POOLING_FIELD]),
];

const SIZES: &[Setting] = &[
    // llama.cpp reads this one, and no RMS norm is in the model.
    number("attention.layer_norm_epsilon", &["layer_norm_eps", "norm_eps"]),
    count("attention.sliding_window", &["local_attention"]),
    count("attention.sliding_window_pattern", &["global_attn_every_n_layers"]),
    setting(Kind::Text("none"), "rope.scaling.type", &[]),
    count("vocab_size", &["vocab_size"]),
    setting(Kind::Text("gelu"), "hidden_activation", &[]),
    // Heads of keys and values are those of queries.
    setting(Kind::Omitted, "attention.head_count_kv", &[]),
];

pub(super) const MODERN_BERT: ModelClass = ModelClass {
    gguf: "modern-bert",
    classes: &["ModernBertModel", "ModernBertForMaskedLM"],
    model_type: "modernbert",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("norm_eps", Float(1e-5)),
        ("global_rope_theta", Float(160_000.0)),
        ("local_rope_theta", Float(10_000.0)),
        ("local_attention", Int(128)),
        ("global_attn_every_n_layers", Int(3)),
        ("classifier_pooling", Text("cls")),
    ],
    implied: &[("hidden_activation", Text("gelu"))],
    own_fields: &[
        ("rms_norm_eps", "norm_eps"),
        ("rope_theta", "global_rope_theta"),
        ("rope_local_base_freq", "local_rope_theta"),
    ],
    equal_fields: &[("layer_norm_eps", "norm_eps")],
    tensors: &[encoder!("")],
    settings: &[POOLING, &[SETTINGS[LABELS]], SIZES],
    traits: Traits {
        head_dim: HeadDim::Derived,
        // An encoder has no `lm_head`.
        ties_output: true,
        prefix: Some("model."),
        // What predicts masked tokens.
        left_out: &["head.", "decoder."],
        rope: RopeTraits::BY_KIND,
        also_implied: &[
            ("attention_bias", Bool(false)),
            ("mlp_bias", Bool(false)),
            ("norm_bias", Bool(false)),
            // transformers 5 takes twice the number for `local_attention`.
            ("sliding_window", Absent),
        ],
        laws: &[full_from_first],
        ..Traits::PLAIN
    },
    tokenizer: &TOKENIZER,
    ..ModelClass::PLAIN
};

/// ModernBERT that ranks or classifies texts.
pub(super) const MODERN_BERT_CLASSIFIER: ModelClass = ModelClass {
    classes: &["ModernBertForSequenceClassification"],
    biases: &[("", &["cls.output"])],
    tensors: &[encoder!("model."), CLASSIFIER],
    settings: &[POOLING, &[RANK_SETTINGS[LABELS]], SIZES],
    implied: &[MODERN_BERT.implied[0], ("classifier_activation", Text("gelu"))],
    traits: Traits {
        left_out: &[],
        sign: Sign::Tensor("cls.output.weight"),
        restores: &[restore_pooling],
        ..MODERN_BERT.traits
    },
    ..MODERN_BERT
};

const CLASSIFIER: &[TensorRule] = &[
    same("cls", "head.dense", &[Hidden, Hidden]),
    same("cls.norm", "head.norm", &[Hidden]),
    same("cls.output", "classifier", &[Labels, Hidden]),
];

/// Field of how a classifier makes one vector of a text.
const POOLING_FIELD: &str = "classifier_pooling";

/// Its values, with llama.cpp's numbers.
const POOLINGS: &[(&str, u32)] = &[("mean", 1), ("cls", 2)];

/// UINT32: the number of the field's name. Of a classifier llama.cpp takes the first where there is
/// none.
const CLASSIFIER_POOLING: OwnSetting = own(
    |setting, model| {
        let Some((_, name)) = model.fields.get(setting.fields) else {
            return Ok(None);
        };
        let found = POOLINGS.iter().find(|(known, _)| name == known);
        let unknown = || setting.wrong(format_args!("{name} is none that GGUF has"));
        Ok(Some(GgufMetadataValue::U32(found.ok_or_else(unknown)?.1)))
    },
    |stated, _| {
        let number = stated.count()?;
        let mut poolings = POOLINGS.iter();
        let found = poolings.find(|(_, known)| u64::from(*known) == number);
        Ok(Some(found.ok_or_else(|| stated.other_type())?.0.into()))
    },
);

/// llama.cpp takes the first where a classifier has no key.
fn restore_pooling(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    config.entry(POOLING_FIELD).or_insert(POOLINGS[0].0.into());
    Ok(())
}

/// Every so many layers one sees the whole text, from the first one on: llama.cpp knows no other
/// pattern.
fn full_from_first(model: &Model<'_>) -> Result<Option<String>> {
    let every = model.dims.need("global_attn_every_n_layers")?;
    let kind = |layer: usize| match layer.is_multiple_of(every) {
        true => FULL_ATTENTION,
        false => "sliding_attention",
    };
    let kinds = (0..model.dims.layers).map(kind).collect();
    model.expect(LAYER_KINDS, &kinds)
}

const TOKENIZER: TokenizerRules = TokenizerRules {
    before: &[
        KeyRule::Flag("add_bos_token", true),
        KeyRule::Flag("add_eos_token", true),
        KeyRule::Flag("add_sep_token", true),
    ],
    ..TokenizerRules::PLAIN
};
