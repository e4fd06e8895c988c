//! Stands in for `gguf` in a build without that feature.

use std::path::Path;

use super::{EditOptions, EditedHeader};
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Result};

pub(super) fn edit(
    _source: &Source,
    _path: &Path,
    _options: &EditOptions,
    _budget: &Budget,
) -> Result<EditedHeader> {
    Err(AnamnesisError::missing_feature("GGUF", "gguf"))
}
