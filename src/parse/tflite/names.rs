//! Names of tensors: those in the file, if nothing else is meant by them.

use std::collections::{HashMap, HashSet};

use super::graph::LiteTensor;
use super::wrong;
use crate::Result;

/// The name of each of `found`, behind `before`. A name that several have comes behind that of the
/// subgraph, and before the tensor's number there if it is not unique even so.
///
/// # Errors
/// `Parse` if two tensors have one name after all.
pub(super) fn of_tensors(
    found: &[LiteTensor],
    subgraphs: &[String],
    before: &str,
) -> Result<Vec<String>> {
    let alone = |t: &LiteTensor| match t.name.as_str() {
        "" => format!("tensor_{}", t.number),
        name => name.to_owned(),
    };
    let in_graph = |t: &LiteTensor| match subgraphs[t.subgraph].as_str() {
        "" => format!("subgraph_{}.{}", t.subgraph, alone(t)),
        graph => format!("{graph}.{}", alone(t)),
    };
    let with_number = |t: &LiteTensor| format!("{}.{}", in_graph(t), t.number);
    let (first, second) = (counts(found, alone), counts(found, in_graph));
    let mut known = HashSet::with_capacity(found.len());
    let mut names = Vec::with_capacity(found.len());
    for t in found {
        let (name, longer) = (alone(t), in_graph(t));
        let name = match (first.get(&name), second.get(&longer)) {
            (Some(1), _) => name,
            (_, Some(1)) => longer,
            _ => with_number(t),
        };
        let name = format!("{before}{name}");
        if !known.insert(name.clone()) {
            return Err(wrong(format!("two tensors are called `{name}`")));
        }
        names.push(name);
    }
    Ok(names)
}

fn counts(found: &[LiteTensor], name: impl Fn(&LiteTensor) -> String) -> HashMap<String, usize> {
    let mut out = HashMap::with_capacity(found.len());
    found
        .iter()
        .for_each(|t| *out.entry(name(t)).or_default() += 1);
    out
}
