//! `GatherBlockQuantized` of onnxruntime: rows of which some are taken, with a scale for each block of a
//! row. Codes are integers of 4 bits, or bytes of which each has one code of 8 bits or several smaller
//! ones.

use super::stored::int_format;
use super::{GraphDecoder, GraphWeight, StoredInts};
use crate::remember::kernels::grouped::Int;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix};
use crate::remember::seam::{CodeType, Floats, Granularity, wrong};
use crate::{Dtype, Result};

/// The decoder of a weight that is the first input.
pub(super) fn decoder<'m>(weight: &GraphWeight<'m>) -> Result<GraphDecoder<'m>> {
    let (t, scale) = (weight.t, weight.need_scale()?);
    let misfit = |what: &str| wrong(&t, format!("its {what} its operator"));
    // In bytes, codes that are less than a byte lie along the last dimension.
    let is_packed = t.dtype() == Dtype::U8;
    let bits = match is_packed {
        true => weight.codes.integer("bits", 4),
        false => t.dtype().bits() as i64,
    };
    let dtype = match (bits, t.dtype()) {
        (2, Dtype::U8) => Dtype::U2,
        (4, Dtype::U8) => Dtype::U4,
        (8, Dtype::U8) | (4, Dtype::U4 | Dtype::I4) => t.dtype(),
        _ => return Err(weight.refused(format!("its codes are {} of {bits} bits", t.dtype()))),
    };
    let rank = t.shape().len() as i64;
    let axis = weight.codes.integer("quantize_axis", 1);
    if axis != rank - 1 && axis != -1 {
        return Err(weight.refused("its blocks do not run along its last axis"));
    }
    let mut shape = t.shape().to_vec();
    if let (true, Some(last)) = (is_packed, shape.last_mut()) {
        let cols = last.checked_mul(8 / dtype.bits());
        *last = cols.ok_or_else(|| misfit("size does not fit"))?;
    }
    let (rows, cols) = rows_and_cols(&shape);
    let block = usize::try_from(weight.codes.integer("block_size", 128));
    let block = block.ok().filter(|&block| block > 0);
    let block = block.ok_or_else(|| misfit("block size does not fit"))?;
    let (bits, blocks) = (dtype.bits(), cols.div_ceil(block));
    let row_bits = cols.saturating_mul(bits);
    if !row_bits.is_multiple_of(8) {
        return Err(weight.refused("its rows end within a byte"));
    }
    if blocks.checked_mul(rows) != Some(scale.elements()) {
        return Err(misfit("scales do not fit"));
    }
    // Packed zero points begin with a byte in each row; integers of four bits have no gaps.
    let zero_bits = match is_packed {
        true => (blocks * bits).next_multiple_of(8),
        false => blocks * bits,
    };
    let zero_points: Option<Box<dyn ScaleMatrix + 'm>> = match &weight.zero_point {
        None => None,
        Some(zero)
            if zero.dtype() == t.dtype()
                && zero.byte_len() == (rows * zero_bits).div_ceil(8) as u64 =>
        {
            Some(Box::new(StoredInts::new(zero, dtype, zero_bits)?))
        }
        Some(_) => return Err(misfit("zero points do not fit")),
    };
    let (code_type, format) = match (is_packed, &zero_points) {
        // The middle of the range is zero.
        (true, None) => (CodeType::Uint(bits as u8), CodeFormat::Int(Int::offset_binary(bits))),
        _ => int_format(dtype).ok_or_else(|| misfit("type does not fit"))?,
    };
    let grid = row_groups(cols, block);
    let scales = Box::new(Matrix { floats: Floats::ieee(&scale)?, cols: blocks });
    let codes = Codes::Rows { part: t.part(), row_bytes: row_bits / 8 };
    let decoder = Grouped {
        formula: GraphWeight::formula(zero_points),
        ..Grouped::scaled(codes, bits, format, [rows, cols], grid, scales)
    };
    let scheme = weight.scheme(code_type, Granularity::Group(block));
    Ok(GraphDecoder { shape, scheme, decoder: Box::new(decoder) })
}
