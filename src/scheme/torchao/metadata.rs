//! What the metadata of a safetensors file say of parameters that lie in parts (torchao `prototype/safetensors`,
//! `flatten_tensor_state_dict`).

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

/// What the metadata say of a parameter.
#[derive(serde::Deserialize)]
pub(super) struct TorchaoDescription {
    #[serde(rename = "_type")]
    pub class: String,
    #[serde(rename = "_data", default)]
    pub data: Map<String, Value>,
    #[serde(rename = "_tensor_data_names", default)]
    pub parts: Vec<String>,
}

fn describe(text: &str) -> Option<TorchaoDescription> {
    // Most metadata are no JSON.
    text.trim_start()
        .starts_with('{')
        .then(|| serde_json::from_str(text).ok())
        .flatten()
}

/// A parameter that lies in parts.
pub(super) struct TorchaoParameter {
    pub name: String,
    pub description: TorchaoDescription,
}

/// The parameters of a model that stored parts belong to, by the names of the parts.
pub(super) struct TorchaoParts(pub HashMap<String, Arc<TorchaoParameter>>);

impl TorchaoParts {
    pub(super) fn new(metadata: &HashMap<String, String>) -> Self {
        let mut parts = HashMap::new();
        for (name, text) in metadata {
            let Some(description) = describe(text) else {
                continue;
            };
            let (base, name) = (base(name), name.clone());
            let parameter = Arc::new(TorchaoParameter { name, description });
            for part in &parameter.description.parts {
                parts.insert(format!("{base}{part}"), parameter.clone());
            }
        }
        Self(parts)
    }
}

/// What the names of the parts of `name` begin with.
pub(super) fn base(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((module, parameter)) => format!("{module}._{parameter}_"),
        None => format!("_{name}_"),
    }
}

/// Keys of `metadata` that describe parameters, and the key of their list.
pub(super) fn described(metadata: &HashMap<String, String>) -> Vec<String> {
    let described = metadata
        .iter()
        .filter(|(_, text)| describe(text).is_some())
        .map(|(name, _)| name.clone());
    let mut keys: Vec<String> = described.collect();
    if !keys.is_empty() {
        keys.push("tensor_names".to_owned());
    }
    keys
}
