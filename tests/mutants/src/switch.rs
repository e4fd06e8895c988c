//! Which mutant is awake, and which were reached.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static AWAKE: OnceLock<usize> = OnceLock::new();
static RECORD: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

/// Whether mutant `number` is the one that `MUTANT` names. `MUTANTS_REACHED` is the file to which the number of each mutant that
/// is reached is appended.
pub(crate) fn on(number: usize) -> bool {
    if !REACHED[number].load(Ordering::Relaxed) {
        reached(number);
    }
    *AWAKE.get_or_init(|| {
        let text = std::env::var("MUTANT").unwrap_or_default();
        text.parse().unwrap_or(usize::MAX)
    }) == number
}

#[cold]
fn reached(number: usize) {
    if REACHED[number].swap(true, Ordering::Relaxed) {
        return;
    }
    let Some(path) = RECORD.get_or_init(|| std::env::var_os("MUTANTS_REACHED")) else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    if let Ok(mut file) = file {
        _ = file.write_all(format!("{number}\n").as_bytes());
    }
}
