//! The limit on memory. The test program `hostile` has a module of the same name and interface,
//! which limits time instead.

use crate::profiler::Profiler;

/// Bytes of memory that a file may take, beside eight for each of its own.
const MEMORY: usize = 64 << 20;

/// Measures the heap of each run. While it lives, no other test of this program measures.
pub struct Monitor {
    profiler: Profiler,
    peak: (usize, String),
}

impl Monitor {
    /// Whether it limits time, and not memory.
    pub const LIMITS_TIME: bool = false;

    pub fn new() -> Self {
        Self { profiler: Profiler::new(), peak: (0, String::new()) }
    }

    /// Runs `f` once without a limit: time is measured in `hostile`.
    pub fn time<T>(&mut self, _: &str, f: impl FnOnce() -> T) -> (T, Option<String>) {
        (f(), None)
    }

    /// Runs `f`, and says what is wrong if it takes more memory than a file of `len` bytes may.
    pub fn heap<T>(
        &mut self,
        what: &str,
        len: usize,
        f: impl FnOnce() -> T,
    ) -> (T, Option<String>) {
        let (peak, result) = self.profiler.peak(f);
        if peak > self.peak.0 {
            self.peak = (peak, what.to_owned());
        }
        let wrong = || format!("{peak} bytes of memory for {len} of file");
        (result, (peak > MEMORY + 8 * len).then(wrong))
    }

    /// The highest peak, and the file that reached it.
    pub fn summary(&self) -> String {
        format!("{} bytes for `{:.60}`", self.peak.0, self.peak.1)
    }
}
