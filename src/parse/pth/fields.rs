//! The states of objects of the classes [`Record`], and their fields.

use super::pickle::{PickleMachine, wrong};
use super::records::Record;
use super::value::{Node, NodeId};
use crate::Result;

/// Most fields of an object. A state can be shared by many objects, each of which looks through it.
const MAX_FIELDS: usize = 16;

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
