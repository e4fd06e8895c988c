//! FP8 with one scale for each block of a matrix; a row or the whole tensor is a block too.
//!
//! - transformers 5.23.0, `integrations/finegrained_fp8.py`, `Fp8Quantize`: F32 throughout, values
//!   are multiplied.
//! - compressed-tensors 0.20.0, `calculate_qparams` and `_quantize`, as llm-compressor 0.14 calls
//!   them: every operation is rounded to the model's dtype, values are divided.
//! - comfy-kitchen 0.2.40, `TensorCoreFP8Layout.quantize`, `quantize_per_tensor_fp8`: every
//!   operation is rounded to the model's dtype, values are multiplied.

use std::marker::PhantomData;

use super::compute_dtype::ComputeDtype;
use super::narrow::{NarrowFloat, ceil_log2, is_in_range, max_abs, narrow, narrow_in_range};
use crate::remember::kernels::fp8::{E4M3, Float8};
use crate::simd::{Routine, copy, zip};

/// A library's arithmetic for FP8: how it finds a scale and how it rounds. Implementations are
/// `#[inline(always)]`.
pub(crate) trait Fp8Arithmetic: Sync {
    /// The float that values become.
    type Code: NarrowFloat + Float8;

    /// The scale that is stored for a block with this largest magnitude, and the factor that
    /// [`scaled`](Self::scaled) takes.
    fn scale(max_abs: f32) -> (f32, f32);

    /// `x` over the block's scale, rounded as the library rounds.
    fn scaled(x: f32, factor: f32) -> f32;

    /// The other operand of a product that [`scaled_by_product`](Self::scaled_by_product) computes
    /// in place of a quotient, bit for bit the same; `None` if there is none for `factor`, or if
    /// nothing is divided.
    #[inline(always)]
    fn reciprocal(factor: f32) -> Option<f32> {
        let _ = factor;
        None
    }

    /// What [`scaled`](Self::scaled) gives, from a [`reciprocal`](Self::reciprocal).
    #[inline(always)]
    fn scaled_by_product(x: f32, reciprocal: f32) -> f32 {
        Self::scaled(x, reciprocal)
    }
}

/// `Fp8Quantize` of transformers. With `POWERS` scales are powers of two (`scale_fmt` is `ue8m0`).
pub(crate) struct TransformersFp8<const POWERS: bool>;

impl<const POWERS: bool> Fp8Arithmetic for TransformersFp8<POWERS> {
    type Code = E4M3;

    #[inline(always)]
    fn scale(max_abs: f32) -> (f32, f32) {
        // torch computes a number over a tensor as the tensor's reciprocal times the number.
        let scale = if max_abs > 0.0 {
            (1.0 / max_abs) * 448.0
        } else {
            1.0
        };
        // Decoding multiplies, so the reciprocal is stored, and the factor that was used is not.
        let inverse = 1.0 / scale;
        if !POWERS {
            return (inverse, scale);
        }
        // Rounded up, so that no value exceeds 448.
        let inverse =
            // Below the smallest normal value a shift of the exponent would not be a power of two.
            f32::from_bits(((ceil_log2(inverse.max(f32::MIN_POSITIVE)) + 127) as u32) << 23);
        (inverse, 1.0 / inverse)
    }

    #[inline(always)]
    fn scaled(x: f32, factor: f32) -> f32 {
        x * factor
    }
}

/// `calculate_qparams` and `_quantize` of compressed-tensors, for a model in `E`.
pub(crate) struct CompressedTensorsFp8<E>(PhantomData<E>);

impl<E: ComputeDtype> Fp8Arithmetic for CompressedTensorsFp8<E> {
    type Code = E4M3;

    #[inline(always)]
    fn scale(max_abs: f32) -> (f32, f32) {
        let scale = E::round(max_abs / 448.0);
        // `calculate_qparams` replaces a scale of 0 by `torch.finfo(dtype).eps`.
        let scale = if scale == 0.0 { E::EPSILON } else { scale };
        (scale, scale)
    }

    #[inline(always)]
    fn scaled(x: f32, factor: f32) -> f32 {
        // The library adds a zero point of +0, which makes +0 of -0.
        E::round(x / factor) + 0.0
    }

    #[inline(always)]
    fn reciprocal(factor: f32) -> Option<f32> {
        E::reciprocal(factor)
    }

    #[inline(always)]
    fn scaled_by_product(x: f32, reciprocal: f32) -> f32 {
        E::round_quotient(x * reciprocal) + 0.0
    }
}

/// `quantize_per_tensor_fp8` of comfy-kitchen, for a model in `E`.
pub(crate) struct ComfyKitchenFp8<E, N>(PhantomData<(E, N)>);

impl<E: ComputeDtype, N: NarrowFloat + Float8> Fp8Arithmetic for ComfyKitchenFp8<E, N> {
    type Code = N;

    #[inline(always)]
    fn scale(max_abs: f32) -> (f32, f32) {
        let scale = E::round(max_abs / N::MAX);
        // In a tensor of zeros the library multiplies zeros by the reciprocal of zero, which gives
        // NaN. Here the codes are zeros.
        (
            scale,
            if max_abs == 0.0 {
                1.0
            } else {
                E::round(1.0 / scale)
            },
        )
    }

    #[inline(always)]
    fn scaled(x: f32, factor: f32) -> f32 {
        E::round(x * factor)
    }
}

/// Encodes whole rows of a tile, in blocks of `rows` × `cols` from its first value on; edge blocks
/// are smaller.
pub(crate) struct EncodeFp8Blocks<'a, A> {
    pub values: &'a [f32],
    /// Columns of the tile.
    pub width: usize,
    pub rows: usize,
    pub cols: usize,
    /// The largest magnitudes of the blocks beside each other, if they are known; else empty. Then
    /// the tile has one row of blocks, or a part of it.
    pub maxima: &'a [f32],
    pub codes: &'a mut [u8],
    /// Receives the values that decoding gives.
    pub back: &'a mut [f32],
    /// Receives the scale of each block, row by row of blocks.
    pub scales: &'a mut [f32],
    pub arithmetic: PhantomData<A>,
}

impl<A: Fp8Arithmetic> Routine for EncodeFp8Blocks<'_, A> {
    #[inline(always)]
    fn run(&mut self) {
        let width = self.width.max(1);
        // The block of a whole tensor is `usize::MAX` rows high; the bound keeps the product from
        // overflowing.
        let band = self.rows.min(self.values.len() / width).max(1) * width;
        let bands = zip(
            zip(self.values.chunks(band), self.codes.chunks_mut(band)),
            self.back.chunks_mut(band),
        );
        let per_band = width.div_ceil(self.cols);
        for (((values, codes), back), scales) in zip(bands, self.scales.chunks_mut(per_band)) {
            for (beside, stored) in scales.chunks_mut(BESIDE).enumerate() {
                // Blocks of a tile begin at its first column, because tiles begin at whole blocks.
                let first = beside * BESIDE;
                let cols = |block: usize| {
                    let left = (first + block) * self.cols;
                    left..width.min(left + self.cols)
                };
                let mut maxima = [0.0; BESIDE];
                let maxima = &mut maxima[..stored.len()];
                if self.maxima.is_empty() {
                    for row in values.chunks_exact(width) {
                        for (block, max) in maxima.iter_mut().enumerate() {
                            *max = max_abs(&row[cols(block)], *max);
                        }
                    }
                } else {
                    copy(&self.maxima[first..][..stored.len()], maxima);
                }
                let mut scalings = [BlockScaling::default(); BESIDE];
                for ((scaling, stored), &mut max) in
                    zip(zip(&mut scalings[..], &mut *stored), maxima)
                {
                    *scaling = BlockScaling::new::<A>(max);
                    *stored = scaling.scale;
                }
                let rows = zip(values.chunks_exact(width), codes.chunks_exact_mut(width));
                for ((values, codes), back) in zip(rows, back.chunks_exact_mut(width)) {
                    for (block, scaling) in scalings[..stored.len()].iter().enumerate() {
                        let cols = cols(block);
                        let (codes, back) = (&mut codes[cols.clone()], &mut back[cols.clone()]);
                        scaling.encode::<A>(&values[cols], codes, back);
                    }
                }
            }
        }
    }
}

/// Blocks beside each other, at most, of which a row is encoded before the next: memory is read and
/// written in order.
const BESIDE: usize = 32;

/// How values of a block are scaled.
#[derive(Clone, Copy, Default)]
struct BlockScaling {
    /// What is stored.
    scale: f32,
    factor: f32,
    /// See [`Fp8Arithmetic::reciprocal`].
    reciprocal: Option<f32>,
    /// Whether all scaled values are in range. Scaling keeps their order, so that they are if the
    /// largest is.
    is_in_range: bool,
}

impl BlockScaling {
    #[inline(always)]
    fn new<A: Fp8Arithmetic>(max_abs: f32) -> Self {
        let (scale, factor) = A::scale(max_abs);
        Self {
            scale,
            factor,
            reciprocal: A::reciprocal(factor),
            is_in_range: is_in_range::<A::Code>(A::scaled(max_abs, factor)),
        }
    }

    /// Encodes values of a row.
    #[inline(always)]
    fn encode<A: Fp8Arithmetic>(self, values: &[f32], codes: &mut [u8], back: &mut [f32]) {
        let Self { scale, factor, .. } = self;
        match self.reciprocal {
            Some(factor) if self.is_in_range => encode_row(values, scale, codes, back, |x| {
                narrow_in_range::<A::Code>(A::scaled_by_product(x, factor))
            }),
            None if self.is_in_range => encode_row(values, scale, codes, back, |x| {
                narrow_in_range::<A::Code>(A::scaled(x, factor))
            }),
            _ => {
                encode_row(values, scale, codes, back, |x| narrow::<A::Code>(A::scaled(x, factor)));
            }
        }
        if !factor.is_finite() {
            // Zero times an infinite factor is NaN, for which `narrow` returns a number beside the
            // code of NaN.
            for (back, &code) in zip(&mut back[..], &*codes) {
                *back = A::Code::widen(code) * scale;
            }
        }
    }
}

#[inline(always)]
fn encode_row(
    values: &[f32],
    scale: f32,
    codes: &mut [u8],
    back: &mut [f32],
    narrowed: impl Fn(f32) -> (u32, f32),
) {
    for ((&x, code), back) in zip(zip(values.iter(), codes), back) {
        let (bits, value) = narrowed(x);
        *code = bits as u8;
        // Decoding multiplies by the stored scale, which need not be the reciprocal of `factor`
        // after rounding.
        *back = value * scale;
    }
}

#[cfg(test)]
mod tests;
