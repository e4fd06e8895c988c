//! ggml's block types, encoded as ggml's reference does: the same sums in the same order, no FMA.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_*`.

#![allow(non_camel_case_types)] // ggml's own names

mod affine;
mod fp4;
mod grid_fit;
mod iq1;
mod iq1_split;
mod iq2;
mod iq3;
mod iq4;
mod k_quants;
mod legacy;
mod neighbours;
mod q2_q3_k;
mod q4_q5_k;
mod search;
mod ternary;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use half::f16;

use self::{
    fp4::*, iq1::*, iq2::*, iq3::*, iq4::*, k_quants::*, legacy::*, q2_q3_k::*, q4_q5_k::*,
    ternary::*,
};
use crate::Dtype;
use crate::dtype::ggml::ggml_block_types;
use crate::element::Element;
use crate::kernels::remember::ggml::f16_at;
use crate::simd::{Level, Routine, perform};

/// How much the errors of a block's values matter.
#[derive(Clone, Copy)]
struct BlockImportance<'a, const VALUES: usize> {
    /// Of each value: of its column, that is.
    weights: &'a [f32; VALUES],
    /// Mean square of the whole row, if the type asks for it.
    row_square: f32,
}

/// A block type: `VALUES` values become `BYTES` bytes.
trait EncodeBlock<const BYTES: usize, const VALUES: usize> {
    /// Whether importance needs `row_square`, a sum that nothing can be done beside.
    const ROW_SQUARE: bool = true;

    /// Whether ggml refuses to encode the type without importance.
    const REQUIRES_IMPORTANCE: bool = false;

    /// Encodes one block. `#[inline(always)]`, with everything that it calls.
    fn encode(
        values: &[f32; VALUES],
        importance: Option<BlockImportance<'_, VALUES>>,
        out: &mut [u8; BYTES],
    );
}

/// Puts `x` at `at` in f16.
#[inline(always)]
fn put_f16(out: &mut [u8], at: usize, x: f32) {
    out[at..at + 2].copy_from_slice(&<f16 as Element>::from_f32(x).to_bits().to_le_bytes());
}

/// Whole rows of whole blocks.
struct GgmlRows<'a, P, const BYTES: usize, const VALUES: usize> {
    values: &'a [f32],
    cols: usize,
    importance: Option<&'a [f32]>,
    out: &'a mut [u8],
    pack: PhantomData<P>,
}

impl<P: EncodeBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize> Routine
    for GgmlRows<'_, P, BYTES, VALUES>
{
    #[inline(always)]
    fn run(&mut self) {
        let rows = self
            .values
            .chunks_exact(self.cols)
            .zip(self.out.chunks_exact_mut(self.cols / VALUES * BYTES));
        for (values, out) in rows {
            let blocks = values
                .as_chunks::<VALUES>()
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
                    for ((values, out), weights) in blocks.zip(weights.as_chunks::<VALUES>().0) {
                        P::encode(
                            values,
                            Some(BlockImportance {
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
pub(crate) type GgmlEncoder =
    fn(values: &[f32], cols: usize, importance: Option<&[f32]>, level: Level, out: &mut [u8]);

fn encode<P: EncodeBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize>(
    values: &[f32],
    cols: usize,
    importance: Option<&[f32]>,
    level: Level,
    out: &mut [u8],
) {
    perform(
        level,
        &mut GgmlRows {
            values,
            cols,
            importance,
            out,
            pack: PhantomData::<P>,
        },
    );
}

macro_rules! encoder {
    ($($block:ident $number:literal $bytes:literal / $values:literal $what:literal $words:tt;)*) => {
        /// The encoder of a block type; `None` for any other dtype.
        pub(crate) fn encoder(dtype: Dtype) -> Option<GgmlEncoder> {
            match dtype {
                $(Dtype::$block => Some(encode::<$block, $bytes, $values>),)*
                _ => None,
            }
        }

        /// Whether ggml encodes `dtype` only with the importance of each column. Without it the encoder here takes all
        /// columns for equally important.
        ///
        /// As ggml `ggml.c`, `ggml_quantize_requires_imatrix`.
        pub(crate) fn requires_importance(dtype: Dtype) -> bool {
            match dtype {
                $(Dtype::$block => <$block as EncodeBlock<$bytes, $values>>::REQUIRES_IMPORTANCE,)*
                _ => false,
            }
        }
    };
}
ggml_block_types! { encoder {} }
