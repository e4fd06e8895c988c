//! FP8 weights: `X.weight` (F8_E4M3, F8_E5M2 or FNUZ) with a multiplier under one of several names, per
//! tensor, row, column or block. Stacked experts `X` have `X_scale_inv` or `X_scale` beside them.

use std::marker::PhantomData;
use std::ops::Range;

use super::{Buffers, Decode, Floats, Fp8Format, Grid, Group, Index, QuantScheme, Scheme, TensorRole, Tile};
use super::{base_of, module_of, read, wrong};
use crate::Result;
use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::fp8::{Code, E4M3, E4M3Fnuz, E5M2, E5M2Fnuz, ScaleGrid, Scaled};
use crate::simd::{Level, dispatch};

pub(super) struct Fp8;

/// Names of the scale of `X.weight`, after `X.`.
const SCALE_OF_MODULE: &[&str] = &["scale", "scale_weight", "qscale_weight"];

/// Names of the scale of any tensor, after its own name.
const SCALE_OF_TENSOR: &[&str] = &["_scale_inv", "_scale", "_weight_scale", "_weight_scale_inv"];

/// Whether `name` says that the file holds scales of FP8 weights, even before a weight is found for it.
pub(super) fn is_scale_name(name: &str) -> bool {
    ["weight_scale", "_scale_inv", "scale_weight", "scaled_fp8"].iter().any(|end| name.ends_with(end))
}

/// Every name that the scale of a weight can have.
fn scale_names(weight: &str) -> Vec<String> {
    let own = SCALE_OF_TENSOR.iter().map(|end| format!("{weight}{end}"));
    let base = base_of(weight, "weight");
    let module = base.into_iter().flat_map(|base| SCALE_OF_MODULE.iter().map(move |end| format!("{base}{end}")));
    own.chain(module).collect()
}

/// The scales of weight `t`; more than one is left to the caller to refuse.
pub(super) fn scales_of<'m>(t: &Tensor<'m>, get: impl Fn(&str) -> Option<Tensor<'m>>) -> Vec<Tensor<'m>> {
    scale_names(t.name()).iter().filter_map(|name| get(name)).collect()
}

impl Scheme for Fp8 {
    fn kind(&self, t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::CastFp8 { format: Fp8Format::of(t.dtype()).unwrap_or(Fp8Format::E4M3) }
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(format) = Fp8Format::of(t.dtype()) else { return Ok(None) };
        let scales_another = t.name().strip_suffix("_scale").is_some_and(|base| all.get(base).is_some());
        if scales_another || is_scale_name(t.name()) {
            return Ok(None);
        }
        let scales = scales_of(t, |name| all.get(name));
        let (scheme, grid, scale) = match scales.as_slice() {
            [] => {
                if let Some(says) = wants_scale(t, all)? {
                    let name = t.name();
                    let what =
                        format!("{says} says that it has a scale, and `{name}_scale` or `{name}_scale_inv` is missing");
                    return Err(wrong(t, what));
                }
                (QuantScheme::CastFp8 { format }, per_tensor(t.shape()), None)
            }
            [scale] => {
                let (scheme, grid) = fit(t, scale, format, all)?;
                (scheme, grid, Some(Floats::new(scale)?))
            }
            [a, b, ..] => return Err(wrong(t, format!("it has two scales, `{}` and `{}`", a.name(), b.name()))),
        };
        let mut parts = vec![(TensorRole::Quantized, *t)];
        parts.extend(scales.iter().map(|&s| (TensorRole::Scale, s)));
        let (rows, cols) = rows_and_cols(t.shape());
        let decoder = Box::new(Weight { codes: t.part(), scale, format, rows, cols, grid });
        Ok(Some(Group { name: t.name().to_owned(), shape: t.shape().to_vec(), scheme, parts, decoder }))
    }
}

/// Who says that `t`, which has no scale in this file, should have one.
fn wants_scale(t: &Tensor<'_>, all: &Index<'_>) -> Result<Option<&'static str>> {
    if all.config.is_quantized() && !all.config.skips(module_of(t.name())) {
        return Ok(Some("the config"));
    }
    if all.has_fp8_scales {
        return Ok(Some("the rest of the file"));
    }
    let listed = all.config.is_indexed(&scale_names(t.name()))?;
    Ok(listed.then_some("model.safetensors.index.json"))
}

/// A shape as one matrix: all but the last dimension are rows.
fn rows_and_cols(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [rows @ .., cols] => (rows.iter().product(), *cols),
    }
}

/// One scale for everything.
fn per_tensor(shape: &[usize]) -> ScaleGrid {
    let (rows, cols) = rows_and_cols(shape);
    ScaleGrid {
        matrix_rows: rows.max(1),
        block_rows: rows.max(1),
        block_cols: cols.max(1),
        rows_per_matrix: 1,
        cols: 1,
    }
}

/// How the scales lie over the weight, proved from both shapes and checked against the config.
fn fit(t: &Tensor<'_>, scale: &Tensor<'_>, format: Fp8Format, all: &Index<'_>) -> Result<(QuantScheme, ScaleGrid)> {
    let misfit =
        |what: String| wrong(t, format!("its scale `{}` {:?} does not fit: {what}", scale.name(), scale.shape()));
    let block = all.config.weight_block_size().filter(|_| !all.config.skips(module_of(t.name())));
    let grid = whole_rows(t.shape(), scale).or_else(|| blocks(t.shape(), scale.shape(), block.map(|(size, _)| size)));
    let grid = grid.ok_or_else(|| {
        misfit(
            "it is neither one scale, nor one a row, nor a grid of blocks; the config's `weight_block_size` might tell"
                .into(),
        )
    })?;
    let (_, cols) = rows_and_cols(t.shape());
    if let Some((size, place)) = block {
        // Sizes that both cover the dimension mean the same.
        let same = |dim: usize, ours: usize, theirs: usize| ours == theirs || ours.min(theirs) >= dim;
        let rows = t.shape().iter().nth_back(1).copied().unwrap_or(1);
        if !(same(rows, grid.block_rows, size[0]) && same(cols, grid.block_cols, size[1])) {
            return Err(misfit(format!("{place} says blocks of {size:?}")));
        }
    }
    let scheme = match (grid.block_rows, grid.block_cols) {
        _ if scale.elements() == 1 => QuantScheme::PerTensorFp8 { format },
        (1, width) if width >= cols => QuantScheme::PerChannelFp8 { format },
        (height, width) if height >= grid.matrix_rows && width >= cols => QuantScheme::PerTensorFp8 { format },
        (rows, cols) => QuantScheme::FineGrainedFp8 { format, rows, cols },
    };
    Ok((scheme, grid))
}

/// One scale for everything, or for each index of the leading dimensions: rows of a matrix, experts of a
/// stack, rows of each expert.
fn whole_rows(w: &[usize], scale: &Tensor<'_>) -> Option<ScaleGrid> {
    let s = scale.shape();
    let whole = per_tensor(w);
    if scale.elements() == 1 {
        return Some(whole);
    }
    let leading = s.first() == w.first() && s.iter().skip(1).all(|&d| d == 1) && (s.len() == 1 || s.len() == w.len());
    let each_row = w.len() == 3 && s == w.get(..2)?;
    if scale.elements() == 0 || !(w.len() >= 2 && (leading || each_row)) {
        return None;
    }
    let block_rows = (whole.matrix_rows / scale.elements()).max(1);
    Some(ScaleGrid { matrix_rows: block_rows, block_rows, ..whole })
}

/// A grid of blocks over each matrix of a stack: of the configured size where that fits, else of the size
/// that the shapes imply.
fn blocks(w: &[usize], s: &[usize], configured: Option<[usize; 2]>) -> Option<ScaleGrid> {
    let ([w_stack @ .., n, k], [s_stack @ .., rows, cols]) = (w, s) else { return None };
    if w_stack != s_stack {
        return None;
    }
    let fits = |&[bn, bk]: &[usize; 2]| (n.div_ceil(bn), k.div_ceil(bk)) == (*rows, *cols);
    let [block_rows, block_cols] = match configured.filter(fits) {
        Some(size) => size,
        None => infer([*n, *k], [*rows, *cols])?,
    };
    Some(ScaleGrid { matrix_rows: *n, block_rows, block_cols, rows_per_matrix: *rows, cols: *cols })
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
            let mut powers = (0..usize::BITS - 1).map(|e| 1usize << e).take_while(|&p| p < dim);
            let power = powers.find(|p| dim.div_ceil(*p) == n);
            let exact = dim.is_multiple_of(n).then(|| dim / n).filter(|&exact| exact % 16 == 0 && Some(exact) != power);
            power.into_iter().chain(exact).collect()
        }
    }
}

/// An FP8 weight with its scales.
struct Weight<'m> {
    codes: Part<'m>,
    scale: Option<Floats<'m>>,
    format: Fp8Format,
    rows: usize,
    cols: usize,
    grid: ScaleGrid,
}

impl Weight<'_> {
    /// The scales that `tile` uses, as rows and columns of the grid.
    fn scale_range(&self, tile: &Tile) -> (Range<usize>, Range<usize>) {
        let cols = tile.cols.start / self.grid.block_cols..tile.cols.end.div_ceil(self.grid.block_cols);
        (self.grid.rows(&tile.rows), cols)
    }

    fn run<C: Code>(&self, tile: &Tile, rows: Range<usize>, buffers: &Buffers, level: Level, out: Out<'_>) {
        let width = tile.cols.len();
        let (scale_rows, scale_cols) = self.scale_range(tile);
        let first = (rows.start - tile.rows.start) * width;
        let kernel = Scaled::<C> {
            codes: &buffers.bytes[first..first + rows.len() * width],
            rows,
            cols: tile.cols.clone(),
            grid: self.grid,
            scales: &buffers.scales,
            scale_rows,
            scale_cols,
            format: PhantomData,
        };
        dispatch(level, &kernel, out);
    }
}

impl Decode for Weight<'_> {
    fn grid(&self) -> Grid {
        let load_bits = 8.0 + 64.0 / self.grid.block_cols as f64;
        Grid { rows: self.rows, cols: self.cols, row_align: 1, col_align: 1, load_bits, transposed: false }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        read(&self.codes, self.cols, tile.rows.clone(), tile.cols.clone(), &mut buffers.bytes)?;
        buffers.scales.clear();
        let (rows, cols) = self.scale_range(tile);
        match &self.scale {
            Some(scale) => scale.extend(self.grid.cols, rows, cols, &mut buffers.staging, &mut buffers.scales),
            None => {
                buffers.scales.push(1.0);
                Ok(())
            }
        }
    }

    fn decode(&self, tile: &Tile, rows: Range<usize>, buffers: &Buffers, level: Level, out: Out<'_>) {
        match self.format {
            Fp8Format::E4M3 => self.run::<E4M3>(tile, rows, buffers, level, out),
            Fp8Format::E5M2 => self.run::<E5M2>(tile, rows, buffers, level, out),
            Fp8Format::E4M3Fnuz => self.run::<E4M3Fnuz>(tile, rows, buffers, level, out),
            Fp8Format::E5M2Fnuz => self.run::<E5M2Fnuz>(tile, rows, buffers, level, out),
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
