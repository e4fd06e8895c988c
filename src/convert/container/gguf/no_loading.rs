//! Stands in for `loading` without the feature `models`: there are no tables of what llama.cpp loads.

use super::output_keys::OutputKeys;
use crate::convert::options::ConvertOptions;
use crate::write::OutputEntry;
use crate::{ParsedModel, Result};

/// Returns `None`.
///
/// # Errors
/// None.
pub(super) fn note(
    _model: &ParsedModel,
    _entries: &[OutputEntry<'_>],
    _keys: (&OutputKeys<'_>, Option<&OutputKeys<'_>>),
    _options: &ConvertOptions,
) -> Result<Option<String>> {
    Ok(None)
}
