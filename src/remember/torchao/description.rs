//! Descriptions of torchao parameters in the metadata of a safetensors file.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::config::unique_json;

/// Description of a parameter, as its JSON has it.
#[derive(PartialEq, serde::Deserialize)]
pub(super) struct TorchaoDescription {
    #[serde(rename = "_type")]
    pub class: String,
    #[serde(rename = "_data", default)]
    pub data: Map<String, Value>,
    #[serde(rename = "_tensor_data_names", default)]
    pub parts: Vec<String>,
}

/// Parses a description. What it takes beyond a multiple of its text is taken from `free`.
pub(super) fn parse_description(text: &str, free: &mut usize) -> Option<TorchaoDescription> {
    // Most values of metadata are not JSON: the check is cheaper than a failed parse.
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let json = unique_json::parse_embedded(text.as_bytes(), free).ok()?;
    serde_json::from_value(json).ok()
}

/// A parameter that is stored in parts.
pub(super) struct TorchaoParameter {
    pub name: String,
    pub description: Arc<TorchaoDescription>,
}
