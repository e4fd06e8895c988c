//! Storages, the pieces of memory that tensors are views of: how pickles name them, and where
//! containers have them.

use std::collections::HashMap;
use std::rc::Rc;

use super::globals::{Global, StorageElement};
use super::pickle::PickleMachine;
use super::value::{Node, NodeId};
use crate::{AnamnesisError, Result};

/// Where the bytes of a storage are.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoragePlace {
    /// Index of the source in [`Contents::sources`](crate::parse::Contents).
    pub source: usize,
    /// Offset of the first byte in the source.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// CRC-32 of the bytes; `None` if the container has none.
    pub crc: Option<u32>,
}

/// The key of a storage. Equal keys have equal numbers, which are compared and hashed in place of
/// the text.
#[derive(Debug, Clone)]
pub(super) struct StorageKey {
    pub number: usize,
    pub text: Rc<str>,
}

/// The keys that have been read, interned. A key may be megabytes long and written once, while any
/// number of values refer to it. Each value is therefore read once, so that time stays linear in
/// the file.
#[derive(Debug, Default)]
pub(super) struct StorageKeys {
    by_id: HashMap<NodeId, StorageKey>,
    numbers: HashMap<Rc<str>, usize>,
}

impl StorageKeys {
    /// Interns the key in the value `id`. `None` if the value is neither a number nor text.
    ///
    /// # Errors
    /// `Parse` if the text is not UTF-8.
    pub(super) fn intern(
        &mut self,
        id: NodeId,
        machine: &PickleMachine<'_>,
    ) -> Result<Option<StorageKey>> {
        if let Some(key) = self.by_id.get(&id) {
            return Ok(Some(key.clone()));
        }
        let text: Rc<str> = match machine.values.node(id) {
            Node::Str(range) => machine.input.text(range)?.into(),
            Node::Int(n) => n.to_string().into(),
            Node::BigInt(range) => format!("{:?}", machine.input.bytes(range)).into(),
            _ => return Ok(None),
        };
        let next = self.numbers.len();
        let key = StorageKey { number: *self.numbers.entry(text.clone()).or_insert(next), text };
        self.by_id.insert(id, key.clone());
        Ok(Some(key))
    }

    /// Forgets which value has which key, before another machine's values are read. Numbers of keys
    /// stay.
    pub(super) fn forget_values(&mut self) {
        self.by_id.clear();
    }
}

/// A storage as a persistent id describes it.
#[derive(Debug, Clone)]
pub(super) struct Storage {
    pub key: StorageKey,
    /// The element type; `None` if the storage is untyped.
    pub element: Option<StorageElement>,
    /// Length in elements, or in bytes if the storage is untyped.
    pub len: usize,
    /// Offset of the storage in the one under `key`, in elements: legacy pickles have views of
    /// storages.
    pub offset: usize,
}

impl Storage {
    /// Reads the persistent id `('storage', type, key, location, length[, view])`.
    ///
    /// # Errors
    /// `Parse` if the value is anything else.
    pub(super) fn from_persistent_id(
        id: NodeId,
        machine: &PickleMachine<'_>,
        keys: &mut StorageKeys,
    ) -> Result<Self> {
        let wrong = || AnamnesisError::parse("pickle: a persistent id that is no storage");
        let values = &machine.values;
        let &[kind, class, key, _, len, ref view @ ..] = values.tuple(id).ok_or_else(wrong)? else {
            return Err(wrong());
        };
        if !matches!(values.node(kind), Node::Str(range) if machine.input.bytes(range) == b"storage")
        {
            return Err(wrong());
        }
        let &Node::Global(Global::Storage(element)) = values.node(class) else {
            return Err(wrong());
        };
        let offset = match view.first().and_then(|&view| values.tuple(view)) {
            Some(&[_, offset, _]) => values.size(offset).ok_or_else(wrong)?,
            Some(_) => return Err(wrong()),
            None => 0,
        };
        let (key, len) =
            (keys.intern(key, machine)?.ok_or_else(wrong)?, values.size(len).ok_or_else(wrong)?);
        Ok(Self { key, element, len, offset })
    }

    /// Checks that the container has exactly as many bytes as the pickle says. torch refuses any
    /// other length as well.
    pub(super) fn check_len(&self, len: u64) -> Result<()> {
        if self.bytes() == Some(len) {
            Ok(())
        } else {
            Err(self.wrong(len, "not"))
        }
    }

    /// The storage's length in bytes, if a record of `len` bytes is long enough. A longer record is
    /// accepted here, where none of its bytes is read.
    pub(super) fn len_within(&self, len: u64) -> Result<u64> {
        self.bytes()
            .filter(|&bytes| bytes <= len)
            .ok_or_else(|| self.wrong(len, "fewer than"))
    }

    /// The storage's length in bytes, as the pickle says; `None` if it overflows.
    fn bytes(&self) -> Option<u64> {
        let size = self.element.map_or(1, |element| element.size);
        self.len.checked_mul(size).map(|bytes| bytes as u64)
    }

    fn wrong(&self, len: u64, how: &str) -> AnamnesisError {
        let (key, n) = (&self.key.text, self.len);
        AnamnesisError::parse(format!(
            "its storage `{key}` has {len} bytes, which are {how} {n} elements"
        ))
    }
}
