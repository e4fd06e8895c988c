//! Floats rounded to a type of a smaller range. Finite values that it cannot hold are found, or
//! become its largest finite value.
//!
//! torch's `.to()` rounds F64 to F32 first, and F32 to the type (`c10::Half` and `c10::BFloat16`
//! are made of `float`). So does this kernel: a file that torch would have written has the same
//! bits.

use std::cell::Cell;

use half::{bf16, f16};

use crate::TargetDtype;
use crate::element::Element;
use crate::simd::{Kernel, Side, zip};

/// Values to be cast.
#[derive(Clone, Copy)]
pub(crate) enum CastValues<'a> {
    F32(&'a [f32]),
    /// The little-endian bytes of F64.
    F64(&'a [u8]),
}

/// Rounds values to the output's type, to nearest even. NaN and infinities stay what they are.
pub(crate) struct Cast<'a> {
    values: CastValues<'a>,
    saturates: bool,
    has_overflow: Cell<bool>,
}

impl<'a> Cast<'a> {
    /// Finite values beyond the range become the largest finite value if `saturates`, else
    /// infinity.
    pub(crate) fn new(values: CastValues<'a>, saturates: bool) -> Self {
        Self { values, saturates, has_overflow: Cell::new(false) }
    }

    /// Whether a finite value became infinite when the kernel ran.
    pub(crate) fn has_overflow(&self) -> bool {
        self.has_overflow.get()
    }
}

/// The largest finite value of `target`.
pub(crate) const fn largest(target: TargetDtype) -> f32 {
    match target {
        TargetDtype::F32 => f32::LARGEST,
        TargetDtype::BF16 => bf16::LARGEST,
        TargetDtype::F16 => f16::LARGEST,
    }
}

impl CastValues<'_> {
    /// Index and value of the first finite value that is infinite in `target`.
    pub(crate) fn first_overflow(self, target: TargetDtype) -> Option<(usize, f64)> {
        let overflows = |x: f64| {
            let single = x as f32;
            let rounded = match target {
                TargetDtype::F32 => single,
                TargetDtype::BF16 => <bf16 as Element>::rounded(single),
                TargetDtype::F16 => <f16 as Element>::rounded(single),
            };
            x.is_finite() && rounded.is_infinite()
        };
        match self {
            Self::F32(values) => {
                let mut wide = values.iter().map(|&x| f64::from(x)).enumerate();
                wide.find(|&(_, x)| overflows(x))
            }
            Self::F64(bytes) => doubles(bytes).enumerate().find(|&(_, x)| overflows(x)),
        }
    }
}

#[inline(always)]
fn doubles(bytes: &[u8]) -> impl Iterator<Item = f64> + Side<Item = f64> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| f64::from_le_bytes(bytes))
}

/// Whether `x` is finite and infinite as an `E`.
#[inline(always)]
fn overflows<E: Element>(x: f32) -> bool {
    const INFINITE: u32 = f32::INFINITY.to_bits();
    // Half of the last place beyond the largest value: from there on values are rounded to
    // infinity. F32 has no such place.
    let half = ((1 << (f32::MANTISSA - E::MANTISSA)) / 2).max(1);
    let first = E::LARGEST.to_bits() + half;
    x.abs().to_bits().wrapping_sub(first) < INFINITE - first
}

impl Kernel for Cast<'_> {
    const ROUNDS_ON_THE_WAY: bool = true;

    fn is_rounded_last(&self) -> bool {
        false
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        // One loop for each case, without branches in it. The flag is gathered with `|`, which LLVM
        // keeps in a register.
        let mut overflow = false;
        match (self.values, self.saturates) {
            (CastValues::F32(values), false) => {
                for (o, &x) in zip(&mut out[..], values) {
                    *o = E::from_f32(x);
                    overflow |= overflows::<E>(x);
                }
            }
            (CastValues::F32(values), true) => {
                for (o, &x) in zip(&mut out[..], values) {
                    // `clamp` leaves NaN alone.
                    let clamped = x.clamp(-E::LARGEST, E::LARGEST);
                    *o = E::from_f32(if x.is_infinite() { x } else { clamped });
                }
            }
            (CastValues::F64(bytes), false) => {
                for (o, x) in zip(&mut out[..], doubles(bytes)) {
                    *o = E::from_f32(x as f32);
                    overflow |= o.to_f32().is_infinite() & x.is_finite();
                }
            }
            (CastValues::F64(bytes), true) => {
                let largest = f64::from(E::LARGEST);
                for (o, x) in zip(&mut out[..], doubles(bytes)) {
                    let clamped = x.clamp(-largest, largest);
                    *o = E::from_f32((if x.is_infinite() { x } else { clamped }) as f32);
                }
            }
        }
        self.has_overflow.set(overflow);
    }
}
