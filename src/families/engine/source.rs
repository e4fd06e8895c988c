//! A tensor of the input, of which several tensors of the output may be made.

use std::ops::Range;
use std::sync::Arc;

use super::names::is_buffer;
use crate::error::InTensor;
use crate::model::Tensor;
use crate::remember::layout::assembled::{Assembled, Change, Computed, Piece, RowOrder, Tiles};
use crate::remember::layout::placed_blocks::{PlacedBlock, PlacedBlocks};
use crate::remember::layout::transposed::TransposedStack;
use crate::remember::{Decode, Group, PlainFloats, QuantScheme, ResolvedItem, Window};
use crate::{AnamnesisError, Result, TargetDtype, TensorRole};

/// A tensor of the input with its decoder.
#[derive(Clone)]
pub(crate) struct SourceTensor<'m> {
    pub name: String,
    pub shape: Vec<usize>,
    pub scheme: QuantScheme,
    parts: Vec<(TensorRole, Tensor<'m>)>,
    /// The type that it is stored in, unless it is quantized.
    pub stored: Option<TargetDtype>,
    /// Whether it is a whole stored tensor, whose bytes can be copied.
    is_plain: bool,
    pub decoder: Arc<dyn Decode + 'm>,
    /// Shape and decoder of a stack with its matrices transposed, `[…, out, in]`, if codes lie like
    /// that.
    transposed: Option<(Vec<usize>, Arc<dyn Decode + 'm>)>,
}

impl<'m> SourceTensor<'m> {
    /// # Errors
    /// `Unsupported` if the item is neither quantized nor floats.
    pub(crate) fn new(item: ResolvedItem<'m>) -> Result<Self> {
        match item {
            ResolvedItem::Group(group) => Ok(Self {
                transposed: group
                    .module
                    .map(|module| (module.shape.into(), Arc::from(module.decoder))),
                name: group.name.into_owned(),
                shape: group.shape.into(),
                scheme: group.scheme,
                parts: group.parts,
                stored: group.keeps,
                is_plain: false,
                decoder: Arc::from(group.decoder),
            }),
            ResolvedItem::Plain(t) => match PlainFloats::of(&t.stored) {
                Some(plain) => Ok(Self {
                    name: t.name().to_owned(),
                    shape: t.stored.shape().to_vec(),
                    scheme: QuantScheme::Unquantized,
                    parts: vec![(TensorRole::Passthrough, t.stored)],
                    stored: TargetDtype::of(t.stored.dtype()),
                    is_plain: true,
                    decoder: Arc::new(plain),
                    transposed: None,
                }),
                None => {
                    let dtype = t.stored.dtype();
                    let what = format!("{}: GGUF models have no {dtype}", InTensor(&t.name()));
                    Err(AnamnesisError::unsupported("a whole model", what))
                }
            },
        }
    }

    /// The tensor itself under another name, in the type `dtype`.
    pub(crate) fn renamed(self, name: String, dtype: TargetDtype) -> Group<'m> {
        let rows = self.decoder.grid().rows;
        let decoder = Window { inner: self.decoder.clone(), first: 0, rows };
        let is_copied = self.is_plain && self.stored == Some(dtype);
        let shape = self.shape.clone();
        let mut group = made_of([self], (name, shape), dtype, Box::new(decoder));
        group.is_copied = is_copied;
        group
    }

    /// As [`renamed`](Self::renamed), with the same values in the shape `shape`.
    pub(crate) fn reshaped(self, name: String, shape: Vec<usize>, dtype: TargetDtype) -> Group<'m> {
        let group = self.renamed(name, dtype);
        // What is copied has the shape that is stored.
        let is_copied = false;
        Group { shape: shape.into(), is_copied, ..group }
    }

    /// `rows` rows from `first` on, of the tensor or of each matrix of a stack, as a tensor called
    /// `name`.
    pub(crate) fn rows_of(
        &self,
        name: String,
        first: usize,
        (rows, is_stack): (usize, bool),
    ) -> Self {
        let (stack, step) = match (is_stack, &self.shape[..]) {
            (true, &[stack, step, _]) => (stack, step),
            _ => (1, 0),
        };
        let mut shape = self.shape.clone();
        shape[usize::from(is_stack)] = rows;
        let piece = |matrix: usize| SourceRows {
            source: 0,
            order: RowOrder::From(matrix * step + first),
            rows,
            turn: 1,
        };
        let moved = Rearrangement {
            pieces: (0..stack).map(piece).collect(),
            cols: shape[1 + usize::from(is_stack)..].iter().product(),
            takes_turns: false,
            change: Change::None,
            columns: None,
        };
        self.rearranged((name, shape), &moved)
    }

    /// The `rows` rows from `first` on of a matrix, with `change` made to each value, in F32, as a
    /// tensor called `name`.
    pub(crate) fn changed_rows(
        &self,
        name: &str,
        (first, rows): (usize, usize),
        change: Change,
    ) -> Self {
        let shape = vec![rows, self.shape[1..].iter().product()];
        let order = RowOrder::From(first);
        let moved = Rearrangement { change, ..Rearrangement::of_each(1, order, (rows, shape[1])) };
        Self { stored: None, ..self.clone() }.rearranged((name.to_owned(), shape), &moved)
    }

    /// The rows `rows` of a matrix, one behind the other, as a tensor called `name`.
    pub(crate) fn picked(&self, name: String, rows: &[usize]) -> Self {
        let piece =
            |row: &usize| SourceRows { source: 0, order: RowOrder::From(*row), rows: 1, turn: 1 };
        let cols = self.shape[1..].iter().product();
        let moved = Rearrangement {
            pieces: rows.iter().map(piece).collect(),
            cols,
            takes_turns: false,
            change: Change::None,
            columns: None,
        };
        self.rearranged((name, vec![rows.len(), cols]), &moved)
    }

    /// A matrix of `blocks`, each the rows `rows` of one tensor with their first value at a row and
    /// a column, and of zeros around them.
    pub(crate) fn in_blocks(
        blocks: Vec<(Self, Range<usize>, [usize; 2])>,
        (name, [rows, cols]): (String, [usize; 2]),
        dtype: TargetDtype,
    ) -> Group<'m> {
        let placed = blocks.iter().map(|(source, rows, at)| PlacedBlock {
            decoder: source.decoder.clone(),
            rows: rows.clone(),
            cols: source.shape[1..].iter().product(),
            at: *at,
        });
        let decoder = PlacedBlocks { blocks: placed.collect(), rows, cols, dtype };
        let sources = blocks.into_iter().map(|(source, ..)| source);
        made_of(sources, (name, vec![rows, cols]), dtype, Box::new(decoder))
    }

    /// The tensor of that name and shape that is put together from rows of this one.
    pub(crate) fn rearranged(&self, named: (String, Vec<usize>), moved: &Rearrangement) -> Self {
        // What is quantized is rounded where the tensor is written.
        let dtype = self.stored.unwrap_or(TargetDtype::F32);
        let group = assembled(vec![self.clone()], named, dtype, moved);
        Self {
            name: group.name.into_owned(),
            shape: group.shape.into(),
            scheme: group.scheme,
            parts: group.parts,
            stored: self.stored,
            is_plain: false,
            decoder: Arc::from(group.decoder),
            transposed: None,
        }
    }

    /// A stack `[n, rows, cols]` with its matrices transposed, `[n, cols, rows]`, as values of type
    /// `dtype`.
    pub(crate) fn transposed(self, dtype: TargetDtype) -> Self {
        if let Some((shape, decoder)) = self.transposed {
            return Self { shape, decoder, transposed: None, is_plain: false, ..self };
        }
        let [stack, rows, cols] = self.shape[..] else {
            return self;
        };
        let decoder = TransposedStack { inner: self.decoder, rows: cols, cols: rows, dtype };
        Self { shape: vec![stack, cols, rows], decoder: Arc::new(decoder), is_plain: false, ..self }
    }
}

/// The tensors of `items` but for buffers, which may be integers.
///
/// # Errors
/// As [`SourceTensor::new`].
pub(crate) fn sources_of<'m>(
    items: impl Iterator<Item = ResolvedItem<'m>>,
) -> Result<Vec<SourceTensor<'m>>> {
    let items = items.filter(|item| !is_buffer(item.name()));
    items.map(SourceTensor::new).collect()
}

/// Rows of one of several sources.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceRows {
    /// Number of the source.
    pub source: usize,
    pub order: RowOrder,
    /// Rows that are taken.
    pub rows: usize,
    /// Rows that are taken at once where sources take turns.
    pub turn: usize,
}

/// How the rows of sources make a tensor.
pub(crate) struct Rearrangement {
    pub pieces: Vec<SourceRows>,
    pub cols: usize,
    pub takes_turns: bool,
    pub change: Change,
    pub columns: Option<Tiles>,
}

impl Rearrangement {
    /// `rows` rows of each of `sources` sources in the order `order`, one source after another.
    pub(crate) fn of_each(sources: usize, order: RowOrder, (rows, cols): (usize, usize)) -> Self {
        let piece = |source| SourceRows { source, order, rows, turn: 1 };
        Self {
            pieces: (0..sources).map(piece).collect(),
            cols,
            takes_turns: false,
            change: Change::None,
            columns: None,
        }
    }

    /// All rows of a tensor of `shape` in their order, with `change` made to each value.
    pub(crate) fn changed(shape: &[usize], change: Change) -> Self {
        let size = (shape[0], shape[1..].iter().product());
        Self { change, ..Self::of_each(1, RowOrder::From(0), size) }
    }
}

/// All rows and the shape of the first of `sources`, as they are.
pub(crate) fn unchanged(sources: &[SourceTensor<'_>]) -> (Rearrangement, Vec<usize>) {
    let shape = sources[0].shape.clone();
    (Rearrangement::changed(&shape, Change::None), shape)
}

/// The tensor called `name` that is put together from rows of `sources`.
pub(crate) fn assembled<'m>(
    sources: Vec<SourceTensor<'m>>,
    (name, shape): (String, Vec<usize>),
    dtype: TargetDtype,
    moved: &Rearrangement,
) -> Group<'m> {
    let piece = |piece: &SourceRows| Piece {
        decoder: sources[piece.source].decoder.clone(),
        rows: piece.rows,
        order: piece.order,
        turn: piece.turn,
    };
    let decoder = Assembled {
        pieces: moved.pieces.iter().map(piece).collect(),
        takes_turns: moved.takes_turns,
        cols: moved.cols,
        dtype,
        change: moved.change,
        columns: moved.columns,
    };
    made_of(sources, (name, shape), dtype, Box::new(decoder))
}

/// The tensor called `name` that `decoder` makes of `sources`.
pub(crate) fn made_of<'m>(
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

/// A vector that is made here, such as factors of rope.
pub(crate) fn computed<'m>((name, values): (&str, Vec<f32>)) -> Group<'m> {
    let shape = vec![values.len()];
    let mut group = Group::new(
        name.to_owned(),
        shape,
        QuantScheme::Unquantized,
        vec![],
        Box::new(Computed(values)),
    );
    group.keeps = Some(TargetDtype::F32);
    group
}
