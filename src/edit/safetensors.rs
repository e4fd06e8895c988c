//! Edits of `__metadata__` in the header of a safetensors file, whose values are texts.

use super::json::EditedJson;
use super::{EditOptions, EditedHeader, wrong_key};
use crate::config::{Member, quoted};
use crate::limits::{Budget, zeroed};
use crate::model::TensorInfo;
use crate::parse::safetensors::{read_at, read_from};
use crate::source::Source;
use crate::write::safetensors::{LONGEST_HEADER, METADATA};
use crate::{AnamnesisError, Result};

/// Bytes of the length before the header.
const PREFIX: usize = 8;

/// File systems share data in blocks of this many bytes: data that stays at its place within a block can
/// be shared with a copy.
const BLOCK: usize = 4096;

/// The names of frameworks of which transformers wants one under `format`, where there is metadata.
const FORMATS: [&str; 4] = ["pt", "tf", "flax", "mlx"];

pub(super) fn edit(
    source: &Source,
    options: &EditOptions,
    budget: &Budget,
) -> Result<EditedHeader> {
    options.require_no_gguf("safetensors", "its template is in tokenizer_config.json beside it")?;
    let before = read_at(&mut &*source, budget)?;
    let mut old = zeroed((PREFIX + before.header_size) as u64, "the safetensors header")?;
    source.read_at(0, &mut old)?;
    let json = std::str::from_utf8(&old[PREFIX..]);
    let json = json.map_err(|e| AnamnesisError::parse(format!("safetensors header: {e}")))?;
    let malformed = |what: String| AnamnesisError::parse(format!("safetensors header: {what}"));
    let member = Member::of(json, METADATA).map_err(malformed)?;
    for pair in options.pairs() {
        require_no_type(pair?.0)?;
    }
    let stored = member.value().filter(|text| *text != "null");
    let EditedJson { text, changes, .. } = EditedJson::new(
        stored.unwrap_or("{}"),
        |json, key| Member::of(json, key),
        options,
        quoted,
    )?;
    let new = match changes.is_empty() {
        true => old.clone(),
        false => padded(&with_metadata(json, &member, &text), before.header_size)?,
    };
    // A second look at what will be written. It has the limits of the first behind it.
    let after = read_from(&*new, &Budget::unbounded())?;
    if !are_same_tensors(&before.tensors, &after.tensors) {
        return Err(malformed("the edit would change tensors".to_owned()));
    }
    let is_fine =
        |format: Option<&String>| format.is_some_and(|format| FORMATS.contains(&&**format));
    let was_fine = before.metadata.is_empty() || is_fine(before.metadata.get("format"));
    let mut notes = Vec::new();
    if was_fine && !after.metadata.is_empty() && !is_fine(after.metadata.get("format")) {
        notes.push(format!(
            "transformers loads no file whose metadata lacks a `format` of {}; --set format=pt adds it",
            FORMATS.join(", ")
        ));
    }
    Ok(EditedHeader { old, new, changes, notes })
}

/// # Errors
/// `Usage` if `key` ends in a type of GGUF: it would become a part of the key.
fn require_no_type(key: &str) -> Result<()> {
    const TYPES: [&str; 12] =
        ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "bool", "string"];
    match key.rsplit_once(':') {
        Some((key, kind)) if TYPES.contains(&kind) || kind.starts_with('[') => {
            Err(wrong_key(key, "every value of safetensors is a text: KEY=VALUE without a type"))
        }
        _ => Ok(()),
    }
}

/// The header `json` with other metadata, which stand first if there were none. Metadata without keys are
/// left out: transformers takes them for those of another program.
fn with_metadata(json: &str, member: &Member<'_>, metadata: &str) -> String {
    if !metadata.contains('"') {
        return member.removed().unwrap_or_else(|| json.to_owned());
    }
    if member.value().is_some() {
        return member.with_value(metadata);
    }
    let (brace, rest) = json.split_at(json.find('{').map_or(0, |at| at + 1));
    let comma = if rest.trim_start().starts_with('}') {
        ""
    } else {
        ","
    };
    format!("{brace}{}:{metadata}{comma}{rest}", quoted(METADATA))
}

/// The bytes of the header `json` with its length before it. It is as long as before, in `len` bytes, if
/// it has room there; else the data begins at the same place of a block.
fn padded(json: &str, len: usize) -> Result<Vec<u8>> {
    let json = json.trim_end();
    let more = json.len().saturating_sub(len).next_multiple_of(BLOCK);
    let len = len + more;
    if len > LONGEST_HEADER {
        let what =
            format!("the header would have {len} bytes, and readers accept {LONGEST_HEADER}");
        return Err(AnamnesisError::unsupported("writing safetensors", what));
    }
    let mut out = Vec::with_capacity(PREFIX + len);
    out.extend((len as u64).to_le_bytes());
    out.extend_from_slice(json.as_bytes());
    out.resize(PREFIX + len, b' ');
    Ok(out)
}

/// Whether both have the same tensors, in the same places of the data.
fn are_same_tensors(before: &[TensorInfo], after: &[TensorInfo]) -> bool {
    let start = |all: &[TensorInfo]| all.first().map_or(0, |t| t.offset);
    let (before_start, after_start) = (start(before), start(after));
    before.len() == after.len()
        && before.iter().zip(after).all(|(a, b)| {
            let moved = TensorInfo { offset: b.offset - after_start + before_start, ..b.clone() };
            *a == moved
        })
}
