//! What kernels have at [`Level::Avx512`](super::Level::Avx512).

use std::arch::x86_64::{
    __m256, __m256i, __m512, __m512i, _CMP_EQ_OQ, _CMP_GT_OQ, _CMP_LT_OQ, _mm_cvtsi32_si128,
    _mm512_add_ps, _mm512_broadcast_f32x8, _mm512_castps_si512, _mm512_cmp_ps_mask,
    _mm512_cvtepu16_epi32, _mm512_mask_add_epi32, _mm512_mask_cmpeq_epu32_mask,
    _mm512_mask_mov_epi32, _mm512_mask_reduce_min_epu32, _mm512_max_ps, _mm512_min_ps,
    _mm512_mul_ps, _mm512_permutex2var_epi32, _mm512_permutex2var_ps, _mm512_permutexvar_ps,
    _mm512_reduce_min_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_srl_epi32,
};
use std::mem::transmute;

use super::ranks::BUCKET;
use super::{
    Avx2, Bounds, CODES_PER_SUM, Element, Kernel, LANES, LINE, LookUp, PackedCodes, RANKED_VALUES,
    Ranks, Routine, Transpose, Word,
};

/// Proof that the CPU has the instructions of this level. A value exists only inside of what
/// `perform` calls.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Ranks for Avx512 {
    /// Both the bound of a value's bucket and the number of those before it are one look-up among
    /// 32: half of the operations of halving steps. LLVM makes look-ups of no plain Rust.
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn ranks(self, values: [f32; RANKED_VALUES], bounds: &Bounds) -> [u32; RANKED_VALUES] {
        let Some(buckets) = &bounds.buckets else {
            return Avx2::of(self).ranks(values, bounds);
        };
        // SAFETY: a value of `Avx512` is proof that the CPU has the feature. Arrays have the size
        // of one vector or two.
        unsafe {
            let [low, high] = transmute::<[f32; 32], [__m512; 2]>(buckets.bounds);
            let [below, below_high] = transmute::<[u32; 32], [__m512i; 2]>(buckets.below);
            // Of NaN and a number, the maximum is the second.
            let x = _mm512_max_ps(
                transmute::<[f32; RANKED_VALUES], __m512>(values),
                _mm512_set1_ps(-1.0),
            );
            let x = _mm512_min_ps(x, _mm512_set1_ps(1.0));
            let sum =
                _mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(BUCKET.0)), _mm512_set1_ps(BUCKET.1));
            // The look-up heeds the lowest five bits alone.
            let bucket = _mm512_castps_si512(sum);
            let bound = _mm512_permutex2var_ps(low, bucket, high);
            let below = _mm512_permutex2var_epi32(below, bucket, below_high);
            let is_above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, bound);
            let ranks = _mm512_mask_add_epi32(below, is_above, below, _mm512_set1_epi32(1));
            transmute::<__m512i, [u32; RANKED_VALUES]>(ranks)
        }
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn at_ranks(self, table: &[f32; 16], ranks: [u32; RANKED_VALUES]) -> [f32; RANKED_VALUES] {
        // SAFETY: a value of `Avx512` is proof that the CPU has the feature. Arrays have the size
        // of the vectors.
        unsafe {
            let ranks = transmute::<[u32; RANKED_VALUES], __m512i>(ranks);
            let entries = _mm512_permutexvar_ps(ranks, transmute::<[f32; 16], __m512>(*table));
            transmute::<__m512, [f32; RANKED_VALUES]>(entries)
        }
    }
}

impl LookUp for Avx512 {
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn first_least<const BITS: usize, const N: usize>(
        self,
        tables: &[[f32; 8]; N],
        codes: PackedCodes<'_>,
    ) -> u16 {
        // Most lists are so short that no sum is compared with one of another chunk.
        if let [only] = codes.chunks {
            let sums = self.sums::<BITS, N>(tables, only);
            return only[self.lanes_of_least(sums).trailing_zeros() as usize % CODES_PER_SUM];
        }
        // SAFETY: a value of `Avx512` is proof that the CPU has the feature. Arrays have the size
        // of the vectors.
        unsafe {
            let (mut least, mut at) = (_mm512_set1_ps(f32::MAX), _mm512_setzero_si512());
            for (number, codes) in codes.chunks.iter().enumerate() {
                let sums = self.sums::<BITS, N>(tables, codes);
                let better = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(sums, least);
                // Of NaN and a number, the minimum is the second.
                least = _mm512_min_ps(sums, least);
                at = _mm512_mask_mov_epi32(at, better, _mm512_set1_epi32(number as i32));
            }
            let lanes = self.lanes_of_least(least);
            let first = _mm512_mask_reduce_min_epu32(lanes, at);
            let lanes = _mm512_mask_cmpeq_epu32_mask(lanes, at, _mm512_set1_epi32(first as i32));
            codes.chunks[first as usize][lanes.trailing_zeros() as usize % CODES_PER_SUM]
        }
    }

    #[inline(always)]
    fn pick<E: Element>(self, table: &[E; 16], codes: &[u8], out: &mut [E]) {
        Avx2::of(self).pick(table, codes, out);
    }
}

impl Avx512 {
    /// The sum of the terms that each of `codes` picks, as [`LookUp::first_least`] has them.
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn sums<const BITS: usize, const N: usize>(
        self,
        tables: &[[f32; 8]; N],
        codes: &[u16; CODES_PER_SUM],
    ) -> __m512 {
        // SAFETY: a value of `Avx512` is proof that the CPU has the feature. Arrays have the size
        // of the vectors.
        unsafe {
            let mut codes =
                _mm512_cvtepu16_epi32(transmute::<[u16; CODES_PER_SUM], __m256i>(*codes));
            let mut sums = _mm512_setzero_ps();
            for (i, table) in tables.iter().enumerate() {
                // Twice, so that the fourth bit of an index, which is of the next code, changes
                // nothing.
                let table = _mm512_broadcast_f32x8(transmute::<[f32; 8], __m256>(*table));
                let terms = _mm512_permutexvar_ps(codes, table);
                // The sum with 0 is the first term, or 0 in place of -0, which compares alike.
                sums = if i == 0 {
                    terms
                } else {
                    _mm512_add_ps(sums, terms)
                };
                codes = _mm512_srl_epi32(codes, _mm_cvtsi32_si128(BITS as i32));
            }
            sums
        }
    }

    /// The lanes that have the least of all `sums`, of those that are NaN or infinite all if there
    /// is no other.
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn lanes_of_least(self, sums: __m512) -> u16 {
        // SAFETY: a value of `Avx512` is proof that the CPU has the feature.
        unsafe {
            let sums = _mm512_min_ps(sums, _mm512_set1_ps(f32::MAX));
            let least = _mm512_set1_ps(_mm512_reduce_min_ps(sums));
            _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(sums, least)
        }
    }
}

impl Transpose for Avx512 {
    #[inline(always)]
    fn transpose(self, lines: [&[u8; LINE]; 8]) -> [u64; LINE] {
        Avx2::of(self).transpose(lines)
    }

    #[inline(always)]
    fn columns<T: Word>(self, rows: [[T; LANES]; LANES]) -> [[T; LANES]; LANES] {
        Avx2::of(self).columns(rows)
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi2")]
fn run_kernel<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
    kernel.run_avx512(out, Avx512(()));
}

#[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
pub(super) fn enter<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
    // SAFETY: `Level::detect` found these features on this CPU, and `super::enter` never exceeds
    // it.
    unsafe { run_kernel(kernel, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi2")]
fn run_routine(routine: &mut impl Routine) {
    routine.run_avx512(Avx512(()));
}

#[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
pub(super) fn perform(routine: &mut impl Routine) {
    // SAFETY: `Level::detect` found these features on this CPU, and `super::perform` never exceeds
    // it.
    unsafe { run_routine(routine) }
}
