//! [`ProgramReader`]: a program that is being read, and its tensors so far.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::tensor::ValueLayout;
use super::{Segments, count, wrong};
use crate::limits::{Budget, cap};
use crate::model::Skipped;
use crate::parse::flatbuffer::{FlatBuffer, FlatTable};
use crate::{ParsedModel, Result};

/// A program that is being read.
pub(super) struct ProgramReader<'a> {
    pub file: FlatBuffer<'a>,
    pub budget: &'a Budget,
    pub segments: Segments,
    pub root: FlatTable,
    pub contents: ParsedModel,
    /// Numbers of the tensors that operators may take, by their names.
    pub numbers: HashMap<String, usize>,
    /// Names so far, also of what is no tensor.
    known: HashSet<String>,
    /// Values and operators that were looked at.
    values: u64,
    len: u64,
}

impl<'a> ProgramReader<'a> {
    /// Reads a program with the outermost table `root`, in a file of `len` bytes.
    pub(super) fn new(
        file: FlatBuffer<'a>,
        root: FlatTable,
        segments: Segments,
        contents: ParsedModel,
        (len, budget): (u64, &'a Budget),
    ) -> Self {
        let (numbers, known) = (HashMap::new(), HashSet::new());
        Self { file, budget, segments, root, contents, numbers, known, values: 0, len }
    }

    /// Counts a value or an operator, of which methods may share some.
    pub(super) fn look(&mut self) -> Result<()> {
        self.values += 1;
        // Each takes four bytes at least, if none is shared.
        let most = self.len / 4;
        cap("EXECUTORCH_MAX_VALUES", self.values, most, "values and operators of all methods")
    }

    /// The bytes of buffer `i` in the vector that is field `id` of the program.
    pub(super) fn inline(&mut self, id: u64, i: u32) -> Result<Range<u64>> {
        let buffers = self.file.vector(&self.root, id, 4)?;
        let buffer = self.file.item(buffers, i.into())?;
        let bytes = self.file.vector(&buffer, 0, 1)?;
        Ok(bytes.at..bytes.at + bytes.len)
    }

    /// Notes something that is no tensor.
    pub(super) fn skip(&mut self, name: &str, what: &str) {
        let skipped = Skipped { name: name.to_owned(), what: what.to_owned() };
        self.contents.skipped.push(skipped);
    }

    /// Whether nothing was called `name` so far.
    pub(super) fn take_name(&mut self, name: &str) -> bool {
        self.known.insert(name.to_owned())
    }
}

/// What an operator may take: a tensor with data.
pub(super) struct ValueUse {
    pub name: Box<str>,
    pub is_small_integer: bool,
}

impl ValueUse {
    pub(super) fn new(name: &str, layout: &ValueLayout) -> Self {
        Self { name: name.into(), is_small_integer: layout.is_small_integer() }
    }
}

/// Data by its name, and which of it has been used.
pub(super) struct NamedData {
    ranges: HashMap<String, Range<u64>>,
    used: HashSet<String>,
}

impl NamedData {
    pub(super) fn read(reader: &mut ProgramReader<'_>) -> Result<Self> {
        let tables = reader.file.vector(&reader.root, 7, 4)?;
        let mut ranges = HashMap::new();
        for i in 0..tables.len {
            let table = reader.file.item(tables, i)?;
            let key = reader.file.text(&table, 0)?;
            count(&key, reader.budget)?;
            let range = reader.segments.get(reader.file.int(&table, 1)? as u32)?;
            if ranges.insert(key.clone(), range).is_some() {
                return Err(wrong(format!("named data `{key}` is there twice")));
            }
        }
        Ok(Self { ranges, used: HashSet::new() })
    }

    /// The data called `name`, which is used then; `None` if it is not in the file.
    pub(super) fn take(&mut self, name: &str) -> Option<Range<u64>> {
        let found = self.ranges.get(name)?;
        self.used.insert(name.to_owned());
        Some(found.clone())
    }

    /// Names of the rest, sorted.
    pub(super) fn unused(self) -> Vec<String> {
        let mut rest: Vec<String> = self.ranges.into_keys().collect();
        rest.retain(|name| !self.used.contains(name));
        rest.sort_unstable();
        rest
    }
}
