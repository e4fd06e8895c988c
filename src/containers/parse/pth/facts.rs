//! What a pickle says of a quantized weight in values that are no tensors: HQQ's `nbits`, `axis` and so on, which lie
//! in a dict with the weight or in one below it.

use super::globals::Global;
use super::pickle::Machine;
use super::value::{Id, Node};
use crate::{Dtype, Result};

/// A dict with this key describes a weight.
const SIGN: &str = "packing";

/// What is of use of it.
const KEYS: &[&str] = &[
    SIGN,
    "group_size",
    "shape",
    "axis",
    "view_as_float",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
];

/// Longest fact.
const MAX_TEXT: usize = 64;

/// The facts of a dict, if it describes a weight.
pub(super) fn of(
    entries: &[(Id, Id)],
    machine: &Machine<'_>,
) -> Result<Vec<(&'static str, String)>> {
    let mut facts = Vec::new();
    for &(key, value) in entries {
        let Node::Str(range) = machine.values.node(key) else {
            continue;
        };
        // Keys are compared as bytes: text costs a check.
        let key = machine.input.bytes(range);
        let Some(&key) = KEYS.iter().find(|known| known.as_bytes() == key) else {
            continue;
        };
        // Of a key that is set twice the last value counts.
        facts.retain(|(other, _)| *other != key);
        facts.extend(
            fact(value, machine)?
                .filter(|fact| fact.len() <= MAX_TEXT)
                .map(|fact| (key, fact)),
        );
    }
    if facts.iter().all(|(key, _)| *key != SIGN) {
        facts.clear();
    }
    Ok(facts)
}

/// A value as text; sizes are separated by commas.
fn fact(value: Id, machine: &Machine<'_>) -> Result<Option<String>> {
    Ok(match machine.values.node(value) {
        Node::Bool(flag) => Some(u8::from(*flag).to_string()),
        Node::Int(n) => Some(n.to_string()),
        Node::Str(range) => Some(machine.input.text(range)?.to_owned()),
        Node::Global(Global::Dtype(Some(dtype))) => match dtype {
            Dtype::F32 => Some("torch.float32".to_owned()),
            Dtype::F16 => Some("torch.float16".to_owned()),
            Dtype::BF16 => Some("torch.bfloat16".to_owned()),
            other => Some(other.to_string()),
        },
        Node::Tuple(items) | Node::List(items) if items.len() <= 8 => {
            let sizes = machine.values.sizes(value);
            sizes.map(|sizes| {
                sizes
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(",")
            })
        }
        _ => None,
    })
}
