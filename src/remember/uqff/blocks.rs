//! Blocks of bytes: those of ggml, and F8Q8, an E4M3 `d` and 32 signed bytes `q`: `q * (d / 416)`.
//!
//! Formula: mistral.rs `mistralrs-quant/src/f8q8/mod.rs`, `to_float`.

use std::ops::Range;

use super::FAMILY;
use crate::model::{Part, Tensor};
use crate::remember::ggml_blocks::ggml_blocks;
use crate::remember::kernels::fp8::{E4M3, Float8};
use crate::remember::seam::grouped::Unpack;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Decode, PlainFloats, Tile, read, refused, wrong};
use crate::{Dtype, Result};

/// Values of a block of F8Q8.
pub(super) const QK: usize = 32;

/// Bytes of a block of F8Q8.
const BYTES: usize = QK + 1;

/// `F8E4M3::MAX` of the crate float8 0.7, which mistral.rs divides by. The largest E4M3 is 448, the
/// next one after this.
const MAX_E4M3: f32 = 416.0;

/// The type of number `id` in ggml, if its values are floats.
pub(super) fn float_of(id: u32) -> Option<Dtype> {
    match id {
        0 => Some(Dtype::F32),
        1 => Some(Dtype::F16),
        30 => Some(Dtype::BF16),
        _ => None,
    }
}

/// The type of number `id` in ggml, and the decoder of `t`, whose bytes are a tensor of that type
/// and of `shape`.
///
/// # Errors
/// `Unsupported` if ggml's types are left out of this build, or mistral.rs does not read the type;
/// `Parse` if the bytes do not hold the shape.
pub(super) fn ggml<'m>(
    t: &Tensor<'m>,
    id: u32,
    shape: &[usize],
) -> Result<(Dtype, Box<dyn Decode + 'm>)> {
    if let Some(dtype) = float_of(id) {
        let decoder = PlainFloats::in_bytes(t, dtype, shape)
            .filter(|_| dtype.byte_len(shape) == Some(t.elements()));
        let misfit = || wrong(t, format_args!("it does not hold {dtype} {shape:?}"));
        return Ok((dtype, Box::new(decoder.ok_or_else(misfit)?)));
    }
    if !matches!(id, 2 | 3 | 6..=8 | 10..=14) {
        return Err(refused(t, FAMILY, format_args!("mistral.rs does not read ggml type {id}")));
    }
    ggml_blocks(t, id, shape)
}

/// The codes of blocks of F8Q8, `per_row` in a row.
pub(super) struct F8q8Codes<'m> {
    pub part: Part<'m>,
    pub per_row: usize,
}

impl Unpack for F8q8Codes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let cols = tile.cols.start / QK * BYTES..tile.cols.end / QK * BYTES;
        read(&self.part, self.per_row * BYTES, tile.rows.clone(), cols, staging)?;
        out.clear();
        for [_, q @ ..] in staging.as_chunks::<BYTES>().0 {
            out.extend_from_slice(q);
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (1, QK)
    }
}

/// The scales of blocks of F8Q8, `per_row` in a row.
pub(super) struct F8q8Scales<'m> {
    pub part: Part<'m>,
    pub per_row: usize,
}

impl ScaleMatrix for F8q8Scales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let bytes = cols.start * BYTES..cols.end * BYTES;
        read(&self.part, self.per_row * BYTES, rows, bytes, staging)?;
        let blocks = staging.as_chunks::<BYTES>().0;
        out.extend(blocks.iter().map(|&[d, ..]| E4M3::widen(d) / MAX_E4M3));
        Ok(())
    }
}
