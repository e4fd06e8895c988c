//! LFM 2: short convolutions in most layers, attention in some.
//!
//! Source: `conversion/lfm2.py` of llama.cpp; defaults of transformers 4.57.6.

use crate::arch::dims::Dim;
use crate::arch::table::{
    Default, Kind, ModelClass, Need, TensorRule, Traits, Transform, count, only, optional, same,
    setting,
};

const ENDS: &[TensorRule] = &[
    same(
        "token_embd",
        "model.embed_tokens",
        &[Dim::Vocab, Dim::Hidden],
    ),
    same("token_embd_norm", "model.embedding_norm", &[Dim::Hidden]),
    optional("output", "lm_head", &[Dim::Vocab, Dim::Hidden]),
];

const LAYER: &[TensorRule] = &[
    same(
        "blk.{i}.attn_norm",
        "model.layers.{i}.operator_norm",
        &[Dim::Hidden],
    ),
    same(
        "blk.{i}.ffn_norm",
        "model.layers.{i}.ffn_norm",
        &[Dim::Hidden],
    ),
    same(
        "blk.{i}.ffn_gate",
        "model.layers.{i}.feed_forward.w1",
        &[Dim::Inner, Dim::Hidden],
    ),
    same(
        "blk.{i}.ffn_down",
        "model.layers.{i}.feed_forward.w2",
        &[Dim::Hidden, Dim::Inner],
    ),
    same(
        "blk.{i}.ffn_up",
        "model.layers.{i}.feed_forward.w3",
        &[Dim::Inner, Dim::Hidden],
    ),
];

const CONVOLUTION: Need = Need::Kind("conv");
const ATTENDING: Need = Need::Kind("full_attention");
const FILTER: Dim = Dim::Field("conv_L_cache");

const CONVOLUTIONS: &[TensorRule] = &[
    TensorRule {
        transform: Transform::Filters,
        gguf_shape: Some(&[Dim::Hidden, FILTER]),
        ..only(
            CONVOLUTION,
            "blk.{i}.shortconv.conv",
            "model.layers.{i}.conv.conv",
            &[Dim::Hidden, Dim::One, FILTER],
        )
    },
    only(
        CONVOLUTION,
        "blk.{i}.shortconv.in_proj",
        "model.layers.{i}.conv.in_proj",
        &[
            Dim::Sum(&[Dim::Hidden, Dim::Hidden, Dim::Hidden]),
            Dim::Hidden,
        ],
    ),
    only(
        CONVOLUTION,
        "blk.{i}.shortconv.out_proj",
        "model.layers.{i}.conv.out_proj",
        &[Dim::Hidden, Dim::Hidden],
    ),
];

const ATTENTION: &[TensorRule] = &[
    only(
        ATTENDING,
        "blk.{i}.attn_q",
        "model.layers.{i}.self_attn.q_proj",
        &[Dim::Queries, Dim::Hidden],
    ),
    only(
        ATTENDING,
        "blk.{i}.attn_k",
        "model.layers.{i}.self_attn.k_proj",
        &[Dim::Keys, Dim::Hidden],
    ),
    only(
        ATTENDING,
        "blk.{i}.attn_v",
        "model.layers.{i}.self_attn.v_proj",
        &[Dim::Keys, Dim::Hidden],
    ),
    only(
        ATTENDING,
        "blk.{i}.attn_output",
        "model.layers.{i}.self_attn.out_proj",
        &[Dim::Hidden, Dim::Queries],
    ),
    only(
        ATTENDING,
        "blk.{i}.attn_q_norm",
        "model.layers.{i}.self_attn.q_layernorm",
        &[Dim::Head],
    ),
    only(
        ATTENDING,
        "blk.{i}.attn_k_norm",
        "model.layers.{i}.self_attn.k_layernorm",
        &[Dim::Head],
    ),
];

pub(super) const LFM2: ModelClass = ModelClass {
    gguf: "lfm2",
    classes: &["Lfm2ForCausalLM", "LFM2ForCausalLM"],
    model_type: "lfm2",
    defaults: &[
        ("max_position_embeddings", Default::Int(128_000)),
        ("num_key_value_heads", Default::Int(8)),
        ("norm_eps", Default::Float(1e-5)),
        ("rope_theta", Default::Float(1e6)),
        ("conv_L_cache", Default::Int(3)),
        ("block_multiple_of", Default::Int(256)),
        ("block_ffn_dim_multiplier", Default::Float(1.0)),
        ("block_auto_adjust_ff_dim", Default::Bool(true)),
        ("tie_word_embeddings", Default::Bool(true)),
    ],
    implied: &[
        ("conv_bias", Default::Bool(false)),
        // The width is already the one that they adjust to.
        ("block_auto_adjust_ff_dim", Default::Bool(false)),
    ],
    own_fields: &[("rms_norm_eps", "norm_eps")],
    equal_fields: &[],
    biases: &[],
    tensors: &[ENDS, LAYER, CONVOLUTIONS, ATTENTION],
    settings: &[&[
        setting(
            Kind::KvHeadsBut("conv"),
            "attention.head_count_kv",
            &["num_key_value_heads"],
        ),
        count("vocab_size", &["vocab_size"]),
        count("shortconv.l_cache", &["conv_L_cache"]),
    ]],
    traits: Traits {
        adjusts_inner: true,
        ..Traits::PLAIN
    },
};
