//! Heads of attention: which rows of fused projections are whose.

use crate::error::InTensor;
use crate::families::engine::dims::Dims;
use crate::families::engine::source::SourceRows;
use crate::families::engine::table::{LatentPart, LinearPart, ValuePart};
use crate::remember::layout::assembled::{RowOrder, Tiles};
use crate::{AnamnesisError, Result};

/// Heads whose keys and values are made of one latent vector.
pub(super) struct LatentHeads {
    pub count: usize,
    /// Rows of a head that make its keys, without the part that rotates.
    pub keys: usize,
    /// Rows of a head that make its values.
    pub values: usize,
}

impl LatentHeads {
    pub(super) fn new(dims: &Dims) -> Result<Self> {
        Ok(Self {
            count: dims.heads,
            keys: dims.need("qk_nope_head_dim")?,
            values: dims.need("v_head_dim")?,
        })
    }

    /// Which rows of `kv_b_proj` are those of `part`, and how many there are of a head.
    pub(super) fn rows_of(&self, part: LatentPart) -> (RowOrder, usize) {
        let (first, len) = match part {
            LatentPart::Keys => (0, self.keys),
            LatentPart::Values => (self.keys, self.values),
        };
        let of = self.keys + self.values;
        (RowOrder::Slice { first, len, of }, len)
    }
}

/// Heads of linear attention.
pub(super) struct LinearHeads {
    /// Heads of keys.
    count: usize,
    /// Heads of values for each head of keys.
    per_key: usize,
    /// Rows of a head of keys: queries, keys, values, gates.
    parts: [usize; 4],
}

impl LinearHeads {
    pub(super) fn new(dims: &Dims) -> Result<Self> {
        let count = dims.need("linear_num_key_heads")?;
        let values = dims.need("linear_num_value_heads")?;
        if !values.is_multiple_of(count) {
            let what = "config.json: `linear_num_value_heads`: heads of keys do not divide it";
            return Err(AnamnesisError::parse(what));
        }
        let key = dims.need("linear_key_head_dim")?;
        let value = dims.need("linear_value_head_dim")?;
        let value = value.saturating_mul(values / count);
        Ok(Self { count, per_key: values / count, parts: [key, key, value, value] })
    }

    /// The order of heads of values in the tensor `part`.
    pub(super) fn value_tiles(&self, part: ValuePart) -> Tiles {
        Tiles {
            groups: self.count,
            parts: self.per_key,
            len: match part {
                ValuePart::Heads | ValuePart::Decays => 1,
                _ => self.parts[2] / self.per_key,
            },
        }
    }

    /// The rows of `in_proj_qkvz` that are those of `part`.
    pub(super) fn slices(&self, part: LinearPart) -> Vec<SourceRows> {
        let of = self.parts.iter().sum();
        let slice = |at: usize| SourceRows {
            source: 0,
            order: RowOrder::Slice {
                first: self.parts[..at].iter().sum(),
                len: self.parts[at],
                of,
            },
            rows: self.count * self.parts[at],
            turn: 1,
        };
        match part {
            LinearPart::Projections => (0..3).map(slice).collect(),
            LinearPart::Gate => vec![slice(3)],
        }
    }

    /// The rows of the projections and the gate that make `in_proj_qkvz`, in turns.
    pub(super) fn turns(&self) -> Vec<SourceRows> {
        let mut first = 0;
        let pieces = self.parts.iter().enumerate().map(|(at, &turn)| {
            let rows = self.count * turn;
            let (source, from) = if at == 3 { (1, 0) } else { (0, first) };
            first += rows;
            SourceRows { source, order: RowOrder::From(from), rows, turn }
        });
        pieces.collect()
    }
}

/// Rows of a head of the tensor that GGUF calls `name`.
///
/// # Errors
/// `Parse` if its rows are not those of heads that can be halved.
pub(super) fn head_rows(name: &str, shape: &[usize], dims: &Dims) -> Result<usize> {
    let heads = if name.contains(".attn_k.") {
        dims.kv_heads
    } else {
        dims.heads
    };
    let rows = shape[0] / heads;
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
