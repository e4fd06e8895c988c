//! K-quants of which several blocks are searched side by side.

use std::slice;

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

    /// Encodes consecutive blocks without importance, `K` at a time unless the type does them
    /// otherwise.
    #[inline(always)]
    fn encode_unweighted<const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]],
        by: impl Transpose,
        out: &mut [[u8; BYTES]],
    ) {
        encode_blocks::<Self, BYTES, K, G, L>(values, None, by, out);
    }
}

/// Encodes consecutive blocks, `K` at a time. There is one search in the code for all of them: the
/// last ones are searched beside blocks of zeros.
#[inline(always)]
fn encode_blocks<
    T: SideBySide<BYTES>,
    const BYTES: usize,
    const K: usize,
    const G: usize,
    const L: usize,
>(
    values: &[[f32; 256]],
    importance: Option<&[[f32; 256]]>,
    by: impl Transpose,
    out: &mut [[u8; BYTES]],
) {
    let (mut last, mut last_importance) = ([[0.0; 256]; K], [[0.0; 256]; K]);
    for (i, (values, out)) in values.chunks(K).zip(out.chunks_mut(K)).enumerate() {
        let importance = importance.map(|importance| &importance[i * K..][..values.len()]);
        let whole = <&[[f32; 256]; K]>::try_from(values).ok();
        if whole.is_none() {
            last[..values.len()].copy_from_slice(values);
            if let Some(importance) = importance {
                last_importance[..importance.len()].copy_from_slice(importance);
            }
        }
        let importance = importance.map(|some| some.try_into().unwrap_or(&last_importance));
        let mut blocks = [[0; BYTES]; K];
        T::encode_beside::<K, G, L>(whole.unwrap_or(&last), importance, by, &mut blocks);
        out.copy_from_slice(&blocks[..out.len()]);
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
                let (values, out) = (slice::from_ref(values), slice::from_mut(out));
                let weights = importance.map(|importance| slice::from_ref(importance.weights));
                encode_blocks::<Self, $bytes, $beside, { $groups * $beside }, { 2 * $beside }>(
                    values, weights, by, out,
                );
            }

            #[inline(always)]
            fn encode_unweighted(
                values: &[[f32; 256]],
                by: impl LookUp,
                out: &mut [[u8; $bytes]],
            ) {
                <Self as SideBySide<$bytes>>::encode_unweighted::<$beside, { $groups * $beside }, { 2 * $beside }>(
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
                encode_blocks::<Self, $bytes, $beside, { $groups * $beside }, { 2 * $beside }>(
                    values, weights, by, out,
                );
            }
        }
    )*};
}
encode_side_by_side! {
    Q2_K 84 16 2 true;
    Q3_K 110 16 4 false;
    Q4_K 144 8 4 false;
    Q5_K 176 8 4 false;
    Q6_K 210 16 4 false;
}
