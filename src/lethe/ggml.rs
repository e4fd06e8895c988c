//! A tensor of a GGUF file: one stored tensor of the same name and shape, in blocks of a ggml type
//! or in plain floats.
//!
//! A block has its scales among its codes, so that there are no companions. llama.cpp reads rows of
//! whole blocks, and falls back to floats where a row is no multiple of the block
//! (`gguf/mixture.rs`). Some types weigh the error of a column by its importance
//! (`gguf/imatrix.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::IntoBytes;

use super::{
    Encode, EncodeBuffers, Method, Put, RelayTarget, StoreCodes, StoredTensor, TileValues,
    WeightInfo,
};
use crate::element::Element;
use crate::element::Out;
use crate::lethe::imatrix::Imatrix;
use crate::lethe::kernels::ggml::{GgmlEncoder, encoder};
use crate::lethe::seam::rows::MAX_ROW_LEN;
use crate::remember::kernels::ggml::{GgmlDecoder, decoder};
use crate::remember::{CodeFamily, Grid, GroupCodes, Tile, TopExponent};
use crate::simd::Level;
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// One of ggml's types.
pub(crate) struct Ggml {
    pub dtype: Dtype,
    /// The importance of columns, if the user gave an importance matrix.
    pub imatrix: Option<Arc<Imatrix>>,
}

impl Method for Ggml {
    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        let block = self.dtype.block_size();
        // llama.cpp keeps vectors in floats, whatever the mixture says.
        match weight.shape {
            [] | [_] => Some("it has one dimension".to_owned()),
            [.., cols] if !cols.is_multiple_of(block) => {
                Some(format!("its {cols} columns are no multiple of {block}"))
            }
            // Tiles are whole rows, so the length of a row bounds the memory of a worker.
            [.., cols] if *cols > MAX_ROW_LEN => {
                Some(format!("its rows are longer than {MAX_ROW_LEN}"))
            }
            _ => None,
        }
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let stored = StoredTensor {
            name: weight.name.to_owned(),
            dtype: self.dtype,
            shape: weight.shape.to_vec(),
        };
        let (rows, cols) = (weight.rows(), weight.cols());
        // F32, F16 and BF16 have no blocks, and need a rounding and no search.
        if let Some(to) = TargetDtype::of(self.dtype) {
            return Ok(Box::new(GgmlFloatEncoder { stored, to, rows, cols }));
        }
        let (Some(encoder), Some(decoder), Some(bytes)) =
            (encoder(self.dtype), decoder(self.dtype), self.dtype.type_size())
        else {
            return Err(AnamnesisError::unsupported(
                self.dtype.to_string(),
                "nothing is encoded to it",
            ));
        };
        // Looked up again in each tile, but checked here: a matrix of the wrong size is an error
        // before anything is written.
        let imatrix = match &self.imatrix {
            Some(imatrix) => imatrix
                .of_tensor(weight.name, weight.shape)?
                .map(|_| imatrix.clone()),
            None => None,
        };
        // The stack is all dimensions but the last two: experts have three.
        let matrices: usize = weight
            .shape
            .split_last_chunk::<2>()
            .map_or(1, |(stack, _)| stack.iter().product());
        let row_bytes = cols / self.dtype.block_size() * bytes;
        let matrix_rows = (rows / matrices.max(1)).max(1);
        // Workers count concurrently; the sum does not depend on the order, so no stronger ordering
        // is needed.
        let corrupted_blocks = AtomicU64::new(0);
        Ok(Box::new(GgmlBlockEncoder {
            stored,
            encoder,
            decoder,
            imatrix,
            rows,
            matrix_rows,
            cols,
            row_bytes,
            corrupted_blocks,
        }))
    }
}

/// Encodes one tensor to blocks.
struct GgmlBlockEncoder {
    stored: StoredTensor,
    encoder: GgmlEncoder,
    decoder: GgmlDecoder,
    /// The importance matrix, if it has this tensor.
    imatrix: Option<Arc<Imatrix>>,
    rows: usize,
    /// Rows of each matrix of a stack.
    matrix_rows: usize,
    cols: usize,
    row_bytes: usize,
    /// IQ3_S blocks that ggml's format corrupts, of all tiles so far.
    corrupted_blocks: AtomicU64,
}

/// Number of IQ3_S blocks in which a group of 32 zeros stands before another group.
///
/// ggml's `quantize_row_iq3_s_impl` writes no codes for a group of zeros and does not advance past
/// it, so the codes of the groups behind are read in the wrong place. The bytes written here are
/// the same as ggml's, and the user gets a warning.
fn corrupted_iq3_s_blocks(dtype: Dtype, values: &[f32]) -> u64 {
    if dtype != Dtype::IQ3_S {
        return 0;
    }
    let is_zero = |values: &[f32]| values.iter().all(|&x| x == 0.0);
    let is_corrupted = |block: &&[f32]| {
        let groups: Vec<bool> = block.chunks(32).map(is_zero).collect();
        groups.windows(2).any(|pair| pair[0] && !pair[1])
    };
    values.chunks(256).filter(is_corrupted).count() as u64
}

impl Encode for GgmlBlockEncoder {
    fn stored(&self) -> Vec<StoredTensor> {
        vec![self.stored.clone()]
    }

    fn grid(&self) -> Grid {
        let Self { rows, cols, .. } = *self;
        Grid {
            rows,
            cols,
            row_align: 1,
            // Whole rows: the importance of columns is indexed by the column.
            col_align: cols,
            load_bits: 8.0,
            transposed: None,
        }
    }

    fn warning(&self) -> Option<String> {
        let n = self.corrupted_blocks.load(Ordering::Relaxed);
        let what = "in which groups of zeros stand before others, and ggml's IQ3_S spoils such blocks: take another type";
        (n > 0).then(|| format!("{n} blocks {what}"))
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (tile, level) = (values.tile, values.level);
        self.corrupted_blocks
            .fetch_add(corrupted_iq3_s_blocks(self.stored.dtype, values.values), Ordering::Relaxed);
        // Every byte is written below, so that old content of the buffer does not matter.
        let bytes = &mut buffers.codes;
        bytes.resize(tile.rows.len() * self.row_bytes, 0);
        let importance = match &self.imatrix {
            Some(imatrix) => imatrix.of_tensor(&self.stored.name, &self.stored.shape)?,
            None => None,
        };
        let mut row = tile.rows.start;
        while row < tile.rows.end {
            // A tile may have rows of several matrices of a stack, and each matrix has its own
            // importance of columns, unless the tensor is a single expert, whose slice is all that
            // `of_tensor` returns.
            let matrix = row / self.matrix_rows;
            let end = ((matrix + 1) * self.matrix_rows).min(tile.rows.end);
            let rows = row - tile.rows.start..end - tile.rows.start;
            // One row of weights serves all matrices of the tensor, or there is one for each.
            let importance = importance.map(|all| match all.len() == self.cols {
                true => all,
                false => &all[matrix * self.cols..][..self.cols],
            });
            let values = &values.values[rows.start * self.cols..rows.end * self.cols];
            let out = &mut bytes[rows.start * self.row_bytes..rows.end * self.row_bytes];
            (self.encoder)(values, self.cols, importance, level, out);
            row = end;
        }
        // What was written is decoded, so that the report measures what readers will see.
        (self.decoder)(bytes, None, level, Out::F32(back));
        put(0, (tile.rows.start * self.row_bytes) as u64, bytes)
    }

    fn relay(&self) -> Option<RelayTarget<'_>> {
        let integers = |bits| CodeFamily::Int {
            bits,
            group: 32,
            scales: TargetDtype::F16,
            has_half_scales: true,
            is_symmetric: true,
        };
        let family = match self.stored.dtype {
            // ggml reads exponent 255 as 2^128, so codes with OCP's NaN do not fit without a check.
            Dtype::MXFP4 => CodeFamily::Mxfp4 { top: TopExponent::Power },
            Dtype::Q4_0 => integers(4),
            Dtype::Q8_0 => integers(8),
            _ => return None,
        };
        Some(RelayTarget { family, codes: self })
    }
}

impl StoreCodes for GgmlBlockEncoder {
    /// Blocks of 32 codes behind an exponent or a scale in F16. Of four bits, each of 16 bytes has a
    /// code of either half of the block.
    fn store_codes(
        &self,
        tile: &Tile,
        codes: &mut GroupCodes,
        _level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(tile.rows.len() * self.row_bytes);
        // The numbers of block i go with codes 32i and on; both are in the order of rows.
        for (i, block) in codes.codes.as_chunks::<32>().0.iter().enumerate() {
            match codes.exponents.get(i) {
                Some(&exponent) => bytes.push(exponent),
                None => bytes.extend(half::f16::from_f32(codes.scales[i]).to_le_bytes()),
            }
            match self.stored.dtype {
                // Signed there, and counted from the lowest code here.
                Dtype::Q8_0 => bytes.extend(block.iter().map(|code| code ^ 0x80)),
                _ => {
                    let (low, high) = block.split_at(16);
                    bytes.extend(low.iter().zip(high).map(|(low, high)| low | high << 4));
                }
            }
        }
        put(0, (tile.rows.start * self.row_bytes) as u64, &bytes)
    }
}

/// Converts one tensor to F32, F16 or BF16.
struct GgmlFloatEncoder {
    stored: StoredTensor,
    to: TargetDtype,
    rows: usize,
    cols: usize,
}

impl Encode for GgmlFloatEncoder {
    fn stored(&self) -> Vec<StoredTensor> {
        vec![self.stored.clone()]
    }

    fn grid(&self) -> Grid {
        let Self { rows, cols, .. } = *self;
        Grid { rows, cols, row_align: 1, col_align: cols, load_bits: 4.0 * 8.0, transposed: None }
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        _: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let first = values.tile.rows.start * self.cols * self.to.byte_size();
        fn cast<E: Element>(values: &[f32], back: &mut [f32]) -> Vec<E> {
            let mut out = vec![E::from_f32(0.0); values.len()];
            E::store(values, &mut out);
            back.iter_mut()
                .zip(&out)
                .for_each(|(back, x)| *back = x.to_f32());
            out
        }
        match self.to {
            TargetDtype::F32 => put(0, first as u64, cast::<f32>(values.values, back).as_bytes()),
            TargetDtype::F16 => {
                put(0, first as u64, cast::<half::f16>(values.values, back).as_bytes())
            }
            TargetDtype::BF16 => {
                put(0, first as u64, cast::<half::bf16>(values.values, back).as_bytes())
            }
        }
    }
}
