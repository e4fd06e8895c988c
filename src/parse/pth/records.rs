//! Objects of the metadata of distributed checkpoints: the classes that are known, and their
//! fields.
//!
//! Python makes such an object without arguments and then sets its state, a dict of fields, or a
//! tuple where the class has a `__getstate__` of its own. Here it is a [`Node::Record`] with that
//! state.
//!
//! Classes: torch `torch/distributed/checkpoint/metadata.py` and `filesystem.py`.

use super::pickle::{PickleMachine, wrong};
use super::value::{Node, NodeId};
use crate::Result;

/// A class of the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    /// `Metadata`: the whole.
    Metadata,
    /// `TensorStorageMetadata`: a tensor and its pieces.
    Tensor,
    /// `BytesStorageMetadata`: a value that is no tensor.
    Bytes,
    /// `TensorProperties`; its state is a tuple that begins with the dtype.
    Properties,
    /// `ChunkStorageMetadata`: the rectangle of a piece.
    Chunk,
    /// `MetadataIndex`: the name of a tensor, and where a piece begins in it.
    Index,
    /// `_StorageInfo`: the bytes of a piece.
    Place,
    /// `StorageMeta`: who wrote the checkpoint.
    Writer,
    /// `_MEM_FORMAT_ENCODING`, a number.
    MemoryFormat,
    /// `NumpyArrayWrapper` of joblib, in a lenient run.
    JoblibArray,
    /// `fragment_address` of DeepSpeed: where a parameter lies in the part of a process.
    Fragment,
}

const METADATA: &str = "torch.distributed.checkpoint.metadata";

/// Home of two classes before they moved to [`METADATA`].
const SHARDED_TENSOR: &str = "torch.distributed._shard.sharded_tensor.metadata";

const RECORDS: &[(&str, &str, Record)] = &[
    (METADATA, "Metadata", Record::Metadata),
    (METADATA, "TensorStorageMetadata", Record::Tensor),
    (METADATA, "BytesStorageMetadata", Record::Bytes),
    (METADATA, "TensorProperties", Record::Properties),
    (METADATA, "ChunkStorageMetadata", Record::Chunk),
    (METADATA, "MetadataIndex", Record::Index),
    (METADATA, "StorageMeta", Record::Writer),
    (METADATA, "_MEM_FORMAT_ENCODING", Record::MemoryFormat),
    (SHARDED_TENSOR, "TensorProperties", Record::Properties),
    (SHARDED_TENSOR, "MEM_FORMAT_ENCODING", Record::MemoryFormat),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo", Record::Place),
];

/// Most fields of an object. A state can be shared by many objects, each of which looks through it.
const MAX_FIELDS: usize = 16;

impl Record {
    /// The class with this name.
    pub(super) fn find(module: &str, name: &str) -> Option<Self> {
        let found = RECORDS.iter().find(|(m, n, _)| (*m, *n) == (module, name));
        found.map(|&(_, _, record)| record)
    }
}

impl PickleMachine<'_> {
    /// The state of the object `id`, if it is one of the class `record`.
    ///
    /// # Errors
    /// `Parse` if it is anything else, or has no state.
    pub(super) fn state(&self, id: NodeId, record: Record) -> Result<NodeId> {
        match self.values.node(id) {
            &Node::Record(found, Some(state)) if found == record => Ok(state),
            _ => Err(wrong(&format!("expected a {record:?} object"))),
        }
    }

    /// The value of the field `name` of the object `id` of the class `record`; `None` if it is not
    /// there, or is `None`.
    ///
    /// # Errors
    /// `Parse` if the object is of another class, or its state no dict of fields.
    pub(super) fn field(&self, id: NodeId, record: Record, name: &str) -> Result<Option<NodeId>> {
        let fields = match self.values.node(self.state(id, record)?) {
            Node::Dict(fields) if fields.len() <= MAX_FIELDS => fields,
            _ => {
                return Err(wrong(&format!("expected the fields of a {record:?} object")));
            }
        };
        let is_named = |key: NodeId| match self.values.node(key) {
            Node::Str(range) => self.input.bytes(range) == name.as_bytes(),
            _ => false,
        };
        let mut found = fields.iter().filter(|(key, _)| is_named(*key));
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(wrong(&format!("a {record:?} with two fields `{name}`"))),
            (field, _) => Ok(field
                .map(|&(_, value)| value)
                .filter(|&value| !matches!(self.values.node(value), Node::None))),
        }
    }

    /// The value of a field that must be there.
    ///
    /// # Errors
    /// As [`field`](Self::field), and if it is not.
    pub(super) fn required(&self, id: NodeId, record: Record, name: &str) -> Result<NodeId> {
        let missing = || wrong(&format!("a {record:?} without `{name}`"));
        self.field(id, record, name)?.ok_or_else(missing)
    }
}
