//! What unit tests share: where `tests/data` is, and how much of a test runs.

mod cpu_time;
mod effort;
#[cfg_attr(not(feature = "lethe"), allow(dead_code))]
mod tempdir;

use std::path::{Path, PathBuf};

pub(crate) use cpu_time::cpu_time;
pub(crate) use effort::effort;
#[cfg_attr(not(feature = "lethe"), allow(unused_imports))]
pub(crate) use tempdir::tempdir;

/// The directory `tests/data`, of which the published package has some. It is looked up when a test
/// runs: the gate runs the tests of the checkout on the files of the package.
pub(crate) fn packaged_data() -> PathBuf {
    let root = std::env::var_os("CARGO_MANIFEST_DIR");
    Path::new(
        root.as_deref()
            .unwrap_or(env!("CARGO_MANIFEST_DIR").as_ref()),
    )
    .join("tests/data")
}

/// The directory `tests/data` of a checkout. The published package leaves most of it out: there, it
/// says so and returns `None`.
pub(crate) fn test_data() -> Option<PathBuf> {
    let data = packaged_data();
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
