//! Encoders of texts, and T5.

use super::attention::{
    ATTN_NORM, EMBEDDING, FREE_HEADS, LAYER_NORM, MAYBE_OUT_BIAS, MAYBE_OUTPUT, NARROW_OUT,
    NARROW_QKV, OUT_BIAS, RMS, SAME_HEADS,
};
use super::feed_forward::{FFN_NORM, FUSED_MLP, MAYBE_UNGATED_BIASES, MLP, UNGATED};
use super::sizes::When::Always;
use super::sizes::{CONTEXT, EMBD, FF, HEADS, KEYS, Size, VALUES, VOCAB, When};
use super::{Row, graphs, rows};

const TYPES: Size = Size::General("tokenizer.ggml.token_type_count");
const TYPE_COUNT: (When, &[&str]) = (Always, &["tokenizer.ggml.token_type_count"]);

const BERT_ENDS: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB];
    "token_embd_norm.weight" [EMBD];
    "token_embd_norm.bias" [EMBD];
};

const MAYBE_TYPES: &[Row] = rows! {
    "token_types.weight" [EMBD, TYPES] optional;
};

const NEEDED_TYPES: &[Row] = rows! {
    "token_types.weight" [EMBD, TYPES];
};

const JINA_HEAD: &[Row] = rows! {
    "cls.weight" [EMBD, Size::N(1)] optional;
    "cls.bias" [Size::N(1)] optional;
};

/// Norms of models for code.
const JINA_NORMS: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [EMBD] optional;
    "blk.{i}.attn_q_norm.bias" [EMBD] optional;
    "blk.{i}.attn_k_norm.weight" [EMBD] optional;
    "blk.{i}.attn_k_norm.bias" [EMBD] optional;
    "blk.{i}.attn_norm_2.weight" [EMBD] optional;
    "blk.{i}.attn_norm_2.bias" [EMBD] optional;
};

/// Of a fused matrix; one without a gate has half of it.
const FUSED_BIASES: &[Row] = rows! {
    "blk.{i}.ffn_up.bias" [Size::Product(&[Size::N(2), FF])] optional;
    "blk.{i}.ffn_down.bias" [EMBD];
};

const POSITIONS: &[Row] = rows! {
    "position_embd.weight" [EMBD, CONTEXT];
};

/// The head of a model that scores texts.
const HEAD: &[Row] = rows! {
    "cls.weight" [EMBD, EMBD] optional;
    "cls.bias" [EMBD] optional;
    "cls.output.weight" [EMBD, Size::Labels] optional;
    "cls.output.bias" [Size::Labels] optional;
};

const BERT_NORMS: &[Row] = rows! {
    "blk.{i}.attn_output_norm.weight" [EMBD];
    "blk.{i}.attn_output_norm.bias" [EMBD];
    "blk.{i}.layer_output_norm.weight" [EMBD];
    "blk.{i}.layer_output_norm.bias" [EMBD];
};

const GATE: &[Row] = rows! {
    "blk.{i}.ffn_gate.weight" [EMBD, FF];
};

const MODERN_ENDS: &[Row] = rows! {
    "token_embd_norm.weight" [EMBD];
    "cls.output.weight" [EMBD, Size::Labels] optional;
    "cls.output.bias" [Size::Labels] optional;
    "cls.weight" [EMBD, EMBD] optional;
    "cls.norm.weight" [EMBD] optional;
};

const WIDE_QKV: &[Row] = rows! {
    "blk.{i}.attn_qkv.weight" [EMBD, Size::Product(&[Size::N(3), EMBD])];
};

/// The first layer may do without.
const FIRST_NORM: &[Row] = rows! {
    "blk.0.attn_norm.weight" [EMBD] optional;
};

const NEO: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB];
    "enc.output_norm.weight" [EMBD];
    "blk.{i}.attn_qkv.weight" [EMBD, Size::Sum(&[EMBD, KEYS, VALUES])];
};

const BUCKETS: Size = Size::Key("attention.relative_buckets_count");
const T5_KEYS: (When, &[&str]) = (Always, &["attention.relative_buckets_count"]);

const T5_ENDS: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB];
    "enc.output_norm.weight" [EMBD];
};

/// Layers share the biases of positions of the first one.
const T5_BIASES: &[Row] = rows! {
    "enc.blk.0.attn_rel_b.weight" [HEADS, BUCKETS];
};

const T5_DECODER_BIASES: &[Row] = rows! {
    "dec.blk.0.attn_rel_b.weight" [HEADS, BUCKETS];
};

const T5_ENCODER: &[Row] = rows! {
    "enc.blk.{i}.attn_norm.weight" [EMBD];
    "enc.blk.{i}.attn_rel_b.weight" [HEADS, BUCKETS] optional;
    "enc.blk.{i}.attn_q.weight" [EMBD, KEYS];
    "enc.blk.{i}.attn_k.weight" [EMBD, KEYS];
    "enc.blk.{i}.attn_v.weight" [EMBD, VALUES];
    "enc.blk.{i}.attn_o.weight" [VALUES, EMBD];
    "enc.blk.{i}.ffn_norm.weight" [EMBD];
    "enc.blk.{i}.ffn_gate.weight" [EMBD, FF] optional;
    "enc.blk.{i}.ffn_down.weight" [FF, EMBD];
    "enc.blk.{i}.ffn_up.weight" [EMBD, FF];
};

const T5_DECODER: &[Row] = rows! {
    "dec.output_norm.weight" [EMBD];
    "dec.blk.{i}.attn_norm.weight" [EMBD];
    "dec.blk.{i}.attn_rel_b.weight" [HEADS, BUCKETS] optional;
    "dec.blk.{i}.attn_q.weight" [EMBD, KEYS];
    "dec.blk.{i}.attn_k.weight" [EMBD, KEYS];
    "dec.blk.{i}.attn_v.weight" [EMBD, VALUES];
    "dec.blk.{i}.attn_o.weight" [VALUES, EMBD];
    "dec.blk.{i}.cross_attn_norm.weight" [EMBD];
    "dec.blk.{i}.cross_attn_rel_b.weight" [HEADS, BUCKETS] optional;
    "dec.blk.{i}.cross_attn_q.weight" [EMBD, KEYS];
    "dec.blk.{i}.cross_attn_k.weight" [EMBD, KEYS];
    "dec.blk.{i}.cross_attn_v.weight" [EMBD, VALUES];
    "dec.blk.{i}.cross_attn_o.weight" [VALUES, EMBD];
    "dec.blk.{i}.ffn_norm.weight" [EMBD];
    "dec.blk.{i}.ffn_gate.weight" [EMBD, FF] optional;
    "dec.blk.{i}.ffn_down.weight" [FF, EMBD];
    "dec.blk.{i}.ffn_up.weight" [EMBD, FF];
};

graphs! {
    "bert" [LAYER_NORM, TYPE_COUNT] SAME_HEADS {
        Always => BERT_ENDS MAYBE_TYPES POSITIONS HEAD NARROW_QKV NARROW_OUT MAYBE_OUT_BIAS BERT_NORMS UNGATED
            MAYBE_UNGATED_BIASES;
    }
    "nomic-bert" [LAYER_NORM, TYPE_COUNT] SAME_HEADS {
        Always => BERT_ENDS MAYBE_TYPES NARROW_QKV NARROW_OUT MAYBE_OUT_BIAS BERT_NORMS UNGATED
            MAYBE_UNGATED_BIASES GATE;
    }
    "modern-bert" [LAYER_NORM] SAME_HEADS {
        Always => EMBEDDING MODERN_ENDS FIRST_NORM WIDE_QKV NARROW_OUT FUSED_MLP FFN_NORM;
        When::From(Size::N(1)) => ATTN_NORM;
    }
    "jina-bert-v2" [LAYER_NORM, TYPE_COUNT] SAME_HEADS {
        Always => BERT_ENDS NEEDED_TYPES JINA_HEAD NARROW_QKV JINA_NORMS NARROW_OUT OUT_BIAS BERT_NORMS FUSED_MLP
            FUSED_BIASES;
    }
    "eurobert" [RMS] SAME_HEADS {
        Always => EMBEDDING ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM MLP;
    }
    "neo-bert" [RMS] SAME_HEADS {
        Always => NEO HEAD ATTN_NORM NARROW_OUT FFN_NORM FUSED_MLP;
    }
    "t5" [RMS, T5_KEYS] SAME_HEADS {
        Always => T5_ENDS MAYBE_OUTPUT T5_BIASES T5_ENCODER T5_DECODER_BIASES T5_DECODER;
    }
    "t5encoder" [RMS, T5_KEYS] FREE_HEADS {
        Always => T5_ENDS MAYBE_OUTPUT T5_BIASES T5_ENCODER;
    }
}
