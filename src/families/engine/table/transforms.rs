//! How tables say that values of a tensor change places.

use crate::Result;
use crate::families::engine::dims::{Dim, Dims};
use crate::families::engine::source::{Rearrangement, SourceTensor};
use crate::remember::layout::assembled::Change;

/// How a tensor of transformers changes on the way to GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transform {
    None,
    /// Rows of each head alternate between its halves: rope turns pairs of neighbours there, and
    /// halves here.
    Heads,
    /// Of the part of each head that rotates, even rows come before odd ones: rope turns halves
    /// there, and pairs of neighbours here.
    Neighbours,
    /// As [`Heads`](Self::Heads), of the part of each head that rotates.
    Halves,
    /// One stack of all experts.
    Experts,
    /// One stack of so many matrices, which are numbered as experts are.
    Stack(usize),
    /// One tensor of several, one behind another: `{e}` in the name stands for each of these.
    Joined(&'static [&'static str]),
    /// As [`Joined`](Self::Joined), of matrices that are side by side.
    Beside(&'static [&'static str]),
    /// One value, which is that of its layer in the list with this key of the metadata.
    Key(&'static str),
    /// Matrices `[in, out]`, or those of a stack, as `[out, in]`. Vectors stay.
    Transposed,
    /// Some of the parts that take turns in the rows.
    Parts(Parts),
    /// Parts of groups of rows or columns become tiles.
    Tiled(&'static Tiling),
    /// Multiplied by the root of the quotient of two sizes.
    TimesRoot(&'static [Dim; 2]),
    /// As many values in the dimensions of GGUF, each of them changed.
    Reshaped(Change),
    /// What the family alone has.
    Own(&'static OwnTransform),
}

impl Transform {
    /// The same values in the dimensions of GGUF.
    pub(crate) const RESHAPED: Self = Self::Reshaped(Change::None);
    /// `-exp(x)` of each value, in the dimensions of GGUF.
    pub(crate) const NEG_EXP: Self = Self::Reshaped(Change::NegExp);

    /// Whether several tensors become one stack.
    pub(crate) fn is_stack(self) -> bool {
        matches!(self, Self::Experts | Self::Stack(_) | Self::Joined(_) | Self::Beside(_))
    }

    /// What is done to each value.
    pub(crate) fn change(self) -> Change {
        match self {
            Self::Reshaped(change) => change,
            Self::Tiled(tiling) => tiling.change,
            // The numbers follow from the config.
            Self::TimesRoot(_) => Change::Times([0; 2]),
            _ => Change::None,
        }
    }

    /// The parts of a tensor of transformers that a tensor of GGUF has, unless it has all.
    pub(crate) fn some_parts(self) -> Option<Parts> {
        match self {
            Self::Parts(parts) if parts.count() < parts.turn.count() => Some(parts),
            _ => None,
        }
    }
}

/// The rows and the shape of the tensor of this name that is made of one tensor, to which others
/// may be added.
///
/// # Errors
/// `Parse` if there are not as many rows as the config says.
pub(crate) type MakeRows =
    fn(&mut Vec<SourceTensor<'_>>, &str, &Dims) -> Result<(Rearrangement, Vec<usize>)>;

/// How a tensor changes that one family alone has.
#[derive(Debug)]
pub(crate) struct OwnTransform {
    pub to_gguf: MakeRows,
    pub to_hf: MakeRows,
}

impl PartialEq for OwnTransform {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for OwnTransform {}

/// Parts that take turns in the rows of a tensor of transformers, of which a tensor of GGUF has
/// some, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    pub turn: Turn,
    /// The number of the first part that GGUF has.
    pub first: usize,
    /// The number behind that of the last.
    pub end: usize,
    /// Whether matrices are transposed before.
    pub is_transposed: bool,
    pub then: Then,
}

/// How long the parts of one turn are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A turn is all rows of a matrix, or of each matrix of a stack: so many parts of one length.
    Equal(usize),
    /// Each part is one row: how many parts there are, and the dimension of the shape that they are in.
    Single(usize, usize),
    /// The lengths of the parts in the rows of the matrix.
    Rows(&'static [Dim]),
}

/// What is done to the parts afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    /// As [`Transform::Heads`].
    Heads,
    /// The part of each turn is a matrix, and is transposed.
    Transposed,
}

impl Turn {
    /// Number of its parts.
    pub(crate) const fn count(self) -> usize {
        match self {
            Self::Equal(count) | Self::Single(count, _) => count,
            Self::Rows(lengths) => lengths.len(),
        }
    }

    /// The dimension that its parts are in, of a tensor of transformers with `rank` dimensions.
    pub(crate) fn axis(self, rank: usize) -> usize {
        match self {
            Self::Equal(_) => rank.saturating_sub(2),
            Self::Single(_, axis) => axis,
            Self::Rows(_) => 0,
        }
    }
}

impl Parts {
    /// The part `part` alone.
    pub(crate) const fn one(turn: Turn, part: usize) -> Self {
        Self { turn, first: part, end: part + 1, is_transposed: false, then: Then::Nothing }
    }

    /// All parts.
    pub(crate) const fn all(turn: Turn) -> Self {
        Self { end: turn.count(), ..Self::one(turn, 0) }
    }

    /// Whether they are rows of a matrix as it is, and stay rows.
    pub(crate) fn is_of_rows(self) -> bool {
        let stay = !matches!(self.turn, Turn::Single(..)) && self.then != Then::Transposed;
        stay && !self.is_transposed
    }

    /// How many they are.
    pub(crate) fn count(self) -> usize {
        self.end - self.first
    }
}

/// Groups of parts that become tiles: the first parts of all groups, then the second ones, ….
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiling {
    /// Number of groups.
    pub groups: Dim,
    /// Parts of a group.
    pub parts: Dim,
    /// Length of a part.
    pub len: Dim,
    /// Rows in front of them, which stay.
    pub behind: Option<Dim>,
    /// Whether they are columns, and not rows.
    pub is_of_columns: bool,
    pub change: Change,
}
