//! The limit on time. The test program `heap` has a module of the same name and interface, which
//! limits memory instead.

use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(2);

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

    /// Runs `f`, and says what is wrong if it takes longer than `TIME`. A slow run is repeated up
    /// to twice, because the machine may be busy.
    pub fn time<T>(&mut self, what: &str, mut f: impl FnMut() -> T) -> (T, Option<String>) {
        let mut run = || {
            let start = Instant::now();
            let result = f();
            (start.elapsed(), result)
        };
        let (mut time, mut result) = run();
        for _ in 0..2 {
            if time > TIME {
                (time, result) = run();
            }
        }
        if time > self.slowest.0 {
            self.slowest = (time, what.to_owned());
        }
        (result, (time > TIME).then(|| format!("{time:?}")))
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
