//! Objects of the metadata of distributed checkpoints: the classes that are known, and their
//! fields.
//!
//! Python makes such an object without arguments and then sets its state, a dict of fields, or a
//! tuple where the class has a `__getstate__` of its own. Here it is a [`Node::Record`](super::value::Node) with that
//! state.
//!
//! Classes: torch `torch/distributed/checkpoint/metadata.py` and `filesystem.py`.

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
    /// `DTensor`: the part that a process has of a tensor, and how tensors are divided.
    Sharded,
    /// `DTensorSpec`: how a tensor is divided among processes.
    Spec,
    /// `DeviceMesh`: the processes.
    Mesh,
    /// `Shard`: a dimension is divided along one of the mesh.
    Shard,
    /// `Replicate`: the processes along a dimension of the mesh have the same.
    Replicate,
    /// `ndarray` of NumPy, before it has a state.
    Array,
    /// A subclass of `Tensor` by its name; its state is a dict of tensors and settings.
    Subclass(&'static str),
    /// An object of a class that is not known.
    Object,
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

impl Record {
    /// The class with this name.
    pub(super) fn find(module: &str, name: &str) -> Option<Self> {
        let found = RECORDS.iter().find(|(m, n, _)| (*m, *n) == (module, name));
        found.map(|&(_, _, record)| record)
    }
}
