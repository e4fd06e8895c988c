//! Decoders with state spaces, linear attention or short convolutions, in some layers or in all.

use super::attention::{
    ALL_HEAD_NORMS, ATTN_NORM, BARE_NORMS, EMBEDDING, FREE_HEADS, HEAD_NORMS, LAYER_NORM,
    MAYBE_OUT_BIAS, MAYBE_OUTPUT, NARROW_OUT, NARROW_QKV, OUT, POST_ATTENTION_NORM, PREDICTION,
    QKV, RMS, ROPE_FREQS, SAME_HEADS, SECTIONS, projections,
};
use super::feed_forward::{
    CHOICE_BIAS, DENSE, FF_EXPERT, FF_SHARE, FF_SHARED, FFN_NORM, FUSED_MLP, MAYBE_MLP_BIASES,
    MAYBE_UNGATED_BIASES, MLP, ROUTER, UNGATED, expert_stacks, fused_expert_stacks, shared_experts,
};
use super::sizes::When::{Above0, All, Always, From, Has, Is, Linear, Listed, Not, Predicting};
use super::sizes::{EMBD, EXPERTS, FF, KEYS, QUERIES, Size, VALUES, VOCAB, When};
use super::{Row, graphs, rows};

const INNER: Size = Size::Key("ssm.inner_size");
const STATE: Size = Size::Key("ssm.state_size");
const RANK: Size = Size::Key("ssm.time_step_rank");
const GROUPS: Size = Size::Key("ssm.group_count");
const KERNEL: Size = Size::Key("ssm.conv_kernel");

const SSM: (When, &[&str]) =
    (Always, &["ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"]);
const SSM_GROUPS: (When, &[&str]) = (Always, &["ssm.group_count"]);

const TWICE_EMBD: Size = Size::Product(&[Size::N(2), EMBD]);
const TWICE_INNER: Size = Size::Product(&[Size::N(2), INNER]);
/// State spaces are twice as wide as the hidden state.
const TWICE: &[(When, [Size; 2])] = &[(Always, [TWICE_EMBD, INNER])];
const TWICE_AND_HEADS: &[(When, [Size; 2])] = &[TWICE[0], SAME_HEADS[0]];

/// A mixer of Mamba.
const MAMBA: &[Row] = rows! {
    "blk.{i}.ssm_in.weight" [EMBD, TWICE_INNER];
    "blk.{i}.ssm_conv1d.weight" [KERNEL, INNER];
    "blk.{i}.ssm_conv1d.bias" [INNER];
    "blk.{i}.ssm_x.weight" [INNER, Size::Sum(&[RANK, STATE, STATE])];
    "blk.{i}.ssm_dt.weight" [RANK, INNER];
    "blk.{i}.ssm_dt.bias" [INNER];
    "blk.{i}.ssm_a" [STATE, INNER];
    "blk.{i}.ssm_d" [INNER];
    "blk.{i}.ssm_out.weight" [INNER, EMBD];
};

const MAMBA_NORMS: &[Row] = rows! {
    "blk.{i}.ssm_dt_norm.weight" [RANK];
    "blk.{i}.ssm_b_norm.weight" [STATE];
    "blk.{i}.ssm_c_norm.weight" [STATE];
};

const STATES: Size = Size::Product(&[Size::N(2), GROUPS, STATE]);

/// A mixer of Mamba 2, without its norm.
const MAMBA2: &[Row] = rows! {
    "blk.{i}.ssm_in.weight" [EMBD, Size::Sum(&[TWICE_INNER, STATES, RANK])];
    "blk.{i}.ssm_conv1d.weight" [KERNEL, Size::Sum(&[INNER, STATES])];
    "blk.{i}.ssm_dt.bias" [RANK];
    "blk.{i}.ssm_a" [Size::N(1), RANK];
    "blk.{i}.ssm_d" [Size::N(1), RANK];
    "blk.{i}.ssm_out.weight" [INNER, EMBD];
};

const MAMBA2_NORM: &[Row] = rows! {
    "blk.{i}.ssm_norm.weight" [Size::Quotient(&[INNER, GROUPS]), GROUPS];
};

const MAMBA2_MAYBE_NORM: &[Row] = rows! {
    "blk.{i}.ssm_norm.weight" [Size::Quotient(&[INNER, GROUPS]), GROUPS] optional;
};

/// The width of time steps of PLaMo 2.
const STEP_WIDTH: Size = Size::Max(&[Size::N(64), Size::Quotient(&[EMBD, Size::N(16)])]);

/// A mixer of PLaMo 2.
const PLAMO_MAMBA: &[Row] = rows! {
    "blk.{i}.ssm_in.weight" [EMBD, TWICE_INNER];
    "blk.{i}.ssm_conv1d.weight" [KERNEL, INNER];
    "blk.{i}.ssm_x.weight" [INNER, Size::Sum(&[STEP_WIDTH, STATE, STATE])];
    "blk.{i}.ssm_dt.weight" [STEP_WIDTH, RANK];
    "blk.{i}.ssm_dt.bias" [RANK];
    "blk.{i}.ssm_a" [RANK];
    "blk.{i}.ssm_d" [RANK];
    "blk.{i}.ssm_out.weight" [INNER, EMBD];
    "blk.{i}.ssm_dt_norm" [STEP_WIDTH];
    "blk.{i}.ssm_b_norm" [STATE];
    "blk.{i}.ssm_c_norm" [STATE];
};

const PLAMO_ATTENTION: &[Row] = rows! {
    "blk.{i}.attn_qkv.weight" [EMBD, Size::Sum(&[QUERIES, KEYS, VALUES])];
    "blk.{i}.attn_output.weight" [Size::Product(&[Size::HeadV, Size::Key("attention.head_count")]), EMBD];
};

const HEAD_SIZE: Size = Size::Key("wkv.head_size");
const SHIFT: Size = Size::Key("time_mix_extra_dim");
const STEP: Size = Size::Key("time_decay_extra_dim");
const DECAY_RANK: Size = Size::Key("attention.decay_lora_rank");
const RATE_RANK: Size = Size::Key("attention.iclr_lora_rank");
const VALUE_RANK: Size = Size::Key("attention.value_residual_mix_lora_rank");
const GATE_RANK: Size = Size::Key("attention.gate_lora_rank");
const ONE: Size = Size::N(1);
const FIVE: Size = Size::N(5);
const WKV: (When, &[&str]) = (Always, &["wkv.head_size"]);
const SHIFTS: (When, &[&str]) = (Always, &["time_mix_extra_dim", "time_decay_extra_dim"]);
const LOW_RANKS: (When, &[&str]) = (
    Always,
    &[
        "attention.decay_lora_rank",
        "attention.iclr_lora_rank",
        "attention.value_residual_mix_lora_rank",
    ],
);

/// Ends of RWKV, and what versions 6 and 7 have in all layers.
const RWKV: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB];
    "token_embd_norm.weight" [EMBD];
    "token_embd_norm.bias" [EMBD];
    "output_norm.weight" [EMBD];
    "output_norm.bias" [EMBD];
    "output.weight" [EMBD, VOCAB];
    "blk.{i}.attn_norm.weight" [EMBD];
    "blk.{i}.attn_norm.bias" [EMBD];
    "blk.{i}.attn_norm_2.weight" [EMBD];
    "blk.{i}.attn_norm_2.bias" [EMBD];
    "blk.{i}.time_mix_key.weight" [EMBD, EMBD];
    "blk.{i}.time_mix_value.weight" [EMBD, EMBD];
    "blk.{i}.time_mix_ln.weight" [EMBD];
    "blk.{i}.time_mix_ln.bias" [EMBD];
    "blk.{i}.channel_mix_lerp_k.weight" [EMBD];
    "blk.{i}.channel_mix_key.weight" [EMBD, FF];
    "blk.{i}.channel_mix_value.weight" [FF, EMBD];
};

/// What states of RWKV 6 have.
const RWKV6: &[Row] = rows! {
    "blk.{i}.time_mix_w1.weight" [EMBD, Size::Product(&[SHIFT, FIVE])];
    "blk.{i}.time_mix_w2.weight" [SHIFT, EMBD, FIVE];
    "blk.{i}.time_mix_lerp_x.weight" [EMBD];
    "blk.{i}.time_mix_decay.weight" [EMBD];
    "blk.{i}.time_mix_decay_w1.weight" [EMBD, STEP];
    "blk.{i}.time_mix_decay_w2.weight" [STEP, EMBD];
    "blk.{i}.time_mix_gate.weight" [EMBD, EMBD];
    "blk.{i}.time_mix_receptance.weight" [EMBD, EMBD];
    "blk.{i}.time_mix_output.weight" [EMBD, EMBD];
};

/// The rest of RWKV 6. Early files have a tensor for each part of a token and of the one before.
const RWKV6_LAYER: &[Row] = rows! {
    "blk.{i}.time_mix_lerp_w.weight" [EMBD] unless "blk.{i}.time_mix_lerp_fused.weight";
    "blk.{i}.time_mix_lerp_k.weight" [EMBD] optional;
    "blk.{i}.time_mix_lerp_v.weight" [EMBD] optional;
    "blk.{i}.time_mix_lerp_r.weight" [EMBD] optional;
    "blk.{i}.time_mix_lerp_g.weight" [EMBD] optional;
    "blk.{i}.time_mix_lerp_fused.weight" [EMBD, ONE, ONE, FIVE] optional;
    "blk.{i}.time_mix_first.weight" [HEAD_SIZE, Size::Quotient(&[EMBD, HEAD_SIZE])];
    "blk.{i}.channel_mix_lerp_r.weight" [EMBD];
    "blk.{i}.channel_mix_receptance.weight" [EMBD, EMBD];
};

const OUTPUT_ALONE: &[Row] = rows! {
    "output.weight" [EMBD, VOCAB];
};

const KEY_WIDTH: Size =
    Size::Or(&[Size::Product(&[Size::Key("attention.head_count_kv"), HEAD_SIZE]), EMBD]);

const QRWKV: &[Row] = rows! {
    "output_norm.bias" [EMBD] optional;
    "blk.{i}.time_mix_lerp_fused.weight" [EMBD, ONE, ONE, FIVE];
    "blk.{i}.time_mix_first.weight" [HEAD_SIZE, Size::Quotient(&[EMBD, HEAD_SIZE])] optional;
    "blk.{i}.time_mix_key.weight" [EMBD, KEY_WIDTH];
    "blk.{i}.time_mix_value.weight" [EMBD, KEY_WIDTH];
    "blk.{i}.time_mix_key.bias" [KEY_WIDTH] optional;
    "blk.{i}.time_mix_value.bias" [KEY_WIDTH] optional;
    "blk.{i}.time_mix_receptance.bias" [EMBD] optional;
};

/// What states of RWKV 7 have.
const RWKV7: &[Row] = rows! {
    "blk.{i}.time_mix_w0.weight" [EMBD];
    "blk.{i}.time_mix_w1.weight" [EMBD, DECAY_RANK];
    "blk.{i}.time_mix_w2.weight" [DECAY_RANK, EMBD];
    "blk.{i}.time_mix_a0.weight" [EMBD];
    "blk.{i}.time_mix_a1.weight" [EMBD, RATE_RANK];
    "blk.{i}.time_mix_a2.weight" [RATE_RANK, EMBD];
    "blk.{i}.time_mix_v0.weight" [EMBD];
    "blk.{i}.time_mix_k_k.weight" [EMBD];
    "blk.{i}.time_mix_k_a.weight" [EMBD];
    "blk.{i}.time_mix_r_k.weight" [EMBD];
    "blk.{i}.time_mix_receptance.weight" [EMBD, EMBD];
    "blk.{i}.time_mix_output.weight" [EMBD, EMBD];
};

/// Values of layers behind the first are mixed with those of the first.
const VALUES_MIXED: &[Row] = rows! {
    "blk.{i}.time_mix_v1.weight" [EMBD, VALUE_RANK];
    "blk.{i}.time_mix_v2.weight" [VALUE_RANK, EMBD];
};

const VALUES_COPIED: &[Row] = rows! {
    "blk.{i}.time_mix_v1.weight" [EMBD, RATE_RANK];
    "blk.{i}.time_mix_v2.weight" [RATE_RANK, EMBD];
};

const RWKV7_GATES: &[Row] = rows! {
    "blk.{i}.time_mix_g1.weight" [EMBD, GATE_RANK];
    "blk.{i}.time_mix_g2.weight" [GATE_RANK, EMBD];
    "blk.{i}.time_mix_lerp_fused.weight" [EMBD, ONE, ONE, Size::N(6)];
};

/// Without gates there are five parts of a token.
const ARWKV7: &[Row] = rows! {
    "blk.{i}.time_mix_key.weight" [EMBD, EMBD];
    "blk.{i}.time_mix_value.weight" [EMBD, EMBD];
    "blk.{i}.time_mix_ln.weight" [EMBD] optional;
    "blk.{i}.time_mix_ln.bias" [EMBD] optional;
    "blk.{i}.time_mix_g1.weight" [EMBD, GATE_RANK] optional;
    "blk.{i}.time_mix_g2.weight" [GATE_RANK, EMBD] optional;
    "blk.{i}.time_mix_lerp_fused.weight" [EMBD, ONE, ONE, Size::Of("blk.0.time_mix_lerp_fused.weight", 3)];
};

/// In layers behind the first.
const BEHIND: When = From(Size::N(1));

/// A norm whose name has no end.
const BARE_NORM: &[Row] = rows! {
    "blk.{i}.ffn_norm" [EMBD];
};

const MAMBA2_BIAS: &[Row] = rows! {
    "blk.{i}.ssm_conv1d.bias" [Size::Sum(&[INNER, STATES])];
};

const LINEAR_KEYS: Size = Size::Product(&[STATE, GROUPS]);
const LINEAR_VALUES: Size = Size::Product(&[STATE, RANK]);
const LINEAR_ALL: Size = Size::Sum(&[LINEAR_KEYS, LINEAR_KEYS, LINEAR_VALUES]);

/// Linear attention.
const DELTA: &[Row] = rows! {
    "blk.{i}.ssm_conv1d.weight" [KERNEL, LINEAR_ALL];
    "blk.{i}.ssm_dt.bias" [RANK];
    "blk.{i}.ssm_a" [RANK];
    "blk.{i}.ssm_norm.weight" [STATE];
    "blk.{i}.ssm_out.weight" [LINEAR_VALUES, EMBD];
};

const DELTA_NEXT: &[Row] = rows! {
    "blk.{i}.ssm_in.weight" [EMBD, Size::Sum(&[LINEAR_ALL, LINEAR_VALUES])] optional;
    "blk.{i}.attn_qkv.weight" [EMBD, LINEAR_ALL] unless "blk.{i}.ssm_in.weight";
    "blk.{i}.attn_gate.weight" [EMBD, LINEAR_VALUES] unless "blk.{i}.ssm_in.weight";
    "blk.{i}.ssm_ba.weight" [EMBD, Size::Product(&[Size::N(2), RANK])];
};

const DELTA_3_5: &[Row] = rows! {
    "blk.{i}.attn_qkv.weight" [EMBD, LINEAR_ALL];
    "blk.{i}.attn_gate.weight" [EMBD, LINEAR_VALUES];
    "blk.{i}.ssm_beta.weight" [EMBD, RANK];
    "blk.{i}.ssm_alpha.weight" [EMBD, RANK];
};

/// Queries have gates.
const GATED_QKV: &[Row] = projections!(unless, Size::Product(&[Size::N(2), QUERIES]), KEYS, VALUES);

const COPIES: Size = Size::Key("hyper_connection.count");
const MIX_RANK: Size = Size::Key("hyper_connection.low_rank");
const STATE_OF_COPIES: Size = Size::Product(&[COPIES, EMBD]);
const INDEX_HEAD: Size = Size::Key("attention.indexer.key_length");
const COPY_KEYS: (When, &[&str]) = (
    Always,
    &[
        "hyper_connection.count",
        "hyper_connection.low_rank",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
    ],
);
/// Whether a layer reads a table by hashes.
const HASHES: When = Above0(Size::Len("ple.layers"));
const HASH_KEYS: (When, &[&str]) = (
    HASHES,
    &[
        "ple.ngram_size",
        "ple.heads_per_ngram",
        "ple.conv_kernel",
        "ple.eos_token_id",
        "embedding_length_per_layer_input",
        "ple.layer_multipliers",
        "ple.head_offsets",
        "ple.head_vocab_sizes",
    ],
);

const TOKENS: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB];
};

const COPIES_ALL: &[Row] = rows! {
    "output_hc_norm.weight" [STATE_OF_COPIES];
    "output_hc_down.weight" [STATE_OF_COPIES, MIX_RANK];
    "output_hc_up.weight" [MIX_RANK, STATE_OF_COPIES];
};

/// What mixes copies of the state in front of each half of a layer.
const MIXED: &[Row] = rows! {
    "blk.{i}.hc_attn_norm.weight" [STATE_OF_COPIES];
    "blk.{i}.hc_attn_down.weight" [STATE_OF_COPIES, MIX_RANK];
    "blk.{i}.hc_attn_up.weight" [MIX_RANK, STATE_OF_COPIES];
    "blk.{i}.hc_attn_inject.weight" [STATE_OF_COPIES, COPIES];
    "blk.{i}.hc_ffn_norm.weight" [STATE_OF_COPIES];
    "blk.{i}.hc_ffn_down.weight" [STATE_OF_COPIES, MIX_RANK];
    "blk.{i}.hc_ffn_up.weight" [MIX_RANK, STATE_OF_COPIES];
    "blk.{i}.hc_ffn_inject.weight" [STATE_OF_COPIES, COPIES];
};

const CHOICE: &[Row] = rows! {
    "blk.{i}.indexer.q_proj.weight" [EMBD, Size::Product(&[Size::Key("attention.indexer.head_count"), INDEX_HEAD])];
    "blk.{i}.indexer.k_proj.weight" [EMBD, INDEX_HEAD];
    "blk.{i}.indexer.q_norm.weight" [INDEX_HEAD];
    "blk.{i}.indexer.k_norm.weight" [INDEX_HEAD];
};

const HASH_TABLE: &[Row] = rows! {
    "per_layer_token_embd.weight" [Size::Key("embedding_length_per_layer_input"), Size::Of("per_layer_token_embd.weight", 1)];
};

const HASH_READER: &[Row] = rows! {
    "blk.{i}.ple_key.weight" [EMBD, STATE_OF_COPIES];
    "blk.{i}.ple_value.weight" [EMBD, EMBD];
    "blk.{i}.ple_norm_key.weight" [STATE_OF_COPIES];
    "blk.{i}.ple_norm_query.weight" [STATE_OF_COPIES];
    "blk.{i}.ple_norm_conv.weight" [STATE_OF_COPIES];
    "blk.{i}.ple_conv1d.weight" [Size::Key("ple.conv_kernel"), STATE_OF_COPIES];
};

const MIXED_PREDICTION: &[Row] = rows! {
    "blk.{i}.nextn.eh_proj.weight" [Size::Product(&[Size::N(2), EMBD]), EMBD];
    "blk.{i}.nextn.enorm.weight" [EMBD];
    "blk.{i}.nextn.hnorm.weight" [STATE_OF_COPIES];
    "blk.{i}.nextn.hc_head_norm.weight" [STATE_OF_COPIES];
    "blk.{i}.nextn.hc_head_down.weight" [STATE_OF_COPIES, MIX_RANK];
    "blk.{i}.nextn.hc_head_up.weight" [MIX_RANK, STATE_OF_COPIES];
};

const STACKS: &[Row] = expert_stacks!(FF_EXPERT);
const WIDE_STACKS: &[Row] = expert_stacks!(FF);
const FUSED_STACKS: &[Row] = fused_expert_stacks!(FF_SHARE);
const SHARED: &[Row] = shared_experts!(FF_SHARED);
const SHARED_OR_WIDE: &[Row] = shared_experts!(Size::Or(&[FF_SHARED, FF]));

const SHARED_GATE: &[Row] = rows! {
    "blk.{i}.ffn_gate_inp_shexp.weight" [EMBD];
};

const HAS_EXPERTS: When = Above0(EXPERTS);
/// Without heads of keys and values, a layer has no attention.
const ATTENDS: When = Above0(Size::KvHeads);

const GRANITE_EXPERTS: &[Row] = rows! {
    "blk.{i}.ffn_gate_exps.weight" [EMBD, FF, EXPERTS] optional;
    "blk.{i}.ffn_down_exps.weight" [FF, EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [EMBD, FF, EXPERTS];
};

const ROUTED: When = Has("blk.{i}.ffn_gate_inp.weight");

/// The width of what experts see.
const LATENT: Size = Size::Or(&[Size::Key("moe_latent_size"), EMBD]);

const NEMOTRON_EXPERTS: &[Row] = rows! {
    "blk.{i}.ffn_gate_inp.weight" [EMBD, EXPERTS];
    "blk.{i}.exp_probs_b.bias" [EXPERTS];
    "blk.{i}.ffn_down_exps.weight" [FF_SHARE, LATENT, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [LATENT, FF_SHARE, EXPERTS];
    "blk.{i}.ffn_down_shexp.weight" [FF_SHARED, EMBD];
    "blk.{i}.ffn_up_shexp.weight" [EMBD, FF_SHARED];
};

const MAYBE_LATENT: &[Row] = rows! {
    "blk.{i}.ffn_latent_down.weight" [EMBD, LATENT] optional;
    "blk.{i}.ffn_latent_up.weight" [LATENT, EMBD] optional;
};

/// Experts that see a shorter state cannot do without.
const LATENT_PAIR: &[Row] = rows! {
    "blk.{i}.ffn_latent_down.weight" [EMBD, LATENT];
    "blk.{i}.ffn_latent_up.weight" [LATENT, EMBD];
};

const SHORTER: When = Above0(Size::Key("moe_latent_size"));

const NEMOTRON_PREDICTION: &[Row] = rows! {
    "blk.{i}.nextn.enorm.weight" [EMBD];
    "blk.{i}.nextn.hnorm.weight" [EMBD];
    "blk.{i}.nextn.eh_proj.weight" [TWICE_EMBD, EMBD];
    "blk.{i}.nextn.shared_head_norm.weight" [EMBD];
};

const RECURRENT: When = All(&[Not(&Predicting), Not(&ATTENDS), Is(FF, 0)]);
const NEMOTRON_ATTENDS: When = All(&[Not(&Predicting), Is(FF, 0), ATTENDS]);
const FEEDS: When = All(&[Not(&Predicting), Above0(FF)]);
const ROUTES: When = All(&[FEEDS, HAS_EXPERTS]);
const FEEDS_PLAIN: When = All(&[FEEDS, Not(&HAS_EXPERTS)]);

const CACHE: Size = Size::Key("shortconv.l_cache");

const SHORT_ENDS: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB];
    "token_embd_norm.weight" [EMBD];
    "dense_2.weight" [EMBD, Size::Or(&[Size::Key("embedding_length_out"), EMBD])] optional;
    "dense_2.bias" [Size::Or(&[Size::Key("embedding_length_out"), EMBD])] optional;
};

const SHORT_CONV: &[Row] = rows! {
    "blk.{i}.shortconv.conv.weight" [CACHE, EMBD];
    "blk.{i}.shortconv.in_proj.weight" [EMBD, Size::Product(&[Size::N(3), EMBD])];
    "blk.{i}.shortconv.out_proj.weight" [EMBD, EMBD];
};

const SHORT: (When, &[&str]) = (Always, &["shortconv.l_cache"]);
const MOE: (When, &[&str]) = (Always, &["expert_feed_forward_length", "expert_gating_func"]);

/// Linear attention of MiniMax, with as many heads of keys as of queries.
const DECAYING: &[Row] = rows! {
    "blk.{i}.attn_norm_2.weight" [QUERIES];
    "blk.{i}.attn_qkv.weight" [EMBD, Size::Product(&[Size::N(3), QUERIES])];
    "blk.{i}.attn_gate.weight" [EMBD, QUERIES];
};

const MINIMAX_EXPERTS: &[Row] = rows! {
    "blk.{i}.ffn_gate_exps.weight" [EMBD, FF, EXPERTS] optional;
    "blk.{i}.ffn_down_exps.weight" [FF, EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [EMBD, FF, EXPERTS];
};

graphs! {
    "qwen3next" [RMS, SSM, SSM_GROUPS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM POST_ATTENTION_NORM ROUTER FUSED_STACKS
            SHARED_GATE SHARED_OR_WIDE;
        Linear(4) => DELTA DELTA_NEXT;
        Not(&Linear(4)) => GATED_QKV OUT HEAD_NORMS;
        Predicting => PREDICTION;
    }
    "qwen35" [RMS, SECTIONS, SSM, SSM_GROUPS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM POST_ATTENTION_NORM MLP;
        Linear(4) => DELTA DELTA_3_5;
        Not(&Linear(4)) => GATED_QKV OUT HEAD_NORMS;
        Predicting => PREDICTION;
    }
    "qwen35moe" [RMS, SECTIONS, SSM, SSM_GROUPS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM POST_ATTENTION_NORM ROUTER FUSED_STACKS
            SHARED_GATE SHARED_OR_WIDE;
        Linear(4) => DELTA DELTA_3_5;
        Not(&Linear(4)) => GATED_QKV OUT HEAD_NORMS;
        Predicting => PREDICTION;
    }
    "qwen4exp" [RMS, SECTIONS, SSM, SSM_GROUPS, COPY_KEYS, HASH_KEYS] SAME_HEADS {
        Always => TOKENS MAYBE_OUTPUT COPIES_ALL MIXED ROUTER FUSED_STACKS SHARED_GATE SHARED_OR_WIDE;
        Linear(4) => DELTA DELTA_3_5;
        Not(&Linear(4)) => GATED_QKV OUT HEAD_NORMS CHOICE;
        HASHES => HASH_TABLE;
        Listed("ple.layers") => HASH_READER;
        Predicting => MIXED_PREDICTION;
    }
    "granitehybrid" [RMS, SSM, SSM_GROUPS] TWICE_AND_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM FFN_NORM ROPE_FREQS;
        Not(&ATTENDS) => MAMBA2 MAMBA2_NORM MAMBA2_BIAS;
        ATTENDS => QKV OUT MAYBE_OUT_BIAS;
        HAS_EXPERTS => ROUTER GRANITE_EXPERTS;
        All(&[HAS_EXPERTS, Above0(FF_SHARED)]) => SHARED;
        Not(&HAS_EXPERTS) => MLP MAYBE_MLP_BIASES;
    }
    "lfm2" [RMS, SHORT] FREE_HEADS {
        Always => SHORT_ENDS MAYBE_OUTPUT FFN_NORM MLP ATTN_NORM;
        ATTENDS => HEAD_NORMS NARROW_QKV NARROW_OUT;
        Not(&ATTENDS) => SHORT_CONV;
    }
    "lfm2moe" [RMS, SHORT, MOE] FREE_HEADS {
        Always => SHORT_ENDS MAYBE_OUTPUT FFN_NORM ATTN_NORM;
        ATTENDS => HEAD_NORMS NARROW_QKV NARROW_OUT;
        Not(&ATTENDS) => SHORT_CONV;
        From(DENSE) => ROUTER STACKS CHOICE_BIAS;
        Not(&From(DENSE)) => MLP;
    }
    "mamba" [RMS, SSM] TWICE {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM MAMBA;
    }
    "mamba2" [RMS, SSM, SSM_GROUPS] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM MAMBA2 MAMBA2_NORM MAMBA2_BIAS;
    }
    "falcon-h1" [RMS, SSM, SSM_GROUPS] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM MAMBA2 MAMBA2_BIAS MAMBA2_MAYBE_NORM QKV OUT MAYBE_OUT_BIAS
            BARE_NORM ROPE_FREQS MLP MAYBE_MLP_BIASES;
    }
    "plamo2" [RMS, SSM, SSM_GROUPS] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM BARE_NORMS FFN_NORM FUSED_MLP;
        Not(&ATTENDS) => PLAMO_MAMBA;
        ATTENDS => PLAMO_ATTENTION ALL_HEAD_NORMS;
    }
    "rwkv6" [WKV, SHIFTS] FREE_HEADS {
        Always => RWKV RWKV6 RWKV6_LAYER;
    }
    "rwkv7" [WKV, LOW_RANKS] FREE_HEADS {
        Always => RWKV RWKV7 RWKV7_GATES;
        Not(&BEHIND) => VALUES_COPIED;
        BEHIND => VALUES_MIXED;
    }
    "rwkv6qwen2" [WKV, SHIFTS, (Always, &["token_shift_count"])] FREE_HEADS {
        Always => EMBEDDING OUTPUT_ALONE ATTN_NORM RWKV6 QRWKV FFN_NORM MLP;
    }
    "arwkv7" [WKV, LOW_RANKS, (Always, &["token_shift_count"])] FREE_HEADS {
        Always => EMBEDDING OUTPUT_ALONE ATTN_NORM RWKV7 ARWKV7 FFN_NORM MLP;
        Not(&BEHIND) => VALUES_COPIED;
        BEHIND => VALUES_MIXED;
    }
    "jamba" [RMS, SSM] TWICE {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM FFN_NORM;
        Not(&ATTENDS) => MAMBA MAMBA_NORMS;
        ATTENDS => NARROW_QKV NARROW_OUT;
        ROUTED => ROUTER WIDE_STACKS;
        Not(&ROUTED) => MLP;
    }
    "nemotron_h" | "nemotron_h_moe" [LAYER_NORM, SSM, SSM_GROUPS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM;
        RECURRENT => MAMBA2 MAMBA2_NORM MAMBA2_BIAS;
        NEMOTRON_ATTENDS => QKV OUT MAYBE_OUT_BIAS;
        ROUTES => NEMOTRON_EXPERTS;
        All(&[ROUTES, SHORTER]) => LATENT_PAIR;
        All(&[ROUTES, Not(&SHORTER)]) => MAYBE_LATENT;
        FEEDS_PLAIN => UNGATED MAYBE_UNGATED_BIASES;
        Predicting => NEMOTRON_PREDICTION QKV OUT MAYBE_OUT_BIAS POST_ATTENTION_NORM NEMOTRON_EXPERTS
            MAYBE_LATENT;
    }
    "minimax-01" [RMS, (Always, &["residual_scale"])] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM OUT FFN_NORM ROUTER MINIMAX_EXPERTS;
        Linear(8) => DECAYING;
        Not(&Linear(8)) => QKV;
    }
}
