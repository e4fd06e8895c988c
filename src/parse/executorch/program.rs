//! Constants of a program, and initial values of its state.

use std::collections::HashMap;
use std::ops::Range;

use super::operators;
use super::reader::{NamedData, ProgramReader, ValueUse};
use super::tensor::ValueLayout;
use super::xnnpack::XnnTensors;
use super::{HEADER_AT, OPAQUE, Segments, count, finish, header, number, wrong};
use crate::limits::Budget;
use crate::model::GraphRole;
use crate::parse::flatbuffer::{FlatBuffer, FlatTable};
use crate::source::Source;
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// The value that is a tensor.
const TENSOR: u8 = 5;

/// What tells whether two values are one tensor: where the data is, and what it is.
type SameConstant = (Option<u32>, u32, ValueLayout);

/// The tensors of a program.
struct ProgramTensors<'a> {
    reader: ProgramReader<'a>,
    /// Segment and offsets of constants, and of each kind of state.
    constants: Option<Subsegments>,
    states: Vec<Subsegments>,
    /// Names of tensors by their data.
    names: HashMap<SameConstant, String>,
    xnnpack: XnnTensors,
}

/// Where pieces of a segment begin.
struct Subsegments {
    segment: Range<u64>,
    offsets: Vec<u64>,
}

impl Subsegments {
    fn read(file: &mut FlatBuffer<'_>, table: &FlatTable, segments: &Segments) -> Result<Self> {
        let offsets = file.vector(table, 1, 8)?;
        let offsets = file.numbers(offsets)?;
        let offsets: Vec<u64> = offsets.into_iter().map(u64::from_le_bytes).collect();
        let segment = match offsets.is_empty() {
            true => 0..0,
            false => segments.get(file.int(table, 0)? as u32)?,
        };
        Ok(Self { segment, offsets })
    }

    /// The bytes from piece `i` on.
    fn from(&self, i: u32) -> Result<Range<u64>> {
        let start = self.offsets.get(i as usize);
        let start = start.and_then(|offset| self.segment.start.checked_add(*offset));
        let start = start.filter(|start| *start <= self.segment.end);
        let start = start.ok_or_else(|| wrong(format!("constant {i} is not in its segment")))?;
        Ok(start..self.segment.end)
    }
}

/// Reads a program (`.pte`).
///
/// # Errors
/// `Parse` if it is malformed; `LimitExceeded`; `Io`.
pub(in crate::parse) fn read(source: &Source, budget: &Budget) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(0);
    budget.tables(0, 0, len)?;
    // Small programs without segments have no header.
    let head: [u8; 24] = match len >= HEADER_AT + 24 {
        true => header(source)?,
        false => [0; 24],
    };
    let (end, base) = match head.starts_with(b"eh00") {
        true => (number(&head, 8), number(&head, 16)),
        false => (len, 0),
    };
    if end > len {
        return Err(wrong(format!("its program ends at {end}, and it has {len} bytes")));
    }
    let mut file = FlatBuffer::new(source, 0..end);
    let root = file.root()?;
    let segments = Segments::read(&mut file, &root, 4, [base, len], budget)?;
    let constants = match file.child(&root, 5)? {
        Some(table) => Some(Subsegments::read(&mut file, &table, &segments)?),
        None => None,
    };
    let constants = constants.filter(|constants| !constants.offsets.is_empty());
    let mut states = Vec::new();
    let tables = file.vector(&root, 6, 4)?;
    for i in 0..tables.len {
        budget.tables(0, 1, 0)?;
        let table = file.item(tables, i)?;
        states.push(Subsegments::read(&mut file, &table, &segments)?);
    }
    let mut contents = ParsedModel::new(Container::ExecuTorch, 0);
    contents.sources.push(source.share());
    let reader = ProgramReader::new(file, root, segments, contents, (len, budget));
    let (names, xnnpack) = (HashMap::new(), XnnTensors::default());
    let mut tensors = ProgramTensors { reader, constants, states, names, xnnpack };
    tensors.plans()?;
    finish(tensors.reader.contents, len)
}

impl ProgramTensors<'_> {
    /// Reads the methods of the program.
    fn plans(&mut self) -> Result<()> {
        let mut named = NamedData::read(&mut self.reader)?;
        let plans = self.reader.file.vector(&self.reader.root, 1, 4)?;
        for i in 0..plans.len {
            let plan = self.reader.file.item(plans, i)?;
            let method = self.reader.file.text(&plan, 0)?;
            count(&method, self.reader.budget)?;
            let values = self.tensors(&plan, &method)?;
            operators::read(&mut self.reader, &plan, &values)?;
            self.delegates(&plan, &method, &mut named)?;
        }
        self.reader
            .contents
            .graph
            .resize(self.reader.contents.tensors.len(), GraphRole::Plain);
        operators::mark_rest(&mut self.reader);
        for name in named.unused() {
            self.reader.skip(&name, OPAQUE);
        }
        Ok(())
    }

    /// Adds the constants of a method, and returns its values that are tensors with data.
    fn tensors(&mut self, plan: &FlatTable, method: &str) -> Result<HashMap<u64, ValueUse>> {
        let values = self.reader.file.vector(plan, 2, 4)?;
        let mut found = HashMap::new();
        for i in 0..values.len {
            self.reader.look()?;
            let value = self.reader.file.item(values, i)?;
            if self.reader.file.byte(&value, 0)? != TENSOR {
                continue;
            }
            let Some(tensor) = self.reader.file.child(&value, 1)? else {
                continue;
            };
            if let Some(value) = self.tensor(&tensor, method)? {
                found.insert(i, value);
            }
        }
        Ok(found)
    }

    /// Adds a tensor if it has data.
    fn tensor(&mut self, tensor: &FlatTable, method: &str) -> Result<Option<ValueUse>> {
        let number = self.reader.file.int(tensor, 5)? as u32;
        let extra = self.reader.file.child(tensor, 9)?;
        let (mut name, mut state, mut is_external) = (String::new(), 0, false);
        if let Some(extra) = &extra {
            state = self
                .reader
                .file
                .number(extra, 0)?
                .map_or(0, u64::from_le_bytes);
            is_external = self.reader.file.byte(extra, 2)? == 1;
            name = self.reader.file.text(extra, 1)?;
        }
        if number == 0 && !is_external {
            return Ok(None);
        }
        count(&name, self.reader.budget)?;
        if is_external {
            if self.reader.take_name(&name) {
                self.reader
                    .skip(&name, "data in another file: give the `.ptd` that it is in");
            }
            return Ok(None);
        }
        let is_state = self.reader.file.child(tensor, 6)?.is_some();
        let state = match is_state {
            true => Some(u32::try_from(state).map_err(|_| wrong("a state is missing"))?),
            false => None,
        };
        let layout = ValueLayout::read(&mut self.reader.file, tensor, [0, 2, 3])?;
        let key = (state, number, layout);
        if let Some(name) = self.names.get(&key) {
            return Ok(Some(ValueUse::new(name, &key.2)));
        }
        let name = self.free_name(name, method, &key)?;
        let added = self.add(tensor, &name, &key);
        added.map_err(|error| error.in_tensor(&name))?;
        let value = ValueUse::new(&name, &key.2);
        let last = self.reader.contents.tensors.len().checked_sub(1);
        // What no tensor can hold was not added.
        if let Some(last) = last.filter(|&i| *self.reader.contents.tensors[i].name == *name) {
            self.reader.numbers.insert(name.clone(), last);
        }
        self.names.insert(key, name);
        Ok(Some(value))
    }

    /// The name of a tensor: that in the file, or the number of its data. If another tensor has it,
    /// the method comes before it, and its number behind it if need be: tensors of other types and
    /// shapes have the data of one if their bytes are equal.
    fn free_name(&mut self, name: String, method: &str, key: &SameConstant) -> Result<String> {
        let (state, number, _) = key;
        let name = match (name.is_empty(), state) {
            (false, _) => name,
            (true, None) => format!("constant_{number}"),
            (true, Some(state)) => format!("state_{state}_{number}"),
        };
        let number = self.reader.contents.tensors.len();
        let in_method = format!("{method}.{name}");
        let candidates = [name.clone(), in_method.clone(), format!("{in_method}.{number}")];
        let free = candidates
            .into_iter()
            .find(|name| self.reader.take_name(name));
        free.ok_or_else(|| wrong(format!("two tensors are called `{name}`")))
    }

    fn add(&mut self, tensor: &FlatTable, name: &str, key: &SameConstant) -> Result<()> {
        if self.reader.file.int(tensor, 1)? != 0 {
            return Err(AnamnesisError::unsupported("ExecuTorch", "an offset in its storage"));
        }
        let (state, number, layout) = key;
        let (data, is_whole) = match state {
            Some(state) => {
                let state = self.states.get(*state as usize);
                let state = state.ok_or_else(|| wrong("its state is missing"))?;
                (state.from(*number)?, false)
            }
            None => match &self.constants {
                Some(constants) => (constants.from(*number)?, false),
                None => (self.reader.inline(2, *number)?, true),
            },
        };
        layout.add(&mut self.reader.contents, name, 0, data, is_whole)
    }

    /// Adds what the method hands to backends.
    fn delegates(&mut self, plan: &FlatTable, method: &str, named: &mut NamedData) -> Result<()> {
        let delegates = self.reader.file.vector(plan, 7, 4)?;
        for i in 0..delegates.len {
            let delegate = self.reader.file.item(delegates, i)?;
            let backend = self.reader.file.text(&delegate, 0)?;
            count(&backend, self.reader.budget)?;
            let Some(place) = self.reader.file.child(&delegate, 1)? else {
                continue;
            };
            let index = self.reader.file.int(&place, 1)? as u32;
            let blob = match self.reader.file.byte(&place, 0)? {
                0 => self.reader.inline(3, index)?,
                _ => self.reader.segments.get(index)?,
            };
            let name = format!("{method}.delegate_{i}");
            let is_read = match backend.as_str() {
                "XnnpackBackend" => self.xnnpack.read(&mut self.reader, blob, &name, named)?,
                _ => false,
            };
            if !is_read && self.reader.take_name(&name) {
                self.reader
                    .skip(&name, &format!("data of the backend {backend}"));
            }
        }
        Ok(())
    }
}
