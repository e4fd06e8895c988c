//! ggml's block types, encoded as ggml's reference does: the same sums in the same order, no FMA.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_*`.

#![allow(non_camel_case_types)] // ggml's own names

mod legacy;

use std::marker::PhantomData;

use crate::Dtype;
use crate::simd::{Level, Routine, perform};

/// How much the errors of a block's values matter.
#[derive(Clone, Copy)]
struct Importance<'a, const ELEMS: usize> {
    /// Of each value: of its column, that is.
    weights: &'a [f32; ELEMS],
    /// Mean square of the whole row.
    row_square: f32,
}

/// A block type: `ELEMS` values become `BYTES` bytes.
trait Pack<const BYTES: usize, const ELEMS: usize> {
    /// Encodes one block. `#[inline(always)]`, with everything that it calls.
    fn encode(values: &[f32; ELEMS], importance: Option<Importance<'_, ELEMS>>, out: &mut [u8; BYTES]);
}

/// Whole rows of whole blocks.
struct Rows<'a, P, const BYTES: usize, const ELEMS: usize> {
    values: &'a [f32],
    cols: usize,
    importance: Option<&'a [f32]>,
    out: &'a mut [u8],
    pack: PhantomData<P>,
}

impl<P: Pack<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize> Routine for Rows<'_, P, BYTES, ELEMS> {
    #[inline(always)]
    fn run(&mut self) {
        let rows = self.values.chunks_exact(self.cols).zip(self.out.chunks_exact_mut(self.cols / ELEMS * BYTES));
        for (values, out) in rows {
            let blocks = values.as_chunks::<ELEMS>().0.iter().zip(out.as_chunks_mut::<BYTES>().0);
            match self.importance {
                None => blocks.for_each(|(values, out)| P::encode(values, None, out)),
                Some(weights) => {
                    let square = values.iter().fold(0.0, |sum, x| sum + x * x);
                    let row_square = square / self.cols as f32;
                    for ((values, out), weights) in blocks.zip(weights.as_chunks::<ELEMS>().0) {
                        P::encode(values, Some(Importance { weights, row_square }), out);
                    }
                }
            }
        }
    }
}

/// Encodes whole rows of so many values, with the importance of each column if it is known.
pub(crate) type Encoder = fn(values: &[f32], cols: usize, importance: Option<&[f32]>, level: Level, out: &mut [u8]);

fn encode<P: Pack<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize>(
    values: &[f32],
    cols: usize,
    importance: Option<&[f32]>,
    level: Level,
    out: &mut [u8],
) {
    perform(level, &mut Rows { values, cols, importance, out, pack: PhantomData::<P> });
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
    Q8_0 legacy 34 32;
}
