//! Peaks of the heap, measured with dhat.

use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// The right to measure. dhat allows one profiler in a process and counts the allocations of all
/// threads, so only one test may hold it, and a test must take it before it allocates anything.
pub struct Profiler {
    _alone: MutexGuard<'static, ()>,
}

impl Profiler {
    /// Waits until no other test measures.
    pub fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let profiler = Self {
            // A test that fails while it measures must not fail the others.
            _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
        };
        // A limit on the heap proves nothing unless the allocations of every thread are counted.
        let allocate = || std::thread::scope(|s| s.spawn(|| vec![0u8; 1 << 20]).join().unwrap());
        let (peak, _) = profiler.peak(|| black_box(allocate()));
        assert!(peak >= 1 << 20, "{peak} bytes counted");
        profiler
    }

    /// The most bytes that all threads have in use at once of what they allocate while `run` runs,
    /// and its result.
    pub fn peak<T>(&self, run: impl FnOnce() -> T) -> (usize, T) {
        // dhat records the stack of each allocation. Nothing reads the stacks here, and short ones
        // take less time.
        let _profiler = dhat::Profiler::builder()
            .testing()
            .trim_backtraces(Some(4))
            .build();
        let result = run();
        (dhat::HeapStats::get().max_bytes, result)
    }
}
