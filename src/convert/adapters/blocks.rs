//! Factors of adapters in blocks of ggml, as `convert_lora_to_gguf.py --outtype q8_0` writes them.

use std::ops::Range;

use super::tensor::AdapterTensor;
use crate::Result;
use crate::element::Out;
use crate::remember::kernels::ggml::{GgmlDecoder, decoder};
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::simd::Level;

/// A matrix in blocks.
pub(super) struct FactorBlocks {
    tensor: AdapterTensor,
    cols: usize,
    decode: GgmlDecoder,
    /// Values and bytes of a block.
    block: (usize, usize),
}

impl FactorBlocks {
    /// The matrix of `cols` columns that `tensor` has; `None` if it is not in blocks.
    pub(super) fn new(tensor: &AdapterTensor, cols: usize) -> Option<Self> {
        let dtype = tensor.get().dtype();
        let has_blocks = dtype.row_header() == 0 && cols.is_multiple_of(dtype.block_size());
        Some(Self {
            cols,
            decode: decoder(dtype)
                .filter(|_| has_blocks && !tensor.get().info().has_unknown_order())?,
            block: (dtype.block_size(), dtype.type_size()?),
            tensor: tensor.clone(),
        })
    }
}

impl ScaleMatrix for FactorBlocks {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (values, bytes) = self.block;
        // A block is decoded as a whole.
        let blocks = cols.start / values..cols.end.div_ceil(values);
        let mut decoded = vec![0.0; blocks.len() * values];
        let tensor = self.tensor.get();
        for row in rows {
            let first = row * (self.cols / values) + blocks.start;
            staging.resize(blocks.len() * bytes, 0);
            tensor.part().read_at((first * bytes) as u64, staging)?;
            (self.decode)(staging, None, Level::detect(), Out::F32(&mut decoded));
            let skipped = cols.start - blocks.start * values;
            out.extend_from_slice(&decoded[skipped..skipped + cols.len()]);
        }
        Ok(())
    }
}
