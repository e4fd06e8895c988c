//! From a pickle's value to named tensors: dicts, lists and tuples are walked, and a tensor is named by its way there.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::facts;
use super::pickle::Machine;
use super::storage::{Keys, Place, Storage};
use super::value::{Id, Node, View};
use crate::ParsedModel;
use crate::containers::model::{Check, Skipped, TensorInfo, row_major_strides, span};
use crate::{AnamnesisError, Dtype, Result};

/// Dicts and lists within each other.
const MAX_DEPTH: usize = 256;

/// Bytes that views may take for each byte of the storages.
const MAX_RATIO: u64 = 16;

/// What views may take in any case.
const FREE: u64 = 64 << 20;

/// What tensors and their names may take besides four times the file's length: both can be repeated at no cost.
const TENSORS: u64 = 16 << 20;

/// What a tensor takes besides its name, with what a conversion makes of it.
const TENSOR: usize = 1000;

/// A tensor that was found, and its name.
pub(super) struct Found {
    pub name: String,
    pub tensor: std::result::Result<View, &'static str>,
}

/// Every tensor below `root`, in order.
pub(super) fn walk(root: Id, machine: &Machine<'_>) -> Result<Vec<Found>> {
    walk_all(root, machine, false, &mut HashMap::new())
}

/// The same, with the facts that are there.
pub(super) fn walk_with(
    root: Id,
    machine: &Machine<'_>,
    facts: &mut HashMap<String, String>,
) -> Result<Vec<Found>> {
    walk_all(root, machine, false, facts)
}

/// The same where persistent ids are tensors: each is the storage of its view.
pub(super) fn walk_persistent(root: Id, machine: &Machine<'_>) -> Result<Vec<Found>> {
    walk_all(root, machine, true, &mut HashMap::new())
}

fn walk_all(
    root: Id,
    machine: &Machine<'_>,
    persistent: bool,
    facts: &mut HashMap<String, String>,
) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    // A value that is shared may be walked several times, but not without end.
    let mut steps = machine.values.len() * 4 + 100_000;
    let mut stack = vec![(root, String::new(), 0usize)];
    let (mut charged, most) = (
        0,
        TENSORS.saturating_add(machine.input.file_len.saturating_mul(4)),
    );
    while let Some((id, name, depth)) = stack.pop() {
        if depth > MAX_DEPTH {
            let message = format!("containers nested in more than {MAX_DEPTH} levels");
            return Err(AnamnesisError::LimitExceeded {
                limit: "MAX_PICKLE_VM_DEPTH",
                message,
            });
        }
        let mut charge = |bytes: usize| {
            charged += bytes as u64;
            machine
                .input
                .budget
                .grow(bytes as u64, "tensors and their names")?;
            if charged <= most {
                return Ok(());
            }
            let message = "tensors and names that take far more than the file".to_owned();
            Err(AnamnesisError::LimitExceeded {
                limit: "MAX_PICKLE_WORKING_SET",
                message,
            })
        };
        let join = |key: &str| {
            if name.is_empty() {
                key.to_owned()
            } else {
                format!("{name}.{key}")
            }
        };
        let mut below: Vec<(Id, String)> = Vec::new();
        match machine.values.node(id) {
            Node::Dict(entries) => {
                let mut seen: HashMap<_, usize> = HashMap::new();
                for &(key, value) in entries {
                    // Of a key that is set twice the last value counts; 1 and "1" are two keys.
                    let own = (
                        std::mem::discriminant(machine.values.node(key)),
                        key_name(key, machine, 0)?,
                    );
                    let name = join(&own.1);
                    charge(name.len() + own.1.len())?;
                    match seen.entry(own) {
                        Entry::Occupied(at) => below[*at.get()].0 = value,
                        Entry::Vacant(place) => {
                            place.insert(below.len());
                            below.push((value, name));
                        }
                    }
                    steps = steps.saturating_sub(1);
                }
                for (key, fact) in facts::of(entries, machine)? {
                    let name = join(key);
                    charge(name.len() + fact.len())?;
                    facts.insert(name, fact);
                }
                below.retain(|(value, _)| holds_tensors(machine.values.node(*value), persistent));
            }
            Node::List(items) | Node::Tuple(items) => {
                for (i, &item) in items.iter().enumerate() {
                    if holds_tensors(machine.values.node(item), persistent) {
                        let name = join(&i.to_string());
                        charge(name.len())?;
                        below.push((item, name));
                    }
                    steps = steps.saturating_sub(1);
                }
            }
            Node::Tensor(view) => {
                charge(TENSOR + name.len() + view.shape.len() * 32)?;
                found.push(Found {
                    name,
                    tensor: Ok((**view).clone()),
                });
            }
            Node::Refused(what) => {
                charge(TENSOR + name.len())?;
                found.push(Found {
                    name,
                    tensor: Err(what),
                });
            }
            &Node::Persistent(id) if persistent => {
                charge(TENSOR + name.len())?;
                let view = View {
                    storage: id,
                    dtype: None,
                    offset: 0,
                    shape: vec![],
                    strides: vec![],
                };
                found.push(Found {
                    name,
                    tensor: Ok(view),
                });
            }
            _ => {}
        }
        steps = steps.saturating_sub(1);
        if steps == 0 {
            let message = "values that refer to each other too often".to_owned();
            return Err(AnamnesisError::LimitExceeded {
                limit: "MAX_PICKLE_WORKING_SET",
                message,
            });
        }
        stack.extend(
            below
                .into_iter()
                .rev()
                .map(|(id, name)| (id, name, depth + 1)),
        );
    }
    if let [only] = found.as_mut_slice()
        && only.name.is_empty()
    {
        only.name = "tensor".to_owned();
    }
    Ok(found)
}

/// Longest key that is made of others.
const MAX_KEY: usize = 4096;

/// A dict's key as Python's `str` shows it.
fn key_name(key: Id, machine: &Machine<'_>, depth: usize) -> Result<String> {
    Ok(match machine.values.node(key) {
        Node::Str(range) => machine.input.text(range)?.to_owned(),
        Node::Bytes(range) => format!("b'{}'", machine.input.bytes(range).escape_ascii()),
        Node::Int(n) => n.to_string(),
        Node::Float(x) => format!("{x:?}"),
        Node::Bool(b) => if *b { "True" } else { "False" }.to_owned(),
        Node::None => "None".to_owned(),
        Node::Tuple(items) if depth < 4 => {
            let mut text = "(".to_owned();
            for (i, &id) in items.iter().enumerate() {
                text += if i == 0 { "" } else { ", " };
                text += &key_name(id, machine, depth + 1)?;
                if text.len() > MAX_KEY {
                    return Err(AnamnesisError::parse("pickle: a dict whose key is no name"));
                }
            }
            text + ")"
        }
        _ => return Err(AnamnesisError::parse("pickle: a dict whose key is no name")),
    })
}

fn holds_tensors(node: &Node, persistent: bool) -> bool {
    let is_container = matches!(node, Node::Dict(_) | Node::List(_) | Node::Tuple(_));
    is_container
        || matches!(node, Node::Tensor(_) | Node::Refused(_))
        || persistent && matches!(node, Node::Persistent(_))
}

/// Adds the tensors to `contents`; `place` finds a storage.
pub(super) fn add(
    found: Vec<Found>,
    machine: &Machine<'_>,
    keys: &mut Keys,
    big_endian: bool,
    mut place: impl FnMut(&Storage, &mut ParsedModel) -> Result<Place>,
    contents: &mut ParsedModel,
) -> Result<()> {
    let (mut places, mut users): (HashMap<usize, Place>, HashMap<usize, usize>) =
        Default::default();
    for Found { name, tensor } in found {
        let view = match tensor {
            Ok(view) => view,
            Err(what) => {
                contents.skipped.push(Skipped {
                    name,
                    what: what.to_owned(),
                });
                continue;
            }
        };
        let &Node::Persistent(id) = machine.values.node(view.storage) else {
            continue;
        };
        let named = |e: AnamnesisError| e.about(format_args!("tensor `{name}`"));
        let storage = Storage::read(id, machine, keys).map_err(named)?;
        let at = match places.get(&storage.key.number) {
            Some(&at) => at,
            None => {
                let at = place(&storage, contents).map_err(named)?;
                places.insert(storage.key.number, at);
                at
            }
        };
        let dtype = view
            .dtype
            .or(storage.element.map(|element| element.dtype))
            .flatten();
        let Some(dtype) = dtype else {
            contents.skipped.push(Skipped {
                name,
                what: "tensor of a dtype that is not read".to_owned(),
            });
            continue;
        };
        *users.entry(storage.key.number).or_default() += 1;
        contents.tensors.push(tensor_of(
            &name,
            dtype,
            &view,
            storage.offset,
            at,
            big_endian,
        )?);
    }
    check_ratio(contents, places.values())?;
    let shared = users.values().filter(|&&n| n > 1).sum::<usize>();
    if shared > 0 {
        contents.notes.push(format!(
            "{shared} tensors share their storage with others; each is written by itself"
        ));
    }
    Ok(())
}

/// A view of the storage at `place`, `before` elements further than it says.
pub(super) fn tensor_of(
    name: &str,
    dtype: Dtype,
    view: &View,
    before: usize,
    place: Place,
    big_endian: bool,
) -> Result<TensorInfo> {
    // Two four-bit floats are one element to torch.
    let packed = dtype == Dtype::F4;
    let size = dtype.bits().div_ceil(8);
    let (shape, strides) = (&view.shape, &view.strides);
    let wrong = |what: String| {
        AnamnesisError::parse(format!("tensor `{name}` ({dtype} {shape:?}): {what}"))
    };
    let len = shape
        .iter()
        .try_fold(size, |n, &d| n.checked_mul(d))
        .ok_or_else(|| wrong("its size overflows".to_owned()))? as u64;
    let end = span(shape, strides)
        .and_then(|n| view.offset.checked_add(before)?.checked_add(n))
        .and_then(|n| n.checked_mul(size));
    if len > 0 && end.is_none_or(|end| end as u64 > place.len) {
        let (offset, bytes) = (view.offset, place.len);
        let what = format!(
            "offset {offset} and strides {strides:?} lead out of its storage of {bytes} bytes"
        );
        return Err(wrong(what));
    }
    // Strides of dimensions with one element, or none, mean nothing.
    let plain = row_major_strides(shape);
    let is_plain = len == 0
        || shape
            .iter()
            .zip(strides)
            .zip(&plain)
            .all(|((&n, s), p)| n == 1 || s == p);
    // An empty tensor may claim to be anywhere; what has elements was found to lie in its storage.
    let start = if len == 0 {
        0
    } else {
        (view.offset + before) as u64 * size as u64
    };
    let mut shape = shape.clone();
    if packed {
        let last = shape.last_mut().filter(|_| is_plain);
        let what = "packed four-bit floats that do not lie in order";
        *last.ok_or_else(|| AnamnesisError::unsupported(what, format!("tensor `{name}`")))? *= 2;
    }
    Ok(TensorInfo {
        name: name.to_owned(),
        dtype,
        shape,
        source: place.source,
        offset: place.offset + start,
        len,
        strides: (!is_plain).then(|| strides.clone()),
        big_endian: big_endian && dtype.bits() > 8,
        check: place.crc.map(|crc| Check {
            crc,
            start: place.offset,
            len: place.len,
            before: (0, 0),
        }),
    })
}

/// Views may repeat what is stored, within reason.
pub(super) fn check_ratio<'a>(
    contents: &ParsedModel,
    places: impl Iterator<Item = &'a Place>,
) -> Result<()> {
    let stored = places.fold(0u64, |n, place| n.saturating_add(place.len));
    let wanted = contents
        .tensors
        .iter()
        .fold(0u64, |n, t| n.saturating_add(t.len));
    if wanted > stored.saturating_mul(MAX_RATIO).saturating_add(FREE) {
        let message = format!("tensors of {wanted} bytes in all, made of {stored} stored ones");
        return Err(AnamnesisError::LimitExceeded {
            limit: "PTH_MAX_MATERIALISE_RATIO",
            message,
        });
    }
    Ok(())
}
