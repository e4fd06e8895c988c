//! How scales lie over a weight, proved from both shapes and checked against the config.

use crate::Result;
use crate::config::{QuantConfig, QuantMethod};
use crate::containers::model::Tensor;
use crate::kernels::remember::fp8::ScaleGrid;
use crate::scheme::seam::{Granularity, Index, module_of, wrong};

/// A shape as one matrix: all but the last dimension are rows.
pub(crate) fn rows_and_cols(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [rows @ .., cols] => (rows.iter().product(), *cols),
    }
}

/// One scale for everything.
pub(crate) fn per_tensor(shape: &[usize]) -> ScaleGrid {
    let (rows, cols) = rows_and_cols(shape);
    ScaleGrid {
        matrix_rows: rows.max(1),
        block_rows: rows.max(1),
        block_cols: cols.max(1),
        rows_per_matrix: 1,
        cols: 1,
    }
}

/// The grid that the scales of `t`, whose logical shape is `shape`, make over it.
pub(crate) fn fit(
    t: &Tensor<'_>,
    shape: &[usize],
    scale: &Tensor<'_>,
    all: &Index<'_>,
) -> Result<ScaleGrid> {
    let misfit = |what: String| {
        wrong(
            t,
            format!(
                "its scale `{}` {:?} does not fit: {what}",
                scale.name(),
                scale.shape()
            ),
        )
    };
    let module = all.config.at(module_of(t.name()));
    let block = module.block();
    let grid = by_column(shape, scale, all.config)
        .or_else(|| whole_rows(shape, scale))
        .or_else(|| blocks(shape, scale.shape(), block.as_ref().map(|(size, _)| *size)))
        .or_else(|| reduced_blocks(shape, scale.shape()));
    let grid = grid.ok_or_else(|| {
        misfit(
            "it is neither one scale, nor one a row, nor a grid of blocks; the config's `weight_block_size` might tell"
                .into(),
        )
    })?;
    let (_, cols) = rows_and_cols(shape);
    if let Some((size, place)) = block {
        // Sizes that both cover the dimension mean the same.
        let same =
            |dim: usize, ours: usize, theirs: usize| ours == theirs || ours.min(theirs) >= dim;
        let rows = shape.iter().nth_back(1).copied().unwrap_or(1);
        if !(same(rows, grid.block_rows, size[0]) && same(cols, grid.block_cols, size[1])) {
            return Err(misfit(format!("{place} says blocks of {size:?}")));
        }
    }
    Ok(grid)
}

/// What shares a scale in `grid`, over a weight of `cols` columns.
pub(crate) fn granularity(grid: &ScaleGrid, cols: usize) -> Granularity {
    match (grid.block_rows, grid.block_cols) {
        (1, width) if width >= cols => Granularity::Channel,
        (height, width) if height >= grid.matrix_rows && width >= cols => Granularity::Tensor,
        (1, width) => Granularity::Group(width),
        (rows, cols) => Granularity::Block { rows, cols },
    }
}

/// The grid of scales that have a dimension for each of the weight's, and divide each: blocks of a matrix, of each
/// matrix of a stack, or of all of them.
pub(crate) fn by_dimension(w: &[usize], s: &[usize]) -> Option<ScaleGrid> {
    let ((&cols, rows), (&scale_cols, scale_rows)) = (w.split_last()?, s.split_last()?);
    let divides = |(&dim, &n): (&usize, &usize)| dim == n || n > 0 && dim.is_multiple_of(n);
    if rows.len() != scale_rows.len() || !w.iter().zip(s).all(divides) {
        return None;
    }
    // The dimensions before the first that is cut have a scale for each index, and those behind it one for all.
    let cut = rows
        .iter()
        .zip(scale_rows)
        .position(|(dim, n)| dim != n)
        .unwrap_or(rows.len());
    let (dim, n) = (
        rows.get(cut).copied().unwrap_or(1),
        scale_rows.get(cut).copied().unwrap_or(1),
    );
    if scale_rows.iter().skip(cut + 1).any(|&n| n != 1) {
        return None;
    }
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

/// A scale for each column of each expert of a stack, which is stored the other way round than a layer's weight:
/// `[experts, out, 1]` over `[experts, in, out]` (FBGEMM's).
fn by_column(w: &[usize], scale: &Tensor<'_>, config: &QuantConfig) -> Option<ScaleGrid> {
    let (&[experts, rows, cols], &[e, n, 1]) = (w, scale.shape()) else {
        return None;
    };
    let fbgemm = config.quant_method() == Some(&QuantMethod::FbgemmFp8);
    let fits = e == experts && n == cols && (rows != cols || fbgemm);
    let grid = ScaleGrid {
        matrix_rows: rows.max(1),
        block_rows: rows.max(1),
        block_cols: 1,
        rows_per_matrix: 1,
        cols,
    };
    fits.then_some(grid)
}

/// One scale for everything, or for each index of the leading dimensions: rows of a matrix, experts of a
/// stack, rows of each expert.
fn whole_rows(w: &[usize], scale: &Tensor<'_>) -> Option<ScaleGrid> {
    let s = scale.shape();
    let whole = per_tensor(w);
    if scale.elements() == 1 {
        return Some(whole);
    }
    let leading = s.first() == w.first()
        && s.iter().skip(1).all(|&d| d == 1)
        && (s.len() == 1 || s.len() == w.len());
    let each_row = w.len() == 3 && s == w.get(..2)?;
    if scale.elements() == 0 || !(w.len() >= 2 && (leading || each_row)) {
        return None;
    }
    let block_rows = (whole.matrix_rows / scale.elements()).max(1);
    Some(ScaleGrid {
        matrix_rows: block_rows,
        block_rows,
        ..whole
    })
}

/// A grid of blocks over each matrix of a stack: of the configured size where that fits, else of the size
/// that the shapes imply.
fn blocks(w: &[usize], s: &[usize], configured: Option<[usize; 2]>) -> Option<ScaleGrid> {
    let ([w_stack @ .., n, k], [s_stack @ .., rows, cols]) = (w, s) else {
        return None;
    };
    if w_stack != s_stack {
        return None;
    }
    let fits = |&[bn, bk]: &[usize; 2]| (n.div_ceil(bn), k.div_ceil(bk)) == (*rows, *cols);
    let [block_rows, block_cols] = match configured.filter(fits) {
        Some(size) => size,
        None => infer([*n, *k], [*rows, *cols])?,
    };
    Some(ScaleGrid {
        matrix_rows: *n,
        block_rows,
        block_cols,
        rows_per_matrix: *rows,
        cols: *cols,
    })
}

/// A grid of blocks as the maxima over them are left, `[rows, 1, columns, 1]`: ModelOpt's, whose blocks are 128 × 128.
fn reduced_blocks(w: &[usize], s: &[usize]) -> Option<ScaleGrid> {
    let (&[_, _], &[rows, 1, cols, 1]) = (w, s) else {
        return None;
    };
    blocks(w, &[rows, cols], Some([128, 128]))
}

/// The block size that cuts a matrix of `dims` into `counts` blocks, the last of which may be smaller. Where
/// a side fits two sizes, it is the one that the other side has.
fn infer(dims: [usize; 2], counts: [usize; 2]) -> Option<[usize; 2]> {
    let [rows, cols] = [sizes(dims[0], counts[0]), sizes(dims[1], counts[1])];
    match (rows.as_slice(), cols.as_slice()) {
        (&[rows], &[cols]) => Some([rows, cols]),
        (&[a, b], &[cols]) if a == cols || b == cols => Some([cols, cols]),
        (&[rows], &[a, b]) if a == rows || b == rows => Some([rows, rows]),
        _ => None,
    }
}

/// The sizes that cut `dim` into `n` pieces and that anyone would choose: all or one at the ends, else the
/// power of two that does, and an exact divisor that is a multiple of 16.
fn sizes(dim: usize, n: usize) -> Vec<usize> {
    match n {
        0 => vec![],
        1 => vec![dim],
        _ if n == dim => vec![1],
        _ if n > dim => vec![],
        _ => {
            let mut powers = (0..usize::BITS - 1)
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
        assert_eq!(infer([960, 960], [10, 10]), Some([96, 96]));
        assert_eq!(infer([64, 64], [64, 2]), Some([1, 32]));
        assert_eq!(infer([192, 8], [2, 1]), None);
        assert_eq!(infer([100, 64], [37, 1]), None);
        assert_eq!(infer([4, 4], [5, 1]), None);
    }
}
