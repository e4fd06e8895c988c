//! Encoders of ggml's block types. Blocks are byte-equal to those of ggml's reference in C.
//!
//! Most types search: they try scales, round the values, and keep the scale of the least weighted
//! error. A tie or a rounding decides which one that is, so every sum has the terms of the
//! reference in its order, without FMA. What the reference does one after the other, groups or
//! tries, is done side by side in lanes instead: a lane has a whole sum, and no sum is spread over
//! lanes. Branches of the reference become selects, so that the loops can be vectorised.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_*`.

#![allow(non_camel_case_types)] // ggml's own names

mod affine;
mod descent;
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
mod side_by_side;
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
use crate::remember::kernels::ggml::f16_at;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{InMemory, Level, LookUp, Routine, copy, perform, zip};

/// Importance of the columns that a block covers, from an importance matrix.
#[derive(Clone, Copy)]
struct BlockImportance<'a, const VALUES: usize> {
    /// The importance of each value's column.
    weights: &'a [f32; VALUES],
    /// Mean square of the values of the whole row; of nothing, and so 0, unless the type has
    /// `ROW_SQUARE`.
    row_square: f32,
}

/// Importance of the columns that consecutive blocks of a row cover.
#[derive(Clone, Copy)]
struct RowImportance<'a, const VALUES: usize> {
    /// As [`BlockImportance::weights`], for each block.
    weights: &'a [[f32; VALUES]],
    /// As [`BlockImportance::row_square`].
    row_square: f32,
}

impl<'a, const VALUES: usize> RowImportance<'a, VALUES> {
    #[inline(always)]
    fn of_block(self, index: usize) -> BlockImportance<'a, VALUES> {
        BlockImportance { weights: &self.weights[index], row_square: self.row_square }
    }
}

/// A block type as an encoder sees it: `VALUES` values become `BYTES` bytes. Mirrored by
/// `remember::ggml::DecodeBlock`.
trait EncodeBlock<const BYTES: usize, const VALUES: usize> {
    /// Whether importance needs `row_square`. It is one long sum in order, which cannot be
    /// vectorised, so only those types pay for it that use it.
    const ROW_SQUARE: bool = true;

    /// Whether ggml refuses to encode the type without importance.
    const REQUIRES_IMPORTANCE: bool = false;

    /// Whether the search has a copy for AVX-512, as [`Routine::HAS_AVX512`]. It gains where there
    /// are more lanes than a register has; one register is waited for at every step.
    const HAS_AVX512: bool = false;

    /// Encodes one block. Must be `#[inline(always)]` with everything it calls, as [`Routine`]
    /// demands.
    fn encode(
        values: &[f32; VALUES],
        importance: Option<BlockImportance<'_, VALUES>>,
        look_up: impl LookUp,
        out: &mut [u8; BYTES],
    );

    /// Encodes blocks of one row that lie one after the other, with the importance of each if it is
    /// known. Types whose search waits for its own results, or has one lane in a block, search
    /// several blocks in turn or side by side instead.
    #[inline(always)]
    fn encode_blocks(
        values: &[[f32; VALUES]],
        importance: Option<RowImportance<'_, VALUES>>,
        look_up: impl LookUp,
        out: &mut [[u8; BYTES]],
    ) {
        // One search in the code, with importance and without.
        for (i, (values, out)) in zip(values, out).enumerate() {
            let importance = importance.map(|row| row.of_block(i));
            Self::encode(values, importance, look_up, out);
        }
    }
}

/// Stores `x` as f16 at byte `at`.
#[inline(always)]
fn put_f16(out: &mut [u8], at: usize, x: f32) {
    copy(&<f16 as Element>::from_f32(x).to_bits().to_le_bytes(), &mut out[at..at + 2]);
}

/// The routine of all block types: whole rows of whole blocks.
struct GgmlRows<'a, P, const BYTES: usize, const VALUES: usize> {
    values: &'a [f32],
    cols: usize,
    importance: Option<&'a [f32]>,
    out: &'a mut [u8],
    pack: PhantomData<P>,
}

impl<P: EncodeBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize>
    GgmlRows<'_, P, BYTES, VALUES>
{
    #[inline(always)]
    fn encode_rows(&mut self, look_up: impl LookUp) {
        let row_bytes = self.cols / VALUES * BYTES;
        let groups =
            zip(self.values.chunks(SQUARED * self.cols), self.out.chunks_mut(SQUARED * row_bytes));
        for (values, out) in groups {
            let squares = match self.importance {
                Some(_) if P::ROW_SQUARE => row_squares(values, self.cols),
                _ => [0.0; SQUARED],
            };
            let rows = zip(values.chunks_exact(self.cols), out.chunks_exact_mut(row_bytes));
            for ((values, out), square) in zip(rows, squares) {
                let (blocks, out) =
                    (values.as_chunks::<VALUES>().0, out.as_chunks_mut::<BYTES>().0);
                let importance = self.importance.map(|weights| RowImportance {
                    weights: weights.as_chunks().0,
                    row_square: square / self.cols as f32,
                });
                P::encode_blocks(blocks, importance, look_up, out);
            }
        }
    }
}

/// Rows whose squares are summed side by side.
const SQUARED: usize = 4;

/// Σx² of each of up to `SQUARED` rows. A sum is one chain of additions in order, as the reference
/// has it, and lanes would round differently: so it is rows that are side by side.
#[inline(always)]
fn row_squares(values: &[f32], cols: usize) -> [f32; SQUARED] {
    let mut sums = [0.0; SQUARED];
    if values.len() == SQUARED * cols {
        let (upper, lower) = values.split_at(2 * cols);
        let ((a, b), (c, d)) = (upper.split_at(cols), lower.split_at(cols));
        for ((a, b), (c, d)) in zip(zip(a.iter(), b), zip(c.iter(), d)) {
            for (sum, x) in zip(&mut sums[..], [a, b, c, d]) {
                *sum += x * x;
            }
        }
    } else {
        for (sum, row) in zip(&mut sums[..], values.chunks_exact(cols)) {
            *sum = row.iter().fold(0.0, |sum, x| sum + x * x);
        }
    }
    sums
}

impl<P: EncodeBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize> Routine
    for GgmlRows<'_, P, BYTES, VALUES>
{
    const HAS_AVX512: bool = P::HAS_AVX512;

    #[inline(always)]
    fn run(&mut self) {
        self.encode_rows(InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.encode_rows(avx2);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512(&mut self, avx512: Avx512) {
        self.encode_rows(avx512);
    }
}

/// Encodes rows of `cols` values, which are whole blocks, with the importance of each column if it
/// is known.
pub(crate) type GgmlEncoder =
    fn(values: &[f32], cols: usize, importance: Option<&[f32]>, level: Level, out: &mut [u8]);

fn encode<P: EncodeBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize>(
    values: &[f32],
    cols: usize,
    importance: Option<&[f32]>,
    level: Level,
    out: &mut [u8],
) {
    perform(level, &mut GgmlRows { values, cols, importance, out, pack: PhantomData::<P> });
}

macro_rules! encoder {
    ({ $($block:ident $number:literal $bytes:literal / $values:literal $what:literal $words:tt;)* } $ik:tt $interleaved:tt) => {
        /// The encoder of a block type; `None` for any other dtype.
        pub(crate) fn encoder(dtype: Dtype) -> Option<GgmlEncoder> {
            match dtype {
                $(Dtype::$block => Some(encode::<$block, $bytes, $values>),)*
                _ => None,
            }
        }

        /// Whether ggml encodes `dtype` only with the importance of each column. Without it the
        /// encoder here takes all columns for equally important.
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
