//! Peaks of the heap, counted by the allocator.

use std::alloc::System;
use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};

use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait};

#[global_allocator]
static ALLOCATOR: PeakMemAlloc<System> = PeakMemAlloc::system();

/// The right to measure. The allocator has one count for all threads of the process, so only one
/// test may hold it, and a test must take it before it allocates anything.
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
    /// and its result. What `run` frees of earlier blocks would hide as many bytes, so it borrows
    /// what it needs.
    pub fn peak<T>(&self, run: impl FnOnce() -> T) -> (usize, T) {
        ALLOCATOR.reset_peak_memory();
        let result = run();
        (ALLOCATOR.get_peak_memory(), result)
    }
}
