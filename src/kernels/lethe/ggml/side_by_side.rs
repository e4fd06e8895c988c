//! K-quants of which several blocks are searched side by side.

use std::array;

use super::{BlockImportance, EncodeBlock, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, RowImportance};
use crate::simd::{LookUp, Transpose};

/// A K-quant of which several blocks are searched side by side: the steps of a search wait for each
/// other.
pub(super) trait SideBySide<const BYTES: usize>: Sized {
    /// Encodes `K` blocks, whose groups are the `G` lanes of a search; `L` is twice `K`. Must be
    /// `#[inline(always)]` with everything it calls.
    fn encode_beside<const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]; K],
        importance: Option<&[[f32; 256]; K]>,
        by: impl Transpose,
        out: &mut [[u8; BYTES]; K],
    );

    /// Encodes consecutive blocks of `P` groups without importance, `K` at a time unless the type
    /// does them otherwise.
    #[inline(always)]
    fn encode_unweighted<const P: usize, const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]],
        by: impl Transpose,
        out: &mut [[u8; BYTES]],
    ) {
        encode_blocks::<Self, BYTES, P, K, G, L>(values, None, by, out);
    }
}

/// Encodes consecutive blocks of `P` groups, `K` at a time.
#[inline(always)]
fn encode_blocks<
    T: SideBySide<BYTES>,
    const BYTES: usize,
    const P: usize,
    const K: usize,
    const G: usize,
    const L: usize,
>(
    values: &[[f32; 256]],
    importance: Option<&[[f32; 256]]>,
    by: impl Transpose,
    out: &mut [[u8; BYTES]],
) {
    let (blocks, rest) = values.as_chunks::<K>();
    let (outs, rest_out) = out.as_chunks_mut::<K>();
    let importance = importance.map(|importance| importance.as_chunks::<K>());
    for (i, (values, out)) in blocks.iter().zip(outs).enumerate() {
        let importance = importance.map(|(blocks, _)| &blocks[i]);
        T::encode_beside::<K, G, L>(values, importance, by, out);
    }
    for (i, (values, out)) in rest.iter().zip(rest_out).enumerate() {
        let importance = importance.map(|(_, rest)| array::from_ref(&rest[i]));
        let (values, out) = (array::from_ref(values), array::from_mut(out));
        T::encode_beside::<1, P, 2>(values, importance, by, out);
    }
}

/// Implements [`EncodeBlock`] of types that are searched side by side: type, bytes, groups, blocks
/// at a time, and whether AVX-512 gains.
macro_rules! encode_side_by_side {
    ($($block:ident $bytes:literal $groups:literal $beside:literal $has_avx512:literal;)*) => {$(
        impl EncodeBlock<$bytes, 256> for $block {
            const HAS_AVX512: bool = $has_avx512;
            const ROW_SQUARE: bool = false;

            #[inline(always)]
            fn encode(
                values: &[f32; 256],
                importance: Option<BlockImportance<'_, 256>>,
                by: impl LookUp,
                out: &mut [u8; $bytes],
            ) {
                let (values, out) = (array::from_ref(values), array::from_mut(out));
                let importance = importance.map(|importance| array::from_ref(importance.weights));
                Self::encode_beside::<1, $groups, 2>(values, importance, by, out);
            }

            #[inline(always)]
            fn encode_unweighted(
                values: &[[f32; 256]],
                by: impl LookUp,
                out: &mut [[u8; $bytes]],
            ) {
                <Self as SideBySide<$bytes>>::encode_unweighted::<$groups, $beside, { $groups * $beside }, { 2 * $beside }>(
                    values, by, out,
                );
            }

            #[inline(always)]
            fn encode_weighted(
                values: &[[f32; 256]],
                importance: RowImportance<'_, 256>,
                by: impl LookUp,
                out: &mut [[u8; $bytes]],
            ) {
                let weights = Some(importance.weights);
                encode_blocks::<Self, $bytes, $groups, $beside, { $groups * $beside }, { 2 * $beside }>(
                    values, weights, by, out,
                );
            }
        }
    )*};
}
encode_side_by_side! {
    Q2_K 84 16 2 true;
    Q3_K 110 16 4 true;
    Q4_K 144 8 4 true;
    Q5_K 176 8 4 true;
    Q6_K 210 16 4 true;
}
