//! CPU levels, detected once, and the entry to kernels.
//!
//! Kernels are plain Rust that LLVM vectorises. [`dispatch`] and [`perform`] compile a kernel's body once for each level
//! (and output type), and pick one at run time. The pick is made once for a slab or a tile, never for a value.
//!
//! **Rule for authors of kernels.** A function marked `#[target_feature]` has its instruction set only for what is inlined
//! into it. So a kernel's `run` and everything that it calls is `#[inline(always)]`: a call that stays a call runs code of
//! the baseline, and splits the loop around it. That goes for closures as well, and for library functions that take one:
//! combinators on arrays (`map`, `from_fn`) and `for_each` on long chains of iterators may stay calls, a `for` loop does
//! not.
//!
//! The one instruction that LLVM does not make of plain Rust is a look-up in a register ([`Avx2::table`], [`LookUp`]). A
//! kernel that gains from it has a body of its own for AVX2 (`run_avx2`) and the same twin in the tests as the other body.
//!
//! No level enables FMA. A fused product and sum skip a rounding, and all levels give the same bits.

use std::sync::OnceLock;

use crate::element::{Element, Out};

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every CPU of the target architecture has (SSE2, NEON).
    Baseline,
    /// AVX2 with BMI2 on x86-64.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    Avx2,
}

impl Level {
    /// The best level of this CPU.
    #[must_use]
    pub fn detect() -> Self {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") {
                return Self::Avx2;
            }
            Self::Baseline
        })
    }

    /// Every level that this CPU can run, lowest first.
    #[cfg(any(test, feature = "benchmarks"))]
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Self::Baseline, Self::Avx2]
            .into_iter()
            .filter(|&level| level <= Self::detect())
            .collect()
    }
}

impl Default for Level {
    fn default() -> Self {
        Self::detect()
    }
}

/// A decoder's inner loop over one slab of output.
///
/// `run` and everything that it calls must be `#[inline(always)]`, so that the body is compiled with the instruction set
/// of its caller.
pub(crate) trait Kernel {
    /// Decodes into `out`, whose length the kernel's own fields imply.
    fn run<E: Element>(&self, out: &mut [E]);

    /// The body at [`Level::Avx2`], for kernels with a step that LLVM does not vectorise. It gives the bits of
    /// [`run`](Self::run).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], _: Avx2) {
        self.run(out);
    }
}

/// An inner loop whose slices of input and output are fields: of encoders and comparisons, and of a decoder that appends.
///
/// `run` and everything that it calls must be `#[inline(always)]`, so that the body is compiled with the instruction set
/// of its caller.
pub(crate) trait Routine {
    /// Computes all results and writes them to the fields.
    fn run(&mut self);

    /// The body at [`Level::Avx2`], as that of [`Kernel::run_avx2`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, _: Avx2) {
        self.run();
    }
}

/// Sums that are computed side by side, one in each lane.
#[cfg_attr(not(feature = "lethe"), allow(dead_code))]
pub(crate) const LANES: usize = 8;

/// How a body that is generic over levels sums terms that it looks up. A value of it is proof that the CPU can.
///
/// A table has a term for each of up to eight codes. Without tables, searches of ggml's IQ types take three to five times as
/// long as with the instruction for look-ups, and twice as long as with look-ups in memory.
/// It is the whole loop that has a body of its own: LLVM takes apart the lanes of sums between single look-ups.
#[cfg_attr(not(feature = "lethe"), allow(dead_code))]
pub(crate) trait LookUp: Copy {
    /// In each lane, a packed code of each chunk picks a term of every table, by the `BITS` of the code that belong to the
    /// table, the first lowest. Returns the least sum of the terms of each lane, and the first chunk that has it. Terms are
    /// added in the order of the tables. A table of fewer than eight terms repeats them. A sum that is NaN is passed over.
    fn least_sums<const BITS: usize, const N: usize>(
        self,
        tables: &[[f32; 8]; N],
        chunks: &[[u16; LANES]],
    ) -> ([f32; LANES], [u32; LANES]);
}

/// Look-ups in memory, at every level.
#[cfg_attr(not(feature = "lethe"), allow(dead_code))]
#[derive(Clone, Copy)]
pub(crate) struct InMemory;

impl LookUp for InMemory {
    #[inline(always)]
    fn least_sums<const BITS: usize, const N: usize>(
        self,
        tables: &[[f32; 8]; N],
        chunks: &[[u16; LANES]],
    ) -> ([f32; LANES], [u32; LANES]) {
        let (mut least, mut at) = ([f32::MAX; LANES], [0; LANES]);
        for (number, codes) in chunks.iter().enumerate() {
            // Table by table: the sums of the lanes do not wait for each other.
            let mut sums = [0.0; LANES];
            for (i, table) in tables.iter().enumerate() {
                for (sum, &code) in sums.iter_mut().zip(codes) {
                    *sum += table[usize::from(code >> (BITS * i)) & 7];
                }
            }
            for l in 0..LANES {
                let better = sums[l] < least[l];
                least[l] = if better { sums[l] } else { least[l] };
                at[l] = if better { number as u32 } else { at[l] };
            }
        }
        (least, at)
    }
}

/// Runs `routine` at `level`, or at the best level of this CPU if that is lower.
pub(crate) fn perform(level: Level, routine: &mut impl Routine) {
    match level.min(Level::detect()) {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::perform(routine),
        _ => routine.run(),
    }
}

/// Runs `kernel` at `level`, or at the best level of this CPU if that is lower, into a typed destination.
pub(crate) fn dispatch<K: Kernel>(level: Level, kernel: &K, out: Out<'_>) {
    match out {
        Out::F32(out) => enter(level, kernel, out),
        Out::F16(out) => enter(level, kernel, out),
        Out::Bf16(out) => enter(level, kernel, out),
    }
}

fn enter<K: Kernel, E: Element>(level: Level, kernel: &K, out: &mut [E]) {
    match level.min(Level::detect()) {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::enter(kernel, out),
        _ => kernel.run(out),
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use self::avx2::{Avx2, NibbleTable};

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256, __m256i, _CMP_LT_OQ, _mm_cvtsi32_si128, _mm256_add_ps, _mm256_and_si256,
        _mm256_blendv_epi8, _mm256_blendv_ps, _mm256_castps_si256, _mm256_cmp_ps,
        _mm256_cvtepu16_epi32, _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32,
        _mm256_permutevar8x32_ps, _mm256_set1_epi8, _mm256_set1_epi32, _mm256_set1_ps,
        _mm256_setr_epi8, _mm256_setr_epi32, _mm256_setzero_ps, _mm256_setzero_si256,
        _mm256_shuffle_epi8, _mm256_srl_epi32, _mm256_srli_epi16, _mm256_unpackhi_epi8,
        _mm256_unpacklo_epi8,
    };
    use std::mem::transmute;

    use super::{Element, Kernel, LANES, LookUp, Routine};

    /// Instructions of AVX2 that LLVM does not make of plain Rust. A value exists only inside of what `enter` calls.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(());

    impl Avx2 {
        /// A table of `entries`, for look-ups in registers.
        #[inline(always)]
        #[expect(unsafe_code, reason = "instructions of a CPU feature")]
        pub(crate) fn table(self, entries: [u16; 16]) -> NibbleTable {
            // SAFETY: a value of `Avx2` is proof that the CPU has the feature. The array has the size of the vector.
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
        fn least_sums<const BITS: usize, const N: usize>(
            self,
            tables: &[[f32; 8]; N],
            chunks: &[[u16; LANES]],
        ) -> ([f32; LANES], [u32; LANES]) {
            // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size of the vectors.
            unsafe {
                let (mut least, mut at) = (_mm256_set1_ps(f32::MAX), _mm256_setzero_si256());
                for (number, codes) in chunks.iter().enumerate() {
                    let mut codes =
                        _mm256_cvtepu16_epi32(transmute::<[u16; LANES], __m128i>(*codes));
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
                (
                    transmute::<__m256, [f32; LANES]>(least),
                    transmute::<__m256i, [u32; LANES]>(at),
                )
            }
        }
    }

    /// Sixteen entries of two bytes, looked up by codes of four bits. It is made by an [`Avx2`] and so is proof of the
    /// feature, too.
    #[derive(Clone, Copy)]
    pub(crate) struct NibbleTable {
        /// The low bytes of the entries, in both halves: an instruction looks up in each half on its own.
        low: __m256i,
        /// The high bytes, likewise.
        high: __m256i,
    }

    impl NibbleTable {
        /// The entries at the two codes of each byte. `high_first`: that of the high nibble is the first.
        #[inline(always)]
        #[expect(unsafe_code, reason = "instructions of a CPU feature")]
        pub(crate) fn look_up(self, codes: [u8; 32], high_first: bool) -> [u16; 64] {
            // SAFETY: a value of `NibbleTable` is proof that the CPU has the feature. Arrays have the size of the vectors.
            unsafe {
                let codes = transmute::<[u8; 32], __m256i>(codes);
                // Both steps of interleaving below take from each half what is to be one half of a result. Of every eight
                // bytes, whose sixteen entries are a result, the first four go into the first half.
                let order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
                let codes = _mm256_permutevar8x32_epi32(codes, order);
                let nibble = _mm256_set1_epi8(15);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
                let low = _mm256_and_si256(codes, nibble);
                let (first, second) = if high_first { (high, low) } else { (low, high) };
                let entries = |codes| {
                    let low = _mm256_shuffle_epi8(self.low, codes);
                    let high = _mm256_shuffle_epi8(self.high, codes);
                    [
                        _mm256_unpacklo_epi8(low, high),
                        _mm256_unpackhi_epi8(low, high),
                    ]
                };
                let entries = [
                    entries(_mm256_unpacklo_epi8(first, second)),
                    entries(_mm256_unpackhi_epi8(first, second)),
                ];
                transmute::<[[__m256i; 2]; 2], [u16; 64]>(entries)
            }
        }
    }

    #[target_feature(enable = "avx2,bmi2")]
    fn run_kernel<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
        kernel.run_avx2(out, Avx2(()));
    }

    #[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
    pub(super) fn enter<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
        // SAFETY: `Level::detect` found AVX2 and BMI2 on this CPU, and `super::enter` never exceeds it.
        unsafe { run_kernel(kernel, out) }
    }

    #[target_feature(enable = "avx2,bmi2")]
    fn run_routine(routine: &mut impl Routine) {
        routine.run_avx2(Avx2(()));
    }

    #[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
    pub(super) fn perform(routine: &mut impl Routine) {
        // SAFETY: `Level::detect` found AVX2 and BMI2 on this CPU, and `super::perform` never exceeds it.
        unsafe { run_routine(routine) }
    }
}
