//! Storages, as pickles name them: tensors are views of these.

use std::collections::HashMap;
use std::rc::Rc;

use super::globals::{Element, Global};
use super::pickle::Machine;
use super::value::{Id, Node};
use crate::{AnamnesisError, Result};

/// A storage's place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub source: usize,
    pub offset: u64,
    /// In bytes.
    pub len: u64,
    /// CRC-32 of them, where there is one.
    pub crc: Option<u32>,
}

/// A storage's key, and a number that only equal keys share.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub number: usize,
    pub text: Rc<str>,
}

/// Keys that were read. A key can be long and is written once, while any number of values refer to it; so each value
/// is read once, too.
#[derive(Debug, Default)]
pub(super) struct Keys {
    by_id: HashMap<Id, Key>,
    numbers: HashMap<Rc<str>, usize>,
}

impl Keys {
    /// The key that a value is; `None` if it is neither a number nor text.
    pub(super) fn read(&mut self, id: Id, machine: &Machine<'_>) -> Result<Option<Key>> {
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
        let key = Key {
            number: *self.numbers.entry(text.clone()).or_insert(next),
            text,
        };
        self.by_id.insert(id, key.clone());
        Ok(Some(key))
    }

    /// Forgets which values the keys are, for another machine has others.
    pub(super) fn forget_values(&mut self) {
        self.by_id.clear();
    }
}

/// A storage as a persistent id names it.
#[derive(Debug, Clone)]
pub(super) struct Storage {
    pub key: Key,
    /// Of typed storages.
    pub element: Option<Element>,
    /// Elements, or bytes if it is untyped.
    pub len: usize,
    /// Of the view of it that is meant, in elements.
    pub offset: usize,
}

impl Storage {
    /// Reads `('storage', type, key, location, length[, view])`.
    pub(super) fn read(id: Id, machine: &Machine<'_>, keys: &mut Keys) -> Result<Self> {
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
        let (key, len) = (
            keys.read(key, machine)?.ok_or_else(wrong)?,
            values.size(len).ok_or_else(wrong)?,
        );
        Ok(Self {
            key,
            element,
            len,
            offset,
        })
    }

    /// A storage has the length that the pickle says; torch, too, refuses any other.
    pub(super) fn check_len(&self, len: u64) -> Result<()> {
        if self.bytes() == Some(len) {
            Ok(())
        } else {
            Err(self.wrong(len, "not"))
        }
    }

    /// Its length, if a record of `len` bytes has that many. There may be more: where nothing is read of them, they do
    /// no harm.
    pub(super) fn within(&self, len: u64) -> Result<u64> {
        self.bytes()
            .filter(|&bytes| bytes <= len)
            .ok_or_else(|| self.wrong(len, "fewer than"))
    }

    /// Its length, as the pickle says.
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
