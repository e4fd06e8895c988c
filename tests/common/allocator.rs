//! A global allocator that counts the bytes in use, of each thread and of the whole process. A test program that asks for
//! a peak must install it: `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

/// The system's allocator, which also counts.
pub struct CountingAllocator;

/// Bytes in use by the process, and the most since [`peak_of_process`] began.
static PROCESS: (AtomicIsize, AtomicIsize) = (AtomicIsize::new(0), AtomicIsize::new(0));

thread_local! {
    /// Bytes that the thread allocated less those that it freed, and the most since [`peak_of_thread`] began. Neither needs
    /// an initialisation or a destructor, either of which could allocate inside the allocator.
    static THREAD: (Cell<isize>, Cell<isize>) = const { (Cell::new(0), Cell::new(0)) };
}

fn count(bytes: isize) {
    THREAD.with(|(used, peak)| {
        used.set(used.get() + bytes);
        peak.set(peak.get().max(used.get()));
    });
    let used = PROCESS.0.fetch_add(bytes, Relaxed) + bytes;
    if bytes > 0 {
        PROCESS.1.fetch_max(used, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with the caller's arguments; counting neither allocates nor unwinds.
#[expect(unsafe_code)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(block, layout) }
    }
}

/// The most bytes that this thread has in use while `run` runs, above those at its start, and the result of `run`.
pub fn peak_of_thread<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = THREAD.with(|(used, peak)| {
        peak.set(used.get());
        used.get()
    });
    let result = run();
    let peak = THREAD.with(|(_, peak)| peak.get());
    (usize::try_from(peak - before).unwrap_or(0), result)
}

/// The most bytes that all threads have in use while `run` runs, above those at its start, and the result of `run`. The
/// process must do nothing else meanwhile.
pub fn peak_of_process<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = PROCESS.0.load(Relaxed);
    PROCESS.1.store(before, Relaxed);
    let result = run();
    let peak = PROCESS.1.load(Relaxed);
    (usize::try_from(peak - before).unwrap_or(0), result)
}
