//! Names of tensors: those in the file, if nothing else is meant by them.

use std::collections::{HashMap, HashSet};

use super::fields::TensorFields;
use super::found::{GraphScope, GraphTensor, LOST, LostUse, MAX_NAME, TensorData};
use crate::limits::cap;
use crate::model::{Shape, ShortList};
use crate::{AnamnesisError, Result};

/// The name of a tensor in the model.
pub(super) struct TensorName {
    pub text: String,
    /// Whether it is that of the module that has the weight, and not the one in the file.
    is_of_module: bool,
    /// Whether the weight is stored transposed, with regard to that of the module.
    pub is_transposed: bool,
}

impl TensorName {
    /// The shape and the strides of the tensor, which is stored in `shape`.
    pub(super) fn of_module(&self, shape: Shape) -> (Shape, Option<Box<ShortList>>) {
        match (self.is_transposed, &*shape) {
            (true, &[rows, cols]) if rows > 1 && cols > 1 => {
                ([cols, rows].into(), Some(Box::new([1, cols].into())))
            }
            (true, &[rows, cols]) => ([cols, rows].into(), None),
            _ => (shape, None),
        }
    }
}

/// The name of each of `found`. Where graphs inside of nodes have tensors of one name, the nodes'
/// names come before it.
///
/// # Errors
/// `Parse` if two tensors have one name after all; `LimitExceeded` if a name becomes too long.
pub(super) fn of_tensors(
    found: &[GraphTensor],
    scopes: &[GraphScope],
    lost: &HashMap<String, LostUse>,
) -> Result<Vec<TensorName>> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for tensor in found {
        *counts.entry(&tensor.name).or_default() += 1;
    }
    let modules = modules(found, lost, &counts);
    let mut names = Vec::with_capacity(found.len());
    for tensor in found {
        let is_shared = counts.get(&*tensor.name).is_some_and(|&n| n > 1);
        let module = modules.get(&*tensor.name).filter(|_| tensor.scope == 0);
        let text = match module {
            Some((module, _)) => module.clone(),
            None if is_shared => with_path(tensor, scopes)?,
            None => tensor.name.clone(),
        };
        let is_transposed = module.is_some_and(|(_, is_transposed)| *is_transposed);
        names.push(TensorName { text, is_of_module: module.is_some(), is_transposed });
    }
    let mut known = HashSet::with_capacity(names.len());
    match names.iter().find(|name| !known.insert(&*name.text)) {
        Some(twice) => {
            Err(AnamnesisError::parse(format!("two tensors are called `{}`", twice.text)))
        }
        None => Ok(names),
    }
}

/// The name of `tensor` behind those of the nodes that it is in.
fn with_path(tensor: &GraphTensor, scopes: &[GraphScope]) -> Result<String> {
    let mut parts = vec![tensor.name.as_str()];
    let mut scope = Some(tensor.scope);
    while let Some(i) = scope {
        if !scopes[i].label.is_empty() {
            parts.push(&scopes[i].label);
        }
        scope = scopes[i].parent;
    }
    let len: usize = parts.iter().map(|part| part.len()).sum();
    cap(
        "ONNX_MAX_PATH_BYTES",
        len as u64,
        MAX_NAME as u64,
        "bytes of a name behind those of its nodes",
    )?;
    parts.reverse();
    Ok(parts.join("."))
}

/// The weights of linear modules that have lost their names, by what the file calls them, with whether
/// they are stored transposed. The path of the node that uses such a weight is that of the module, if
/// the node is the only one.
fn modules<'f>(
    found: &'f [GraphTensor],
    lost: &HashMap<String, LostUse>,
    counts: &HashMap<&str, usize>,
) -> HashMap<&'f str, (String, bool)> {
    let mut out = HashMap::new();
    let mut taken: HashMap<String, usize> = HashMap::new();
    for tensor in found {
        let Some(LostUse { count: 1, node: Some((node, is_transposed)) }) = lost.get(&tensor.name)
        else {
            continue;
        };
        let is_matrix = matches!(&tensor.data, TensorData::Dense(t) if is_matrix(t));
        let (Some(module), Some(end)) = (module_of_node(node), end_of_lost(&tensor.name)) else {
            continue;
        };
        let weight = format!("{module}.weight");
        *taken.entry(weight.clone()).or_default() += 1;
        if (is_matrix || !is_transposed) && !counts.contains_key(weight.as_str()) {
            out.insert(tensor.name.as_str(), (weight + end, *is_transposed));
        }
    }
    out.retain(|name, (weight, _)| {
        let module = end_of_lost(name).and_then(|end| weight.strip_suffix(end));
        module.is_some_and(|weight| taken.get(weight) == Some(&1))
            && !counts.contains_key(weight.as_str())
    });
    out
}

/// What a quantizer has added to a name that the exporter has made up; `None` if it is another name.
fn end_of_lost(name: &str) -> Option<&str> {
    let number = name.strip_prefix(LOST)?;
    let end = number.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_known = matches!(end, "" | "_quantized" | "_Q2" | "_Q4" | "_Q8");
    (is_known && end.len() < number.len()).then_some(end)
}

/// Whether `t` is a matrix of whole bytes, which can be read transposed.
fn is_matrix(t: &TensorFields) -> bool {
    let has_bytes = t.dtype().is_ok_and(|dtype| dtype.bits() >= 8);
    has_bytes && matches!(*t.dims, [rows, cols] if rows > 0 && cols > 0)
}

/// The module of the only `MatMul` in it: `a.b.0` of `/a/b/b.0/MatMul`. A list of modules is named
/// twice, as the list and in the name of its item.
fn module_of_node(node: &str) -> Option<String> {
    let path = node.strip_prefix('/')?.strip_suffix("/MatMul")?;
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        if part.is_empty() {
            return None;
        }
        let is_item = |list: &&str| part.strip_prefix(*list).is_some_and(|n| n.starts_with('.'));
        if parts.last().is_some_and(is_item) {
            parts.pop();
        }
        parts.push(part);
    }
    Some(parts.join("."))
}

/// Adds a note about names that are not in the file.
pub(super) fn note(names: &[TensorName], notes: &mut Vec<String>) {
    let n = names.iter().filter(|name| name.is_of_module).count();
    if n > 0 {
        notes.push(format!(
            "the exporter has lost the names of {n} weights: they have those of the modules that use them, and the modules' order"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_nodes() {
        for (node, module) in [
            (
                "/encoder/layer.0/attention/self/query/MatMul",
                Some("encoder.layer.0.attention.self.query"),
            ),
            ("/layer1/layer1.0/fc/MatMul", Some("layer1.0.fc")),
            ("/fc/MatMul", Some("fc")),
            ("/fc/MatMul_1", None),
            ("/MatMul", None),
            ("MatMul_12", None),
            ("", None),
            ("/a//MatMul", None),
        ] {
            assert_eq!(module_of_node(node).as_deref(), module, "{node}");
        }
    }
}
