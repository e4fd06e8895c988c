//! Which values of a weight share a scale: inferred from the shapes of weight and scales, and
//! checked against the config.
//!
//! Configs are often incomplete, while a wrong grid decodes to plausible garbage. So it is an error
//! if the config contradicts the shapes, or if the shapes fit two grids and the config does not
//! name one of them.

use crate::config::QuantConfig;
use crate::model::Tensor;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::seam::{Granularity, Index, module_of, wrong};
use crate::{Dtype, Result};

/// Rows and columns of a tensor of `shape` as one matrix: all dimensions but the last are rows.
pub(crate) fn rows_and_cols(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [rows @ .., cols] => (rows.iter().product(), *cols),
    }
}

/// The grid of one scale for a whole tensor.
pub(crate) fn per_tensor(shape: &[usize]) -> ScaleGrid {
    // A tensor without elements keeps a block of one value: the grid's sizes are divisors.
    let (rows, cols) = rows_and_cols(shape);
    ScaleGrid {
        matrix_rows: rows.max(1),
        block_rows: rows.max(1),
        block_cols: cols.max(1),
        rows_per_matrix: 1,
        cols: 1,
    }
}

/// The grid of `scale` over the weight `t`, whose logical shape is `shape`.
///
/// # Errors
/// The shapes fit no grid or several, or the block size of the config is another one.
pub(crate) fn fit(
    t: &Tensor<'_>,
    shape: &[usize],
    scale: &Tensor<'_>,
    all: &Index<'_>,
) -> Result<ScaleGrid> {
    let misfit = |what: String| {
        wrong(t, format!("its scale `{}` {:?} does not fit: {what}", scale.name(), scale.shape()))
    };
    // A weight without values, such as the share of an expert that a rank does not hold, has no
    // scales or one that scales nothing.
    if t.elements() == 0 && scale.elements() == 0 {
        return Ok(per_tensor(shape));
    }
    let module = all.config.at(module_of(t.name()));
    let of_method = || all.method?.block;
    let block = module.block().or_else(of_method);
    // An algorithm of ModelOpt is not checked here, for it says nothing of stacks.
    let of_algorithm = || module.block_side().map(|side| [side; 2]);
    let configured = block.map(|(size, _)| size).or_else(of_algorithm);
    let has_no_blocks = configured.is_none() && module.is_null("weight_block_size");
    let keeps_reduced = all.method.is_some_and(|facts| facts.keeps_reduced);
    // From the most specific shape to the most general, so that no layout hides another.
    // FBGEMM's `[experts, out, 1]` has to be first: for twice as many inputs as outputs it would
    // pass for blocks of two rows.
    let grid = in_chunks(t, shape, scale.shape(), configured, all.config)
        .or_else(|| by_column(shape, scale, keeps_reduced))
        .or_else(|| {
            // The dimension that was reduced tells scales of rows from those of columns.
            let is_reduced = keeps_reduced && (shape.len(), scale.shape().len()) == (3, 2);
            whole_rows(shape, scale).filter(|_| !is_reduced)
        })
        .or_else(|| halves(shape, scale.shape()).filter(|_| has_no_blocks && has_halves(t.name())))
        .or_else(|| blocks(shape, scale.shape(), configured))
        .or_else(|| reduced_blocks(shape, scale.shape()));
    let grid = grid.ok_or_else(|| {
        misfit(
            "it is neither one scale, nor one a row, nor a grid of blocks; the config's `weight_block_size` might tell"
                .into(),
        )
    })?;
    let chunk = fused_chunk(t, shape, all.config);
    let (rows, height) = (grid.matrix_rows, grid.block_rows);
    if chunk
        .is_some_and(|chunk| 1 < height && height < rows && rows != chunk && chunk % height != 0)
    {
        let what = "the rows of each head of keys lie together, and blocks begin anew in each; \
                    the config's `weight_block_size` might tell their size";
        return Err(misfit(what.into()));
    }
    // Blocks have been inferred or taken from the config by now. Where the shape settled them
    // without asking the config, for instance one scale for a row, the config can still contradict.
    let (_, cols) = rows_and_cols(shape);
    if let Some((size, place)) = block {
        // Block sizes that cover the whole dimension are equivalent, however large.
        // A scale for the whole of a small matrix is what a library writes that is configured for
        // larger blocks.
        let same = |dim: usize, found: usize, configured: usize| {
            found == configured || found.min(configured) >= dim
        };
        let rows = shape.iter().nth_back(1).copied().unwrap_or(1);
        let is_same = same(rows, grid.block_rows, size[0]) && same(cols, grid.block_cols, size[1]);
        if !(is_same || has_exponents_of_mx(scale, &grid)) {
            return Err(misfit(format!("{place} says blocks of {size:?}")));
        }
    }
    Ok(grid)
}

/// Whether `scale` has an exponent for 32 values of a row, as OCP's microscaling formats have:
/// tables that are looked up by rows have no blocks of several rows, whatever the config says of
/// layers (DeepSeek-V4.1's Engram; sglang `layers/engram.py`, `FP8_BLOCK_SIZE`).
fn has_exponents_of_mx(scale: &Tensor<'_>, grid: &ScaleGrid) -> bool {
    const VALUES: usize = 32;
    scale.dtype() == Dtype::F8E8M0 && (grid.block_rows, grid.block_cols) == (1, VALUES)
}

/// Rows of each chunk of a fused projection of queries, keys and values, if the model has chunks.
fn fused_chunk(t: &Tensor<'_>, w: &[usize], config: &QuantConfig) -> Option<usize> {
    let is_fused = config.has_fused_heads() && module_of(t.name()).ends_with("qkv_proj");
    let (&[n, _], chunks) = (w, config.key_value_heads()?) else {
        return None;
    };
    (is_fused && n.is_multiple_of(chunks)).then(|| n / chunks)
}

/// The grid of a fused projection of queries, keys and values whose rows lie in a chunk for each
/// head of keys. Blocks begin anew in each chunk, so that their last ones are short (MiMo-V2.5;
/// sglang `mimo_v2.py`, `_resolve_deferred_qkv_scale_inv`).
fn in_chunks(
    t: &Tensor<'_>,
    w: &[usize],
    s: &[usize],
    configured: Option<[usize; 2]>,
    config: &QuantConfig,
) -> Option<ScaleGrid> {
    let (&[n, k], &[rows, cols], Some([height, width])) = (w, s, configured) else {
        return None;
    };
    if !module_of(t.name()).ends_with("qkv_proj") || height == 0 || width == 0 {
        return None;
    }
    let chunks = config
        .key_value_heads()
        .filter(|&chunks| n.is_multiple_of(chunks))?;
    let chunk = n / chunks;
    let fits =
        chunks.checked_mul(chunk.div_ceil(height)) == Some(rows) && k.div_ceil(width) == cols;
    // Where the numbers of blocks are the same, only the model tells.
    let is_meant = config.has_fused_heads() || n.div_ceil(height) != rows;
    (fits && is_meant).then_some(ScaleGrid {
        matrix_rows: chunk.max(1),
        block_rows: height,
        block_cols: width,
        rows_per_matrix: rows / chunks,
        cols,
    })
}

/// How listings describe `grid` over a weight of `cols` columns.
pub(crate) fn granularity(grid: &ScaleGrid, cols: usize) -> Granularity {
    match (grid.block_rows, grid.block_cols) {
        (1, width) if width >= cols => Granularity::Channel,
        (height, width) if height >= grid.matrix_rows && width >= cols => Granularity::Tensor,
        (1, width) => Granularity::Group(width),
        (rows, cols) => Granularity::Block { rows, cols },
    }
}

/// The grid of scales with as many dimensions as the weight, each of which divides that of the
/// weight. A block may be part of a matrix, a matrix of a stack, or several matrices.
pub(crate) fn by_dimension(w: &[usize], s: &[usize]) -> Option<ScaleGrid> {
    let ((&cols, rows), (&scale_cols, scale_rows)) = (w.split_last()?, s.split_last()?);
    // `n > 0` first: the remainder by zero would panic. An equal dimension is a scale for each
    // index, even if it is 0.
    let divides = |(&dim, &n): (&usize, &usize)| dim == n || n > 0 && dim.is_multiple_of(n);
    if rows.len() != scale_rows.len() || !w.iter().zip(s).all(divides) {
        return None;
    }
    // A `ScaleGrid` has blocks of adjacent rows. So dimensions before the first that is cut have a
    // scale for each index, and dimensions behind it have one scale for all.
    let cut = rows
        .iter()
        .zip(scale_rows)
        .position(|(dim, n)| dim != n)
        .unwrap_or(rows.len());
    let (dim, n) = (rows.get(cut).copied().unwrap_or(1), scale_rows.get(cut).copied().unwrap_or(1));
    // Behind the cut dimension a scale for each index would need blocks of rows that are not
    // adjacent.
    if scale_rows.iter().skip(cut + 1).any(|&n| n != 1) {
        return None;
    }
    // Checked, although a weight's element count fits: an empty dimension makes the count 0 and
    // lets the others be any size.
    let below = rows
        .iter()
        .skip(cut + 1)
        .try_fold(1usize, |n, &dim| n.checked_mul(dim))?;
    let block_rows = (dim / n.max(1)).checked_mul(below)?;
    let matrix_rows = dim.checked_mul(below)?;
    let block_cols = (cols / scale_cols.max(1)).max(1);
    Some(ScaleGrid {
        matrix_rows: matrix_rows.max(1),
        block_rows: block_rows.max(1),
        block_cols,
        rows_per_matrix: n,
        cols: scale_cols,
    })
}

/// The grid of FBGEMM's experts: the weight is `[experts, in, out]`, transposed with regard to that
/// of a linear module, with a scale for each column of each expert, `[experts, out, 1]`. In a
/// square matrix the same scales could be of rows: then the config decides.
fn by_column(w: &[usize], scale: &Tensor<'_>, keeps_reduced: bool) -> Option<ScaleGrid> {
    let (&[experts, rows, cols], &[e, n, 1]) = (w, scale.shape()) else {
        return None;
    };
    // If the matrix is square, `[e, n, 1]` also fits a scale for each row. Rows are the rule, so
    // only a method whose scales keep the reduced dimension turns it into columns.
    let fits = e == experts && n == cols && (rows != cols || keeps_reduced);
    let grid = ScaleGrid {
        matrix_rows: rows.max(1),
        block_rows: rows.max(1),
        block_cols: 1,
        rows_per_matrix: 1,
        cols,
    };
    fits.then_some(grid)
}

/// The grid of one scale for the tensor, or of one for each index of the leading dimensions: for
/// each row of a matrix, each expert of a stack, or each row of each expert.
fn whole_rows(w: &[usize], scale: &Tensor<'_>) -> Option<ScaleGrid> {
    let s = scale.shape();
    let whole = per_tensor(w);
    if scale.elements() == 1 {
        return Some(whole);
    }
    // `[N]` and `[N, 1]` of a matrix, `[E]` and `[E, 1, 1]` of a stack: ones may be left out, but
    // only all of them. A shape that keeps some could mean other dimensions.
    let leading = s.first() == w.first()
        && s.iter().skip(1).all(|&d| d == 1)
        && (s.len() == 1 || s.len() == w.len());
    let each_row = w.len() == 3 && s == w.get(..2)?;
    if scale.elements() == 0 || !(w.len() >= 2 && (leading || each_row)) {
        return None;
    }
    // The scales are as many as the leading dimensions have indices, so the quotient is exact.
    let block_rows = (whole.matrix_rows / scale.elements()).max(1);
    Some(ScaleGrid { matrix_rows: block_rows, block_rows, ..whole })
}

/// Whether the rows of a stack of this name are those of two projections.
pub(super) fn has_halves(name: &str) -> bool {
    name.ends_with("gate_up_proj")
}

/// The grid of two scales for each matrix of a stack, `[experts, 2, 1]`: one for the rows of the
/// gate, and one for those of the other projection (transformers `FP8Experts`).
fn halves(w: &[usize], s: &[usize]) -> Option<ScaleGrid> {
    let (&[experts, rows, cols], &[e, 2, 1]) = (w, s) else {
        return None;
    };
    let fits = e == experts && rows > 0 && rows.is_multiple_of(2);
    fits.then_some(ScaleGrid {
        matrix_rows: rows,
        block_rows: rows / 2,
        block_cols: cols.max(1),
        rows_per_matrix: 2,
        cols: 1,
    })
}

/// The grid of blocks over each matrix of a stack. Blocks have the `configured` size if it fits the
/// shapes, else the size that the shapes imply.
fn blocks(w: &[usize], s: &[usize], configured: Option<[usize; 2]>) -> Option<ScaleGrid> {
    let ([w_stack @ .., n, k], [s_stack @ .., rows, cols]) = (w, s) else {
        return None;
    };
    if w_stack != s_stack {
        return None;
    }
    // Rounded up: the last block of a side may be smaller, as in DeepSeek's 576 rows in 5 blocks of
    // 128.
    let fits = |&[bn, bk]: &[usize; 2]| (n.div_ceil(bn), k.div_ceil(bk)) == (*rows, *cols);
    // A scale for each column is what only stacks have (`[experts, 1, out]`). Of a matrix it is a
    // scale for each row that was transposed.
    if w_stack.is_empty() && cols == k && *k > 1 && configured.is_none_or(|[_, width]| width != 1) {
        return None;
    }
    let [block_rows, block_cols] = match configured.filter(fits) {
        Some(size) => size,
        // Two scales for each matrix of a stack can be of its halves or of blocks: only a size that
        // both have is certain.
        None if !w_stack.is_empty() && (*rows, *cols) == (2, 1) && *n > 2 => {
            let height = n / 2;
            (height * 2 == *n && height.is_power_of_two()).then_some([height, *k])?
        }
        // A configured size that does not fit is not an error yet: the inferred size is compared
        // with it in `fit`, whose message names both.
        None => infer([*n, *k], [*rows, *cols])?,
    };
    Some(ScaleGrid { matrix_rows: *n, block_rows, block_cols, rows_per_matrix: *rows, cols: *cols })
}

/// The grid of ModelOpt's 128x128 blocks, whose scales are `[rows, 1, cols, 1]`: a reduction that
/// kept its dimensions.
fn reduced_blocks(w: &[usize], s: &[usize]) -> Option<ScaleGrid> {
    const SIDE: usize = 128;
    let (&[n, k], &[rows, 1, cols, 1]) = (w, s) else {
        return None;
    };
    let fits = (n.div_ceil(SIDE), k.div_ceil(SIDE)) == (rows, cols);
    fits.then_some(ScaleGrid {
        matrix_rows: n,
        block_rows: SIDE,
        block_cols: SIDE,
        rows_per_matrix: rows,
        cols,
    })
}

/// The block size that cuts a matrix of `dims` into `counts` blocks, the last of which may be
/// smaller. If one side fits two sizes and one of them is that of the other side, blocks are
/// square. `None` if the size is not certain.
fn infer(dims: [usize; 2], counts: [usize; 2]) -> Option<[usize; 2]> {
    // A ragged side fits few sizes and an even one often two. A size that both sides share is what
    // quantizers use.
    let [rows, cols] = [sizes(dims[0], counts[0]), sizes(dims[1], counts[1])];
    match (rows.as_slice(), cols.as_slice()) {
        (&[rows], &[cols]) => Some([rows, cols]),
        (&[a, b], &[cols]) if a == cols || b == cols => Some([cols, cols]),
        (&[rows], &[a, b]) if a == rows || b == rows => Some([rows, rows]),
        _ => None,
    }
}

/// The least side of a block, a power of two, whose size no config tells. Smaller ones are what
/// scales of another layer look like.
const LEAST_POWER: usize = 4;

/// The plausible sizes that cut `dim` into `n` pieces. One piece is the whole dimension, `dim`
/// pieces are single values. Otherwise a size is the power of two with that many pieces, or an
/// exact divisor that is a multiple of 16.
fn sizes(dim: usize, n: usize) -> Vec<usize> {
    match n {
        0 => vec![],
        1 => vec![dim],
        _ if n == dim => vec![1],
        _ if n > dim => vec![],
        _ => {
            let mut powers = (LEAST_POWER.ilog2()..usize::BITS - 1)
                .map(|e| 1usize << e)
                .take_while(|&p| p < dim);
            let power = powers.find(|p| dim.div_ceil(*p) == n);
            let exact = dim
                .is_multiple_of(n)
                .then(|| dim / n)
                .filter(|&exact| exact % 16 == 0 && Some(exact) != power);
            power.into_iter().chain(exact).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::infer;

    #[test]
    fn block_sizes_from_ragged_edges() {
        assert_eq!(infer([576, 7168], [5, 56]), Some([128, 128]));
        assert_eq!(infer([300, 260], [3, 3]), Some([128, 128]));
        assert_eq!(infer([192, 256], [2, 2]), Some([128, 128]));
        assert_eq!(infer([192, 192], [2, 2]), None);
        assert_eq!(infer([8, 8], [2, 2]), Some([4, 4]));
        assert_eq!(infer([8, 8], [4, 4]), None);
        assert_eq!(infer([960, 960], [10, 10]), Some([96, 96]));
        assert_eq!(infer([64, 64], [64, 2]), Some([1, 32]));
        assert_eq!(infer([192, 8], [2, 1]), None);
        assert_eq!(infer([100, 64], [37, 1]), None);
        assert_eq!(infer([4, 4], [5, 1]), None);
    }
}
