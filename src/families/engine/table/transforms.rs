//! How tables say that rows of a tensor change.

/// How the rows of a tensor change on the way to GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum Transform {
    None,
    /// Rows of each head alternate between its halves: rope turns pairs of neighbours there, and
    /// halves here.
    Heads,
    /// Of the part of each head that rotates, even rows come before odd ones: rope turns halves
    /// there, and pairs of neighbours here.
    Neighbours,
    /// One stack of all experts.
    Experts,
    /// One stack of so many matrices, which are numbered as experts are.
    Stack(usize),
    /// Rows of zeros behind the others.
    PaddedRows,
    /// One value, which is that of its layer in the list with this key of the metadata.
    Key(&'static str),
    /// Matrices of a stack are transposed: `[in, out]` to `[out, in]`.
    Transposed,
    /// Every second row of the transposed stack of experts, from this one on: one of two
    /// projections that are fused.
    TransposedHalf(usize),
    /// One half of the rows of each matrix of the transposed stack of experts, the first or the
    /// second.
    TransposedHalves(usize),
    /// Every second value of each expert, from this one on.
    Half(usize),
    /// One half of the rows of each expert, the first or the second.
    Halves(usize),
    /// A third of the rows (0, 1, 2): queries, keys or values.
    Thirds(usize),
    /// One of the two frames of filters over images, `[n, channels, 2, height, width]` as
    /// `[n, channels, height, width]`.
    Frames(usize),
    /// Filters over images as a matrix, `[n, height × width × channels]` as
    /// `[n, channels, height, width]`.
    Pixels,
    /// A part of the rows of each head: the weights of keys and of values from what both have in
    /// common.
    Latent(LatentPart),
    /// The parts of linear attention that each head of keys has in one matrix.
    Linear(LinearPart),
    /// Queries, keys and values of each head become all queries, all keys, all values.
    FusedHeads,
    /// Heads of values in linear attention, of which each head of keys has some side by side, are
    /// tiled.
    ValueHeads(ValuePart),
    /// `-exp(x)` of each value, with the dimensions of GGUF.
    NegExp,
    /// The same values of a vector with the dimensions of GGUF.
    Reshaped,
    /// A stack of filters `[n, 1, k]` as `[n, k]`.
    Filters,
    /// The rows behind that of the padding token, at which positions begin.
    Positions,
    /// A matrix `[in, out]` as `[out, in]`. Biases stay.
    Matrix,
    /// Queries, keys and values of each group of heads become all queries, all keys, all values.
    FusedGroups,
    /// All queries, all keys or all values (0, 1, 2) of a projection with those of each group. Rows
    /// of queries and keys alternate as of `Heads`.
    GroupPart(usize),
}

impl Transform {
    /// Whether several tensors become one stack.
    pub(in crate::families) fn is_stack(self) -> bool {
        matches!(self, Self::Experts | Self::Stack(_))
    }
}

/// Which rows of each head of `kv_b_proj` a tensor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum LatentPart {
    /// Those of the keys, each head transposed.
    Keys,
    /// Those of the values.
    Values,
}

/// Where a tensor of linear attention has heads of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum ValuePart {
    /// Rows behind those of queries and keys.
    Projections,
    /// Filters `[n, 1, k]` behind those of queries and keys, as `[n, k]`.
    Filters,
    /// All rows.
    Rows,
    /// One row, or one value, for each head.
    Heads,
    /// One value for each head, as `-exp(x)`.
    Decays,
    /// Columns.
    Columns,
}

/// Which rows of each head of keys of `in_proj_qkvz` a tensor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum LinearPart {
    /// All queries, all keys, all values.
    Projections,
    /// The gates.
    Gate,
}
