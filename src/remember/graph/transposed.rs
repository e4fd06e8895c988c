//! Keras's GPTQ: codes of `[out, in]`, with scales and zero points for groups of inputs, of a
//! kernel `[in, out]`. An index tells the group of each input.

use super::stored::StoredInts;
use super::{GraphDecoder, GraphWeight};
use crate::model::{GraphCodes, Part, Tensor};
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::layout::lines::{CodeLines, LinePacking, TransposedCodes};
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, Unpack};
use crate::remember::seam::scale_matrix::{GroupIndexed, Matrix, ScaleMatrix, Transposed};
use crate::remember::seam::{CodeType, Granularity, StoredRows, Tile, read, wrong};
use crate::{Dtype, Result};

/// The decoder of a weight of such a layer.
pub(super) fn decoder<'m>(weight: &GraphWeight<'m>) -> Result<GraphDecoder<'m>> {
    let (t, scale) = (weight.t, weight.need_scale()?);
    let [rows, cols, bits] =
        [GraphCodes::ROWS, GraphCodes::COLS, GraphCodes::BITS].map(|key| weight.need_integer(key));
    let (rows, cols, bits) = (rows?, cols?, bits?);
    let (Some(zero_point), Some(index)) = (weight.zero_point, weight.index) else {
        return Err(weight.refused("it has no zero points or no index"));
    };
    let groups = scale.elements() / cols;
    let lines = if bits == 4 { cols.div_ceil(2) } else { cols };
    let misfit = [
        (t, t.dtype() == Dtype::U8 && t.shape() == [lines, rows]),
        (scale, groups > 0 && scale.shape() == [cols, groups]),
        (zero_point, zero_point.dtype() == Dtype::U8 && zero_point.shape() == scale.shape()),
        (index, index.dtype() == Dtype::F32 && index.shape() == [rows]),
    ];
    if let Some((part, _)) = misfit.into_iter().find(|(_, fits)| !fits) {
        let what = format!("`{}` {} {:?} does not fit", part.name(), part.dtype(), part.shape());
        return Err(wrong(&t, what));
    }
    let by_row = |inner: Box<dyn ScaleMatrix + 'm>| -> Box<dyn ScaleMatrix + 'm> {
        let inner = Box::new(GroupIndexed { inner, groups, index: index.part(), is_float: true });
        Box::new(Transposed { inner, rows, cols })
    };
    let zeros = StoredInts::new(&zero_point, Dtype::U8, groups * 8)?;
    let floats = super::linear::scale_floats(&scale)?;
    let grid =
        ScaleGrid { matrix_rows: rows, block_rows: 1, block_cols: 1, rows_per_matrix: rows, cols };
    let scales = by_row(Box::new(Matrix { floats, cols: groups }));
    let grouped = Grouped {
        formula: GraphWeight::formula(Some(by_row(Box::new(zeros)))),
        ..Grouped::scaled(
            codes(&t, bits, rows),
            bits,
            CodeFormat::Int(Int::UNSIGNED),
            [rows, cols],
            grid,
            scales,
        )
    };
    Ok(GraphDecoder {
        shape: weight.codes.shape.clone().unwrap_or(vec![rows, cols]),
        scheme: weight
            .scheme(CodeType::Uint(bits as u8), Granularity::Group(rows.div_ceil(groups))),
        decoder: Box::new(grouped),
    })
}

/// Codes of a byte each, or of four bits: the lines of two columns then share bytes.
fn codes<'m>(t: &Tensor<'m>, bits: usize, rows: usize) -> Codes<'m> {
    Codes::Unpacked(match bits {
        4 => Box::new(LinePairs { part: t.part(), rows }),
        _ => Box::new(TransposedCodes(CodeLines::new(t, LinePacking::Bytes(1), rows))),
    })
}

/// Four-bit codes whose columns are lines. A byte has those of two adjacent lines, the even one in
/// its low nibble.
struct LinePairs<'m> {
    part: Part<'m>,
    rows: usize,
}

impl Unpack for LinePairs<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let (height, width) = (tile.rows.len(), tile.cols.len());
        let pairs = tile.cols.start / 2..tile.cols.end.div_ceil(2);
        read(&self.part, self.rows, pairs.clone(), tile.rows.clone(), staging)?;
        out.clear();
        out.resize(height * width, 0);
        for (column, i) in tile.cols.clone().zip(0..) {
            let line = staging
                .chunks_exact(height.max(1))
                .nth(column / 2 - pairs.start);
            let bytes = line.unwrap_or(&[]).iter();
            let column = bytes.map(|byte| byte >> (column % 2 * 4) & 15);
            out.iter_mut()
                .skip(i)
                .step_by(width)
                .zip(column)
                .for_each(|(out, code)| *out = code);
        }
        Ok(())
    }

    fn transposed(&self) -> Option<StoredRows> {
        Some(StoredRows::of_one(8, 2))
    }
}
