//! ggml's block types, encoded as ggml's reference does: the same sums in the same order, no FMA.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_*`.

#![allow(non_camel_case_types)] // ggml's own names

mod affine;
mod fp4;
mod grid_fit;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod k_quants;
mod legacy;
mod neighbours;
mod search;
mod ternary;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_iq;

use std::marker::PhantomData;

use half::f16;

use crate::Dtype;
use crate::element::Element;
use crate::kernels::remember::ggml::half;
use crate::simd::{Level, Routine, perform};

/// How much the errors of a block's values matter.
#[derive(Clone, Copy)]
struct Importance<'a, const ELEMS: usize> {
    /// Of each value: of its column, that is.
    weights: &'a [f32; ELEMS],
    /// Mean square of the whole row, if the type asks for it.
    row_square: f32,
}

/// A block type: `ELEMS` values become `BYTES` bytes.
trait Pack<const BYTES: usize, const ELEMS: usize> {
    /// Whether importance needs `row_square`, a sum that nothing can be done beside.
    const ROW_SQUARE: bool = true;

    /// Encodes one block. `#[inline(always)]`, with everything that it calls.
    fn encode(
        values: &[f32; ELEMS],
        importance: Option<Importance<'_, ELEMS>>,
        out: &mut [u8; BYTES],
    );
}

/// Puts `x` at `at` in f16.
#[inline(always)]
fn put_half(out: &mut [u8], at: usize, x: f32) {
    out[at..at + 2].copy_from_slice(&<f16 as Element>::from_f32(x).to_bits().to_le_bytes());
}

/// Whole rows of whole blocks.
struct Rows<'a, P, const BYTES: usize, const ELEMS: usize> {
    values: &'a [f32],
    cols: usize,
    importance: Option<&'a [f32]>,
    out: &'a mut [u8],
    pack: PhantomData<P>,
}

impl<P: Pack<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize> Routine
    for Rows<'_, P, BYTES, ELEMS>
{
    #[inline(always)]
    fn run(&mut self) {
        let rows = self
            .values
            .chunks_exact(self.cols)
            .zip(self.out.chunks_exact_mut(self.cols / ELEMS * BYTES));
        for (values, out) in rows {
            let blocks = values
                .as_chunks::<ELEMS>()
                .0
                .iter()
                .zip(out.as_chunks_mut::<BYTES>().0);
            match self.importance {
                // `for_each` would be a call, compiled for the lowest level.
                None => {
                    for (values, out) in blocks {
                        P::encode(values, None, out);
                    }
                }
                Some(weights) => {
                    let values_of_sum = if P::ROW_SQUARE { values } else { &[] };
                    let square = values_of_sum.iter().fold(0.0, |sum, x| sum + x * x);
                    let row_square = square / self.cols as f32;
                    for ((values, out), weights) in blocks.zip(weights.as_chunks::<ELEMS>().0) {
                        P::encode(
                            values,
                            Some(Importance {
                                weights,
                                row_square,
                            }),
                            out,
                        );
                    }
                }
            }
        }
    }
}

/// Encodes whole rows of so many values, with the importance of each column if it is known.
pub(crate) type Encoder =
    fn(values: &[f32], cols: usize, importance: Option<&[f32]>, level: Level, out: &mut [u8]);

fn encode<P: Pack<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize>(
    values: &[f32],
    cols: usize,
    importance: Option<&[f32]>,
    level: Level,
    out: &mut [u8],
) {
    perform(
        level,
        &mut Rows {
            values,
            cols,
            importance,
            out,
            pack: PhantomData::<P>,
        },
    );
}

/// Whether ggml encodes this type only with the importance of each column. Without it such an encoder takes all columns
/// for equally important.
///
/// As ggml `ggml.c`, `ggml_quantize_requires_imatrix`.
pub(crate) fn requires_importance(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::IQ2_XXS | Dtype::IQ2_XS | Dtype::IQ1_S)
}

macro_rules! packs {
    ($($dtype:ident $module:ident $bytes:literal $elems:literal;)*) => {
        /// The encoder of a block type.
        pub(crate) fn encoder(dtype: Dtype) -> Option<Encoder> {
            match dtype {
                $(Dtype::$dtype => Some(encode::<$module::$dtype, $bytes, $elems>),)*
                _ => None,
            }
        }
    };
}

packs! {
    Q4_0 legacy 18 32;
    Q4_1 legacy 20 32;
    Q5_0 legacy 22 32;
    Q5_1 legacy 24 32;
    Q8_0 legacy 34 32;
    Q8_1 legacy 36 32;
    Q2_K k_quants 84 256;
    Q3_K k_quants 110 256;
    Q4_K k_quants 144 256;
    Q5_K k_quants 176 256;
    Q6_K k_quants 210 256;
    Q8_K k_quants 292 256;
    IQ1_S iq1 50 256;
    IQ1_M iq1 56 256;
    IQ2_XXS iq2 66 256;
    IQ2_XS iq2 74 256;
    IQ2_S iq2 82 256;
    IQ3_XXS iq3 98 256;
    IQ3_S iq3 110 256;
    IQ4_NL iq4 18 32;
    IQ4_XS iq4 136 256;
    TQ1_0 ternary 54 256;
    TQ2_0 ternary 66 256;
    Q1_0 ternary 18 128;
    Q2_0 ternary 18 64;
    MXFP4 fp4 17 32;
    NVFP4 fp4 36 64;
}
