//! Decoders with experts, and those that may have some.

use super::attention::{
    ATTN_NORM, ATTN_NORM_BIAS, EMBEDDING, FREE_HEADS, FUSED_QKV, HEAD_NORMS, LAYER_NORM,
    LONG_FACTORS, LONGROPE, MAYBE_HEAD_NORMS, MAYBE_OUT_BIAS, MAYBE_OUTPUT, NARROW_OUT, NARROW_QKV,
    OUT, OUT_BIAS, OUTPUT, OUTPUT_NORM_BIAS, POST_ATTENTION_NORM, PREDICTION, QKV, RMS, ROPE_FREQS,
    ROTATING_HEADS, SAME_HEADS, SECTIONS, VALUE_GATE, WINDOW, projections,
};
use super::feed_forward::{
    CHOICE_BIAS, DENSE, FF_EXPERT, FF_SHARE, FF_SHARED, FFN_NORM, FFN_NORM_BIAS, MAYBE_CHOICE_BIAS,
    MAYBE_MLP_BIASES, MLP, POST_FFW_NORM, ROUTER, SHARED_COUNT, UNGATED, expert_stacks,
    fused_expert_stacks, shared_experts,
};
use super::sizes::When::{
    Above0, All, Always, Any, Every, From, Has, MayPredict, Not, Predicting, Somewhere, Window,
};
use super::sizes::{EMBD, EXPERTS, FF, HEAD, HEADS, KEYS, QUERIES, Size, VALUES, VOCAB, When};
use super::{Row, graphs, rows};

const HAS_EXPERTS: When = Above0(EXPERTS);
const HAS_SHARED: When = All(&[HAS_EXPERTS, Above0(FF_SHARED)]);

const EXPERT_WIDTH: (When, &[&str]) = (Always, &["expert_feed_forward_length"]);
const USED_EXPERTS: (When, &[&str]) = (Always, &["expert_count", "expert_used_count"]);
const GATING: (When, &[&str]) = (Always, &["expert_gating_func"]);
const SHARED_EXPERTS: (When, &[&str]) = (Always, &["expert_shared_count"]);

/// Experts as wide as the feed-forward layer, without gates if there are none.
const PLAIN_EXPERTS: &[Row] = rows! {
    "blk.{i}.ffn_gate_exps.weight" [EMBD, FF, EXPERTS] optional;
    "blk.{i}.ffn_down_exps.weight" [FF, EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [EMBD, FF, EXPERTS];
};
/// Experts of a width of their own, without gates if there are none.
const GATELESS_STACKS: &[Row] = rows! {
    "blk.{i}.ffn_gate_exps.weight" [EMBD, FF_EXPERT, EXPERTS] optional;
    "blk.{i}.ffn_down_exps.weight" [FF_EXPERT, EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [EMBD, FF_EXPERT, EXPERTS];
};
const WIDE_STACKS: &[Row] = expert_stacks!(FF);
const STACKS: &[Row] = expert_stacks!(FF_EXPERT);
const SHARE_STACKS: &[Row] = expert_stacks!(FF_SHARE);

const SHARED: &[Row] = shared_experts!(FF_SHARED);
const SHARED_OR_WIDE: &[Row] = shared_experts!(Size::Or(&[FF_SHARED, FF]));
const ONE_SHARED: &[Row] = shared_experts!(FF_EXPERT);
const ALL_SHARED: &[Row] = shared_experts!(Size::Product(&[FF_EXPERT, SHARED_COUNT]));
const ALL_SHARED_SHARE: &[Row] = shared_experts!(Size::Product(&[FF_SHARE, SHARED_COUNT]));
const ALL_SHARED_OWN: &[Row] =
    shared_experts!(Size::Product(&[Size::Or(&[FF_SHARED, FF_EXPERT]), SHARED_COUNT]));

const SHARED_GATE: &[Row] = rows! {
    "blk.{i}.ffn_gate_inp_shexp.weight" [EMBD];
};

/// Norms of all queries and of all keys.
const OLMOE_NORMS: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [EMBD];
    "blk.{i}.attn_k_norm.weight" [EMBD];
};

const MINIMAX_NORMS: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [QUERIES];
    "blk.{i}.attn_k_norm.weight" [KEYS];
};

/// llama.cpp has as many heads of keys as of queries here.
const ALL_HEADS: &[Row] = projections!(unless, QUERIES, QUERIES, QUERIES);

const TURNING: Size = Size::Product(&[HEADS, Size::Rotating]);
const TURNING_KEYS: Size = Size::Product(&[Size::KvHeads, Size::Rotating]);
const OSS_QKV: &[Row] = projections!(unless, TURNING, TURNING_KEYS, TURNING_KEYS);

const OSS: &[Row] = rows! {
    "blk.{i}.attn_output.weight" [TURNING, EMBD];
    "blk.{i}.attn_output.bias" [EMBD];
    "blk.{i}.attn_sinks.weight" [HEADS];
    "blk.{i}.ffn_gate_inp.bias" [EXPERTS];
    "blk.{i}.ffn_gate_exps.bias" [FF_EXPERT, EXPERTS];
    "blk.{i}.ffn_down_exps.bias" [EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.bias" [FF_EXPERT, EXPERTS];
};

/// Heads are as long as what rotates of them.
const BAILING_QKV: &[Row] = projections!(unless, TURNING, TURNING_KEYS, TURNING_KEYS);

const BAILING_OUT: &[Row] = rows! {
    "blk.{i}.attn_output.weight" [TURNING, EMBD];
};

const SHARED_OR_ONE: &[Row] = shared_experts!(Size::Or(&[FF_SHARED, FF_EXPERT]));

const NEEDED_OUTPUT_BIAS: &[Row] = rows! {
    "output.bias" [VOCAB];
};

const BAILING_PREDICTION: &[Row] = rows! {
    "blk.{i}.layer_output_norm.weight" [EMBD];
};

/// In every so many layers.
const EVERY_STEP: Size = Size::Key("interleave_moe_layer_step");

const INPUT: Size = Size::Key("embedding_length_per_layer_input");
const ALL_INPUTS: Size = Size::Product(&[INPUT, Size::Layers]);
const HAS_INPUT: When = Above0(INPUT);

/// Inputs of each layer.
const GEMMA4_INPUTS: &[Row] = rows! {
    "per_layer_token_embd.weight" [ALL_INPUTS, VOCAB];
    "per_layer_model_proj.weight" [EMBD, ALL_INPUTS];
    "per_layer_proj_norm.weight" [INPUT];
    "blk.{i}.inp_gate.weight" [EMBD, INPUT];
    "blk.{i}.proj.weight" [INPUT, EMBD];
    "blk.{i}.post_norm.weight" [EMBD];
};

const FULL_HEAD: Size =
    Size::Or(&[Size::Key("attention.key_length"), Size::Quotient(&[EMBD, HEADS])]);

pub(super) const GEMMA4_ROPE: &[Row] = rows! {
    "rope_freqs.weight" [Size::Quotient(&[FULL_HEAD, Size::N(2)])];
};

const GEMMA4_LAYERS: &[Row] = rows! {
    "blk.{i}.attn_qkv.weight" [EMBD, Size::Sum(&[QUERIES, KEYS, VALUES])] optional;
    "blk.{i}.attn_q.weight" [EMBD, QUERIES] unless "blk.{i}.attn_qkv.weight";
    "blk.{i}.attn_v.weight" [EMBD, VALUES] optional;
    "blk.{i}.attn_q_norm.weight" [HEAD];
    "blk.{i}.layer_output_scale.weight" [Size::N(1)] optional;
};

/// Layers behind these use the keys of earlier ones.
const OWN_KEYS: When =
    Not(&From(Size::Minus(&[Size::Key("block_count"), Size::Key("attention.shared_kv_layers")])));

const GEMMA4_KEYS: &[Row] = rows! {
    "blk.{i}.attn_k.weight" [EMBD, KEYS] unless "blk.{i}.attn_qkv.weight";
    "blk.{i}.attn_k_norm.weight" [HEAD];
};

const GEMMA4_UNUSED_KEYS: &[Row] = rows! {
    "blk.{i}.attn_k.weight" [EMBD, KEYS] optional;
    "blk.{i}.attn_k_norm.weight" [HEAD] optional;
};

const GEMMA4_EXPERTS: &[Row] = rows! {
    "blk.{i}.ffn_gate_inp.weight" [EMBD, EXPERTS];
    "blk.{i}.ffn_gate_inp.scale" [EMBD];
    "blk.{i}.pre_ffw_norm_2.weight" [EMBD];
    "blk.{i}.post_ffw_norm_1.weight" [EMBD];
    "blk.{i}.post_ffw_norm_2.weight" [EMBD];
    "blk.{i}.ffn_gate_up_exps.weight" [EMBD, Size::Product(&[Size::N(2), FF_EXPERT]), EXPERTS] optional;
    "blk.{i}.ffn_gate_exps.weight" [EMBD, FF_EXPERT, EXPERTS] unless "blk.{i}.ffn_gate_up_exps.weight";
    "blk.{i}.ffn_up_exps.weight" [EMBD, FF_EXPERT, EXPERTS] unless "blk.{i}.ffn_gate_up_exps.weight";
    "blk.{i}.ffn_down_exps.weight" [FF_EXPERT, EMBD, EXPERTS];
};

const GEMMA4_KEY_NAMES: (When, &[&str]) = (
    Always,
    &[
        "attention.sliding_window_pattern",
        "embedding_length_per_layer_input",
        "attention.key_length_swa",
        "attention.value_length_swa",
    ],
);

const FUSED_STACKS: &[Row] = fused_expert_stacks!(FF_EXPERT);
const FUSED_WIDE_STACKS: &[Row] = fused_expert_stacks!(FF);
const COHERE_SHARED: &[Row] =
    shared_experts!(Size::Or(&[FF_SHARED, Size::Product(&[FF_EXPERT, SHARED_COUNT])]));
const COHERE_KEYS: (When, &[&str]) =
    (Always, &["logit_scale", "leading_dense_block_count", "attention.layer_norm_epsilon"]);

const SINKS: &[Row] = rows! {
    "blk.{i}.attn_sinks.weight" [HEADS];
};

const FUSED_SHARED: &[Row] = rows! {
    "blk.{i}.ffn_up_shexp.weight" [EMBD, Size::Product(&[Size::N(2), FF_SHARED])];
    "blk.{i}.ffn_down_shexp.weight" [FF_SHARED, EMBD];
};

const SHARE_OR_SHARED: Size = Size::Or(&[FF_SHARED, FF_SHARE]);

/// llama.cpp loads layers with what is there.
const HY_FEED_FORWARD: &[Row] = rows! {
    "blk.{i}.ffn_gate.weight" [EMBD, FF] optional;
    "blk.{i}.ffn_down.weight" [FF, EMBD] optional;
    "blk.{i}.ffn_up.weight" [EMBD, FF] optional;
    "blk.{i}.ffn_gate_inp.weight" [EMBD, EXPERTS] optional;
    "blk.{i}.exp_probs_b" [EXPERTS] optional;
    "blk.{i}.ffn_down_exps.weight" [FF_SHARE, EMBD, EXPERTS] optional;
    "blk.{i}.ffn_gate_up_exps.weight" [EMBD, Size::Product(&[Size::N(2), FF_SHARE]), EXPERTS] optional;
    "blk.{i}.ffn_gate_exps.weight" [EMBD, FF_SHARE, EXPERTS] optional;
    "blk.{i}.ffn_up_exps.weight" [EMBD, FF_SHARE, EXPERTS] optional;
    "blk.{i}.ffn_gate_shexp.weight" [EMBD, SHARE_OR_SHARED] optional;
    "blk.{i}.ffn_up_shexp.weight" [EMBD, SHARE_OR_SHARED] optional;
    "blk.{i}.ffn_down_shexp.weight" [SHARE_OR_SHARED, EMBD] optional;
};

const HY_EXPERTS: &[Row] = rows! {
    "blk.{i}.ffn_down_exps.weight" [FF_SHARE, EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [EMBD, FF_SHARE, EXPERTS] unless "blk.{i}.ffn_gate_up_exps.weight";
};
const HY_SHARED: &[Row] = rows! {
    "blk.{i}.ffn_down_shexp.weight" [SHARE_OR_SHARED, EMBD];
    "blk.{i}.ffn_up_shexp.weight" [EMBD, SHARE_OR_SHARED];
};

const INDEX_HEAD: Size = Size::Key("attention.indexer.key_length");

const M3_INDEXER: &[Row] = rows! {
    "blk.{i}.indexer.q_proj.weight" [EMBD, Size::Product(&[Size::Key("attention.indexer.head_count"), INDEX_HEAD])];
    "blk.{i}.indexer.k_proj.weight" [EMBD, INDEX_HEAD];
    "blk.{i}.indexer.q_norm.weight" [INDEX_HEAD];
    "blk.{i}.indexer.k_norm.weight" [INDEX_HEAD];
};

const M3_KEYS: (When, &[&str]) = (
    Always,
    &[
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "attention.indexer.block_size",
        "attention.indexer.local_blocks",
    ],
);

/// All heads have keys of their own.
const FULL_QKV: &[Row] = projections!(unless, EMBD, EMBD, EMBD);

/// Heads of values are of another length.
const MIMO: &[Row] = rows! {
    "blk.{i}.attn_output.weight" [Size::Product(&[Size::HeadV, HEADS]), EMBD];
    "blk.{i}.attn_sinks.weight" [HEADS] optional;
};
/// Layers have what is there.
const MAYBE_FEEDS: &[Row] = rows! {
    "blk.{i}.ffn_gate.weight" [EMBD, FF] optional;
    "blk.{i}.ffn_down.weight" [FF, EMBD] optional;
    "blk.{i}.ffn_up.weight" [EMBD, FF] optional;
    "blk.{i}.ffn_gate_inp.weight" [EMBD, EXPERTS] optional;
    "blk.{i}.exp_probs_b.bias" [EXPERTS] optional;
    "blk.{i}.ffn_gate_exps.weight" [EMBD, FF_EXPERT, EXPERTS] optional;
    "blk.{i}.ffn_down_exps.weight" [FF_EXPERT, EMBD, EXPERTS] optional;
    "blk.{i}.ffn_up_exps.weight" [EMBD, FF_EXPERT, EXPERTS] optional;
};
/// What layers with a router need.
const ROUTED_PAIR: &[Row] = rows! {
    "blk.{i}.ffn_down_exps.weight" [FF_EXPERT, EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [EMBD, FF_EXPERT, EXPERTS];
};
const SHARED_PAIR: &[Row] = rows! {
    "blk.{i}.ffn_down_shexp.weight" [FF_SHARED, EMBD];
    "blk.{i}.ffn_up_shexp.weight" [EMBD, FF_SHARED];
};
const ROUTES: When = Has("blk.{i}.ffn_gate_inp.weight");
/// Layers without a router that have something of a feed-forward layer.
const FEEDS: When = All(&[
    Not(&ROUTES),
    Any(&[
        Has("blk.{i}.ffn_gate.weight"),
        Has("blk.{i}.ffn_up.weight"),
        Has("blk.{i}.ffn_down.weight"),
    ]),
]);

const MIMO_PREDICTION: &[Row] = rows! {
    "blk.{i}.layer_output_norm.weight" [EMBD] optional;
};

const STEP: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [HEAD] optional;
    "blk.{i}.attn_k_norm.weight" [HEAD] optional;
    "blk.{i}.attn_output.weight" [Size::Product(&[Size::HeadV, HEADS]), EMBD];
    "blk.{i}.attn_gate.weight" [EMBD, HEADS] optional;
};
const MAYBE_SHARED_FEEDS: &[Row] = rows! {
    "blk.{i}.ffn_gate_shexp.weight" [EMBD, FF_SHARED] optional;
    "blk.{i}.ffn_down_shexp.weight" [FF_SHARED, EMBD] optional;
    "blk.{i}.ffn_up_shexp.weight" [EMBD, FF_SHARED] optional;
};

/// A gate for each head, or for each value.
const LAGUNA_GATE: &[Row] = rows! {
    "blk.{i}.attn_gate.weight" [EMBD, Size::Free];
};

const ATTN_OUT_NORM: &[Row] = rows! {
    "blk.{i}.attn_output_norm.weight" [EMBD];
};

/// A feed-forward layer as wide as the hidden state, and the norm in front of experts.
const ARCTIC_RESIDUAL: &[Row] = rows! {
    "blk.{i}.ffn_gate.weight" [EMBD, EMBD];
    "blk.{i}.ffn_down.weight" [EMBD, EMBD];
    "blk.{i}.ffn_up.weight" [EMBD, EMBD];
    "blk.{i}.ffn_norm_exps.weight" [EMBD];
};

const EXPERT_OR_WIDE: Size = Size::Or(&[FF_EXPERT, FF]);

const GROK: &[Row] = rows! {
    "blk.{i}.ffn_gate.weight" [EMBD, FF] optional;
    "blk.{i}.ffn_down.weight" [FF, EMBD] optional;
    "blk.{i}.ffn_up.weight" [EMBD, FF] optional;
    "blk.{i}.ffn_gate_exps.weight" [EMBD, EXPERT_OR_WIDE, EXPERTS] optional;
    "blk.{i}.ffn_down_exps.weight" [EXPERT_OR_WIDE, EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [EMBD, EXPERT_OR_WIDE, EXPERTS];
    "blk.{i}.layer_output_norm.weight" [EMBD] optional;
    "blk.{i}.post_ffw_norm.weight" [EMBD] unless "blk.{i}.layer_output_norm.weight";
};

graphs! {
    "llama" | "llama-embed" | "mistral3" | "minicpm" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT MAYBE_OUT_BIAS FFN_NORM;
        LONGROPE => LONG_FACTORS;
        Not(&LONGROPE) => ROPE_FREQS;
        Not(&HAS_EXPERTS) => MLP MAYBE_MLP_BIASES;
        HAS_EXPERTS => ROUTER PLAIN_EXPERTS;
        HAS_SHARED => SHARED;
    }
    "refact" [RMS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT MAYBE_OUT_BIAS FFN_NORM;
        LONGROPE => LONG_FACTORS;
        Not(&LONGROPE) => ROPE_FREQS;
        Not(&HAS_EXPERTS) => MLP MAYBE_MLP_BIASES;
        HAS_EXPERTS => ROUTER PLAIN_EXPERTS;
        HAS_SHARED => SHARED;
    }
    "granite" | "granitemoe" [RMS, (Always, &["logit_scale"])] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT MAYBE_OUT_BIAS FFN_NORM;
        LONGROPE => LONG_FACTORS;
        Not(&LONGROPE) => ROPE_FREQS;
        Not(&HAS_EXPERTS) => MLP MAYBE_MLP_BIASES;
        HAS_EXPERTS => ROUTER PLAIN_EXPERTS;
        HAS_SHARED => SHARED;
    }
    "qwen2moe" [RMS, USED_EXPERTS] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM ROUTER SHARE_STACKS
            SHARED_GATE SHARED_OR_WIDE;
    }
    "qwen3moe" [RMS, USED_EXPERTS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM ROUTER SHARE_STACKS;
    }
    "qwen3vlmoe" [RMS, USED_EXPERTS, SECTIONS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM ROUTER SHARE_STACKS;
    }
    "olmoe" [RMS, USED_EXPERTS] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT OLMOE_NORMS FFN_NORM ROUTER
            WIDE_STACKS;
    }
    "gpt-oss" [RMS, USED_EXPERTS, EXPERT_WIDTH, WINDOW] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM POST_ATTENTION_NORM OSS_QKV OSS ROUTER STACKS;
    }
    "glm4moe" [RMS, USED_EXPERTS, EXPERT_WIDTH, SHARED_EXPERTS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT MAYBE_HEAD_NORMS POST_ATTENTION_NORM;
        From(DENSE) => ROUTER CHOICE_BIAS SHARE_STACKS;
        All(&[From(DENSE), Above0(SHARED_COUNT)]) => ALL_SHARED_SHARE;
        Not(&From(DENSE)) => MLP;
        MayPredict => PREDICTION;
    }
    "dots1" [RMS, USED_EXPERTS, EXPERT_WIDTH, SHARED_EXPERTS, GATING] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM ALL_HEADS OUT HEAD_NORMS FFN_NORM;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER MAYBE_CHOICE_BIAS STACKS ALL_SHARED;
    }
    "minimax-m2" [RMS, USED_EXPERTS, EXPERT_WIDTH, GATING] SAME_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM QKV OUT MINIMAX_NORMS FFN_NORM ROUTER WIDE_STACKS
            CHOICE_BIAS;
    }
    "bailingmoe2" [RMS, USED_EXPERTS, EXPERT_WIDTH, SHARED_EXPERTS, GATING] SAME_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM FUSED_QKV OUT HEAD_NORMS FFN_NORM;
        From(DENSE) => ROUTER MAYBE_CHOICE_BIAS STACKS ALL_SHARED_OWN;
        Not(&From(DENSE)) => MLP;
        Predicting => PREDICTION BAILING_PREDICTION;
    }
    "bailingmoe" [RMS, USED_EXPERTS, EXPERT_WIDTH, SHARED_EXPERTS] SAME_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM BAILING_QKV BAILING_OUT FFN_NORM ROUTER STACKS ALL_SHARED;
    }
    "deepseek" [RMS, USED_EXPERTS, EXPERT_WIDTH, SHARED_EXPERTS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER STACKS ALL_SHARED;
    }
    "phimoe" [RMS, USED_EXPERTS] SAME_HEADS {
        Always => EMBEDDING OUTPUT_NORM_BIAS OUTPUT NEEDED_OUTPUT_BIAS ATTN_NORM ATTN_NORM_BIAS NARROW_QKV
            NARROW_OUT OUT_BIAS FFN_NORM FFN_NORM_BIAS ROUTER WIDE_STACKS LONG_FACTORS;
    }
    "exaone-moe" [RMS, USED_EXPERTS, EXPERT_WIDTH, GATING, WINDOW] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT QKV OUT ROPE_FREQS ATTN_NORM HEAD_NORMS FFN_NORM;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER MAYBE_CHOICE_BIAS STACKS SHARED_OR_ONE;
    }
    "afmoe" [RMS, USED_EXPERTS, EXPERT_WIDTH, SHARED_EXPERTS, WINDOW] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM POST_ATTENTION_NORM QKV OUT HEAD_NORMS VALUE_GATE FFN_NORM
            POST_FFW_NORM;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER CHOICE_BIAS STACKS;
        All(&[From(DENSE), Above0(SHARED_COUNT)]) => ALL_SHARED;
    }
    "hunyuan-moe" [RMS, USED_EXPERTS, EXPERT_WIDTH] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM ROUTER WIDE_STACKS
            SHARED_OR_WIDE;
    }
    "ernie4_5-moe" [RMS, USED_EXPERTS, EXPERT_WIDTH, (Always, &["interleave_moe_layer_step"])] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT MAYBE_OUT_BIAS FFN_NORM;
        From(DENSE) => ROUTER MAYBE_CHOICE_BIAS GATELESS_STACKS;
        All(&[From(DENSE), Above0(FF_SHARED)]) => SHARED;
        Not(&From(DENSE)) => MLP;
    }
    "llama4" [RMS, USED_EXPERTS, EXPERT_WIDTH, (Always, &["interleave_moe_layer_step"])] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT FFN_NORM ROPE_FREQS;
        Every(EVERY_STEP) => ROUTER STACKS ONE_SHARED;
        Not(&Every(EVERY_STEP)) => MLP;
    }
    "gemma4" [RMS, WINDOW, GEMMA4_KEY_NAMES] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM GEMMA4_LAYERS OUT POST_ATTENTION_NORM FFN_NORM MLP
            POST_FFW_NORM;
        HAS_INPUT => GEMMA4_INPUTS;
        OWN_KEYS => GEMMA4_KEYS;
        Not(&OWN_KEYS) => GEMMA4_UNUSED_KEYS;
        Somewhere(&Not(&Window)) => GEMMA4_ROPE;
        Has("blk.{i}.ffn_gate_inp.weight") => GEMMA4_EXPERTS;
    }
    "mellum" [RMS, USED_EXPERTS] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM ROUTER SHARE_STACKS;
    }
    "cohere2moe" [USED_EXPERTS, EXPERT_WIDTH, WINDOW, COHERE_KEYS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER FUSED_STACKS;
        All(&[From(DENSE), Above0(SHARED_COUNT)]) => COHERE_SHARED;
        MayPredict => PREDICTION;
    }
    "granite_swa" [RMS, WINDOW, (Always, &["logit_scale", "attention.sliding_window_pattern"])] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT MAYBE_OUT_BIAS SINKS FFN_NORM;
        LONGROPE => LONG_FACTORS;
        Not(&LONGROPE) => ROPE_FREQS;
        Not(&HAS_EXPERTS) => MLP MAYBE_MLP_BIASES;
        HAS_EXPERTS => ROUTER FUSED_WIDE_STACKS;
        HAS_SHARED => FUSED_SHARED;
    }
    "hy_v3" [RMS, EXPERT_WIDTH] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM HY_FEED_FORWARD;
        Any(&[Has("blk.{i}.ffn_up.weight"), Has("blk.{i}.ffn_down.weight")]) => UNGATED;
        Any(&[Has("blk.{i}.ffn_up_exps.weight"), Has("blk.{i}.ffn_down_exps.weight")]) => HY_EXPERTS;
        Any(&[Has("blk.{i}.ffn_up_shexp.weight"), Has("blk.{i}.ffn_down_shexp.weight")]) => HY_SHARED;
        MayPredict => PREDICTION;
    }
    "minimax-m3" [RMS, USED_EXPERTS, EXPERT_WIDTH, SHARED_EXPERTS, GATING, M3_KEYS] SAME_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER CHOICE_BIAS STACKS ALL_SHARED M3_INDEXER;
    }
    "rnd1" [RMS, USED_EXPERTS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM ROUTER SHARE_STACKS;
    }
    "smallthinker" [RMS, USED_EXPERTS, GATING] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT FFN_NORM ROUTER STACKS;
    }
    "maple" [RMS, USED_EXPERTS, EXPERT_WIDTH, WINDOW, (Always, &["swiglu_clamp_exp", "attention.sliding_window_pattern"])] SAME_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM ROUTER STACKS;
    }
    "deepseek2-ocr" [RMS, EXPERT_WIDTH, SHARED_EXPERTS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM FULL_QKV NARROW_OUT FFN_NORM;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER MAYBE_CHOICE_BIAS FUSED_STACKS ALL_SHARED;
    }
    "llada-moe" [RMS, USED_EXPERTS] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT HEAD_NORMS FFN_NORM ROUTER STACKS;
    }
    "dbrx" [LAYER_NORM, USED_EXPERTS, (Always, &["attention.clamp_kqv"])] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM FUSED_QKV NARROW_OUT ATTN_OUT_NORM ROUTER WIDE_STACKS;
    }
    "arctic" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM ARCTIC_RESIDUAL ROUTER
            WIDE_STACKS;
    }
    "grok" [RMS, USED_EXPERTS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT ATTN_OUT_NORM FFN_NORM
            ROUTER GROK;
        Has("blk.{i}.ffn_up.weight") => UNGATED;
    }
    "mimo2" [RMS, USED_EXPERTS, EXPERT_WIDTH, WINDOW, (Always, &["attention.sliding_window_pattern"])] FREE_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM QKV FFN_NORM MIMO MAYBE_FEEDS;
        ROUTES => ROUTED_PAIR;
        FEEDS => UNGATED;
        MayPredict => PREDICTION MIMO_PREDICTION;
    }
    "laguna" [RMS, USED_EXPERTS, EXPERT_WIDTH, (Always, &["leading_dense_block_count"])] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT HEAD_NORMS LAGUNA_GATE FFN_NORM;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER CHOICE_BIAS STACKS SHARED_OR_ONE;
    }
    "step35" [RMS, USED_EXPERTS, EXPERT_WIDTH, WINDOW, (Always, &["attention.sliding_window_pattern"])] FREE_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM QKV FFN_NORM STEP MAYBE_FEEDS MAYBE_SHARED_FEEDS ROPE_FREQS;
        ROUTES => ROUTED_PAIR SHARED_PAIR;
        FEEDS => UNGATED;
        MayPredict => PREDICTION;
    }
}
