//! Work that any number of threads may share.

use std::thread;

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
