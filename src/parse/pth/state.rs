//! Reads the values of a pickle in one of the files of a checkpoint: dicts, names and tensors.

use std::collections::HashMap;

use super::archive::{OpenedArchive, find_storage, members_by_name};
use super::pickle::{PickleMachine, wrong};
use super::storage::{Storage, StorageKeys, StoragePlace};
use super::value::{Node, NodeId};
use super::views::tensor_of;
use crate::error::InTensor;
use crate::limits::Budget;
use crate::model::TensorInfo;
use crate::parse::zip::{ZipArchive, ZipMember};
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Bytes of a name, or dimensions of a shape, that take the memory of a metadata key.
pub(super) const KEY_LEN: u64 = 32;

/// Reads the values of a file's pickle.
pub(super) struct StateReader<'a, 'b> {
    pub(super) machine: &'a PickleMachine<'b>,
    opened: &'a OpenedArchive<'b>,
    source: &'a Source,
    /// Number of the file.
    number: usize,
    archive: &'a ZipArchive,
    pub(super) budget: &'a Budget,
    members: HashMap<&'a str, &'a ZipMember>,
    keys: StorageKeys,
    /// The storages that have been found, by their keys.
    known: HashMap<usize, StoragePlace>,
    places: &'a mut Vec<StoragePlace>,
}

impl<'a, 'b> StateReader<'a, 'b> {
    pub(super) fn new(
        opened: &'a OpenedArchive<'b>,
        (source, number): (&'a Source, usize),
        (archive, budget): (&'a ZipArchive, &'a Budget),
        places: &'a mut Vec<StoragePlace>,
    ) -> Self {
        Self {
            machine: &opened.machine,
            opened,
            source,
            number,
            archive,
            budget,
            members: members_by_name(archive),
            keys: StorageKeys::default(),
            known: HashMap::new(),
            places,
        }
    }

    /// The value of `key` in the dict `id`; `None` if it is not there, or is `None`.
    pub(super) fn optional(&self, id: NodeId, key: &str) -> Result<Option<NodeId>> {
        let is_key = |id: NodeId| matches!(self.machine.values.node(id), Node::Str(range) if self.machine.input.bytes(range) == key.as_bytes());
        let mut found = self.entries(id)?.iter().filter(|(id, _)| is_key(*id));
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(wrong(&format!("a dict has the key `{key}` twice"))),
            (found, _) => Ok(found
                .map(|&(_, value)| value)
                .filter(|&value| !matches!(self.machine.values.node(value), Node::None))),
        }
    }

    pub(super) fn entries(&self, id: NodeId) -> Result<&'a [(NodeId, NodeId)]> {
        match self.machine.values.node(id) {
            Node::Dict(entries) => Ok(entries),
            _ => Err(wrong("expected a dict")),
        }
    }

    pub(super) fn items(&self, id: NodeId) -> Result<&'a [NodeId]> {
        match self.machine.values.node(id) {
            Node::List(items) | Node::Tuple(items) => Ok(items),
            _ => Err(wrong("expected a list")),
        }
    }

    pub(super) fn text(&self, id: NodeId) -> Result<&'a str> {
        match self.machine.values.node(id) {
            Node::Str(range) => self.machine.input.text(range),
            _ => Err(wrong("a name that is no text")),
        }
    }

    /// The name `id` of a tensor, and counts the memory that the tensor takes: a pickle may name a
    /// dict, or a long text, many times in a byte or two each.
    pub(super) fn name(&self, id: NodeId) -> Result<String> {
        let name = self.text(id)?;
        self.budget.tables(1, name.len() as u64 / KEY_LEN, 0)?;
        Ok(name.to_owned())
    }

    /// The tensor `id`, which must be of a kind that is read.
    pub(super) fn readable(&mut self, name: &str, id: NodeId) -> Result<TensorInfo> {
        self.tensor(name, id)?
            .map_err(|what| AnamnesisError::unsupported(what, format!("{}", InTensor(&name))))
    }

    /// The tensor `id` under the name `name`. `Err` inside says what it is if it is of a kind that
    /// is not read.
    pub(super) fn tensor(
        &mut self,
        name: &str,
        id: NodeId,
    ) -> Result<std::result::Result<TensorInfo, &'static str>> {
        let about = |e: AnamnesisError| e.in_tensor(name);
        let view = match self.machine.values.node(id) {
            Node::Tensor(view) => view,
            Node::Refused(what) => return Ok(Err(what)),
            _ => return Err(about(wrong("it is no tensor"))),
        };
        let &Node::Persistent(storage) = self.machine.values.node(view.storage) else {
            return Err(about(wrong("it has no storage")));
        };
        let storage =
            Storage::from_persistent_id(storage, self.machine, &mut self.keys).map_err(about)?;
        let place = match self.known.get(&storage.key.number) {
            Some(&place) => place,
            None => self.place(&storage).map_err(about)?,
        };
        let dtype = view.dtype.or(storage.element.map(|element| element.dtype));
        let Some(dtype) = dtype.flatten() else {
            return Ok(Err("tensor of a dtype that is not read"));
        };
        let big_endian = self.opened.big_endian;
        tensor_of(name, dtype, view, storage.offset, place, big_endian).map(Ok)
    }

    /// Where the bytes of a storage are in the file.
    fn place(&mut self, storage: &Storage) -> Result<StoragePlace> {
        let data = format!("{}data/", self.opened.prefix);
        let member = find_storage(&self.members, &data, storage)?;
        if member.deflated {
            let what = "a compressed archive in a checkpoint of several files";
            return Err(AnamnesisError::unsupported(what, "torch stores tensors as they are"));
        }
        storage.check_len(member.len)?;
        let place = StoragePlace {
            source: self.number,
            offset: self.archive.read_data_start(&mut self.source, member)?,
            len: member.len,
            crc: Some(member.crc).filter(|&crc| crc != 0),
        };
        self.known.insert(storage.key.number, place);
        self.places.push(place);
        Ok(place)
    }
}
