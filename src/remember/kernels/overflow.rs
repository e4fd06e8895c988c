//! Values that are finite in F32 and infinite in F16.

use half::f16;

use crate::simd::{Level, Routine, perform, zip};

struct FindInfinite<'a> {
    halves: &'a [f16],
    found: bool,
}

impl Routine for FindInfinite<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        let mut found = false;
        for x in self.halves {
            found |= x.to_bits() & 0x7fff == 0x7c00;
        }
        self.found = found;
    }
}

/// Whether one of `halves` is infinite.
pub(crate) fn has_infinite(halves: &[f16], level: Level) -> bool {
    let mut find = FindInfinite { halves, found: false };
    perform(level, &mut find);
    find.found
}

/// The largest magnitude among the finite `values` that are infinite in `halves`; 0 if there is
/// none. With `saturates` these halves become the largest finite value of their sign.
pub(crate) fn limit_overflow(values: &[f32], halves: &mut [f16], saturates: bool) -> f32 {
    let mut largest = 0.0f32;
    for (x, half) in zip(values.iter(), halves) {
        if half.is_infinite() && x.is_finite() {
            largest = largest.max(x.abs());
            if saturates {
                *half = f16::MAX.copysign(*half);
            }
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_infinite_half_is_found_at_every_level() {
        for len in [1, 31, 64, 1000] {
            let mut halves = vec![f16::MAX; len];
            halves[0] = f16::NAN;
            for level in Level::available() {
                assert!(!has_infinite(&halves, level));
                for (i, x) in [(0, f16::INFINITY), (len - 1, f16::NEG_INFINITY)] {
                    let mut halves = halves.clone();
                    halves[i] = x;
                    assert!(has_infinite(&halves, level), "{i} of {len} at {level:?}");
                }
            }
        }
    }

    #[test]
    fn only_finite_values_saturate() {
        let values = [1.0, 65519.0, 65520.0, -7e8, f32::INFINITY, f32::NAN];
        let plain = values.map(f16::from_f32);
        let mut halves = plain;
        assert_eq!(limit_overflow(&values, &mut halves, false), 7e8);
        assert_eq!(halves[..5], plain[..5], "without saturation nothing is changed");
        assert_eq!(limit_overflow(&values, &mut halves, true), 7e8);
        let expected = [1.0, 65504.0, 65504.0, -65504.0, f32::INFINITY];
        assert_eq!(halves[..5], expected.map(f16::from_f32));
        assert!(halves[5].is_nan());
        assert_eq!(
            limit_overflow(&values[..2], &mut halves, true),
            0.0,
            "65519 is rounded to the largest"
        );
    }
}
