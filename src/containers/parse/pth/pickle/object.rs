//! Opcodes that import or call in Python. Here they look globals up in the allow-list and build
//! values.

use super::super::globals::Global;
use super::super::risk::{PickleRisk, risk_of};
use super::super::value::{Node, NodeId};
use super::{NamedGlobal, PickleMachine, wrong};
use crate::{AnamnesisError, Result};

/// Most different globals that are recorded.
const MAX_GLOBALS: usize = 4096;

/// Stands in a list of globals for a module or name that is not written in the pickle but would be
/// computed.
const COMPUTED: &str = "?";

impl PickleMachine<'_> {
    /// Executes an opcode that would import a global, call one, or change an object.
    pub(super) fn object_opcode(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            b'c' => {
                let global = self.global_line()?;
                self.push(Node::Global(global))
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let global = self.global_of_values(module, name)?;
                self.push(Node::Global(global))
            }
            b'i' => {
                let global = self.global_line()?;
                let args = self.pop_mark()?;
                self.call(&global, &args)
            }
            b'o' => {
                let mut args = self.pop_mark()?;
                if args.is_empty() {
                    return Err(wrong("an object without a class"));
                }
                let class = args.remove(0);
                self.call_value(class, &args)
            }
            b'R' | 0x81 => {
                let (args, callable) = (self.pop()?, self.pop()?);
                let args = self.arguments(args)?;
                self.call_value(callable, &args)
            }
            0x92 => {
                let (_, args, class) = (self.pop()?, self.pop()?, self.pop()?);
                let args = self.arguments(args)?;
                self.call_value(class, &args)
            }
            b'b' => self.build(),
            b'P' => {
                let line = self.input.line()?;
                let id = self.values.add(Node::Str(line));
                self.push(Node::Persistent(id))
            }
            _ => {
                let id = self.pop()?;
                self.push(Node::Persistent(id))
            }
        }
    }

    /// `BUILD` sets the attributes of an object. Those of records are kept, and no others hold a
    /// tensor's data.
    fn build(&mut self) -> Result<()> {
        let (state, object) = (self.pop()?, self.top()?);
        match self.values.node_mut(object) {
            Node::Record(_, Some(_)) if !self.lenient => Err(wrong("an object with two states")),
            Node::Record(_, kept) => {
                *kept = Some(state);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The first 16 arguments of a call. No allowed global takes more, and copying them all would
    /// make repeated calls with one long tuple quadratic.
    fn arguments(&self, args: NodeId) -> Result<Vec<NodeId>> {
        let args = self
            .values
            .tuple(args)
            .ok_or_else(|| wrong("arguments that are no tuple"))?;
        Ok(args.iter().take(16).copied().collect())
    }

    /// Pushes a global that has no name in the pickle.
    pub(super) fn unwritten_global(&mut self) -> Result<()> {
        let global = self.global(COMPUTED.to_owned(), COMPUTED.to_owned())?;
        self.push(Node::Global(global))
    }

    /// Looks up the global that the next two lines name.
    fn global_line(&mut self) -> Result<Global> {
        let lines = [self.input.line()?, self.input.line()?];
        let [module, name] = match self.lenient {
            true => lines.map(|line| String::from_utf8_lossy(self.input.bytes(&line)).into_owned()),
            false => [
                self.input.text(&lines[0])?.to_owned(),
                self.input.text(&lines[1])?.to_owned(),
            ],
        };
        self.global(module, name)
    }

    /// Looks up the global that two values name.
    fn global_of_values(&mut self, module: NodeId, name: NodeId) -> Result<Global> {
        if let Some(&global) = self.looked_up.get(&(module, name)) {
            return Ok(global);
        }
        let text = |id: NodeId| match self.values.node(id) {
            Node::Str(range) if self.lenient => {
                Ok(String::from_utf8_lossy(self.input.bytes(range)).into_owned())
            }
            Node::Str(range) => self.input.text(range).map(str::to_owned),
            _ if self.lenient => Ok(COMPUTED.to_owned()),
            _ => Err(wrong("a global whose name is no text")),
        };
        let texts = (text(module)?, text(name)?);
        // Pairs of values can be quadratically many, each with texts that are written once. So
        // every look-up is charged the length of its texts, and the memory check bounds the work.
        self.values.charge(64 + texts.0.len() + texts.1.len());
        let global = self.global(texts.0, texts.1)?;
        self.looked_up.insert((module, name), global);
        Ok(global)
    }

    /// Looks up a global in the allow-list, and records it.
    ///
    /// # Errors
    /// `DisallowedGlobal` if it is not in the list, unless the run is lenient; `LimitExceeded` if
    /// the pickle has named too many.
    fn global(&mut self, module: String, name: String) -> Result<Global> {
        let limits = self.input.budget.limits();
        // Usually the user has named none, and grading each global would take most of the time of a
        // long list.
        let is_opaque =
            || limits.is_opaque(&module, &name) && risk_of(&module, &name) != PickleRisk::Dangerous;
        let found = Global::find(&module, &name).or_else(|| (self.more_globals)(&module, &name));
        let found = found.or_else(|| is_opaque().then_some(Global::Opaque));
        let named = NamedGlobal {
            module,
            name,
            allowed: found.is_some(),
        };
        if !self.seen.contains(&named) {
            if self.named.len() == MAX_GLOBALS {
                let message = format!("a pickle that names more than {MAX_GLOBALS} globals");
                return Err(AnamnesisError::LimitExceeded {
                    limit: "MAX_PICKLE_GLOBALS",
                    message,
                });
            }
            self.values
                .charge(2 * (size_of::<NamedGlobal>() + named.module.len() + named.name.len()));
            self.seen.insert(named.clone());
            self.named.push(named.clone());
        }
        match found {
            Some(global) => Ok(global),
            None if self.lenient => Ok(Global::Opaque),
            None => Err(AnamnesisError::DisallowedGlobal {
                module: named.module,
                name: named.name,
            }),
        }
    }

    /// Pushes the value that stands for a call of `callable`, which must be a global.
    fn call_value(&mut self, callable: NodeId, args: &[NodeId]) -> Result<()> {
        match self.values.node(callable) {
            Node::Global(global) => {
                let global = *global;
                self.call(&global, args)
            }
            _ if self.lenient => self.push(Node::Opaque),
            _ => Err(wrong("a call of what is no global")),
        }
    }

    /// Pushes the value that stands for a call of `global`.
    fn call(&mut self, global: &Global, args: &[NodeId]) -> Result<()> {
        let node = if self.lenient {
            Node::Opaque
        } else {
            global.call(args, &self.values)?
        };
        self.push(node)
    }
}
