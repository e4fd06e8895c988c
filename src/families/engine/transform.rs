//! How the rows of a tensor change on the way to GGUF, and how they come back.

mod fused;
mod groups;
mod heads;
mod matrix;
mod padded;
mod positions;
mod reshaped;

pub(in crate::families) use self::fused::{WaitingParts, fused, part_of};

use self::heads::{LatentHeads, LinearHeads, head_rows, rotating};
use self::reshaped::{flattened, reshaped};
use super::dims::Dims;
use super::mapping::Mapped;
use super::source::{Rearrangement, SourceTensor, assembled, made_of};
use super::table::{LatentPart, LinearPart, TensorRule, Transform, ValuePart};
use crate::error::InTensor;
use crate::remember::layout::alternate::AlternateRows;
use crate::remember::layout::assembled::{Change, RowOrder, Tiles};
use crate::remember::{Group, ResolvedItem, Window};
use crate::{AnamnesisError, Result, TargetDtype};

/// The tensor of GGUF that is made of `tensor`, in the type `dtype`, with `change` made to each
/// value.
///
/// # Errors
/// `Parse` if its rows are not those of heads that can be halved, or of two projections, or a size
/// is missing in the config.
pub(in crate::families) fn to_gguf<'m>(
    tensor: Mapped<'m>,
    dtype: TargetDtype,
    change: Change,
    dims: &Dims,
) -> Result<Group<'m>> {
    let shape = tensor.shape().to_vec();
    let Mapped { name, rule, sources, .. } = tensor;
    let mut sources: Vec<_> = sources.into_iter().map(|(_, source)| source).collect();
    let width = |shape: &[usize]| shape[1..].iter().product::<usize>();
    let (moved, made) = match rule.transform {
        Transform::None | Transform::Key(_) if change == Change::None => {
            return Ok(sources.swap_remove(0).renamed(name, dtype));
        }
        Transform::Transposed => {
            let source = sources.swap_remove(0).transposed(dtype);
            return Ok(source.renamed(name, dtype));
        }
        Transform::Filters => {
            let shape = vec![shape[0], shape[2]];
            return Ok(sources.swap_remove(0).reshaped(name, shape, dtype));
        }
        Transform::Matrix => {
            let source = matrix::transposed(sources.swap_remove(0), dtype);
            return Ok(source.renamed(name, dtype));
        }
        Transform::FusedGroups => (groups::to_gguf(&shape, dims), shape),
        Transform::Positions => positions::to_gguf(&name, &shape, dims)?,
        Transform::None | Transform::Key(_) => (Rearrangement::changed(&shape, change), shape),
        Transform::Reshaped => {
            let shape = reshaped(&name, rule, &shape, dims)?;
            return Ok(sources.swap_remove(0).reshaped(name, shape, dtype));
        }
        Transform::NegExp => {
            let moved = Rearrangement::changed(&shape, Change::NegExp);
            (moved, reshaped(&name, rule, &shape, dims)?)
        }
        Transform::Heads => {
            let order = RowOrder::interleaved(head_rows(&name, &shape, dims)?);
            let moved = Rearrangement::of_each(1, order, (shape[0], width(&shape)));
            (moved, shape)
        }
        Transform::Neighbours => {
            let of = head_rows(&name, &shape, dims)?;
            let order = RowOrder::Split { len: rotating(&name, of, dims)?, of };
            let moved = Rearrangement::of_each(1, order, (shape[0], width(&shape)));
            (moved, shape)
        }
        Transform::PaddedRows => padded::to_gguf(&mut sources, dims)?,
        Transform::Experts | Transform::Stack(_) => {
            let (count, size) = (sources.len(), (shape[0], width(&shape)));
            let moved = Rearrangement::of_each(count, RowOrder::From(0), size);
            (moved, [&[count], &shape[..]].concat())
        }
        Transform::TransposedHalf(first) => {
            let source = sources.swap_remove(0).transposed(dtype);
            return transposed_half(source, first, name, dtype);
        }
        Transform::Half(first) => {
            require_even(&sources[0].name, shape[1])?;
            let half = [shape[0], shape[1] / 2];
            (every_second(first, (half[0] * half[1], 1)), half.to_vec())
        }
        Transform::Halves(part) => half_of(&sources[0], &shape, part)?,
        Transform::TransposedHalves(part) => {
            sources = vec![sources.swap_remove(0).transposed(dtype)];
            half_of(&sources[0], &sources[0].shape, part)?
        }
        Transform::Thirds(part) => third_of(&sources[0], &shape, part)?,
        Transform::Frames(frame) => {
            let made = [&shape[..2], &shape[3..]].concat();
            let size = (made[..2].iter().product(), width(&made[1..]));
            (every_second(frame, size), made)
        }
        Transform::Pixels => {
            let made = reshaped(&name, rule, &shape, dims)?;
            let pixels = Tiles { groups: made[2..].iter().product(), parts: made[1], len: 1 };
            let all = Rearrangement::of_each(1, RowOrder::From(0), (shape[0], shape[1]));
            let columns = Some(pixels);
            (Rearrangement { columns, ..all }, made)
        }
        Transform::Latent(part) => {
            let (moved, made) = latent(part, &shape, dims)?;
            if part == LatentPart::Keys {
                let keys = assembled(sources, (name.clone(), made), dtype, &moved);
                let keys = SourceTensor::new(ResolvedItem::from(keys))?;
                return Ok(keys.transposed(dtype).renamed(name, dtype));
            }
            (moved, made)
        }
        Transform::FusedHeads => (fused_heads(&shape, fused_tiles(dims)), shape),
        Transform::GroupPart(part) => {
            let (moved, rows) = groups::part(part, &shape, dims);
            let made = vec![rows, width(&shape)];
            if part == groups::VALUES {
                return Ok(assembled(sources, (name, made), dtype, &moved));
            }
            let heads = assembled(sources, (name.clone(), made.clone()), dtype, &moved);
            sources = vec![SourceTensor::new(ResolvedItem::from(heads))?];
            let order = RowOrder::interleaved(head_rows(&name, &made, dims)?);
            (Rearrangement::of_each(1, order, (rows, made[1])), made)
        }
        Transform::ValueHeads(part) => {
            let tiles = LinearHeads::new(dims)?.value_tiles(part);
            let made = match part {
                ValuePart::Filters => vec![shape[0], shape[2]],
                _ => shape,
            };
            (value_heads((part, Change::NegExp), tiles, &made, dims)?, made)
        }
        Transform::Linear(part) => linear(part, &shape, dims)?,
    };
    Ok(assembled(sources, (name, made), dtype, &moved))
}

/// Every second column of the matrices of a stack that is transposed already, from column `first`
/// on.
fn transposed_half<'m>(
    transposed: SourceTensor<'m>,
    first: usize,
    name: String,
    dtype: TargetDtype,
) -> Result<Group<'m>> {
    require_even(&transposed.name, transposed.shape[1])?;
    let shape = &transposed.shape;
    let half = [shape[0], shape[1] / 2, shape[2]];
    if transposed.decoder.grid().cols == half[2] {
        // Codes can be moved as they are then.
        let inner = transposed.decoder.clone();
        let rows = Box::new(AlternateRows { inner, first });
        return Ok(made_of([transposed], (name, half.to_vec()), dtype, rows));
    }
    let moved = every_second(first, (half[0] * half[1], half[2]));
    let sources = vec![transposed];
    Ok(assembled(sources, (name, half.to_vec()), dtype, &moved))
}

/// Half `part`, 0 or 1, of the rows of `source`, which is one matrix or a stack of them, and its
/// shape.
fn half_of(
    source: &SourceTensor<'_>,
    shape: &[usize],
    part: usize,
) -> Result<(Rearrangement, Vec<usize>)> {
    let axis = shape.len() - 2;
    require_even(&source.name, shape[axis])?;
    let mut made = shape.to_vec();
    made[axis] /= 2;
    let len = made[axis];
    let (first, of) = (part * len, 2 * len);
    let order = RowOrder::Slice { first, len, of };
    let size = (made[..=axis].iter().product(), made[axis + 1]);
    Ok((Rearrangement::of_each(1, order, size), made))
}

/// Third `part`, 0 to 2, of the rows of `source`, and its shape.
fn third_of(
    source: &SourceTensor<'_>,
    shape: &[usize],
    part: usize,
) -> Result<(Rearrangement, Vec<usize>)> {
    if !shape[0].is_multiple_of(3) {
        let what = format!(
            "{}: {} rows are not those of three projections",
            InTensor(&source.name),
            shape[0]
        );
        return Err(AnamnesisError::parse(what));
    }
    let mut made = shape.to_vec();
    made[0] /= 3;
    let size = (made[0], made[1..].iter().product());
    let moved = Rearrangement::of_each(1, RowOrder::From(part * made[0]), size);
    Ok((moved, made))
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
            "{}: {rows} rows are not those of two projections",
            InTensor(&name)
        ))),
    }
}

/// Queries, keys and values of each head, as tiles.
fn fused_tiles(dims: &Dims) -> Tiles {
    Tiles { groups: dims.heads, parts: 3, len: dims.head }
}

/// A tensor of `shape` whose rows are in the order `tiles`.
fn fused_heads(shape: &[usize], tiles: Tiles) -> Rearrangement {
    let size = (shape[0], shape[1..].iter().product());
    Rearrangement::of_each(1, RowOrder::Tiled { first: 0, tiles }, size)
}

/// A tensor of `shape` whose heads of values are in the order `tiles`, with `decay` made to the
/// values of decays.
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
    let order = RowOrder::Slice { first, len: 1, of: 2 };
    Rearrangement::of_each(1, order, size)
}

/// The tensors of transformers that the tensor `source` of GGUF becomes, in the type `dtype`.
///
/// # Errors
/// As [`to_gguf`]; those that several tensors make together go to [`fused`].
pub(in crate::families) fn to_hf<'m>(
    (name, source): (String, SourceTensor<'m>),
    (hf, rule): (&dyn Fn(Option<usize>) -> String, &TensorRule),
    dtype: TargetDtype,
    change: Change,
    dims: &Dims,
) -> Result<Vec<Group<'m>>> {
    let (shape, own) = (source.shape.clone(), hf(None));
    let moved = match rule.transform {
        Transform::None if change == Change::None => return Ok(vec![source.renamed(own, dtype)]),
        Transform::Transposed => return Ok(vec![source.transposed(dtype).renamed(own, dtype)]),
        Transform::Filters => {
            let shape = vec![shape[0], 1, shape[1]];
            return Ok(vec![source.reshaped(own, shape, dtype)]);
        }
        Transform::Experts | Transform::Stack(_) => {
            let expert = |expert: usize| {
                let inner = source.decoder.clone();
                let (first, rows) = (expert * shape[1], shape[1]);
                let window = Box::new(Window { inner, first, rows });
                let (name, parts) = (hf(Some(expert)), [source.clone()]);
                made_of(parts, (name, shape[1..].to_vec()), dtype, window)
            };
            return Ok((0..shape[0]).map(expert).collect());
        }
        Transform::Key(_) => {
            let shape = if rule.shape.is_empty() { vec![] } else { shape };
            return Ok(vec![source.reshaped(own, shape, dtype)]);
        }
        Transform::Reshaped => {
            let shape = flattened(&name, rule, shape, dims)?;
            return Ok(vec![source.reshaped(own, shape, dtype)]);
        }
        Transform::NegExp => {
            let moved = Rearrangement::changed(&shape, Change::LnNeg);
            let shape = flattened(&name, rule, shape, dims)?;
            return Ok(vec![assembled(vec![source], (own, shape), dtype, &moved)]);
        }
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
            let order = RowOrder::split(head_rows(&name, &shape, dims)?);
            let width = shape[1..].iter().product();
            Rearrangement::of_each(1, order, (shape[0], width))
        }
        Transform::Neighbours => {
            let of = head_rows(&name, &shape, dims)?;
            let order = RowOrder::Interleaved { len: rotating(&name, of, dims)?, of };
            let width = shape[1..].iter().product();
            Rearrangement::of_each(1, order, (shape[0], width))
        }
        _ => Rearrangement::changed(&shape, change),
    };
    Ok(vec![assembled(vec![source], (own, shape), dtype, &moved)])
}
