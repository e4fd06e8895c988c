//! What the file of one process says.

use std::collections::HashMap;

use super::super::archive::{OpenedArchive, run_archive_allowing};
use super::super::globals::Global;
use super::super::objects::class;
use super::super::pickle::{PickleMachine, wrong};
use super::super::records::Record;
use super::super::state::StateReader;
use super::super::storage::StoragePlace;
use super::super::value::{Node, NodeId};
use super::division::{Division, Placement};
use crate::limits::Budget;
use crate::model::TensorInfo;
use crate::parse::zip::ZipArchive;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Most dimensions of a tensor or of the mesh of processes. Tensors can share them in the pickle,
/// and each has its own afterwards.
const MAX_DIMENSIONS: usize = 16;

/// A tensor as a process has it.
pub(super) struct RankTensor {
    /// The part that is in the file.
    pub info: TensorInfo,
    /// How it is divided; `None` if each process has all of it.
    pub division: Option<Division>,
}

impl RankTensor {
    /// The size of the whole tensor.
    pub(super) fn size(&self) -> &[usize] {
        self.division
            .as_ref()
            .map_or(&self.info.shape, |division| &division.size)
    }
}

/// What the file of a process says.
pub(super) struct RankState {
    /// Tensors in their order; `Err` inside says what one is that is of a kind that is not read.
    pub tensors: Vec<(String, std::result::Result<RankTensor, &'static str>)>,
    /// Names of the values that are no tensors.
    pub values: Vec<String>,
    /// Bytes of the pickle.
    pub header_size: usize,
}

impl RankState {
    /// The places of tensors in the list, by their names.
    pub(super) fn numbered(&self) -> HashMap<&str, usize> {
        let names = self.tensors.iter().enumerate();
        names.map(|(at, (name, _))| (name.as_str(), at)).collect()
    }
}

/// A global that the file of a process may name besides those of all checkpoints: a class below
/// `torch.distributed`.
fn rank_global(module: &str, name: &str) -> Option<Global> {
    let below = module.strip_prefix("torch.distributed.")?;
    // Where the classes were before torch 2.5.
    let below = below.strip_prefix('_').unwrap_or(below);
    Some(Global::Record(match (below, name) {
        ("tensor" | "tensor.api" | "tensor._api", "DTensor") => Record::Sharded,
        (
            "tensor.dtensor_spec" | "tensor._dtensor_spec" | "tensor.placement_types",
            "DTensorSpec",
        ) => Record::Spec,
        ("device_mesh" | "tensor.device_mesh", "DeviceMesh") => Record::Mesh,
        ("tensor.placement_types", "Shard") => Record::Shard,
        ("tensor.placement_types", "Replicate") => Record::Replicate,
        _ => return class(module, name),
    }))
}

/// Reads the file of a process, which has this number, and adds the storages of its tensors to
/// `places`.
///
/// # Errors
/// `Parse` if it is malformed; `Unsupported` for divisions that are not joined; `DisallowedGlobal`;
/// `LimitExceeded`; `Io`.
pub(super) fn read_rank(
    source: &Source,
    number: usize,
    places: &mut Vec<StoragePlace>,
    budget: &Budget,
) -> Result<RankState> {
    let archive = ZipArchive::read(&mut &*source, budget)?;
    let named = &mut Vec::new();
    let opened = run_archive_allowing(rank_global, &mut &*source, &archive, false, named, budget)?;
    let OpenedArchive { machine, root, .. } = &opened;
    let header_size = machine.input.at;
    let mut reader = StateReader::new(&opened, (source, number), (&archive, budget), places);
    let mut state = RankState { tensors: vec![], values: vec![], header_size };
    let mut seen = std::collections::HashSet::new();
    for &(key, value) in reader.entries(*root)? {
        let name = reader.name(key)?;
        if !seen.insert(name.clone()) {
            return Err(wrong(&format!("a dict has the key `{name}` twice")));
        }
        let about = |e: AnamnesisError| e.about(crate::error::InTensor(&name));
        let (part, division) = match machine.values.node(value) {
            Node::Tensor(_) | Node::Refused(_) => (value, None),
            Node::Record(Record::Sharded, _) => {
                let (part, division) = read_sharded(machine, value).map_err(about)?;
                (part, Some(division))
            }
            Node::Dict(_) | Node::List(_) | Node::Tuple(_) | Node::Record(..) => {
                let what = format!("`{name}` is no tensor of the model");
                return Err(AnamnesisError::unsupported("files of FSDP", what));
            }
            _ => {
                state.values.push(name);
                continue;
            }
        };
        let tensor = reader.tensor(&name, part)?;
        let tensor = tensor.map(|info| RankTensor { info, division });
        state.tensors.push((name, tensor));
    }
    Ok(state)
}

/// The part of a tensor that a process has, and how the tensor is divided.
fn read_sharded(machine: &PickleMachine<'_>, id: NodeId) -> Result<(NodeId, Division)> {
    let state = machine.state(id, Record::Sharded)?;
    // Attributes are in the second dict if there are two, for classes with `__slots__`.
    let dicts = match machine.values.node(state) {
        Node::Tuple(dicts) => dicts.as_slice(),
        _ => &[state],
    };
    let attribute = |name: &str| {
        let of = |&dict: &NodeId| match machine.values.node(dict) {
            Node::Dict(entries) if entries.len() <= MAX_DIMENSIONS => {
                let is_key = |id: NodeId| matches!(machine.values.node(id), Node::Str(range) if machine.input.bytes(range) == name.as_bytes());
                entries
                    .iter()
                    .find(|(key, _)| is_key(*key))
                    .map(|&(_, value)| value)
            }
            _ => None,
        };
        let missing = || wrong(&format!("a sharded tensor without `{name}`"));
        dicts.iter().take(2).find_map(of).ok_or_else(missing)
    };
    let (part, spec) = (attribute("_local_tensor")?, attribute("_spec")?);
    // Class, dtype, size: arguments of the function that makes the tensor.
    let arguments = machine
        .values
        .attached(id)
        .first()
        .and_then(|&id| machine.values.tuple(id));
    let size = arguments.and_then(|arguments| Some(*arguments.get(2)?));
    let size = size.ok_or_else(|| wrong("a sharded tensor without a size"))?;
    let mesh = machine.required(spec, Record::Spec, "mesh")?;
    let coordinate = machine.required(mesh, Record::Mesh, "_coordinate_on_dim")?;
    let placements = machine.required(spec, Record::Spec, "placements")?;
    let placements = items(machine, placements)?;
    Ok((
        part,
        Division {
            size: sizes(machine, size)?,
            coordinate: sizes(machine, coordinate)?,
            placements: placements
                .iter()
                .map(|&id| placement(machine, id))
                .collect::<Result<_>>()?,
        },
    ))
}

fn items<'a>(machine: &'a PickleMachine<'_>, id: NodeId) -> Result<&'a [NodeId]> {
    match machine.values.node(id) {
        Node::Tuple(items) | Node::List(items) if items.len() <= MAX_DIMENSIONS => Ok(items),
        _ => Err(wrong("a sharded tensor of too many dimensions, or of none")),
    }
}

fn sizes(machine: &PickleMachine<'_>, id: NodeId) -> Result<Vec<usize>> {
    items(machine, id)?;
    machine
        .values
        .sizes(id)
        .ok_or_else(|| wrong("a sharded tensor whose sizes are none"))
}

fn placement(machine: &PickleMachine<'_>, id: NodeId) -> Result<Placement> {
    match machine.values.node(id) {
        Node::Record(Record::Replicate, _) => Ok(Placement::Replicate),
        Node::Record(Record::Shard, _) => {
            let dimension = machine.required(id, Record::Shard, "dim")?;
            let what = || wrong("a sharded tensor whose dimension is none");
            machine
                .values
                .size(dimension)
                .map(Placement::Shard)
                .ok_or_else(what)
        }
        _ => Err(AnamnesisError::unsupported(
            "files of FSDP",
            "a tensor that is divided in another way than in chunks; its parts are not joined",
        )),
    }
}
