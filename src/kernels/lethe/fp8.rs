//! FP8 with one scale for each block of a matrix; a row or the whole tensor is a block too.
//!
//! - transformers 5.23.0, `integrations/finegrained_fp8.py`, `Fp8Quantize`: F32 throughout, values are multiplied.
//! - compressed-tensors 0.20.0, `calculate_qparams` and `_quantize`, as llm-compressor 0.14 calls them: every operation
//!   is rounded to the type of the model, values are divided.
//! - comfy-kitchen 0.2.40, `TensorCoreFP8Layout.quantize`, `quantize_per_tensor_fp8`: the same, and values are
//!   multiplied.

use std::marker::PhantomData;

use super::narrow::{Narrow, ceil_log2, largest, narrow};
use crate::element::Element;
use crate::kernels::remember::fp8::{E4M3, Float8};
use crate::simd::Routine;

/// How a library scales and rounds.
pub(crate) trait Recipe: Sync {
    /// What values become.
    type Code: Narrow + Float8;

    /// Of a block's largest magnitude: the scale that is stored, and what values meet.
    fn scale(max: f32) -> (f32, f32);

    /// A value with that.
    fn meet(x: f32, scale: f32) -> f32;
}

/// transformers. `POWERS`: scales are powers of two (`scale_fmt` is `ue8m0`).
pub(crate) struct Transformers<const POWERS: bool>;

impl<const POWERS: bool> Recipe for Transformers<POWERS> {
    type Code = E4M3;

    #[inline(always)]
    fn scale(max: f32) -> (f32, f32) {
        // A number over a tensor is the tensor's reciprocal times the number.
        let scale = if max > 0.0 { (1.0 / max) * 448.0 } else { 1.0 };
        let inverse = 1.0 / scale;
        if !POWERS {
            return (inverse, scale);
        }
        let inverse =
            f32::from_bits(((ceil_log2(inverse.max(f32::MIN_POSITIVE)) + 127) as u32) << 23);
        (inverse, 1.0 / inverse)
    }

    #[inline(always)]
    fn meet(x: f32, scale: f32) -> f32 {
        x * scale
    }
}

/// compressed-tensors, of a model in `E`.
pub(crate) struct CompressedTensors<E>(PhantomData<E>);

impl<E: Own> Recipe for CompressedTensors<E> {
    type Code = E4M3;

    #[inline(always)]
    fn scale(max: f32) -> (f32, f32) {
        let scale = E::round(max / 448.0);
        let scale = if scale == 0.0 { E::EPSILON } else { scale };
        (scale, scale)
    }

    #[inline(always)]
    fn meet(x: f32, scale: f32) -> f32 {
        // The zero point, which is zero, is added all the same, and takes the sign of zero.
        E::round(x / scale) + 0.0
    }
}

/// comfy-kitchen, of a model in `E`.
pub(crate) struct ComfyKitchen<E, N>(PhantomData<(E, N)>);

impl<E: Own, N: Narrow + Float8> Recipe for ComfyKitchen<E, N> {
    type Code = N;

    #[inline(always)]
    fn scale(max: f32) -> (f32, f32) {
        let scale = E::round(max / N::MAX);
        // The library has NaN for what is zero throughout.
        (
            scale,
            if max == 0.0 {
                1.0
            } else {
                E::round(1.0 / scale)
            },
        )
    }

    #[inline(always)]
    fn meet(x: f32, scale: f32) -> f32 {
        E::round(x * scale)
    }
}

/// The type of a model, in which its library computes.
pub(crate) trait Own: Element {
    /// Distance from one to the next value.
    const EPSILON: f32;
    /// The smallest normal value.
    const SMALLEST: f32;

    /// The nearest value of the type.
    #[inline(always)]
    fn round(x: f32) -> f32 {
        Self::from_f32(x).to_f32()
    }
}

impl Own for f32 {
    const EPSILON: f32 = f32::EPSILON;
    const SMALLEST: f32 = f32::MIN_POSITIVE;
}

impl Own for half::f16 {
    const EPSILON: f32 = 1.0 / 1024.0;
    const SMALLEST: f32 = 1.0 / 16384.0;
}

impl Own for half::bf16 {
    const EPSILON: f32 = 1.0 / 128.0;
    const SMALLEST: f32 = f32::MIN_POSITIVE;

    /// Without care for what NaN holds: that of an operation holds nothing, and stays NaN.
    #[inline(always)]
    fn round(x: f32) -> f32 {
        let bits = x.to_bits();
        f32::from_bits(bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
    }
}

/// Whole rows of a tile, in blocks of `rows` × `cols` from its first value on; edge blocks are smaller.
pub(crate) struct Blocks<'a, R> {
    pub values: &'a [f32],
    pub width: usize,
    pub rows: usize,
    pub cols: usize,
    /// The largest magnitude of the whole tensor, if all blocks share a scale.
    pub max: Option<f32>,
    pub codes: &'a mut [u8],
    /// What decoding gives.
    pub back: &'a mut [f32],
    /// One for each block.
    pub scales: &'a mut [f32],
    pub recipe: PhantomData<R>,
}

impl<R: Recipe> Routine for Blocks<'_, R> {
    #[inline(always)]
    fn run(&mut self) {
        let width = self.width.max(1);
        let band = self.rows.min(self.values.len() / width).max(1) * width;
        let bands = self
            .values
            .chunks(band)
            .zip(self.codes.chunks_mut(band))
            .zip(self.back.chunks_mut(band));
        let per_band = width.div_ceil(self.cols);
        for (((values, codes), back), scales) in bands.zip(self.scales.chunks_mut(per_band)) {
            for (block, stored) in scales.iter_mut().enumerate() {
                let cols = block * self.cols..width.min((block + 1) * self.cols);
                let max = self.max.unwrap_or_else(|| {
                    values
                        .chunks_exact(width)
                        .fold(0.0, |max, row| largest(&row[cols.clone()], max))
                });
                let (scale, factor) = R::scale(max);
                *stored = scale;
                let rows = values
                    .chunks_exact(width)
                    .zip(codes.chunks_exact_mut(width));
                for ((values, codes), back) in rows.zip(back.chunks_exact_mut(width)) {
                    let (values, codes) = (&values[cols.clone()], &mut codes[cols.clone()]);
                    row::<R>(values, factor, scale, codes, &mut back[cols.clone()]);
                }
            }
        }
    }
}

#[inline(always)]
fn row<R: Recipe>(values: &[f32], factor: f32, scale: f32, codes: &mut [u8], back: &mut [f32]) {
    for ((&x, code), back) in values.iter().zip(codes.iter_mut()).zip(back.iter_mut()) {
        let (bits, value) = narrow::<R::Code>(R::meet(x, factor));
        *code = bits as u8;
        *back = value * scale;
    }
    if !factor.is_finite() {
        // Zero times infinity is NaN, which `narrow` gives as a number.
        back.iter_mut()
            .zip(codes)
            .for_each(|(back, code)| *back = R::Code::widen(*code) * scale);
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::simd::{Level, perform};

    /// Values of all scales, with both zeros, subnormals and an outlier.
    fn values(n: usize) -> Vec<f32> {
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits((state >> 1) % (40 << 23) + (100 << 23))
                * if state & 1 == 0 { 1.0 } else { -1.0 }
        };
        let mut values: Vec<f32> = (0..n).map(|_| bf16::from_f32(next()).to_f32()).collect();
        values[..4].copy_from_slice(&[0.0, -0.0, f32::from_bits(1 << 16), -f32::MIN_POSITIVE]);
        values[n / 2] = 1e30;
        values
    }

    /// compressed-tensors in BF16, as its operations are, one by one.
    fn twin(values: &[f32], width: usize, [rows, cols]: [usize; 2]) -> (Vec<u8>, Vec<f32>) {
        let to_bf16 = |x: f32| bf16::from_f32(x).to_f32();
        let height = values.len() / width;
        let mut codes = vec![0; values.len()];
        let mut scales = vec![];
        for top in (0..height).step_by(rows) {
            for left in (0..width).step_by(cols) {
                let places = (top..height.min(top + rows))
                    .flat_map(|r| (left..width.min(left + cols)).map(move |c| (r, c)));
                let places: Vec<usize> = places.map(|(r, c)| r * width + c).collect();
                let max = places
                    .iter()
                    .fold(0.0f32, |max, &i| max.max(values[i].abs()));
                let scale = match to_bf16(max / 448.0) {
                    0.0 => 0.007_812_5,
                    scale => scale,
                };
                scales.push(scale);
                for i in places {
                    let x = (to_bf16(values[i] / scale) + 0.0).clamp(-448.0, 448.0);
                    let distance = |code: u8| (E4M3::widen(code) - x.abs()).abs();
                    let nearest = (0..0x7fu8).min_by(|&a, &b| {
                        distance(a)
                            .total_cmp(&distance(b))
                            .then((a & 1).cmp(&(b & 1)))
                    });
                    codes[i] = nearest.unwrap() | if x.is_sign_negative() { 0x80 } else { 0 };
                }
            }
        }
        (codes, scales)
    }

    #[test]
    fn blocks_are_as_one_value_at_a_time() {
        let (height, width) = (19, 53);
        let values = values(height * width);
        for block in [[1, 53], [8, 16], [19, 53], [3, 1], [32, 64]] {
            let (codes, scales) = twin(&values, width, block);
            for level in Level::available() {
                let mut ours = Blocks {
                    values: &values,
                    width,
                    rows: block[0],
                    cols: block[1],
                    max: None,
                    codes: &mut vec![0; values.len()],
                    back: &mut vec![0.0; values.len()],
                    scales: &mut vec![0.0; scales.len()],
                    recipe: PhantomData::<CompressedTensors<bf16>>,
                };
                perform(level, &mut ours);
                assert_eq!(
                    (&*ours.codes, &*ours.scales),
                    (&*codes, &*scales),
                    "{block:?} {level:?}"
                );
            }
        }
    }

    #[test]
    fn nothing_but_zero() {
        assert_eq!(Transformers::<false>::scale(0.0), (1.0, 1.0));
        assert_eq!(Transformers::<true>::scale(0.0), (1.0, 1.0));
        assert_eq!(
            CompressedTensors::<bf16>::scale(0.0),
            (0.007_812_5, 0.007_812_5)
        );
        // Where the library has NaN.
        assert_eq!(ComfyKitchen::<bf16, E4M3>::scale(0.0), (0.0, 1.0));
    }
}
