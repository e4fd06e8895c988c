//! What kernels have at [`Level::Avx2`](super::Level::Avx2) beside the code that LLVM vectorises.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_GT_OQ, _CMP_LT_OQ, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT,
    _mm_cvtsi32_si128, _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_and_si256,
    _mm256_blendv_epi8, _mm256_blendv_ps, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cmp_ps,
    _mm256_cvtepu16_epi32, _mm256_cvtps_ph, _mm256_or_ps, _mm256_permute2f128_ps,
    _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32, _mm256_permutevar8x32_ps,
    _mm256_set1_epi8, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi8, _mm256_setr_epi32,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_shuffle_ps,
    _mm256_slli_epi32, _mm256_srl_epi32, _mm256_srli_epi16, _mm256_sub_epi32, _mm256_unpackhi_epi8,
    _mm256_unpackhi_epi16, _mm256_unpackhi_epi32, _mm256_unpackhi_ps, _mm256_unpacklo_epi8,
    _mm256_unpacklo_epi16, _mm256_unpacklo_epi32, _mm256_unpacklo_ps,
};
use std::mem::{transmute, transmute_copy};

use half::f16;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    Avx512, Bounds, CODES_PER_LOOK_UP, Element, Flat, InMemory, Kernel, LANES, LINE, LeastOfLanes,
    LookUp, PackedCodes, RANKED_VALUES, Ranks, Routine, Transpose, Word, copy, zip,
};

/// Instructions of AVX2 that LLVM does not make of plain Rust. A value exists only inside of what
/// `enter` calls.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// What every CPU with AVX-512 has, too.
    #[inline(always)]
    #[cfg_attr(not(feature = "bnb"), allow(dead_code))]
    pub(crate) fn of(_: Avx512) -> Self {
        Self(())
    }

    /// A table of `entries`, for look-ups in registers.
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    pub(crate) fn table(self, entries: [u16; 16]) -> NibbleTable {
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature. The array has the size
        // of the vector.
        unsafe {
            let entries = transmute::<[u16; 16], __m256i>(entries);
            // In each half, the low bytes of its eight entries, then their high bytes.
            let order = _mm256_setr_epi8(
                0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, //
                0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,
            );
            let bytes = _mm256_shuffle_epi8(entries, order);
            NibbleTable {
                low: _mm256_permute4x64_epi64::<0b10_00_10_00>(bytes),
                high: _mm256_permute4x64_epi64::<0b11_01_11_01>(bytes),
            }
        }
    }
}

impl LookUp for Avx2 {
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn first_least<const BITS: usize, const N: usize>(
        self,
        tables: &[[f32; 8]; N],
        codes: PackedCodes<'_>,
    ) -> u16 {
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size of
        // the vectors.
        let lanes = unsafe {
            let (mut least, mut at) = (_mm256_set1_ps(f32::MAX), _mm256_setzero_si256());
            for (number, codes) in codes.by_lanes().iter().enumerate() {
                let mut codes = _mm256_cvtepu16_epi32(transmute::<[u16; LANES], __m128i>(*codes));
                let mut sum = _mm256_setzero_ps();
                for table in tables {
                    let table = transmute::<[f32; 8], __m256>(*table);
                    // The instruction heeds no bits of an index but the lowest three.
                    sum = _mm256_add_ps(sum, _mm256_permutevar8x32_ps(table, codes));
                    codes = _mm256_srl_epi32(codes, _mm_cvtsi32_si128(BITS as i32));
                }
                let better = _mm256_cmp_ps::<_CMP_LT_OQ>(sum, least);
                least = _mm256_blendv_ps(least, sum, better);
                let number = _mm256_set1_epi32(number as i32);
                at = _mm256_blendv_epi8(at, number, _mm256_castps_si256(better));
            }
            LeastOfLanes {
                least: transmute::<__m256, [f32; LANES]>(least),
                at: transmute::<__m256i, [u32; LANES]>(at),
            }
        };
        codes.chunks.flat()[lanes.first()]
    }

    #[inline(always)]
    fn pick<E: Element>(self, table: &[E; 16], codes: &[u8], out: &mut [E]) {
        let mut at = 0;
        if let Ok(entries) = <[u16; 16]>::read_from_bytes(table.as_bytes()) {
            let entries = self.table(entries);
            let units = zip(codes.as_chunks().0.iter(), out.as_chunks_mut::<CODES_PER_LOOK_UP>().0);
            for (codes, out) in units {
                copy(entries.pick(*codes).as_bytes(), out.as_mut_bytes());
                at += CODES_PER_LOOK_UP;
            }
        }
        InMemory.pick(table, &codes[at..], &mut out[at..]);
    }
}

impl Avx2 {
    /// Four halving steps: each bound is looked up by the rank so far.
    #[cfg_attr(not(feature = "bnb"), allow(dead_code))]
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn ranks_of_lanes(self, values: [f32; LANES], bounds: &Bounds) -> [u32; LANES] {
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size of
        // the vectors.
        unsafe {
            let values = transmute::<[f32; LANES], __m256>(values);
            // A comparison that holds is -1.
            let above = |bound| _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GT_OQ>(values, bound));
            let mut rank =
                _mm256_sub_epi32(_mm256_setzero_si256(), above(_mm256_set1_ps(bounds.all[7])));
            for step in bounds.steps {
                let bounds = transmute::<[f32; LANES], __m256>(step);
                let is_above = above(_mm256_permutevar8x32_ps(bounds, rank));
                rank = _mm256_sub_epi32(_mm256_add_epi32(rank, rank), is_above);
            }
            transmute::<__m256i, [u32; LANES]>(rank)
        }
    }
}

impl Ranks for Avx2 {
    #[inline(always)]
    fn ranks(self, values: [f32; RANKED_VALUES], bounds: &Bounds) -> [u32; RANKED_VALUES] {
        let mut ranks = [0; RANKED_VALUES];
        let halves = values.as_chunks().0.iter();
        for (ranks, &values) in zip(ranks.as_chunks_mut().0, halves) {
            *ranks = self.ranks_of_lanes(values, bounds);
        }
        ranks
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn at_ranks(self, table: &[f32; 16], ranks: [u32; RANKED_VALUES]) -> [f32; RANKED_VALUES] {
        let mut entries = [0.0; RANKED_VALUES];
        let halves = ranks.as_chunks::<LANES>().0.iter();
        for (entries, &ranks) in zip(entries.as_chunks_mut::<LANES>().0, halves) {
            // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size
            // of the vectors.
            unsafe {
                let [low, high] = transmute::<[f32; 16], [__m256; 2]>(*table);
                let ranks = transmute::<[u32; LANES], __m256i>(ranks);
                // The instruction heeds the lowest three bits; the fourth, shifted to the sign,
                // chooses the half.
                let (low, high) =
                    (_mm256_permutevar8x32_ps(low, ranks), _mm256_permutevar8x32_ps(high, ranks));
                let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(ranks));
                *entries = transmute::<__m256, [f32; LANES]>(_mm256_blendv_ps(low, high, is_high));
            }
        }
        entries
    }
}

impl Transpose for Avx2 {
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn transpose(self, lines: [&[u8; LINE]; 8]) -> [u64; LINE] {
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size of
        // the vectors.
        unsafe {
            // Each half has sixteen columns. Bytes of two lines alternate, then those of four and
            // of eight: the first of every pair of vectors has the lower columns.
            let mut pairs = [_mm256_setzero_si256(); 8];
            let mut fours = pairs;
            let mut eights = pairs;
            for i in 0..4 {
                let upper = transmute::<[u8; LINE], __m256i>(*lines[2 * i]);
                let lower = transmute::<[u8; LINE], __m256i>(*lines[2 * i + 1]);
                pairs[2 * i] = _mm256_unpacklo_epi8(upper, lower);
                pairs[2 * i + 1] = _mm256_unpackhi_epi8(upper, lower);
            }
            for i in 0..4 {
                // Lines 0 to 3 for i below 2, and lines 4 to 7.
                let (upper, lower) = (pairs[i / 2 * 4 + i % 2], pairs[i / 2 * 4 + i % 2 + 2]);
                fours[2 * i] = _mm256_unpacklo_epi16(upper, lower);
                fours[2 * i + 1] = _mm256_unpackhi_epi16(upper, lower);
            }
            for i in 0..4 {
                eights[2 * i] = _mm256_unpacklo_epi32(fours[i], fours[i + 4]);
                eights[2 * i + 1] = _mm256_unpackhi_epi32(fours[i], fours[i + 4]);
            }
            // Vector i has columns 2i and 2i + 1 of both halves.
            let mut columns = [[[0u64; 2]; 8]; 2];
            for (i, eight) in eights.into_iter().enumerate() {
                let [low, high] = transmute::<__m256i, [[u64; 2]; 2]>(eight);
                columns[0][i] = low;
                columns[1][i] = high;
            }
            transmute::<[[[u64; 2]; 8]; 2], [u64; LINE]>(columns)
        }
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn columns<T: Word>(self, rows: [[T; LANES]; LANES]) -> [[T; LANES]; LANES] {
        const { assert!(size_of::<T>() == size_of::<f32>()) };
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size of
        // the vectors, and any bits are a word.
        unsafe {
            let rows = transmute_copy::<[[T; LANES]; LANES], [__m256; 8]>(&rows);
            // Values of two rows alternate, then those of four. Each half has the columns of its
            // own.
            let mut pairs = [_mm256_setzero_ps(); 8];
            let mut fours = pairs;
            let mut columns = pairs;
            for i in 0..4 {
                pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            for i in 0..4 {
                // Rows 0 to 3 for i below 2, and rows 4 to 7.
                let at = i / 2 * 4 + i % 2;
                let (upper, lower) = (pairs[at], pairs[at + 2]);
                let at = i / 2 * 4 + i % 2 * 2;
                fours[at] = _mm256_shuffle_ps::<0b01_00_01_00>(upper, lower);
                fours[at + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(upper, lower);
            }
            for i in 0..4 {
                columns[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
                columns[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
            }
            transmute_copy::<[__m256; 8], [[T; LANES]; LANES]>(&columns)
        }
    }
}

/// Sixteen entries of two bytes, looked up by codes of four bits. It is made by an [`Avx2`] and so
/// is proof of the feature, too.
#[derive(Clone, Copy)]
pub(crate) struct NibbleTable {
    /// The low bytes of the entries, in both halves: an instruction looks up in each half on its
    /// own.
    low: __m256i,
    /// The high bytes, likewise.
    high: __m256i,
}

impl NibbleTable {
    /// The entries at codes of a byte each, which are below 16.
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    pub(crate) fn pick(self, codes: [u8; 32]) -> [u16; 32] {
        // SAFETY: a value of `NibbleTable` is proof that the CPU has the feature. Arrays have the
        // size of the vectors.
        unsafe {
            // Interleaving below takes from each half what is to be one half of a result.
            let codes = transmute::<[u8; 32], __m256i>(codes);
            let codes = _mm256_permute4x64_epi64::<0b11_01_10_00>(codes);
            let low = _mm256_shuffle_epi8(self.low, codes);
            let high = _mm256_shuffle_epi8(self.high, codes);
            let entries = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
            transmute::<[__m256i; 2], [u16; 32]>(entries)
        }
    }

    /// The entries at the two codes of each byte. `high_first`: that of the high nibble is the
    /// first.
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    pub(crate) fn look_up(self, codes: [u8; 32], high_first: bool) -> [u16; 64] {
        // SAFETY: a value of `NibbleTable` is proof that the CPU has the feature. Arrays have the
        // size of the vectors.
        unsafe {
            let codes = transmute::<[u8; 32], __m256i>(codes);
            // Both steps of interleaving below take from each half what is to be one half of a
            // result. Of every eight bytes, whose sixteen entries are a result, the first four go
            // into the first half.
            let order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
            let codes = _mm256_permutevar8x32_epi32(codes, order);
            let nibble = _mm256_set1_epi8(15);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
            let low = _mm256_and_si256(codes, nibble);
            let (first, second) = if high_first { (high, low) } else { (low, high) };
            let entries = |codes| {
                let low = _mm256_shuffle_epi8(self.low, codes);
                let high = _mm256_shuffle_epi8(self.high, codes);
                [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)]
            };
            let entries = [
                entries(_mm256_unpacklo_epi8(first, second)),
                entries(_mm256_unpackhi_epi8(first, second)),
            ];
            transmute::<[[__m256i; 2]; 2], [u16; 64]>(entries)
        }
    }
}

#[target_feature(enable = "avx2,bmi2,f16c,fma")]
fn run_kernel<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
    kernel.run_avx2(out, Avx2(()));
}

#[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
pub(super) fn enter<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
    // SAFETY: `Level::detect` found AVX2, BMI2, F16C and FMA on this CPU, and `super::enter` never
    // exceeds it.
    unsafe { run_kernel(kernel, out) }
}

#[target_feature(enable = "avx2,bmi2,f16c,fma")]
fn run_routine(routine: &mut impl Routine) {
    routine.run_avx2(Avx2(()));
}

#[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
pub(super) fn perform(routine: &mut impl Routine) {
    // SAFETY: `Level::detect` found AVX2, BMI2, F16C and FMA on this CPU, and `super::perform`
    // never exceeds it.
    unsafe { run_routine(routine) }
}

/// Rounds `values` into `out`, to nearest even: the bits of `from_f32`.
#[target_feature(enable = "avx2,f16c")]
#[expect(unsafe_code, reason = "instructions of a CPU feature")]
fn round_to_halves(values: &[f32], out: &mut [f16]) {
    let (wide, rest) = values.as_chunks::<8>();
    let (halves, last) = out.as_chunks_mut::<8>();
    for (values, halves) in zip(wide.iter(), halves) {
        // SAFETY: the caller has the CPU feature. Arrays have the size of the vectors, and a half
        // has two bytes.
        unsafe {
            let values = transmute::<[f32; 8], __m256>(*values);
            // The instruction keeps a part of the payload of a NaN; here a NaN has its sign alone.
            let sign = _mm256_and_ps(values, _mm256_set1_ps(-0.0));
            let nan = _mm256_or_ps(sign, _mm256_set1_ps(f32::NAN));
            let values =
                _mm256_blendv_ps(values, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
            let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
            *halves = transmute::<__m128i, [f16; 8]>(rounded);
        }
    }
    Element::store(rest, last);
}

/// Rounds `values` into `out`, to nearest even.
#[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
pub(super) fn halves(values: &[f32], out: &mut [f16]) {
    // SAFETY: `Level::detect` found F16C beside AVX2 on this CPU, and `super::round_to_f16` never
    // exceeds it.
    unsafe { round_to_halves(values, out) }
}
