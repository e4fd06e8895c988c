//! Arithmetic alone, slices in and slices out: `remember` decodes what `lethe` encodes.

#[cfg(feature = "bnb")]
pub(crate) mod lethe;
pub(crate) mod remember;
