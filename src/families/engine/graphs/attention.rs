//! Rows of attention, of the ends of a model and of its layers that predict further tokens, which many
//! tables share.

use super::sizes::{EMBD, HALF_ROTATING, HEAD, HEADS, KEYS, QUERIES, Size, VALUES, VOCAB, When};
use super::{Row, rows};

/// The embedding and the last norm.
pub(super) const EMBEDDING: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB];
    "output_norm.weight" [EMBD];
};

/// An output that must be there.
pub(super) const OUTPUT: &[Row] = rows! {
    "output.weight" [EMBD, VOCAB];
};

/// An output that is the embedding if it is missing.
pub(super) const MAYBE_OUTPUT: &[Row] = rows! {
    "output.weight" [EMBD, VOCAB] optional;
};

pub(super) const OUTPUT_NORM_BIAS: &[Row] = rows! {
    "output_norm.bias" [EMBD];
};

/// The answers of a model that ranks texts.
pub(super) const RANKS: &[Row] = rows! {
    "cls.output.weight" [EMBD, Size::Labels] optional;
};

pub(super) const ATTN_NORM: &[Row] = rows! {
    "blk.{i}.attn_norm.weight" [EMBD];
};

pub(super) const ATTN_NORM_BIAS: &[Row] = rows! {
    "blk.{i}.attn_norm.bias" [EMBD];
};

/// The rows of `create_tensor_qkv`: queries, keys and values are one matrix or three, with biases or
/// without.
macro_rules! projections {
    ($need:ident, $queries:expr, $keys:expr, $values:expr) => {
        $crate::families::engine::graphs::rows! {
            "blk.{i}.attn_qkv.weight" [EMBD, Size::Sum(&[$queries, $keys, $values])] optional;
            "blk.{i}.attn_qkv.bias" [Size::Sum(&[$queries, $keys, $values])] optional;
            "blk.{i}.attn_q.weight" [EMBD, $queries] $need "blk.{i}.attn_qkv.weight";
            "blk.{i}.attn_k.weight" [EMBD, $keys] $need "blk.{i}.attn_qkv.weight";
            "blk.{i}.attn_v.weight" [EMBD, $values] $need "blk.{i}.attn_qkv.weight";
            "blk.{i}.attn_q.bias" [$queries] optional;
            "blk.{i}.attn_k.bias" [$keys] optional;
            "blk.{i}.attn_v.bias" [$values] optional;
        }
    };
}
pub(super) use projections;

/// All heads of queries together are as wide as the hidden state.
pub(super) const NARROW_QKV: &[Row] = projections!(unless, EMBD, VALUES, VALUES);
/// Heads have any size.
pub(super) const QKV: &[Row] = projections!(unless, QUERIES, KEYS, VALUES);

/// [`NARROW_QKV`] of architectures that always have queries, keys and values in one matrix.
pub(super) const FUSED_QKV: &[Row] = rows! {
    "blk.{i}.attn_qkv.weight" [EMBD, Size::Sum(&[EMBD, VALUES, VALUES])];
};

pub(super) const FUSED_QKV_BIAS: &[Row] = rows! {
    "blk.{i}.attn_qkv.bias" [Size::Sum(&[EMBD, VALUES, VALUES])];
};

pub(super) const NARROW_OUT: &[Row] = rows! {
    "blk.{i}.attn_output.weight" [EMBD, EMBD];
};

pub(super) const OUT: &[Row] = rows! {
    "blk.{i}.attn_output.weight" [QUERIES, EMBD];
};

pub(super) const OUT_BIAS: &[Row] = rows! {
    "blk.{i}.attn_output.bias" [EMBD];
};

pub(super) const MAYBE_OUT_BIAS: &[Row] = rows! {
    "blk.{i}.attn_output.bias" [EMBD] optional;
};

/// A gate for each value of attention.
pub(super) const VALUE_GATE: &[Row] = rows! {
    "blk.{i}.attn_gate.weight" [EMBD, QUERIES];
};

/// Norms of a head.
pub(super) const HEAD_NORMS: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [HEAD];
    "blk.{i}.attn_k_norm.weight" [HEAD];
};

pub(super) const MAYBE_HEAD_NORMS: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [HEAD] optional;
    "blk.{i}.attn_k_norm.weight" [HEAD] optional;
};

/// Norms of each head.
pub(super) const ALL_HEAD_NORMS: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [HEAD, HEADS];
    "blk.{i}.attn_k_norm.weight" [HEAD, Size::KvHeads];
};

pub(super) const POST_ATTENTION_NORM: &[Row] = rows! {
    "blk.{i}.post_attention_norm.weight" [EMBD];
};

/// Norms behind the halves of a layer, whose names have no ends.
pub(super) const BARE_NORMS: &[Row] = rows! {
    "blk.{i}.post_attention_norm" [EMBD];
    "blk.{i}.post_ffw_norm" [EMBD];
};

/// Factors of rope for all layers.
pub(super) const ROPE_FREQS: &[Row] = rows! {
    "rope_freqs.weight" [HALF_ROTATING] optional;
};

/// Factors of rope for long and for short texts.
pub(super) const LONG_FACTORS: &[Row] = rows! {
    "rope_factors_long.weight" [HALF_ROTATING] optional;
    "rope_factors_short.weight" [HALF_ROTATING] optional;
};

/// The scaling of rope that has such factors.
pub(super) const LONGROPE: When = When::Text("rope.scaling.type", "longrope");

/// What a layer that predicts a further token has beside those of other layers.
pub(super) const PREDICTION: &[Row] = rows! {
    "blk.{i}.nextn.eh_proj.weight" [Size::Product(&[Size::N(2), EMBD]), EMBD];
    "blk.{i}.nextn.enorm.weight" [EMBD];
    "blk.{i}.nextn.hnorm.weight" [EMBD];
    "blk.{i}.nextn.embed_tokens.weight" [EMBD, VOCAB] optional;
    "blk.{i}.nextn.shared_head_head.weight" [EMBD, VOCAB] optional;
    "blk.{i}.nextn.shared_head_norm.weight" [EMBD] optional;
};

/// Heads have any sizes.
pub(super) const FREE_HEADS: &[(When, [Size; 2])] = &[];
/// A head of values is as long as one of keys.
pub(super) const SAME_HEADS: &[(When, [Size; 2])] = &[(When::Always, [Size::HeadV, Size::HeadK])];
/// And all of it rotates.
pub(super) const ROTATING_HEADS: &[(When, [Size; 2])] =
    &[SAME_HEADS[0], (When::Always, [Size::Rotating, Size::HeadV])];

pub(super) const RMS: (When, &[&str]) = (When::Always, &["attention.layer_norm_rms_epsilon"]);
pub(super) const LAYER_NORM: (When, &[&str]) = (When::Always, &["attention.layer_norm_epsilon"]);
pub(super) const SECTIONS: (When, &[&str]) = (When::Always, &["rope.dimension_sections"]);
pub(super) const WINDOW: (When, &[&str]) = (When::Always, &["attention.sliding_window"]);
