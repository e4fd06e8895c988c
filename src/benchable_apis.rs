//! Functions for the benchmarks in `benches/`. They are not part of the stable API and may change
//! at any time.

pub use crate::simd::Level;
use crate::{Conversion, Result};

/// The instruction set levels that this CPU supports, lowest first.
#[must_use]
pub fn levels() -> Vec<Level> {
    Level::available()
}

/// Carries out a plan on one thread at the instruction set `level`, and discards the output.
///
/// # Errors
/// - `Parse` or `Unsupported`: a tensor's data is malformed or cannot be encoded.
/// - `Io`: the input cannot be read.
/// - `Cancelled`: the token of the options is set.
pub fn decode(conversion: &Conversion<'_>, level: Level) -> Result<()> {
    conversion.decode_only(level)
}

/// Makes every later use of a plan run at the instruction set `level`.
pub fn set_level(conversion: &mut Conversion<'_>, level: Level) {
    conversion.set_level(level);
}
