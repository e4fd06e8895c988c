//! `dfloat11_config`: the patterns that match the encoded modules, each of which holds its own
//! weight.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::object;
use crate::lethe::kernels::dfloat11::{CHUNK_RUNS, RUN_BITS};

/// Most patterns; more become a single one. Whoever loads a model tries each of them for each
/// module.
const MAX_PATTERNS: usize = 64;

/// The config of a model in which `modules` are encoded.
///
/// Layers are `\d+` in a pattern, and modules of one parent share one. A pattern may match modules
/// that are not encoded: the library asks for it when it has found the codes of a module, and, to
/// keep modules on one device, for the names of their classes.
pub(super) fn config(modules: &[&str]) -> Value {
    let mut parents: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for module in modules {
        let (parent, last) = match module.rsplit_once('.') {
            Some((parent, last)) => {
                let parts: Vec<String> = parent.split('.').map(part).collect();
                (parts.join(r"\.") + r"\.", last)
            }
            None => (String::new(), *module),
        };
        let children = parents.entry(parent).or_default();
        let last = part(last);
        if !children.contains(&last) {
            children.push(last);
        }
    }
    let pattern = |(parent, children): (String, Vec<String>)| match children.as_slice() {
        [child] => format!("{parent}{child}"),
        _ => format!("{parent}(?:{})", children.join("|")),
    };
    let mut patterns: Vec<String> = parents.into_iter().map(pattern).collect();
    if patterns.len() > MAX_PATTERNS {
        patterns = vec![patterns.join("|")];
    }
    let patterns = object(patterns.into_iter().map(|p| (p, json!([]))));
    json!({
        "version": "0.5.0",
        "threads_per_block": [CHUNK_RUNS],
        "bytes_per_thread": RUN_BITS / 8,
        "pattern_dict": patterns,
    })
}

/// The pattern of a part of a name.
fn part(part: &str) -> String {
    if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
        return r"\d+".to_owned();
    }
    let mut pattern = String::with_capacity(part.len());
    for c in part.chars() {
        if !c.is_alphanumeric() && c != '_' {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}
