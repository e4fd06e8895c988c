//! [`PickleMachine`]: an interpreter for pickles that never calls or imports anything.
//!
//! A pickle is a program for a stack machine. Python's unpickler runs arbitrary code because two
//! kinds of opcodes may import any global and call it. Here they cannot:
//!
//! - `GLOBAL`, `STACK_GLOBAL` and `INST` look a name up in a fixed table
//!   ([`globals`](super::globals)). A name that is not in it is an error.
//! - `REDUCE`, `NEWOBJ`, `NEWOBJ_EX`, `OBJ` and `INST` build a value from the global and its
//!   arguments; `BUILD` drops the state. No opcode runs code that depends on the pickle.
//!
//! Time and memory are linear in the bytes consumed. An opcode takes constant time, apart from
//! bytes that it consumes and items that it takes from the stack. One that copies a container, or
//! that names a global with text from the stack, is charged for the length. The charges are checked
//! after every opcode; see [`PickleValues`].
//!
//! Opcodes: CPython `Lib/pickle.py`, protocols 0 to 5.

mod array;
mod literal;
mod object;

use std::collections::HashMap;
use std::mem::take;

use self::literal::python_integer;
use super::globals::Global;
use super::input::PickleInput;
use super::records::Record;
use super::value::{Node, NodeId, PickleValues};
use crate::{AnamnesisError, Result};

/// Most pickles that lie inside of each other.
const MAX_NESTED: usize = 4;

/// Most marks that are open at a time.
const MAX_MARKS: usize = 256;

/// A global that a pickle names, and whether it is on the allow-list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct NamedGlobal {
    pub module: String,
    pub name: String,
    pub allowed: bool,
}

/// Runs the pickles of an input, one after the other. Their values share one table: the storages of
/// a legacy checkpoint are found by values of two of its pickles.
pub(super) struct PickleMachine<'a> {
    pub input: PickleInput<'a>,
    pub values: PickleValues,
    stack: Vec<NodeId>,
    /// Heights of the stack at the open marks, in ascending order.
    marks: Vec<usize>,
    memo: HashMap<u64, NodeId>,
    /// Every global that was named, once each, in the order of the pickles.
    pub named: Vec<NamedGlobal>,
    /// The globals in `named` with their values, for look-ups.
    seen: HashMap<NamedGlobal, Global>,
    /// Globals that two values on the stack have named, so that long texts are compared once.
    looked_up: HashMap<(NodeId, NodeId), Global>,
    /// Whether the machine only collects the names of globals: it goes on past errors as long as it
    /// can tell where the next opcode begins, and calls give opaque values.
    pub lenient: bool,
    /// Whether long text and bytes stay in the file: they are the data of arrays.
    pub leaves_data: bool,
    /// Globals that are allowed besides those of all checkpoints.
    pub more_globals: MoreGlobals,
    /// What a lenient run does besides, and what it has found.
    pub trace: Trace,
}

/// What a lenient run does besides, and what it has found about the pickle.
#[derive(Default)]
pub(super) struct Trace {
    /// Whether the run ends at the first error, as Python's does: for content that nothing says to
    /// be a pickle.
    pub stops_at_errors: bool,
    /// Whether arrays lie behind the objects that stand for them, as joblib's unpickler reads them.
    pub reads_arrays: bool,
    /// The first error that was passed over.
    pub error: Option<String>,
    /// Whether a global was called, or its attributes set, that is not on the allow-list.
    pub calls: bool,
    /// Whether an object that stands for an array of joblib was made.
    pub has_arrays: bool,
    /// Pickles that lie where an array's elements would be, inside of each other.
    pub depth: usize,
    /// Whether Python may go on where the run had to end.
    pub is_unclear: bool,
    /// Whether an opcode reached over the end of its frame, where Python's unpicklers read on in
    /// different ways, or the pickle ended before it, where they go on behind the frame.
    pub crosses_frames: bool,
}

/// Looks up a global by its module and its name.
pub(super) type MoreGlobals = fn(&str, &str) -> Option<Global>;

/// A `Parse` error of a pickle.
pub(super) fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("pickle: {what}"))
}

impl<'a> PickleMachine<'a> {
    pub(super) fn new(input: PickleInput<'a>, lenient: bool) -> Self {
        let (stack, marks, memo, named, seen, looked_up) = Default::default();
        Self {
            input,
            values: PickleValues::default(),
            stack,
            marks,
            memo,
            named,
            seen,
            looked_up,
            lenient,
            leaves_data: false,
            more_globals: |_, _| None,
            trace: Trace::default(),
        }
    }

    /// Runs one pickle, from the input's position to its `STOP`, and returns its value.
    ///
    /// # Errors
    /// `Parse` if the pickle is malformed; `DisallowedGlobal`; `Unsupported` for an unknown
    /// protocol; `LimitExceeded`; `Io`. With [`lenient`](Self::lenient) only errors that nothing
    /// can follow.
    pub(super) fn run(&mut self) -> Result<NodeId> {
        self.stack.clear();
        self.marks.clear();
        // Not cleared, which takes as long as the table of an earlier pickle is.
        self.memo = HashMap::new();
        self.input.forget_frame();
        self.run_on()
    }

    /// Executes opcodes up to the next `STOP`, and returns the value on the stack.
    fn run_on(&mut self) -> Result<NodeId> {
        loop {
            let start = self.input.position();
            let opcode = self.input.byte()?;
            if opcode == b'.' {
                if self.input.is_left_in_frame() {
                    self.crossed_frame()?;
                }
                return self.pop();
            }
            let result = self.execute(opcode);
            let result = self.check_frame(start).and(result);
            match result {
                // Where Python would raise an exception, any stack will do for the globals that
                // follow.
                Err(error @ AnamnesisError::Parse { .. })
                    if self.lenient && !self.input.is_lost && !self.trace.stops_at_errors =>
                {
                    self.trace.error.get_or_insert_with(|| error.to_string());
                    self.push(Node::Opaque)?;
                }
                result => result?,
            }
            self.input
                .budget
                .grow(self.values.take_growth(), "the values of a pickle")?;
            self.values.check_budget(
                self.input.bytes_consumed(),
                self.stack.len() + self.marks.len() + self.memo.len(),
            )?;
        }
    }

    /// Executes one opcode other than `STOP`.
    fn execute(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // PROTO.
            0x80 => match self.input.byte()? {
                0..=5 => Ok(()),
                n => Err(AnamnesisError::unsupported(
                    format!("pickle protocol {n}"),
                    "protocols 0 to 5 are read",
                )),
            },
            0x95 => self.frame(self.input.position() - 1),
            b'(' => self.mark(),
            b'0' => self.pop_any(),
            b'1' => self.pop_mark().map(drop),
            b'2' => self.top().map(|id| self.stack.push(id)),
            b'p' => self.memo_line().and_then(|n| self.put(n)),
            b'q' => self.input.byte().and_then(|n| self.put(n.into())),
            b'r' => self.input.u32().and_then(|n| self.put(n.into())),
            0x94 => self.put(self.memo.len() as u64),
            b'g' => self.memo_line().and_then(|n| self.get(n)),
            b'h' => self.input.byte().and_then(|n| self.get(n.into())),
            b'j' => self.input.u32().and_then(|n| self.get(n.into())),
            // EXT1 to EXT4 take a global from a registry of the process: its name is not in the
            // file. The registry is empty unless a program has filled it.
            0x82..=0x84 if self.lenient && !self.trace.stops_at_errors => {
                self.input.take([1, 2, 4][usize::from(opcode - 0x82)])?;
                self.unwritten_global()
            }
            // NEXT_BUFFER takes a buffer from outside of the file.
            0x97 if self.lenient => self.push(Node::Opaque),
            // READONLY_BUFFER.
            0x98 if self.lenient => Ok(()),
            b'c' | 0x93 | b'i' | b'o' | b'R' | b'b' | 0x81 | 0x92 | b'P' | b'Q' => {
                self.object_opcode(opcode)
            }
            b']'
            | b'l'
            | b'a'
            | b'e'
            | b')'
            | b't'
            | 0x85..=0x87
            | b'}'
            | b'd'
            | b's'
            | b'u'
            | 0x8f..=0x91 => self.container_opcode(opcode),
            _ => self.literal_opcode(opcode),
        }
    }

    /// `FRAME` at offset `start`: a hint for buffering.
    fn frame(&mut self, start: u64) -> Result<()> {
        let len = self.input.u64()?;
        if self.input.is_in_frame(start) {
            return self.crossed_frame();
        }
        self.input.begin_frame(len);
        Ok(())
    }

    /// Checks that the opcode at offset `start` ended in the frame that it began in.
    fn check_frame(&mut self, start: u64) -> Result<()> {
        match self.input.reaches_over_frame(start) {
            true => self.crossed_frame(),
            false => Ok(()),
        }
    }

    /// Notes what Python's unpicklers read in different ways. A lenient run goes on as if there were
    /// no frames.
    pub(super) fn crossed_frame(&mut self) -> Result<()> {
        // Behind an error Python reads nothing.
        self.trace.crosses_frames |= self.trace.error.is_none();
        match self.lenient {
            true => Ok(()),
            false => Err(wrong(
                "an opcode or the pickle does not end in its frame, and what follows depends on the reader",
            )),
        }
    }

    /// Executes an opcode for lists, tuples, dicts or sets.
    fn container_opcode(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            b']' => self.push(Node::List(vec![])),
            b')' => self.push(Node::Tuple(vec![])),
            b'}' => self.push(Node::Dict(vec![])),
            0x8f => self.push(Node::Set(vec![])),
            b'l' => self
                .pop_mark()
                .and_then(|items| self.push(Node::List(items))),
            b't' => self
                .pop_mark()
                .and_then(|items| self.push(Node::Tuple(items))),
            b'd' => {
                let items = self.pop_mark()?;
                let pairs = pairs(&items)?;
                self.push(Node::Dict(pairs))
            }
            0x91 => self
                .pop_mark()
                .and_then(|items| self.push(Node::Set(items))),
            0x90 => self.pop_mark().and_then(|items| self.add_items(items)),
            0x85..=0x87 => {
                let n = usize::from(opcode - 0x84);
                let at = self.floor(n)?;
                let items = self.stack.split_off(at);
                self.push(Node::Tuple(items))
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(vec![item])
            }
            b'e' => self.pop_mark().and_then(|items| self.extend(items)),
            b's' => {
                let at = self.floor(2)?;
                let items = self.stack.split_off(at);
                self.update(&items)
            }
            _ => self.pop_mark().and_then(|items| self.update(&items)),
        }
    }

    /// Adds to the set at the top of the stack.
    fn add_items(&mut self, items: Vec<NodeId>) -> Result<()> {
        let top = self.floor(1).map(|at| self.stack[at]);
        match top.map(|top| self.values.node_mut(top)) {
            Ok(Node::Set(set)) => set.extend(items),
            Ok(Node::Record(Record::Object, _)) => return self.attach_to_top(Node::Set(items)),
            Ok(Node::Opaque) => {}
            _ if self.lenient => {}
            _ => return Err(wrong("an item is added to what is no set")),
        }
        Ok(())
    }

    /// Appends to the list at the top of the stack. Items of opaque objects are dropped.
    fn extend(&mut self, items: Vec<NodeId>) -> Result<()> {
        let top = self.top()?;
        match self.values.node_mut(top) {
            Node::List(list) => list.extend(items),
            Node::Opaque => {}
            Node::Set(set) => set.extend(items),
            Node::Record(Record::Object, _) => return self.attach_to_top(Node::List(items)),
            // Python accepts any object with a method `append` or `extend`.
            _ if self.lenient => {}
            _ => return Err(wrong("an item is added to what is no list")),
        }
        Ok(())
    }

    /// Adds keys and values, in turn in `items`, to the dict at the top of the stack. Repeated keys
    /// are all kept: the last one counts when the dict is walked.
    fn update(&mut self, items: &[NodeId]) -> Result<()> {
        let (top, more) = (self.top()?, pairs(items)?);
        match self.values.node_mut(top) {
            Node::Dict(entries) => entries.extend(more),
            Node::Record(Record::Object, _) => return self.attach_to_top(Node::Dict(more)),
            Node::Opaque => {}
            _ if self.lenient => {}
            _ => return Err(wrong("an entry is added to what is no dict")),
        }
        Ok(())
    }

    /// Keeps that the items of `container` belong to the object at the top of the stack.
    fn attach_to_top(&mut self, container: Node) -> Result<()> {
        let (top, items) = (self.top()?, self.values.add(container));
        self.values.attach(top, items);
        Ok(())
    }

    /// The globals that are allowed, are on no list, and have the value `value`.
    pub(super) fn unlisted(&self, value: Global) -> Vec<String> {
        let is_one = |named: &&NamedGlobal| {
            named.allowed
                && Global::find(&named.module, &named.name).is_none()
                && self.seen.get(*named) == Some(&value)
        };
        let found = self.named.iter().filter(is_one);
        found
            .map(|named| format!("{}.{}", named.module, named.name))
            .collect()
    }

    /// Adds a value to the table and pushes it.
    pub(super) fn push(&mut self, node: Node) -> Result<()> {
        let id = self.values.add(node);
        self.stack.push(id);
        Ok(())
    }

    /// Index of the lowest of the top `n` items of the stack. They must be above the last mark, as
    /// in Python, where each mark begins a new stack.
    fn floor(&self, n: usize) -> Result<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack
            .len()
            .checked_sub(n)
            .filter(|&at| at >= floor)
            .ok_or_else(|| wrong("the stack is too short"))
    }

    fn top(&self) -> Result<NodeId> {
        self.floor(1).map(|at| self.stack[at])
    }

    fn pop(&mut self) -> Result<NodeId> {
        let at = self.floor(1)?;
        let id = self.stack[at];
        self.stack.truncate(at);
        Ok(id)
    }

    /// `POP`: drops the top item, or the last mark if nothing is above it.
    fn pop_any(&mut self) -> Result<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn mark(&mut self) -> Result<()> {
        // A lenient run has no such bound; marks count in the memory that is checked after every
        // opcode.
        if self.marks.len() == MAX_MARKS && !self.lenient {
            let message = format!("a pickle with more than {MAX_MARKS} open marks");
            return Err(AnamnesisError::LimitExceeded { limit: "MAX_PICKLE_MARK_DEPTH", message });
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Removes the last mark and all items above it, and returns them.
    fn pop_mark(&mut self) -> Result<Vec<NodeId>> {
        let at = self.marks.pop().ok_or_else(|| wrong("a mark is missing"))?;
        Ok(self.stack.split_off(at))
    }

    /// Stores the top item in the memo under `n`.
    fn put(&mut self, n: u64) -> Result<()> {
        let top = self.top()?;
        self.memo.insert(n, top);
        Ok(())
    }

    /// Pushes the item that the memo has under `n`.
    fn get(&mut self, n: u64) -> Result<()> {
        let id = *self
            .memo
            .get(&n)
            .ok_or_else(|| wrong("it refers to what it has not stored"))?;
        self.stack.push(id);
        Ok(())
    }

    /// Consumes a line with an index of the memo, as Python's `int` reads it.
    fn memo_line(&mut self) -> Result<u64> {
        let range = self.input.line()?;
        let digits = python_integer(self.input.bytes(&range));
        let digits = digits.ok_or_else(|| wrong("a place in the memo that is no number"))?;
        digits.parse().map_err(|_| {
            // Python's two unpicklers differ in what they make of such a number.
            self.input.is_lost = !digits.starts_with('-');
            self.trace.is_unclear |= self.input.is_lost;
            wrong("a place in the memo that is no index")
        })
    }

    /// The error of a run that ends where Python may go on.
    fn unclear(&mut self, what: &str) -> AnamnesisError {
        self.input.is_lost = true;
        self.trace.is_unclear = true;
        wrong(what)
    }

    /// Runs a pickle of its own, which lies at the input's position, and goes on with the outer one
    /// behind it.
    fn run_nested(&mut self) -> Result<NodeId> {
        if self.trace.depth == MAX_NESTED {
            return Err(self.unclear("pickles inside of each other"));
        }
        let (stack, marks) = (take(&mut self.stack), take(&mut self.marks));
        let memo = take(&mut self.memo);
        self.trace.depth += 1;
        let result = self.run_on();
        self.trace.depth -= 1;
        (self.stack, self.marks, self.memo) = (stack, marks, memo);
        result
    }
}

/// Groups `items` into keys and values.
fn pairs(items: &[NodeId]) -> Result<Vec<(NodeId, NodeId)>> {
    let (pairs, rest) = items.as_chunks::<2>();
    if rest.is_empty() {
        Ok(pairs.iter().map(|&[k, v]| (k, v)).collect())
    } else {
        Err(wrong("a key without a value"))
    }
}
