//! [`PickleValues`]: the values that a pickle evaluates to, as far as tensors are concerned.
//!
//! Values may share and contain each other, even in cycles. So all lie in one table and refer to
//! each other by index; text and bytes stay in the input's buffer. Dropping the table recurses
//! nowhere.

use std::collections::HashMap;
use std::ops::Range;

use super::globals::Global;
use super::records::Record;
use crate::limits::cap;
use crate::{Dtype, Result};

/// Index of a value in the table.
pub(super) type NodeId = u32;

/// One value. Ranges are of the input's buffer.
#[derive(Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits.
    BigInt(Range<usize>),
    Float(f64),
    Str(Range<usize>),
    Bytes(Range<usize>),
    /// Bytes that are the text in the table, with a byte for each character (Latin-1).
    Encoded(NodeId),
    /// Long bytes, which the input leaves in the file.
    Stored(StoredRange),
    /// Long text, which the input leaves in the file.
    StoredText(StoredRange),
    List(Vec<NodeId>),
    Tuple(Vec<NodeId>),
    Dict(Vec<(NodeId, NodeId)>),
    /// The items, whose order and number say nothing.
    Set(Vec<NodeId>),
    Global(Global),
    /// The object with the persistent id in the table: a storage, or a tensor in the tar format.
    Persistent(NodeId),
    Tensor(Box<TensorView>),
    /// An object of a class of tensors that names the dtype, such as `torch.FloatTensor`, before
    /// `BUILD` gives it its storage.
    NewTensor(Dtype),
    /// A tensor of a kind that is not read; the text says which.
    Refused(&'static str),
    /// An object of a class of distributed checkpoints, with the state that `BUILD` has given it.
    Record(Record, Option<NodeId>),
    /// A dtype of NumPy by its code.
    NumpyDtype(Range<usize>),
    /// An allowed value that holds no tensor.
    Opaque,
}

/// Bytes of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredRange {
    pub offset: u64,
    pub len: u64,
}

/// A tensor: a view of a storage. Offset, shape and strides count elements.
#[derive(Debug, Clone)]
pub(super) struct TensorView {
    /// The storage's persistent id; of an array of NumPy its bytes.
    pub storage: NodeId,
    /// The dtype, if the view names one because its storage is untyped; `Some(None)` if it is one
    /// that is not read.
    pub dtype: Option<Option<Dtype>>,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
    /// Whether numbers are big-endian, whatever the container says.
    pub big_endian: bool,
}

/// The table of values, with an account of the memory that it takes.
///
/// # Memory
/// The machine checks after each opcode that the table, its stack and its memo take at most
/// [`FREE_BYTES`] and [`BYTES_PER_BYTE_READ`] bytes for each byte of the pickle that was consumed.
/// So memory is linear in the file, whatever the pickle says. An opcode adds no more than it
/// consumes or takes from the stack, so that a check after it is soon enough.
#[derive(Debug, Default)]
pub(super) struct PickleValues {
    nodes: Vec<Node>,
    /// Memory of `nodes`, and what else was charged.
    bytes: usize,
    /// The part of `bytes` that the caller's budget was charged with.
    accounted: usize,
    /// Memory that values may take for each byte that was read, besides [`BYTES_PER_BYTE_READ`].
    pub extra_bytes_per_byte: usize,
    /// What belongs to a value and is no entry of it: attributes, and arguments of its class.
    attached: HashMap<NodeId, Vec<NodeId>>,
}

/// Memory that values may take besides their share of the file: a value is larger than the opcode
/// that makes it, which small pickles may consist of.
const FREE_BYTES: usize = 24 << 20;

/// Memory that values may take for each byte that was read.
const BYTES_PER_BYTE_READ: usize = 6;

/// Memory of an entry of `attached`.
const ATTACHED_BYTES: usize = 96;

/// Memory of a value besides its entry in the table.
fn memory_of(node: &Node) -> usize {
    // Twice the size of an index for each item of a list: its vector grows by doubling.
    match node {
        Node::List(items) | Node::Tuple(items) | Node::Set(items) => items.len() * 8,
        Node::Dict(items) => items.len() * 16,
        Node::Tensor(view) => size_of::<TensorView>() + view.shape.len() * 16,
        _ => 0,
    }
}

impl PickleValues {
    /// Adds a value, charges its memory, and returns its index.
    pub(super) fn add(&mut self, node: Node) -> NodeId {
        self.bytes += size_of::<Node>() + memory_of(&node);
        self.nodes.push(node);
        (self.nodes.len() - 1) as NodeId
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(id as usize).unwrap_or(&Node::None)
    }

    /// The value at `id`, for lists and dicts to grow.
    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        // Items that are appended later are not charged. Each was pushed by an opcode of at least
        // one byte, which bounds them by the bytes read.
        &mut self.nodes[id as usize]
    }

    /// Puts another value in the place of the one at `id`.
    pub(super) fn replace(&mut self, id: NodeId, node: Node) {
        self.bytes += memory_of(&node);
        self.nodes[id as usize] = node;
    }

    /// Charges `bytes` of memory, or of repeated work, that no value accounts for.
    pub(super) fn charge(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Keeps that `value` belongs to `object`, if it may hold tensors.
    pub(super) fn attach(&mut self, object: NodeId, value: NodeId) {
        let is_empty = match self.node(value) {
            Node::List(items) | Node::Tuple(items) | Node::Set(items) => items.is_empty(),
            Node::Dict(entries) => entries.is_empty(),
            Node::Tensor(_) | Node::NewTensor(_) | Node::Refused(_) | Node::Persistent(_) => false,
            _ => !self.attached.contains_key(&value),
        };
        if !is_empty {
            self.bytes += ATTACHED_BYTES;
            self.attached.entry(object).or_default().push(value);
        }
    }

    /// What belongs to a value and is no entry of it.
    pub(super) fn attached(&self, object: NodeId) -> &[NodeId] {
        self.attached.get(&object).map_or(&[], Vec::as_slice)
    }

    /// Checks that the table is in proportion to the `read` bytes consumed. `slots` is the number
    /// of entries of the machine's stack, marks and memo, which take at most 24 bytes each.
    ///
    /// # Errors
    /// `LimitExceeded` (`MAX_PICKLE_WORKING_SET`).
    pub(super) fn check_budget(&self, read: usize, slots: usize) -> Result<()> {
        cap(
            "MAX_PICKLE_WORKING_SET",
            (self.bytes + slots * 24) as u64,
            (FREE_BYTES + (BYTES_PER_BYTE_READ + self.extra_bytes_per_byte) * read) as u64,
            format_args!("bytes of memory for the first {read} bytes of a pickle"),
        )
    }

    /// Bytes charged since the last call, for the caller's budget.
    pub(super) fn take_growth(&mut self) -> u64 {
        let grown = self.bytes - self.accounted;
        self.accounted = self.bytes;
        grown as u64
    }

    /// The persistent ids of all [`Node::Persistent`] values, in the order of the pickle.
    pub(super) fn persistent_ids(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter_map(|node| {
            if let &Node::Persistent(id) = node {
                Some(id)
            } else {
                None
            }
        })
    }

    /// Number of values in the table.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The items, if the value is a tuple.
    pub(super) fn tuple(&self, id: NodeId) -> Option<&[NodeId]> {
        match self.node(id) {
            Node::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// The items as sizes, if the value is a tuple or list of integers that are not negative.
    pub(super) fn sizes(&self, id: NodeId) -> Option<Vec<usize>> {
        match self.node(id) {
            Node::Tuple(items) | Node::List(items) => {
                items.iter().map(|&id| self.size(id)).collect()
            }
            _ => None,
        }
    }

    /// The value as a size, if it is an integer and not negative.
    pub(super) fn size(&self, id: NodeId) -> Option<usize> {
        match self.node(id) {
            Node::Int(n) => usize::try_from(*n).ok(),
            _ => None,
        }
    }
}
