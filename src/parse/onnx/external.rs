//! Where a tensor's data is in another file.

use std::ops::Range;

use crate::parse::external::ExternalFiles;
use crate::parse::message::MessageReader;
use crate::source::Source;
use crate::{AnamnesisError, ParsedModel, Result};

/// What the entries of a tensor say.
#[derive(Default)]
struct ExternalEntries {
    location: String,
    offset: u64,
    len: Option<u64>,
}

/// Finds `bytes` bytes of data by the `entries` of a tensor in `model`. Returns the source, which is added
/// to `contents`, and the offset.
///
/// # Errors
/// `Parse` if the file is too short; those of [`ExternalFiles::source`].
pub(super) fn find(
    files: &mut ExternalFiles,
    model: &Source,
    entries: &[Range<u64>],
    bytes: u64,
    contents: &mut ParsedModel,
) -> Result<(usize, u64)> {
    let ExternalEntries { location, offset, len } = read_entries(model, entries)?;
    let (source, file_len) = files.source(&location, contents)?;
    let rest = file_len.checked_sub(offset);
    let have = len.or(rest);
    if have != Some(bytes) || rest < have {
        return Err(AnamnesisError::parse(format!(
            "its data is {} bytes at {offset} of `{}`, which has {file_len}; its type and shape need {bytes}",
            have.unwrap_or(0),
            location.strip_prefix("./").unwrap_or(&location)
        )));
    }
    Ok((source, offset))
}

/// Reads the entries of a tensor: pairs of texts, of which those that are not known say nothing of
/// the place.
fn read_entries(model: &Source, entries: &[Range<u64>]) -> Result<ExternalEntries> {
    let mut file = MessageReader::new(model);
    let mut out = ExternalEntries::default();
    for entry in entries {
        let (key, value) = file.entry(entry.clone())?;
        let number = || {
            let wrong = |_| AnamnesisError::parse(format!("its {key} is `{value}`"));
            value.parse::<u64>().map_err(wrong)
        };
        match key.as_str() {
            "location" => out.location = value,
            "offset" => out.offset = number()?,
            "length" => out.len = Some(number()?),
            _ => {}
        }
    }
    match out.location.is_empty() {
        true => Err(AnamnesisError::parse("its data is in another file, which is not named")),
        false => Ok(out),
    }
}
