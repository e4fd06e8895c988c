//! LFM 2, dense and with experts: short convolutions in most layers, attention in some.
//!
//! Source: `conversion/lfm2.py` of llama.cpp; defaults of transformers 4.57.6, of LFM 2 with
//! experts those of 5.23.

use super::CAUSAL;
use crate::Result;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::pooling::POOLING;
use crate::families::engine::rows::*;

const ENDS: &[TensorRule] = &[
    same("token_embd", "model.embed_tokens", &[Vocab, Hidden]),
    same("token_embd_norm", "model.embedding_norm", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
];

const NORMS: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "model.layers.{i}.operator_norm", &[Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.ffn_norm", &[Hidden]),
];

pub(super) const INNER: &[TensorRule] = &[
    same("blk.{i}.ffn_gate", "model.layers.{i}.feed_forward.w1", &[Inner, Hidden]),
    same("blk.{i}.ffn_down", "model.layers.{i}.feed_forward.w2", &[Hidden, Inner]),
    same("blk.{i}.ffn_up", "model.layers.{i}.feed_forward.w3", &[Inner, Hidden]),
];

const DENSE_INNER: &[TensorRule] = &[
    in_layers(Need::Dense, INNER[0]),
    in_layers(Need::Dense, INNER[1]),
    in_layers(Need::Dense, INNER[2]),
];

const EXPERTS: &[TensorRule] = &[
    only(
        Need::Sparse,
        "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.feed_forward.gate",
        &[Experts, Hidden],
    ),
    TensorRule {
        keeps_f32: true,
        ..in_layers(
            Need::Sparse,
            parameter(
                "blk.{i}.exp_probs_b.bias",
                "model.layers.{i}.feed_forward.expert_bias",
                (Transform::None, &[Experts], &[Experts]),
            ),
        )
    },
    in_layers(
        Need::Sparse,
        experts(
            "blk.{i}.ffn_gate_exps",
            "model.layers.{i}.feed_forward.experts.{e}.w1",
            &[ExpertInner, Hidden],
        ),
    ),
    in_layers(
        Need::Sparse,
        experts(
            "blk.{i}.ffn_down_exps",
            "model.layers.{i}.feed_forward.experts.{e}.w2",
            &[Hidden, ExpertInner],
        ),
    ),
    in_layers(
        Need::Sparse,
        experts(
            "blk.{i}.ffn_up_exps",
            "model.layers.{i}.feed_forward.experts.{e}.w3",
            &[ExpertInner, Hidden],
        ),
    ),
];

const CONVOLUTION: Need = Need::Kind("conv");
const ATTENDING: Need = Need::Kind("full_attention");
const FILTER: Dim = Field("conv_L_cache");

const CONVOLUTIONS: &[TensorRule] = &[
    TensorRule {
        transform: Transform::RESHAPED,
        gguf_shape: Some(&[Hidden, FILTER]),
        ..only(
            CONVOLUTION,
            "blk.{i}.shortconv.conv",
            "model.layers.{i}.conv.conv",
            &[Hidden, One, FILTER],
        )
    },
    only(
        CONVOLUTION,
        "blk.{i}.shortconv.in_proj",
        "model.layers.{i}.conv.in_proj",
        &[Sum(&[Hidden, Hidden, Hidden]), Hidden],
    ),
    only(
        CONVOLUTION,
        "blk.{i}.shortconv.out_proj",
        "model.layers.{i}.conv.out_proj",
        &[Hidden, Hidden],
    ),
];

const ATTENTION: &[TensorRule] = &[
    only(ATTENDING, "blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj", &[Queries, Hidden]),
    only(ATTENDING, "blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj", &[Keys, Hidden]),
    only(ATTENDING, "blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj", &[Keys, Hidden]),
    only(
        ATTENDING,
        "blk.{i}.attn_output",
        "model.layers.{i}.self_attn.out_proj",
        &[Hidden, Queries],
    ),
    only(ATTENDING, "blk.{i}.attn_q_norm", "model.layers.{i}.self_attn.q_layernorm", &[Head]),
    only(ATTENDING, "blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.k_layernorm", &[Head]),
];

const SETTINGS: &[Setting] = &[
    setting(
        Kind::KvHeadsBut("conv", "full_attention"),
        "attention.head_count_kv",
        &["num_key_value_heads"],
    ),
    count("vocab_size", &["vocab_size"]),
    count("shortconv.l_cache", &["conv_L_cache"]),
];

const EXPERT_SETTINGS: &[Setting] = &[
    count("expert_feed_forward_length", &["moe_intermediate_size"]),
    count("leading_dense_block_count", &["num_dense_layers"]),
    setting(Kind::Fixed(2), "expert_gating_func", &[]),
];

/// Names of LFM 2 with experts: projections are called by what they do, and experts are stacks.
const LFM2_MOE_NAMES: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate", "model.layers.{i}.feed_forward.gate_proj"),
    ("blk.{i}.ffn_up", "model.layers.{i}.feed_forward.up_proj"),
    ("blk.{i}.ffn_down", "model.layers.{i}.feed_forward.down_proj"),
    ("blk.{i}.ffn_gate_exps", "model.layers.{i}.feed_forward.switch_mlp.gate_proj"),
    ("blk.{i}.ffn_up_exps", "model.layers.{i}.feed_forward.switch_mlp.up_proj"),
    ("blk.{i}.ffn_down_exps", "model.layers.{i}.feed_forward.switch_mlp.down_proj"),
];

pub(super) const LFM2: ModelClass = ModelClass {
    gguf: "lfm2",
    classes: &["Lfm2ForCausalLM", "LFM2ForCausalLM"],
    model_type: "lfm2",
    defaults: &[
        ("max_position_embeddings", Int(128_000)),
        ("num_key_value_heads", Int(8)),
        ("norm_eps", Float(1e-5)),
        ("rope_theta", Float(1e6)),
        ("conv_L_cache", Int(3)),
        ("block_multiple_of", Int(256)),
        ("block_ffn_dim_multiplier", Float(1.0)),
        ("block_auto_adjust_ff_dim", Bool(true)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("conv_bias", Bool(false)),
        // The width is already the one that they adjust to.
        ("block_auto_adjust_ff_dim", Bool(false)),
    ],
    own_fields: &[("rms_norm_eps", "norm_eps")],
    tensors: &[ENDS, NORMS, INNER, CONVOLUTIONS, ATTENTION],
    settings: &[SETTINGS],
    traits: Traits { completes: &[adjust_inner], also_implied: &[CAUSAL], ..Traits::PLAIN },
    mlx: Some(&LFM2_MLX),
    ..ModelClass::PLAIN
};

/// LFM 2 that embeds texts.
pub(super) const LFM2_EMBEDDING: ModelClass = ModelClass {
    classes: &["Lfm2Model"],
    tensors: &[&[ENDS[0], ENDS[1]], NORMS, INNER, CONVOLUTIONS, ATTENTION],
    settings: &[SETTINGS, &[count(POOLING, &[POOLING])]],
    traits: Traits { ties_output: true, sign: Sign::Has(POOLING), ..LFM2.traits },
    mlx: None,
    ..LFM2
};

/// As [`LFM2_EMBEDDING`], whose tokens see those behind them.
pub(super) const LFM2_BIDIRECTIONAL: ModelClass = ModelClass {
    classes: &["Lfm2BidirectionalModel", "Lfm2BidirectionalForMaskedLM"],
    settings: &[
        SETTINGS,
        &[count(POOLING, &[POOLING]), setting(Kind::FixedFlag(false), "attention.causal", &[])],
    ],
    traits: Traits {
        also_implied: &[],
        sign: Sign::Key("attention.causal", 0),
        ..LFM2_EMBEDDING.traits
    },
    ..LFM2_EMBEDDING
};

const LFM2_MLX: MlxClass = MlxClass {
    implied: &[("conv_bias", Bool(false)), NO_SCALING],
    stated_fields: &[&[
        "max_position_embeddings",
        "num_key_value_heads",
        "norm_eps",
        "conv_bias",
        "conv_L_cache",
        "block_dim",
        "block_multiple_of",
        "block_ffn_dim_multiplier",
        "block_auto_adjust_ff_dim",
    ]],
    equal_sizes: &[HEADS_FILL_HIDDEN[0], (Field("block_dim"), Hidden)],
    output: OutputLayer::Tied,
    rope: RopeFields::Nested,
    ..MlxClass::PLAIN
};

pub(super) const LFM2_MOE: ModelClass = ModelClass {
    gguf: "lfm2moe",
    classes: &["Lfm2MoeForCausalLM"],
    model_type: "lfm2_moe",
    defaults: &[
        ("max_position_embeddings", Int(128_000)),
        ("num_key_value_heads", Int(8)),
        ("norm_eps", Float(1e-5)),
        ("rope_theta", Float(1e6)),
        ("conv_L_cache", Int(3)),
        ("moe_intermediate_size", Int(1792)),
        ("num_dense_layers", Int(2)),
        ("num_experts", Int(32)),
        ("num_experts_per_tok", Int(4)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("conv_bias", Bool(false)),
        ("norm_topk_prob", Bool(true)),
        ("use_expert_bias", Bool(true)),
        ("routed_scaling_factor", Float(1.0)),
    ],
    own_fields: &[("rms_norm_eps", "norm_eps"), ("num_local_experts", "num_experts")],
    tensors: &[ENDS, NORMS, DENSE_INNER, CONVOLUTIONS, ATTENTION, EXPERTS],
    settings: &[SETTINGS, EXPERT_SETTINGS],
    traits: Traits::PLAIN,
    mlx: Some(&LFM2_MOE_MLX),
    ..LFM2
};

const LFM2_MOE_MLX: MlxClass = MlxClass {
    renamed: LFM2_MOE_NAMES,
    modes: ROUTER_8_BITS,
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    implied: &[("conv_bias", Bool(false)), NO_SCALING],
    stated_fields: &[&[
        "max_position_embeddings",
        "num_key_value_heads",
        "norm_eps",
        "conv_bias",
        "conv_L_cache",
        "moe_intermediate_size",
        "num_dense_layers",
        "num_experts",
        "num_experts_per_tok",
        "norm_topk_prob",
        "use_expert_bias",
    ]],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Tied,
    rope: RopeFields::Nested,
    ..MlxClass::PLAIN
};

/// Sets `intermediate_size` to the width that a feed-forward layer gets: two thirds of it, scaled,
/// and rounded up, unless a flag says that it is the width.
///
/// Source: `Lfm2MLP.__init__` in `models/lfm2/modeling_lfm2.py` of transformers.
fn adjust_inner(fields: &mut Fields) -> Result<()> {
    const FLAG: &str = "block_auto_adjust_ff_dim";
    const MULTIPLE: &str = "block_multiple_of";
    if !fields.flag(FLAG) {
        return Ok(());
    }
    let width = fields.need(&["block_ff_dim", "intermediate_size"])?;
    let scale = fields.number(&["block_ffn_dim_multiplier"])?;
    let multiple = u64::from(fields.need(&[MULTIPLE])?);
    let width = f64::from(width / 3 * 2 + width % 3 * 2 / 3);
    let width = (scale.unwrap_or(1.0) * width) as u64;
    let rounded = width.checked_next_multiple_of(multiple);
    let wrong = || wrong(MULTIPLE, "it cannot be rounded up to");
    let rounded = rounded.filter(|_| multiple > 0).ok_or_else(wrong)?;
    fields
        .0
        .insert("intermediate_size".to_owned(), rounded.into());
    fields.0.insert(FLAG.to_owned(), false.into());
    Ok(())
}
