//! How the rows of a tensor change on the way to GGUF, and how they come back.

mod groups;
mod matrix;
mod positions;

use std::collections::BTreeMap;

use super::dims::Dims;
use super::mapping::Mapped;
use super::source::{Rearrangement, SourceRows, SourceTensor, assembled, made_of};
use super::table::{LatentPart, LinearPart, Transform, ValuePart};
use crate::scheme::layout::alternate::AlternateRows;
use crate::scheme::layout::assembled::{Change, RowOrder, Tiles};
use crate::scheme::{Group, ResolvedItem, Window};
use crate::{AnamnesisError, Result, TargetDtype};

/// The tensor of GGUF that is made of `tensor`, in the type `dtype`, with `change` made to each value.
///
/// # Errors
/// `Parse` if its rows are not those of heads that can be halved, or of two projections, or a size is missing in the config.
pub(super) fn to_gguf<'m>(
    tensor: Mapped<'m>,
    dtype: TargetDtype,
    change: Change,
    dims: &Dims,
) -> Result<Group<'m>> {
    let shape = tensor.shape().to_vec();
    let Mapped {
        name,
        rule,
        sources,
        ..
    } = tensor;
    let mut sources: Vec<_> = sources.into_iter().map(|(_, source)| source).collect();
    let width = |shape: &[usize]| shape[1..].iter().product::<usize>();
    let (moved, made) = match rule.transform {
        Transform::None if change == Change::None => {
            return Ok(sources.swap_remove(0).renamed(name, dtype));
        }
        Transform::Transposed => {
            return Ok(sources
                .swap_remove(0)
                .transposed(dtype)
                .renamed(name, dtype));
        }
        Transform::Filters => {
            let group = sources.swap_remove(0).renamed(name, dtype);
            let shape = vec![shape[0], shape[2]];
            return Ok(Group { shape, ..group });
        }
        Transform::Matrix => {
            let source = matrix::transposed(sources.swap_remove(0), dtype);
            return Ok(source.renamed(name, dtype));
        }
        Transform::FusedGroups => (groups::to_gguf(&shape, dims), shape),
        Transform::Positions => positions::to_gguf(&name, &shape, dims)?,
        Transform::None => (Rearrangement::changed(&shape, change), shape),
        Transform::NegExp => (Rearrangement::changed(&shape, Change::NegExp), shape),
        Transform::Heads => {
            let order = RowOrder::Interleaved(head_rows(&name, &shape, dims)?);
            let moved = Rearrangement::of_each(1, order, (shape[0], width(&shape)));
            (moved, shape)
        }
        Transform::Experts => {
            let (count, size) = (sources.len(), (shape[0], width(&shape)));
            let moved = Rearrangement::of_each(count, RowOrder::From(0), size);
            (moved, [&[count], &shape[..]].concat())
        }
        Transform::TransposedHalf(first) => {
            let transposed = sources.swap_remove(0).transposed(dtype);
            require_even(&transposed.name, transposed.shape[1])?;
            let half = [
                transposed.shape[0],
                transposed.shape[1] / 2,
                transposed.shape[2],
            ];
            if transposed.decoder.grid().cols == half[2] {
                // Codes can be moved as they are then.
                let inner = transposed.decoder.clone();
                let rows = Box::new(AlternateRows { inner, first });
                return Ok(made_of([transposed], (name, half.to_vec()), dtype, rows));
            }
            sources = vec![transposed];
            let size = (half[0] * half[1], half[2]);
            (every_second(first, size), half.to_vec())
        }
        Transform::Half(first) => {
            require_even(&sources[0].name, shape[1])?;
            let half = [shape[0], shape[1] / 2];
            (every_second(first, (half[0] * half[1], 1)), half.to_vec())
        }
        Transform::Halves(half) => {
            require_even(&sources[0].name, shape[1])?;
            let [experts, len] = [shape[0], shape[1] / 2];
            let (first, of) = (half * len, 2 * len);
            let order = RowOrder::Slice { first, len, of };
            let moved = Rearrangement::of_each(1, order, (experts * len, shape[2]));
            (moved, vec![experts, len, shape[2]])
        }
        Transform::Latent(part) => {
            let (moved, made) = latent(part, &shape, dims)?;
            if part == LatentPart::Keys {
                let keys = assembled(sources, (name.clone(), made), dtype, &moved);
                let keys = SourceTensor::new(ResolvedItem::Group(keys))?;
                return Ok(keys.transposed(dtype).renamed(name, dtype));
            }
            (moved, made)
        }
        Transform::FusedHeads => (fused_heads(&shape, fused_tiles(dims)), shape),
        Transform::ValueHeads(part) => {
            let tiles = LinearHeads::new(dims)?.value_tiles(part);
            let made = match part {
                ValuePart::Filters => vec![shape[0], shape[2]],
                _ => shape,
            };
            (
                value_heads((part, Change::NegExp), tiles, &made, dims)?,
                made,
            )
        }
        Transform::Linear(part) => linear(part, &shape, dims)?,
    };
    Ok(assembled(sources, (name, made), dtype, &moved))
}

/// The rows of `kv_b_proj` that are those of `part`, head by head, and their shape.
fn latent(part: LatentPart, shape: &[usize], dims: &Dims) -> Result<(Rearrangement, Vec<usize>)> {
    let heads = LatentHeads::new(dims)?;
    let (order, len) = heads.rows_of(part);
    let moved = Rearrangement::of_each(1, order, (heads.count * len, shape[1]));
    Ok((moved, vec![heads.count, len, shape[1]]))
}

/// The rows of `in_proj_qkvz` that are those of `part`, and their shape.
fn linear(part: LinearPart, shape: &[usize], dims: &Dims) -> Result<(Rearrangement, Vec<usize>)> {
    let moved = Rearrangement {
        pieces: LinearHeads::new(dims)?.slices(part),
        ..Rearrangement::of_each(1, RowOrder::From(0), (0, shape[1]))
    };
    let rows = moved.pieces.iter().map(|piece| piece.rows).sum();
    Ok((moved, vec![rows, shape[1]]))
}

/// Fails if the tensor `name`, in which two projections take turns, has not as many rows of each.
fn require_even(name: &str, rows: usize) -> Result<()> {
    match rows.is_multiple_of(2) {
        true => Ok(()),
        false => Err(AnamnesisError::parse(format!(
            "tensor `{name}`: {rows} rows are not those of two projections"
        ))),
    }
}

/// Queries, keys and values of each head, as tiles.
fn fused_tiles(dims: &Dims) -> Tiles {
    Tiles {
        groups: dims.heads,
        parts: 3,
        len: dims.head,
    }
}

/// A tensor of `shape` whose rows are in the order `tiles`.
fn fused_heads(shape: &[usize], tiles: Tiles) -> Rearrangement {
    let size = (shape[0], shape[1..].iter().product());
    Rearrangement::of_each(1, RowOrder::Tiled { first: 0, tiles }, size)
}

/// A tensor of `shape` whose heads of values are in the order `tiles`, with `decay` made to the values of decays.
fn value_heads(
    (part, decay): (ValuePart, Change),
    tiles: Tiles,
    shape: &[usize],
    dims: &Dims,
) -> Result<Rearrangement> {
    let size = (shape[0], shape[1..].iter().product());
    if part == ValuePart::Columns {
        return Ok(Rearrangement {
            columns: Some(tiles),
            ..Rearrangement::of_each(1, RowOrder::From(0), size)
        });
    }
    let first = match part {
        ValuePart::Projections | ValuePart::Filters => {
            let keys = dims.need("linear_num_key_heads")?;
            2 * keys * dims.need("linear_key_head_dim")?
        }
        _ => 0,
    };
    let mut moved = Rearrangement::of_each(1, RowOrder::Tiled { first, tiles }, size);
    if part == ValuePart::Decays {
        moved.change = decay;
    }
    Ok(moved)
}

/// Every second row of one source, from row `first` on: `rows` rows of `cols` columns.
fn every_second(first: usize, size: (usize, usize)) -> Rearrangement {
    let order = RowOrder::Slice {
        first,
        len: 1,
        of: 2,
    };
    Rearrangement::of_each(1, order, size)
}

/// The tensors of transformers that the tensor `source` of GGUF becomes, in the type `dtype`.
///
/// # Errors
/// As [`to_gguf`]; those that several tensors make together go to [`fused`].
pub(super) fn to_hf<'m>(
    (name, source): (String, SourceTensor<'m>),
    (hf, transform): (&dyn Fn(Option<usize>) -> String, Transform),
    dtype: TargetDtype,
    change: Change,
    dims: &Dims,
) -> Result<Vec<Group<'m>>> {
    let (shape, own) = (source.shape.clone(), hf(None));
    let moved = match transform {
        Transform::None if change == Change::None => return Ok(vec![source.renamed(own, dtype)]),
        Transform::Transposed => return Ok(vec![source.transposed(dtype).renamed(own, dtype)]),
        Transform::Filters => {
            let group = source.renamed(own, dtype);
            let shape = vec![shape[0], 1, shape[1]];
            return Ok(vec![Group { shape, ..group }]);
        }
        Transform::Experts => {
            let expert = |expert: usize| {
                let inner = source.decoder.clone();
                let (first, rows) = (expert * shape[1], shape[1]);
                let window = Box::new(Window { inner, first, rows });
                let (name, parts) = (hf(Some(expert)), [source.clone()]);
                made_of(parts, (name, shape[1..].to_vec()), dtype, window)
            };
            return Ok((0..shape[0]).map(expert).collect());
        }
        Transform::NegExp => Rearrangement::changed(&shape, Change::LnNeg),
        Transform::Matrix => {
            return Ok(vec![matrix::transposed(source, dtype).renamed(own, dtype)]);
        }
        Transform::FusedGroups => groups::to_hf(&shape, dims),
        Transform::Positions => return Ok(vec![positions::to_hf(source, own, dtype, dims)?]),
        Transform::FusedHeads => fused_heads(&shape, fused_tiles(dims).inverse()),
        Transform::ValueHeads(part) => {
            let tiles = LinearHeads::new(dims)?.value_tiles(part).inverse();
            let moved = value_heads((part, Change::LnNeg), tiles, &shape, dims)?;
            let made = match part {
                ValuePart::Filters => vec![shape[0], 1, shape[1]],
                _ => shape,
            };
            return Ok(vec![assembled(vec![source], (own, made), dtype, &moved)]);
        }
        Transform::Heads => {
            let order = RowOrder::Split(head_rows(&name, &shape, dims)?);
            let width = shape[1..].iter().product();
            Rearrangement::of_each(1, order, (shape[0], width))
        }
        _ => Rearrangement::changed(&shape, change),
    };
    Ok(vec![assembled(vec![source], (own, shape), dtype, &moved)])
}

/// Whether two tensors of GGUF make one of transformers, and this is the first of them; `None`: it is made of one.
pub(super) fn half_of(transform: Transform) -> Option<bool> {
    match transform {
        Transform::TransposedHalf(first) | Transform::Half(first) | Transform::Halves(first) => {
            Some(first == 0)
        }
        Transform::Latent(part) => Some(part == LatentPart::Keys),
        Transform::Linear(part) => Some(part == LinearPart::Projections),
        _ => None,
    }
}

/// Tensors that wait for the other one with which they make a tensor of transformers, by its name.
#[derive(Default)]
pub(super) struct Halves<'m>(BTreeMap<String, SourceTensor<'m>>);

impl<'m> Halves<'m> {
    /// Both tensors that make `name`, the first one first; `None`: `source` waits for the other.
    pub(super) fn pair(
        &mut self,
        name: &str,
        source: SourceTensor<'m>,
        is_first: bool,
    ) -> Option<[SourceTensor<'m>; 2]> {
        match self.0.remove(name) {
            Some(other) if is_first => Some([source, other]),
            Some(other) => Some([other, source]),
            None => {
                self.0.insert(name.to_owned(), source);
                None
            }
        }
    }

    /// A tensor that still waits, and the name of what it is a part of.
    pub(super) fn into_waiting(self) -> Option<(String, SourceTensor<'m>)> {
        self.0.into_iter().next()
    }
}

/// The tensor of transformers called `name` that the two tensors `pair` of GGUF make.
///
/// # Errors
/// `Parse` if a size is missing in the config.
pub(super) fn fused<'m>(
    [first, second]: [SourceTensor<'m>; 2],
    (name, transform): (String, Transform),
    dtype: TargetDtype,
    dims: &Dims,
) -> Result<Group<'m>> {
    let shape = first.shape.clone();
    let whole = |pair, pieces, shape: Vec<usize>, cols| {
        let moved = Rearrangement {
            pieces,
            cols,
            takes_turns: true,
            change: Change::None,
            columns: None,
        };
        assembled(pair, (name.clone(), shape), dtype, &moved)
    };
    match transform {
        Transform::Latent(_) => {
            let heads = LatentHeads::new(dims)?;
            let cols = second.shape[2];
            let pieces = [heads.keys, heads.values].into_iter().enumerate();
            let pieces = pieces.map(|(source, turn)| all_rows(source, heads.count * turn, turn));
            let rows = heads.count * (heads.keys + heads.values);
            let pair = vec![first.transposed(dtype), second];
            Ok(whole(pair, pieces.collect(), vec![rows, cols], cols))
        }
        Transform::Linear(_) => {
            let (heads, cols) = (LinearHeads::new(dims)?, shape[1]);
            let pieces = heads.turns();
            let rows = pieces.iter().map(|piece| piece.rows).sum();
            Ok(whole(vec![first, second], pieces, vec![rows, cols], cols))
        }
        _ => {
            let rows = shape[0] * shape[1];
            // Rows alternate, or the halves of each expert do.
            let turn = match transform {
                Transform::Halves(_) => shape[1],
                _ => 1,
            };
            let pieces = vec![all_rows(0, rows, turn), all_rows(1, rows, turn)];
            let cols = shape[2..].iter().product();
            let mut doubled = shape;
            doubled[1] *= 2;
            let whole = whole(vec![first, second], pieces, doubled, cols);
            if let Transform::Half(_) | Transform::Halves(_) = transform {
                return Ok(whole);
            }
            let transposed = SourceTensor::new(ResolvedItem::Group(whole))?.transposed(dtype);
            Ok(transposed.renamed(name, dtype))
        }
    }
}

/// All `rows` rows of a source, `turn` at once.
fn all_rows(source: usize, rows: usize, turn: usize) -> SourceRows {
    SourceRows {
        source,
        order: RowOrder::From(0),
        rows,
        turn,
    }
}

/// Heads whose keys and values are made of one latent vector.
struct LatentHeads {
    count: usize,
    /// Rows of a head that make its keys, without the part that rotates.
    keys: usize,
    /// Rows of a head that make its values.
    values: usize,
}

impl LatentHeads {
    fn new(dims: &Dims) -> Result<Self> {
        Ok(Self {
            count: dims.heads,
            keys: dims.need("qk_nope_head_dim")?,
            values: dims.need("v_head_dim")?,
        })
    }

    /// Which rows of `kv_b_proj` are those of `part`, and how many there are of a head.
    fn rows_of(&self, part: LatentPart) -> (RowOrder, usize) {
        let (first, len) = match part {
            LatentPart::Keys => (0, self.keys),
            LatentPart::Values => (self.keys, self.values),
        };
        let of = self.keys + self.values;
        (RowOrder::Slice { first, len, of }, len)
    }
}

/// Heads of linear attention.
struct LinearHeads {
    /// Heads of keys.
    count: usize,
    /// Heads of values for each head of keys.
    per_key: usize,
    /// Rows of a head of keys: queries, keys, values, gates.
    parts: [usize; 4],
}

impl LinearHeads {
    fn new(dims: &Dims) -> Result<Self> {
        let count = dims.need("linear_num_key_heads")?;
        let values = dims.need("linear_num_value_heads")?;
        if !values.is_multiple_of(count) {
            let what = "config.json: `linear_num_value_heads`: heads of keys do not divide it";
            return Err(AnamnesisError::parse(what));
        }
        let key = dims.need("linear_key_head_dim")?;
        let value = dims.need("linear_value_head_dim")?;
        let value = value.saturating_mul(values / count);
        Ok(Self {
            count,
            per_key: values / count,
            parts: [key, key, value, value],
        })
    }

    /// The order of heads of values in the tensor `part`.
    fn value_tiles(&self, part: ValuePart) -> Tiles {
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
    fn slices(&self, part: LinearPart) -> Vec<SourceRows> {
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
    fn turns(&self) -> Vec<SourceRows> {
        let mut first = 0;
        let pieces = self.parts.iter().enumerate().map(|(at, &turn)| {
            let rows = self.count * turn;
            let (source, from) = if at == 3 { (1, 0) } else { (0, first) };
            first += rows;
            SourceRows {
                source,
                order: RowOrder::From(from),
                rows,
                turn,
            }
        });
        pieces.collect()
    }
}

/// Rows of a head of the tensor that GGUF calls `name`.
///
/// # Errors
/// `Parse` if its rows are not those of heads that can be halved.
fn head_rows(name: &str, shape: &[usize], dims: &Dims) -> Result<usize> {
    let heads = if name.contains(".attn_k.") {
        dims.kv_heads
    } else {
        dims.heads
    };
    let rows = shape[0] / heads;
    if shape[0].is_multiple_of(heads) && rows.is_multiple_of(2) && rows > 0 {
        return Ok(rows);
    }
    let what = format!(
        "tensor `{name}`: {} rows are no {heads} heads of two halves",
        shape[0]
    );
    Err(AnamnesisError::parse(what))
}
