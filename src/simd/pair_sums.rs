//! Sums of products of integers of 16 bits, in registers.

#[cfg(target_arch = "x86_64")]
use std::{
    arch::x86_64::{
        __m128i, __m256, __m256i, __m512, __m512i, _MM_FROUND_TO_NEAREST_INT, _mm_or_si128,
        _mm_testz_si128, _mm_xor_si128, _mm256_add_epi32, _mm256_cmpneq_epi16_mask,
        _mm256_cvtps_ph, _mm256_madd_epi16, _mm256_set1_epi32, _mm512_add_epi32, _mm512_and_si512,
        _mm512_castps_si512, _mm512_cvtepi32_epi16, _mm512_cvtps_ph, _mm512_madd_epi16,
        _mm512_set1_epi32, _mm512_srli_epi32,
    },
    mem::transmute,
};

#[cfg(target_arch = "x86_64")]
use half::f16;
#[cfg(target_arch = "x86_64")]
use zerocopy::IntoBytes;

#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};
use super::{InMemory, copy, zip};
use crate::element::Element;

/// Sums that are added to in registers together.
pub(crate) const PAIR_COLUMNS: usize = 16;

/// Two integers for each sum.
pub(crate) type PairRow = [[i16; 2]; PAIR_COLUMNS];

/// How a body that is generic over levels adds two products to each sum. LLVM multiplies the
/// integers of plain Rust in 32 bits, which takes several times as long.
pub(crate) trait PairSums: Copy {
    /// Whether an instruction multiplies integers of 16 bits.
    const HAS_PAIRS: bool;

    /// Adds `left[0] * right[j][0] + left[1] * right[j][1]` to sum j. The caller makes sure that no
    /// sum overflows.
    fn add_pairs(
        self,
        sums: [i32; PAIR_COLUMNS],
        left: [i16; 2],
        right: &PairRow,
    ) -> [i32; PAIR_COLUMNS];

    /// Rounds the numbers of `most` into `out`, which may be shorter. Returns whether those of
    /// `least` are rounded to the same bits. None is NaN.
    #[inline(always)]
    fn store_alike<E: Element>(
        self,
        [least, most]: [[f32; PAIR_COLUMNS]; 2],
        out: &mut [E],
    ) -> bool {
        let mut differ = 0;
        let mut rounded = [E::from_f32(0.0); PAIR_COLUMNS];
        for ((rounded, &least), &most) in zip(zip(&mut rounded[..], &least), &most) {
            differ |= E::rounded(least).to_bits() ^ E::rounded(most).to_bits();
            *rounded = E::from_f32(most);
        }
        match out.first_chunk_mut() {
            Some(out) => *out = rounded,
            None => copy(&rounded[..out.len()], out),
        }
        differ == 0
    }
}

/// The bytes of the first [`PAIR_COLUMNS`] of `out`, if a number has two.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn vector_of<E: Element>(out: &mut [E]) -> Option<&mut [u8; 2 * PAIR_COLUMNS]> {
    let bytes = (size_of::<E>() == 2).then(|| out.as_mut_bytes())?;
    bytes.first_chunk_mut()
}

impl PairSums for InMemory {
    const HAS_PAIRS: bool = false;

    #[inline(always)]
    fn add_pairs(
        self,
        mut sums: [i32; PAIR_COLUMNS],
        left: [i16; 2],
        right: &PairRow,
    ) -> [i32; PAIR_COLUMNS] {
        let [a, b] = left.map(i32::from);
        for (sum, &[c, d]) in zip(&mut sums[..], right) {
            let both = (a * i32::from(c)).wrapping_add(b * i32::from(d));
            *sum = sum.wrapping_add(both);
        }
        sums
    }
}

/// Two integers in one of 32 bits, the first in its low half.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn packed([first, second]: [i16; 2]) -> i32 {
    i32::from(second) << 16 | i32::from(first as u16)
}

#[cfg(target_arch = "x86_64")]
impl PairSums for Avx2 {
    const HAS_PAIRS: bool = true;

    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn add_pairs(
        self,
        sums: [i32; PAIR_COLUMNS],
        left: [i16; 2],
        right: &PairRow,
    ) -> [i32; PAIR_COLUMNS] {
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size of
        // the vectors.
        unsafe {
            let left = _mm256_set1_epi32(packed(left));
            let [a, b] = transmute::<PairRow, [__m256i; 2]>(*right);
            let [c, d] = transmute::<[i32; PAIR_COLUMNS], [__m256i; 2]>(sums);
            transmute::<[__m256i; 2], [i32; PAIR_COLUMNS]>([
                _mm256_add_epi32(c, _mm256_madd_epi16(left, a)),
                _mm256_add_epi32(d, _mm256_madd_epi16(left, b)),
            ])
        }
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn store_alike<E: Element>(self, bounds: [[f32; PAIR_COLUMNS]; 2], out: &mut [E]) -> bool {
        let vector = vector_of(out).filter(|_| E::MANTISSA == f16::MANTISSA);
        let Some(out) = vector else {
            return InMemory.store_alike(bounds, out);
        };
        // SAFETY: a value of `Avx2` is proof that the CPU has the features. Arrays have the size of
        // the vectors.
        unsafe {
            let [least, most] = transmute::<[[f32; PAIR_COLUMNS]; 2], [[__m256; 2]; 2]>(bounds)
                .map(|both| both.map(|x| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)));
            *out = transmute::<[__m128i; 2], [u8; 2 * PAIR_COLUMNS]>(most);
            let differ =
                _mm_or_si128(_mm_xor_si128(least[0], most[0]), _mm_xor_si128(least[1], most[1]));
            _mm_testz_si128(differ, differ) == 1
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl PairSums for Avx512 {
    const HAS_PAIRS: bool = true;

    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn add_pairs(
        self,
        sums: [i32; PAIR_COLUMNS],
        left: [i16; 2],
        right: &PairRow,
    ) -> [i32; PAIR_COLUMNS] {
        // SAFETY: a value of `Avx512` is proof that the CPU has the feature. Arrays have the size
        // of the vectors.
        unsafe {
            let right = transmute::<PairRow, __m512i>(*right);
            let products = _mm512_madd_epi16(_mm512_set1_epi32(packed(left)), right);
            let sums = transmute::<[i32; PAIR_COLUMNS], __m512i>(sums);
            transmute::<__m512i, [i32; PAIR_COLUMNS]>(_mm512_add_epi32(sums, products))
        }
    }

    /// LLVM takes the halves of vectors apart in memory, whose numbers are loaded together again.
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn store_alike<E: Element>(self, bounds: [[f32; PAIR_COLUMNS]; 2], out: &mut [E]) -> bool {
        let Some(out) = vector_of(out) else {
            return InMemory.store_alike(bounds, out);
        };
        // SAFETY: a value of `Avx512` is proof that the CPU has the feature. Arrays have the size
        // of the vectors.
        unsafe {
            let bounds = transmute::<[[f32; PAIR_COLUMNS]; 2], [__m512; 2]>(bounds);
            let [least, most] = if E::MANTISSA == f16::MANTISSA {
                let round = |x| _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
                [round(bounds[0]), round(bounds[1])]
            } else {
                [brain_floats(bounds[0]), brain_floats(bounds[1])]
            };
            *out = transmute::<__m256i, [u8; 2 * PAIR_COLUMNS]>(most);
            _mm256_cmpneq_epi16_mask(least, most) == 0
        }
    }
}

/// Numbers as BF16, to nearest even. None is NaN.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
fn brain_floats(numbers: __m512) -> __m256i {
    let bits = _mm512_castps_si512(numbers);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half)))
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::simd::{Level, Routine, perform};

    /// Adds pairs to sums as often as there are pairs.
    struct Add<'a> {
        left: &'a [[i16; 2]],
        right: &'a [[[i16; 2]; PAIR_COLUMNS]],
        sums: [i32; PAIR_COLUMNS],
    }

    impl Add<'_> {
        #[inline(always)]
        fn add(&mut self, unit: impl PairSums) {
            for (&left, right) in self.left.iter().zip(self.right) {
                self.sums = unit.add_pairs(self.sums, left, right);
            }
        }
    }

    impl Routine for Add<'_> {
        const HAS_AVX512: bool = true;

        fn run(&mut self) {
            self.add(InMemory);
        }

        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        fn run_avx2(&mut self, avx2: Avx2) {
            self.add(avx2);
        }

        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        fn run_avx512(&mut self, avx512: Avx512) {
            self.add(avx512);
        }
    }

    #[test]
    fn sums_are_those_of_products() {
        let number = |n: usize| match n % 11 {
            0 => i16::MIN,
            1 => i16::MAX,
            _ => (n * 40_503 % 65_521) as u16 as i16,
        };
        let small = |n: usize| number(n) >> 10;
        let left: Vec<_> = (0..9).map(|n| [small(2 * n), small(2 * n + 1)]).collect();
        let row = |n: usize| std::array::from_fn(|j| [number(32 * n + j), number(32 * n + j + 16)]);
        let right: Vec<[[i16; 2]; PAIR_COLUMNS]> = (0..9).map(row).collect();
        let product = |a: i16, b: i16| i64::from(a) * i64::from(b);
        for level in Level::available() {
            let mut routine = Add { left: &left, right: &right, sums: [-7; PAIR_COLUMNS] };
            perform(level, &mut routine);
            for (j, &sum) in routine.sums.iter().enumerate() {
                let pairs = left.iter().zip(&right);
                let both = |(left, right): (&[i16; 2], &[[i16; 2]; PAIR_COLUMNS])| {
                    product(left[0], right[j][0]) + product(left[1], right[j][1])
                };
                assert_eq!(i64::from(sum), pairs.map(both).sum::<i64>() - 7, "{level:?}");
            }
        }
    }

    /// Rounds numbers and those beside them.
    struct Store<E> {
        bounds: [[f32; PAIR_COLUMNS]; 2],
        out: Vec<E>,
        is_alike: bool,
    }

    impl<E: Element> Store<E> {
        fn store(&mut self, unit: impl PairSums) {
            self.is_alike = unit.store_alike(self.bounds, &mut self.out);
        }
    }

    impl<E: Element> Routine for Store<E> {
        const HAS_AVX512: bool = true;

        fn run(&mut self) {
            self.store(InMemory);
        }

        #[cfg(target_arch = "x86_64")]
        fn run_avx2(&mut self, avx2: Avx2) {
            self.store(avx2);
        }

        #[cfg(target_arch = "x86_64")]
        fn run_avx512(&mut self, avx512: Avx512) {
            self.store(avx512);
        }
    }

    /// Stores numbers of all sizes, and tells whether those beside them are alike, as one at a
    /// time.
    fn check_store<E: Element>() {
        let number = |n: u32| f32::from_bits((n.wrapping_mul(0x9e37_79b9) % 0x7f80_0001) | n << 31);
        for level in Level::available() {
            for n in 0..4096 {
                let most: [f32; PAIR_COLUMNS] = std::array::from_fn(|i| number(n + i as u32));
                let mut least = most;
                // Numbers that differ are mostly rounded to the same, and to another where they are
                // on the other side of a tie.
                let (at, len) = (n as usize % PAIR_COLUMNS, n as usize % (PAIR_COLUMNS + 4));
                least[at] = f32::from_bits(most[at].to_bits() ^ (n % 3 * 0x1234) & !(n << 3));
                let is_alike = E::rounded(least[at]).to_bits() == E::rounded(most[at]).to_bits();
                let mut routine = Store {
                    bounds: [least, most],
                    out: vec![E::from_f32(1.0); len],
                    is_alike: false,
                };
                perform(level, &mut routine);
                assert_eq!(routine.is_alike, is_alike, "{level:?}, {n}");
                for (i, x) in routine.out.iter().enumerate() {
                    let rounded = most.get(i).map_or(1.0, |&x| E::rounded(x));
                    assert_eq!(x.to_f32().to_bits(), rounded.to_bits(), "{level:?}, {n}");
                }
            }
        }
    }

    #[test]
    fn numbers_are_rounded_and_compared() {
        check_store::<f16>();
        check_store::<bf16>();
        check_store::<f32>();
    }
}
