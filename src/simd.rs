//! CPU levels, detected once, and the entry to kernels.
//!
//! Kernels are plain Rust that LLVM vectorises. [`dispatch`] and [`perform`] compile a kernel's
//! body once for the baseline and once for AVX2, and pick one at run time. The pick is made once
//! for a slab or a tile, never for a value.
//!
//! Each copy costs every build of the crate, so there are no others by default. A decoder is
//! compiled for values in F32, which one loop for all decoders rounds. Constants ask for more:
//! [`Kernel::ROUNDS_ON_THE_WAY`] for copies for BF16 and F16, where the bits depend on them, and
//! `HAS_AVX512` for one for AVX-512, where a bench shows that a whole run gains (docs/benchmarks.md,
//! "Copies of kernels").
//!
//! **Rule for authors of kernels.** A function marked `#[target_feature]` has its instruction set
//! only for what is inlined into it. So a kernel's `run` and everything that it calls is
//! `#[inline(always)]`: a call that stays a call runs code of the baseline, and splits the loop
//! around it. That goes for closures as well, which are passed by value and not by reference, and for
//! functions of the standard library that are generic and not `#[inline]`: `inlined` has what stands
//! in for `Iterator::zip`, `copy_from_slice`, `as_flattened`, `array::from_fn` and `array::map`.
//! `for_each` on long chains of iterators may stay a call, a `for` loop does not. Nothing else mends
//! it: releases are built without optimisation over units.
//!
//! The instructions that LLVM does not make of plain Rust are look-ups in a register
//! ([`Avx2::table`], [`LookUp`], [`Ranks`]) and moves within one ([`Transpose`], [`Butterflies`]). A
//! kernel that gains from them has a body of its own for AVX2 (`run_avx2`) and the same twin in the
//! tests as the other body.
//!
//! All levels give the same bits, except for the sign and the payload of a NaN that comes of two
//! NaN or infinite operands. The level of AVX2 has FMA, and LLVM fuses nothing by itself: a kernel
//! writes `mul_add` in its body for AVX2 where the product is exact, or where the library rounds a
//! product and a sum once.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod butterflies;
mod inlined;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg_attr(not(feature = "bnb"), allow(dead_code))]
mod ranks;
mod registers;

use std::cell::RefCell;
use std::sync::OnceLock;

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
pub(crate) use self::avx2::{Avx2, NibbleTable};
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(feature = "bnb"), allow(unused_imports))]
pub(crate) use self::avx512::Avx512;
pub(crate) use self::butterflies::{BUTTERFLY_VALUES, Butterflies, butterflies};
pub(crate) use self::inlined::{Flat, Side, copy, from_fn, zip};
#[cfg_attr(not(feature = "bnb"), allow(unused_imports))]
pub(crate) use self::ranks::{Bounds, RANKED_VALUES, Ranks};
#[cfg_attr(not(feature = "lethe"), allow(unused_imports))]
pub(crate) use self::registers::{
    CODES_PER_LOOK_UP, CODES_PER_SUM, InMemory, LINE, LookUp, PackedCodes, Transpose,
};
#[cfg(target_arch = "x86_64")]
use self::registers::{LeastOfLanes, Word};
use crate::element::{Element, Out};
use crate::features::{Gated, gated};

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every CPU of the target architecture has (SSE2, NEON).
    Baseline,
    /// AVX2 with BMI2, F16C and FMA on x86-64, as every CPU since Haswell and Excavator has them.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    Avx2,
    /// AVX-512 (F, BW, DQ, VL) on x86-64, for the kernels that gain from it.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    Avx512,
}

impl Level {
    /// The best level of this CPU, or in builds with debug assertions that of `ANAMNESIS_LEVEL`, if it is
    /// lower: so two levels of one program are compared.
    #[must_use]
    pub fn detect() -> Self {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Self::of_cpu().min(Self::allowed()))
    }

    fn of_cpu() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("fma");
            let has_avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if has_avx2 {
                return if has_avx512 { Self::Avx512 } else { Self::Avx2 };
            }
        }
        Self::Baseline
    }

    #[cfg(not(debug_assertions))]
    fn allowed() -> Self {
        Self::Avx512
    }

    #[cfg(debug_assertions)]
    fn allowed() -> Self {
        match std::env::var("ANAMNESIS_LEVEL").as_deref() {
            Ok("baseline") => Self::Baseline,
            Ok("avx2") => Self::Avx2,
            other => {
                assert!(other.is_err(), "ANAMNESIS_LEVEL is neither `baseline` nor `avx2`");
                Self::Avx512
            }
        }
    }

    /// Every level that this CPU can run, lowest first. Of three, tests outside the gate try the lowest
    /// and the highest, at which most kernels run what they have for the second.
    #[cfg(any(test, feature = "benchmarks"))]
    #[must_use]
    pub fn available() -> Vec<Self> {
        #[cfg(not(test))]
        let is_tried = |_: Self| true;
        #[cfg(test)]
        let is_tried = |level: Self| {
            crate::test_utils::effort([false, true, true])
                || [Self::Baseline, Self::detect()].contains(&level)
        };
        [Self::Baseline, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(|&level| level <= Self::detect() && is_tried(level))
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
/// `run` and everything that it calls must be `#[inline(always)]`, so that the body is compiled
/// with the instruction set of its caller.
pub(crate) trait Kernel {
    /// Whether the body has a copy for AVX-512. LLVM makes some loops half as fast again with it,
    /// and others slower, so the benches decide.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const HAS_AVX512: bool = false;

    /// Whether some bodies round something else than the values to the output's type on the way,
    /// make more than values, or look up rounded values. All others are compiled for F32 alone, and
    /// one loop for all kernels rounds their values.
    const ROUNDS_ON_THE_WAY: bool = false;

    /// Whether the body is compiled for BF16 as well, though it rounds last: it is small, and its
    /// values are in registers.
    const FUSES_BF16: bool = false;

    /// Decodes into `out`, whose length the kernel's own fields imply.
    fn run<E: Element>(&self, out: &mut [E]);

    /// Whether the copy for AVX-512 is the faster one for this input. It is asked of kernels that
    /// have one.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fn gains_from_avx512(&self) -> bool {
        true
    }

    /// Whether this body makes values in F32 and does nothing but round them, so that halves can be
    /// rounded last: by an instruction, where the CPU has it. It is asked of kernels that round on
    /// the way.
    fn is_rounded_last(&self) -> bool {
        true
    }

    /// The body at [`Level::Avx2`], for kernels with a step that LLVM does not vectorise. It gives
    /// the bits of [`run`](Self::run).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], _: Avx2) {
        self.run(out);
    }

    /// The body at [`Level::Avx512`], of kernels that have a copy for it. It gives the bits of
    /// [`run`](Self::run).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512<E: Element>(&self, out: &mut [E], _: Avx512) {
        self.run(out);
    }
}

/// An inner loop whose slices of input and output are fields: of encoders and comparisons, and of a
/// decoder that appends.
///
/// `run` and everything that it calls must be `#[inline(always)]`, so that the body is compiled
/// with the instruction set of its caller.
pub(crate) trait Routine {
    /// Whether it is a part of decoding, which a build without [`KERNELS`] leaves out.
    const DECODES: bool = false;

    /// Whether the body has a copy for AVX-512, as [`Kernel::HAS_AVX512`] says of kernels.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const HAS_AVX512: bool = false;

    /// Computes all results and writes them to the fields.
    fn run(&mut self);

    /// The body at [`Level::Avx2`], as that of [`Kernel::run_avx2`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, _: Avx2) {
        self.run();
    }

    /// The body at [`Level::Avx512`], of routines that have a copy for it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512(&mut self, _: Avx512) {
        self.run();
    }
}

/// What begins with a line of the cache. A load of 64 bytes from elsewhere takes two lines, so that
/// loops over an array on the stack take up to twice as long wherever the compiler happens to put
/// it.
#[cfg_attr(not(feature = "lethe"), allow(dead_code))]
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Aligned<T>(pub(crate) T);

/// Sums that are computed side by side, one in each lane.
pub(crate) const LANES: usize = 8;

/// Whether kernels are built in. Without them [`dispatch`] does nothing, nor does [`perform`] for
/// routines that decode, so that none is compiled: whoever decodes asks first, as
/// [`Decode::load`](crate::remember::Decode::load) does.
pub(crate) const KERNELS: Gated<()> = gated!(any(feature = "remember", test), "remember", ());

/// Runs `routine` at `level`, or at the best level of this CPU if that is lower.
pub(crate) fn perform<R: Routine>(level: Level, routine: &mut R) {
    if R::DECODES && KERNELS.built_in().is_none() {
        return;
    }
    match level.min(Level::detect()) {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if R::HAS_AVX512 => avx512::perform(routine),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => avx2::perform(routine),
        _ => routine.run(),
    }
}

/// Runs `kernel` at `level`, or at the best level of this CPU if that is lower, into a typed
/// destination.
pub(crate) fn dispatch<K: Kernel>(level: Level, kernel: &K, out: Out<'_>) {
    if KERNELS.built_in().is_none() {
        return;
    }
    match out {
        Out::F32(out) => enter(level, kernel, out),
        // Constants first: what they rule out is not compiled.
        Out::F16(out) if K::ROUNDS_ON_THE_WAY && !kernel.is_rounded_last() => {
            enter(level, kernel, out);
        }
        Out::Bf16(out) if K::ROUNDS_ON_THE_WAY || K::FUSES_BF16 => enter(level, kernel, out),
        Out::F16(out) => round_last(level, kernel, round_to_f16, out),
        Out::Bf16(out) => round_last(level, kernel, round_to_bf16, out),
    }
}

thread_local! {
    /// Values before they are rounded.
    static WIDE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Decodes to F32, and rounds all values then.
fn round_last<E>(
    level: Level,
    kernel: &impl Kernel,
    round: fn(Level, &[f32], &mut [E]),
    out: &mut [E],
) {
    // A kernel does not run another one, so nobody else has it.
    let mut wide = WIDE.take();
    if wide.len() < out.len() {
        wide.resize(out.len(), 0.0);
    }
    let values = &mut wide[..out.len()];
    enter(level, kernel, values);
    round(level, values, out);
    WIDE.set(wide);
}

/// Rounds to nearest even: the bits of `from_f32`. That takes ten operations in plain Rust, and one
/// instruction of F16C or NEON.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn round_to_f16(level: Level, values: &[f32], out: &mut [f16]) {
    #[cfg(target_arch = "x86_64")]
    if level.min(Level::detect()) >= Level::Avx2 {
        return avx2::halves(values, out);
    }
    #[cfg(target_arch = "aarch64")]
    neon::halves(values, out);
    #[cfg(not(target_arch = "aarch64"))]
    Element::store(values, out);
}

fn round_to_bf16(level: Level, values: &[f32], out: &mut [bf16]) {
    perform(level, &mut RoundToBf16 { values, out });
}

struct RoundToBf16<'a> {
    values: &'a [f32],
    out: &'a mut [bf16],
}

impl Routine for RoundToBf16<'_> {
    #[inline(always)]
    fn run(&mut self) {
        Element::store(self.values, self.out);
    }
}

fn enter<K: Kernel, E: Element>(level: Level, kernel: &K, out: &mut [E]) {
    match level.min(Level::detect()) {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if K::HAS_AVX512 && kernel.gains_from_avx512() => {
            avx512::enter(kernel, out);
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => avx2::enter(kernel, out),
        _ => kernel.run(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_utils::miri_or;

    /// Values as they are.
    struct Values<'a>(&'a [f32]);

    impl Kernel for Values<'_> {
        fn run<E: Element>(&self, out: &mut [E]) {
            E::store(self.0, out);
        }
    }

    /// Every F32 whose low half is one of the values that decide a rounding, at every level.
    #[test]
    fn halves_are_the_same_at_every_level() {
        let lows =
            [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff];
        let highs = (0..=u16::MAX).step_by(miri_or(509, 1));
        let all = highs.flat_map(|high| lows.map(|low: u32| u32::from(high) << 16 | low));
        let all: Vec<f32> = all.map(f32::from_bits).collect();
        for values in all.chunks(10_007) {
            let want: Vec<u16> = values
                .iter()
                .map(|&x| <f16 as Element>::from_f32(x).to_bits())
                .collect();
            for level in Level::available() {
                let mut out = vec![f16::from_bits(0); values.len()];
                dispatch(level, &Values(values), Out::F16(&mut out));
                let out: Vec<u16> = out.into_iter().map(f16::to_bits).collect();
                assert!(out == want, "{level:?} from {:?}", values.first());
            }
        }
    }
}
