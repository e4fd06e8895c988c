//! `MatMulBnb4` of onnxruntime: NF4 and FP4 of bitsandbytes, `[N, K]`, in blocks of the flattened weight.

use super::{GraphDecoder, GraphWeight};
use crate::remember::bnb::decoder_of_blocks;
use crate::remember::kernels::bnb::{FP4_CODEBOOK, NF4_CODEBOOK};
use crate::remember::seam::{Floats, QuantScheme, wrong};
use crate::{Dtype, Result};

/// The decoder of a weight that is the second input.
pub(super) fn decoder<'m>(weight: &GraphWeight<'m>) -> Result<GraphDecoder<'m>> {
    let (t, scale) = (weight.t, weight.need_scale()?);
    let (rows, cols) = (weight.need_integer("N")?, weight.need_integer("K")?);
    let block = weight.need_integer("block_size")?;
    let map = match weight.codes.integer("quant_type", 1) {
        0 => &FP4_CODEBOOK,
        1 => &NF4_CODEBOOK,
        kind => return Err(weight.refused(format!("its quant_type is {kind}"))),
    };
    let total = rows.checked_mul(cols);
    let fits = |total: &usize| {
        t.dtype() == Dtype::U8
            && total.div_ceil(2) == t.elements()
            && total.div_ceil(block) == scale.elements()
    };
    let total = total.filter(fits).ok_or_else(|| {
        let what =
            format!("its sizes do not fit its operator: N {rows}, K {cols}, blocks of {block}");
        wrong(&t, what)
    })?;
    let decoder = decoder_of_blocks(&t, Floats::ieee(&scale)?, [total, block], map);
    Ok(GraphDecoder { shape: vec![rows, cols], scheme: QuantScheme::Bnb4, decoder })
}
