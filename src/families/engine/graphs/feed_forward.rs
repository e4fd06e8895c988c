//! Rows of feed-forward layers, which many tables share.

use super::sizes::{EMBD, EXPERTS, FF, Size, USED};
use super::{Row, rows};

pub(super) const FFN_NORM: &[Row] = rows! {
    "blk.{i}.ffn_norm.weight" [EMBD];
};

pub(super) const FFN_NORM_BIAS: &[Row] = rows! {
    "blk.{i}.ffn_norm.bias" [EMBD];
};

pub(super) const POST_FFW_NORM: &[Row] = rows! {
    "blk.{i}.post_ffw_norm.weight" [EMBD];
};

/// With a gate.
pub(super) const MLP: &[Row] = rows! {
    "blk.{i}.ffn_gate.weight" [EMBD, FF];
    "blk.{i}.ffn_down.weight" [FF, EMBD];
    "blk.{i}.ffn_up.weight" [EMBD, FF];
};

pub(super) const MAYBE_MLP_BIASES: &[Row] = rows! {
    "blk.{i}.ffn_gate.bias" [FF] optional;
    "blk.{i}.ffn_down.bias" [EMBD] optional;
    "blk.{i}.ffn_up.bias" [FF] optional;
};

/// Without a gate.
pub(super) const UNGATED: &[Row] = rows! {
    "blk.{i}.ffn_down.weight" [FF, EMBD];
    "blk.{i}.ffn_up.weight" [EMBD, FF];
};

pub(super) const UNGATED_BIASES: &[Row] = rows! {
    "blk.{i}.ffn_down.bias" [EMBD];
    "blk.{i}.ffn_up.bias" [FF];
};

pub(super) const MAYBE_UNGATED_BIASES: &[Row] = rows! {
    "blk.{i}.ffn_down.bias" [EMBD] optional;
    "blk.{i}.ffn_up.bias" [FF] optional;
};

/// The gate and the projection are one matrix.
pub(super) const FUSED_MLP: &[Row] = rows! {
    "blk.{i}.ffn_down.weight" [FF, EMBD];
    "blk.{i}.ffn_up.weight" [EMBD, Size::Product(&[Size::N(2), FF])];
};

pub(super) const ROUTER: &[Row] = rows! {
    "blk.{i}.ffn_gate_inp.weight" [EMBD, EXPERTS];
};

pub(super) const CHOICE_BIAS: &[Row] = rows! {
    "blk.{i}.exp_probs_b.bias" [EXPERTS];
};

pub(super) const MAYBE_CHOICE_BIAS: &[Row] = rows! {
    "blk.{i}.exp_probs_b.bias" [EXPERTS] optional;
};

/// Stacks of experts of the width `$width`.
macro_rules! expert_stacks {
    ($width:expr) => {
        $crate::families::engine::graphs::rows! {
            "blk.{i}.ffn_gate_exps.weight" [EMBD, $width, EXPERTS];
            "blk.{i}.ffn_down_exps.weight" [$width, EMBD, EXPERTS];
            "blk.{i}.ffn_up_exps.weight" [EMBD, $width, EXPERTS];
        }
    };
}

/// Stacks of experts, of which gates and projections may be one.
macro_rules! fused_expert_stacks {
    ($width:expr) => {
        $crate::families::engine::graphs::rows! {
            "blk.{i}.ffn_down_exps.weight" [$width, EMBD, EXPERTS];
            "blk.{i}.ffn_gate_up_exps.weight" [EMBD, Size::Product(&[Size::N(2), $width]), EXPERTS] optional;
            "blk.{i}.ffn_gate_exps.weight" [EMBD, $width, EXPERTS] unless "blk.{i}.ffn_gate_up_exps.weight";
            "blk.{i}.ffn_up_exps.weight" [EMBD, $width, EXPERTS] unless "blk.{i}.ffn_gate_up_exps.weight";
        }
    };
}

/// Experts that every token sees, together of the width `$width`.
macro_rules! shared_experts {
    ($width:expr) => {
        $crate::families::engine::graphs::rows! {
            "blk.{i}.ffn_gate_shexp.weight" [EMBD, $width];
            "blk.{i}.ffn_down_shexp.weight" [$width, EMBD];
            "blk.{i}.ffn_up_shexp.weight" [EMBD, $width];
        }
    };
}
pub(super) use {expert_stacks, fused_expert_stacks, shared_experts};

/// The width of an expert that the file states.
pub(super) const FF_EXPERT: Size = Size::Key("expert_feed_forward_length");
/// The width of an expert, or else the feed-forward layer's share.
pub(super) const FF_SHARE: Size = Size::Or(&[FF_EXPERT, Size::Quotient(&[FF, USED])]);
/// The width of shared experts that the file states.
pub(super) const FF_SHARED: Size = Size::Key("expert_shared_feed_forward_length");
/// Number of shared experts.
pub(super) const SHARED_COUNT: Size = Size::Key("expert_shared_count");
/// Layers in front of the first one with experts.
pub(super) const DENSE: Size = Size::Key("leading_dense_block_count");
