//! A machine for pickles that calls nothing and imports nothing: globals are looked up in a list
//! ([`globals`](super::globals)), and what they would be called with becomes a value.
//!
//! Opcodes: CPython `Lib/pickle.py`, protocols 0 to 5.

use std::collections::{HashMap, HashSet};

use super::globals::Global;
use super::input::Input;
use super::value::{Id, Node, Values};
use crate::{AnamnesisError, Result};

/// Marks that are open at once.
const MAX_MARKS: usize = 256;

/// Different globals that are recorded.
const MAX_GLOBALS: usize = 4096;

/// A global that a pickle names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Named {
    pub module: String,
    pub name: String,
    pub allowed: bool,
}

/// Runs pickles, one after the other.
pub(super) struct Machine<'a> {
    pub input: Input<'a>,
    pub values: Values,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Every global that was named, once each.
    pub named: Vec<Named>,
    seen: HashSet<Named>,
    /// Globals that were looked up by values on the stack.
    looked_up: HashMap<(Id, Id), Global>,
    /// Whether a global that is not allowed is only recorded, and what is wrong passed over as far as opcodes can be
    /// told from each other: nothing is called then, and values are of no use but as names of globals.
    pub lenient: bool,
}

/// The name in a list of globals of what is not written in the pickle: it would be computed.
const COMPUTED: &str = "?";

pub(super) fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("pickle: {what}"))
}

impl<'a> Machine<'a> {
    pub(super) fn new(input: Input<'a>, lenient: bool) -> Self {
        let (stack, marks, memo, named, seen, looked_up) = Default::default();
        Self {
            input,
            values: Values::default(),
            stack,
            marks,
            memo,
            named,
            seen,
            looked_up,
            lenient,
        }
    }

    /// Runs one pickle from the input's position to its end; its value.
    pub(super) fn run(&mut self) -> Result<Id> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        loop {
            let opcode = self.input.byte()?;
            if opcode == b'.' {
                return self.pop();
            }
            match self.step(opcode) {
                // Where Python would raise, it matters no more what is on the stack.
                Err(AnamnesisError::Parse { .. }) if self.lenient && !self.input.is_lost => {
                    self.push(Node::Opaque)?
                }
                result => result?,
            }
            self.input
                .budget
                .grow(self.values.growth(), "the values of a pickle")?;
            self.values.check_budget(
                self.input.paid(),
                self.stack.len() + self.marks.len() + self.memo.len(),
            )?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            0x80 => match self.input.byte()? {
                0..=5 => Ok(()),
                n => Err(AnamnesisError::unsupported(
                    format!("pickle protocol {n}"),
                    "protocols 0 to 5 are read",
                )),
            },
            0x95 => self.input.take(8).map(drop),
            b'(' => self.mark(),
            b'0' => self.pop_any(),
            b'1' => self.pop_mark().map(drop),
            b'2' => self.top().map(|id| self.stack.push(id)),
            b'p' => self.memo_line().and_then(|n| self.put(n)),
            b'q' => self.input.byte().and_then(|n| self.put(n.into())),
            b'r' => self.input.u32().and_then(|n| self.put(n)),
            0x94 => self.put(self.memo.len() as u32),
            b'g' => self.memo_line().and_then(|n| self.get(n)),
            b'h' => self.input.byte().and_then(|n| self.get(n.into())),
            b'j' => self.input.u32().and_then(|n| self.get(n)),
            // Numbers of globals and data that come from elsewhere: nobody here knows them, but they name nothing.
            0x82 | 0x83 | 0x84 | 0x97 if self.lenient => {
                self.input
                    .take([1, 2, 4, 0][usize::from(opcode - 0x82).min(3)])?;
                self.push(Node::Opaque)
            }
            0x98 if self.lenient => Ok(()),
            b'c' | 0x93 | b'i' | b'o' | b'R' | b'b' | 0x81 | 0x92 | b'P' | b'Q' => {
                self.object(opcode)
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
            | 0x8f..=0x91 => self.container(opcode),
            _ => self.literal(opcode),
        }
    }

    /// Opcodes for lists, tuples, dicts and sets.
    fn container(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            b']' => self.push(Node::List(vec![])),
            b')' => self.push(Node::Tuple(vec![])),
            b'}' => self.push(Node::Dict(vec![])),
            0x8f => self.push(Node::Set),
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
            0x91 => self.pop_mark().and_then(|_| self.push(Node::Set)),
            0x90 => self.pop_mark().map(drop),
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

    /// Appends to the list at the top of the stack. Lists of classes that are not known are not kept.
    fn extend(&mut self, items: Vec<Id>) -> Result<()> {
        let top = self.top()?;
        match self.values.node_mut(top) {
            Node::List(list) => list.extend(items),
            Node::Opaque | Node::Set => {}
            // Python asks for no list, but for something that items can be added to.
            _ if self.lenient => {}
            _ => return Err(wrong("an item is added to what is no list")),
        }
        Ok(())
    }

    fn update(&mut self, items: &[Id]) -> Result<()> {
        let (top, more) = (self.top()?, pairs(items)?);
        match self.values.node_mut(top) {
            Node::Dict(entries) => entries.extend(more),
            Node::Opaque => {}
            _ if self.lenient => {}
            _ => return Err(wrong("an entry is added to what is no dict")),
        }
        Ok(())
    }

    /// Opcodes that would import, call or change objects.
    fn object(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            b'c' => {
                let global = self.global_line()?;
                self.push(Node::Global(global))
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let global = self.global_of(module, name)?;
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
            // The state of an object is attributes; none of them is a tensor's.
            b'b' => self.pop().and_then(|_| self.top()).map(drop),
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

    /// The first arguments of a call; nothing that is known takes more.
    fn arguments(&self, args: Id) -> Result<Vec<Id>> {
        let args = self
            .values
            .tuple(args)
            .ok_or_else(|| wrong("arguments that are no tuple"))?;
        Ok(args.iter().take(16).copied().collect())
    }

    /// A global that the next two lines name.
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

    /// A global that two values name.
    fn global_of(&mut self, module: Id, name: Id) -> Result<Global> {
        if let Some(&global) = self.looked_up.get(&(module, name)) {
            return Ok(global);
        }
        let text = |id: Id| match self.values.node(id) {
            Node::Str(range) if self.lenient => {
                Ok(String::from_utf8_lossy(self.input.bytes(range)).into_owned())
            }
            Node::Str(range) => self.input.text(range).map(str::to_owned),
            _ if self.lenient => Ok(COMPUTED.to_owned()),
            _ => Err(wrong("a global whose name is no text")),
        };
        let texts = (text(module)?, text(name)?);
        // A long text can be named again at no cost; so that this comes to an end, it has a price.
        self.values.charge(64 + texts.0.len() + texts.1.len());
        let global = self.global(texts.0, texts.1)?;
        self.looked_up.insert((module, name), global);
        Ok(global)
    }

    fn global(&mut self, module: String, name: String) -> Result<Global> {
        let found = Global::find(&module, &name);
        let named = Named {
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
                .charge(2 * (size_of::<Named>() + named.module.len() + named.name.len()));
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

    fn call_value(&mut self, callable: Id, args: &[Id]) -> Result<()> {
        match self.values.node(callable) {
            Node::Global(global) => {
                let global = *global;
                self.call(&global, args)
            }
            _ if self.lenient => self.push(Node::Opaque),
            _ => Err(wrong("a call of what is no global")),
        }
    }

    fn call(&mut self, global: &Global, args: &[Id]) -> Result<()> {
        let node = if self.lenient {
            Node::Opaque
        } else {
            global.call(args, &self.values)?
        };
        self.push(node)
    }

    pub(super) fn push(&mut self, node: Node) -> Result<()> {
        let id = self.values.add(node);
        self.stack.push(id);
        Ok(())
    }

    /// Where the top `n` items of the stack begin; they must be above the last mark.
    fn floor(&self, n: usize) -> Result<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack
            .len()
            .checked_sub(n)
            .filter(|&at| at >= floor)
            .ok_or_else(|| wrong("the stack is too short"))
    }

    fn top(&self) -> Result<Id> {
        self.floor(1).map(|at| self.stack[at])
    }

    fn pop(&mut self) -> Result<Id> {
        let at = self.floor(1)?;
        let id = self.stack[at];
        self.stack.truncate(at);
        Ok(id)
    }

    /// The topmost item, or else the topmost mark.
    fn pop_any(&mut self) -> Result<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn mark(&mut self) -> Result<()> {
        if self.marks.len() == MAX_MARKS && !self.lenient {
            let message = format!("a pickle with more than {MAX_MARKS} open marks");
            return Err(AnamnesisError::LimitExceeded {
                limit: "MAX_PICKLE_MARK_DEPTH",
                message,
            });
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        let at = self.marks.pop().ok_or_else(|| wrong("a mark is missing"))?;
        Ok(self.stack.split_off(at))
    }

    fn put(&mut self, n: u32) -> Result<()> {
        let top = self.top()?;
        self.memo.insert(n, top);
        Ok(())
    }

    fn get(&mut self, n: u32) -> Result<()> {
        let id = *self
            .memo
            .get(&n)
            .ok_or_else(|| wrong("it refers to what it has not stored"))?;
        self.stack.push(id);
        Ok(())
    }

    fn memo_line(&mut self) -> Result<u32> {
        let range = self.input.line()?;
        // As in Python, blanks around a number are no part of it.
        self.input
            .text(&range)?
            .trim()
            .parse()
            .map_err(|_| wrong("a place in the memo that is no number"))
    }
}

fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>> {
    let (pairs, rest) = items.as_chunks::<2>();
    if rest.is_empty() {
        Ok(pairs.iter().map(|&[k, v]| (k, v)).collect())
    } else {
        Err(wrong("a key without a value"))
    }
}
