//! Drafts for speculative decoding, which may have the embedding and the output of their targets.

use super::attention::{
    ATTN_NORM, FREE_HEADS, HEAD_NORMS, MAYBE_OUTPUT, OUT, POST_ATTENTION_NORM, RMS, ROPE_FREQS,
    SAME_HEADS, WINDOW,
};
use super::experts::GEMMA4_ROPE;
use super::feed_forward::{FFN_NORM, MLP, POST_FFW_NORM};
use super::sizes::When::{Above0, Always, Not, Predicting, Somewhere, Window};
use super::sizes::{EMBD, EXPERTS, HEAD, HEADS, KEYS, QUERIES, Size, VALUES, VOCAB, When};
use super::{Row, graphs, rows};

/// The inputs of three layers of the target.
const FEATURES: Size = Size::Product(&[Size::N(3), Size::Key("target_hidden_size")]);

/// A token and the state before it.
const BOTH: Size = Size::Sum(&[EMBD, EMBD]);

const EAGLE3: &[Row] = rows! {
    "token_embd.weight" [EMBD, Size::Free] optional;
    "output_norm.weight" [EMBD];
    "fc.weight" [FEATURES, EMBD];
    "blk.{i}.attn_norm_2.weight" [EMBD];
    "blk.{i}.attn_q.weight" [BOTH, QUERIES];
    "blk.{i}.attn_k.weight" [BOTH, KEYS];
    "blk.{i}.attn_v.weight" [BOTH, VALUES];
};

const FEATURES_NORM: &[Row] = rows! {
    "enc.output_norm.weight" [FEATURES];
};

/// Tokens of a draft with some of its target's.
const TOKENS: Size = Size::Of("d2t", 0);

const SOME_TOKENS: &[Row] = rows! {
    "d2t" [TOKENS];
    "output.weight" [EMBD, TOKENS] optional;
};

const DFLASH: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB] optional;
    "output_norm.weight" [EMBD];
    "fc.weight" [Size::Product(&[Size::Len("target_layers"), EMBD]), EMBD];
    "enc.output_norm.weight" [EMBD];
};

const DFLASH_LAYERS: &[Row] = rows! {
    "blk.{i}.attn_q.weight" [EMBD, QUERIES];
    "blk.{i}.attn_k.weight" [EMBD, KEYS];
    "blk.{i}.attn_v.weight" [EMBD, VALUES] optional;
    "blk.{i}.post_attention_norm.weight" [EMBD] optional;
    "blk.{i}.post_ffw_norm.weight" [EMBD] optional;
    "blk.{i}.layer_output_scale.weight" [Size::N(1)] optional;
    "rope_freqs.weight" [Size::Quotient(&[HEAD, Size::N(2)])] optional;
    "blk.{i}.attn_sinks.weight" [HEADS] optional;
};

const RANK: Size = Size::Key("selector_rank");
const TAPS: Size = Size::Key("conv_kernel_size");
const KERNELS: Size =
    Size::Product(&[Size::N(2), TAPS, Size::Quotient(&[EMBD, Size::Key("conv_group_size")])]);

const SELECTOR: &[Row] = rows! {
    "selector_predecessor.weight" [RANK, VOCAB];
    "selector_successor.weight" [RANK, VOCAB];
    "selector_hidden.weight" [EMBD, RANK];
    "blk.{i}.attn_conv_base" [EMBD, TAPS, Size::N(2)];
    "blk.{i}.attn_conv_proj.weight" [EMBD, KERNELS];
    "blk.{i}.ffn_conv_base" [EMBD, TAPS, Size::N(2)];
    "blk.{i}.ffn_conv_proj.weight" [EMBD, KERNELS];
};

const MARKOV_RANK: Size = Size::Of("markov_w1.weight", 0);

const MARKOV: &[Row] = rows! {
    "markov_w1.weight" [Size::Free, VOCAB];
    "conf_proj.weight" [Size::Sum(&[EMBD, MARKOV_RANK]), Size::N(1)] optional;
    "conf_proj.bias" [Size::N(1)] optional;
};

const SOME_NEXT: &[Row] = rows! {
    "markov_w2.weight" [MARKOV_RANK, TOKENS];
};

const NEXT: &[Row] = rows! {
    "markov_w2.weight" [MARKOV_RANK, VOCAB];
};

/// Drafts that have no layers of DeepSeek V4.
const PLAIN: When = Not(&Above0(Size::Key("hyper_connection.count")));
const HAS_MARKOV: When = When::Has("markov_w1.weight");
const HAS_SELECTOR: When = When::Has("selector_hidden.weight");

const COPIES: Size = Size::Key("hyper_connection.count");
const STATE: Size = Size::Product(&[COPIES, EMBD]);
const MIX: Size = Size::Product(&[Size::Sum(&[Size::N(2), COPIES]), COPIES]);
const Q_RANK: Size = Size::Key("attention.q_lora_rank");
const OUT_GROUPS: Size = Size::Key("attention.output_group_count");
const OUT_RANK: Size = Size::Product(&[OUT_GROUPS, Size::Key("attention.output_lora_rank")]);
const EXPERT: Size = Size::Key("expert_feed_forward_length");
const SHARED: Size = Size::Product(&[EXPERT, Size::Key("expert_shared_count")]);

/// The layers of DeepSeek V4.
const HYPER: &[Row] = rows! {
    "output_hc_fn.weight" [STATE, COPIES];
    "output_hc_base.weight" [COPIES];
    "output_hc_scale.weight" [Size::N(1)];
    "blk.{i}.attn_norm.weight" [EMBD];
    "blk.{i}.attn_sinks.weight" [HEADS];
    "blk.{i}.attn_q_a.weight" [EMBD, Q_RANK];
    "blk.{i}.attn_q_a_norm.weight" [Q_RANK];
    "blk.{i}.attn_q_b.weight" [Q_RANK, QUERIES];
    "blk.{i}.attn_kv.weight" [EMBD, HEAD];
    "blk.{i}.attn_kv_a_norm.weight" [HEAD];
    "blk.{i}.attn_output_a.weight" [Size::Quotient(&[QUERIES, OUT_GROUPS]), OUT_RANK];
    "blk.{i}.attn_output_b.weight" [OUT_RANK, EMBD];
    "blk.{i}.hc_attn_fn.weight" [STATE, MIX];
    "blk.{i}.hc_attn_base.weight" [MIX];
    "blk.{i}.hc_attn_scale.weight" [Size::N(3)];
    "blk.{i}.hc_ffn_fn.weight" [STATE, MIX];
    "blk.{i}.hc_ffn_base.weight" [MIX];
    "blk.{i}.hc_ffn_scale.weight" [Size::N(3)];
    "blk.{i}.ffn_gate_inp.weight" [EMBD, EXPERTS];
    "blk.{i}.exp_probs_b.bias" [EXPERTS];
    "blk.{i}.ffn_norm.weight" [EMBD];
    "blk.{i}.ffn_gate_exps.weight" [EMBD, EXPERT, EXPERTS];
    "blk.{i}.ffn_down_exps.weight" [EXPERT, EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [EMBD, EXPERT, EXPERTS];
    "blk.{i}.ffn_gate_shexp.weight" [EMBD, SHARED];
    "blk.{i}.ffn_down_shexp.weight" [SHARED, EMBD];
    "blk.{i}.ffn_up_shexp.weight" [EMBD, SHARED];
};

const HYPER_KEYS: (When, &[&str]) = (
    Not(&PLAIN),
    &[
        "attention.q_lora_rank",
        "attention.sliding_window",
        "expert_feed_forward_length",
        "expert_shared_count",
        "expert_weights_scale",
        "expert_weights_norm",
        "expert_gating_func",
        "swiglu_clamp_exp",
        "attention.output_group_count",
        "attention.output_lora_rank",
        "hyper_connection.sinkhorn_iterations",
        "hyper_connection.epsilon",
    ],
);

const TARGET_SIZE: Size = Size::Key("embedding_length_out");

const ASSISTANT: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB];
    "output_norm.weight" [EMBD];
    "masked_embd_centroids.weight" [Size::Free, Size::Free] optional;
    "masked_embd_ordering" [Size::Free] optional;
    "nextn.post_projection.weight" [EMBD, TARGET_SIZE];
    "nextn.pre_projection.weight" [Size::Product(&[Size::N(2), TARGET_SIZE]), EMBD];
};

const ASSISTANT_LAYERS: &[Row] = rows! {
    "blk.{i}.attn_q.weight" [EMBD, QUERIES];
    "blk.{i}.attn_q_norm.weight" [HEAD];
    "blk.{i}.layer_output_scale.weight" [Size::N(1)];
};

const ASSISTANT_KEYS: (When, &[&str]) = (
    Always,
    &[
        "attention.sliding_window_pattern",
        "attention.key_length_swa",
        "attention.value_length_swa",
        "embedding_length_out",
        "nextn_predict_layers",
    ],
);

graphs! {
    "gemma4-assistant" [RMS, WINDOW, ASSISTANT_KEYS] FREE_HEADS {
        Always => ASSISTANT;
        Predicting => ATTN_NORM ASSISTANT_LAYERS OUT POST_ATTENTION_NORM FFN_NORM MLP POST_FFW_NORM;
        Somewhere(&Not(&Window)) => GEMMA4_ROPE;
    }
    "dflash" [RMS, (Always, &["target_layers"]),
        (When::All(&[PLAIN, Above0(Size::Key("attention.sliding_window"))]), &["attention.sliding_window_pattern"]), HYPER_KEYS,
        (HAS_SELECTOR, &["selector_rank", "block_size", "selector_top_k", "conv_kernel_size", "conv_group_size"])]
        FREE_HEADS {
        Always => DFLASH;
        PLAIN => ATTN_NORM DFLASH_LAYERS OUT HEAD_NORMS FFN_NORM MLP;
        Not(&PLAIN) => HYPER;
        HAS_SELECTOR => SELECTOR;
        HAS_MARKOV => MARKOV;
        When::Has("d2t") => SOME_TOKENS;
        When::All(&[When::Has("d2t"), HAS_MARKOV]) => SOME_NEXT;
        Not(&When::Has("d2t")) => MAYBE_OUTPUT;
        When::All(&[Not(&When::Has("d2t")), HAS_MARKOV]) => NEXT;
    }
    "eagle3" [RMS, (Always, &["target_layers", "target_hidden_size"])] SAME_HEADS {
        Always => EAGLE3 ATTN_NORM OUT FFN_NORM MLP ROPE_FREQS;
        Above0(Size::Key("norm_before_fc")) => FEATURES_NORM;
        When::Has("d2t") => SOME_TOKENS;
        Not(&When::Has("d2t")) => MAYBE_OUTPUT;
    }
}
