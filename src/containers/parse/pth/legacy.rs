//! Streams of pickles, as torch wrote them before 1.6: a magic number, a version, facts about the writer's machine,
//! the object, the keys of its storages, and then each storage as its length in elements and its bytes.

use std::collections::HashMap;

use super::input::Input;
use super::pickle::Machine;
use super::storage::{Keys, Place, Storage};
use super::value::{Id, Node};
use super::{PickleGlobal, not_empty, record, tensors};
use crate::ParsedModel;
use crate::containers::parse::read_at::ReadAt;
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// The magic number, as its pickle has it.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// Reads a stream. One without the magic number is a single pickle, which can name globals but hold no tensors.
pub(super) fn read(
    source: Source,
    lenient: bool,
    named: &mut Vec<PickleGlobal>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let mut file = &source;
    let len = ReadAt::len(&file);
    let mut machine = Machine::new(Input::new(&mut file, 0, len, budget), lenient);
    let contents = read_stream(&mut machine);
    record(&machine, named);
    drop(machine);
    let mut contents = contents?;
    contents.sources.push(source);
    if lenient {
        Ok(contents)
    } else {
        not_empty(contents)
    }
}

fn read_stream(machine: &mut Machine<'_>) -> Result<ParsedModel> {
    let first = machine.run()?;
    if machine.lenient {
        // The magic number can be spelled in many ways, and its pickles follow all the same.
        let number = matches!(
            machine.values.node(first),
            Node::Int(_) | Node::BigInt(_) | Node::Opaque
        );
        for _ in 0..if number { 4 } else { 0 } {
            if machine.input.position() < machine.input.file_len {
                machine.run()?;
            }
        }
        return Ok(ParsedModel::new(machine.input.at));
    }
    let is_magic = matches!(machine.values.node(first), Node::BigInt(range) if machine.input.bytes(range) == MAGIC);
    if !is_magic {
        return tensors::walk(first, machine).map(|_| ParsedModel::new(machine.input.at));
    }
    let version = machine.run()?;
    if !matches!(machine.values.node(version), Node::Int(1001)) {
        return Err(AnamnesisError::unsupported(
            "PyTorch checkpoint",
            "a version other than 1001 of the legacy format",
        ));
    }
    // Facts about the writer's machine. Its byte order is among them, but data was always written little-endian.
    machine.run()?;
    let root = machine.run()?;
    let keys = machine.run()?;
    let mut contents = ParsedModel::new(machine.input.at);
    let found = tensors::walk_with(root, machine, &mut contents.facts)?;
    machine.input.budget.items(found.len() as u64, "tensors")?;
    let mut read = Keys::default();
    let places = read_storages(keys, machine, &mut read)?;
    let place = |storage: &Storage, _: &mut ParsedModel| {
        let what = || {
            AnamnesisError::parse(format!(
                "its storage `{}` is not in the file",
                storage.key.text
            ))
        };
        places.get(&storage.key.number).copied().ok_or_else(what)
    };
    tensors::add(found, machine, &mut read, false, place, &mut contents)?;
    Ok(contents)
}

/// Where the storages are, by key. How long one is depends on its element type, which only the object says.
fn read_storages(
    keys: Id,
    machine: &mut Machine<'_>,
    read: &mut Keys,
) -> Result<HashMap<usize, Place>> {
    let wrong = |what: &str| AnamnesisError::parse(format!("PyTorch checkpoint: {what}"));
    let sizes = storage_sizes(machine, read)?;
    let Node::List(keys) = machine.values.node(keys) else {
        return Err(wrong("the keys of its storages are no list"));
    };
    let mut places = HashMap::new();
    for key in keys.clone() {
        let key = read
            .read(key, machine)?
            .ok_or_else(|| wrong("a storage's key is no text"))?;
        let range = machine.input.take(8)?;
        let bytes = machine.input.bytes(&range);
        let elements = bytes
            .iter()
            .rev()
            .fold(0, |n: u64, &b| n << 8 | u64::from(b));
        let size = sizes
            .get(&key.number)
            .copied()
            .ok_or_else(|| wrong("a storage that no tensor has"))?;
        let offset = machine.input.position();
        let file_len = machine.input.file_len;
        let len = elements
            .checked_mul(size)
            .filter(|len| offset.checked_add(*len).is_some_and(|end| end <= file_len));
        let len = len.ok_or_else(|| {
            wrong(&format!(
                "storage `{}` of {elements} elements is truncated",
                key.text
            ))
        })?;
        machine.input.skip(len);
        if places
            .insert(
                key.number,
                Place {
                    source: 0,
                    offset,
                    len,
                    crc: None,
                },
            )
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

/// Bytes of an element of each storage that the object refers to.
fn storage_sizes(machine: &Machine<'_>, read: &mut Keys) -> Result<HashMap<usize, u64>> {
    let mut sizes = HashMap::new();
    for id in machine.values.persistent() {
        let storage = Storage::read(id, machine, read)?;
        let size = storage.element.map_or(1, |element| element.size as u64);
        if sizes
            .insert(storage.key.number, size)
            .is_some_and(|other| other != size)
        {
            return Err(AnamnesisError::parse(
                "PyTorch checkpoint: a storage of two element types",
            ));
        }
    }
    Ok(sizes)
}
