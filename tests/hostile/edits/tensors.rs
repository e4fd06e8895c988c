//! Edits of tensors that belong to a quantized weight.

use std::collections::BTreeMap;

use super::model::Model;
use super::{Choice, Edit};
use crate::common::{DTYPES, Raw, find_dtype};

/// What an edit did to a tensor, and what else its module holds.
pub struct Change {
    pub old: Stored,
    /// As it is now, unless it was dropped.
    pub new: Option<Stored>,
    /// The other tensors of its module, each with its role.
    pub others: Vec<(Stored, String)>,
}

/// What a header says of a tensor.
#[derive(Clone)]
pub struct Stored {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
}

impl Stored {
    fn of(t: &Raw) -> Self {
        Self { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() }
    }
}

/// The name of the module that a tensor belongs to: `X` of `X.weight_scale` and of
/// `X.weight.absmax`.
fn module(name: &str) -> &str {
    let base = name.rsplit_once('.').map_or("", |(base, _)| base);
    base.split_once(".weight")
        .map_or(base, |(module, _)| module)
}

/// The parameter that a part of torchao's belongs to: `X._P` of `X._P_qdata`.
fn parameter(name: &str) -> Option<&str> {
    let parts = ["_qdata", "_per_tensor_scale", "_act_pre_scale", "_scale", "_zero_point"];
    let is_part = name
        .rsplit('.')
        .next()
        .is_some_and(|last| last.starts_with('_'));
    let parameter = parts.iter().find_map(|part| name.strip_suffix(part));
    parameter.filter(|_| is_part)
}

/// The edits in `choice` of all tensors that have a role in a quantized weight.
pub fn edits(model: &Model, roles: &BTreeMap<String, String>, choice: &mut Choice) -> Vec<Edit> {
    let mut all = Vec::new();
    for (at, t) in model.tensors.iter().enumerate() {
        let role = &roles[&t.name];
        if role == "passthrough" || role == "activation" {
            continue;
        }
        // Companions of a stack of experts are named after it; those of a linear layer, after its
        // module.
        let own = |other: &Raw| other.name.starts_with(&format!("{}_", t.name));
        let is_stack = !t.name.ends_with(".weight") && model.tensors.iter().any(own);
        let belongs = |other: &Raw| match is_stack {
            true => own(other),
            false => {
                module(&other.name) == module(&t.name)
                    && parameter(&other.name) == parameter(&t.name)
            }
        };
        let others = model.tensors.iter().enumerate();
        let others = others.filter(|(i, other)| *i != at && belongs(other));
        let others: Vec<_> = others
            .map(|(_, t)| (Stored::of(t), roles[&t.name].clone()))
            .collect();
        let mut push = |kind, new: String, change: &dyn Fn(&mut Vec<Raw>)| {
            if !choice.takes_next() {
                return;
            }
            let mut tensors = model.tensors.clone();
            change(&mut tensors);
            let change = Change {
                old: Stored::of(t),
                new: (tensors.len() == model.tensors.len()).then(|| Stored::of(&tensors[at])),
                others: others.clone(),
            };
            all.push(Edit {
                kind,
                place: t.name.clone(),
                new,
                role: role.clone(),
                tensor: Some(change),
                model: Model {
                    tensors,
                    metadata: model.metadata.clone(),
                    configs: model.configs.clone(),
                },
            });
        };
        for dtype in other_dtypes(t) {
            push("dtype", dtype.to_owned(), &|all| all[at].dtype = dtype);
        }
        for (kind, shape) in shapes(&t.shape) {
            let change = |all: &mut Vec<Raw>| {
                all[at].bytes = resized(t, &shape);
                all[at].shape.clone_from(&shape);
            };
            push(kind, format!("{shape:?}, was {:?}", t.shape), &change);
        }
        push("dropped", String::new(), &|all| drop(all.remove(at)));
        for (kind, name) in names(&t.name) {
            push(kind, name.clone(), &|all| all[at].name.clone_from(&name));
        }
        if let Some(name) = bare_module(model, roles, &t.name) {
            let change = |all: &mut Vec<Raw>| all.push(Raw { name: name.clone(), ..t.clone() });
            push("companion added", name.clone(), &change);
        }
        for (other, o) in model.tensors.iter().enumerate().skip(at + 1) {
            let is_of_module =
                module(&o.name) == module(&t.name) && roles[&o.name] != "passthrough";
            if is_of_module && (o.dtype, &o.shape) != (t.dtype, &t.shape) {
                let change = |all: &mut Vec<Raw>| {
                    all[at].name.clone_from(&o.name);
                    all[other].name.clone_from(&t.name);
                };
                push("names swapped", o.name.clone(), &change);
            }
        }
        for (new, bytes) in descriptions(t, role) {
            let change = |all: &mut Vec<Raw>| {
                if t.dtype == "U8" {
                    all[at].shape = vec![bytes.len()];
                }
                all[at].bytes.clone_from(&bytes);
            };
            push("description", new, &change);
        }
    }
    all
}

/// The name that `name`, which is no weight's, has in a module that is not quantized, if there is
/// such a module without it.
fn bare_module(model: &Model, roles: &BTreeMap<String, String>, name: &str) -> Option<String> {
    let end = name
        .strip_prefix(module(name))
        .filter(|end| *end != ".weight")?;
    let bare = model.tensors.iter().find(|t| {
        t.shape.len() == 2 && roles[&t.name] == "passthrough" && t.name.ends_with(".weight")
    });
    let new = bare.map(|t| format!("{}{end}", module(&t.name)))?;
    model.tensors.iter().all(|t| t.name != new).then_some(new)
}

/// What the description `t` of a weight could say instead: JSON, a word, or a few integers, each
/// with a single change.
fn descriptions(t: &Raw, role: &str) -> Vec<(String, Vec<u8>)> {
    if role != "quant-state" {
        return Vec::new();
    }
    let size = match t.dtype {
        "U8" if t.shape.is_empty() => 1,
        "U8" => return texts(&t.bytes),
        "I32" => 4,
        "I64" => 8,
        _ => return Vec::new(),
    };
    let numbers: Vec<&[u8]> = t.bytes.chunks_exact(size).take(4).collect();
    let mut all = Vec::new();
    for (i, bytes) in numbers.iter().enumerate() {
        let n = i64::from(bytes[0]) | i64::from(*bytes.get(1).unwrap_or(&0)) << 8;
        for new in [n + 1, n - 1, n * 2, n / 2, 0]
            .into_iter()
            .filter(|new| *new != n)
        {
            let mut changed = t.bytes.clone();
            changed[i * size..][..size].copy_from_slice(&new.to_le_bytes()[..size]);
            all.push((format!("{new}, was {n} (number {i})"), changed));
        }
    }
    let swapped: Vec<u8> = numbers.iter().rev().copied().flatten().copied().collect();
    if swapped.len() == t.bytes.len() && swapped != t.bytes {
        all.push(("the numbers in the other order".to_owned(), swapped));
    }
    all
}

/// JSON with single changes, or other words.
fn texts(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    match serde_json::from_slice::<serde_json::Value>(bytes) {
        Ok(json) if json.is_object() => super::configs::values(&json)
            .into_iter()
            .map(|change| {
                let text = change.apply(&json).to_string();
                (format!("{} {}", change.place, change.describe()), text.into_bytes())
            })
            .collect(),
        _ => {
            let words = WORDS.iter().filter(|word| word.as_bytes() != bytes);
            words
                .map(|word| ((*word).to_owned(), word.as_bytes().to_vec()))
                .collect()
        }
    }
}

/// Words that descriptions have.
const WORDS: &[&str] = &[
    "8bit_u8",
    "4bit_u8",
    "2bit_u8",
    "1bit_u8",
    "3bit_32",
    "torch.uint8",
    "torch.int32",
    "torch.float16",
];

/// The dtypes of the same size.
fn other_dtypes(t: &Raw) -> impl Iterator<Item = &'static str> {
    let (_, bits) = find_dtype(t.dtype).unwrap();
    let same = DTYPES
        .iter()
        .filter(move |(_, b)| *b == bits)
        .map(|(d, _)| *d);
    same.filter(|d| *d != t.dtype && !matches!(*d, "C64" | "F8_E5M2FNUZ"))
}

/// Shapes that somebody could have written instead, each with what it is.
fn shapes(shape: &[usize]) -> Vec<(&'static str, Vec<usize>)> {
    let mut all = Vec::new();
    let values: usize = shape.iter().product();
    let mut push = |kind, new: Vec<usize>| {
        if new != shape && !all.iter().any(|(_, seen)| *seen == new) {
            all.push((kind, new));
        }
    };
    push("shape transposed", shape.iter().rev().copied().collect());
    for at in 0..shape.len() {
        let with = |d: usize| {
            let mut new = shape.to_vec();
            new[at] = d;
            new
        };
        let n = shape[at];
        push("dimension changed", with(n + 1));
        push("dimension changed", with(n.saturating_sub(1)));
        push("dimension changed", with(n * 2));
        if n.is_multiple_of(2) {
            push("dimension changed", with(n / 2));
            let next = (at + 1) % shape.len();
            let mut moved = with(n / 2);
            moved[next] *= 2;
            push("shape moved", moved);
        }
    }
    push("shape flat", vec![values]);
    push("axis added", [&[1], shape].concat());
    push("axis added", [shape, &[1]].concat());
    push("axes of one removed", shape.iter().copied().filter(|d| *d != 1).collect());
    all
}

/// The bytes of `t` cut, or repeated, to `shape`.
fn resized(t: &Raw, shape: &[usize]) -> Vec<u8> {
    let (_, bits) = find_dtype(t.dtype).unwrap();
    let bytes = (shape.iter().product::<usize>() * bits).div_ceil(8);
    t.bytes
        .iter()
        .copied()
        .cycle()
        .take(if t.bytes.is_empty() { 0 } else { bytes })
        .collect()
}

/// The tensor under a name that nobody knows, and under another module's name.
fn names(name: &str) -> [(&'static str, String); 2] {
    let (module, last) = name.rsplit_once('.').unwrap_or(("", name));
    [("unknown name", format!("{name}_x")), ("another module's name", format!("{module}x.{last}"))]
}
