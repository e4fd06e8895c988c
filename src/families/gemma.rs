//! Gemma 1 to 3, and EmbeddingGemma.
//!
//! Source: `conversion/gemma.py` of llama.cpp; defaults of transformers 4.57.6.

use serde_json::{Map, Value};

use super::{ATTENTION_BIASES, CAUSAL, ENDS, HEAD_NORMS, MLP, NORMS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::checks::said;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::wrong;
use crate::families::engine::pooling::POOLING;
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

/// Norms before and behind both halves of a layer.
pub(super) const FOUR_NORMS: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", &[Hidden]),
    same("blk.{i}.post_attention_norm", "model.layers.{i}.post_attention_layernorm", &[Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.pre_feedforward_layernorm", &[Hidden]),
    same("blk.{i}.post_ffw_norm", "model.layers.{i}.post_feedforward_layernorm", &[Hidden]),
];

const TRAITS: Traits = Traits {
    norms_plus_one: true,
    has_pre_norms: true,
    ties_output: true,
    also_implied: &[("use_bidirectional_attention", Bool(false))],
    ..Traits::PLAIN
};

const TANH_GELU: (&str, Default) = ("hidden_activation", Text("gelu_pytorch_tanh"));

pub(super) const GEMMA: ModelClass = ModelClass {
    gguf: "gemma",
    classes: &["GemmaForCausalLM"],
    model_type: "gemma",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("num_key_value_heads", Int(16)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_activation", Text("gelu_pytorch_tanh"))],
    biases: &[("attention_bias", ATTENTION_BIASES)],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, MLP],
    traits: Traits { rope: RopeTraits::FIXED, laws: &[approximate_gelu], ..TRAITS },
    tokenizer: &GEMMA_TOKENIZER,
    mlx: Some(&GEMMA_MLX),
    ..ModelClass::PLAIN
};

const GEMMA_MLX: MlxClass = MlxClass {
    activation: exact_gelu("hidden_act"),
    stated_fields: &[COMMON_FIELDS, &["head_dim", "num_key_value_heads"]],
    implied: &[TANH_GELU, NO_BIAS, NO_SCALING],
    output: OutputLayer::Tied,
    ..MlxClass::PLAIN
};

pub(super) const GEMMA2: ModelClass = ModelClass {
    gguf: "gemma2",
    classes: &["Gemma2ForCausalLM"],
    model_type: "gemma2",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("num_key_value_heads", Int(4)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("query_pre_attn_scalar", Int(256)),
        ("sliding_window", Int(4096)),
        ("attn_logit_softcapping", Float(50.0)),
        ("final_logit_softcapping", Float(30.0)),
    ],
    tensors: &[ENDS, FOUR_NORMS, QUERIES, VALUES, MLP],
    settings: &[&[
        number("attn_logit_softcapping", &["attn_logit_softcapping"]),
        number("final_logit_softcapping", &["final_logit_softcapping"]),
        count("attention.sliding_window", &["sliding_window"]),
    ]],
    traits: Traits {
        rope: RopeTraits::FIXED,
        full_attention_every: Some(2),
        laws: &[
            |model| not_null(model, &["attn_logit_softcapping", LOGIT_CAP]),
            |model| check_scale(model, LARGEST_GEMMA2),
        ],
        restores: &[|config, dims| restore_scale(config, dims, LARGEST_GEMMA2)],
        ..TRAITS
    },
    tokenizer: &GEMMA2_TOKENIZER,
    mlx: Some(&GEMMA2_MLX),
    ..GEMMA
};

const GEMMA2_MLX: MlxClass = MlxClass {
    activation: None,
    stated_fields: &[COMMON_FIELDS, &["head_dim", "num_key_value_heads", "query_pre_attn_scalar"]],
    // By `layer_types`, or all.
    lost_windows: LostWindows::From(0),
    ..GEMMA_MLX
};

pub(super) const GEMMA3: ModelClass = ModelClass {
    gguf: "gemma3",
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    model_type: "gemma3_text",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_attention_heads", Int(8)),
        ("num_key_value_heads", Int(4)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(1e6)),
        ("rope_local_base_freq", Float(10_000.0)),
        ("query_pre_attn_scalar", Int(256)),
        ("sliding_window", Int(4096)),
        ("vocab_size", Int(262_208)),
    ],
    implied: &[
        ("hidden_activation", Text("gelu_pytorch_tanh")),
        ("attn_logit_softcapping", Absent),
    ],
    tensors: &[ENDS, FOUR_NORMS, QUERIES, VALUES, HEAD_NORMS, MLP],
    settings: &[&[
        number("final_logit_softcapping", &["final_logit_softcapping"]),
        count("attention.sliding_window", &["sliding_window"]),
    ]],
    traits: Traits {
        cuts_embedding: true,
        rope: RopeTraits::BY_KIND,
        full_attention_every: Some(6),
        laws: &[|model| check_scale(model, LARGEST_GEMMA3)],
        restores: &[|config, dims| restore_scale(config, dims, LARGEST_GEMMA3)],
        ..TRAITS
    },
    tokenizer: &GEMMA2_TOKENIZER,
    mlx: Some(&GEMMA3_MLX),
    ..GEMMA
};

const GEMMA3_MLX: MlxClass = MlxClass {
    activation: None,
    reads_outer_vocab: true,
    prefix: Prefix::IfNested("language_model."),
    implied: &[
        TANH_GELU,
        NO_BIAS,
        ("attn_logit_softcapping", Absent),
        ("final_logit_softcapping", Absent),
    ],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "head_dim",
            "num_attention_heads",
            "num_key_value_heads",
            "query_pre_attn_scalar",
            "sliding_window",
        ],
    ],
    counted_kind: Some(("sliding_window_pattern", "sliding_attention")),
    ..GEMMA_MLX
};

/// EmbeddingGemma, in which tokens see those behind them as well.
pub(super) const GEMMA_EMBEDDING: ModelClass = ModelClass {
    gguf: "gemma-embedding",
    classes: &["Gemma3TextModel"],
    defaults: EMBEDDING_DEFAULTS,
    implied: &[
        ("hidden_activation", Text("gelu_pytorch_tanh")),
        ("attn_logit_softcapping", Absent),
        ("final_logit_softcapping", Absent),
        ("use_bidirectional_attention", Bool(true)),
    ],
    tensors: &[EMBEDDING, FOUR_NORMS, QUERIES, VALUES, HEAD_NORMS, MLP],
    settings: &[&[
        count("attention.sliding_window", &["sliding_window"]),
        count(POOLING, &[POOLING]),
    ]],
    traits: Traits { also_implied: &[CAUSAL], ..GEMMA3.traits },
    mlx: None,
    ..GEMMA3
};

/// Embedding and last norm.
const EMBEDDING: &[TensorRule] = &[ENDS[0], ENDS[1]];

/// As those of [`GEMMA3`], in which tokens do not see those behind them unless a config says so.
const EMBEDDING_DEFAULTS: &[(&str, Default)] = &[
    ("max_position_embeddings", Int(131_072)),
    ("num_attention_heads", Int(8)),
    ("num_key_value_heads", Int(4)),
    ("head_dim", Int(256)),
    ("rms_norm_eps", Float(1e-6)),
    ("rope_theta", Float(1e6)),
    ("rope_local_base_freq", Float(10_000.0)),
    ("query_pre_attn_scalar", Int(256)),
    ("sliding_window", Int(4096)),
    ("vocab_size", Int(262_208)),
    ("use_bidirectional_attention", Bool(false)),
];

/// `hidden_act` counts as well, and early configs say that it is the exact GELU, for which llama.cpp
/// has the approximation.
pub(super) fn approximate_gelu(model: &Model<'_>) -> Result<Option<String>> {
    let fields = [ACTIVATION, "activation_function"];
    let name = model.fields.get(&fields).map(|(_, name)| name.as_str());
    match name.map(Option::unwrap_or_default) {
        None | Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(None),
        Some("gelu") => {
            let what =
                "which transformers computes exactly; llama.cpp has the approximation with tanh";
            Ok(Some(format!("`{ACTIVATION}` is `gelu`, {what}")))
        }
        Some(_) => {
            let what = format!("it is none that {} has", model.owner());
            Err(wrong(ACTIVATION, what))
        }
    }
}

const ACTIVATION: &str = "hidden_act";

/// Field of the largest magnitude of the output.
pub(super) const LOGIT_CAP: &str = "final_logit_softcapping";

/// Fails if the config has null for one of `fields`, and so none of what it says: llama.cpp always
/// has one. transformers takes its default only where the field is missing.
pub(super) fn not_null(model: &Model<'_>, fields: &[&str]) -> Result<Option<String>> {
    let is_null = |field: &&&str| said(model.stated, field) == Some(&Value::Null);
    match fields.iter().find(is_null) {
        None => Ok(None),
        Some(field) => {
            let what = format!(
                "it is null, so that transformers has none; {} always has one",
                model.owner()
            );
            Err(wrong(field, what))
        }
    }
}

/// Layers of the models whose scores are divided by the root of hidden size / heads. Those of all
/// others are divided by the root of the size of a head, and llama.cpp knows nothing else.
const LARGEST_GEMMA2: usize = 46;
const LARGEST_GEMMA3: usize = 62;

/// Field of what scores are divided by the root of.
const SCALE: &str = "query_pre_attn_scalar";

fn scale(dims: &Dims, largest: usize) -> usize {
    match dims.layers == largest {
        true => dims.hidden / dims.heads,
        false => dims.head,
    }
}

fn check_scale(model: &Model<'_>, largest: usize) -> Result<Option<String>> {
    let expected = scale(&model.dims, largest);
    match model.fields.0.get(SCALE) {
        Some(found) if found.as_f64() == Some(expected as f64) => Ok(None),
        _ => model.expect(SCALE, &expected.into()),
    }
}

fn restore_scale(config: &mut Map<String, Value>, dims: &Dims, largest: usize) -> Result<()> {
    config.insert(SCALE.to_owned(), scale(dims, largest).into());
    Ok(())
}

const GEMMA_TOKENIZER: TokenizerRules = TokenizerRules {
    after: &[
        KeyRule::Own(|files, keys| files.write_end_of_turn(107, keys)),
        KeyRule::Flag("add_space_prefix", false),
    ],
    ..TokenizerRules::PLAIN
};

/// No blank stands in front of a text, which a SentencePiece model would have.
pub(super) const GEMMA2_TOKENIZER: TokenizerRules = TokenizerRules {
    after: &[KeyRule::Own(|_, keys| {
        if keys.is_sentencepiece() {
            keys.ggml_flag("add_space_prefix", false);
        }
        Ok(())
    })],
    ..TokenizerRules::PLAIN
};
