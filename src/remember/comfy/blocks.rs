//! `nvfp4` and `mxfp8`: blocks along rows, whose scales are [tiled](crate::remember::layout::tiled);
//! and squares with a scale each.

use super::FAMILY;
use super::description::ComfyDescription;
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::{E2M1, Int};
use crate::remember::kernels::nvfp4::BLOCK;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::layout::tiled::{TILE_COLS, TILE_ROWS, TiledScales};
use crate::remember::modelopt::pre_quant_scale;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, Unpack, row_groups};
use crate::remember::seam::scale_matrix::{Matrix, NestedOp, NestedScales};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Index, QuantScheme, TensorRole, Tile, read, refused,
    wrong,
};
use crate::{Dtype, Fp8Format, Result};

/// Values of a block of `mxfp8`.
const MX_BLOCK: usize = 32;

/// A matrix whose scales are stored in tiles, or a bank of experts.
#[derive(Clone, Copy)]
struct TiledBank {
    matrices: usize,
    /// Rows of each.
    height: usize,
    stored_cols: usize,
    is_bank: bool,
}

impl TiledBank {
    /// # Errors
    /// The weight has other dimensions, or the experts are no whole tiles.
    fn new(t: &Tensor<'_>) -> Result<Self> {
        let (matrices, height, stored_cols) = match *t.shape() {
            [rows, cols] => (1, rows, cols),
            [matrices, rows, cols] => (matrices, rows, cols),
            _ => {
                return Err(wrong(t, "its format has two dimensions, or three for experts"));
            }
        };
        let is_bank = t.shape().len() == 3;
        // The tiles of experts that are whole tiles are those of one tall matrix.
        if is_bank && !height.is_multiple_of(TILE_ROWS) {
            let what =
                format!("experts of {height} rows, no multiple of {TILE_ROWS}, are not decoded");
            return Err(refused(t, "ComfyUI quantization", what));
        }
        Ok(Self { matrices, height, stored_cols, is_bank })
    }

    /// Rows of all matrices. A tensor has as many, so that their number does not overflow.
    fn rows(self) -> usize {
        self.matrices.saturating_mul(self.height)
    }

    /// The shape of the decoded weight of `cols` columns.
    fn shape(self, cols: usize) -> Vec<usize> {
        match self.is_bank {
            true => vec![self.matrices, self.height, cols],
            false => vec![self.height, cols],
        }
    }

    /// `floats` as `cols` scales for each row of `t`, stored in tiles.
    ///
    /// # Errors
    /// The shape of `scale` is not that of whole tiles.
    fn scales<'m>(
        self,
        t: &Tensor<'_>,
        scale: &Tensor<'m>,
        floats: Floats<'m>,
        cols: usize,
    ) -> Result<TiledScales<'m>> {
        // Tiles are stored whole, so the padded shape is the proof that the scales are tiled at
        // all.
        let height = self.height.checked_next_multiple_of(TILE_ROWS);
        let padded = height.zip(cols.checked_next_multiple_of(TILE_COLS));
        let is_tiled = padded.is_some_and(|(height, cols)| match self.is_bank {
            true => scale.shape() == [self.matrices, height, cols],
            false => scale.shape() == [height, cols],
        });
        if !is_tiled {
            let (name, shape, rows) = (scale.name(), scale.shape(), self.height);
            let what = format!(
                "its scales `{name}` {shape:?} are not {rows} x {cols} in tiles of {TILE_ROWS} x {TILE_COLS}"
            );
            return Err(wrong(t, what));
        }
        let rows = self.rows();
        Ok(TiledScales { floats, rows, cols })
    }
}

pub(super) fn mxfp8<'m>(t: &Tensor<'m>, scale: &Tensor<'m>) -> Result<Group<'m>> {
    let bank = TiledBank::new(t)?;
    let (rows, cols) = (bank.rows(), bank.stored_cols);
    let exponents = Floats::flushed_exponents(scale)?;
    let scales = Box::new(bank.scales(t, scale, exponents, cols.div_ceil(MX_BLOCK))?);
    let codes = Codes::Rows { part: t.part(), row_bytes: cols };
    let grid = row_groups(cols, MX_BLOCK);
    let decoder = Grouped::scaled(codes, 8, CodeFormat::E4M3, [rows, cols], grid, scales);
    let scheme = QuantScheme::Grouped {
        family: FAMILY,
        codes: CodeType::Mxfp8,
        scales: Granularity::Group(MX_BLOCK),
    };
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    let (name, shape) = (t.name(), bank.shape(cols));
    Ok(Group::new(name, shape, scheme, parts, Box::new(decoder)))
}

pub(super) fn nvfp4<'m>(t: &Tensor<'m>, scale: &Tensor<'m>, all: &Index<'m>) -> Result<Group<'m>> {
    let bank = TiledBank::new(t)?;
    let (rows, bytes) = (bank.rows(), bank.stored_cols);
    let global = all.need(t, t.name(), "_scale_2")?;
    // Older files have the bytes of the scales as U8.
    let is_e4m3 = matches!(scale.dtype(), Dtype::F8E4M3 | Dtype::U8);
    let count = global.elements();
    if !is_e4m3 || count == 0 || count != 1 && global.shape() != [bank.matrices] {
        let (scale, global) = (scale.name(), global.name());
        let what = format!("NVFP4 wants F8_E4M3 as `{scale}`, and one `{global}` for each matrix");
        return Err(wrong(t, what));
    }
    let cols = bytes
        .checked_mul(2)
        .ok_or_else(|| wrong(t, "it is too wide"))?;
    let scales = Box::new(NestedScales {
        inner: Box::new(bank.scales(t, scale, Floats::fp8(scale)?, cols.div_ceil(BLOCK))?),
        outer: Floats::ieee(&global)?,
        count,
        rows_each: (rows / count).max(1),
        op: NestedOp::Multiply,
        unit: 1.0,
    });
    let codes = Codes::Unpacked(Box::new(HighNibbleFirst { part: t.part(), row_bytes: bytes }));
    // comfy-kitchen's table has -0 at code 8, in contrast to ModelOpt's.
    let code_format = CodeFormat::E2M1(E2M1 { factor: 1.0, plain_zero: false });
    let grid = row_groups(cols, BLOCK);
    let mut decoder = Grouped::scaled(codes, 4, code_format, [rows, cols], grid, scales);
    let scheme = QuantScheme::Grouped {
        family: FAMILY,
        codes: CodeType::Nvfp4,
        scales: Granularity::Group(BLOCK),
    };
    let mut parts =
        vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale), (TensorRole::Scale, global)];
    if let Some(columns) = pre_quant_scale(t, cols, all)? {
        decoder.columns = Some(Matrix::of_columns(&columns)?);
        parts.push((TensorRole::Scale, columns));
    }
    let (name, shape) = (t.name(), bank.shape(cols));
    Ok(Group::new(name, shape, scheme, parts, Box::new(decoder)))
}

/// Side of the squares of E4M3 and of INT8, where the description has none (`QUANT_ALGOS` of
/// convert_to_quant).
const SIDES: [usize; 2] = [64, 128];

/// `float8_e4m3fn_blockwise` and `int8_blockwise` of convert_to_quant: a scale for each square of
/// `group_size` rows and columns.
///
/// # Errors
/// The rows and columns are not whole squares, or not as many as there are scales.
pub(super) fn squares<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    description: &ComfyDescription<'m>,
) -> Result<Group<'m>> {
    let is_int8 = t.dtype() == Dtype::I8;
    let side = description.number(t, "group_size", SIDES[usize::from(is_int8)])?;
    let is_whole = |dim: usize| dim > 0 && dim.is_multiple_of(side);
    let (rows, cols) = match *t.shape() {
        [rows, cols]
            if is_whole(rows) && is_whole(cols) && scale.shape() == [rows / side, cols / side] =>
        {
            (rows, cols)
        }
        _ => {
            let (name, shape) = (scale.name(), scale.shape());
            let what =
                format!("its scales `{name}` {shape:?} are not one for each square of {side}");
            return Err(wrong(t, what));
        }
    };
    let grid = ScaleGrid {
        matrix_rows: rows,
        block_rows: side,
        block_cols: side,
        rows_per_matrix: rows / side,
        cols: cols / side,
    };
    let (code_format, scheme) = match is_int8 {
        true => {
            let scheme = QuantScheme::Grouped {
                family: FAMILY,
                codes: CodeType::Int(8),
                scales: Granularity::Block { rows: side, cols: side },
            };
            (CodeFormat::Int(Int::signed(8)), scheme)
        }
        false => {
            let scheme =
                QuantScheme::FineGrainedFp8 { format: Fp8Format::E4M3, rows: side, cols: side };
            (CodeFormat::E4M3, scheme)
        }
    };
    let codes = Codes::Rows { part: t.part(), row_bytes: cols };
    let scales = Box::new(Matrix { floats: Floats::ieee(scale)?, cols: grid.cols });
    let decoder = Grouped::scaled(codes, 8, code_format, [rows, cols], grid, scales);
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    let (name, shape) = (t.name(), t.shape());
    Ok(Group::new(name, shape, scheme, parts, Box::new(decoder)))
}

/// Rows of four-bit codes. The high nibble of a byte has the code of the even column.
struct HighNibbleFirst<'m> {
    part: Part<'m>,
    row_bytes: usize,
}

impl Unpack for HighNibbleFirst<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        read(
            &self.part,
            self.row_bytes,
            tile.rows.clone(),
            // Tiles begin and end at even columns, so no byte is split.
            tile.cols.start / 2..tile.cols.end / 2,
            staging,
        )?;
        out.clear();
        out.extend(staging.iter().flat_map(|byte| [byte >> 4, byte & 15]));
        Ok(())
    }

    /// 16 rows at a time: their scales lie in the same tiles of scales, and one read serves them
    /// all.
    fn align(&self) -> (usize, usize) {
        (16, 2)
    }
}
