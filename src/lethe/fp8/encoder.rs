//! Encodes one tensor to FP8: tiles of whole blocks, or any tiles under one scale for the tensor.

use std::marker::PhantomData;

use zerocopy::IntoBytes;

use crate::element::Element;
use crate::lethe::kernels::activations::Activations;
use crate::lethe::kernels::fp8::{EncodeFp8Blocks, Fp8Arithmetic};
use crate::lethe::seam::rows::ByteMatrix;
use crate::lethe::{Encode, EncodeBuffers, Put, StoredTensor, Survey, TileValues};
use crate::remember::Grid;
use crate::remember::kernels::fp8::{E4M3, E5M2};
use crate::simd::perform;
use crate::{Dtype, Result};

/// Encodes one tensor to FP8.
pub(in crate::lethe) struct Fp8Encoder {
    pub stored: Vec<StoredTensor>,
    pub description: Option<&'static str>,
    pub arithmetic: Fp8Arithmetic,
    pub rows: usize,
    pub cols: usize,
    pub block: [usize; 2],
    pub has_one_scale: bool,
}

impl Encode for Fp8Encoder {
    fn stored(&self) -> Vec<StoredTensor> {
        self.stored.clone()
    }

    fn grid(&self) -> Grid {
        // Codes are bytes: but for the blocks of scales, tiles may begin anywhere.
        let [row_align, col_align] = if self.has_one_scale {
            [1, 1]
        } else {
            self.block
        };
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align,
            col_align,
            load_bits: 8.0,
            transposed: None,
        }
    }

    fn survey(&self) -> Option<Survey> {
        self.has_one_scale.then_some(Survey::MaxAbs)
    }

    fn blocks(&self) -> Option<[usize; 2]> {
        (!self.has_one_scale).then_some(self.block)
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let TileValues { tile, values, survey, maxima, activations, level, .. } = *values;
        let [rows, cols] = self.block;
        let width = tile.cols.len();
        let across = if self.has_one_scale {
            1
        } else {
            width.div_ceil(cols)
        };
        // Every code and scale is written below, so that old content of the buffers does not
        // matter.
        let EncodeBuffers { codes, scales, scale_bytes, .. } = buffers;
        codes.resize(values.len(), 0);
        let blocks = match self.has_one_scale {
            true => 1,
            false => across * tile.rows.len().div_ceil(rows),
        };
        scales.resize(blocks, 0.0);
        // The survey is an exact F32 in an F64.
        let of_tensor = [survey as f32];
        let maxima = if self.has_one_scale {
            &of_tensor
        } else {
            maxima
        };
        let arithmetic = self.arithmetic;
        // Tiles do not know what others would choose for a scale that they share.
        let activations = match self.has_one_scale || !arithmetic.has_search() {
            true => Activations::default(),
            false => activations,
        };
        match self.stored[0].dtype {
            Dtype::F8E5M2 => {
                let code = PhantomData::<E5M2>;
                perform(
                    level,
                    &mut EncodeFp8Blocks {
                        values,
                        width,
                        rows,
                        cols,
                        maxima,
                        codes,
                        back,
                        scales,
                        arithmetic,
                        activations,
                        code,
                    },
                );
            }
            _ => {
                let code = PhantomData::<E4M3>;
                perform(
                    level,
                    &mut EncodeFp8Blocks {
                        values,
                        width,
                        rows,
                        cols,
                        maxima,
                        codes,
                        back,
                        scales,
                        arithmetic,
                        activations,
                        code,
                    },
                );
            }
        }
        ByteMatrix { part: 0, stride: self.cols }.put(
            tile.rows.clone(),
            tile.cols.clone(),
            codes,
            put,
        )?;
        // The first part of the tensor, or of a row of blocks, writes the scales.
        let is_first = match self.has_one_scale {
            true => tile.is_first(),
            false => tile.rows.start.is_multiple_of(rows) && tile.cols.start.is_multiple_of(cols),
        };
        if !is_first {
            return Ok(());
        }
        let (dtype, size) = (self.stored[1].dtype, self.stored[1].dtype.bits() / 8);
        fill_with_scales(scale_bytes, scales, dtype);
        if self.has_one_scale {
            put(1, 0, scale_bytes)?;
            let description = self.description;
            return description.map_or(Ok(()), |text| put(2, 0, text.as_bytes()));
        }
        let first = tile.cols.start / cols;
        let rows = tile.rows.start / rows..tile.rows.end.div_ceil(rows);
        let stride = self.cols.div_ceil(cols) * size;
        ByteMatrix { part: 1, stride }.put(
            rows,
            first * size..(first + across) * size,
            scale_bytes,
            put,
        )
    }
}

/// Makes `bytes` those of `scales` in `dtype`. Nothing is rounded: kernels compute scales that are
/// values of the stored type, and a power of two in F8_E8M0 is the exponent field of its F32.
fn fill_with_scales(bytes: &mut Vec<u8>, scales: &[f32], dtype: Dtype) {
    use half::{bf16, f16};
    bytes.clear();
    match dtype {
        Dtype::F8E8M0 => bytes.extend(scales.iter().map(|s| (s.to_bits() >> 23) as u8)),
        Dtype::F16 => {
            bytes
                .extend((scales.iter()).flat_map(|&s| <f16 as Element>::from_f32(s).to_le_bytes()));
        }
        Dtype::BF16 => bytes
            .extend((scales.iter()).flat_map(|&s| <bf16 as Element>::from_f32(s).to_le_bytes())),
        _ => bytes.extend_from_slice(scales.as_bytes()),
    }
}
