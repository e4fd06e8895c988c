//! Values in F32, rounded to the type of the output in registers.

#[cfg(target_arch = "x86_64")]
use half::f16;
#[cfg(target_arch = "x86_64")]
use zerocopy::{FromBytes, IntoBytes};

use super::InMemory;
#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512, LANES};
use crate::element::Element;

/// How a body that is generic over levels rounds values, where it does not leave that to [`dispatch`](super::dispatch).
pub(crate) trait Narrow: Copy {
    /// The values rounded as by [`Element::from_f32`]. None of them is NaN, unless `HAS_NAN`.
    #[inline(always)]
    fn narrow<E: Element, const HAS_NAN: bool, const N: usize>(self, values: [f32; N]) -> [E; N] {
        let mut out = [E::from_f32(0.0); N];
        E::store(&values, &mut out);
        out
    }
}

impl Narrow for InMemory {}

#[cfg(target_arch = "x86_64")]
impl Narrow for Avx2 {
    #[inline(always)]
    fn narrow<E: Element, const HAS_NAN: bool, const N: usize>(self, values: [f32; N]) -> [E; N] {
        let mut out = [E::from_f32(0.0); N];
        if E::MANTISSA != f16::MANTISSA {
            E::store(&values, &mut out);
            return out;
        }
        let (chunks, rest) = values.as_chunks::<LANES>();
        let (halves, last) = out.as_chunks_mut::<LANES>();
        for (&values, halves) in chunks.iter().zip(halves) {
            let rounded = self.halves(values, HAS_NAN);
            if let Ok(rounded) = FromBytes::read_from_bytes(rounded.as_bytes()) {
                *halves = rounded;
            }
        }
        E::store(rest, last);
        out
    }
}

#[cfg(target_arch = "x86_64")]
impl Narrow for Avx512 {
    #[inline(always)]
    fn narrow<E: Element, const HAS_NAN: bool, const N: usize>(self, values: [f32; N]) -> [E; N] {
        Avx2::of(self).narrow::<E, HAS_NAN, N>(values)
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::simd::{Level, Routine, perform};

    /// Ten values: those of a register, and two behind it.
    struct Rounded<E> {
        values: [f32; 10],
        out: [[E; 10]; 2],
    }

    impl<E: Element> Rounded<E> {
        #[inline(always)]
        fn narrow(&mut self, unit: impl Narrow) {
            self.out = [
                unit.narrow::<E, true, 10>(self.values),
                unit.narrow::<E, false, 10>(self.values.map(|x| if x.is_nan() { 1.0 } else { x })),
            ];
        }
    }

    impl<E: Element> Routine for Rounded<E> {
        const HAS_AVX512: bool = true;

        fn run(&mut self) {
            self.narrow(InMemory);
        }

        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        fn run_avx2(&mut self, avx2: Avx2) {
            self.narrow(avx2);
        }

        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        fn run_avx512(&mut self, avx512: Avx512) {
            self.narrow(avx512);
        }
    }

    fn check<E: Element + PartialEq + std::fmt::Debug>(values: [f32; 10], bits: fn(E) -> u32) {
        for level in Level::available() {
            let mut routine = Rounded {
                values,
                out: [[E::from_f32(0.0); 10]; 2],
            };
            perform(level, &mut routine);
            for (i, &x) in values.iter().enumerate() {
                let [any, number] = routine.out.map(|out| bits(out[i]));
                assert_eq!(any, bits(E::from_f32(x)), "{level:?}, {x}");
                let want = if x.is_nan() { 1.0 } else { x };
                assert_eq!(number, bits(E::from_f32(want)), "{level:?}, {x}");
            }
        }
    }

    #[test]
    fn values_are_rounded_as_one_by_one() {
        let nan = f32::from_bits(0xffa1_2345);
        for values in [
            [
                0.0, -0.0, 1.0, -1.0, 65519.9, 65520.0, -1e30, 6e-8, 2.9e-8, nan,
            ],
            [
                nan,
                f32::NAN,
                f32::INFINITY,
                1e-40,
                2049.0,
                2051.0,
                0.1,
                -0.3,
                257.0,
                259.0,
            ],
        ] {
            check::<f32>(values, f32::to_bits);
            check::<f16>(values, |x| x.to_bits().into());
            check::<bf16>(values, |x| x.to_bits().into());
        }
    }
}
