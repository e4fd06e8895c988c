//! From a pickle's value to named tensors: dicts, lists and tuples are walked, and a tensor's name
//! is its path in them, joined with dots.
//!
//! Tensors that are no entries of containers are left out and told of.
//!
//! Containers may share and contain each other, so that a small pickle can have endless paths.
//! Depth, steps and the bytes of names are therefore bounded; each bound is far above what
//! checkpoints have.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::facts;
use super::globals::Global;
use super::pickle::PickleMachine;
use super::storage::{Storage, StorageKeys, StoragePlace};
use super::value::{Node, NodeId, TensorView};
use super::views::{check_ratio, tensor_of};
use crate::ParsedModel;
use crate::error::InTensor;
use crate::model::Skipped;
use crate::{AnamnesisError, Result};

/// Deepest nesting of dicts, lists and tuples.
const MAX_DEPTH: usize = 256;

/// Memory for tensors and their names besides four times the file's length. A container that is
/// referred to twice gives new names at no cost in the file.
const FREE_NAME_BYTES: u64 = 16 << 20;

/// Memory charged for a tensor besides its name, including what a conversion allocates for it.
const TENSOR_BYTES: usize = 1000;

/// A tensor with its name.
pub(super) struct FoundTensor {
    pub name: String,
    pub tensor: std::result::Result<TensorView, Unread>,
}

/// Why a tensor is not read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unread {
    /// It is of a kind that is not read; the text says which.
    Refused(&'static str),
    /// It is no entry of a container, and is left out with a note; the text says what it is.
    Aside(&'static str),
}

const OF_A_SET: Unread = Unread::Refused("item of a set, which has no name");
const ATTRIBUTE: Unread = Unread::Aside("attributes of other values");
const STORAGE: Unread = Unread::Aside("storages without a tensor");
const NO_DATA: Unread = Unread::Refused("tensor that was given no data");
const UNDER_CLASS: Unread = Unread::Refused("what is under a key that is a class");

/// A value to be visited.
struct Place {
    id: NodeId,
    name: String,
    /// Why a tensor that is found there is not read, if it is not.
    unread: Option<Unread>,
}

/// Finds every tensor below the value `root`, in the order of the pickle.
///
/// # Errors
/// `Parse` if a key of a dict is no name; `LimitExceeded`.
pub(super) fn walk(root: NodeId, machine: &PickleMachine<'_>) -> Result<Vec<FoundTensor>> {
    walk_all(root, machine, false, &mut HashMap::new())
}

/// Finds every tensor below `root`, and adds the values that describe quantized weights to `facts`,
/// by path.
pub(super) fn walk_with_facts(
    root: NodeId,
    machine: &PickleMachine<'_>,
    facts: &mut HashMap<String, String>,
) -> Result<Vec<FoundTensor>> {
    walk_all(root, machine, false, facts)
}

/// Finds every tensor below `root` in a tar checkpoint, where a persistent id stands for a tensor.
/// Of the views that are returned, only the `storage` means anything: it is the persistent id.
pub(super) fn walk_persistent(
    root: NodeId,
    machine: &PickleMachine<'_>,
) -> Result<Vec<FoundTensor>> {
    walk_all(root, machine, true, &mut HashMap::new())
}

/// The walk behind the three functions above. `persistent`: persistent ids are tensors.
fn walk_all(
    root: NodeId,
    machine: &PickleMachine<'_>,
    persistent: bool,
    facts: &mut HashMap<String, String>,
) -> Result<Vec<FoundTensor>> {
    let mut walk = TensorWalk {
        machine,
        persistent,
        facts,
        found: Vec::new(),
        told: HashSet::new(),
        steps: machine.values.len() * 4 + 100_000,
        charged: 0,
    };
    let (id, name, unread) = (root, String::new(), None);
    let mut stack = vec![(Place { id, name, unread }, 0usize)];
    while let Some((place, depth)) = stack.pop() {
        if place.unread.is_some() && (depth > MAX_DEPTH || !walk.told.insert(place.id)) {
            continue;
        }
        if depth > MAX_DEPTH {
            let message = format!("containers nested in more than {MAX_DEPTH} levels");
            return Err(AnamnesisError::LimitExceeded { limit: "MAX_PICKLE_VM_DEPTH", message });
        }
        let below = walk.visit(place)?;
        walk.steps = walk.steps.saturating_sub(1);
        if walk.steps == 0 {
            return Err(beyond_working_set("values that refer to each other too often"));
        }
        // Reversed, because the last one is popped first.
        let below = below.into_iter().rev();
        stack.extend(below.map(|place| (place, depth + 1)));
    }
    let mut found = walk.found;
    if let [only] = found.as_mut_slice()
        && only.name.is_empty()
    {
        only.name = "tensor".to_owned();
    }
    Ok(found)
}

fn beyond_working_set(what: &str) -> AnamnesisError {
    AnamnesisError::LimitExceeded { limit: "MAX_PICKLE_WORKING_SET", message: what.to_owned() }
}

/// The state of a walk.
struct TensorWalk<'a, 'i> {
    machine: &'a PickleMachine<'i>,
    persistent: bool,
    facts: &'a mut HashMap<String, String>,
    found: Vec<FoundTensor>,
    /// Values that are no entries and have been visited, once each.
    told: HashSet<NodeId>,
    /// Values that may still be visited. A shared value is walked once for each path to it. The
    /// number of paths can be exponential in the number of values, and infinite in a cycle; so the
    /// steps in all are bounded linearly.
    steps: usize,
    /// Memory for tensors and names so far.
    charged: u64,
}

impl TensorWalk<'_, '_> {
    /// Takes what is at `place`. Returns what is in it and may hold tensors, in order.
    fn visit(&mut self, place: Place) -> Result<Vec<Place>> {
        let Place { id, name, unread } = place;
        let values = &self.machine.values;
        let mut below = match values.node(id) {
            Node::Dict(entries) => self.visit_dict(entries, &name, unread)?,
            Node::List(items) | Node::Tuple(items) => self.visit_items(items, &name, unread)?,
            Node::Set(items) => self.visit_items(items, &name, unread.or(Some(OF_A_SET)))?,
            _ => Vec::new(),
        };
        for &attached in values.attached(id) {
            if self.may_hold_tensors(attached) {
                self.charge(name.len())?;
                below.push(Place {
                    id: attached,
                    name: name.clone(),
                    unread: unread.or(Some(ATTRIBUTE)),
                });
            }
        }
        let tensor = match values.node(id) {
            Node::Tensor(view) => unread.map_or_else(|| Ok((**view).clone()), Err),
            Node::NewTensor(_) => Err(unread.unwrap_or(NO_DATA)),
            Node::Refused(what) => Err(unread.unwrap_or(Unread::Refused(what))),
            &Node::Persistent(storage) if self.persistent => unread.map_or(
                Ok(TensorView { storage, dtype: None, offset: 0, shape: vec![], strides: vec![] }),
                Err,
            ),
            Node::Persistent(_) => Err(STORAGE),
            _ => return Ok(below),
        };
        let dimensions = tensor.as_ref().map_or(0, |view| view.shape.len());
        self.charge(TENSOR_BYTES + name.len() + dimensions * 32)?;
        self.found.push(FoundTensor { name, tensor });
        Ok(below)
    }

    fn visit_dict(
        &mut self,
        entries: &[(NodeId, NodeId)],
        name: &str,
        unread: Option<Unread>,
    ) -> Result<Vec<Place>> {
        let machine = self.machine;
        let (mut below, mut seen) = (Vec::new(), HashSet::new());
        for (at, &(key, value)) in entries.iter().enumerate() {
            // A class that the user has allowed, by which Lightning files the state of a callback.
            // It has no name here, so that what is under it is left out and listed as such.
            let is_class = matches!(machine.values.node(key), Node::Global(Global::Opaque));
            if is_class || unread.is_some() {
                if self.may_hold_tensors(value) {
                    let key = match key_name(key, machine, 0) {
                        Ok(key) => key,
                        Err(_) if is_class => format!("<class, entry {at}>"),
                        Err(_) => format!("<entry {at}>"),
                    };
                    let (id, name) = (value, join(name, &key));
                    self.charge(name.len())?;
                    let unread = unread.or(Some(UNDER_CLASS));
                    below.push(Place { id, name, unread });
                }
                self.steps = self.steps.saturating_sub(1);
                continue;
            }
            // In Python the last value of a repeated key counts, in other readers the first; no
            // writer repeats one. The type is part of the key: 1 and "1" are two keys, although
            // their names are equal.
            let typed_key =
                (std::mem::discriminant(machine.values.node(key)), key_name(key, machine, 0)?);
            let name = join(name, &typed_key.1);
            self.charge(name.len() + typed_key.1.len())?;
            if let Some((_, key)) = seen.replace(typed_key) {
                let twice = format!("pickle: a dict has the key `{key}` twice");
                return Err(AnamnesisError::parse(twice));
            }
            let id = value;
            below.push(Place { id, name, unread });
            self.steps = self.steps.saturating_sub(1);
        }
        if unread.is_none() {
            for (key, fact) in facts::of(entries, machine)? {
                let name = join(name, key);
                self.charge(name.len() + fact.len())?;
                self.facts.insert(name, fact);
            }
        }
        below.retain(|place| self.may_hold_tensors(place.id));
        Ok(below)
    }

    fn visit_items(
        &mut self,
        items: &[NodeId],
        name: &str,
        unread: Option<Unread>,
    ) -> Result<Vec<Place>> {
        let mut below = Vec::new();
        for (i, &id) in items.iter().enumerate() {
            if self.may_hold_tensors(id) {
                let name = join(name, &i.to_string());
                self.charge(name.len())?;
                below.push(Place { id, name, unread });
            }
            self.steps = self.steps.saturating_sub(1);
        }
        Ok(below)
    }

    /// Whether a value is a tensor or may contain some.
    fn may_hold_tensors(&self, id: NodeId) -> bool {
        match self.machine.values.node(id) {
            Node::Dict(_) | Node::List(_) | Node::Tuple(_) | Node::Set(_) => true,
            Node::Tensor(_) | Node::NewTensor(_) | Node::Refused(_) | Node::Persistent(_) => true,
            _ => !self.machine.values.attached(id).is_empty(),
        }
    }

    /// Takes `bytes` of memory for tensors and names.
    ///
    /// # Errors
    /// `LimitExceeded` if all together take far more than the file.
    fn charge(&mut self, bytes: usize) -> Result<()> {
        let (bytes, input) = (bytes as u64, &self.machine.input);
        self.charged += bytes;
        input.budget.grow(bytes, "tensors and their names")?;
        let of_file = input.file_len.saturating_mul(4);
        match self.charged <= FREE_NAME_BYTES.saturating_add(of_file) {
            true => Ok(()),
            false => Err(beyond_working_set("tensors and names that take far more than the file")),
        }
    }
}

/// The name of what is called `key` in the container `name`.
fn join(name: &str, key: &str) -> String {
    match name {
        "" => key.to_owned(),
        _ => format!("{name}.{key}"),
    }
}

/// Longest name of a key that is a tuple, in bytes.
const MAX_TUPLE_KEY: usize = 4096;

/// The name of a dict's key, as Python's `str` writes it.
///
/// # Errors
/// `Parse` if the key has no name of bounded length.
fn key_name(key: NodeId, machine: &PickleMachine<'_>, depth: usize) -> Result<String> {
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
                if text.len() > MAX_TUPLE_KEY {
                    return Err(AnamnesisError::parse("pickle: a dict whose key is no name"));
                }
            }
            text + ")"
        }
        _ => return Err(AnamnesisError::parse("pickle: a dict whose key is no name")),
    })
}

/// Adds the tensors to `contents`. `place` looks up a storage in the container, once for each key.
///
/// # Errors
/// `Parse` that names the tensor, if its storage is missing or the view leads out of it;
/// `LimitExceeded`.
pub(super) fn add(
    found: Vec<FoundTensor>,
    machine: &PickleMachine<'_>,
    keys: &mut StorageKeys,
    big_endian: bool,
    mut place: impl FnMut(&Storage, &mut ParsedModel) -> Result<StoragePlace>,
    contents: &mut ParsedModel,
) -> Result<()> {
    let (mut places, mut users): (HashMap<usize, StoragePlace>, HashMap<usize, usize>) =
        Default::default();
    let first = contents.tensors.len();
    for (name, view) in take_unread(found, contents) {
        let &Node::Persistent(id) = machine.values.node(view.storage) else {
            continue;
        };
        let named = |e: AnamnesisError| e.about(InTensor(&name));
        let storage = Storage::from_persistent_id(id, machine, keys).map_err(named)?;
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
            contents
                .skipped
                .push(Skipped { name, what: "tensor of a dtype that is not read".to_owned() });
            continue;
        };
        *users.entry(storage.key.number).or_default() += 1;
        contents
            .tensors
            .push(tensor_of(&name, dtype, &view, storage.offset, at, big_endian)?);
    }
    check_ratio(&contents.tensors[first..], places.values())?;
    let opaque = machine
        .named
        .iter()
        .filter(|global| global.allowed && Global::find(&global.module, &global.name).is_none());
    let opaque: Vec<_> = opaque.map(|g| format!("{}.{}", g.module, g.name)).collect();
    if !opaque.is_empty() {
        contents.notes.push(format!(
            "objects of {} are opaque: what they hold is not read",
            opaque.join(", ")
        ));
    }
    contents.notes.extend(note_of_shared(users.values()));
    Ok(())
}

/// The note on tensors that share their storage. `users` are the numbers of tensors of each storage.
pub(super) fn note_of_shared<'a>(users: impl Iterator<Item = &'a usize>) -> Option<String> {
    let shared = users.filter(|&&n| n > 1).sum::<usize>();
    (shared > 0).then(|| {
        format!("{shared} tensors share their storage with others; each is written by itself")
    })
}

/// Tells `contents` of the tensors that are not read, and returns the others.
pub(super) fn take_unread(
    found: Vec<FoundTensor>,
    contents: &mut ParsedModel,
) -> Vec<(String, TensorView)> {
    let (mut views, mut asides) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    for FoundTensor { name, tensor } in found {
        match tensor {
            Ok(view) => views.push((name, view)),
            Err(Unread::Refused(what)) => {
                let what = what.to_owned();
                contents.skipped.push(Skipped { name, what });
            }
            Err(Unread::Aside(what)) => asides.entry(what).or_default().push(name),
        }
    }
    contents.notes.extend(asides.iter().map(note_of_asides));
    views
}

/// Most names that a note lists.
const MAX_LISTED: usize = 8;

/// The note that tells of what holds data and is no entry.
fn note_of_asides((what, names): (&&str, &Vec<String>)) -> String {
    let listed: Vec<_> = names
        .iter()
        .take(MAX_LISTED)
        .map(|name| format!("`{name}`"))
        .collect();
    let more = match names.len() - listed.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("left out, as {what}: {}{more}", listed.join(", "))
}
