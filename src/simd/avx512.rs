//! What kernels have at [`Level::Avx512`](super::Level::Avx512).

use super::{Element, Kernel, Routine};

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi2")]
fn run_kernel<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
    kernel.run(out);
}

#[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
pub(super) fn enter<K: Kernel, E: Element>(kernel: &K, out: &mut [E]) {
    // SAFETY: `Level::detect` found these features on this CPU, and `super::enter` never exceeds it.
    unsafe { run_kernel(kernel, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi2")]
fn run_routine(routine: &mut impl Routine) {
    routine.run();
}

#[expect(unsafe_code, reason = "calling a function compiled for a CPU feature")]
pub(super) fn perform(routine: &mut impl Routine) {
    // SAFETY: `Level::detect` found these features on this CPU, and `super::perform` never exceeds it.
    unsafe { run_routine(routine) }
}
