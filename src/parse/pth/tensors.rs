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
use super::keys::{key_name, number_of};
use super::objects::{ModuleState, ObjectForm, module_state};
use super::pickle::PickleMachine;
use super::records::Record;
use super::storage::{Storage, StorageKeys, StoragePlace};
use super::subclass::{self, PartsOfTensor};
use super::value::{Node, NodeId, TensorView};
use super::views::{check_ratio, tensor_of};
use crate::ParsedModel;
use crate::limits::join_first;
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
    id: NodeId,
    pub name: String,
    pub tensor: std::result::Result<TensorView, Unread>,
}

/// The tensors that were found, in the order of the pickle, and the number of modules that they are
/// of.
pub(super) struct WalkedTensors {
    pub found: Vec<FoundTensor>,
    pub modules: usize,
}

/// Why a tensor is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is of a kind that is not read; the text says which.
    Refused(&'static str),
    /// It is no entry of a container, and is left out with a note; the text says what it is.
    Aside(&'static str),
}

const OF_A_SET: Unread = Unread::Refused("item of a set, which has no name");
const ATTRIBUTE: Unread = Unread::Aside(ATTRIBUTES);
const ATTRIBUTES: &str = "attributes of other values";
const STORAGE: Unread = Unread::Aside("storages without a tensor");
const NO_DATA: Unread = Unread::Refused("tensor that was given no data");
const BY_ITSELF: Unread = Unread::Aside(OF_MODULES);
const OF_MODULES: &str = "attributes of modules";
/// A module of a module, which is read after all.
const PART: Unread = Unread::Aside("modules that are none");
const LOST: Unread = Unread::Aside("buffers that are not persistent");
const OWN_STATE: Unread = Unread::Refused("tensor of a module that has a state of its own");
const NO_TENSOR: Unread = Unread::Refused("parameter or buffer of a class that is not known");
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
    Ok(walk_all(root, machine, (false, ObjectForm::Python), &mut HashMap::new())?.found)
}

/// Finds every tensor below `root`, whose objects are of the form `form`, and adds the values that describe quantized weights to `facts`,
/// by path.
pub(super) fn walk_with_facts(
    root: NodeId,
    machine: &PickleMachine<'_>,
    form: ObjectForm,
    facts: &mut HashMap<String, String>,
) -> Result<WalkedTensors> {
    walk_all(root, machine, (false, form), facts)
}

/// Finds every tensor below `root` in a tar checkpoint, where a persistent id stands for a tensor.
/// Of the views that are returned, only the `storage` means anything: it is the persistent id.
pub(super) fn walk_persistent(
    root: NodeId,
    machine: &PickleMachine<'_>,
) -> Result<Vec<FoundTensor>> {
    Ok(walk_all(root, machine, (true, ObjectForm::Python), &mut HashMap::new())?.found)
}

/// The walk behind the three functions above. `persistent`: persistent ids are tensors.
fn walk_all(
    root: NodeId,
    machine: &PickleMachine<'_>,
    (persistent, form): (bool, ObjectForm),
    facts: &mut HashMap<String, String>,
) -> Result<WalkedTensors> {
    let mut walk = TensorWalk {
        machine,
        persistent,
        form,
        facts,
        found: Vec::new(),
        modules: 0,
        told: HashSet::new(),
        steps: machine.values.len() * 4 + 100_000,
        charged: 0,
    };
    let (id, name, unread) = (root, String::new(), None);
    let mut stack = vec![(Place { id, name, unread }, 0usize)];
    while let Some((place, depth)) = stack.pop() {
        let is_told = place.unread.is_some_and(|unread| unread != PART);
        if is_told && (depth > MAX_DEPTH || !walk.told.insert(place.id)) {
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
    let (mut found, modules) = (walk.found, walk.modules);
    if modules > 0 {
        // Attributes of modules often refer to modules of the tree.
        let is_read = |found: &&FoundTensor| found.tensor.is_ok();
        let read: HashSet<NodeId> = found.iter().filter(is_read).map(|found| found.id).collect();
        let is_aside = |found: &FoundTensor| matches!(found.tensor, Err(Unread::Aside(_)));
        found.retain(|found| !(is_aside(found) && read.contains(&found.id)));
    }
    if let [only] = found.as_mut_slice()
        && only.name.is_empty()
    {
        only.name = "tensor".to_owned();
    }
    Ok(WalkedTensors { found, modules })
}

fn beyond_working_set(what: &str) -> AnamnesisError {
    AnamnesisError::LimitExceeded { limit: "MAX_PICKLE_WORKING_SET", message: what.to_owned() }
}

/// The state of a walk.
struct TensorWalk<'a, 'i> {
    machine: &'a PickleMachine<'i>,
    persistent: bool,
    form: ObjectForm,
    facts: &'a mut HashMap<String, String>,
    found: Vec<FoundTensor>,
    /// Modules of Python so far.
    modules: usize,
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
            &Node::Record(Record::Object, Some(state)) => {
                self.visit_object((id, state), &name, unread)?
            }
            &Node::Record(Record::Subclass(class), Some(state)) => {
                self.visit_subclass(id, (class, state), name, unread)?;
                return Ok(Vec::new());
            }
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
            // Quantized layers keep their weights in an attribute.
            Node::Refused(what) => Err(match unread {
                None | Some(Unread::Aside(OF_MODULES)) => Unread::Refused(what),
                Some(unread) => unread,
            }),
            &Node::Persistent(storage) if self.persistent => unread.map_or(
                Ok(TensorView {
                    storage,
                    dtype: None,
                    offset: 0,
                    shape: vec![],
                    strides: vec![],
                    big_endian: false,
                }),
                Err,
            ),
            Node::Persistent(_) => Err(STORAGE),
            _ => return Ok(below),
        };
        let dimensions = tensor.as_ref().map_or(0, |view| view.shape.len());
        self.charge(TENSOR_BYTES + name.len() + dimensions * 32)?;
        self.found.push(FoundTensor { id, name, tensor });
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
            // writer repeats one. 1 and "1" are two keys, although their names are equal, and 1,
            // True and 1.0 are one.
            let short_name = key_name(key, machine, 0)?;
            let name = join(name, &short_name);
            self.charge(name.len() + short_name.len())?;
            let typed_key = match number_of(machine.values.node(key)) {
                Some(number) => (None, number.to_string()),
                None => (Some(std::mem::discriminant(machine.values.node(key))), short_name),
            };
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

    /// What is in an object, and its state.
    fn visit_object(
        &mut self,
        (id, state): (NodeId, NodeId),
        name: &str,
        unread: Option<Unread>,
    ) -> Result<Vec<Place>> {
        self.charge(name.len())?;
        let whole = |unread| vec![Place { id: state, name: name.to_owned(), unread }];
        if self.form == ObjectForm::Script {
            return Ok(whole(unread));
        }
        // Modules that are attributes of objects that are none are read; those that are attributes of
        // modules are no parts of them.
        let is_read = matches!(unread, None | Some(PART | Unread::Aside(ATTRIBUTES)));
        // A state may be that of many objects, each of which looks through it.
        let attributes = match self.machine.values.node(state) {
            Node::Dict(entries) => entries.len(),
            _ => 0,
        };
        self.steps = self.steps.saturating_sub(attributes);
        match module_state(id, self.machine).filter(|_| is_read) {
            Some(module) => self.visit_module(&module, name),
            None if unread == Some(PART) => Ok(whole(Some(OWN_STATE))),
            None => Ok(whole(unread.or(Some(ATTRIBUTE)))),
        }
    }

    /// A tensor that is stored in parts: each is a tensor, and a fact describes them.
    fn visit_subclass(
        &mut self,
        id: NodeId,
        (class, state): (&'static str, NodeId),
        name: String,
        unread: Option<Unread>,
    ) -> Result<()> {
        self.steps = self.steps.saturating_sub(subclass::MAX_FIELDS);
        self.charge(TENSOR_BYTES + name.len())?;
        let parts = match unread {
            Some(unread) => Err(unread),
            None => subclass::parts((id, class, state), self.machine)?.map_err(Unread::Refused),
        };
        let PartsOfTensor { parts, description } = match parts {
            Ok(parts) => parts,
            Err(unread) => {
                self.found
                    .push(FoundTensor { id, name, tensor: Err(unread) });
                return Ok(());
            }
        };
        let name = if name.is_empty() {
            "tensor".to_owned()
        } else {
            name
        };
        for (part, view) in parts {
            let name = match name.rsplit_once('.') {
                Some((module, parameter)) => format!("{module}._{parameter}_{part}"),
                None => format!("_{name}_{part}"),
            };
            self.charge(TENSOR_BYTES + name.len() + view.shape.len() * 32)?;
            self.found.push(FoundTensor { id, name, tensor: Ok(view) });
        }
        self.charge(name.len() + description.len())?;
        self.facts.insert(name, description);
        Ok(())
    }

    /// What is in a module, in the order of `state_dict()`: parameters, buffers, modules.
    fn visit_module(&mut self, module: &ModuleState<'_>, name: &str) -> Result<Vec<Place>> {
        self.modules += 1;
        let machine = self.machine;
        let text = |id: NodeId| match machine.values.node(id) {
            Node::Str(range) => machine.input.bytes(range),
            _ => &[],
        };
        let ModuleState { parameters, buffers, modules, lost, .. } = *module;
        let entries = parameters.len() + buffers.len() + modules.len() + lost.len();
        self.steps = self.steps.saturating_sub(entries);
        let (mut lost_buffers, mut kept) = (vec![], buffers.to_vec());
        if !lost.is_empty() {
            let keys = buffers
                .iter()
                .map(|&(key, _)| key)
                .chain(lost.iter().copied());
            self.charge(keys.map(|id| text(id).len()).sum())?;
            let lost: HashSet<&[u8]> = lost.iter().map(|&id| text(id)).collect();
            (lost_buffers, kept) = kept.iter().partition(|(key, _)| lost.contains(text(*key)));
        }
        let mut below = self.visit_tensors(parameters, name)?;
        below.extend(self.visit_tensors(&kept, name)?);
        let mut inner = self.visit_dict(modules, name, None)?;
        for place in &mut inner {
            place.unread = Some(PART);
        }
        below.extend(inner);
        below.extend(self.visit_dict(&lost_buffers, name, Some(LOST))?);
        below.extend(self.visit_dict(&module.others, name, Some(BY_ITSELF))?);
        Ok(below)
    }

    /// The parameters or buffers of a module. What is no tensor, and not `None`, is told of.
    fn visit_tensors(&mut self, entries: &[(NodeId, NodeId)], name: &str) -> Result<Vec<Place>> {
        let machine = self.machine;
        let is_tensor = |&&(_, value): &&(NodeId, NodeId)| {
            let node = machine.values.node(value);
            matches!(node, Node::Tensor(_) | Node::NewTensor(_) | Node::Refused(_))
                || matches!(node, Node::Record(Record::Subclass(_), Some(_)))
        };
        let (tensors, others): (Vec<_>, Vec<_>) = entries.iter().partition(is_tensor);
        for (key, value) in others {
            if !matches!(machine.values.node(value), Node::None) {
                let name = join(name, &key_name(key, machine, 0)?);
                self.charge(TENSOR_BYTES + name.len())?;
                self.found
                    .push(FoundTensor { id: value, name, tensor: Err(NO_TENSOR) });
            }
        }
        self.visit_dict(&tensors, name, None)
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
            Node::Record(Record::Object | Record::Subclass(_), Some(_)) => true,
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

/// What the names of TorchScript's classes begin with.
const SCRIPT: &str = "__torch__";

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
        let named = |e: AnamnesisError| e.in_tensor(&name);
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
    let opaque = machine.unlisted(Global::Opaque);
    if !opaque.is_empty() {
        contents.notes.push(format!(
            "objects of {} are opaque: what they hold is not read",
            opaque.join(", ")
        ));
    }
    let mut classes = machine.unlisted(Global::Class);
    classes.retain(|class| !class.starts_with(SCRIPT));
    if !classes.is_empty() {
        let named = join_first(&classes, MAX_LISTED);
        contents.notes.push(format!(
            "a whole module: tensors are named by attributes, and nothing of its classes is run: {named}"
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
    for FoundTensor { name, tensor, .. } in found {
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
