//! Slabs: what the functions for single tensors compute at once, and the threads that do so.

use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::threads::on_threads;

/// Values of a slab. Its floats in F32 and its output stay in the second-level cache.
pub(crate) const SLAB_VALUES: usize = 64 << 10;

/// Values for each thread at least. They take some 300 µs, and starting a thread takes 30 µs and,
/// on a busy machine, longer.
const VALUES_PER_THREAD: usize = 1 << 20;

/// The number of values in a slab that consists of whole units, such as rows or blocks, of a tensor
/// of `n` values.
pub(crate) fn slab_of(unit: usize, n: usize) -> usize {
    // One unit that is larger than the tensor is all of it. Two values share a byte, so it stays
    // even.
    let unit = unit.clamp(1, n.next_multiple_of(2).max(2));
    (SLAB_VALUES / unit).max(1) * unit
}

/// The most threads that `values` values are worth.
fn threads_of(values: usize) -> usize {
    values / VALUES_PER_THREAD
}

/// Whether the calling thread computes all of `values` values.
pub(crate) fn is_serial(values: usize) -> bool {
    threads_of(values) <= 1
}

/// Passes each of `slabs`, which have `values` values in all, to `work`: on the calling thread, and
/// on others if there is enough to do.
pub(crate) fn for_each_slab<T: Send>(
    values: usize,
    slabs: impl Iterator<Item = T> + Send,
    work: impl Fn(T) + Sync,
) {
    if is_serial(values) {
        return slabs.for_each(work);
    }
    let queue = Mutex::new(slabs);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work_all = |_| {
        while let Some(slab) = next() {
            work(slab);
        }
    };
    let threads = threads_of(values).min(thread::available_parallelism().map_or(1, usize::from));
    on_threads(threads, work_all);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_whole_units() {
        for n in [0, 1, 2, 63, 64, 1 << 20] {
            for unit in [1, 2, 48, 64, 100_000, usize::MAX - 1] {
                let slab = slab_of(unit, n);
                assert!(slab > 0 && (slab >= n || slab.is_multiple_of(unit)), "{unit} of {n}");
            }
        }
    }

    /// Threads take every slab, and each once.
    #[test]
    fn every_slab_once() {
        let mut all = vec![0u8; 4 * VALUES_PER_THREAD + 7];
        let n = all.len();
        for_each_slab(n, all.chunks_mut(SLAB_VALUES), |slab| {
            slab.iter_mut().for_each(|x| *x += 1);
        });
        assert!(all.iter().all(|&x| x == 1));
    }
}
