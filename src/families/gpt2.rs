//! GPT-2, whose matrices are stored as `[in, out]`.
//!
//! Source: `conversion/gpt2.py` of llama.cpp; defaults of transformers 4.57.6.

use crate::Result;
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

/// Width of the feed-forward layer.
pub(super) const FOURFOLD: Dim = Sum(&[Hidden, Hidden, Hidden, Hidden]);
/// Queries, keys and values.
pub(super) const THREEFOLD: Dim = Sum(&[Hidden, Hidden, Hidden]);

/// A matrix `[in, out]`, which GGUF has as `[out, in]`.
const fn matrix(
    gguf: &'static str,
    hf: &'static str,
    (shape, gguf_shape): (&'static [Dim], &'static [Dim]),
) -> TensorRule {
    TensorRule {
        transform: Transform::Transposed,
        gguf_shape: Some(gguf_shape),
        ..same(gguf, hf, shape)
    }
}

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.wte", &[Vocab, Hidden]),
    same("position_embd", "transformer.wpe", &[Field("n_positions"), Hidden]),
    same("output_norm", "transformer.ln_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "transformer.h.{i}.ln_1", &[Hidden]),
    matrix(
        "blk.{i}.attn_qkv",
        "transformer.h.{i}.attn.c_attn",
        (&[Hidden, THREEFOLD], &[THREEFOLD, Hidden]),
    ),
    matrix(
        "blk.{i}.attn_output",
        "transformer.h.{i}.attn.c_proj",
        (&[Hidden, Hidden], &[Hidden, Hidden]),
    ),
    same("blk.{i}.ffn_norm", "transformer.h.{i}.ln_2", &[Hidden]),
    matrix(
        "blk.{i}.ffn_up",
        "transformer.h.{i}.mlp.c_fc",
        (&[Hidden, FOURFOLD], &[FOURFOLD, Hidden]),
    ),
    matrix(
        "blk.{i}.ffn_down",
        "transformer.h.{i}.mlp.c_proj",
        (&[FOURFOLD, Hidden], &[Hidden, FOURFOLD]),
    ),
];

/// What always has a bias.
pub(super) const BIASES: &[&str] = &[
    "output_norm",
    "blk.{i}.attn_norm",
    "blk.{i}.attn_qkv",
    "blk.{i}.attn_output",
    "blk.{i}.ffn_norm",
    "blk.{i}.ffn_up",
    "blk.{i}.ffn_down",
];

/// Names of GPT-2. mlx-lm takes the matrices of layers for `[in, out]`, and has them as `[out,
/// in]`.
const GPT2_NAMES: &[(&str, &str)] = &[
    ("token_embd", "model.wte"),
    ("position_embd", "model.wpe"),
    ("output_norm", "model.ln_f"),
    ("blk.{i}.attn_norm", "model.h.{i}.ln_1"),
    ("blk.{i}.attn_qkv", "model.h.{i}.attn.c_attn"),
    ("blk.{i}.attn_output", "model.h.{i}.attn.c_proj"),
    ("blk.{i}.ffn_norm", "model.h.{i}.ln_2"),
    ("blk.{i}.ffn_up", "model.h.{i}.mlp.c_fc"),
    ("blk.{i}.ffn_down", "model.h.{i}.mlp.c_proj"),
];

pub(super) const GPT2: ModelClass = ModelClass {
    gguf: "gpt2",
    classes: &["GPT2LMHeadModel"],
    model_type: "gpt2",
    defaults: &[
        ("n_positions", Int(1024)),
        ("layer_norm_epsilon", Float(1e-5)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("activation_function", Text("gelu_new")),
        ("scale_attn_weights", Bool(true)),
        ("scale_attn_by_inverse_layer_idx", Bool(false)),
        ("add_cross_attention", Bool(false)),
    ],
    own_fields: &[
        ("max_position_embeddings", "n_positions"),
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ],
    equal_fields: &[("n_ctx", "n_positions")],
    biases: &[("", BIASES)],
    tensors: &[TENSORS],
    settings: &[&[
        setting(Kind::TimesHidden(4), "feed_forward_length", &["n_inner"]),
        // Heads of keys and values are those of queries.
        setting(Kind::Omitted, "attention.head_count_kv", &[]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        prefix: Some("transformer."),
        ..Traits::PLAIN
    },
    mlx: Some(&GPT2_MLX),
    ..ModelClass::PLAIN
};

/// ruGPT-3 XL with the names of its own code, which comes back as [`GPT2`].
pub(super) const RUGPT3: ModelClass = ModelClass {
    classes: &["RuGPT3XLForCausalLM"],
    model_type: "rugpt3xl",
    defaults: &[("max_position_embeddings", Int(2048)), ("layer_norm_eps", Float(1e-5))],
    implied: &[("hidden_act", Text("gelu_new"))],
    own_fields: &[],
    equal_fields: &[],
    tensors: &[&[
        super::ENDS[0],
        super::ENDS[1],
        super::ENDS[2],
        super::NORMS[0],
        super::NORMS[1],
        super::MLP[1],
        super::MLP[2],
        super::VALUES[1],
        same("position_embd", "model.embed_positions", &[Field("max_position_embeddings"), Hidden]),
        TensorRule {
            transform: Transform::Joined(&["q", "k", "v"]),
            gguf_shape: Some(&[THREEFOLD, Hidden]),
            ..same("blk.{i}.attn_qkv", "model.layers.{i}.self_attn.{e}_proj", &[Hidden, Hidden])
        },
    ]],
    settings: &[&[setting(Kind::TimesHidden(4), "feed_forward_length", &["intermediate_size"])]],
    traits: Traits { prefix: None, laws: &[sparse_attention], sign: Sign::Never, ..GPT2.traits },
    mlx: None,
    ..GPT2
};

/// Heads of sparse layers see blocks of the text.
fn sparse_attention(model: &Model<'_>) -> Result<Option<String>> {
    let mode = model
        .fields
        .0
        .get("sparse_mode")
        .and_then(|mode| mode.as_str());
    let is_sparse = mode.is_some_and(|mode| mode != "none");
    Ok(is_sparse.then(|| {
        "llama.cpp's gpt2 has no sparse attention (`sparse_mode`): of longer texts it computes something else"
            .to_owned()
    }))
}

const GPT2_MLX: MlxClass = MlxClass {
    renamed: GPT2_NAMES,
    implied: &[
        ("activation_function", Text("gelu_new")),
        ("scale_attn_weights", Bool(true)),
        ("scale_attn_by_inverse_layer_idx", Bool(false)),
        ("add_cross_attention", Bool(false)),
    ],
    stated_fields: &[&["n_ctx", "n_positions", "layer_norm_epsilon"]],
    output: OutputLayer::Tied,
    ..MlxClass::PLAIN
};
