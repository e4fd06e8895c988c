//! Peaks of the heap, counted by the allocator.
#![allow(unsafe_code, reason = "an allocator has no safe interface")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that all threads have in use, and the most since the last measurement began.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts what it gives.
struct Counting;

/// Counts `given` bytes in place of `taken`, unless the system has refused the `block`.
fn counted(block: *mut u8, taken: usize, given: usize) -> *mut u8 {
    if !block.is_null() {
        IN_USE.fetch_sub(taken, Relaxed);
        PEAK.fetch_max(IN_USE.fetch_add(given, Relaxed) + given, Relaxed);
    }
    block
}

// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(unsafe { System.alloc(layout) }, 0, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        counted(unsafe { System.alloc_zeroed(layout) }, 0, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        counted(unsafe { System.realloc(block, layout, size) }, layout.size(), size)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(block, layout) }
    }
}

/// The right to measure. The allocator counts for all threads, so only one test may measure. A test
/// must take the right before it allocates anything, and keep it until everything is freed.
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
        // A limit on the heap proves nothing unless the allocations of every thread are counted. A test
        // that waits, or has ended, frees little.
        let allocate = || std::thread::scope(|s| s.spawn(|| vec![0u8; 1 << 20]).join().unwrap());
        let (peak, _) = profiler.peak(|| black_box(allocate()));
        assert!(peak >= 1 << 19, "{peak} bytes counted");
        profiler
    }

    /// The most bytes that all threads have in use at once beyond those of before, while `run`
    /// runs, and its result.
    pub fn peak<T>(&self, run: impl FnOnce() -> T) -> (usize, T) {
        let before = IN_USE.load(Relaxed);
        PEAK.store(before, Relaxed);
        let result = run();
        (PEAK.load(Relaxed) - before, result)
    }
}
