//! Sums of products of integers of 16 bits, in registers.

#[cfg(target_arch = "x86_64")]
use std::{
    arch::x86_64::{
        __m256i, __m512i, _mm256_add_epi32, _mm256_madd_epi16, _mm256_set1_epi32, _mm512_add_epi32,
        _mm512_madd_epi16, _mm512_set1_epi32,
    },
    mem::transmute,
};

use super::InMemory;
#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};

/// Sums that are added to in registers together.
pub(crate) const PAIRED: usize = 16;

/// Two integers for each sum.
pub(crate) type PairRow = [[i16; 2]; PAIRED];

/// How a body that is generic over levels adds two products to each sum. LLVM multiplies the integers of plain Rust in 32 bits, which
/// takes several times as long.
pub(crate) trait PairSums: Copy {
    /// Whether an instruction multiplies integers of 16 bits.
    const HAS_PAIRS: bool;

    /// Adds `left[0] * right[j][0] + left[1] * right[j][1]` to sum j. The caller makes sure that no sum overflows.
    fn add_pairs(self, sums: [i32; PAIRED], left: [i16; 2], right: &PairRow) -> [i32; PAIRED];
}

impl PairSums for InMemory {
    const HAS_PAIRS: bool = false;

    #[inline(always)]
    fn add_pairs(self, mut sums: [i32; PAIRED], left: [i16; 2], right: &PairRow) -> [i32; PAIRED] {
        let [a, b] = left.map(i32::from);
        for (sum, &[c, d]) in sums.iter_mut().zip(right) {
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
    fn add_pairs(self, sums: [i32; PAIRED], left: [i16; 2], right: &PairRow) -> [i32; PAIRED] {
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size of the vectors.
        unsafe {
            let left = _mm256_set1_epi32(packed(left));
            let [a, b] = transmute::<PairRow, [__m256i; 2]>(*right);
            let [c, d] = transmute::<[i32; PAIRED], [__m256i; 2]>(sums);
            transmute::<[__m256i; 2], [i32; PAIRED]>([
                _mm256_add_epi32(c, _mm256_madd_epi16(left, a)),
                _mm256_add_epi32(d, _mm256_madd_epi16(left, b)),
            ])
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl PairSums for Avx512 {
    const HAS_PAIRS: bool = true;

    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn add_pairs(self, sums: [i32; PAIRED], left: [i16; 2], right: &PairRow) -> [i32; PAIRED] {
        // SAFETY: a value of `Avx512` is proof that the CPU has the feature. Arrays have the size of the vectors.
        unsafe {
            let right = transmute::<PairRow, __m512i>(*right);
            let products = _mm512_madd_epi16(_mm512_set1_epi32(packed(left)), right);
            let sums = transmute::<[i32; PAIRED], __m512i>(sums);
            transmute::<__m512i, [i32; PAIRED]>(_mm512_add_epi32(sums, products))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, Routine, perform};

    /// Adds pairs to sums as often as there are pairs.
    struct Add<'a> {
        left: &'a [[i16; 2]],
        right: &'a [[[i16; 2]; PAIRED]],
        sums: [i32; PAIRED],
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
        let right: Vec<[[i16; 2]; PAIRED]> = (0..9).map(row).collect();
        let product = |a: i16, b: i16| i64::from(a) * i64::from(b);
        for level in Level::available() {
            let mut routine = Add {
                left: &left,
                right: &right,
                sums: [-7; PAIRED],
            };
            perform(level, &mut routine);
            for (j, &sum) in routine.sums.iter().enumerate() {
                let pairs = left.iter().zip(&right);
                let both = |(left, right): (&[i16; 2], &[[i16; 2]; PAIRED])| {
                    product(left[0], right[j][0]) + product(left[1], right[j][1])
                };
                assert_eq!(
                    i64::from(sum),
                    pairs.map(both).sum::<i64>() - 7,
                    "{level:?}"
                );
            }
        }
    }
}
