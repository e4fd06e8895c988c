//! MiniCPM and MiniCPM 3: Llama with factors of the embedding, of what layers add, and of what goes into the
//! output.
//!
//! Source: `MiniCPMModel` in `conversion/minicpm.py` of llama.cpp; defaults of the code beside
//! published models.

use serde_json::{Map, Value};

use super::deepseek::ATTENTION;
use super::llama::ROTATED;
use super::{ENDS, MLP, NORMS, UNGATED_MLP, VALUES};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

pub(super) const MINICPM: ModelClass = ModelClass {
    gguf: "minicpm",
    classes: &["MiniCPMForCausalLM"],
    model_type: "minicpm",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("scale_emb", Int(1)),
        ("scale_depth", Int(1)),
        ("dim_model_base", Int(1)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("num_experts", Int(0)),
    ],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, MLP],
    settings: &[&[
        number("embedding_scale", &["scale_emb"]),
        number("residual_scale", &[RESIDUAL]),
        number("logit_scale", &[LOGITS]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        completes: &[scaled],
        restores: &[unscaled],
        ..Traits::PLAIN
    },
    mlx: Some(&MINICPM_MLX),
    ..ModelClass::PLAIN
};

const MINICPM_MLX: MlxClass = MlxClass {
    stated_fields: &[
        COMMON_FIELDS,
        &["num_key_value_heads", "scale_emb", "scale_depth", "dim_model_base"],
    ],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

/// Keys and values of a latent vector. llama.cpp has the factors of the published model.
///
/// Source: `MiniCPM3Model` in the same file; defaults of transformers 5.24.
pub(super) const MINICPM3: ModelClass = ModelClass {
    gguf: "minicpm3",
    classes: &["MiniCPM3ForCausalLM"],
    model_type: "minicpm3",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("rms_norm_eps", Float(1e-5)),
        ("q_lora_rank", Int(768)),
        ("kv_lora_rank", Int(256)),
        ("qk_nope_head_dim", Int(64)),
        ("qk_rope_head_dim", Int(32)),
        ("scale_emb", Int(12)),
        ("scale_depth", Float(1.4)),
        ("dim_model_base", Int(256)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
        ("scale_emb", Int(12)),
        ("scale_depth", Float(1.4)),
        ("dim_model_base", Int(256)),
    ],
    tensors: &[ENDS, NORMS, LATENT, MLP],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Required, "attention.q_lora_rank", &["q_lora_rank"]),
        setting(Kind::Required, "attention.kv_lora_rank", &["kv_lora_rank"]),
        setting(Kind::Required, "rope.dimension_count", &["qk_rope_head_dim"]),
        setting(Kind::Sum, "attention.key_length", &["qk_nope_head_dim", "qk_rope_head_dim"]),
        setting(Kind::Omitted, "attention.value_length", &[]),
    ]],
    traits: Traits { rope: RopeTraits::FIXED, laws: &[plain_values], ..Traits::PLAIN },
    mlx: Some(&MINICPM3_MLX),
    ..ModelClass::PLAIN
};

const MINICPM3_MLX: MlxClass = MlxClass {
    implied: &[SILU, NO_BIAS, ("mlp_bias", Bool(false))],
    scalings: &["longrope", "su"],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "max_position_embeddings",
            "num_key_value_heads",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "scale_emb",
            "scale_depth",
            "dim_model_base",
        ],
    ],
    laws: &[plain_values, long_alone],
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

/// mlx-lm has no other positions than those of LongRoPE.
fn long_alone(model: &Model<'_>) -> Result<Option<String>> {
    match model.rope.kind.as_str() {
        "default" => Err(wrong(
            "rope_scaling",
            "it is missing, and mlx-lm's minicpm3 needs factors of LongRoPE",
        )),
        _ => Ok(None),
    }
}

const LATENT: &[TensorRule] = &[
    ATTENTION[1],
    ATTENTION[2],
    ATTENTION[3],
    ATTENTION[4],
    ATTENTION[5],
    same(
        "blk.{i}.attn_kv_b",
        "model.layers.{i}.self_attn.kv_b_proj",
        &[Sum(&[Product(&[Heads, Field("qk_nope_head_dim")]), Hidden]), Field("kv_lora_rank")],
    ),
    same("blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj", &[Hidden, Hidden]),
];

/// PLM: keys and values of a latent vector, and a feed-forward layer without a gate.
///
/// Source: `conversion/plm.py` of llama.cpp.
pub(super) const PLM: ModelClass = ModelClass {
    gguf: "plm",
    classes: &["PLMForCausalLM"],
    model_type: "plm",
    defaults: &[
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("relu2")),
        ("attention_bias", Bool(false)),
        ("q_lora_rank", Absent),
    ],
    tensors: &[ENDS, NORMS, PLM_ATTENTION, UNGATED_MLP],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Required, "attention.kv_lora_rank", &["kv_lora_rank"]),
        setting(Kind::Required, "rope.dimension_count", &["qk_rope_head_dim"]),
        setting(Kind::Sum, "attention.key_length", &["qk_nope_head_dim", "qk_rope_head_dim"]),
        setting(Kind::Required, "attention.value_length", &["v_head_dim"]),
    ]],
    traits: Traits { ties_output: true, ..Traits::PLAIN },
    ..ModelClass::PLAIN
};

const PLM_ATTENTION: &[TensorRule] = &[
    ATTENTION[0],
    ATTENTION[4],
    ATTENTION[5],
    same(
        "blk.{i}.attn_kv_b",
        "model.layers.{i}.self_attn.kv_b_proj",
        &[
            Product(&[Heads, Sum(&[Field("qk_nope_head_dim"), Field("v_head_dim")])]),
            Field("kv_lora_rank"),
        ],
    ),
    ATTENTION[8],
];

/// GGUF does not say how long a head of values is.
fn plain_values(model: &Model<'_>) -> Result<Option<String>> {
    model.expect("v_head_dim", &(model.dims.hidden / model.dims.heads).into())
}

/// What GGUF has in place of two fields, under names that no config has.
const RESIDUAL: &str = "residual_scale";
const LOGITS: &str = "logit_scale";
const DEPTH: &str = "scale_depth";
const WIDTH: &str = "dim_model_base";

fn scaled(fields: &mut Fields) -> Result<()> {
    if fields.0.contains_key(RESIDUAL) || fields.0.contains_key(LOGITS) {
        return Ok(());
    }
    let layers = f64::from(fields.need(&["num_hidden_layers"])?);
    let hidden = f64::from(fields.need(&["hidden_size"])?);
    let missing = |name| move || wrong(name, "it is missing");
    let depth = fields.number(&[DEPTH])?.ok_or_else(missing(DEPTH))?;
    let width = fields.number(&[WIDTH])?.ok_or_else(missing(WIDTH))?;
    if width <= 0.0 {
        return Err(wrong(WIDTH, "it is not above 0"));
    }
    let all = [(RESIDUAL, depth / layers.sqrt()), (LOGITS, hidden / width)];
    fields
        .0
        .extend(all.map(|(name, x)| (name.to_owned(), x.into())));
    Ok(())
}

/// Sets the two fields again, of which F32 has seven digits.
fn unscaled(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let mut take = |name: &str| config.remove(name).and_then(|x| x.as_f64());
    let (residual, logits) = (take(RESIDUAL), take(LOGITS));
    let rounded = |x: f64| (x * 1e6).round() / 1e6;
    let depth = residual.map(|x| rounded(x * (dims.layers as f64).sqrt()));
    let width = logits
        .filter(|x| *x > 0.0)
        .map(|x| rounded(dims.hidden as f64 / x));
    let number = |x: f64| match x.fract() == 0.0 && x.abs() < 1e9 {
        true => Value::from(x as i64),
        false => Value::from(x),
    };
    for (name, value) in [(DEPTH, depth), (WIDTH, width)] {
        config.extend(value.map(|x| (name.to_owned(), number(x))));
    }
    Ok(())
}
