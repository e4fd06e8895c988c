//! Whether what the files beside a model say of its quantization agrees: place with place, and key
//! with key.

use super::method::QuantMethod;
use super::place::{ConfigPlace, pair};
use super::unique_json::UniqueJson;
use super::{PLACES, QuantConfig, sizes};
use crate::{AnamnesisError, Result};

/// Checks that no key that decides how tensors are decoded is repeated in `file` with another
/// value: none of a quantization config, and of `config.json` none that leads to one or gives a
/// size. Others may be, as they are in configs that people edit.
///
/// # Errors
/// `Parse` that names the file and the path of keys.
pub(super) fn check_repeated(file: &str, parsed: &UniqueJson) -> Result<()> {
    let counts = |path: &&Vec<String>| {
        let same = |key: &&str, other: &String| *key == other;
        let of_section = PLACES.iter().any(|(place, keys)| {
            *place == file && keys.iter().zip(path.iter()).all(|(a, b)| same(a, b))
        });
        let of_size = match path.as_slice() {
            [key] => sizes::KEYS.contains(&key.as_str()),
            [section, key] => section == "text_config" && sizes::KEYS.contains(&key.as_str()),
            _ => false,
        };
        of_section || of_size
    };
    match parsed.repeated.iter().find(counts) {
        Some(path) => Err(repeated(file, path)),
        None => Ok(()),
    }
}

/// The error for a key that stands in `file` twice.
pub(super) fn repeated(file: &str, path: &[String]) -> AnamnesisError {
    let path = path.join(".");
    AnamnesisError::parse(format!(
        "{file}: `{path}` is there twice, with two values; delete the one that is wrong"
    ))
}

impl QuantConfig {
    /// Checks that the places agree on the values that decide how codes are decoded. Which place
    /// counts would otherwise depend on the reader. Of methods only GPTQ and AWQ exclude each
    /// other; producers name the others freely.
    ///
    /// # Errors
    /// `Parse` that names both places.
    pub(crate) fn check(&self) -> Result<()> {
        let mut facts: Vec<(&str, &ConfigPlace, String)> = Vec::new();
        for place in &self.places {
            let format = |key: &str| {
                place
                    .text(&[key])
                    .filter(|f| f.starts_with("gptq"))
                    .map(str::to_owned)
            };
            let found = [
                ("bits", place.int(&["bits", "w_bit"]).map(|v| v.to_string())),
                ("symmetry", place.flag("sym").map(|v| v.to_string())),
                ("zero points", place.flag("zero_point").map(|v| v.to_string())),
                ("checkpoint format", format("checkpoint_format")),
                ("checkpoint format", format("format")),
                (
                    "block size",
                    place
                        .get("weight_block_size")
                        .and_then(pair)
                        .map(|[rows, cols]| format!("[{rows}, {cols}]")),
                ),
                (
                    "group size",
                    place
                        .int(&["group_size", "q_group_size"])
                        .map(|v| v.to_string()),
                ),
                (
                    "method",
                    place
                        .text(&["quant_method", "method"])
                        .map(str::to_lowercase)
                        .filter(|m| {
                            matches!(QuantMethod::parse(m), QuantMethod::Gptq | QuantMethod::Awq)
                        }),
                ),
            ];
            for (what, value) in found {
                let Some(value) = value else { continue };
                if let Some((_, other, theirs)) =
                    facts.iter().find(|(w, _, v)| *w == what && *v != value)
                {
                    return Err(AnamnesisError::parse(format!(
                        "contradicting {what}: {theirs} in {}, {value} in {}",
                        other.name, place.name
                    )));
                }
                facts.push((what, place, value));
            }
        }
        Ok(())
    }
}
