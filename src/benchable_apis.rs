//! What `benches/` measure and nobody else needs. Not part of the API: anything here may change.

pub use crate::simd::Level;
use crate::{Recovery, Result};

/// Every level that this CPU can run, lowest first.
#[must_use]
pub fn levels() -> Vec<Level> {
    Level::available()
}

/// Decodes, or encodes, everything on one thread at `level`, and writes nothing.
///
/// # Errors
/// As [`Recovery::to_bytes`].
pub fn decode(recovery: &Recovery<'_>, level: Level) -> Result<()> {
    recovery.decode_only(level)
}
