//! Opcodes that import or call in Python. Here they look globals up in the allow-list and build
//! values.

use super::super::calls::view_of_state;
use super::super::globals::Global;
use super::super::ndarray;
use super::super::records::Record;
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
                let (named, args, class) = (self.pop()?, self.pop()?, self.pop()?);
                let args = self.arguments(args)?;
                self.call_value(class, &args)?;
                let object = self.top()?;
                self.values.attach(object, named);
                Ok(())
            }
            b'b' => self.build(),
            b'P' => {
                let line = self.input.line()?;
                if self.trace.stops_at_errors {
                    // torch's ids are tuples, and Python's unpickler has none.
                    return Err(wrong("a persistent id that is text"));
                }
                let id = self.values.add(Node::Str(line));
                self.push(Node::Persistent(id))
            }
            _ => {
                let id = self.pop()?;
                match self.saved_class(id) {
                    Some(class) => self.push(Node::Global(class)),
                    None => self.push(Node::Persistent(id)),
                }
            }
        }
    }

    /// The class that legacy checkpoints save with its source: `('module', class, file, source)`.
    fn saved_class(&self, id: NodeId) -> Option<Global> {
        let &[kind, class, ..] = self.values.tuple(id)? else {
            return None;
        };
        match (self.values.node(kind), self.values.node(class)) {
            (Node::Str(range), &Node::Global(class @ Global::Class))
                if self.input.bytes(range) == b"module" =>
            {
                Some(class)
            }
            _ => None,
        }
    }

    /// `BUILD` sets the attributes of an object. Those of records are kept, and those of a tensor of
    /// a class with a dtype make it a view of a storage. Tensors among others are told of.
    ///
    /// # Errors
    /// `Parse` where the attributes could make other tensors: those of a global, and those of a
    /// tensor, to which `Tensor.__setstate__` gives another storage.
    fn build(&mut self) -> Result<()> {
        let (state, object) = (self.pop()?, self.top()?);
        if self.lenient {
            return self.build_leniently(state, object);
        }
        if let Node::Record(Record::Array, None) = self.values.node(object) {
            let array = ndarray::of_state(state, &self.values, &self.input)?;
            self.values.replace(object, array);
            return Ok(());
        }
        let is_harmless = |items: &Vec<NodeId>| {
            let first = items.first().map(|&id| self.values.node(id));
            items.len() == 3 && matches!(first, Some(Node::Bool(_)))
        };
        match (self.values.node(object), self.values.node(state)) {
            (Node::Record(_, Some(_)), _) => return Err(wrong("an object with two states")),
            (Node::Global(_), _) => return Err(wrong("attributes of a global")),
            (&Node::NewTensor(dtype), _) => {
                let view = view_of_state(dtype, state, &self.values)?;
                self.values.replace(object, Node::Tensor(Box::new(view)));
                return Ok(());
            }
            // `requires_grad`, `volatile` and hooks, as torch 0.3 and earlier wrote them.
            (Node::Tensor(_), Node::Tuple(items)) if is_harmless(items) => {}
            (Node::Tensor(_), _) => return Err(wrong("a tensor with a state of its own")),
            _ => {}
        }
        match self.values.node_mut(object) {
            Node::Record(_, kept) => *kept = Some(state),
            Node::Tensor(_) => {}
            _ => self.values.attach(object, state),
        }
        Ok(())
    }

    /// `BUILD` of a lenient run.
    fn build_leniently(&mut self, state: NodeId, object: NodeId) -> Result<()> {
        match self.values.node_mut(object) {
            Node::Record(Record::JoblibArray, _) if self.trace.reads_arrays => {
                self.pass_over_array(state)
            }
            Node::Record(_, kept) => {
                *kept = Some(state);
                Ok(())
            }
            Node::Global(_) => {
                self.trace.calls = true;
                Err(wrong("attributes of a global"))
            }
            _ => Ok(()),
        }
    }

    /// The first 16 arguments of a call. No allowed global takes more, and copying them all would
    /// make repeated calls with one long tuple quadratic.
    fn arguments(&self, args: NodeId) -> Result<Vec<NodeId>> {
        let args = match self.values.node(args) {
            Node::Tuple(args) => args,
            // Python's unpickler in Python takes any iterable.
            Node::List(args) if self.lenient => args,
            _ if self.lenient => return Ok(vec![]),
            _ => return Err(wrong("arguments that are no tuple")),
        };
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
            false => {
                [self.input.text(&lines[0])?.to_owned(), self.input.text(&lines[1])?.to_owned()]
            }
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
            Node::Opaque if self.lenient => Ok(COMPUTED.to_owned()),
            _ if self.lenient && !self.trace.stops_at_errors => Ok(COMPUTED.to_owned()),
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
        if self.trace.stops_at_errors && !(is_importable(&module) && is_importable(&name)) {
            return Err(wrong("a global that Python does not find"));
        }
        // A long list may name one global many times, and grading it would take most of the time.
        let mut named = NamedGlobal { module, name, allowed: true };
        if let Some(&value) = self.seen.get(&named) {
            return Ok(value);
        }
        let found = self.allowed(&named.module, &named.name);
        named.allowed = found.is_some();
        let value = match self.seen.get(&named) {
            Some(&value) => value,
            None => self.record(&named, found)?,
        };
        match found.is_some() || self.lenient {
            true => Ok(value),
            false => {
                Err(AnamnesisError::DisallowedGlobal { module: named.module, name: named.name })
            }
        }
    }

    /// The global, if it is on the allow-list, or the user or the kind of checkpoint adds it.
    fn allowed(&self, module: &str, name: &str) -> Option<Global> {
        let limits = self.input.budget.limits();
        // Usually the user has named none.
        let is_opaque =
            || limits.is_opaque(module, name) && risk_of(module, name) != PickleRisk::Dangerous;
        Global::find(module, name)
            .or_else(|| is_opaque().then_some(Global::Opaque))
            .or_else(|| (self.more_globals)(module, name))
    }

    /// Records a global that has not been named before, and returns what stands for it.
    fn record(&mut self, named: &NamedGlobal, found: Option<Global>) -> Result<Global> {
        if self.named.len() == MAX_GLOBALS {
            let message = format!("a pickle that names more than {MAX_GLOBALS} globals");
            return Err(AnamnesisError::LimitExceeded { limit: "MAX_PICKLE_GLOBALS", message });
        }
        self.values
            .charge(2 * (size_of::<NamedGlobal>() + named.module.len() + named.name.len()));
        let value = found.unwrap_or_else(|| Global::unlisted(&named.module, &named.name));
        self.seen.insert(named.clone(), value);
        self.named.push(named.clone());
        Ok(value)
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

    /// Whether the arguments of an encoding name the one that pickles use: another makes other bytes.
    fn is_latin1(&self, args: &[NodeId]) -> bool {
        let encoding = args.get(1).map(|&id| self.values.node(id));
        matches!(encoding, Some(Node::Str(name)) if self.input.bytes(name) == b"latin1")
    }

    /// Pushes the value that stands for a call of `global`.
    fn call(&mut self, global: &Global, args: &[NodeId]) -> Result<()> {
        if !self.lenient {
            let node = match global {
                Global::ArrayOfBuffer => ndarray::of_buffer(args, &self.values, &self.input)?,
                Global::Encode if !self.is_latin1(args) => Node::Opaque,
                global => global.call(args, &self.values)?,
            };
            self.push(node)?;
            let object = self.top()?;
            let is_sharded = matches!(
                self.values.node(object),
                Node::Record(Record::Sharded | Record::Subclass(_), _)
            );
            let more = match global {
                Global::Opaque | Global::Class => args,
                Global::FirstArgument => args.get(1..).unwrap_or_default(),
                // Behind the function and the class; its arguments have the size of the tensor.
                Global::RebuildFromType if is_sharded => args.get(2..).unwrap_or_default(),
                // Behind the function's arguments.
                Global::RebuildFromType => args.get(3..).unwrap_or_default(),
                _ => &[],
            };
            for &value in more {
                self.values.attach(object, value);
            }
            return Ok(());
        }
        self.trace.calls |= *global == Global::Unlisted;
        let first = args.first().map(|&id| self.values.node(id));
        let node = match (global, first) {
            (Global::JoblibArray, _) => {
                self.trace.has_arrays = true;
                Node::Record(Record::JoblibArray, None)
            }
            (Global::NumpyDtype, Some(Node::Str(code))) => Node::NumpyDtype(code.clone()),
            _ => Node::Opaque,
        };
        self.push(node)
    }
}

/// Whether Python can find a module or an attribute of this name, without a file of a name that no
/// program has.
fn is_importable(name: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    name == COMPUTED
        || name.len() <= MAX_NAME
            && name
                .split('.')
                .all(|part| !part.is_empty() && part.chars().all(is_letter))
}

/// Longest name of a module or of an attribute that Python is believed to find.
const MAX_NAME: usize = 1024;
