//! The first Qwen, whose queries, keys and values are one matrix with a bias.
//!
//! Source: `QwenModel` in `conversion/qwen.py` of llama.cpp, which writes the epsilon under a key that
//! llama.cpp does not read; defaults of `configuration_qwen.py` beside published models.

use super::gpt2::THREEFOLD;
use crate::Result;
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

/// The config has the widths of gate and projection together.
const HALF: Dim = Quotient(&[Inner, Sum(&[One, One])]);

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.wte", &[Vocab, Hidden]),
    same("output_norm", "transformer.ln_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "transformer.h.{i}.ln_1", &[Hidden]),
    same("blk.{i}.attn_qkv", "transformer.h.{i}.attn.c_attn", &[THREEFOLD, Hidden]),
    same("blk.{i}.attn_output", "transformer.h.{i}.attn.c_proj", &[Hidden, Hidden]),
    same("blk.{i}.ffn_norm", "transformer.h.{i}.ln_2", &[Hidden]),
    // The second is what the function is of.
    same("blk.{i}.ffn_up", "transformer.h.{i}.mlp.w1", &[HALF, Hidden]),
    same("blk.{i}.ffn_gate", "transformer.h.{i}.mlp.w2", &[HALF, Hidden]),
    same("blk.{i}.ffn_down", "transformer.h.{i}.mlp.c_proj", &[Hidden, HALF]),
];

pub(super) const QWEN: ModelClass = ModelClass {
    gguf: "qwen",
    classes: &["QWenLMHeadModel"],
    model_type: "qwen",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("layer_norm_epsilon", Float(1e-6)),
        ("rotary_emb_base", Float(10_000.0)),
    ],
    implied: &[
        ("no_bias", Bool(true)),
        ("scale_attn_weights", Bool(true)),
        ("rotary_pct", Float(1.0)),
    ],
    own_fields: &[("rope_theta", "rotary_emb_base"), ("head_dim", "kv_channels")],
    biases: &[("", &["blk.{i}.attn_qkv"])],
    tensors: &[TENSORS],
    settings: &[&[
        number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon"]),
        setting(Kind::Omitted, "attention.head_count_kv", &[]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        needs_output: true,
        prefix: Some("transformer."),
        laws: &[longer_texts],
        ..Traits::PLAIN
    },
    mlx: Some(&QWEN_MLX),
    ..ModelClass::PLAIN
};

const QWEN_MLX: MlxClass = MlxClass {
    implied: &[
        ("no_bias", Bool(true)),
        ("rotary_emb_base", Float(10_000.0)),
        ("rotary_pct", Float(1.0)),
    ],
    stated_fields: &[&["kv_channels", "layer_norm_epsilon", "no_bias"]],
    laws: &[longer_texts_in_mlx],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

fn longer_texts_in_mlx(model: &Model<'_>) -> Result<Option<String>> {
    let set = ["use_dynamic_ntk", "use_logn_attn"].map(|field| model.fields.flag(field));
    let what = "texts longer than those of the training (`seq_length`) are computed otherwise than by the code beside the model, as by mlx-lm with its own conversion";
    Ok(set.contains(&true).then(|| what.to_owned()))
}

/// The code beside published models changes base and scores of texts longer than those of the
/// training.
fn longer_texts(model: &Model<'_>) -> Result<Option<String>> {
    let set = ["use_dynamic_ntk", "use_logn_attn"].map(|field| model.fields.flag(field));
    let what = "texts longer than those of the training (`seq_length`) are computed otherwise than by the code beside the model, as with the file that llama.cpp's own converter writes";
    Ok(set.contains(&true).then(|| what.to_owned()))
}
