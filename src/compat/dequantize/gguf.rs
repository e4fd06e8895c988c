//! Blocks of a GGUF file's tensor, from a caller's slice.

use std::ops::Range;

use half::bf16;
use zerocopy::IntoBytes;

use super::direct::decode_with;
use crate::element::Out;
use crate::remember::kernels::ggml::{GgmlDecoder, decoder, row_scale};
use crate::simd::Level;
use crate::{AnamnesisError, Dtype, Result};

/// Decodes blocks of a ggml type.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let mut block = [1; 34]; // codes of one
/// block[..2].copy_from_slice(&[0x00, 0x40]); // and the scale 2, in F16
/// let bf16 = anamnesis::dequantize_gguf_to_bf16(&block, anamnesis::GgufType::Q8_0, 32)?;
/// assert_eq!(bf16, [0x00, 0x40].repeat(32));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Unsupported` if `dtype` is no block type that is decoded, `Parse` if the sizes do not fit.
pub fn dequantize_gguf_to_bf16(data: &[u8], dtype: Dtype, n_elements: usize) -> Result<Vec<u8>> {
    let rows = GgmlRows::new(data, dtype, n_elements)?;
    decode_with(n_elements, rows.block, |values, out| {
        rows.decode(values, Level::detect(), out);
    })
}

/// Decodes blocks of a ggml type, and passes each block of BF16 values to `sink`. Needs memory for
/// a few thousand values only.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let mut sizes = Vec::new();
/// anamnesis::dequantize_gguf_blocks_to_bf16(&[0; 3 * 34], anamnesis::GgufType::Q8_0, 96, |block| {
///     sizes.push(block.len());
///     Ok(())
/// })?;
/// assert_eq!(sizes, [64; 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Unsupported` if `dtype` is no block type that is decoded, `Parse` if the sizes do not fit, and
/// the errors of `sink`.
pub fn dequantize_gguf_blocks_to_bf16<F: FnMut(&[u8]) -> Result<()>>(
    data: &[u8],
    dtype: Dtype,
    n_elements: usize,
    mut sink: F,
) -> Result<()> {
    /// Number of values that are decoded at once: a multiple of every block size.
    const VALUES: usize = 4096;
    let rows = GgmlRows::new(data, dtype, n_elements)?;
    let mut out = vec![bf16::ZERO; VALUES.min(n_elements)];
    for start in (0..n_elements).step_by(VALUES) {
        let end = n_elements.min(start + VALUES);
        let out = &mut out[..end - start];
        rows.decode(start..end, Level::default(), Out::Bf16(out));
        out.chunks_exact(dtype.block_size())
            .try_for_each(|values| sink(values.as_bytes()))?;
    }
    Ok(())
}

/// How the blocks of a tensor lie in a slice.
struct GgmlRows<'a> {
    data: &'a [u8],
    /// Values of a row: all of them, unless rows have a header.
    cols: usize,
    /// Bytes before the blocks of each row.
    header: usize,
    /// Values and bytes of a block.
    block: usize,
    block_bytes: usize,
    decoder: GgmlDecoder,
}

impl<'a> GgmlRows<'a> {
    /// `n_elements` values of `dtype`.
    ///
    /// # Errors
    /// `Unsupported` if `dtype` is no block type that is decoded, `Parse` if `data` are not
    /// `n_elements` values.
    fn new(data: &'a [u8], dtype: Dtype, n_elements: usize) -> Result<Self> {
        let (Some(decoder), Some(block_bytes)) = (decoder(dtype), dtype.type_size()) else {
            let what = match dtype.interleaved_rows() {
                Some(_) => {
                    "its rows are interleaved, so that only a model's tensors of it are decoded"
                }
                None => "it is no block type that is decoded",
            };
            return Err(AnamnesisError::unsupported(format!("GGUF {dtype}"), what));
        };
        let (block, header) = (dtype.block_size(), dtype.row_header());
        // What the data has beside the blocks are the headers of its rows.
        let blocks = (n_elements / block).saturating_mul(block_bytes);
        let headers = data.len().saturating_sub(blocks);
        let rows = headers.checked_div(header).map_or(1, |rows| rows.max(1));
        let cols = n_elements / rows;
        let fits = cols * rows == n_elements && dtype.byte_len(&[rows, cols]) == Some(data.len());
        if !fits {
            let what = format!("{} bytes are not {n_elements} values of {dtype}", data.len());
            return Err(AnamnesisError::parse(what));
        }
        Ok(Self { data, cols, header, block, block_bytes, decoder })
    }

    /// Decodes `values`, which are whole blocks.
    fn decode(&self, values: Range<usize>, level: Level, mut out: Out<'_>) {
        let row_bytes = self.header + self.cols / self.block * self.block_bytes;
        let mut at = values.start;
        while at < values.end {
            let (row, col) = (at / self.cols, at % self.cols);
            let n = (self.cols - col).min(values.end - at);
            let (header, blocks) = self.data[row * row_bytes..][..row_bytes].split_at(self.header);
            let scale = (self.header > 0).then(|| row_scale(header));
            let (first, len) = (col / self.block, n / self.block);
            let bytes = first * self.block_bytes..(first + len) * self.block_bytes;
            let (now, rest) = out.split_at(n);
            (self.decoder)(&blocks[bytes], scale, level, now);
            (at, out) = (at + n, rest);
        }
    }
}
