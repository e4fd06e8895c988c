//! A tensor of the input, of which several tensors of the output may be made.

use std::sync::Arc;

use super::table::Transform;
use crate::containers::model::Tensor;
use crate::scheme::layout::alternate::AlternateRows;
use crate::scheme::layout::assembled::{Assembled, Change, Piece, RowOrder};
use crate::scheme::layout::transposed::TransposedStack;
use crate::scheme::{Decode, Group, PlainFloats, QuantScheme, ResolvedItem, Window};
use crate::{AnamnesisError, Result, TargetDtype, TensorRole};

/// A tensor of the input with its decoder.
#[derive(Clone)]
pub(super) struct SourceTensor<'m> {
    pub name: String,
    pub shape: Vec<usize>,
    pub scheme: QuantScheme,
    parts: Vec<(TensorRole, Tensor<'m>)>,
    /// The type that it is stored in, unless it is quantized.
    pub stored: Option<TargetDtype>,
    /// Whether it is a whole stored tensor, whose bytes can be copied.
    is_plain: bool,
    pub decoder: Arc<dyn Decode + 'm>,
    /// Shape and decoder of a stack with its matrices turned, `[…, out, in]`, if codes lie like that.
    turned: Option<(Vec<usize>, Arc<dyn Decode + 'm>)>,
}

impl<'m> SourceTensor<'m> {
    /// # Errors
    /// `Unsupported` if the item is neither quantized nor floats.
    pub(super) fn new(item: ResolvedItem<'m>) -> Result<Self> {
        match item {
            ResolvedItem::Group(group) => Ok(Self {
                turned: group
                    .module
                    .map(|module| (module.shape, Arc::from(module.decoder))),
                name: group.name,
                shape: group.shape,
                scheme: group.scheme,
                parts: group.parts,
                stored: group.keeps,
                is_plain: false,
                decoder: Arc::from(group.decoder),
            }),
            ResolvedItem::Plain(t) => match PlainFloats::of(&t) {
                Some(plain) => Ok(Self {
                    name: t.name().to_owned(),
                    shape: t.shape().to_vec(),
                    scheme: QuantScheme::Unquantized,
                    parts: vec![(TensorRole::Passthrough, t)],
                    stored: TargetDtype::of(t.dtype()),
                    is_plain: true,
                    decoder: Arc::new(plain),
                    turned: None,
                }),
                None => {
                    let what = format!("tensor `{}`: GGUF models have no {}", t.name(), t.dtype());
                    Err(AnamnesisError::unsupported("a whole model", what))
                }
            },
        }
    }

    /// The tensor itself under another name, in the type `dtype`.
    pub(super) fn renamed(self, name: String, dtype: TargetDtype) -> Group<'m> {
        let rows = self.decoder.grid().rows;
        let decoder = Window {
            inner: self.decoder.clone(),
            first: 0,
            rows,
        };
        let is_copied = self.is_plain && self.stored == Some(dtype);
        let shape = self.shape.clone();
        let mut group = made_of([self], (name, shape), dtype, Box::new(decoder));
        group.is_copied = is_copied;
        group
    }

    /// A stack `[n, rows, cols]` with its matrices turned, `[n, cols, rows]`, as values of type `dtype`.
    pub(super) fn turned(self, dtype: TargetDtype) -> Self {
        if let Some((shape, decoder)) = self.turned {
            return Self {
                shape,
                decoder,
                turned: None,
                is_plain: false,
                ..self
            };
        }
        let [stack, rows, cols] = self.shape[..] else {
            return self;
        };
        let decoder = TransposedStack {
            inner: self.decoder,
            rows: cols,
            cols: rows,
            dtype,
        };
        Self {
            shape: vec![stack, cols, rows],
            decoder: Arc::new(decoder),
            is_plain: false,
            ..self
        }
    }
}

/// How the rows of sources make a tensor.
pub(super) struct Rearrangement {
    pub order: RowOrder,
    /// Rows that are taken of each source.
    pub rows: usize,
    pub cols: usize,
    pub takes_turns: bool,
    pub change: Change,
}

impl Rearrangement {
    /// All rows of a tensor of `shape` in their order.
    pub(super) fn of_rows(shape: &[usize], change: Change) -> Self {
        Self {
            order: RowOrder::From(0),
            rows: shape[0],
            cols: shape[1..].iter().product(),
            takes_turns: false,
            change,
        }
    }
}

/// The tensor called `name` that is put together from rows of `sources`.
pub(super) fn assembled<'m>(
    sources: Vec<SourceTensor<'m>>,
    (name, shape): (String, Vec<usize>),
    dtype: TargetDtype,
    moved: &Rearrangement,
) -> Group<'m> {
    let piece = |source: &SourceTensor<'m>| Piece {
        decoder: source.decoder.clone(),
        rows: moved.rows,
        order: moved.order,
    };
    let decoder = Assembled {
        pieces: sources.iter().map(piece).collect(),
        takes_turns: moved.takes_turns,
        cols: moved.cols,
        dtype,
        change: moved.change,
    };
    made_of(sources, (name, shape), dtype, Box::new(decoder))
}

/// The tensor called `name` that is made of `sources` where GGUF and MLX have stacks otherwise than transformers: experts are
/// stacked, fused projections are taken apart, matrices are turned. What has no such transform is the first source itself.
///
/// # Errors
/// `Parse` if fused projections have an odd number of rows.
pub(super) fn restacked<'m>(
    mut sources: Vec<SourceTensor<'m>>,
    transform: Transform,
    name: String,
    dtype: TargetDtype,
) -> Result<Group<'m>> {
    let shape = sources[0].shape.clone();
    let mut moved = Rearrangement::of_rows(&shape, Change::None);
    let made = match transform {
        Transform::None | Transform::Heads => {
            return Ok(sources.swap_remove(0).renamed(name, dtype));
        }
        Transform::Turned => {
            return Ok(sources.swap_remove(0).turned(dtype).renamed(name, dtype));
        }
        Transform::Experts => [&[sources.len()], &shape[..]].concat(),
        Transform::TurnedHalf(first) => {
            let turned = sources.swap_remove(0).turned(dtype);
            require_even(&turned.name, turned.shape[1])?;
            let half = [turned.shape[0], turned.shape[1] / 2, turned.shape[2]];
            if turned.decoder.grid().cols == half[2] {
                let inner = turned.decoder.clone();
                let rows = Box::new(AlternateRows { inner, first });
                return Ok(made_of([turned], (name, half.to_vec()), dtype, rows));
            }
            moved.order = RowOrder::EverySecond(first);
            (moved.rows, moved.cols) = (half[0] * half[1], half[2]);
            sources = vec![turned];
            half.to_vec()
        }
        Transform::Half(first) => {
            require_even(&sources[0].name, shape[1])?;
            let half = [shape[0], shape[1] / 2];
            moved.order = RowOrder::EverySecond(first);
            (moved.rows, moved.cols) = (half[0] * half[1], 1);
            half.to_vec()
        }
    };
    Ok(assembled(sources, (name, made), dtype, &moved))
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

/// The experts of the stack `source`, whose names `name` gives by their numbers.
pub(super) fn unstacked<'m>(
    source: &SourceTensor<'m>,
    name: impl Fn(usize) -> String,
    dtype: TargetDtype,
) -> Vec<Group<'m>> {
    let shape = &source.shape;
    let expert = |expert| {
        let inner = source.decoder.clone();
        let (first, rows) = (expert * shape[1], shape[1]);
        let window = Box::new(Window { inner, first, rows });
        let part = (name(expert), shape[1..].to_vec());
        made_of([source.clone()], part, dtype, window)
    };
    (0..shape[0]).map(expert).collect()
}

/// The tensor called `name` of two projections of all experts, whose rows take turns: matrices if `is_turned`, which are turned
/// then, else vectors.
///
/// # Errors
/// Those of [`SourceTensor::new`].
pub(super) fn fused<'m>(
    pair: Vec<SourceTensor<'m>>,
    name: String,
    is_turned: bool,
    dtype: TargetDtype,
) -> Result<Group<'m>> {
    let mut shape = pair[0].shape.clone();
    let moved = Rearrangement {
        rows: shape[0] * shape[1],
        cols: shape[2..].iter().product(),
        takes_turns: true,
        ..Rearrangement::of_rows(&shape, Change::None)
    };
    shape[1] *= 2;
    let whole = assembled(pair, (name.clone(), shape), dtype, &moved);
    if !is_turned {
        return Ok(whole);
    }
    let turned = SourceTensor::new(ResolvedItem::Group(whole))?.turned(dtype);
    Ok(turned.renamed(name, dtype))
}

/// The tensor called `name` that `decoder` makes of `sources`.
pub(super) fn made_of<'m>(
    sources: impl IntoIterator<Item = SourceTensor<'m>>,
    (name, shape): (String, Vec<usize>),
    dtype: TargetDtype,
    decoder: Box<dyn Decode + 'm>,
) -> Group<'m> {
    let (mut parts, mut scheme) = (Vec::new(), QuantScheme::Unquantized);
    for source in sources {
        parts.extend(source.parts);
        scheme = source.scheme;
    }
    let mut group = Group::new(name, shape, scheme, parts, decoder);
    group.keeps = Some(dtype);
    group
}
