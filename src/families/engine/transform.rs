//! How the rows of a tensor change on the way to GGUF, and how they come back.

mod heads;
mod parts;
mod reshaped;
mod tiled;

pub(crate) use self::parts::{WaitingParts, joined};

use self::heads::{head_rows, rotating};
use self::reshaped::{flattened, reshaped};
use super::dims::{Dim, Dims};
use super::mapping::Mapped;
use super::source::{Rearrangement, SourceTensor, assembled, made_of};
use super::table::{TensorRule, Transform};
use crate::remember::layout::assembled::{Change, RowOrder};
use crate::remember::{Group, Window};
use crate::{Result, TargetDtype};

/// The tensor of GGUF that is made of `tensor`, in the type `dtype`, with `change` made to each
/// value.
///
/// # Errors
/// `Parse` if its rows are not those of heads that can be halved, or of two projections, or a size
/// is missing in the config.
pub(crate) fn to_gguf<'m>(
    tensor: Mapped<'m>,
    dtype: TargetDtype,
    change: Change,
    dims: &Dims,
) -> Result<Group<'m>> {
    let shape = tensor.shape().to_vec();
    let Mapped { name, rule, sources, .. } = tensor;
    let mut sources: Vec<_> = sources.into_iter().map(|(_, source)| source).collect();
    let width = shape.iter().skip(1).product::<usize>();
    let (moved, made) = match rule.transform {
        Transform::None | Transform::Key(_) if change == Change::None => {
            return Ok(sources.swap_remove(0).renamed(name, dtype));
        }
        Transform::None | Transform::Key(_) => (Rearrangement::changed(&shape, change), shape),
        Transform::Transposed => {
            return Ok(transposed(sources.swap_remove(0), dtype).renamed(name, dtype));
        }
        Transform::TimesRoot(sizes) => (Rearrangement::changed(&shape, root(sizes, dims)?), shape),
        Transform::Reshaped(change) => {
            let made = reshaped(&name, rule, &shape, dims)?;
            if change == Change::None {
                return Ok(sources.swap_remove(0).reshaped(name, made, dtype));
            }
            (Rearrangement::changed(&shape, change), made)
        }
        Transform::Parts(parts) => {
            return parts::to_gguf(sources.swap_remove(0), (name, rule), parts, dtype, dims);
        }
        Transform::Tiled(tiling) => {
            let moved = tiled::moved(tiling, (&shape, false), tiling.change, dims)?;
            (moved, reshaped(&name, rule, &shape, dims)?)
        }
        Transform::Heads => {
            let order = RowOrder::interleaved(head_rows(&name, &shape, dims)?);
            (Rearrangement::of_each(1, order, (shape[0], width)), shape)
        }
        Transform::Neighbours | Transform::Halves => {
            let of = head_rows(&name, &shape, dims)?;
            let len = rotating(&name, of, dims)?;
            let order = match rule.transform == Transform::Neighbours {
                true => RowOrder::Split { len, of },
                false => RowOrder::Interleaved { len, of },
            };
            (Rearrangement::of_each(1, order, (shape[0], width)), shape)
        }
        Transform::Own(own) => (own.to_gguf)(&mut sources, &name, dims)?,
        Transform::Joined(_) => {
            let count = sources.len();
            let moved = Rearrangement::of_each(count, RowOrder::From(0), (shape[0], width));
            let mut all = shape;
            all[0] *= count;
            let made = match rule.gguf_shape {
                Some(dims_there) if dims_there.len() != rule.shape.len() => {
                    reshaped(&name, rule, &all, dims)?
                }
                _ => all,
            };
            (moved, made)
        }
        Transform::Beside(_) => {
            let count = sources.len();
            let moved = Rearrangement {
                takes_turns: true,
                ..Rearrangement::of_each(count, RowOrder::From(0), (shape[0], width))
            };
            (moved, vec![shape[0], width * count])
        }
        Transform::Experts | Transform::Stack(_) => {
            let count = sources.len();
            let moved = Rearrangement::of_each(count, RowOrder::From(0), (shape[0], width));
            (moved, [&[count], &shape[..]].concat())
        }
    };
    Ok(assembled(sources, (name, made), dtype, &moved))
}

/// Multiplication by the root of the quotient of two sizes.
fn root([whole, part]: &[Dim; 2], dims: &Dims) -> Result<Change> {
    let quotient = dims.need_size(*whole)? as f64 / dims.need_size(*part)? as f64;
    Ok(Change::Times([(quotient.sqrt() as f32).to_bits(), 1f32.to_bits()]))
}

/// Matrices with their rows as columns; a vector stays as it is.
pub(crate) fn transposed(mut source: SourceTensor<'_>, dtype: TargetDtype) -> SourceTensor<'_> {
    if source.shape.len() != 2 {
        return source.transposed(dtype);
    }
    source.shape.insert(0, 1);
    let mut source = source.transposed(dtype);
    if source.shape.len() == 3 {
        source.shape.remove(0);
    }
    source
}

/// The tensors of transformers that the tensor `source` of GGUF becomes, in the type `dtype`.
///
/// # Errors
/// As [`to_gguf`]; those that several tensors make together go to [`joined`].
pub(crate) fn to_hf<'m>(
    (name, source): (String, SourceTensor<'m>),
    (hf, rule): (&dyn Fn(Option<usize>) -> String, &TensorRule),
    dtype: TargetDtype,
    change: Change,
    dims: &Dims,
) -> Result<Vec<Group<'m>>> {
    let (shape, own) = (source.shape.clone(), hf(None));
    let width = shape.iter().skip(1).product();
    let (moved, made) = match rule.transform {
        Transform::None if change == Change::None => return Ok(vec![source.renamed(own, dtype)]),
        Transform::Transposed => return Ok(vec![transposed(source, dtype).renamed(own, dtype)]),
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
        Transform::TimesRoot(sizes) => {
            (Rearrangement::changed(&shape, root(sizes, dims)?.inverse()), shape)
        }
        Transform::Joined(names) => {
            let (rows, is_reshaped) =
                (shape[0] / names.len(), rule.gguf_shape.map(<[_]>::len) != Some(rule.shape.len()));
            let part = |number: usize| {
                let part = source.rows_of(name.clone(), number * rows, (rows, false));
                let made = match is_reshaped {
                    true => flattened(&name, rule, part.shape.clone(), dims)?,
                    false => part.shape.clone(),
                };
                Ok(part.reshaped(hf(Some(number)), made, dtype))
            };
            return (0..names.len()).map(part).collect();
        }
        Transform::Beside(names) => {
            // Rows of the parts take turns in the same values.
            let (count, cols) = (names.len(), width / names.len());
            let part = |number: usize| {
                let order = RowOrder::Slice { first: number, len: 1, of: count };
                let moved = Rearrangement::of_each(1, order, (shape[0], cols));
                let made = (hf(Some(number)), vec![shape[0], cols]);
                assembled(vec![source.clone()], made, dtype, &moved)
            };
            return Ok((0..count).map(part).collect());
        }
        Transform::Key(_) => {
            let shape = if rule.shape.is_empty() { vec![] } else { shape };
            return Ok(vec![source.reshaped(own, shape, dtype)]);
        }
        Transform::Reshaped(change) => {
            let made = flattened(&name, rule, shape.clone(), dims)?;
            if change == Change::None {
                return Ok(vec![source.reshaped(own, made, dtype)]);
            }
            (Rearrangement::changed(&shape, change.inverse()), made)
        }
        Transform::Parts(parts) => {
            return Ok(vec![joined(vec![(parts, source)], (own, rule), dtype, dims)?]);
        }
        Transform::Own(transform) => {
            let mut sources = vec![source];
            let (moved, made) = (transform.to_hf)(&mut sources, &own, dims)?;
            return Ok(vec![assembled(sources, (own, made), dtype, &moved)]);
        }
        Transform::Tiled(tiling) => {
            let moved = tiled::moved(tiling, (&shape, true), tiling.change.inverse(), dims)?;
            (moved, flattened(&name, rule, shape, dims)?)
        }
        Transform::Heads => {
            let order = RowOrder::split(head_rows(&name, &shape, dims)?);
            (Rearrangement::of_each(1, order, (shape[0], width)), shape)
        }
        Transform::Neighbours | Transform::Halves => {
            let of = head_rows(&name, &shape, dims)?;
            let len = rotating(&name, of, dims)?;
            let order = match rule.transform == Transform::Neighbours {
                true => RowOrder::Interleaved { len, of },
                false => RowOrder::Split { len, of },
            };
            (Rearrangement::of_each(1, order, (shape[0], width)), shape)
        }
        _ => (Rearrangement::changed(&shape, change), shape),
    };
    Ok(vec![assembled(vec![source], (own, made), dtype, &moved)])
}
