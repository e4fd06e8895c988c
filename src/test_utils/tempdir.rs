//! Where tests have their files, in unit tests and, by this path, in the test programs.

use std::path::Path;

use tempfile::TempDir;

use super::effort::effort;

/// A temporary directory. `cargo test` has it in memory if there is room, because thousands of small
/// files are made, synced and removed; the gate where the system has temporary files, on a disk.
pub fn tempdir() -> std::io::Result<TempDir> {
    match effort([in_memory(), None, None]) {
        Some(memory) => tempfile::tempdir_in(memory),
        None => tempfile::tempdir(),
    }
}

/// The system's directory in memory, if it has one with room, and nobody asks for another.
#[cfg(target_os = "linux")]
fn in_memory() -> Option<&'static Path> {
    const ENOUGH: u64 = 2 << 30;
    let memory = Path::new("/dev/shm");
    if std::env::var_os("TMPDIR").is_some() {
        return None;
    }
    let stat = rustix::fs::statvfs(memory).ok()?;
    (stat.f_bavail.saturating_mul(stat.f_frsize) >= ENOUGH).then_some(memory)
}

#[cfg(not(target_os = "linux"))]
fn in_memory() -> Option<&'static Path> {
    None
}
