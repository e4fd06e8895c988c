//! A clock that a busy machine does not advance, for limits on time, in unit tests and, by this path,
//! in the test programs.

use std::time::Duration;

/// The CPU time that this thread has taken. Where no system call tells it, the time since the first
/// call.
#[cfg(all(target_os = "linux", not(miri)))]
pub fn cpu_time() -> Duration {
    nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID
        .now()
        .unwrap()
        .into()
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub fn cpu_time() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}
