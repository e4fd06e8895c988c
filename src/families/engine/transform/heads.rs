//! Heads of attention: which of their rows rotate.

use crate::error::InTensor;
use crate::families::engine::dims::{Dims, layer_of};
use crate::{AnamnesisError, Result};

/// Rows of a head of the tensor that GGUF calls `name`.
///
/// # Errors
/// `Parse` if its rows are not those of heads that can be halved.
pub(super) fn head_rows(name: &str, shape: &[usize], dims: &Dims) -> Result<usize> {
    let layer = layer_of(name).and_then(|layer| usize::try_from(layer).ok());
    let heads = if name.contains(".attn_k.") {
        dims.kv_heads_of(layer)
    } else {
        dims.heads_of(layer)
    };
    let rows = shape[0].checked_div(heads).unwrap_or(0);
    if shape[0].is_multiple_of(heads) && rows.is_multiple_of(2) && rows > 0 {
        return Ok(rows);
    }
    let what = format!("{}: {} rows are no {heads} heads of two halves", InTensor(&name), shape[0]);
    Err(AnamnesisError::parse(what))
}

/// Rows that rotate of a head of `of` rows of the tensor `name`.
///
/// # Errors
/// `Parse` if they are no pairs of rows of a head.
pub(super) fn rotating(name: &str, of: usize, dims: &Dims) -> Result<usize> {
    let rows = dims
        .rotating
        .filter(|rows| *rows > 0 && *rows <= of && rows.is_multiple_of(2));
    rows.ok_or_else(|| {
        let what = format!("{}: no part of heads of {of} rows rotates by pairs", InTensor(&name));
        AnamnesisError::parse(what)
    })
}
