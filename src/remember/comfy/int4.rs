//! `awq_w4a16` and `svdquant_w4a4`: codes of 4 bits in groups of 64 columns (AWQ: `group_size`),
//! whose scales are stored `[in / 64, out]`.
//!
//! | format | weight | companions |
//! |---|---|---|
//! | `awq_w4a16` | I8 `[out, in / 2]`, unsigned | `X.weight_zeros` or `X.weight_zero`, added to the scaled codes |
//! | `svdquant_w4a4` | I8 `[out, in / 2]`, signed | `smooth_factor` `[in]`, `proj_down` `[in, r]`, `proj_up` `[out, r]` |
//!
//! Those of `svdquant_w4a4` are called `X.weight_proj_down` or `X.proj_down`. With the layout
//! `kitchen_tile_packed_w4a4` the outputs come in tiles of 128: `weight` `[out / 128, in / 64, 32,
//! 128]`, `weight_scale` `[out / 128, in / 64, 128]`, `proj_up` `[out / 128, r, 128]`.
//!
//! With `act_unsigned` the kernel adds a constant to the input of the quantized part alone. The
//! group then has a bias besides, with which the layer needs no constant.
//!
//! Formulas: comfy-kitchen `gemv_awq_w4a16`, `quantize_svdquant_w4a4` and `scaled_mm_svdquant_w4a4`
//! (eager backend), `_w4a4_forward`. The kernel divides its input by the smoothing factors; the
//! product of low rank sees the input as it is.

use serde_json::Value;

use super::FAMILY;
use super::description::ComfyDescription;
use crate::model::{Part, Tensor};
use crate::remember::Tile;
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::low_rank::ColumnStep;
use crate::remember::layout::low_rank::{LowRankFactors, LowRankSum};
use crate::remember::layout::shifted_bias::ShiftedBias;
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, Unpack, row_groups,
};
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix, Transposed};
use crate::remember::seam::{
    CodeType, Decode, Floats, Granularity, Group, Index, QuantScheme, TensorRole, base_of, read,
    refused, require_shape, wrong,
};
use crate::{Dtype, Result, TargetDtype};

/// Columns that share a scale.
const GROUP: usize = 64;

/// Bytes of the codes of a group.
const GROUP_BYTES: usize = GROUP / 2;

/// Outputs of a tile.
const TILE_OUTPUTS: usize = 128;

/// `awq_w4a16`.
pub(super) fn awq<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    description: &ComfyDescription<'m>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let group = description.number(t, "group_size", GROUP)?;
    let [rows, cols] = natural(t, group)?;
    let zeros = all.one_of(t, &[(t.name(), "_zeros"), (t.name(), "_zero")])?;
    for part in [scale, &zeros] {
        require_shape(t, part, &[cols / group, rows])?;
    }
    let of_groups = |part: &Tensor<'m>| -> Result<_> {
        let floats = Floats::ieee(part)?;
        Ok(Box::new(Transposed::of_floats(floats, rows, cols / group)))
    };
    let codes = Codes::Rows { part: t.part(), row_bytes: cols / 2 };
    let code_format = CodeFormat::Int(Int::offset_binary(4));
    let grid = row_groups(cols, group);
    let mut decoder = Grouped::scaled(codes, 4, code_format, [rows, cols], grid, of_groups(scale)?);
    // The library computes in the dtype of the scales, to which it rounds the products.
    let dtype = match (scale.dtype(), zeros.dtype()) {
        (Dtype::BF16, Dtype::BF16) => Some(TargetDtype::BF16),
        (Dtype::F16, Dtype::F16) => Some(TargetDtype::F16),
        _ => None,
    };
    decoder.formula =
        GroupFormula::ScaleShift(GroupOffsets::new(of_groups(&zeros)?).computed_in(dtype));
    let parts = vec![(TensorRole::Scale, *scale), (TensorRole::Offset, zeros)];
    let code = CodeType::Uint(4);
    Ok(claimed(t, [rows, cols], (code, group), parts, Box::new(decoder)))
}

/// `svdquant_w4a4`.
pub(super) fn svdquant<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    description: &ComfyDescription<'m>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    check_options(t, description)?;
    let layer = SvdQuantLayer::find(t, scale, description, all)?;
    let factors = layer.factors()?;
    let roles = [(TensorRole::Scale, *scale), (TensorRole::Scale, layer.smooth)];
    let parts = roles.into_iter().chain(factors.parts()).collect();
    let columns = (ColumnStep::DivideValue, Matrix::of_columns(&layer.smooth)?);
    let decoder = LowRankSum::new(Box::new(layer.quantized()?), factors, Some(columns));
    let code = CodeType::Int(4);
    let shape = [layer.rows, layer.cols];
    let mut group = claimed(t, shape, (code, GROUP), parts, Box::new(decoder));
    if is_shifted(t, description)? {
        let (stored, bias) = layer.shifted_bias(all)?;
        group.push_bias(stored, true, Box::new(bias));
    }
    Ok(group)
}

/// Whether the quantized part sees its input with a constant added.
fn is_shifted(t: &Tensor<'_>, description: &ComfyDescription<'_>) -> Result<bool> {
    match description.option("act_unsigned") {
        Some(Value::Bool(is_shifted)) => Ok(*is_shifted),
        None | Some(Value::Null) => Ok(false),
        Some(other) => {
            let what = format!("its description has `act_unsigned` {other}, which is no boolean");
            Err(wrong(t, what))
        }
    }
}

/// The tensors of a layer of `svdquant_w4a4`, of the right shapes.
struct SvdQuantLayer<'m> {
    t: Tensor<'m>,
    scale: Tensor<'m>,
    smooth: Tensor<'m>,
    down: Tensor<'m>,
    up: Tensor<'m>,
    rows: usize,
    cols: usize,
    rank: usize,
    /// Whether outputs come in tiles.
    is_tiled: bool,
}

impl<'m> SvdQuantLayer<'m> {
    fn find(
        t: &Tensor<'m>,
        scale: &Tensor<'m>,
        description: &ComfyDescription<'m>,
        all: &Index<'m>,
    ) -> Result<Self> {
        let is_tiled = t.shape().len() == 4;
        let stated = description.option("layout").map(|layout| layout.as_str());
        if !matches!(
            (stated, is_tiled),
            (None, _)
                | (Some(Some("kitchen_tile_packed_w4a4")), true)
                | (Some(Some("natural")), false)
        ) {
            let what = "its description has a `layout` that its shape is not of";
            return Err(wrong(t, what));
        }
        let [rows, cols] = match is_tiled {
            true => tile_packed(t)?,
            false => natural(t, GROUP)?,
        };
        let base = base_of(t.name(), "weight").unwrap_or_default();
        let named = |name, long| all.one_of(t, &[(base, name), (t.name(), long)]);
        let smooth = named("smooth_factor", "_smooth_factor")?;
        let down = named("proj_down", "_proj_down")?;
        let up = named("proj_up", "_proj_up")?;
        require_shape(t, &smooth, &[cols])?;
        let rank = down.shape().get(1).copied().unwrap_or(0);
        require_shape(t, &down, &[cols, rank])?;
        let (tiles, groups) = (rows / TILE_OUTPUTS, cols / GROUP);
        if is_tiled {
            require_shape(t, scale, &[tiles, groups, TILE_OUTPUTS])?;
            require_shape(t, &up, &[tiles, rank, TILE_OUTPUTS])?;
        } else {
            require_shape(t, scale, &[groups, rows])?;
            require_shape(t, &up, &[rows, rank])?;
        }
        Ok(Self { t: *t, scale: *scale, smooth, down, up, rows, cols, rank, is_tiled })
    }

    /// The decoder of the quantized part.
    fn quantized(&self) -> Result<Grouped<'m>> {
        let groups = self.cols / GROUP;
        let part = self.t.part();
        let codes = match self.is_tiled {
            true => Codes::Arranged(Box::new(OutputTiles { part, groups })),
            false => Codes::Rows { part, row_bytes: self.cols / 2 },
        };
        // Each tile has its scales, and its rows of the factor, transposed, so that they are a
        // stack.
        let height = if self.is_tiled {
            TILE_OUTPUTS
        } else {
            self.rows
        };
        let scales = Transposed::of_floats(Floats::ieee(&self.scale)?, height, groups);
        let code_format = CodeFormat::Int(Int::signed(4));
        let (shape, grid) = ([self.rows, self.cols], row_groups(self.cols, GROUP));
        let scales = Box::new(scales);
        Ok(Grouped::scaled(codes, 4, code_format, shape, grid, scales))
    }

    fn factors(&self) -> Result<LowRankFactors<'m>> {
        let (floats, rank) = (Floats::ieee(&self.up)?, self.rank);
        let b: Box<dyn ScaleMatrix> = match self.is_tiled {
            true => Box::new(Transposed::of_floats(floats, TILE_OUTPUTS, rank)),
            false => Box::new(Matrix { floats, cols: rank }),
        };
        let down = Floats::ieee(&self.down)?;
        Ok(LowRankFactors {
            tensors: [self.down, self.up],
            a: Box::new(Transposed::of_floats(down, rank, self.cols)),
            b,
            rank,
        })
    }

    /// The stored bias, and the decoder of the bias that belongs to the decoded weight: the
    /// quantized part alone sees its input with a constant added, and the stored bias makes up for
    /// it.
    fn shifted_bias(&self, all: &Index<'m>) -> Result<(Tensor<'m>, ShiftedBias<'m>)> {
        let base = base_of(self.t.name(), "weight").unwrap_or_default();
        let Some(bias) = all.at(base, "bias") else {
            let what = "its input is shifted (`act_unsigned`), and it has no bias that could make up for it";
            return Err(refused(&self.t, "ComfyUI quantization", what));
        };
        require_shape(&self.t, &bias, &[self.rows])?;
        let decoder = ShiftedBias {
            quantized: Box::new(self.quantized()?),
            divisors: Matrix::of_columns(&self.smooth)?,
            bias: Matrix::of_columns(&bias)?,
        };
        Ok((bias, decoder))
    }
}

/// Checks that the product of low rank sees the input of the layer.
fn check_options(t: &Tensor<'_>, description: &ComfyDescription<'_>) -> Result<()> {
    let basis = description.option("lowrank_branch_input_basis");
    if basis.is_some_and(|basis| basis.as_str() != Some("raw")) {
        let what = "its product of low rank takes another input than the layer's \
                    (`lowrank_branch_input_basis`), which is not decoded";
        return Err(refused(t, "ComfyUI quantization", what));
    }
    Ok(())
}

/// Rows and columns of a weight `[out, in / 2]` with whole groups of `group` columns.
fn natural(t: &Tensor<'_>, group: usize) -> Result<[usize; 2]> {
    let &[rows, bytes] = t.shape() else {
        return Err(wrong(t, "its format has two dimensions"));
    };
    let cols = bytes.checked_mul(2);
    match cols.filter(|cols| cols.is_multiple_of(group)) {
        Some(cols) => Ok([rows, cols]),
        None => Err(wrong(t, format!("its rows are not whole groups of {group} codes"))),
    }
}

/// Rows and columns of a weight `[out / 128, in / 64, 32, 128]`.
fn tile_packed(t: &Tensor<'_>) -> Result<[usize; 2]> {
    let sizes = match *t.shape() {
        [tiles, groups, 32, 128] => tiles
            .checked_mul(TILE_OUTPUTS)
            .zip(groups.checked_mul(GROUP)),
        _ => None,
    };
    let sizes = sizes.filter(|(rows, cols)| rows.checked_mul(*cols).is_some());
    sizes
        .map(|(rows, cols)| [rows, cols])
        .ok_or_else(|| wrong(t, "it is neither [out, in / 2] nor [out / 128, in / 64, 32, 128]"))
}

fn claimed<'m>(
    t: &Tensor<'m>,
    shape: [usize; 2],
    (codes, group): (CodeType, usize),
    companions: Vec<(TensorRole, Tensor<'m>)>,
    decoder: Box<dyn Decode + 'm>,
) -> Group<'m> {
    let scheme = QuantScheme::Grouped { family: FAMILY, codes, scales: Granularity::Group(group) };
    let mut parts = vec![(TensorRole::Quantized, *t)];
    parts.extend(companions);
    Group::new(t.name(), shape.to_vec(), scheme, parts, decoder)
}

/// Signed codes in tiles of 128 outputs and 64 inputs, one after another along a row of tiles. A
/// tile has 32 bytes for each output.
struct OutputTiles<'m> {
    part: Part<'m>,
    /// Tiles in a row of tiles.
    groups: usize,
}

impl Unpack for OutputTiles<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        // Tiles of the grid begin and end at whole groups.
        let (first, row_bytes) = (tile.cols.start / GROUP, tile.cols.len() / 2);
        // Not cleared first: every byte is overwritten.
        out.resize(tile.rows.len() * row_bytes, 0);
        let mut row = tile.rows.start;
        while row < tile.rows.end {
            let (down, in_tile) = (row / TILE_OUTPUTS, row % TILE_OUTPUTS);
            let n = (TILE_OUTPUTS - in_tile).min(tile.rows.end - row);
            let target = &mut out[(row - tile.rows.start) * row_bytes..];
            for group in 0..row_bytes / GROUP_BYTES {
                // In lines of the bytes of a group, all tiles follow each other.
                let line = (down * self.groups + first + group) * TILE_OUTPUTS + in_tile;
                read(&self.part, GROUP_BYTES, line..line + n, 0..GROUP_BYTES, staging)?;
                for (r, bytes) in staging.as_chunks::<GROUP_BYTES>().0.iter().enumerate() {
                    let at = r * row_bytes + group * GROUP_BYTES;
                    target[at..at + GROUP_BYTES].copy_from_slice(bytes);
                }
            }
            row += n;
        }
        Ok(())
    }

    /// Whole tiles, so that one read has all outputs of a group.
    fn align(&self) -> (usize, usize) {
        (TILE_OUTPUTS, GROUP)
    }
}
