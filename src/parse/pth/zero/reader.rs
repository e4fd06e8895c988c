//! Reads the values of a checkpoint's pickles: names, shapes and tensors.

use std::collections::{HashMap, HashSet};

use super::super::archive::OpenedArchive;
use super::super::pickle::{PickleMachine, wrong};
use super::super::records::Record;
use super::super::storage::{Storage, StorageKeys, StoragePlace};
use super::super::value::{Node, NodeId};
use super::super::views::tensor_of;
use crate::error::InTensor;
use crate::limits::Budget;
use crate::model::{Skipped, TensorInfo};
use crate::parse::zip::{ZipArchive, ZipMember};
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// The elements of a process's part of a group that are of one parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fragment {
    pub start: usize,
    pub len: usize,
}

/// Bytes of a name, or dimensions of a shape, that take the memory of a metadata key.
const KEY_LEN: u64 = 32;

/// Names of parameters with their shapes, in their order.
pub(super) type Shapes = Vec<(String, Vec<usize>)>;

/// What the module of a checkpoint has and the optimizer does not.
#[derive(Default)]
pub(super) struct ModuleTensors {
    /// Buffers, and parameters that the module alone has: stage 1 keeps those that are not trained
    /// nowhere else.
    pub tensors: Vec<TensorInfo>,
    /// Names of the parameters among them.
    pub parameters: Vec<String>,
    /// Those of a kind that is not read, or whose values are in no file.
    pub skipped: Vec<Skipped>,
}

/// Reads the values of a file's pickle.
pub(super) struct StateReader<'a, 'b> {
    machine: &'a PickleMachine<'b>,
    opened: &'a OpenedArchive<'b>,
    source: &'a Source,
    /// Number of the file.
    number: usize,
    archive: &'a ZipArchive,
    budget: &'a Budget,
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
        let members = archive.members.iter();
        Self {
            machine: &opened.machine,
            opened,
            source,
            number,
            archive,
            budget,
            members: members.map(|m| (m.name.as_str(), m)).collect(),
            keys: StorageKeys::default(),
            known: HashMap::new(),
            places,
        }
    }

    /// Refuses a checkpoint of tensor, pipeline or expert parallelism.
    pub(super) fn require_whole_weights(&self, root: NodeId) -> Result<()> {
        let refused =
            |what: String| Err(AnamnesisError::unsupported("checkpoint of DeepSpeed", what));
        let degrees = self.optional(root, "checkpoint_parallel_dimensions")?;
        let in_degrees = |key| degrees.map_or(Ok(None), |id| self.optional(id, key));
        for (key, value) in [
            ("mp_world_size", self.optional(root, "mp_world_size")?),
            ("pp_degree", in_degrees("pp_degree")?),
            ("tp_degree", in_degrees("tp_degree")?),
        ] {
            let n = value.map(|id| self.machine.values.node(id));
            if !matches!(n, None | Some(Node::Int(1))) {
                return refused(format!(
                    "its `{key}` is not 1: weights lie in parts, which are not joined"
                ));
            }
        }
        for key in ["ds_autoep_layers", "autoep_layers"] {
            let layers = self.optional(root, key)?;
            if layers.is_some_and(
                |id| !matches!(self.machine.values.node(id), Node::List(items) if items.is_empty()),
            ) {
                return refused(format!(
                    "it has `{key}`: experts lie in parts, which are not joined"
                ));
            }
        }
        Ok(())
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

    /// Whether the configuration in the file has `round_robin_gradients`.
    pub(super) fn is_reordered(&self, root: NodeId) -> Result<bool> {
        let mut at = root;
        for key in ["ds_config", "zero_optimization", "round_robin_gradients"] {
            let found = match self.machine.values.node(at) {
                Node::Dict(_) => self.optional(at, key)?,
                _ => None,
            };
            match found {
                Some(found) => at = found,
                None => return Ok(false),
            }
        }
        Ok(matches!(self.machine.values.node(at), Node::Bool(true)))
    }

    pub(super) fn required(&self, id: NodeId, key: &str) -> Result<NodeId> {
        let missing = || wrong(&format!("no `{key}`, which checkpoints of ZeRO have"));
        self.optional(id, key)?.ok_or_else(missing)
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

    fn text(&self, id: NodeId) -> Result<&'a str> {
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

    pub(super) fn shapes(&self, id: NodeId) -> Result<Shapes> {
        let shape = |&(key, value): &(NodeId, NodeId)| {
            let name = self.name(key)?;
            let shape = self.machine.values.sizes(value);
            let shape = shape.ok_or_else(|| wrong(&format!("`{name}` has no shape")))?;
            self.budget.tables(0, shape.len() as u64 / KEY_LEN, 0)?;
            Ok((name, shape))
        };
        self.entries(id)?.iter().map(shape).collect()
    }

    /// This process's part of each parameter that is not trained.
    pub(super) fn fragments(&mut self, root: NodeId) -> Result<HashMap<String, TensorInfo>> {
        let mut fragments = HashMap::new();
        if let Some(found) = self.optional(root, "frozen_param_fragments")? {
            for &(key, value) in self.entries(found)? {
                let name = self.name(key)?;
                let info = self.readable(&name, value)?;
                fragments.insert(name, info);
            }
        }
        Ok(fragments)
    }

    /// Where parameters lie in a process's part of each group (`param_slice_mappings`); nothing if
    /// they are written in another form than that of a dataclass.
    pub(super) fn fragment_lists(&self, id: NodeId) -> Result<Vec<HashMap<String, Fragment>>> {
        let is_known = |&(_, value): &(NodeId, NodeId)| {
            matches!(self.machine.values.node(value), Node::Record(_, Some(_)))
        };
        let mut lists = vec![];
        for &group in self.items(id)? {
            let entries = self.entries(group)?;
            if !entries.iter().all(is_known) {
                return Ok(vec![]);
            }
            let fragment = |&(key, value): &(NodeId, NodeId)| {
                let name = self.name(key)?;
                let number = |field| -> Result<usize> {
                    let value = self.machine.required(value, Record::Fragment, field)?;
                    let what = || wrong(&format!("`param_slice_mappings` of `{name}` are none"));
                    self.machine.values.size(value).ok_or_else(what)
                };
                let (start, len) = (number("start")?, number("numel")?);
                Ok((name, Fragment { start, len }))
            };
            lists.push(entries.iter().map(fragment).collect::<Result<_>>()?);
        }
        Ok(lists)
    }

    /// The weights of `parameters` that the module has as well, in 16 bits.
    pub(super) fn module_weights(
        &mut self,
        root: NodeId,
        parameters: &HashSet<&str>,
    ) -> Result<HashMap<String, TensorInfo>> {
        let mut weights = HashMap::new();
        let module = self.required(root, "module")?;
        for &(key, value) in self.entries(module)? {
            let is_tensor = matches!(self.machine.values.node(value), Node::Tensor(_));
            if !is_tensor || !parameters.contains(self.text(key)?) {
                continue;
            }
            let name = self.name(key)?;
            if let Ok(info) = self.tensor(&name, value)? {
                weights.insert(name, info);
            }
        }
        Ok(weights)
    }

    /// What the module alone has: buffers, and parameters that are not `elsewhere`, in groups or
    /// lists. Stage 1 has those that are not trained there, and `zero_to_fp32.py` loses them.
    pub(super) fn module(
        &mut self,
        root: NodeId,
        elsewhere: &HashSet<&str>,
    ) -> Result<ModuleTensors> {
        let buffer_names = self.required(root, "buffer_names")?;
        let buffer_names: HashSet<&str> = (self.items(buffer_names)?.iter())
            .map(|&id| self.text(id))
            .collect::<Result<_>>()?;
        let mut found = ModuleTensors::default();
        let module = self.required(root, "module")?;
        for &(key, value) in self.entries(module)? {
            let is_buffer = buffer_names.contains(self.text(key)?);
            if !is_buffer && elsewhere.contains(self.text(key)?) {
                continue;
            }
            let name = self.name(key)?;
            let what = match self.machine.values.node(value) {
                Node::Tensor(_) | Node::Refused(_) => match self.tensor(&name, value)? {
                    Ok(info) if is_buffer || info.len > 0 => {
                        found.tensors.push(info);
                        if !is_buffer {
                            found.parameters.push(name);
                        }
                        continue;
                    }
                    // Stage 3 leaves an empty tensor in the place of each parameter.
                    Ok(_) => "parameter whose values are in no file of the checkpoint",
                    Err(what) => what,
                },
                _ => "value of the module that is no tensor",
            };
            let what = what.to_owned();
            found.skipped.push(Skipped { name, what });
        }
        Ok(found)
    }

    /// The tensor `id`, which must be of a kind that is read.
    pub(super) fn readable(&mut self, name: &str, id: NodeId) -> Result<TensorInfo> {
        self.tensor(name, id)?
            .map_err(|what| AnamnesisError::unsupported(what, format!("{}", InTensor(&name))))
    }

    /// The tensor `id` under the name `name`. `Err` inside says what it is if it is of a kind that
    /// is not read.
    fn tensor(
        &mut self,
        name: &str,
        id: NodeId,
    ) -> Result<std::result::Result<TensorInfo, &'static str>> {
        let about = |e: AnamnesisError| e.about(InTensor(&name));
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
        let member = format!("{}data/{}", self.opened.prefix, storage.key.text);
        let missing =
            || AnamnesisError::parse(format!("its storage `{member}` is not in the archive"));
        let member = self.members.get(member.as_str()).ok_or_else(missing)?;
        if member.deflated {
            let what = "a compressed archive in a checkpoint of DeepSpeed";
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
