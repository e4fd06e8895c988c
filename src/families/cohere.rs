//! Cohere's Command R, and Nemotron.
//!
//! Source: `conversion/command_r.py` and `nemotron.py` of llama.cpp; defaults of transformers
//! 4.57.6.

use serde_json::Value;

use super::dense_first::{DENSE, counted, named};
use super::{ATTENTION_BIASES, ENDS, MLP, NORMS, QUERIES, SPARSE_MLP, UNGATED_MLP, VALUES};
use crate::Result;
use crate::families::engine::fields::Fields;
use crate::families::engine::rows::*;
use crate::families::engine::settings::GATING_FUNCTIONS;
use crate::remember::EncodedAs;

/// The only norm of a layer: attention and the feed-forward layer stand side by side.
const ONE_NORM: &[TensorRule] = &[NORMS[0]];

/// Norms of each head of queries and of keys.
const ALL_HEAD_NORMS: &[TensorRule] = &[
    only(
        Need::If("use_qk_norm"),
        "blk.{i}.attn_q_norm",
        "model.layers.{i}.self_attn.q_norm",
        &[Heads, Head],
    ),
    only(
        Need::If("use_qk_norm"),
        "blk.{i}.attn_k_norm",
        "model.layers.{i}.self_attn.k_norm",
        &[Field("num_key_value_heads"), Head],
    ),
];

pub(super) const COHERE: ModelClass = ModelClass {
    gguf: "command-r",
    classes: &["CohereForCausalLM"],
    model_type: "cohere",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("layer_norm_eps", Float(1e-5)),
        ("logit_scale", Float(0.0625)),
        ("rope_theta", Float(10_000.0)),
        ("use_qk_norm", Bool(false)),
    ],
    implied: &[("hidden_act", Text("silu")), ("attention_bias", Bool(false))],
    // The longest text that the model was trained on is longer than its positions.
    own_fields: &[("model_max_length", "max_position_embeddings")],
    tensors: &[ENDS, ONE_NORM, QUERIES, VALUES, ALL_HEAD_NORMS, MLP],
    settings: &[&[
        count("context_length", &["model_max_length", "max_position_embeddings"]),
        number("logit_scale", &["logit_scale"]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
    ]],
    traits: Traits {
        ties_output: true,
        rope: RopeTraits { has_two_bases: true, ..RopeTraits::PLAIN },
        ..Traits::PLAIN
    },
    mlx: Some(&COHERE_MLX),
    ..ModelClass::PLAIN
};

const COHERE_MLX: MlxClass = MlxClass {
    // Norms of heads are matrices.
    modes: &[
        ("blk.{i}.attn_q_norm", EncodedAs::Nothing),
        ("blk.{i}.attn_k_norm", EncodedAs::Nothing),
    ],
    implied: &[SILU, NO_BIAS, NO_SCALING],
    stated_fields: &[&["rope_theta", "num_key_value_heads"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Tied,
    ..MlxClass::PLAIN
};

pub(super) const COHERE2: ModelClass = ModelClass {
    gguf: "cohere2",
    classes: &["Cohere2ForCausalLM"],
    model_type: "cohere2",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("layer_norm_eps", Float(1e-5)),
        ("logit_scale", Float(0.0625)),
        ("rope_theta", Float(10_000.0)),
        ("sliding_window", Int(4096)),
    ],
    own_fields: &[],
    tensors: &[ENDS, ONE_NORM, QUERIES, VALUES, MLP],
    settings: &[&[
        number("logit_scale", &["logit_scale"]),
        count("attention.sliding_window", &["sliding_window"]),
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Rotating, "rope.dimension_count", &["rotary_pct"]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
    ]],
    traits: Traits {
        ties_output: true,
        full_attention_every: Some(4),
        rope: RopeTraits::partial(1.0),
        // transformers turns whole heads, whatever the field says.
        also_implied: &[("rotary_pct", Float(1.0))],
        ..Traits::PLAIN
    },
    mlx: Some(&COHERE2_MLX),
    ..COHERE
};

const COHERE2_MLX: MlxClass = MlxClass {
    modes: &[],
    stated_fields: &[&["rope_theta", "num_key_value_heads", "head_dim", "sliding_window"]],
    implied: &[SILU, NO_BIAS, NO_SCALING, ("partial_rotary_factor", Float(1.0))],
    counted_kind: Some(("sliding_window_pattern", "sliding_attention")),
    ..COHERE_MLX
};

/// Cohere with experts, one of which every token sees, behind dense layers.
///
/// Source: `Cohere2MoeModel` in the same file; defaults of transformers 5.24.
pub(super) const COHERE2_MOE: ModelClass = ModelClass {
    gguf: "cohere2moe",
    classes: &["Cohere2MoeForCausalLM"],
    model_type: "cohere2_moe",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("head_dim", Int(128)),
        ("layer_norm_eps", Float(1e-5)),
        ("logit_scale", Float(0.0625)),
        ("rope_theta", Float(10_000.0)),
        ("sliding_window", Int(4096)),
        ("num_experts", Int(8)),
        ("num_experts_per_tok", Int(2)),
        ("norm_topk_prob", Bool(true)),
        (CHOICE, Text("softmax")),
        ("tie_word_embeddings", Bool(true)),
        (DENSE, Int(0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("rms_norm_eps", Absent),
        ("shared_expert_combination_strategy", Text("average")),
    ],
    own_fields: &[("num_local_experts", "num_experts")],
    tensors: &[ENDS, ONE_NORM, QUERIES, VALUES, DENSE_MLP, EXPERTS],
    settings: &[&[
        number("logit_scale", &["logit_scale"]),
        setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
        setting(Kind::Layers("sliding_attention"), "attention.sliding_window_pattern", &[]),
        count("vocab_size", &["vocab_size"]),
        count("feed_forward_length", &[DENSE_WIDTH]),
        count("expert_feed_forward_length", &["intermediate_size"]),
        count("leading_dense_block_count", &[DENSE]),
        setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
        count("expert_shared_count", &[SHARED_COUNT]),
        setting(Kind::Own(&SHARED_WIDTH), "expert_shared_feed_forward_length", &[]),
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
        setting(Kind::Own(&CHOICE_SETTING), "expert_gating_func", &[CHOICE]),
    ]],
    traits: Traits {
        layer_kinds: Some(("sliding_attention", 4)),
        prediction: Prediction::LeftOut,
        completes: &[counted, widths],
        restores: &[named],
        ..Traits::PLAIN
    },
    mlx: None,
    ..COHERE
};

const SHARED_COUNT: &str = "num_shared_experts";
const DENSE_WIDTH: &str = "prefix_dense_intermediate_size";
const SHARED: Dim = Product(&[Inner, Field(SHARED_COUNT)]);

const DENSE_MLP: &[TensorRule] = &[
    only(Need::Dense, MLP[0].gguf, MLP[0].hf, &[Field(DENSE_WIDTH), Hidden]),
    only(Need::Dense, MLP[1].gguf, MLP[1].hf, &[Field(DENSE_WIDTH), Hidden]),
    only(Need::Dense, MLP[2].gguf, MLP[2].hf, &[Hidden, Field(DENSE_WIDTH)]),
];

/// Experts, which have the width that other classes have for the feed-forward layer.
const EXPERTS: &[TensorRule] = &[
    SPARSE_MLP[0],
    TensorRule { shape: &[Inner, Hidden], ..SPARSE_MLP[1] },
    TensorRule { shape: &[Inner, Hidden], ..SPARSE_MLP[2] },
    TensorRule { shape: &[Hidden, Inner], ..SPARSE_MLP[3] },
    TensorRule { need: Need::SparseIf(SHARED_COUNT), shape: &[SHARED, Hidden], ..SPARSE_MLP[4] },
    TensorRule { need: Need::SparseIf(SHARED_COUNT), shape: &[SHARED, Hidden], ..SPARSE_MLP[5] },
    TensorRule { need: Need::SparseIf(SHARED_COUNT), shape: &[Hidden, SHARED], ..SPARSE_MLP[6] },
];

/// Dense layers are as wide as experts unless the config says it; without shared experts GGUF has no count.
fn widths(fields: &mut Fields) -> Result<()> {
    let width = fields.need(&["intermediate_size"])?;
    fields.0.entry(DENSE_WIDTH).or_insert(width.into());
    if fields.count(&[SHARED_COUNT])? == Some(0) {
        fields.0.remove(SHARED_COUNT);
    }
    Ok(())
}

/// UINT32: the width of all shared experts.
const SHARED_WIDTH: OwnSetting = own(
    |setting, model| match model.fields.count(&[SHARED_COUNT])? {
        None => Ok(None),
        Some(_) => setting.count(model.dims.need_size(SHARED)?).map(Some),
    },
    |stated, config| {
        let size = |field: &str| config.fields.get(field).and_then(Value::as_u64);
        let width = size(SHARED_COUNT).zip(size("intermediate_size"));
        let is_same = width.is_some_and(|(n, width)| stated.count().ok() == n.checked_mul(width));
        config.require_fixed(stated.key, is_same, &"the width of all shared experts")?;
        Ok(None)
    },
);

/// Field of the function that turns scores of experts into weights; the key is written for all classes.
const CHOICE: &str = "expert_selection_fn";
const CHOICE_SETTING: OwnSetting = own(
    |_, _| Ok(None),
    |stated, _| {
        let number = stated.count()?;
        let known = GATING_FUNCTIONS
            .iter()
            .find(|(_, known)| u64::from(*known) == number);
        known
            .map(|(name, _)| Some((*name).into()))
            .ok_or_else(|| stated.other_type())
    },
);

pub(super) const NEMOTRON: ModelClass = ModelClass {
    gguf: "nemotron",
    classes: &["NemotronForCausalLM"],
    model_type: "nemotron",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("relu2"))],
    own_fields: &[("rms_norm_eps", "norm_eps")],
    biases: &[
        ("attention_bias", ATTENTION_BIASES),
        ("mlp_bias", &["blk.{i}.ffn_up", "blk.{i}.ffn_down"]),
        ("", &["blk.{i}.attn_norm", "blk.{i}.ffn_norm", "output_norm"]),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, UNGATED_MLP],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        number("attention.layer_norm_epsilon", &["norm_eps"]),
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
        setting(Kind::LinearOrNone, "rope.scaling.type", &[]),
    ]],
    traits: Traits {
        norms_plus_one: true,
        needs_output: true,
        rope: RopeTraits::partial(0.5),
        ..Traits::PLAIN
    },
    tokenizer: &NEMOTRON_TOKENIZER,
    mlx: Some(&NEMOTRON_MLX),
    ..COHERE
};

const NEMOTRON_MLX: MlxClass = MlxClass {
    implied: &[("hidden_act", Text("relu2"))],
    scalings: &["linear"],
    stated_fields: &[&["hidden_act"], &["norm_eps", "num_key_value_heads"]],
    ..LIKE_LLAMA
};

const NEMOTRON_TOKENIZER: TokenizerRules = TokenizerRules {
    after: &[KeyRule::Id("padding_token_id", 0), KeyRule::Id("unknown_token_id", 1)],
    ..TokenizerRules::PLAIN
};
