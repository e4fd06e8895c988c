//! Encoders: BERT; RoBERTa and XLM-RoBERTa, whose positions begin behind that of the padding token.
//!
//! Source: `conversion/bert.py` of llama.cpp; defaults of transformers 4.57.6.

mod positions;

use crate::families::engine::fields::wrong_key;
use crate::families::engine::rows::*;

/// Tensors whose names in transformers begin with a prefix.
macro_rules! encoder {
    ($prefix:literal, $positions:expr) => {
        &[
            same("token_embd", concat!($prefix, "embeddings.word_embeddings"), &[Vocab, Hidden]),
            TensorRule { hf: concat!($prefix, "embeddings.position_embeddings"), ..$positions },
            same(
                "token_types",
                concat!($prefix, "embeddings.token_type_embeddings"),
                &[Field("type_vocab_size"), Hidden],
            ),
            same("token_embd_norm", concat!($prefix, "embeddings.LayerNorm"), &[Hidden]),
            same(
                "blk.{i}.attn_q",
                concat!($prefix, "encoder.layer.{i}.attention.self.query"),
                &[Hidden, Hidden],
            ),
            same(
                "blk.{i}.attn_k",
                concat!($prefix, "encoder.layer.{i}.attention.self.key"),
                &[Hidden, Hidden],
            ),
            same(
                "blk.{i}.attn_v",
                concat!($prefix, "encoder.layer.{i}.attention.self.value"),
                &[Hidden, Hidden],
            ),
            same(
                "blk.{i}.attn_output",
                concat!($prefix, "encoder.layer.{i}.attention.output.dense"),
                &[Hidden, Hidden],
            ),
            same(
                "blk.{i}.attn_output_norm",
                concat!($prefix, "encoder.layer.{i}.attention.output.LayerNorm"),
                &[Hidden],
            ),
            same(
                "blk.{i}.ffn_up",
                concat!($prefix, "encoder.layer.{i}.intermediate.dense"),
                &[Inner, Hidden],
            ),
            same(
                "blk.{i}.ffn_down",
                concat!($prefix, "encoder.layer.{i}.output.dense"),
                &[Hidden, Inner],
            ),
            same(
                "blk.{i}.layer_output_norm",
                concat!($prefix, "encoder.layer.{i}.output.LayerNorm"),
                &[Hidden],
            ),
        ]
    };
}

const POSITIONS: TensorRule =
    same("position_embd", "", &[Field("max_position_embeddings"), Hidden]);

/// As [`POSITIONS`], without the rows up to that of the padding token.
const LATER_POSITIONS: TensorRule = TensorRule {
    transform: Transform::Own(&positions::BEHIND_PADDING),
    gguf_shape: Some(&[Positions, Hidden]),
    ..POSITIONS
};

/// A classifier of one layer.
const SHORT_CLASSIFIER: &[TensorRule] = &[same("cls.output", "classifier", &[Labels, Hidden])];

const CLASSIFIER: &[TensorRule] = &[
    same("cls", "classifier.dense", &[Hidden, Hidden]),
    same("cls.output", "classifier.out_proj", &[Labels, Hidden]),
];

/// What all layers have a bias of.
const BIASES: &[&str] = &[
    "token_embd_norm",
    "blk.{i}.attn_q",
    "blk.{i}.attn_k",
    "blk.{i}.attn_v",
    "blk.{i}.attn_output",
    "blk.{i}.attn_output_norm",
    "blk.{i}.ffn_up",
    "blk.{i}.ffn_down",
    "blk.{i}.layer_output_norm",
];

/// Settings of encoders.
pub(super) const SETTINGS: &[Setting] = &[
    setting(Kind::FixedFlag(false), "attention.causal", &[]),
    count("pooling_type", &["pooling_type"]),
    setting(Kind::Labels(false), "classifier.output_labels", &["id2label"]),
    // Heads of keys and values are those of queries.
    setting(Kind::Omitted, "attention.head_count_kv", &[]),
];

/// The place of the names of classes in them.
pub(super) const LABELS: usize = 2;

/// As [`SETTINGS`], of a class that must name its classes.
pub(super) const RANK_SETTINGS: &[Setting] = &[
    SETTINGS[0],
    SETTINGS[1],
    setting(Kind::Labels(true), "classifier.output_labels", &["id2label"]),
    SETTINGS[3],
];

/// The context without the positions up to that of the padding token.
const LATER_CONTEXT: &[Setting] =
    &[setting(Kind::Own(&CONTEXT), "context_length", &["max_position_embeddings"])];

const TRAITS: Traits = Traits {
    head_dim: HeadDim::Derived,
    // An encoder has no `lm_head`.
    ties_output: true,
    prefix: Some("bert."),
    left_out: &["pooler.dense.", "cls.predictions.", "cls.seq_relationship."],
    // DistilBERT has no types of tokens.
    sign: Sign::All(&[Sign::Tokenizer("bert"), Sign::Tensor("token_types.weight")]),
    ..Traits::PLAIN
};

pub(super) const BERT: ModelClass = ModelClass {
    gguf: "bert",
    classes: &["BertModel", "BertForMaskedLM"],
    model_type: "bert",
    defaults: &[
        ("max_position_embeddings", Int(512)),
        ("type_vocab_size", Int(2)),
        ("layer_norm_eps", Float(1e-12)),
        ("pad_token_id", Int(0)),
    ],
    implied: &[
        ("hidden_act", Text("gelu")),
        ("position_embedding_type", Text("absolute")),
        ("is_decoder", Bool(false)),
        ("add_cross_attention", Bool(false)),
    ],
    biases: &[("", BIASES)],
    tensors: &[encoder!("", POSITIONS)],
    settings: &[SETTINGS],
    traits: TRAITS,
    tokenizer: &TokenizerRules { after: &[KeyRule::TokenTypes], ..TokenizerRules::PLAIN },
    ..ModelClass::PLAIN
};

/// BERT that ranks or classifies texts.
pub(super) const BERT_CLASSIFIER: ModelClass = ModelClass {
    classes: &["BertForSequenceClassification"],
    biases: &[("", BIASES), ("", &["cls.output"])],
    tensors: &[encoder!("bert.", POSITIONS), SHORT_CLASSIFIER],
    settings: &[RANK_SETTINGS],
    traits: Traits {
        sign: Sign::All(&[
            Sign::Tokenizer("bert"),
            Sign::Tensor("token_types.weight"),
            Sign::Tensor("cls.output.weight"),
        ]),
        other_scores: Some([
            "`bert.pooler.dense` is left out, as llama.cpp's converter does: llama.cpp classifies the state of the first token as it is, and its scores are not those of transformers",
            "`bert.pooler.dense` is missing, which llama.cpp's converter leaves out: transformers makes one up, and its scores mean nothing until the original's is added",
        ]),
        ..TRAITS
    },
    ..BERT
};

pub(super) const XLM_ROBERTA: ModelClass = ModelClass {
    classes: &["XLMRobertaModel"],
    model_type: "xlm-roberta",
    defaults: &[
        ("max_position_embeddings", Int(512)),
        ("type_vocab_size", Int(2)),
        ("layer_norm_eps", Float(1e-12)),
        ("pad_token_id", Int(1)),
    ],
    tensors: &[encoder!("", LATER_POSITIONS)],
    settings: &[SETTINGS, LATER_CONTEXT],
    traits: Traits { prefix: Some("roberta."), sign: Sign::Tokenizer("t5"), ..TRAITS },
    ..BERT
};

/// XLM-RoBERTa that ranks or classifies texts.
pub(super) const XLM_ROBERTA_CLASSIFIER: ModelClass = ModelClass {
    classes: &["XLMRobertaForSequenceClassification"],
    biases: &[("", BIASES), ("", &["cls", "cls.output"])],
    tensors: &[encoder!("roberta.", LATER_POSITIONS), CLASSIFIER],
    settings: &[RANK_SETTINGS, LATER_CONTEXT],
    traits: Traits {
        sign: Sign::All(&[Sign::Tokenizer("t5"), Sign::Tensor("cls.output.weight")]),
        ..XLM_ROBERTA.traits
    },
    ..XLM_ROBERTA
};

pub(super) const ROBERTA: ModelClass = ModelClass {
    classes: &["RobertaModel"],
    model_type: "roberta",
    traits: Traits { sign: Sign::Tokenizer("gpt2"), ..XLM_ROBERTA.traits },
    ..XLM_ROBERTA
};

/// RoBERTa that ranks or classifies texts.
pub(super) const ROBERTA_CLASSIFIER: ModelClass = ModelClass {
    classes: &["RobertaForSequenceClassification"],
    model_type: "roberta",
    traits: Traits {
        sign: Sign::All(&[Sign::Tokenizer("gpt2"), Sign::Tensor("cls.output.weight")]),
        ..XLM_ROBERTA.traits
    },
    ..XLM_ROBERTA_CLASSIFIER
};

/// UINT32: the field without the positions up to that of the padding token.
const CONTEXT: OwnSetting = required(own(
    |setting, model| {
        let all = model.fields.need(setting.fields)? as usize;
        let positions = all.checked_sub(model.dims.unused_positions()?);
        let too_few = || setting.wrong("no position is behind the padding token");
        let positions = positions.filter(|n| *n > 0).ok_or_else(too_few)?;
        setting.count(positions).map(Some)
    },
    |stated, config| {
        let count = stated.count()?;
        let padding_key = "tokenizer.ggml.padding_token_id";
        let padding = config.metadata.get(padding_key);
        let padding = padding.and_then(|id| id.as_unsigned());
        let missing = || wrong_key(padding_key, "positions begin behind it");
        let padding = padding.ok_or_else(missing)?;
        config.set("pad_token_id", padding.into(), stated.key)?;
        let all = count.checked_add(padding).and_then(|n| n.checked_add(1));
        Ok(Some(all.ok_or_else(|| stated.other_type())?.into()))
    },
));
