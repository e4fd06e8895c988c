//! Peaks of the heap. The allocator keeps a sum and its maximum and no stacks, so that measuring takes next to no time.

use std::alloc::System;
use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};

use peakmem_alloc::{INSTRUMENTED_SYSTEM, PeakMemAlloc, PeakMemAllocTrait};

#[global_allocator]
static ALLOCATOR: &PeakMemAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The right to measure. The allocations of all threads are counted together, so only one test may hold it, and a test must take
/// it before it allocates anything.
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

    /// The most bytes that all threads have in use at once of what they allocate while `run` runs, and its result.
    pub fn peak<T>(&self, run: impl FnOnce() -> T) -> (usize, T) {
        ALLOCATOR.reset_peak_memory();
        let result = run();
        let peak = ALLOCATOR.get_peak_memory();
        // Memory from before the run would be subtracted if the run freed it, and the peak would be too low. What is in use now is
        // what an allocation above the peak adds to itself.
        let probe = peak + (1 << 20);
        drop(black_box(Vec::<u8>::with_capacity(probe)));
        let lost = probe.saturating_sub(ALLOCATOR.get_peak_memory());
        assert!(lost < 64 << 10, "{lost} bytes of older memory are freed");
        (peak, result)
    }
}
