//! Work that any number of threads may share.

#[cfg(feature = "lethe")]
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "lethe")]
use std::sync::{Mutex, PoisonError};
use std::thread;

#[cfg(feature = "lethe")]
use crate::Result;

/// Calls `work` on `threads` threads at once, each with its number; the calling thread is number 0.
/// It shares out what is to be done by itself: threads that cannot be started are done without.
pub(crate) fn on_threads(threads: usize, work: impl Fn(usize) + Sync) {
    let work = &work;
    thread::scope(|scope| {
        for number in 1..threads {
            let thread = thread::Builder::new().name("anamnesis".to_owned());
            if thread.spawn_scoped(scope, move || work(number)).is_err() {
                break;
            }
        }
        work(0);
    });
}

/// What `work` makes of the numbers below `n`, in their order, on `threads` threads. Each has a value
/// of `S` of its own.
///
/// # Errors
/// The first that a single thread would have met.
#[cfg(feature = "lethe")]
pub(crate) fn map_numbers<T: Send, S: Default>(
    n: usize,
    threads: usize,
    work: impl Fn(usize, &mut S) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (next, made) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(n)));
    on_threads(threads.min(n), |_| {
        let mut own = S::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= n {
                return;
            }
            let found = work(number, &mut own);
            // Nothing behind what failed is begun; what is before it has been.
            if found.is_err() {
                next.store(n, Ordering::Relaxed);
            }
            let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
            made.push((number, found));
        }
    });
    let mut made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
    made.sort_unstable_by_key(|(number, _)| *number);
    made.into_iter().map(|(_, found)| found).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_caller_works_too() {
        for (threads, want) in [(0, vec![0]), (1, vec![0]), (3, vec![0, 1, 2])] {
            let numbers = Mutex::new(Vec::new());
            on_threads(threads, |number| numbers.lock().unwrap().push(number));
            let mut numbers = numbers.into_inner().unwrap();
            numbers.sort_unstable();
            assert_eq!(numbers, want);
        }
    }
}
