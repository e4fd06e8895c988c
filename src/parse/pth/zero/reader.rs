//! Reads what the pickles of DeepSpeed have: shapes, parts of parameters, modules.

use std::collections::{HashMap, HashSet};

use super::super::pickle::wrong;
use super::super::records::Record;
use super::super::state::{KEY_LEN, StateReader};
use super::super::value::{Node, NodeId};
use crate::model::{Skipped, TensorInfo};
use crate::{AnamnesisError, Result};

/// The elements of a process's part of a group that are of one parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fragment {
    pub start: usize,
    pub len: usize,
}

/// Names of parameters with their shapes, in their order.
pub(super) type Shapes = Vec<(String, Vec<usize>)>;

/// What the module of a checkpoint has and the optimizer does not.
#[derive(Default)]
pub(super) struct ModuleTensors {
    /// Buffers, and parameters that the module alone has: stage 1 keeps those that are not trained
    /// nowhere else.
    pub tensors: Vec<TensorInfo>,
    /// Names of the parameters among them.
    pub parameters: Vec<String>,
    /// Those of a kind that is not read, or whose values are in no file.
    pub skipped: Vec<Skipped>,
}

impl<'a> StateReader<'a, '_> {
    /// Refuses a checkpoint of tensor, pipeline or expert parallelism.
    pub(super) fn require_whole_weights(&self, root: NodeId) -> Result<()> {
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

    /// Whether the configuration in the file has `round_robin_gradients`.
    pub(super) fn is_reordered(&self, root: NodeId) -> Result<bool> {
        let mut at = root;
        for key in ["ds_config", "zero_optimization", "round_robin_gradients"] {
            let found = match self.machine.values.node(at) {
                Node::Dict(_) => self.optional(at, key)?,
                _ => None,
            };
            match found {
                Some(found) => at = found,
                None => return Ok(false),
            }
        }
        Ok(matches!(self.machine.values.node(at), Node::Bool(true)))
    }

    pub(super) fn required(&self, id: NodeId, key: &str) -> Result<NodeId> {
        let missing = || wrong(&format!("no `{key}`, which checkpoints of ZeRO have"));
        self.optional(id, key)?.ok_or_else(missing)
    }

    pub(super) fn shapes(&self, id: NodeId) -> Result<Shapes> {
        let shape = |&(key, value): &(NodeId, NodeId)| {
            let name = self.name(key)?;
            let shape = self.machine.values.sizes(value);
            let shape = shape.ok_or_else(|| wrong(&format!("`{name}` has no shape")))?;
            self.budget.tables(0, shape.len() as u64 / KEY_LEN, 0)?;
            Ok((name, shape))
        };
        self.entries(id)?.iter().map(shape).collect()
    }

    /// This process's part of each parameter that is not trained.
    pub(super) fn fragments(&mut self, root: NodeId) -> Result<HashMap<String, TensorInfo>> {
        let mut fragments = HashMap::new();
        if let Some(found) = self.optional(root, "frozen_param_fragments")? {
            for &(key, value) in self.entries(found)? {
                let name = self.name(key)?;
                let info = self.readable(&name, value)?;
                fragments.insert(name, info);
            }
        }
        Ok(fragments)
    }

    /// Where parameters lie in a process's part of each group (`param_slice_mappings`); nothing if
    /// they are written in another form than that of a dataclass.
    pub(super) fn fragment_lists(&self, id: NodeId) -> Result<Vec<HashMap<String, Fragment>>> {
        let is_known = |&(_, value): &(NodeId, NodeId)| {
            matches!(self.machine.values.node(value), Node::Record(_, Some(_)))
        };
        let mut lists = vec![];
        for &group in self.items(id)? {
            let entries = self.entries(group)?;
            if !entries.iter().all(is_known) {
                return Ok(vec![]);
            }
            let fragment = |&(key, value): &(NodeId, NodeId)| {
                let name = self.name(key)?;
                let number = |field| -> Result<usize> {
                    let value = self.machine.required(value, Record::Fragment, field)?;
                    let what = || wrong(&format!("`param_slice_mappings` of `{name}` are none"));
                    self.machine.values.size(value).ok_or_else(what)
                };
                let (start, len) = (number("start")?, number("numel")?);
                Ok((name, Fragment { start, len }))
            };
            lists.push(entries.iter().map(fragment).collect::<Result<_>>()?);
        }
        Ok(lists)
    }

    /// The weights of `parameters` that the module has as well, in 16 bits.
    pub(super) fn module_weights(
        &mut self,
        root: NodeId,
        parameters: &HashSet<&str>,
    ) -> Result<HashMap<String, TensorInfo>> {
        let mut weights = HashMap::new();
        let module = self.required(root, "module")?;
        for &(key, value) in self.entries(module)? {
            let is_tensor = matches!(self.machine.values.node(value), Node::Tensor(_));
            if !is_tensor || !parameters.contains(self.text(key)?) {
                continue;
            }
            let name = self.name(key)?;
            if let Ok(info) = self.tensor(&name, value)? {
                weights.insert(name, info);
            }
        }
        Ok(weights)
    }

    /// What the module alone has: buffers, and parameters that are not `elsewhere`, in groups or
    /// lists. Stage 1 has those that are not trained there, and `zero_to_fp32.py` loses them.
    pub(super) fn module(
        &mut self,
        root: NodeId,
        elsewhere: &HashSet<&str>,
    ) -> Result<ModuleTensors> {
        let buffer_names = self.required(root, "buffer_names")?;
        let buffer_names: HashSet<&str> = (self.items(buffer_names)?.iter())
            .map(|&id| self.text(id))
            .collect::<Result<_>>()?;
        let mut found = ModuleTensors::default();
        let module = self.required(root, "module")?;
        for &(key, value) in self.entries(module)? {
            let is_buffer = buffer_names.contains(self.text(key)?);
            if !is_buffer && elsewhere.contains(self.text(key)?) {
                continue;
            }
            let name = self.name(key)?;
            let what = match self.machine.values.node(value) {
                Node::Tensor(_) | Node::Refused(_) => match self.tensor(&name, value)? {
                    Ok(info) if is_buffer || info.len > 0 => {
                        found.tensors.push(info);
                        if !is_buffer {
                            found.parameters.push(name);
                        }
                        continue;
                    }
                    // Stage 3 leaves an empty tensor in the place of each parameter.
                    Ok(_) => "parameter whose values are in no file of the checkpoint",
                    Err(what) => what,
                },
                _ => "value of the module that is no tensor",
            };
            let what = what.to_owned();
            found.skipped.push(Skipped { name, what });
        }
        Ok(found)
    }
}
