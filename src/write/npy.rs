//! Lays out single NumPy arrays, each a file.

use std::collections::HashMap;

use super::npz::npy_header;
use super::{OutputEntry, OutputLayout, no_such_type, unusable_name};
use crate::model::array_file;
use crate::{AnamnesisError, Dtype, Result};

/// Longest name of a file on common file systems, in bytes, less what a temporary name adds.
const LONGEST_FILE: usize = 240;

/// Whether NumPy has a type of its own for the elements of `dtype`.
pub(crate) fn holds(dtype: Dtype) -> bool {
    let is_foreign = matches!(dtype, Dtype::BF16 | Dtype::F8E4M3 | Dtype::F8E5M2);
    !is_foreign && super::npz::descr(dtype).is_some()
}

/// Lays out a file for each of `entries`.
///
/// # Errors
/// `Unsupported` if NumPy has no such dtype, and for a name that no file can have, or that two would have; `Parse` if the size of a file
/// overflows.
pub(crate) fn layout(entries: &[OutputEntry<'_>]) -> Result<Vec<OutputLayout>> {
    // Some file systems know no case.
    let mut seen: HashMap<String, &str> = HashMap::with_capacity(entries.len());
    for e in entries {
        let file = array_file(e.name);
        let why = match seen.insert(file.to_lowercase(), e.name) {
            Some(other) => format!("its file would be that of `{other}` where case does not count"),
            None if e.name.is_empty() => "its file would have no name".to_owned(),
            None if file.len() > LONGEST_FILE => {
                format!("the name of its file would be longer than {LONGEST_FILE} bytes")
            }
            None => continue,
        };
        return Err(unusable_name("NPY", e.name, &why));
    }
    entries.iter().map(array).collect()
}

fn array(e: &OutputEntry<'_>) -> Result<OutputLayout> {
    let header = npy_header(e.dtype, e.shape).filter(|_| holds(e.dtype));
    let header = header.ok_or_else(|| no_such_type("NPY", "NumPy", e))?;
    let at = header.len() as u64;
    let file_len = at.checked_add(e.len);
    let file_len = file_len.ok_or_else(|| AnamnesisError::parse("the output's size overflows"))?;
    Ok(OutputLayout::of_header(header, vec![at], file_len))
}
