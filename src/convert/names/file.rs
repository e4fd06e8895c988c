//! The file of `--rename-file`.

use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};

use crate::{AnamnesisError, Result};

/// Pairs of a JSON object in their order, which counts: the first pattern that matches is applied.
struct OrderedRenames(Vec<(String, String)>);

impl<'de> serde::Deserialize<'de> for OrderedRenames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(RenamesVisitor)
    }
}

struct RenamesVisitor;

impl<'de> Visitor<'de> for RenamesVisitor {
    type Value = OrderedRenames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of names by patterns")
    }

    fn visit_map<M: MapAccess<'de>>(
        self,
        mut map: M,
    ) -> std::result::Result<Self::Value, M::Error> {
        let mut out = Vec::new();
        while let Some(pair) = map.next_entry()? {
            out.push(pair);
        }
        Ok(OrderedRenames(out))
    }
}

/// The patterns and new names of a text: a JSON object of new names by patterns, or a line
/// `OLD=NEW` for each, where the last `=` of a line counts. Blank lines and lines that begin with
/// `#` are skipped.
///
/// # Errors
/// `Usage` that names the line.
pub fn parse_renames(text: &str) -> Result<Vec<(String, String)>> {
    if text.trim_start().starts_with('{') {
        let parsed: serde_json::Result<OrderedRenames> = serde_json::from_str(text);
        return parsed
            .map(|renames| renames.0)
            .map_err(|e| AnamnesisError::usage(e.to_string()));
    }
    let lines = text
        .lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| match line.rsplit_once('=') {
            Some((old, new)) if !old.is_empty() => Ok((old.to_owned(), new.to_owned())),
            _ => Err(AnamnesisError::usage(format!("line {number}: it is not OLD=NEW"))),
        })
        .collect()
}
