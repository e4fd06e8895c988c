//! Reads small JSON files as Python writes them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::unique_json::{self, JsonError, UniqueJson};
use crate::limits::Budget;
use crate::{AnamnesisError, Result};

/// Largest config file that is read, in bytes. Real ones have a few KiB; with tables for each
/// layer, some MiB.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// The object of `fields`; of several with one name the last. `collect` would compile a sort for
/// every kind of iterator.
pub(crate) fn object(fields: impl IntoIterator<Item = (String, Value)>) -> Map<String, Value> {
    let mut object = Map::new();
    object.extend(fields);
    object
}

/// Replaces Python's `NaN`, `Infinity` and `-Infinity` by `null`, outside of strings. JSON has no
/// such values, but Python's `json.dump` writes them, and so they are in many `config.json`.
fn without_python_floats(json: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut in_string) = (Vec::with_capacity(json.len()), json, false);
    while let [first, tail @ ..] = rest {
        let float = [&b"NaN"[..], b"Infinity", b"-Infinity"]
            .into_iter()
            // Inside a string the word is text, such as a token of the vocabulary.
            .find(|f| !in_string && rest.starts_with(f));
        if let Some(float) = float {
            out.extend_from_slice(b"null");
            rest = &rest[float.len()..];
            continue;
        }
        // An escaped quote does not end the string.
        let n = if in_string && *first == b'\\' {
            rest.len().min(2)
        } else {
            1
        };
        in_string ^= *first == b'"';
        out.extend_from_slice(&rest[..n]);
        rest = if n == 1 { tail } else { &rest[n..] };
    }
    out
}

/// Reads a file of at most [`MAX_CONFIG_BYTES`] and charges `budget` with it. `None` if there is no
/// regular file at `path`.
///
/// # Errors
/// `Io` if it cannot be read; `LimitExceeded` if it is too large.
pub(crate) fn read_small(path: &Path, budget: &Budget) -> Result<Option<Vec<u8>>> {
    // The type is checked before the file is opened: opening a pipe blocks until it has a writer.
    let found = std::fs::metadata(path)
        .and_then(|there| there.is_file().then(|| File::open(path)).transpose());
    let file = match found {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(None),
        // A path whose parent is a file has no companion files either.
        Err(e)
            if matches!(
                e.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(e) => return Err(AnamnesisError::io_at(path, &e)),
    };
    let len = file
        .metadata()
        .map_err(|e| AnamnesisError::io_at(path, &e))?
        .len();
    // The charge is for what can be read, so that a huge file is reported by its own limit below
    // and not by the budget.
    budget.alloc(len.min(MAX_CONFIG_BYTES), path.display())?;
    // One byte more than allowed: the file may have grown since its length was read.
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| AnamnesisError::io_at(path, &e))?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        let message = format!("{} is larger than {MAX_CONFIG_BYTES} bytes", path.display());
        return Err(AnamnesisError::LimitExceeded { limit: "MAX_CONFIG_BYTES", message });
    }
    Ok(Some(bytes))
}

/// Reads and parses a JSON file; returns the value, the keys that it repeats, and the text. `None`
/// if there is no such file.
///
/// # Errors
/// As [`read_small`]; those of [`parse_python`].
pub(crate) fn read_json(path: &Path, budget: &Budget) -> Result<Option<(UniqueJson, Vec<u8>)>> {
    let Some(json) = read_small(path, budget)? else {
        return Ok(None);
    };
    Ok(Some((parse_python(&json, path, budget)?, json)))
}

/// Parses the text of the file at `path`, as Python writes it.
///
/// # Errors
/// `Parse` if it is no JSON; `LimitExceeded` if its values take too much memory.
pub(crate) fn parse_python(json: &[u8], path: &Path, budget: &Budget) -> Result<UniqueJson> {
    // Of two failures the first is reported: its line and column are those of the file.
    // The text is replaced only after a failure: the copy costs memory, and nearly all configs are
    // valid JSON.
    let mut free = budget.free_json.get();
    let parsed = match unique_json::parse(json, &mut free) {
        Err(JsonError::Syntax(e)) => unique_json::parse(&without_python_floats(json), &mut free)
            .map_err(|again| match again {
                JsonError::Syntax(_) => JsonError::Syntax(e),
                JsonError::TooLarge => again,
            }),
        other => other,
    };
    budget.free_json.set(free);
    match parsed {
        Ok(parsed) => Ok(parsed),
        Err(JsonError::Syntax(e)) => Err(AnamnesisError::parse(format!("{}: {e}", path.display()))),
        Err(JsonError::TooLarge) => Err(AnamnesisError::LimitExceeded {
            limit: "MAX_JSON_WORKING_SET",
            message: format!(
                "{}: its values take far more memory than its {} bytes",
                path.display(),
                json.len()
            ),
        }),
    }
}
