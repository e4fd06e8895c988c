//! GPT-NeoX, such as Pythia.
//!
//! Source: `conversion/gptneox.py` of llama.cpp; defaults of transformers 4.57.6.

use crate::families::engine::dims::Dim::{Hidden, Inner, Sum, Vocab};
use crate::families::engine::table::Default::{Bool, Float, Int, Text};
use crate::families::engine::table::{
    HeadDim, Kind, ModelClass, TensorRule, Traits, Transform, same, setting,
};

const ENDS: &[TensorRule] = &[
    same("token_embd", "gpt_neox.embed_in", &[Vocab, Hidden]),
    same("output_norm", "gpt_neox.final_layer_norm", &[Hidden]),
    same("output", "embed_out", &[Vocab, Hidden]),
];

const LAYER: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "gpt_neox.layers.{i}.input_layernorm", &[Hidden]),
    same("blk.{i}.ffn_norm", "gpt_neox.layers.{i}.post_attention_layernorm", &[Hidden]),
    TensorRule {
        transform: Transform::FusedHeads,
        ..same(
            "blk.{i}.attn_qkv",
            "gpt_neox.layers.{i}.attention.query_key_value",
            &[Sum(&[Hidden, Hidden, Hidden]), Hidden],
        )
    },
    same("blk.{i}.attn_output", "gpt_neox.layers.{i}.attention.dense", &[Hidden, Hidden]),
    same("blk.{i}.ffn_up", "gpt_neox.layers.{i}.mlp.dense_h_to_4h", &[Inner, Hidden]),
    same("blk.{i}.ffn_down", "gpt_neox.layers.{i}.mlp.dense_4h_to_h", &[Hidden, Inner]),
];

pub(super) const GPT_NEOX: ModelClass = ModelClass {
    gguf: "gptneox",
    classes: &["GPTNeoXForCausalLM"],
    model_type: "gpt_neox",
    defaults: &[
        ("attention_bias", Bool(true)),
        ("max_position_embeddings", Int(2048)),
        ("layer_norm_eps", Float(1e-5)),
        ("rotary_pct", Float(0.25)),
        ("rotary_emb_base", Int(10_000)),
        ("use_parallel_residual", Bool(true)),
        ("tie_word_embeddings", Bool(false)),
    ],
    implied: &[("hidden_act", Text("gelu"))],
    own_fields: &[("partial_rotary_factor", "rotary_pct"), ("rope_theta", "rotary_emb_base")],
    equal_fields: &[],
    biases: &[
        ("attention_bias", &["blk.{i}.attn_qkv", "blk.{i}.attn_output"]),
        (
            "",
            &[
                "blk.{i}.attn_norm",
                "blk.{i}.ffn_norm",
                "output_norm",
                "blk.{i}.ffn_up",
                "blk.{i}.ffn_down",
            ],
        ),
    ],
    tensors: &[ENDS, LAYER],
    other_tensors: &[],
    settings: &[&[
        setting(Kind::Rotating, "rope.dimension_count", &["rotary_pct"]),
        setting(Kind::Flag, "use_parallel_residual", &["use_parallel_residual"]),
        // Heads of keys and values are those of queries.
        setting(Kind::Omitted, "attention.head_count_kv", &[]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        has_fixed_rope: true,
        needs_output: true,
        partial_rotary: Some(0.25),
        ..Traits::PLAIN
    },
};
