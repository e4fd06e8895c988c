//! Values of a pickle that describe a quantized weight without being tensors: HQQ and SINQ keep
//! `nbits`, `axis` and so on in a dict with the weight, or in one below it.

use super::globals::Global;
use super::pickle::PickleMachine;
use super::value::{Node, NodeId};
use crate::{Dtype, Result};

/// A dict with this key describes a weight.
const SIGN: &str = "packing";

/// Keys that the decoders of HQQ and SINQ need.
const KEYS: &[&str] = &[
    SIGN,
    "nbits",
    "method",
    "group_size",
    "shape",
    "axis",
    "view_as_float",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
];

/// Longest value that is kept, in bytes of its text.
const MAX_TEXT: usize = 64;

/// The values of [`KEYS`] in a dict, as text; none unless the dict describes a weight.
pub(super) fn of(
    entries: &[(NodeId, NodeId)],
    machine: &PickleMachine<'_>,
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

/// A value as text, with the items of a shape separated by commas. `None` if it is of another type.
fn fact(value: NodeId, machine: &PickleMachine<'_>) -> Result<Option<String>> {
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
