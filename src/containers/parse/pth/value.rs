//! What a pickle evaluates to, as far as tensors are concerned. Values share each other freely, so they lie in one
//! table; text and bytes stay where they were read.

use std::ops::Range;

use super::globals::Global;
use crate::{AnamnesisError, Dtype, Result};

/// A value's place in the table.
pub(super) type Id = u32;

/// A value.
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
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Set,
    Global(Global),
    /// What a persistent id stands for: a storage, or a tensor in the oldest format.
    Persistent(Id),
    Tensor(Box<View>),
    /// A tensor of a kind that is not read.
    Refused(&'static str),
    /// Something allowed that holds no tensor.
    Opaque,
}

/// A tensor: a view of a storage.
#[derive(Debug, Clone)]
pub(super) struct View {
    /// The storage, as a persistent id.
    pub storage: Id,
    /// The element type, where the storage does not say.
    pub dtype: Option<Option<Dtype>>,
    /// In elements.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// The table, with an account of what it takes.
#[derive(Debug, Default)]
pub(super) struct Values {
    nodes: Vec<Node>,
    bytes: usize,
    /// How much of that a caller's account knows of.
    accounted: usize,
}

/// What the table may take besides six times what was read.
const BUDGET: usize = 24 << 20;

impl Values {
    pub(super) fn add(&mut self, node: Node) -> Id {
        self.bytes += size_of::<Node>()
            + match &node {
                Node::List(items) | Node::Tuple(items) => items.len() * 8,
                Node::Dict(items) => items.len() * 16,
                Node::Tensor(view) => size_of::<View>() + view.shape.len() * 16,
                _ => 0,
            };
        self.nodes.push(node);
        (self.nodes.len() - 1) as Id
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        self.nodes.get(id as usize).unwrap_or(&Node::None)
    }

    pub(super) fn node_mut(&mut self, id: Id) -> &mut Node {
        // What grows later is charged when its items are pushed: each of them took a step of the machine.
        &mut self.nodes[id as usize]
    }

    /// Charges `bytes` more.
    pub(super) fn charge(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Whether what is held, with `more` places on the stack and in the memo, is in proportion to `read` bytes.
    pub(super) fn check_budget(&self, read: usize, more: usize) -> Result<()> {
        if self.bytes + more * 24 > BUDGET + 6 * read {
            let message = format!(
                "a pickle whose first {read} bytes take {} in memory",
                self.bytes
            );
            return Err(AnamnesisError::LimitExceeded {
                limit: "MAX_PICKLE_WORKING_SET",
                message,
            });
        }
        Ok(())
    }

    /// What was taken since this was asked last.
    pub(super) fn growth(&mut self) -> u64 {
        let grown = self.bytes - self.accounted;
        self.accounted = self.bytes;
        grown as u64
    }

    /// Every persistent id.
    pub(super) fn persistent(&self) -> impl Iterator<Item = Id> {
        self.nodes.iter().filter_map(|node| {
            if let &Node::Persistent(id) = node {
                Some(id)
            } else {
                None
            }
        })
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn tuple(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// A tuple or list of sizes.
    pub(super) fn sizes(&self, id: Id) -> Option<Vec<usize>> {
        match self.node(id) {
            Node::Tuple(items) | Node::List(items) => {
                items.iter().map(|&id| self.size(id)).collect()
            }
            _ => None,
        }
    }

    /// An integer that is a size.
    pub(super) fn size(&self, id: Id) -> Option<usize> {
        match self.node(id) {
            Node::Int(n) => usize::try_from(*n).ok(),
            _ => None,
        }
    }
}
