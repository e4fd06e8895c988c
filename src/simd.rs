//! CPU levels, detected once. Kernels are plain Rust that LLVM vectorises; entering one through
//! [`dispatch`] compiles its body once more for each level and output type, and picks at run time.

use std::sync::OnceLock;

use crate::element::{Element, Out};

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every CPU of the target architecture has (SSE2, NEON).
    Baseline,
    /// AVX2 with BMI2 on x86-64.
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
/// `run` and everything it calls must be `#[inline(always)]`, so that the body is compiled with the
/// instruction set of its caller. The library's combinators on arrays (`map`, `from_fn`) are not.
pub(crate) trait Kernel {
    /// Decodes into `out`, whose length the kernel's own fields imply.
    fn run<E: Element>(&self, out: &mut [E]);
}

/// An encoder's inner loop. `run` and everything it calls must be `#[inline(always)]`, as a [`Kernel`]'s.
#[cfg(feature = "lethe")]
pub(crate) trait Routine {
    /// Does all of it; results go where the fields say.
    fn run(&mut self);
}

/// Runs `routine` at `level`.
#[cfg(feature = "lethe")]
pub(crate) fn perform(level: Level, routine: &mut impl Routine) {
    match level.min(Level::detect()) {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::perform(routine),
        _ => routine.run(),
    }
}

/// Runs `kernel` at `level` into a typed destination.
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
mod avx2 {
    #[cfg(feature = "lethe")]
    use super::Routine;
    use super::{Element, Kernel};

    #[target_feature(enable = "avx2,bmi2")]
    fn run<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
        kernel.run(out);
    }

    #[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
    pub(super) fn enter<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
        // SAFETY: `Level::detect` found AVX2 and BMI2 on this CPU, and `super::enter` never exceeds it.
        unsafe { run(kernel, out) }
    }

    #[cfg(feature = "lethe")]
    #[target_feature(enable = "avx2,bmi2")]
    fn go(routine: &mut impl Routine) {
        routine.run();
    }

    #[cfg(feature = "lethe")]
    #[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
    pub(super) fn perform(routine: &mut impl Routine) {
        // SAFETY: as in `enter`.
        unsafe { go(routine) }
    }
}
