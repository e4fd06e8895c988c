//! Rows of tables: the rules of tensors.

use super::{TensorRule, Transform};
use crate::families::engine::dims::{Dim, Need};

/// A tensor that is the same on both sides.
pub(crate) const fn same(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorRule {
    TensorRule {
        gguf,
        hf,
        transform: Transform::None,
        shape,
        gguf_shape: None,
        is_whole_name: false,
        need: Need::All,
        keeps_f32: false,
        is_copy: false,
    }
}

/// As [`same`], of which a model may have none.
pub(crate) const fn optional(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorRule {
    TensorRule { need: Need::Optional, ..same(gguf, hf, shape) }
}

/// As [`same`], of the layers that `need` names.
pub(crate) const fn only(
    need: Need,
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorRule {
    TensorRule { need, ..same(gguf, hf, shape) }
}

/// The rule for the layers that `need` names alone.
pub(crate) const fn in_layers(need: Need, rule: TensorRule) -> TensorRule {
    TensorRule { need, ..rule }
}

/// A projection whose rows are those of heads.
pub(crate) const fn heads(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorRule {
    TensorRule { transform: Transform::Heads, ..same(gguf, hf, shape) }
}

/// A projection of each expert.
pub(crate) const fn experts(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorRule {
    TensorRule { transform: Transform::Experts, ..same(gguf, hf, shape) }
}

/// Tensors whose names are whole: a parameter of transformers that is called neither weight nor
/// bias.
pub(crate) const fn parameter(
    gguf: &'static str,
    hf: &'static str,
    (transform, shape, gguf_shape): (Transform, &'static [Dim], &'static [Dim]),
) -> TensorRule {
    TensorRule {
        transform,
        gguf_shape: Some(gguf_shape),
        is_whole_name: true,
        ..same(gguf, hf, shape)
    }
}
