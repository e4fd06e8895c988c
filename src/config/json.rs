//! Small JSON files, as Python writes them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::limits::Budget;
use crate::{AnamnesisError, Result};

/// Largest config file that is read. Real ones have a few KiB, with per-layer tables some MiB.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// `json` with Python's NaN, Infinity and -Infinity, which no JSON has and many a config.json, as null.
fn without_python_floats(json: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut in_string) = (Vec::with_capacity(json.len()), json, false);
    while let [first, tail @ ..] = rest {
        let float = [&b"NaN"[..], b"Infinity", b"-Infinity"]
            .into_iter()
            .find(|f| !in_string && rest.starts_with(f));
        if let Some(float) = float {
            out.extend_from_slice(b"null");
            rest = &rest[float.len()..];
            continue;
        }
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

/// The bytes of a small file, which `budget` is charged with; `None` if there is no such file.
pub(crate) fn read_small(path: &Path, budget: &Budget) -> Result<Option<Vec<u8>>> {
    // Looked at first: to open a pipe is to wait for its writer.
    let found = std::fs::metadata(path)
        .and_then(|there| there.is_file().then(|| File::open(path)).transpose());
    let file = match found {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(None),
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
    budget.alloc(len.min(MAX_CONFIG_BYTES), path.display())?;
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| AnamnesisError::io_at(path, &e))?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        let message = format!("{} is larger than {MAX_CONFIG_BYTES} bytes", path.display());
        return Err(AnamnesisError::LimitExceeded {
            limit: "MAX_CONFIG_BYTES",
            message,
        });
    }
    Ok(Some(bytes))
}

/// The JSON in `path`, and its text; `None` if there is no such file.
pub(super) fn read_json(path: &Path, budget: &Budget) -> Result<Option<(Value, Vec<u8>)>> {
    let Some(json) = read_small(path, budget)? else {
        return Ok(None);
    };
    let value = serde_json::from_slice(&json)
        .or_else(|e| serde_json::from_slice(&without_python_floats(&json)).map_err(|_| e));
    value
        .map(|value| Some((value, json)))
        .map_err(|e| AnamnesisError::parse(format!("{}: {e}", path.display())))
}
