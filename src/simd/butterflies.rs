//! Products with small Hadamard matrices, in registers.

use super::zip;
use std::ops::{Add, Sub};
#[cfg(target_arch = "x86_64")]
use std::{
    arch::x86_64::{
        __m256, _mm256_add_epi32, _mm256_add_ps, _mm256_castps_si256, _mm256_castsi256_ps,
        _mm256_permute2f128_ps, _mm256_shuffle_ps, _mm256_sub_epi32, _mm256_sub_ps,
    },
    mem::transmute,
};

#[cfg(target_arch = "x86_64")]
use super::Avx2;
use super::InMemory;

/// Numbers whose sums and differences are computed in registers together.
pub(crate) const BUTTERFLY_VALUES: usize = 16;

/// How a body that is generic over levels multiplies by the Kronecker power of `[[1,1],[1,-1]]`
/// with [`BUTTERFLY_VALUES`] rows: sums and differences of neighbours first, then of numbers 2, 4
/// and 8 apart. LLVM takes vectors apart for steps within them, which take three times as long.
pub(crate) trait Butterflies: Copy {
    fn singles(self, numbers: [f32; BUTTERFLY_VALUES]) -> [f32; BUTTERFLY_VALUES];

    fn integers(self, numbers: [i32; BUTTERFLY_VALUES]) -> [i32; BUTTERFLY_VALUES];
}

impl Butterflies for InMemory {
    #[inline(always)]
    fn singles(self, numbers: [f32; BUTTERFLY_VALUES]) -> [f32; BUTTERFLY_VALUES] {
        butterflies(numbers)
    }

    #[inline(always)]
    fn integers(self, numbers: [i32; BUTTERFLY_VALUES]) -> [i32; BUTTERFLY_VALUES] {
        butterflies(numbers)
    }
}

/// [`Butterflies`] in memory.
#[inline(always)]
pub(crate) fn butterflies<T: Copy + Add<Output = T> + Sub<Output = T>>(
    numbers: [T; BUTTERFLY_VALUES],
) -> [T; BUTTERFLY_VALUES] {
    let mut sums = [[numbers[0]; 4]; 4];
    for (sums, &[a, b, c, d]) in zip(&mut sums[..], numbers.as_chunks::<4>().0) {
        let (e, f, g, h) = (a + b, a - b, c + d, c - d);
        *sums = [e + g, f + h, e - g, f - h];
    }
    let mut out = numbers;
    for i in 0..4 {
        let [a, b, c, d] = [sums[0][i], sums[1][i], sums[2][i], sums[3][i]];
        let (e, f, g, h) = (a + b, a - b, c + d, c - d);
        [out[i], out[4 + i], out[8 + i], out[12 + i]] = [e + g, f + h, e - g, f - h];
    }
    out
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The product, with sums and differences by `combine`. What is added is moved to the same
    /// places of two vectors.
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn butterflies(
        self,
        [a, b]: [__m256; 2],
        combine: impl Fn(__m256, __m256) -> [__m256; 2],
    ) -> [__m256; 2] {
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature.
        unsafe {
            // Even and odd places of each half, twice: of neighbours, then of numbers that are 2
            // apart. A third time, they are in their order again.
            let [a, b] = combine(
                _mm256_shuffle_ps::<0b10_00_10_00>(a, b),
                _mm256_shuffle_ps::<0b11_01_11_01>(a, b),
            );
            let [a, b] = combine(
                _mm256_shuffle_ps::<0b10_00_10_00>(a, b),
                _mm256_shuffle_ps::<0b11_01_11_01>(a, b),
            );
            let (a, b) = (
                _mm256_shuffle_ps::<0b10_00_10_00>(a, b),
                _mm256_shuffle_ps::<0b11_01_11_01>(a, b),
            );
            // Halves.
            let [a, b] =
                combine(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            combine(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Butterflies for Avx2 {
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn singles(self, numbers: [f32; BUTTERFLY_VALUES]) -> [f32; BUTTERFLY_VALUES] {
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size of
        // the vectors.
        unsafe {
            let vectors = transmute::<[f32; BUTTERFLY_VALUES], [__m256; 2]>(numbers);
            let combine = |a, b| [_mm256_add_ps(a, b), _mm256_sub_ps(a, b)];
            transmute::<[__m256; 2], [f32; BUTTERFLY_VALUES]>(self.butterflies(vectors, combine))
        }
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions of a CPU feature")]
    fn integers(self, numbers: [i32; BUTTERFLY_VALUES]) -> [i32; BUTTERFLY_VALUES] {
        // SAFETY: a value of `Avx2` is proof that the CPU has the feature. Arrays have the size of
        // the vectors.
        unsafe {
            let vectors = transmute::<[i32; BUTTERFLY_VALUES], [__m256; 2]>(numbers);
            let combine = |a, b| {
                let (a, b) = (_mm256_castps_si256(a), _mm256_castps_si256(b));
                let (sum, difference) = (_mm256_add_epi32(a, b), _mm256_sub_epi32(a, b));
                [_mm256_castsi256_ps(sum), _mm256_castsi256_ps(difference)]
            };
            transmute::<[__m256; 2], [i32; BUTTERFLY_VALUES]>(self.butterflies(vectors, combine))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Level, Routine, perform};
    use super::*;

    struct Products {
        singles: [f32; BUTTERFLY_VALUES],
        integers: [i32; BUTTERFLY_VALUES],
    }

    impl Products {
        #[inline(always)]
        fn multiply(&mut self, by: impl Butterflies) {
            self.singles = by.singles(self.singles);
            self.integers = by.integers(self.integers);
        }
    }

    impl Routine for Products {
        fn run(&mut self) {
            self.multiply(InMemory);
        }

        #[cfg(target_arch = "x86_64")]
        fn run_avx2(&mut self, avx2: Avx2) {
            self.multiply(avx2);
        }
    }

    /// Each entry of the matrix for itself, and sums of integers.
    #[test]
    fn products_are_those_of_the_matrix() {
        for level in Level::available() {
            for column in 0..BUTTERFLY_VALUES {
                let mut integers = [0; BUTTERFLY_VALUES];
                integers[column] = 3 << 20;
                integers[5] -= 7;
                let singles = integers.map(|x| x as f32);
                let sign = |i: usize, j: usize| 1 - 2 * ((i & j).count_ones() % 2) as i32;
                let term = |i, j: usize| integers[j] * sign(i, j);
                let want: [i32; BUTTERFLY_VALUES] =
                    std::array::from_fn(|i| (0..BUTTERFLY_VALUES).map(|j| term(i, j)).sum());
                let mut products = Products { singles, integers };
                perform(level, &mut products);
                assert_eq!(products.integers, want, "{level:?}");
                assert_eq!(products.singles, want.map(|x| x as f32), "{level:?}");
            }
        }
    }
}
