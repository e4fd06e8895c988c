//! EXAONE 4, Seed-OSS and ERNIE 4.5: plain models of one class each.
//!
//! Source: `conversion/exaone.py`, `olmo.py` and `ernie.py` of llama.cpp; defaults of transformers
//! 4.57.6.

use super::{ENDS, HEAD_NORMS, LATER_NORMS, MLP, NORMS, POST_NORMS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::checks::{WINDOW, ignored_window};
use crate::families::engine::fields::wrong;
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

pub(super) const EXAONE4: ModelClass = ModelClass {
    gguf: "exaone4",
    classes: &["Exaone4ForCausalLM", "Exaone4_5_ForConditionalGeneration"],
    model_type: "exaone4",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("num_key_value_heads", Int(32)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu"))],
    tensors: &[ENDS, LATER_NORMS, QUERIES, VALUES, HEAD_NORMS, MLP],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        // Without windows the field is null: transformers takes 4096 for one that is missing.
        setting(Kind::Nullable, "attention.sliding_window", &["sliding_window"]),
        setting(
            Kind::Layers("sliding_attention"),
            "attention.sliding_window_pattern",
            &["sliding_window"],
        ),
    ]],
    traits: Traits {
        layer_kinds: Some(("sliding_attention", 4)),
        laws: &[windows_by_layers],
        default_window: Some(4096),
        rope: RopeTraits::LLAMA3,
        prediction: Prediction::LeftOut,
        ..Traits::PLAIN
    },
    mlx: Some(&EXAONE4_MLX),
    ..ModelClass::PLAIN
};

/// EXAONE 3 and 3.5, which have the names of GPT-2.
pub(super) const EXAONE: ModelClass = ModelClass {
    gguf: "exaone",
    classes: &["ExaoneForCausalLM"],
    model_type: "exaone",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(500_000.0)),
    ],
    implied: &[
        ("activation_function", Text("silu")),
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
    ],
    own_fields: &[("num_hidden_layers", "num_layers"), ("rms_norm_eps", "layer_norm_epsilon")],
    tensors: &[EXAONE_TENSORS],
    settings: &[&[
        number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon", "rms_norm_eps"]),
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
    ]],
    traits: Traits { rope: RopeTraits::LLAMA3, prefix: Some("transformer."), ..Traits::PLAIN },
    mlx: Some(&EXAONE_MLX),
    ..ModelClass::PLAIN
};

const EXAONE_MLX: MlxClass = MlxClass {
    implied: &[("activation_function", Text("silu"))],
    stated_fields: &[&[
        "rope_theta",
        "num_key_value_heads",
        "layer_norm_epsilon",
        "max_position_embeddings",
        "tie_word_embeddings",
    ]],
    ..LIKE_LLAMA
};

const EXAONE_TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.wte", &[Vocab, Hidden]),
    same("output_norm", "transformer.ln_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "transformer.h.{i}.ln_1", &[Hidden]),
    same("blk.{i}.attn_q", "transformer.h.{i}.attn.attention.q_proj", &[Queries, Hidden]),
    same("blk.{i}.attn_k", "transformer.h.{i}.attn.attention.k_proj", &[Keys, Hidden]),
    same("blk.{i}.attn_v", "transformer.h.{i}.attn.attention.v_proj", &[Keys, Hidden]),
    same("blk.{i}.attn_output", "transformer.h.{i}.attn.attention.out_proj", &[Hidden, Queries]),
    same("blk.{i}.ffn_norm", "transformer.h.{i}.ln_2", &[Hidden]),
    same("blk.{i}.ffn_gate", "transformer.h.{i}.mlp.c_fc_0", &[Inner, Hidden]),
    same("blk.{i}.ffn_up", "transformer.h.{i}.mlp.c_fc_1", &[Inner, Hidden]),
    same("blk.{i}.ffn_down", "transformer.h.{i}.mlp.c_proj", &[Hidden, Inner]),
];

const EXAONE4_MLX: MlxClass = MlxClass {
    // Windows are told by a pattern that transformers need not have.
    implied: &[SILU, ("sliding_window", Absent), ("sliding_window_pattern", Absent)],
    stated_fields: &[&[
        "rope_theta",
        "rope_scaling",
        "head_dim",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
        "sliding_window",
        "sliding_window_pattern",
    ]],
    ..MlxClass::PLAIN
};

pub(super) const SEED_OSS: ModelClass = ModelClass {
    gguf: "seed_oss",
    classes: &["SeedOssForCausalLM"],
    model_type: "seed_oss",
    defaults: &[
        ("attention_bias", Bool(true)),
        ("max_position_embeddings", Int(524_288)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu")), ("mlp_bias", Bool(false))],
    biases: &[
        ("attention_bias", &["blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v"]),
        ("attention_out_bias", &["blk.{i}.attn_output"]),
    ],
    tensors: &[ENDS, POST_NORMS, QUERIES, VALUES, MLP],
    settings: &[],
    traits: Traits::PLAIN,
    mlx: Some(&SEED_OSS_MLX),
    ..EXAONE4
};

const SEED_OSS_MLX: MlxClass = MlxClass {
    bias_fields: &["attention_bias", "attention_out_bias", "mlp_bias"],
    stated_fields: &[&["rope_theta", "head_dim", "num_key_value_heads"]],
    ..LIKE_LLAMA
};

pub(super) const ERNIE4_5: ModelClass = ModelClass {
    gguf: "ernie4_5",
    classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
    model_type: "ernie4_5",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(2)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(500_000.0)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[("hidden_act", Text("silu")), ("use_bias", Bool(false))],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, MLP],
    settings: &[],
    traits: Traits::PLAIN,
    tokenizer: &TokenizerRules { after: &[KeyRule::SpacePrefix], ..TokenizerRules::PLAIN },
    mlx: Some(&ERNIE4_5_MLX),
    ..EXAONE4
};

/// The language model of PaddleOCR-VL, whose heads rotate halves, by three axes of an image. Of a text
/// it is Llama.
pub(super) const PADDLE_OCR: ModelClass = ModelClass {
    gguf: "paddleocr",
    classes: &["LlamaForCausalLM", "PaddleOCRVLForConditionalGeneration"],
    model_type: "llama",
    settings: &[&[setting(Kind::TextSections, "rope.dimension_sections", &[])]],
    mlx: None,
    ..ERNIE4_5
};

const ERNIE4_5_MLX: MlxClass = MlxClass {
    implied: &[SILU, ("use_bias", Bool(false)), NO_SCALING],
    stated_fields: &[&[
        "rope_theta",
        "head_dim",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
        "use_bias",
    ]],
    ..MlxClass::PLAIN
};

/// Layers of the only model in which llama.cpp has windows.
const WINDOW_LAYERS: usize = 64;

/// Fails if a model of another number of layers has windows.
fn windows_by_layers(model: &Model<'_>) -> Result<Option<String>> {
    if model.dims.layers == WINDOW_LAYERS {
        return Ok(None);
    }
    if model.fields.0.contains_key(WINDOW) {
        let what = format!("{} has one in {WINDOW_LAYERS} layers", model.owner());
        return Err(wrong(WINDOW, what));
    }
    let texts = (model.stated, &model.fields);
    ignored_window(LostWindows::Everywhere, model.class, texts, &model.owner())
}
