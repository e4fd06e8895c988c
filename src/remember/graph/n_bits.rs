//! `MatMulNBits` of onnxruntime: `[N, K]`, as linear modules have their weights. Codes of 2, 4 or 8
//! bits lie in blocks of a row, least significant bits first; zero points are packed in the same way,
//! and each row of them begins with a byte of its own.

use super::{GraphDecoder, GraphWeight, StoredInts};
use crate::remember::kernels::grouped::Int;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix};
use crate::remember::seam::{CodeType, Floats, Granularity, wrong};
use crate::{Dtype, Result};

/// The decoder of a weight that is the second input.
pub(super) fn decoder<'m>(weight: &GraphWeight<'m>) -> Result<GraphDecoder<'m>> {
    let (t, scale) = (weight.t, weight.need_scale()?);
    let [rows, cols, block] = ["N", "K", "block_size"].map(|name| weight.need_integer(name));
    let (rows, cols, block) = (rows?, cols?, block?);
    let (bits, dtype) = match weight.codes.integer("bits", 4) {
        2 => (2, Dtype::U2),
        4 => (4, Dtype::U4),
        8 => (8, Dtype::U8),
        bits => return Err(weight.refused(format!("its codes have {bits} bits"))),
    };
    if weight.codes.integer("weight_prepacked", 0) != 0 {
        return Err(weight.refused("its codes are in the order of a processor"));
    }
    let blocks = cols.div_ceil(block);
    let misfit = |what: &str| {
        wrong(&t, format!("its {what} not fit its operator: N {rows}, K {cols}, blocks of {block}"))
    };
    let block_bytes = block
        .checked_mul(bits)
        .filter(|bits| bits.is_multiple_of(8));
    let row_bytes = block_bytes.and_then(|bits| blocks.checked_mul(bits / 8));
    let row_bytes = row_bytes.ok_or_else(|| misfit("size does"))?;
    if t.dtype() != Dtype::U8 || row_bytes.checked_mul(rows) != Some(t.elements()) {
        return Err(misfit("codes do"));
    }
    if blocks.checked_mul(rows) != Some(scale.elements()) {
        return Err(misfit("scales do"));
    }
    let zero_bytes = (blocks * bits).div_ceil(8);
    let zero_points: Option<Box<dyn ScaleMatrix + 'm>> = match &weight.zero_point {
        None => None,
        Some(zero) if zero.dtype() == Dtype::U8 && zero.elements() == zero_bytes * rows => {
            Some(Box::new(StoredInts::new(zero, dtype, 8 * zero_bytes)?))
        }
        Some(zero) if zero.dtype() == scale.dtype() && zero.elements() == scale.elements() => {
            Some(Box::new(Matrix { floats: Floats::ieee(zero)?, cols: blocks }))
        }
        Some(_) => return Err(misfit("zero points do")),
    };
    // Without zero points, the middle of the range is zero.
    let format = match zero_points {
        None => CodeFormat::Int(Int::offset_binary(bits)),
        Some(_) => CodeFormat::Int(Int::UNSIGNED),
    };
    let grid = row_groups(cols, block);
    let scales = Box::new(Matrix { floats: Floats::ieee(&scale)?, cols: blocks });
    let codes = Codes::Rows { part: t.part(), row_bytes };
    let decoder = Grouped {
        formula: GraphWeight::formula(zero_points),
        ..Grouped::scaled(codes, bits, format, [rows, cols], grid, scales)
    };
    let scheme = weight.scheme(CodeType::Uint(bits as u8), Granularity::Group(block));
    Ok(GraphDecoder { shape: vec![rows, cols], scheme, decoder: Box::new(decoder) })
}
