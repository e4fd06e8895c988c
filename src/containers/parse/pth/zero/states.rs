//! What the pickles of a checkpoint say: the state of the model, and that of a process's optimizer.

use std::collections::{HashMap, HashSet};

use super::super::globals::Global;
use super::super::pickle::{PickleMachine, wrong};
use super::super::storage::{Storage, StorageKeys};
use super::super::value::{Node, NodeId};
use super::super::views::tensor_of;
use super::super::{OpenedArchive, StoragePlace, run_archive_allowing};
use crate::containers::model::{Skipped, TensorInfo};
use crate::containers::parse::zip::{ZipArchive, ZipMember};
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Names of parameters with their shapes, in their order.
pub(super) type Shapes = Vec<(String, Vec<usize>)>;

/// The state of the model, as one process has written it.
pub(super) struct ModelState {
    /// The parameters of each group of the optimizer.
    pub groups: Vec<Shapes>,
    /// The parameters that are not trained, and this process's part of each by its name.
    pub frozen: Shapes,
    pub fragments: HashMap<String, TensorInfo>,
    pub buffers: Vec<TensorInfo>,
    /// Buffers of a kind that is not read.
    pub skipped: Vec<Skipped>,
    /// Names of parameters that share the values of another, and that.
    pub shared: Vec<(String, String)>,
    /// Bytes of the pickle.
    pub header_size: usize,
}

/// The state of a process's optimizer.
pub(super) struct OptimizerState {
    pub stage: usize,
    /// Number of processes that share the groups.
    pub processes: usize,
    /// The process's part of each group, in F32.
    pub groups: Vec<TensorInfo>,
}

/// Globals of DeepSpeed in the states of optimizers.
fn globals_of_deepspeed(module: &str, name: &str) -> Option<Global> {
    match (module, name) {
        ("deepspeed.runtime.zero.config", "ZeroStageEnum") => Some(Global::Number),
        (
            "deepspeed.runtime.fp16.loss_scaler",
            "LossScaler" | "DynamicLossScaler" | "LossScaleConfig" | "LossScaleProfile",
        )
        | ("deepspeed.utils.tensor_fragment", "fragment_address") => Some(Global::Opaque),
        _ => None,
    }
}

/// Reads the state of the model in the file `source`, which has this number, and adds the storages of its tensors to `places`.
///
/// # Errors
/// `Parse` if it is none, or malformed; `Unsupported` for parallelism that leaves parts of weights in other files;
/// `DisallowedGlobal`; `LimitExceeded`; `Io`.
pub(super) fn read_model_state(
    source: &Source,
    number: usize,
    places: &mut Vec<StoragePlace>,
    budget: &Budget,
) -> Result<ModelState> {
    let archive = ZipArchive::read(&mut &*source, budget)?;
    let opened = open(source, &archive, budget)?;
    let mut reader = StateReader::new(&opened, (source, number), &archive, places);
    let root = opened.root;
    reader.require_whole_weights(root)?;
    let buffer_names = reader.required(root, "buffer_names")?;
    let buffer_names: HashSet<String> = (reader.items(buffer_names)?.iter())
        .map(|&id| reader.text(id).map(str::to_owned))
        .collect::<Result<_>>()?;
    let (mut buffers, mut skipped) = (vec![], vec![]);
    let module = reader.required(root, "module")?;
    for &(key, value) in reader.entries(module)? {
        let name = reader.text(key)?;
        if !buffer_names.contains(name) {
            continue;
        }
        match reader.tensor(name, value)? {
            Ok(info) => buffers.push(info),
            Err(what) => skipped.push(Skipped {
                name: name.to_owned(),
                what: what.to_owned(),
            }),
        }
    }
    let groups = reader.required(root, "param_shapes")?;
    let groups = (reader.items(groups)?.iter())
        .map(|&group| reader.shapes(group))
        .collect::<Result<_>>()?;
    let frozen = match reader.optional(root, "frozen_param_shapes")? {
        Some(shapes) => reader.shapes(shapes)?,
        None => vec![],
    };
    let mut fragments = HashMap::new();
    if let Some(found) = reader.optional(root, "frozen_param_fragments")? {
        for &(key, value) in reader.entries(found)? {
            let name = reader.text(key)?;
            let info = reader.readable(name, value)?;
            fragments.insert(name.to_owned(), info);
        }
    }
    let mut shared = vec![];
    if let Some(found) = reader.optional(root, "shared_params")? {
        for &(key, value) in reader.entries(found)? {
            shared.push((reader.text(key)?.to_owned(), reader.text(value)?.to_owned()));
        }
    }
    Ok(ModelState {
        groups,
        frozen,
        fragments,
        buffers,
        skipped,
        shared,
        header_size: opened.machine.input.at,
    })
}

/// Reads the state of an optimizer in the file `source`, which has this number.
///
/// # Errors
/// As [`read_model_state`].
pub(super) fn read_optimizer_state(
    source: &Source,
    number: usize,
    places: &mut Vec<StoragePlace>,
    budget: &Budget,
) -> Result<OptimizerState> {
    let archive = ZipArchive::read(&mut &*source, budget)?;
    let opened = open(source, &archive, budget)?;
    let mut reader = StateReader::new(&opened, (source, number), &archive, places);
    let state = reader.required(opened.root, "optimizer_state_dict")?;
    let values = &opened.machine.values;
    let stage = reader.required(state, "zero_stage")?;
    let stage = values
        .size(stage)
        .ok_or_else(|| wrong("`zero_stage` is no number"))?;
    let processes = reader.required(state, "partition_count")?;
    // Groups may have counts of their own, of which the largest is that of the processes.
    let processes = match values.size(processes) {
        Some(processes) => Some(processes),
        None => (values.sizes(processes)).and_then(|counts| counts.into_iter().max()),
    };
    let processes = processes.ok_or_else(|| wrong("`partition_count` is no number"))?;
    let key = match stage {
        3 => "fp32_flat_groups",
        _ => "single_partition_of_fp32_groups",
    };
    let groups = reader.required(state, key)?;
    let groups = (reader.items(groups)?.iter())
        .map(|&group| reader.readable(key, group))
        .collect::<Result<_>>()?;
    Ok(OptimizerState {
        stage,
        processes,
        groups,
    })
}

fn open<'b>(
    source: &Source,
    archive: &ZipArchive,
    budget: &'b Budget,
) -> Result<OpenedArchive<'b>> {
    run_archive_allowing(
        globals_of_deepspeed,
        &mut &*source,
        archive,
        false,
        &mut Vec::new(),
        budget,
    )
}

/// Reads the values of a file's pickle.
struct StateReader<'a, 'b> {
    machine: &'a PickleMachine<'b>,
    opened: &'a OpenedArchive<'b>,
    source: &'a Source,
    /// Number of the file.
    number: usize,
    archive: &'a ZipArchive,
    members: HashMap<&'a str, &'a ZipMember>,
    keys: StorageKeys,
    /// The storages that have been found, by their keys.
    known: HashMap<usize, StoragePlace>,
    places: &'a mut Vec<StoragePlace>,
}

impl<'a, 'b> StateReader<'a, 'b> {
    fn new(
        opened: &'a OpenedArchive<'b>,
        (source, number): (&'a Source, usize),
        archive: &'a ZipArchive,
        places: &'a mut Vec<StoragePlace>,
    ) -> Self {
        let members = archive.members.iter();
        Self {
            machine: &opened.machine,
            opened,
            source,
            number,
            archive,
            members: members.map(|m| (m.name.as_str(), m)).collect(),
            keys: StorageKeys::default(),
            known: HashMap::new(),
            places,
        }
    }

    /// Refuses a checkpoint of tensor, pipeline or expert parallelism.
    fn require_whole_weights(&self, root: NodeId) -> Result<()> {
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
    fn optional(&self, id: NodeId, key: &str) -> Result<Option<NodeId>> {
        let is_key = |id: NodeId| matches!(self.machine.values.node(id), Node::Str(range) if self.machine.input.bytes(range) == key.as_bytes());
        let mut found = self.entries(id)?.iter().filter(|(id, _)| is_key(*id));
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(wrong(&format!("a dict has the key `{key}` twice"))),
            (found, _) => Ok(found
                .map(|&(_, value)| value)
                .filter(|&value| !matches!(self.machine.values.node(value), Node::None))),
        }
    }

    fn required(&self, id: NodeId, key: &str) -> Result<NodeId> {
        let missing = || wrong(&format!("no `{key}`, which checkpoints of ZeRO have"));
        self.optional(id, key)?.ok_or_else(missing)
    }

    fn entries(&self, id: NodeId) -> Result<&'a [(NodeId, NodeId)]> {
        match self.machine.values.node(id) {
            Node::Dict(entries) => Ok(entries),
            _ => Err(wrong("expected a dict")),
        }
    }

    fn items(&self, id: NodeId) -> Result<&'a [NodeId]> {
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

    fn shapes(&self, id: NodeId) -> Result<Shapes> {
        let shape = |&(key, value): &(NodeId, NodeId)| {
            let name = self.text(key)?;
            let shape = self.machine.values.sizes(value);
            let shape = shape.ok_or_else(|| wrong(&format!("`{name}` has no shape")))?;
            Ok((name.to_owned(), shape))
        };
        self.entries(id)?.iter().map(shape).collect()
    }

    /// The tensor `id`, which must be of a kind that is read.
    fn readable(&mut self, name: &str, id: NodeId) -> Result<TensorInfo> {
        self.tensor(name, id)?
            .map_err(|what| AnamnesisError::unsupported(what, format!("tensor `{name}`")))
    }

    /// The tensor `id` under the name `name`. `Err` inside says what it is if it is of a kind that is not read.
    fn tensor(
        &mut self,
        name: &str,
        id: NodeId,
    ) -> Result<std::result::Result<TensorInfo, &'static str>> {
        let about = |e: AnamnesisError| e.about(format_args!("tensor `{name}`"));
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
            return Err(AnamnesisError::unsupported(
                what,
                "torch stores tensors as they are",
            ));
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
