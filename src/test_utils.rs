//! What unit tests share: where `tests/data` is, and how much of a test Miri runs.

use std::path::{Path, PathBuf};

/// The directory `tests/data`. The published package leaves most of it out: there, it says so and
/// returns `None`.
pub(crate) fn test_data() -> Option<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    // A file that every checkout has and `exclude` in `Cargo.toml` names, so that a missing case
    // still fails in a checkout.
    if data.join("README.md").exists() {
        return Some(data);
    }
    eprintln!("skipped: tests/data is not in the package");
    None
}

/// A count, a step or a size of a test: `all`, but `few` under Miri, which takes about a thousand
/// times as long.
pub(crate) const fn miri_or<T: Copy>(few: T, all: T) -> T {
    if cfg!(miri) { few } else { all }
}
