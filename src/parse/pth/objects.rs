//! Objects of classes that are not known: those of TorchScript, and those of whole modules that
//! `torch.save` has pickled. A class is a name that nothing looks up; of an object there is the state
//! that the pickle gives it.
//!
//! States: torch `torch/nn/modules/module.py`, `torch/csrc/jit/serialization/pickler.cpp`.

use super::globals::Global;
use super::pickle::PickleMachine;
use super::records::Record;
use super::risk::{PickleRisk, risk_of};
use super::value::{Node, NodeId};
use crate::{AnamnesisError, Result};

/// How the objects of a pickle are walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectForm {
    /// As TorchScript's: every attribute is an entry.
    Script,
    /// As Python's: entries are those of `state_dict()`, and other attributes are told of.
    Python,
}

/// Functions of TorchScript's pickles, which return their first argument.
const SCRIPT_FUNCTIONS: &[&str] = &[
    "build_boollist",
    "build_doublelist",
    "build_intlist",
    "build_tensorlist",
    "restore_type_tag",
];

/// A global that a pickle of TorchScript may name besides those of all checkpoints.
pub(super) fn script_global(module: &str, name: &str) -> Option<Global> {
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with('.');
    match module.strip_prefix("__torch__") {
        Some(rest) if is_below(rest) => Some(Global::Class),
        _ => (module == "torch.jit._pickle" && SCRIPT_FUNCTIONS.contains(&name))
            .then_some(Global::FirstValue),
    }
}

/// A global that the pickle of a whole module may name besides those of all checkpoints: any that is
/// not known to be dangerous.
pub(super) fn class(module: &str, name: &str) -> Option<Global> {
    (risk_of(module, name) != PickleRisk::Dangerous).then_some(Global::Class)
}

/// What was read of a pickle as if it were that of a whole module, after it was refused with the
/// error `refused`, if there were `modules` in it.
///
/// # Errors
/// `refused` if there were none, be the pickle malformed besides or not; else the error of `read`.
pub(super) fn of_module<T>(read: Result<T>, modules: usize, refused: AnamnesisError) -> Result<T> {
    match read {
        Ok(_) | Err(AnamnesisError::Parse { .. } | AnamnesisError::Unsupported { .. })
            if modules == 0 =>
        {
            Err(refused)
        }
        read => read,
    }
}

/// The entries of a dict: keys and values.
type Entries<'a> = &'a [(NodeId, NodeId)];

/// The state of a `torch.nn.Module`.
pub(super) struct ModuleState<'a> {
    pub parameters: Entries<'a>,
    pub buffers: Entries<'a>,
    pub modules: Entries<'a>,
    /// Names of the buffers that are not persistent.
    pub lost: &'a [NodeId],
    /// All other attributes.
    pub others: Vec<(NodeId, NodeId)>,
}

/// The state of the object `id`, if it is a module's.
pub(super) fn module_state<'a>(
    id: NodeId,
    machine: &'a PickleMachine<'_>,
) -> Option<ModuleState<'a>> {
    let values = &machine.values;
    let &Node::Record(Record::Object, Some(state)) = values.node(id) else {
        return None;
    };
    let Node::Dict(state) = values.node(state) else {
        return None;
    };
    let (mut parts, mut lost, mut others) = ([None; 3], &[][..], vec![]);
    for &(key, value) in state {
        let key_text = match values.node(key) {
            Node::Str(range) => machine.input.bytes(range),
            _ => &[],
        };
        let part = match key_text {
            b"_parameters" => 0,
            b"_buffers" => 1,
            b"_modules" => 2,
            b"_non_persistent_buffers_set" => {
                if let Node::Set(names) = values.node(value) {
                    lost = names;
                }
                continue;
            }
            _ => {
                others.push((key, value));
                continue;
            }
        };
        match values.node(value) {
            Node::Dict(entries) if parts[part].is_none() => parts[part] = Some(entries.as_slice()),
            _ => return None,
        }
    }
    let [Some(parameters), Some(buffers), Some(modules)] = parts else {
        return None;
    };
    Some(ModuleState { parameters, buffers, modules, lost, others })
}
