//! FP8 with one scale for each block of a matrix; a row or the whole tensor is a block too.
//!
//! - transformers 5.23.0, `integrations/finegrained_fp8.py`, `Fp8Quantize`: F32 throughout, values
//!   are multiplied.
//! - compressed-tensors 0.20.0, `calculate_qparams` and `_quantize`, as llm-compressor 0.14 calls
//!   them: every operation is rounded to the model's dtype, values are divided.
//! - comfy-kitchen 0.2.40, `TensorCoreFP8Layout.quantize`, `quantize_per_tensor_fp8`: every
//!   operation is rounded to the model's dtype, values are multiplied.
//! - sdnq 0.2.8, `quantize_weight`: F32 throughout, values are divided.

mod search;

use std::marker::PhantomData;

use self::search::SearchedBlock;
use super::activations::Activations;
use super::narrow::{NarrowFloat, ceil_log2, is_in_range, max_abs, narrow, narrow_in_range};
use crate::TargetDtype;
use crate::remember::kernels::fp8::Float8;
use crate::simd::{Routine, copy, zip};

/// A library's arithmetic for FP8: how it finds a scale and how it rounds. It is a value, so that
/// the kernel has one copy for all libraries and dtypes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fp8Arithmetic {
    /// `Fp8Quantize` of transformers.
    Transformers {
        /// Whether scales are powers of two (`scale_fmt` is `ue8m0`).
        is_ue8m0: bool,
    },
    /// `calculate_qparams` and `_quantize` of compressed-tensors, for a model in this dtype.
    CompressedTensors(TargetDtype),
    /// `quantize_per_tensor_fp8` of comfy-kitchen, for a model in this dtype.
    ComfyKitchen(TargetDtype),
    /// `quantize_weight` of sdnq.
    Sdnq,
}

impl Fp8Arithmetic {
    /// The scale that is stored for a block with this largest magnitude, and the operand of
    /// [`scaled`](Self::scaled). Codes are `N`.
    #[inline(always)]
    fn scale<N: NarrowFloat>(self, max_abs: f32) -> (f32, f32) {
        match self {
            Self::Transformers { is_ue8m0 } => {
                // torch computes a number over a tensor as the tensor's reciprocal times the number.
                let scale = if max_abs > 0.0 {
                    (1.0 / max_abs) * 448.0
                } else {
                    1.0
                };
                // Decoding multiplies, so the reciprocal is stored, and the factor that was used is
                // not.
                let inverse = 1.0 / scale;
                if !is_ue8m0 {
                    return (inverse, scale);
                }
                // Rounded up, so that no value exceeds 448. Below the smallest normal value a shift
                // of the exponent would not be a power of two.
                let exponent = ceil_log2(inverse.max(f32::MIN_POSITIVE));
                let inverse = f32::from_bits(((exponent + 127) as u32) << 23);
                (inverse, 1.0 / inverse)
            }
            Self::CompressedTensors(dtype) => {
                let scale = dtype.round(max_abs / 448.0);
                // `calculate_qparams` replaces a scale of 0 by `torch.finfo(dtype).eps`.
                let scale = if scale == 0.0 { dtype.epsilon() } else { scale };
                (scale, scale)
            }
            Self::ComfyKitchen(dtype) => {
                let scale = dtype.round(max_abs / N::MAX);
                // In a tensor of zeros the library multiplies zeros by the reciprocal of zero, which
                // gives NaN. Here the codes are zeros.
                let factor = match max_abs == 0.0 {
                    true => 1.0,
                    false => dtype.round(1.0 / scale),
                };
                (scale, factor)
            }
            Self::Sdnq => {
                let scale = max_abs / N::MAX;
                (scale, scale)
            }
        }
    }

    /// Whether other scales than the library's may be less coarse. Powers of two give the same codes,
    /// but for what is cut off or subnormal.
    pub(crate) fn has_search(self) -> bool {
        !matches!(self, Self::Transformers { is_ue8m0: true })
    }

    /// `scale` as it is stored, and the operand of [`scaled`](Self::scaled).
    #[inline(always)]
    fn operands(self, scale: f32) -> (f32, f32) {
        let scale = self.dtype().round(scale);
        (scale, if self.divides() { scale } else { 1.0 / scale })
    }

    /// The dtype to which scaled values are rounded.
    #[inline(always)]
    fn dtype(self) -> TargetDtype {
        match self {
            Self::Transformers { .. } | Self::Sdnq => TargetDtype::F32,
            Self::CompressedTensors(dtype) | Self::ComfyKitchen(dtype) => dtype,
        }
    }

    /// Whether values are divided by the operand of [`scaled`](Self::scaled).
    #[inline(always)]
    fn divides(self) -> bool {
        matches!(self, Self::CompressedTensors(_) | Self::Sdnq)
    }

    /// What is added to scaled values. compressed-tensors adds a zero point of +0, which makes +0 of
    /// -0; a sum with -0 is the value itself.
    #[inline(always)]
    fn zero_point(self) -> f32 {
        match self {
            Self::CompressedTensors(_) => 0.0,
            _ => -0.0,
        }
    }

    /// Whether NaN, which is zero over a scale of 0, becomes zero.
    #[inline(always)]
    fn zeroes_nan(self) -> bool {
        matches!(self, Self::Sdnq)
    }

    /// `x` over the block's scale, rounded as the library rounds.
    #[inline(always)]
    fn scaled(self, x: f32, factor: f32) -> f32 {
        let scaled = if self.divides() {
            x / factor
        } else {
            x * factor
        };
        self.dtype().round(scaled) + self.zero_point()
    }
}

/// Encodes whole rows of a tile, in blocks of `rows` × `cols` from its first value on; edge blocks
/// are smaller.
pub(crate) struct EncodeFp8Blocks<'a, N> {
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
    pub arithmetic: Fp8Arithmetic,
    /// If there are some, scales are searched, and `maxima` are not known.
    pub activations: Activations<'a>,
    /// The float that values become.
    pub code: PhantomData<N>,
}

impl<N: NarrowFloat + Float8> Routine for EncodeFp8Blocks<'_, N> {
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
        let is_searched = !self.activations.is_empty();
        for (i, (((values, codes), back), scales)) in
            zip(bands, self.scales.chunks_mut(per_band)).enumerate()
        {
            let activations = Activations {
                row: width,
                ..self.activations.of_run(i * band..i * band + values.len())
            };
            let mut carried = 0.0;
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
                for (block, (scaling, stored)) in zip(&mut scalings[..], &mut *stored).enumerate() {
                    *scaling = BlockScaling::new::<N>(self.arithmetic, maxima[block]);
                    if is_searched {
                        let cols = cols(block);
                        let searched = SearchedBlock { values, activations, cols, carried };
                        let max_abs = maxima[block];
                        carried = searched.search::<N>(self.arithmetic, max_abs, scaling);
                    }
                    *stored = scaling.scale;
                }
                let rows = zip(values.chunks_exact(width), codes.chunks_exact_mut(width));
                for ((values, codes), back) in zip(rows, back.chunks_exact_mut(width)) {
                    for (block, scaling) in scalings[..stored.len()].iter().enumerate() {
                        let cols = cols(block);
                        let (codes, back) = (&mut codes[cols.clone()], &mut back[cols.clone()]);
                        scaling.encode::<N>(self.arithmetic, &values[cols], codes, back);
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
    /// The operand of [`Fp8Arithmetic::scaled`].
    factor: f32,
    /// A factor with which a product gives what the quotient by `factor` gives.
    reciprocal: Option<f32>,
    /// Whether all scaled values are in range. Scaling keeps their order, so that they are if the
    /// largest is.
    is_in_range: bool,
}

/// Values that are scaled, rounded and narrowed in turn: each step is a loop, whose results stay in
/// the L1 cache.
const PART: usize = 64;

impl BlockScaling {
    #[inline(always)]
    fn new<N: NarrowFloat>(arithmetic: Fp8Arithmetic, max_abs: f32) -> Self {
        Self::of::<N>(arithmetic, arithmetic.scale::<N>(max_abs), max_abs)
    }

    /// Under this scale and with this operand of [`Fp8Arithmetic::scaled`].
    #[inline(always)]
    fn of<N: NarrowFloat>(
        arithmetic: Fp8Arithmetic,
        (scale, factor): (f32, f32),
        max_abs: f32,
    ) -> Self {
        let is_in_range = is_in_range::<N>(arithmetic.scaled(max_abs, factor));
        let reciprocal = arithmetic.dtype().reciprocal(factor);
        Self {
            scale,
            factor,
            reciprocal: reciprocal.filter(|_| arithmetic.divides() && is_in_range),
            is_in_range,
        }
    }

    /// Encodes values of a row.
    #[inline(always)]
    fn encode<N: NarrowFloat + Float8>(
        self,
        arithmetic: Fp8Arithmetic,
        values: &[f32],
        codes: &mut [u8],
        back: &mut [f32],
    ) {
        let Self { scale, factor, is_in_range, .. } = self;
        let parts = zip(values.chunks(PART), codes.chunks_mut(PART));
        for ((values, codes), back) in zip(parts, back.chunks_mut(PART)) {
            let mut scaled = [0.0; PART];
            let scaled = &mut scaled[..values.len()];
            self.scale(arithmetic, values, scaled);
            let (zero_point, zeroes_nan) = (arithmetic.zero_point(), arithmetic.zeroes_nan());
            match is_in_range {
                true => store(scaled, scale, codes, back, |x| narrow_in_range::<N>(x + zero_point)),
                false => store(scaled, scale, codes, back, |x| {
                    let x = if x.is_nan() & zeroes_nan { 0.0 } else { x };
                    narrow::<N>(x + zero_point)
                }),
            }
            if !factor.is_finite() {
                // Zero times an infinite factor is NaN, for which `narrow` returns a number beside
                // the code of NaN.
                for (back, &code) in zip(&mut back[..], &*codes) {
                    *back = N::widen(code) * scale;
                }
            }
        }
    }

    /// Values of a row over the scale, rounded as the library rounds.
    #[inline(always)]
    fn scale(self, arithmetic: Fp8Arithmetic, values: &[f32], scaled: &mut [f32]) {
        let Self { factor, reciprocal, .. } = self;
        match reciprocal {
            None if arithmetic.divides() => {
                for (scaled, &x) in zip(&mut scaled[..], values) {
                    *scaled = x / factor;
                }
            }
            _ => {
                let factor = reciprocal.unwrap_or(factor);
                for (scaled, &x) in zip(&mut scaled[..], values) {
                    *scaled = x * factor;
                }
            }
        }
        match reciprocal {
            Some(_) => arithmetic.dtype().round_quotients(scaled),
            None => arithmetic.dtype().round_all(scaled),
        }
    }
}

/// Stores the codes of scaled values, and the values that decoding gives.
#[inline(always)]
fn store(
    scaled: &[f32],
    scale: f32,
    codes: &mut [u8],
    back: &mut [f32],
    narrowed: impl Fn(f32) -> (u32, f32),
) {
    for ((&x, code), back) in zip(zip(scaled.iter(), codes), back) {
        let (bits, value) = narrowed(x);
        *code = bits as u8;
        // Decoding multiplies by the stored scale, which need not be the reciprocal of the factor
        // after rounding.
        *back = value * scale;
    }
}

#[cfg(test)]
mod tests;
