//! The limit on time. The test program `heap` has a module of the same name and interface, which
//! limits memory instead.

use std::time::{Duration, Instant};

use crate::common::cpu_time;

/// CPU time of the thread, in which almost all work is done.
const TIME: Duration = Duration::from_secs(2);

/// Time by the clock, for what other threads do, on a machine that is busy with other work.
const CLOCK: Duration = Duration::from_secs(60);

/// Measures the time of each run.
pub struct Monitor {
    slowest: (Duration, String),
}

impl Monitor {
    /// Whether it limits time, and not memory.
    pub const LIMITS_TIME: bool = true;

    pub fn new() -> Self {
        Self { slowest: (Duration::ZERO, String::new()) }
    }

    /// Runs `f`, and says what is wrong if it takes longer than `TIME` or `CLOCK`.
    pub fn time<T>(&mut self, what: &str, f: impl FnOnce() -> T) -> (T, Option<String>) {
        let (start, cpu_start) = (Instant::now(), cpu_time());
        let result = f();
        let (clock, time) = (start.elapsed(), cpu_time() - cpu_start);
        if time > self.slowest.0 {
            self.slowest = (time, what.to_owned());
        }
        let wrong = || format!("{time:?} of CPU time, {clock:?} by the clock");
        (result, (time > TIME || clock > CLOCK).then(wrong))
    }

    /// Runs `f` without a limit: memory is measured in `heap`.
    pub fn heap<T>(&mut self, _: &str, _: usize, f: impl FnOnce() -> T) -> (T, Option<String>) {
        (f(), None)
    }

    /// The longest time, and the file that took it.
    pub fn summary(&self) -> String {
        format!("{:?} for `{:.60}`", self.slowest.0, self.slowest.1)
    }
}
