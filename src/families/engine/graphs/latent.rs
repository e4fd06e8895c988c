//! Decoders whose keys and values are made of a latent vector.

use super::attention::{
    ATTN_NORM, EMBEDDING, FREE_HEADS, LONG_FACTORS, MAYBE_OUTPUT, OUTPUT, PREDICTION, RMS,
    projections,
};
use super::feed_forward::{
    CHOICE_BIAS, DENSE, FF_EXPERT, FF_SHARED, FFN_NORM, MAYBE_CHOICE_BIAS, MLP, ROUTER,
    SHARED_COUNT, UNGATED, expert_stacks, fused_expert_stacks, shared_experts,
};
use super::sizes::When::{
    Above0, All, Always, Any, From, Is, MayPredict, Not, Predicting, Somewhere,
};
use super::sizes::{EMBD, EXPERTS, HEADS, Size, VOCAB, When};
use super::{Row, graphs, rows};

const Q_RANK: Size = Size::Key("attention.q_lora_rank");
const KV_RANK: Size = Size::Key("attention.kv_lora_rank");
const MLA_KEY: Size = Size::Key("attention.key_length_mla");
const MLA_VALUE: Size = Size::Key("attention.value_length_mla");
const KEY: Size = Size::Or(&[MLA_KEY, Size::HeadK]);
const VALUE: Size = Size::Or(&[MLA_VALUE, Size::HeadV]);
/// The part of a head that does not rotate.
const FIXED: Size = Size::Minus(&[KEY, Size::Rotating]);
const ALL_VALUES: Size = Size::Product(&[HEADS, VALUE]);

/// Models that llama.cpp tells by their number of layers as those whose queries are made of the hidden
/// state.
const LITE: When = Any(&[
    Is(Size::Layers, 27),
    Is(Size::Layers, 26),
    All(&[Is(Size::Layers, 48), Is(VOCAB, 128_256)]),
]);
const LATENT_QUERIES: When = All(&[Not(&LITE), Above0(Q_RANK)]);
const SPLIT: When = All(&[Above0(MLA_KEY), Above0(MLA_VALUE)]);

/// All heads read one latent vector, as wide as its rank and what rotates.
const ONE_HEAD: &[(When, [Size; 2])] = &[
    (SPLIT, [Size::HeadK, Size::Sum(&[KV_RANK, Size::Rotating])]),
    (SPLIT, [Size::KvHeads, Size::N(1)]),
];

const LEAST: Size = Size::N(64);
/// Heads of the indexer are multiplied by a matrix of 64 rows, or more.
const WHOLE_INDEX: &[(When, [Size; 2])] =
    &[(Always, [Size::Product(&[LEAST, Size::Quotient(&[INDEX_HEAD, LEAST])]), INDEX_HEAD])];
const ONE_HEAD_AND_INDEX: &[(When, [Size; 2])] = &[ONE_HEAD[0], ONE_HEAD[1], WHOLE_INDEX[0]];

const QUERIES: &[Row] = rows! {
    "blk.{i}.attn_q_a_norm.weight" [Q_RANK];
    "blk.{i}.attn_q_a.weight" [EMBD, Q_RANK];
    "blk.{i}.attn_q_b.weight" [Q_RANK, Size::Product(&[HEADS, KEY])];
};

const PLAIN_QUERIES: &[Row] = rows! {
    "blk.{i}.attn_q.weight" [EMBD, Size::Product(&[HEADS, KEY])];
};

const LATENT: &[Row] = rows! {
    "blk.{i}.attn_kv_a_norm.weight" [KV_RANK];
    "blk.{i}.attn_kv_a_mqa.weight" [EMBD, Size::Sum(&[KV_RANK, Size::Rotating])];
    "blk.{i}.attn_output.weight" [ALL_VALUES, EMBD];
};

const SPLIT_KV: &[Row] = rows! {
    "blk.{i}.attn_k_b.weight" [FIXED, KV_RANK, HEADS];
    "blk.{i}.attn_v_b.weight" [KV_RANK, VALUE, HEADS];
};

const WHOLE_KV: &[Row] = rows! {
    "blk.{i}.attn_kv_b.weight" [KV_RANK, Size::Product(&[HEADS, Size::Sum(&[FIXED, VALUE])])];
};

const WINDOW_RANK: Size = Size::Key("attention.kv_lora_rank_swa");
const WINDOW_KEY: Size = Size::Key("attention.key_length_mla_swa");
const WINDOW_VALUE: Size = Size::Key("attention.value_length_mla_swa");
const WINDOW_KEYS: (When, &[&str]) = (
    Always,
    &[
        "leading_dense_block_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.key_length_swa",
        "attention.kv_lora_rank_swa",
        "attention.key_length_mla_swa",
        "attention.value_length_mla_swa",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.indexer.types",
        "rope.freq_base_swa",
    ],
);

const DOTS3: &[Row] = rows! {
    "blk.{i}.attn_k_norm.weight" [Size::Rotating];
    "blk.{i}.attn_gate.weight" [EMBD, HEADS];
};

/// Latent keys and values of layers with a window.
const DOTS3_WINDOW: &[Row] = rows! {
    "blk.{i}.attn_q_a_norm.weight" [Q_RANK];
    "blk.{i}.attn_q_a.weight" [EMBD, Q_RANK];
    "blk.{i}.attn_q_b.weight" [Q_RANK, Size::Product(&[HEADS, WINDOW_KEY])];
    "blk.{i}.attn_kv_a_norm.weight" [WINDOW_RANK];
    "blk.{i}.attn_kv_a_mqa.weight" [EMBD, Size::Sum(&[WINDOW_RANK, Size::Rotating])];
    "blk.{i}.attn_output.weight" [Size::Product(&[HEADS, WINDOW_VALUE]), EMBD];
    "blk.{i}.attn_k_b.weight" [Size::Minus(&[WINDOW_KEY, Size::Rotating]), WINDOW_RANK, HEADS];
    "blk.{i}.attn_v_b.weight" [WINDOW_RANK, WINDOW_VALUE, HEADS];
};

const INDEX_HEAD: Size = Size::Key("attention.indexer.key_length");
const INDEX_HEADS: Size = Size::Key("attention.indexer.head_count");

/// The indexer that chooses the tokens that are seen.
const INDEXER: &[Row] = rows! {
    "blk.{i}.indexer.k_norm.weight" [INDEX_HEAD];
    "blk.{i}.indexer.k_norm.bias" [INDEX_HEAD];
    "blk.{i}.indexer.proj.weight" [EMBD, INDEX_HEADS];
    "blk.{i}.indexer.attn_k.weight" [EMBD, INDEX_HEAD];
    "blk.{i}.indexer.attn_q_b.weight" [Q_RANK, Size::Product(&[INDEX_HEADS, INDEX_HEAD])];
};

const TYPES: When = Above0(Size::Key("attention.indexer.types"));
/// In layers that share the choice of another one, there is none.
const CHOOSING: When = Any(&[TYPES, Not(&Somewhere(&TYPES)), Predicting]);

const STACKS: &[Row] = expert_stacks!(FF_EXPERT);
const FUSED_STACKS: &[Row] = fused_expert_stacks!(FF_EXPERT);
const SHARED: &[Row] = shared_experts!(Size::Product(&[FF_EXPERT, SHARED_COUNT]));

const EXPERT_KEYS: (When, &[&str]) =
    (Always, &["expert_feed_forward_length", "expert_shared_count"]);
const KV_KEYS: (When, &[&str]) = (Always, &["attention.kv_lora_rank"]);
const Q_KEYS: (When, &[&str]) = (Not(&LITE), &["attention.q_lora_rank"]);
const INDEX_KEYS: (When, &[&str]) = (
    Always,
    &[
        "attention.q_lora_rank",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
    ],
);
const GATING: (When, &[&str]) = (Always, &["expert_gating_func"]);

/// Copies of the state.
const COPIES: Size = Size::Key("hyper_connection.count");
const TWICE: Size = Size::Product(&[Size::N(2), COPIES]);
const STATE: Size = Size::Product(&[COPIES, EMBD]);

const HY_ENDS: &[Row] = rows! {
    "output_hc_fn.weight" [STATE, COPIES];
    "output_hc_base.weight" [COPIES];
    "output_hc_scale.weight" [Size::N(1)];
};

const HY_LAYERS: &[Row] = rows! {
    "blk.{i}.attn_sinks.weight" [HEADS];
    "blk.{i}.attn_gate.weight" [EMBD, ALL_VALUES];
    "blk.{i}.hc_attn_fn.weight" [STATE, TWICE];
    "blk.{i}.hc_attn_base.weight" [TWICE];
    "blk.{i}.hc_attn_scale.weight" [Size::N(2)];
    "blk.{i}.hc_ffn_fn.weight" [STATE, TWICE];
    "blk.{i}.hc_ffn_base.weight" [TWICE];
    "blk.{i}.hc_ffn_scale.weight" [Size::N(2)];
};

const HY_KEYS: (When, &[&str]) = (
    Always,
    &[
        "attention.q_lora_rank",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "hyper_connection.count",
        "hyper_connection.epsilon",
        "hyper_connection.magnitude",
    ],
);

/// Layers without a head of keys have linear attention.
const ATTENDS: When = Above0(Size::KvHeads);
const LATENT_QUERIES_THERE: When = When::Has("blk.{i}.attn_q_a_norm.weight");

const KDA_HEAD: Size = Size::Key("kda.head_dim");
const KDA_WIDTH: Size = Size::Product(&[HEADS, KDA_HEAD]);
const KERNEL: Size = Size::Key("ssm.conv_kernel");

/// Linear attention with a decay for each dimension of a head.
const KDA: &[Row] = rows! {
    "blk.{i}.ssm_conv1d_q.weight" [KERNEL, Size::N(1), KDA_WIDTH];
    "blk.{i}.ssm_conv1d_k.weight" [KERNEL, Size::N(1), KDA_WIDTH];
    "blk.{i}.ssm_conv1d_v.weight" [KERNEL, Size::N(1), KDA_WIDTH];
    "blk.{i}.ssm_beta.weight" [EMBD, HEADS];
    "blk.{i}.ssm_dt.bias" [KDA_WIDTH];
    "blk.{i}.ssm_norm.weight" [KDA_HEAD];
    "blk.{i}.attn_output.weight" [KDA_WIDTH, EMBD];
};

/// Decays and gates of low rank.
const LOW_RANK: &[Row] = rows! {
    "blk.{i}.ssm_f_a.weight" [EMBD, KDA_HEAD];
    "blk.{i}.ssm_f_b.weight" [KDA_HEAD, KDA_WIDTH];
    "blk.{i}.ssm_g_a.weight" [EMBD, KDA_HEAD];
    "blk.{i}.ssm_g_b.weight" [KDA_HEAD, KDA_WIDTH];
};

/// Decays and gates of whole matrices.
const WHOLE_RANK: &[Row] = rows! {
    "blk.{i}.ssm_f_a.weight" [EMBD, KDA_WIDTH];
    "blk.{i}.ssm_g_a.weight" [EMBD, KDA_WIDTH];
};

const DECAYS: &[Row] = rows! {
    "blk.{i}.ssm_a" [Size::N(1), HEADS];
};

const LISTED_DECAYS: &[Row] = rows! {
    "blk.{i}.ssm_a" [HEADS];
};

const MAYBE_SHARED: &[Row] = rows! {
    "blk.{i}.ffn_gate_shexp.weight" [EMBD, Size::Product(&[FF_EXPERT, SHARED_COUNT])] optional;
    "blk.{i}.ffn_down_shexp.weight" [Size::Product(&[FF_EXPERT, SHARED_COUNT]), EMBD] optional;
    "blk.{i}.ffn_up_shexp.weight" [EMBD, Size::Product(&[FF_EXPERT, SHARED_COUNT])] optional;
};

const PAIR: &[Row] = rows! {
    "blk.{i}.ffn_down_shexp.weight" [Size::Product(&[FF_EXPERT, SHARED_COUNT]), EMBD];
    "blk.{i}.ffn_up_shexp.weight" [EMBD, Size::Product(&[FF_EXPERT, SHARED_COUNT])];
};

const KDA_QKV: &[Row] = projections!(unless, KDA_WIDTH, KDA_WIDTH, KDA_WIDTH);

const KIMI_KEYS: (When, &[&str]) = (
    Always,
    &[
        "attention.key_length",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "ssm.conv_kernel",
        "kda.head_dim",
        "leading_dense_block_count",
    ],
);

/// A gate for each head.
const HEAD_GATE: &[Row] = rows! {
    "blk.{i}.attn_gate.weight" [EMBD, HEADS];
};

const SHARED_OR_ALL: &[Row] =
    shared_experts!(Size::Or(&[FF_SHARED, Size::Product(&[FF_EXPERT, SHARED_COUNT])]));

const BAILING_PREDICTION: &[Row] = rows! {
    "blk.{i}.nextn.eh_proj.weight" [Size::Product(&[Size::N(2), EMBD]), EMBD];
    "blk.{i}.nextn.enorm.weight" [EMBD];
    "blk.{i}.nextn.hnorm.weight" [EMBD];
    "blk.{i}.layer_output_norm.weight" [EMBD];
};

const BAILING_KEYS: (When, &[&str]) = (Always, &["kda.gate_lower_bound"]);

/// The indexer of pooled keys.
const POOLED_INDEXER: &[Row] = rows! {
    "blk.{i}.indexer_compressor_gate.weight" [EMBD, INDEX_HEAD];
    "blk.{i}.indexer_compressor_ape.weight" [INDEX_HEAD, Size::Key("attention.indexer.kpool")];
};
/// What layers without one may have of it.
const MAYBE_INDEXER: &[Row] = rows! {
    "blk.{i}.indexer.k_norm.weight" [INDEX_HEAD] optional;
    "blk.{i}.indexer.k_norm.bias" [INDEX_HEAD] optional;
    "blk.{i}.indexer.proj.weight" [EMBD, INDEX_HEADS] optional;
    "blk.{i}.indexer.attn_k.weight" [EMBD, INDEX_HEAD] optional;
    "blk.{i}.indexer.attn_q_b.weight" [Q_RANK, Size::Product(&[INDEX_HEADS, INDEX_HEAD])] optional;
    "blk.{i}.indexer_compressor_gate.weight" [EMBD, INDEX_HEAD] optional;
    "blk.{i}.indexer_compressor_ape.weight" [INDEX_HEAD, Size::Key("attention.indexer.kpool")] optional;
};

const MIX: Size = Size::Product(&[Size::Sum(&[Size::N(2), COPIES]), COPIES]);
const GLM_CONNECTIONS: &[Row] = rows! {
    "blk.{i}.hc_attn_fn.weight" [STATE, MIX];
    "blk.{i}.hc_attn_base.weight" [MIX];
    "blk.{i}.hc_attn_scale.weight" [Size::N(3)];
    "blk.{i}.hc_ffn_fn.weight" [STATE, MIX];
    "blk.{i}.hc_ffn_base.weight" [MIX];
    "blk.{i}.hc_ffn_scale.weight" [Size::N(3)];
};

const GLM_KEYS: (When, &[&str]) = (
    Always,
    &[
        "ssm.conv_kernel",
        "kda.head_dim",
        "attention.indexer.kpool",
        "hyper_connection.count",
        "hyper_connection.sinkhorn_iterations",
        "hyper_connection.epsilon",
    ],
);
/// Without a list, all layers choose.
const LISTED: When = Any(&[TYPES, Not(&Somewhere(&TYPES))]);
const FOUR_COPIES: &[(When, [Size; 2])] = &[(Always, [COPIES, Size::N(4)])];

const RATIO: Size = Size::Key("attention.compress_ratios");
const COMPRESSES: When = Above0(RATIO);
const COMPRESSES_FOUR: When = When::Is(RATIO, 4);
const COMPRESSES_MORE: When = All(&[COMPRESSES, Not(&COMPRESSES_FOUR)]);
const HASHES: When = Not(&From(Size::Key("hash_layer_count")));
const OUT_GROUPS: Size = Size::Key("attention.output_group_count");
const OUT_RANK: Size = Size::Product(&[OUT_GROUPS, Size::Key("attention.output_lora_rank")]);
const V4_EXPERT: Size = Size::Key("expert_feed_forward_length");
const V4_SHARED: Size = Size::Product(&[V4_EXPERT, Size::Key("expert_shared_count")]);
const TWO_HEADS: Size = Size::Product(&[Size::N(2), Size::HeadK]);
const TWO_INDEX_HEADS: Size = Size::Product(&[Size::N(2), INDEX_HEAD]);

const V4_KEYS: (When, &[&str]) = (
    Always,
    &[
        "attention.q_lora_rank",
        "attention.sliding_window",
        "expert_feed_forward_length",
        "expert_shared_count",
        "expert_weights_scale",
        "expert_weights_norm",
        "swiglu_clamp_exp",
        "attention.output_group_count",
        "attention.output_lora_rank",
        "attention.compress_ratios",
        "attention.compress_rope_freq_base",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "hyper_connection.count",
        "hyper_connection.sinkhorn_iterations",
        "hyper_connection.epsilon",
        "hash_layer_count",
    ],
);

/// There is a ratio for each layer, one head of keys that are values, and heads of the indexer are as of
/// [`WHOLE_INDEX`].
const RATIOS: &[(When, [Size; 2])] = &[
    (Always, [Size::KvHeads, Size::N(1)]),
    (Always, [Size::HeadV, Size::HeadK]),
    (
        Always,
        [
            Size::Max(&[Size::Len("attention.compress_ratios"), Size::Key("block_count")]),
            Size::Len("attention.compress_ratios"),
        ],
    ),
    WHOLE_INDEX[0],
];

const V4: &[Row] = rows! {
    "output_hc_fn.weight" [STATE, COPIES];
    "output_hc_base.weight" [COPIES];
    "output_hc_scale.weight" [Size::N(1)];
    "blk.{i}.attn_sinks.weight" [HEADS];
    "blk.{i}.attn_q_a.weight" [EMBD, Q_RANK];
    "blk.{i}.attn_q_a_norm.weight" [Q_RANK];
    "blk.{i}.attn_q_b.weight" [Q_RANK, Size::Product(&[Size::HeadK, HEADS])];
    "blk.{i}.attn_kv.weight" [EMBD, Size::HeadK];
    "blk.{i}.attn_kv_a_norm.weight" [Size::HeadK];
    "blk.{i}.attn_output_a.weight" [Size::Quotient(&[Size::Product(&[Size::HeadK, HEADS]), OUT_GROUPS]), OUT_RANK];
    "blk.{i}.attn_output_b.weight" [OUT_RANK, EMBD];
    "blk.{i}.ffn_gate_inp.weight" [EMBD, EXPERTS];
    "blk.{i}.exp_probs_b_vl.bias" [EXPERTS] optional;
    "blk.{i}.ffn_gate_exps.weight" [EMBD, V4_EXPERT, EXPERTS];
    "blk.{i}.ffn_down_exps.weight" [V4_EXPERT, EMBD, EXPERTS];
    "blk.{i}.ffn_up_exps.weight" [EMBD, V4_EXPERT, EXPERTS];
    "blk.{i}.ffn_gate_shexp.weight" [EMBD, V4_SHARED];
    "blk.{i}.ffn_down_shexp.weight" [V4_SHARED, EMBD];
    "blk.{i}.ffn_up_shexp.weight" [EMBD, V4_SHARED];
};

const V4_TABLE: &[Row] = rows! {
    "blk.{i}.ffn_gate_tid2eid.weight" [Size::Key("expert_used_count"), VOCAB];
};

const V4_BIAS: &[Row] = rows! {
    "blk.{i}.exp_probs_b.bias" [EXPERTS];
};

const V4_FOUR: &[Row] = rows! {
    "blk.{i}.attn_compressor_kv.weight" [EMBD, TWO_HEADS];
    "blk.{i}.attn_compressor_gate.weight" [EMBD, TWO_HEADS];
    "blk.{i}.attn_compressor_ape.weight" [TWO_HEADS, RATIO];
    "blk.{i}.attn_compressor_norm.weight" [Size::HeadK];
    "blk.{i}.indexer.proj.weight" [EMBD, Size::Key("attention.indexer.head_count")];
    "blk.{i}.indexer.attn_q_b.weight" [Q_RANK, Size::Product(&[Size::Key("attention.indexer.head_count"), INDEX_HEAD])];
    "blk.{i}.indexer_compressor_kv.weight" [EMBD, TWO_INDEX_HEADS];
    "blk.{i}.indexer_compressor_gate.weight" [EMBD, TWO_INDEX_HEADS];
    "blk.{i}.indexer_compressor_ape.weight" [TWO_INDEX_HEADS, RATIO];
    "blk.{i}.indexer_compressor_norm.weight" [INDEX_HEAD];
};

const V4_MORE: &[Row] = rows! {
    "blk.{i}.attn_compressor_kv.weight" [EMBD, Size::HeadK];
    "blk.{i}.attn_compressor_gate.weight" [EMBD, Size::HeadK];
    "blk.{i}.attn_compressor_ape.weight" [Size::HeadK, RATIO];
    "blk.{i}.attn_compressor_norm.weight" [Size::HeadK];
};

graphs! {
    "deepseek4" [RMS, V4_KEYS, GATING] RATIOS {
        Always => EMBEDDING OUTPUT ATTN_NORM FFN_NORM GLM_CONNECTIONS V4;
        COMPRESSES_FOUR => V4_FOUR;
        COMPRESSES_MORE => V4_MORE;
        HASHES => V4_TABLE;
        Not(&HASHES) => V4_BIAS;
    }
    "deepseek2" [RMS, EXPERT_KEYS, KV_KEYS, Q_KEYS] ONE_HEAD {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM LATENT FFN_NORM;
        LATENT_QUERIES => QUERIES;
        Not(&LATENT_QUERIES) => PLAIN_QUERIES;
        SPLIT => SPLIT_KV;
        Not(&SPLIT) => WHOLE_KV;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER MAYBE_CHOICE_BIAS FUSED_STACKS SHARED;
        MayPredict => PREDICTION;
    }
    "minicpm3" [RMS, KV_KEYS, (Always, &["attention.q_lora_rank"])] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QUERIES LATENT WHOLE_KV FFN_NORM MLP LONG_FACTORS;
    }
    "deepseek32" [RMS, EXPERT_KEYS, KV_KEYS, INDEX_KEYS, GATING] ONE_HEAD_AND_INDEX {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM LATENT FFN_NORM QUERIES SPLIT_KV INDEXER;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER MAYBE_CHOICE_BIAS STACKS SHARED;
        MayPredict => PREDICTION;
    }
    "dots3note" [RMS, EXPERT_KEYS, KV_KEYS, INDEX_KEYS, GATING, WINDOW_KEYS] WHOLE_INDEX {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM FFN_NORM DOTS3;
        Not(&When::Window) => LATENT QUERIES SPLIT_KV;
        When::Window => DOTS3_WINDOW;
        TYPES => INDEXER;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER CHOICE_BIAS STACKS SHARED;
    }
    "glm-dsa" [RMS, EXPERT_KEYS, KV_KEYS, INDEX_KEYS] ONE_HEAD_AND_INDEX {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM LATENT FFN_NORM QUERIES SPLIT_KV;
        CHOOSING => INDEXER;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER MAYBE_CHOICE_BIAS STACKS SHARED;
        MayPredict => PREDICTION;
    }
    "hy_v4" [RMS, EXPERT_KEYS, KV_KEYS, HY_KEYS, GATING] ONE_HEAD {
        Always => EMBEDDING OUTPUT HY_ENDS ATTN_NORM HY_LAYERS LATENT FFN_NORM QUERIES SPLIT_KV;
        All(&[CHOOSING, Above0(Size::Key("attention.indexer.top_k"))]) => INDEXER;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER MAYBE_CHOICE_BIAS STACKS SHARED;
    }
    "kimi-linear" [RMS, EXPERT_KEYS, KV_KEYS, KIMI_KEYS, GATING] FREE_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM FFN_NORM;
        Not(&ATTENDS) => KDA LOW_RANK DECAYS KDA_QKV;
        ATTENDS => LATENT SPLIT_KV;
        All(&[ATTENDS, LATENT_QUERIES_THERE]) => QUERIES;
        All(&[ATTENDS, Not(&LATENT_QUERIES_THERE)]) => PLAIN_QUERIES;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER CHOICE_BIAS STACKS MAYBE_SHARED;
        Any(&[When::Has("blk.{i}.ffn_up_shexp.weight"), When::Has("blk.{i}.ffn_down_shexp.weight")]) => PAIR;
    }
    "plm" [RMS, KV_KEYS] FREE_HEADS {
        Always => EMBEDDING ATTN_NORM PLAIN_QUERIES LATENT WHOLE_KV FFN_NORM UNGATED;
    }
    "bailingmoe3" [RMS, EXPERT_KEYS, KV_KEYS, KIMI_KEYS, BAILING_KEYS, GATING] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM FFN_NORM;
        Not(&ATTENDS) => KDA WHOLE_RANK DECAYS KDA_QKV;
        ATTENDS => LATENT SPLIT_KV HEAD_GATE;
        All(&[ATTENDS, Above0(Q_RANK)]) => QUERIES;
        All(&[ATTENDS, Not(&Above0(Q_RANK))]) => PLAIN_QUERIES;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER CHOICE_BIAS STACKS SHARED_OR_ALL;
        MayPredict => BAILING_PREDICTION;
    }
    "glm5-next" [RMS, EXPERT_KEYS, KV_KEYS, INDEX_KEYS, GLM_KEYS] FOUR_COPIES {
        Always => EMBEDDING OUTPUT ATTN_NORM FFN_NORM;
        Not(&Predicting) => GLM_CONNECTIONS;
        Not(&ATTENDS) => KDA LOW_RANK LISTED_DECAYS KDA_QKV;
        ATTENDS => QUERIES LATENT SPLIT_KV;
        All(&[ATTENDS, LISTED]) => INDEXER POOLED_INDEXER;
        All(&[ATTENDS, Not(&LISTED)]) => MAYBE_INDEXER;
        Not(&From(DENSE)) => MLP;
        From(DENSE) => ROUTER CHOICE_BIAS STACKS SHARED;
        MayPredict => PREDICTION;
    }
}
