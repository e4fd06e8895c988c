//! Where unit tests find `tests/data`.

use std::path::{Path, PathBuf};

/// The directory `tests/data`. The published package leaves most of it out: there, it says so and returns `None`.
pub(crate) fn test_data() -> Option<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    // A file that every checkout has and `exclude` in `Cargo.toml` names, so that a missing case still fails in a checkout.
    if data.join("README.md").exists() {
        return Some(data);
    }
    eprintln!("skipped: tests/data is not in the package");
    None
}
