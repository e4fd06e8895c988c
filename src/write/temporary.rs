//! Files under temporary names that a panic must not leave behind. The program is compiled without
//! unwinding, which makes it an eighth smaller, and then no `Drop` runs after a panic: so temporary
//! files are known here, and the panic hook of the program removes them.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// What removes a temporary file.
type Removal = Box<dyn FnOnce() + Send>;

static ALL: Mutex<Temporaries> = Mutex::new(Temporaries { next: 0, removals: Vec::new() });

/// The temporary files of this process, each with its number.
struct Temporaries {
    next: u64,
    removals: Vec<(u64, Removal)>,
}

/// The creation of a temporary file. No panic hook runs meanwhile, so that none misses it.
pub(crate) struct Creation(MutexGuard<'static, Temporaries>);

impl Creation {
    pub(crate) fn begin() -> Self {
        Self(ALL.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// After the file was created. `remove` removes it if it still has its temporary name.
    pub(crate) fn end(mut self, remove: impl FnOnce() + Send + 'static) -> Temporary {
        let number = self.0.next;
        self.0.next += 1;
        self.0.removals.push((number, Box::new(remove)));
        Temporary(number)
    }
}

/// A temporary file that is removed after a panic, until this is dropped.
pub(crate) struct Temporary(u64);

impl fmt::Debug for Temporary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Temporary({})", self.0)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all
            .removals
            .iter()
            .position(|(number, _)| *number == self.0);
        let removal = at.map(|at| all.removals.swap_remove(at));
        // What the removal owns may own a temporary file, too.
        drop(all);
        drop(removal);
    }
}

/// Exit code of a process that has panicked, as that of a Rust program with unwinding.
const PANICKED: i32 = 101;

/// Makes a panic of any thread end the process, after the usual message. All temporary files are
/// removed before.
pub(crate) fn end_process_at_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        // It stays locked, so that the other threads, which go on until the end, create no file.
        let mut all = lock_after_panic();
        let removals = all.as_mut().map(|all| std::mem::take(&mut all.removals));
        for (_, remove) in removals.unwrap_or_default() {
            remove();
        }
        std::process::exit(PANICKED)
    }));
}

/// `None` if the thread that panics holds the lock itself.
fn lock_after_panic() -> Option<MutexGuard<'static, Temporaries>> {
    for _ in 0..1000 {
        match ALL.try_lock() {
            Ok(all) => return Some(all),
            Err(TryLockError::Poisoned(all)) => return Some(all.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::source::inputs::Inputs;
    use crate::write::atomic::{OutputFile, OutputPlace};

    /// In the process that panics: the directory of its outputs.
    const DIRECTORY: &str = "ANAMNESIS_TEST_PANIC";

    /// A worker panics while one output is written and another has its name: only the latter is
    /// there after the process.
    #[test]
    fn a_panic_leaves_no_temporary_file() {
        if let Some(directory) = std::env::var_os(DIRECTORY) {
            return write_and_panic(directory.as_ref());
        }
        let directory = tempfile::tempdir().unwrap();
        let name = "write::temporary::tests::a_panic_leaves_no_temporary_file";
        let run = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--test-threads=1", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .output()
            .unwrap();
        let found: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!((run.status.code(), found), (Some(PANICKED), vec!["named".into()]));
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(said.contains("a worker panics"), "{said}");
    }

    fn write_and_panic(directory: &std::path::Path) {
        end_process_at_panic();
        let inputs = Inputs::default();
        let place = OutputPlace { force: false, inputs: &inputs, space: 2, is_uncached: false };
        let create = |name| OutputFile::create(&directory.join(name), 1, &place).unwrap();
        create("dropped");
        create("named").commit().unwrap();
        let written = create("written");
        assert_eq!(fs::read_dir(directory).unwrap().count(), 2);
        std::thread::scope(|scope| {
            scope.spawn(|| panic!("a worker panics"));
        });
        drop(written);
    }
}
