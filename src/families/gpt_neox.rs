//! GPT-NeoX, such as Pythia.
//!
//! Source: `conversion/gptneox.py` of llama.cpp; defaults of transformers 4.57.6.

use crate::families::engine::rows::*;

const ENDS: &[TensorRule] = &[
    same("token_embd", "gpt_neox.embed_in", &[Vocab, Hidden]),
    same("output_norm", "gpt_neox.final_layer_norm", &[Hidden]),
    same("output", "embed_out", &[Vocab, Hidden]),
];

/// Each head has its queries, keys and values side by side.
pub(super) const QUERIES_KEYS_VALUES: Parts = Parts::all(Turn::Rows(&[Head, Head, Head]));

const LAYER: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "gpt_neox.layers.{i}.input_layernorm", &[Hidden]),
    same("blk.{i}.ffn_norm", "gpt_neox.layers.{i}.post_attention_layernorm", &[Hidden]),
    TensorRule {
        transform: Transform::Parts(QUERIES_KEYS_VALUES),
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

/// Names of GPT-NeoX, whose parts are all called otherwise.
const GPT_NEOX_NAMES: &[(&str, &str)] = &[
    ("token_embd", "model.embed_in"),
    ("output_norm", "model.final_layer_norm"),
    ("output", "model.embed_out"),
    ("blk.{i}.attn_norm", "model.h.{i}.input_layernorm"),
    ("blk.{i}.ffn_norm", "model.h.{i}.post_attention_layernorm"),
    ("blk.{i}.attn_qkv", "model.h.{i}.attention.query_key_value"),
    ("blk.{i}.attn_output", "model.h.{i}.attention.dense"),
    ("blk.{i}.ffn_up", "model.h.{i}.mlp.dense_h_to_4h"),
    ("blk.{i}.ffn_down", "model.h.{i}.mlp.dense_4h_to_h"),
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
    settings: &[&[
        setting(Kind::Rotating, "rope.dimension_count", &["rotary_pct"]),
        setting(Kind::Flag, "use_parallel_residual", &["use_parallel_residual"]),
        // Heads of keys and values are those of queries.
        setting(Kind::Omitted, "attention.head_count_kv", &[]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits { partial: Some(0.25), is_fixed: true, ..RopeTraits::PLAIN },
        needs_output: true,
        ..Traits::PLAIN
    },
    mlx: Some(&GPT_NEOX_MLX),
    ..ModelClass::PLAIN
};

const GPT_NEOX_MLX: MlxClass = MlxClass {
    renamed: GPT_NEOX_NAMES,
    implied: &[("attention_bias", Bool(true)), NO_SCALING],
    activation: Some(Activation {
        field: "hidden_act",
        computed: &["gelu_fast", "gelu_new", "gelu_pytorch_tanh"],
        usual: "gelu",
    }),
    stated_fields: &[&[
        "max_position_embeddings",
        "layer_norm_eps",
        "rotary_emb_base",
        "rotary_pct",
    ]],
    equal_sizes: &[(Inner, Sum(&[Hidden, Hidden, Hidden, Hidden]))],
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};
