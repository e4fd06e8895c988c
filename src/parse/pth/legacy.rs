//! Legacy checkpoints, as torch wrote them before 1.6: five pickles (a magic number, a version,
//! properties of the writer's machine, the object, the keys of its storages), and then each storage
//! as its length in elements and its bytes.

use std::collections::HashMap;

use super::arrays;
use super::input::PickleInput;
use super::ndarray::array_global;
use super::objects::{ObjectForm, class, of_module};
use super::pickle::PickleMachine;
use super::storage::{Storage, StorageKeys, StoragePlace};
use super::value::{Node, NodeId};
use super::{PickleGlobal, not_empty, record_globals, tensors};
use crate::ParsedModel;
use crate::limits::Budget;
use crate::parse::read_at::ReadAt;
use crate::source::Source;
use crate::{AnamnesisError, Container, Result};

/// The magic number, a `LONG1` of ten little-endian bytes.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// Reads a legacy stream from `file`, whose data is in `source`, and appends the globals that it
/// names to `named`. With `lenient`, errors are passed over and only the globals are of use. A file
/// without the magic number is a single pickle, which can name globals but has no storages, and so
/// no tensors.
pub(super) fn read(
    file: &mut dyn ReadAt,
    source: Source,
    lenient: bool,
    named: &mut Vec<PickleGlobal>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let len = file.len();
    let mut machine = PickleMachine::new(PickleInput::new(&mut *file, 0, len, budget), lenient);
    let contents = read_stream(&mut machine, &mut 0);
    record_globals(&machine, named);
    let is_stream = has_magic(0, &machine);
    drop(machine);
    let mut contents = match contents {
        Err(AnamnesisError::DisallowedGlobal { module, name })
            if !lenient && !is_stream && array_global(&module, &name).is_some() =>
        {
            return arrays::read(file, source, budget);
        }
        Err(error @ AnamnesisError::DisallowedGlobal { .. }) if !lenient => {
            // It may be a whole module, whose classes are opaque names.
            let mut machine = PickleMachine::new(PickleInput::new(file, 0, len, budget), false);
            machine.more_globals = class;
            let mut modules = 0;
            let contents = read_stream(&mut machine, &mut modules);
            of_module(contents, modules, error)?
        }
        contents => contents?,
    };
    contents.sources.push(source);
    if lenient {
        Ok(contents)
    } else {
        not_empty(contents)
    }
}

/// Reads a stream. `modules` is the number of modules whose tensors have been found.
fn read_stream(machine: &mut PickleMachine<'_>, modules: &mut usize) -> Result<ParsedModel> {
    let first = machine.run()?;
    if machine.lenient {
        // An integer can be written with many opcodes, or be computed, and torch compares its
        // value. So anything that may be the magic number counts as such here, and the four pickles
        // behind it are run, too.
        let number =
            matches!(machine.values.node(first), Node::Int(_) | Node::BigInt(_) | Node::Opaque);
        for _ in 0..if number { 4 } else { 0 } {
            if machine.input.position() < machine.input.file_len {
                machine.run()?;
            }
        }
        return Ok(ParsedModel::new(Container::Pth, machine.input.at));
    }
    if matches!(machine.values.node(first), Node::Record(..)) {
        let advice = "give the directory that it is in";
        let what = "the metadata of a distributed checkpoint";
        return Err(AnamnesisError::unsupported(what, advice));
    }
    if !has_magic(first, machine) {
        return tensors::walk(first, machine)
            .map(|_| ParsedModel::new(Container::Pth, machine.input.at));
    }
    let version = machine.run()?;
    if !matches!(machine.values.node(version), Node::Int(1001)) {
        return Err(AnamnesisError::unsupported(
            "PyTorch checkpoint",
            "a version other than 1001 of the legacy format",
        ));
    }
    // Properties of the writer's machine. They include its byte order, but data was always written
    // little-endian.
    machine.run()?;
    let root = machine.run()?;
    let keys = machine.run()?;
    let mut contents = ParsedModel::new(Container::Pth, machine.input.at);
    let form = ObjectForm::Python;
    let walked = tensors::walk_with_facts(root, machine, form, &mut contents.facts)?;
    let found = walked.found;
    *modules = walked.modules;
    machine.input.budget.items(found.len() as u64, "tensors")?;
    let mut read = StorageKeys::default();
    let places = read_storages(keys, machine, &mut read)?;
    let place = |storage: &Storage, _: &mut ParsedModel| {
        let what = || {
            AnamnesisError::parse(format!("its storage `{}` is not in the file", storage.key.text))
        };
        places.get(&storage.key.number).copied().ok_or_else(what)
    };
    tensors::add(found, machine, &mut read, false, place, &mut contents)?;
    Ok(contents)
}

/// Whether a value is the magic number of a stream.
fn has_magic(value: NodeId, machine: &PickleMachine<'_>) -> bool {
    matches!(machine.values.node(value), Node::BigInt(range) if machine.input.bytes(range) == MAGIC)
}

/// Finds the storages, by the number of their key. The file has their lengths in elements; the
/// element types are in the object's persistent ids. Storages must be contiguous and reach to the
/// end of the file.
fn read_storages(
    keys: NodeId,
    machine: &mut PickleMachine<'_>,
    read: &mut StorageKeys,
) -> Result<HashMap<usize, StoragePlace>> {
    let wrong = |what: &str| AnamnesisError::parse(format!("PyTorch checkpoint: {what}"));
    let described = described_storages(machine, read)?;
    let Node::List(keys) = machine.values.node(keys) else {
        return Err(wrong("the keys of its storages are no list"));
    };
    let mut places = HashMap::new();
    for key in keys.clone() {
        let key = read
            .intern(key, machine)?
            .ok_or_else(|| wrong("a storage's key is no text"))?;
        let range = machine.input.take(8)?;
        let bytes = machine.input.bytes(&range);
        let elements = bytes
            .iter()
            .rev()
            .fold(0, |n: u64, &b| n << 8 | u64::from(b));
        let &(size, described_len) = described
            .get(&key.number)
            .ok_or_else(|| wrong("a storage that no tensor has"))?;
        let offset = machine.input.position();
        let file_len = machine.input.file_len;
        let len = elements
            .checked_mul(size)
            .filter(|len| offset.checked_add(*len).is_some_and(|end| end <= file_len));
        let len = len.ok_or_else(|| {
            wrong(&format!("storage `{}` of {elements} elements is truncated", key.text))
        })?;
        if elements != described_len {
            let what = format!(
                "storage `{}` has {elements} elements, and its tensors say {described_len}",
                key.text
            );
            return Err(wrong(&what));
        }
        machine.input.skip(len);
        if places
            .insert(key.number, StoragePlace { source: 0, offset, len, crc: None })
            .is_some()
        {
            return Err(wrong("a storage is there twice"));
        }
    }
    if machine.input.position() != machine.input.file_len {
        return Err(wrong("there is data behind its last storage"));
    }
    Ok(places)
}

/// Bytes of an element, and the number of elements, of each storage that the object refers to, by
/// the number of its key.
fn described_storages(
    machine: &PickleMachine<'_>,
    read: &mut StorageKeys,
) -> Result<HashMap<usize, (u64, u64)>> {
    let mut described = HashMap::new();
    for id in machine.values.persistent_ids() {
        let storage = Storage::from_persistent_id(id, machine, read)?;
        let size = storage.element.map_or(1, |element| element.size as u64);
        let (number, this) = (storage.key.number, (size, storage.len as u64));
        if described
            .insert(number, this)
            .is_some_and(|other| other != this)
        {
            return Err(AnamnesisError::parse(
                "PyTorch checkpoint: a storage of two element types or lengths",
            ));
        }
    }
    Ok(described)
}
