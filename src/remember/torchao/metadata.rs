//! The metadata of a safetensors file that describe torchao parameters, which are stored in parts
//! (torchao `prototype/safetensors`, `flatten_tensor_state_dict`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::description::{TorchaoParameter, parse_description};
use super::renamed::LostParameters;
use crate::ParsedModel;
use crate::limits::FREE_JSON_BYTES;

/// The parameter that each stored part belongs to, by the name of the part.
pub(super) struct TorchaoParts(pub HashMap<String, Arc<TorchaoParameter>>);

impl TorchaoParts {
    /// The parameters that the metadata of `model` describes, by the names of those of their parts
    /// that are tensors.
    pub(super) fn new(model: &ParsedModel) -> Self {
        let (mut parts, mut free) = (HashMap::new(), FREE_JSON_BYTES);
        // A checkpoint describes its tensors by itself.
        let texts = model.metadata.iter().chain(&model.facts);
        let described =
            texts.filter_map(|(name, text)| Some((name, parse_description(text, &mut free)?)));
        let described: Vec<_> = described.collect();
        if described.is_empty() {
            return Self(parts);
        }
        let mut names: Vec<&str> = model.tensors().map(|t| t.name()).collect();
        names.sort_unstable();
        let mut lost = Vec::new();
        for (name, description) in described {
            let (name, description) = (name.clone(), Arc::new(description));
            let parameter = TorchaoParameter { name, description };
            if let Some(parameter) = insert(parameter, &names, &mut parts) {
                lost.push(parameter);
            }
        }
        let unnamed = names.iter().filter(|name| !parts.contains_key(**name));
        let unnamed: BTreeSet<_> = unnamed.filter_map(|name| parameter_of_part(name)).collect();
        let lost = LostParameters::new(lost.iter());
        for name in unnamed {
            if let Some(found) = lost.find(&name) {
                let description = found.description.clone();
                insert(TorchaoParameter { name, description }, &names, &mut parts);
            }
        }
        Self(parts)
    }
}

/// Enters the parameter for each of its parts among the sorted `names`. Gives it back if there is
/// none.
fn insert(
    parameter: TorchaoParameter,
    names: &[&str],
    parts: &mut HashMap<String, Arc<TorchaoParameter>>,
) -> Option<TorchaoParameter> {
    let prefix = parts_prefix(&parameter.name);
    // Shared: a parameter has several parts, and each claim looks up its own.
    let parameter = Arc::new(parameter);
    let listed = parameter.description.parts.iter().map(String::as_str);
    let listed: HashSet<&str> = listed.collect();
    // From the tensors to the listed parts: a long prefix joined with each of many parts would take
    // time and memory that the file does not pay for.
    let start = names.partition_point(|name| *name < prefix.as_str());
    for name in names.iter().skip(start) {
        let Some(part) = name.strip_prefix(prefix.as_str()) else {
            break;
        };
        if listed.contains(part) {
            parts.insert((*name).to_owned(), parameter.clone());
        }
    }
    drop(listed);
    Arc::into_inner(parameter)
}

/// Ends of the names of parts. One that ends with another stands before it.
const PARTS: [&str; 6] =
    ["_qdata", "_scale_and_zero", "_per_tensor_scale", "_act_pre_scale", "_zero_point", "_scale"];

/// The parameter that has a part called `name`: `M.P` of `M._P_qdata`.
fn parameter_of_part(name: &str) -> Option<String> {
    let (module, part) = name.rsplit_once('.')?;
    let part = part.strip_prefix('_')?;
    let parameter = PARTS.iter().find_map(|end| part.strip_suffix(end))?;
    Some(format!("{module}.{parameter}"))
}

/// Prefix of the names of the parts of parameter `name`: `M._P_` for `M.P`.
pub(super) fn parts_prefix(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((module, parameter)) => format!("{module}._{parameter}_"),
        None => format!("_{name}_"),
    }
}

/// Keys of `metadata` that describe parameters, and `tensor_names`, the list of them.
pub(super) fn description_keys(metadata: &HashMap<String, String>) -> Vec<String> {
    let described = metadata
        .iter()
        .filter(|(_, text)| parse_description(text, &mut FREE_JSON_BYTES.clone()).is_some())
        .map(|(name, _)| name.clone());
    let mut keys: Vec<String> = described.collect();
    if !keys.is_empty() {
        // torchao's own list of names would describe tensors that the output does not have.
        keys.push("tensor_names".to_owned());
    }
    keys
}
