//! K-quants of which several blocks are searched side by side.

use std::slice;

use super::{BlockImportance, EncodeBlock, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, RowImportance};
use crate::simd::{LookUp, Transpose, copy, zip};

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

    /// Encodes consecutive blocks, `K` at a time unless the type does them otherwise.
    #[inline(always)]
    fn encode_blocks<const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]],
        importance: Option<&[[f32; 256]]>,
        by: impl Transpose,
        out: &mut [[u8; BYTES]],
    ) {
        encode_beside::<Self, BYTES, K, G, L>(values, importance, by, out);
    }
}

/// Encodes consecutive blocks, `K` at a time. There is one search in the code for all of them: the
/// last ones are searched beside blocks of zeros.
#[inline(always)]
pub(super) fn encode_beside<
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
    for (i, (values, out)) in zip(values.chunks(K), out.chunks_mut(K)).enumerate() {
        let importance = importance.map(|importance| &importance[i * K..][..values.len()]);
        let whole = <&[[f32; 256]; K]>::try_from(values).ok();
        if whole.is_none() {
            copy(values, &mut last[..values.len()]);
            if let Some(importance) = importance {
                copy(importance, &mut last_importance[..importance.len()]);
            }
        }
        let importance = importance.map(|some| some.try_into().unwrap_or(&last_importance));
        let mut blocks = [[0; BYTES]; K];
        T::encode_beside::<K, G, L>(whole.unwrap_or(&last), importance, by, &mut blocks);
        copy(&blocks[..out.len()], out);
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
                let importance = importance.map(|block| RowImportance {
                    weights: slice::from_ref(block.weights),
                    row_square: block.row_square,
                });
                <Self as EncodeBlock<$bytes, 256>>::encode_blocks(values, importance, by, out);
            }

            #[inline(always)]
            fn encode_blocks(
                values: &[[f32; 256]],
                importance: Option<RowImportance<'_, 256>>,
                by: impl LookUp,
                out: &mut [[u8; $bytes]],
            ) {
                <Self as SideBySide<$bytes>>::encode_blocks::<$beside, { $groups * $beside }, { 2 * $beside }>(
                    values, importance.map(|row| row.weights), by, out,
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
