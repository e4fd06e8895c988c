//! Granite, dense and with experts.
//!
//! Source: `conversion/granite.py` of llama.cpp; defaults of transformers 4.57.6.

use super::llama::{LLAMA_TOKENIZER, MIXTRAL_STACKS, ROTATED};
use super::{ATTENTION_BIASES, ENDS, MLP, MLP_BIASES, NORMS, VALUES};
use crate::Result;
use crate::families::engine::fields::{Fields, wrong_key};
use crate::families::engine::rows::*;

/// One of the two projections of all experts that a matrix of each expert has.
const fn half(half: usize, gguf: &'static str) -> TensorRule {
    const FUSED: &[Dim] = &[Experts, TwoInner, Hidden];
    TensorRule {
        transform: Transform::Parts(Parts::one(Turn::Equal(2), half)),
        gguf_shape: Some(&[Experts, Inner, Hidden]),
        ..same(gguf, "model.layers.{i}.block_sparse_moe.input_linear", FUSED)
    }
}

pub(super) const EXPERTS: &[TensorRule] = &[
    same(
        "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.block_sparse_moe.router.layer",
        &[Experts, Hidden],
    ),
    half(0, "blk.{i}.ffn_gate_exps"),
    half(1, "blk.{i}.ffn_up_exps"),
    same(
        "blk.{i}.ffn_down_exps",
        "model.layers.{i}.block_sparse_moe.output_linear",
        &[Experts, Hidden, Inner],
    ),
];

const SHARED: Dim = Field(SHARED_WIDTH);
pub(super) const SHARED_WIDTH: &str = "shared_intermediate_size";

/// One of the two projections of the feed-forward layer that all tokens go through.
pub(super) const fn shared_half(need: Need, half: usize, gguf: &'static str) -> TensorRule {
    TensorRule {
        transform: Transform::Parts(Parts::one(Turn::Equal(2), half)),
        gguf_shape: Some(&[SHARED, Hidden]),
        ..only(
            need,
            gguf,
            "model.layers.{i}.shared_mlp.input_linear",
            &[Sum(&[SHARED, SHARED]), Hidden],
        )
    }
}

/// That layer beside experts.
pub(super) const SHARED_EXPERTS: &[TensorRule] = &[
    shared_half(HAS_SHARED, 0, "blk.{i}.ffn_gate_shexp"),
    shared_half(HAS_SHARED, 1, "blk.{i}.ffn_up_shexp"),
    only(
        HAS_SHARED,
        "blk.{i}.ffn_down_shexp",
        "model.layers.{i}.shared_mlp.output_linear",
        &[Hidden, SHARED],
    ),
];

const HAS_SHARED: Need = Need::Above0(SHARED_WIDTH);

pub(super) const SETTINGS: &[Setting] = &[
    count("vocab_size", &["vocab_size"]),
    setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
    number("attention.scale", &["attention_multiplier"]),
    number("embedding_scale", &["embedding_multiplier"]),
    number("residual_scale", &["residual_multiplier"]),
    number("logit_scale", &["logits_scaling"]),
];

/// Fields that mlx-lm needs of all classes of Granite.
pub(super) const GRANITE_FIELDS: &[&str] = &[
    "rope_theta",
    "rms_norm_eps",
    "logits_scaling",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "max_position_embeddings",
    "num_key_value_heads",
    "attention_bias",
];

pub(super) const GRANITE: ModelClass = ModelClass {
    gguf: "granite",
    classes: &["GraniteForCausalLM"],
    model_type: "granite",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("attention_multiplier", Float(1.0)),
        ("embedding_multiplier", Float(1.0)),
        ("residual_multiplier", Float(1.0)),
        ("logits_scaling", Float(1.0)),
    ],
    implied: &[("hidden_act", Text("silu"))],
    biases: &[("attention_bias", ATTENTION_BIASES), ("mlp_bias", MLP_BIASES)],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, MLP],
    settings: &[SETTINGS, TURNED],
    traits: Traits {
        has_pre_norms: true,
        head_dim: HeadDim::Derived,
        rope: RopeTraits::LLAMA3,
        // Of models that hear.
        left_out: &["encoder."],
        ..Traits::PLAIN
    },
    tokenizer: &LLAMA_TOKENIZER,
    mlx: Some(&GRANITE_MLX),
    ..ModelClass::PLAIN
};

const GRANITE_MLX: MlxClass = MlxClass {
    modes: &[
        ("blk.{i}.attn_output", EIGHT_BITS),
        ("blk.{i}.ffn_down", EIGHT_BITS),
        ("output", EIGHT_BITS),
    ],
    stated_fields: &[GRANITE_FIELDS, &["mlp_bias"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    ..LIKE_LLAMA
};

/// Granite that hears: its language model alone.
pub(super) const GRANITE_SPEECH: ModelClass = ModelClass {
    classes: &[
        "GraniteSpeechForConditionalGeneration",
        "GraniteSpeechPlusForConditionalGeneration",
    ],
    traits: Traits { sign: Sign::Never, ..GRANITE.traits },
    mlx: None,
    ..GRANITE
};

pub(super) const GRANITE_MOE: ModelClass = ModelClass {
    gguf: "granitemoe",
    classes: &["GraniteMoeForCausalLM"],
    model_type: "granitemoe",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("num_local_experts", Int(8)),
        ("num_experts_per_tok", Int(2)),
        ("attention_multiplier", Float(1.0)),
        ("embedding_multiplier", Float(1.0)),
        ("residual_multiplier", Float(1.0)),
        ("logits_scaling", Float(1.0)),
    ],
    biases: &[("attention_bias", ATTENTION_BIASES)],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, EXPERTS],
    mlx: Some(&GRANITE_MOE_MLX),
    ..GRANITE
};

/// Granite with experts and one that every token sees.
pub(super) const GRANITE_MOE_SHARED: ModelClass = ModelClass {
    classes: &["GraniteMoeSharedForCausalLM"],
    model_type: "granitemoeshared",
    tensors: &[ENDS, NORMS, ROTATED, VALUES, EXPERTS, SHARED_EXPERTS],
    settings: &[SETTINGS, TURNED, &[count("expert_shared_feed_forward_length", &[SHARED_WIDTH])]],
    traits: Traits {
        completes: &[some_shared],
        sign: Sign::Has("expert_shared_feed_forward_length"),
        ..GRANITE.traits
    },
    mlx: None,
    ..GRANITE_MOE
};

/// A width of 0 is none, and GGUF does not have it.
pub(super) fn some_shared(fields: &mut Fields) -> Result<()> {
    if fields.count(&[SHARED_WIDTH])? == Some(0) {
        fields.0.remove(SHARED_WIDTH);
    }
    Ok(())
}

const GRANITE_MOE_MLX: MlxClass = MlxClass {
    renamed: MIXTRAL_STACKS,
    modes: &[
        ("blk.{i}.ffn_gate_inp", EIGHT_BITS),
        ("blk.{i}.attn_output", EIGHT_BITS),
        ("blk.{i}.ffn_down_exps", EIGHT_BITS),
        ("output", EIGHT_BITS),
    ],
    bias_fields: &["attention_bias"],
    stated_fields: &[GRANITE_FIELDS, &["num_local_experts", "num_experts_per_tok"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    ..LIKE_LLAMA
};

const TURNED: &[Setting] = &[setting(Kind::Own(&FINETUNED), "rope.scaling.finetuned", &[])];

/// No key: llama.cpp turns no heads of Granite where it is false.
const FINETUNED: OwnSetting = own(
    |_, _| Ok(None),
    |stated, config| {
        let value = stated.value;
        let is_false = value.as_bool() == Some(false) || value.as_unsigned() == Some(0);
        match is_false {
            false => Ok(None),
            true => {
                let what = format!("it is 0, which {} does not have", config.class.classes[0]);
                Err(wrong_key(stated.key, what))
            }
        }
    },
);
