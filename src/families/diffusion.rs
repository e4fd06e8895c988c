//! Dream, RND1 and LLaDA, which fill masks: their tokens see those behind them.
//!
//! Source: `conversion/dream.py` and `llada.py`, and `RND1Model` in `conversion/qwen.py` of llama.cpp; defaults of the code
//! beside published models.

use super::llama::SETTINGS;
use super::qwen::{EXPERTS, QWEN2, QWEN3_MOE};
use super::{ENDS, HEAD_NORMS, NORMS, QUERIES, VALUES};
use crate::families::engine::rows::*;

const SEES_ALL: &[Setting] = &[setting(Kind::FixedFlag(false), "attention.causal", &[])];

pub(super) const DREAM: ModelClass = ModelClass {
    gguf: "dream",
    classes: &["DreamModel"],
    model_type: "Dream",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    settings: &[SEES_ALL],
    traits: Traits { reads_causal: false, default_window: None, ..QWEN2.traits },
    mlx: None,
    ..QWEN2
};

/// Qwen 3 with experts that was trained on as such a model.
pub(super) const RND1: ModelClass = ModelClass {
    gguf: "rnd1",
    classes: &["RND1"],
    model_type: "rnd1",
    settings: &[SEES_ALL, QWEN3_MOE.settings[0]],
    traits: Traits::PLAIN,
    mlx: None,
    ..QWEN3_MOE
};

/// Logits are those of the token itself, and not of the one behind it.
const UNSHIFTED: &[Setting] =
    &[SEES_ALL[0], setting(Kind::FixedFlag(false), ".diffusion.shift_logits", &[])];

const INNER: Dim = Field("mlp_hidden_size");

const LLADA_TENSORS: &[TensorRule] = &[
    same("token_embd", "model.transformer.wte", &[Vocab, Hidden]),
    same("output_norm", "model.transformer.ln_f", &[Hidden]),
    optional("output", "model.transformer.ff_out", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "model.transformer.blocks.{i}.attn_norm", &[Hidden]),
    heads("blk.{i}.attn_q", "model.transformer.blocks.{i}.q_proj", &[Queries, Hidden]),
    heads("blk.{i}.attn_k", "model.transformer.blocks.{i}.k_proj", &[Keys, Hidden]),
    same("blk.{i}.attn_v", "model.transformer.blocks.{i}.v_proj", &[Keys, Hidden]),
    same("blk.{i}.attn_output", "model.transformer.blocks.{i}.attn_out", &[Hidden, Queries]),
    same("blk.{i}.ffn_norm", "model.transformer.blocks.{i}.ff_norm", &[Hidden]),
    same("blk.{i}.ffn_gate", "model.transformer.blocks.{i}.ff_proj", &[INNER, Hidden]),
    same("blk.{i}.ffn_up", "model.transformer.blocks.{i}.up_proj", &[INNER, Hidden]),
    same("blk.{i}.ffn_down", "model.transformer.blocks.{i}.ff_out", &[Hidden, INNER]),
];

pub(super) const LLADA: ModelClass = ModelClass {
    gguf: "llada",
    classes: &["LLaDAModelLM"],
    model_type: "llada",
    defaults: &[("rms_norm_eps", Float(1e-5)), ("rope_theta", Float(10_000.0))],
    implied: &[
        ("activation_type", Text("silu")),
        ("alibi", Bool(false)),
        ("attention_layer_norm", Bool(false)),
        ("block_type", Text("llama")),
        ("include_bias", Bool(false)),
        ("include_qkv_bias", Bool(false)),
        ("layer_norm_type", Text("rms")),
        ("rope", Bool(true)),
        ("scale_logits", Bool(false)),
    ],
    own_fields: &[
        ("hidden_size", "d_model"),
        ("num_attention_heads", "n_heads"),
        ("num_key_value_heads", "n_kv_heads"),
        ("num_hidden_layers", "n_layers"),
        ("max_position_embeddings", "max_sequence_length"),
    ],
    equal_fields: &[("embedding_size", "vocab_size")],
    tensors: &[LLADA_TENSORS],
    settings: &[SETTINGS, UNSHIFTED, &[count("feed_forward_length", &["mlp_hidden_size"])]],
    traits: Traits { head_dim: HeadDim::Derived, ..Traits::PLAIN },
    tokenizer: &TokenizerRules {
        after: &[KeyRule::Flag("add_bos_token", true)],
        ..TokenizerRules::PLAIN
    },
    ..ModelClass::PLAIN
};

/// LLaDA with experts in all layers.
pub(super) const LLADA_MOE: ModelClass = ModelClass {
    gguf: "llada-moe",
    classes: &["LLaDAMoEModelLM", "LLaDAMoEModel"],
    model_type: "llada",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("norm_topk_prob", Absent),
        ("qk_layernorm", Bool(true)),
        ("shared_expert_intermediate_size", Absent),
    ],
    own_fields: &[
        ("num_local_experts", "num_experts"),
        ("moe_intermediate_size", "expert_intermediate_size"),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, LLADA_EXPERTS],
    settings: &[UNSHIFTED, &[count("expert_feed_forward_length", &["expert_intermediate_size"])]],
    traits: Traits { needs_output: true, head_dim: HeadDim::Derived, ..Traits::PLAIN },
    ..ModelClass::PLAIN
};

const EXPERT: Dim = Field("expert_intermediate_size");

const LLADA_EXPERTS: &[TensorRule] = &[
    EXPERTS[0],
    TensorRule { shape: &[EXPERT, Hidden], ..EXPERTS[1] },
    TensorRule { shape: &[EXPERT, Hidden], ..EXPERTS[2] },
    TensorRule { shape: &[Hidden, EXPERT], ..EXPERTS[3] },
];
