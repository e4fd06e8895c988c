//! ExecuTorch: programs (`.pte`) and data of tensors beside them (`.ptd`), which are FlatBuffers
//! with segments of data behind them. Data is not read here.
//!
//! - `program`: constants of a program, as `reader` keeps them. `operators`: which of them are
//!   codes.
//! - `xnnpack`: weights that a program hands to XNNPACK, whose graphs say what they are.
//! - `tensor`: types, shapes and orders of dimensions.
//!
//! Formats: [`program.fbs`](https://github.com/pytorch/executorch/blob/main/schema/program.fbs),
//! [`flat_tensor.fbs`](https://github.com/pytorch/executorch/blob/main/extension/flat_tensor/serialize/flat_tensor.fbs).

mod operators;
mod program;
mod reader;
mod tensor;
mod xnnpack;

use std::collections::HashSet;
use std::ops::Range;

pub(super) use self::program::read as read_program;
use self::tensor::ValueLayout;
use super::flatbuffer::{FlatBuffer, FlatTable};
use crate::limits::Budget;
use crate::model::Skipped;
use crate::source::Source;
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Where headers begin: behind the offset of the outermost table and the mark of the FlatBuffer.
const HEADER_AT: u64 = 8;

fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("ExecuTorch: {what}"))
}

/// Pieces of data behind a FlatBuffer.
struct Segments(Vec<Range<u64>>);

impl Segments {
    /// Reads the tables in field `id` of `root`, whose offsets begin at `base` of a file of `len`
    /// bytes.
    fn read(
        file: &mut FlatBuffer<'_>,
        root: &FlatTable,
        id: u64,
        [base, len]: [u64; 2],
        budget: &Budget,
    ) -> Result<Self> {
        let tables = file.vector(root, id, 4)?;
        let mut ranges = Vec::new();
        for i in 0..tables.len {
            budget.tables(0, 1, 0)?;
            let table = file.item(tables, i)?;
            let [offset, size] = [0, 1].map(|id| file.number(&table, id));
            let [offset, size] = [offset?, size?].map(|n| n.map_or(0, u64::from_le_bytes));
            let start = base.checked_add(offset);
            let range = start.and_then(|start| Some(start..start.checked_add(size)?));
            // Programs without segments may list an empty one, and have no place for it.
            let range = range.filter(|range| range.end <= len && (base > 0 || range.is_empty()));
            ranges.push(range.ok_or_else(|| {
                wrong(format!("segment {i} is {size} bytes at {offset}, and it has {len}"))
            })?);
        }
        Ok(Self(ranges))
    }

    fn get(&self, i: u32) -> Result<Range<u64>> {
        let found = self.0.get(i as usize);
        found
            .cloned()
            .ok_or_else(|| wrong(format!("segment {i} is missing")))
    }
}

/// Numbers of a header.
fn header<const N: usize>(source: &Source) -> Result<[u8; N]> {
    let mut head = [0; N];
    if source.len().unwrap_or(0) < HEADER_AT + N as u64 {
        return Err(wrong("it is truncated"));
    }
    source.read_at(HEADER_AT, &mut head)?;
    Ok(head)
}

/// Eight bytes at `at` as a number.
fn number(head: &[u8], at: usize) -> u64 {
    let bytes = head.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Reads data of tensors by their names (`.ptd`).
///
/// # Errors
/// `Parse` if it is malformed; `LimitExceeded`; `Io`.
pub(super) fn read_data(source: &Source, budget: &Budget) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(0);
    budget.tables(0, 0, len)?;
    let head: [u8; 40] = header(source)?;
    if !head.starts_with(b"FH01") {
        return Err(wrong("it has no header"));
    }
    let [offset, size, base] = [8, 16, 24].map(|at| number(&head, at));
    let end = offset.checked_add(size).filter(|&end| end <= len);
    let end = end.ok_or_else(|| wrong("its tables end behind it"))?;
    let mut file = FlatBuffer::new(source, 0..end);
    let root = file.root()?;
    let segments = Segments::read(&mut file, &root, 1, [base, len], budget)?;
    let mut contents = ParsedModel::new(Container::ExecuTorch, 0);
    contents.sources.push(source.share());
    let mut known = HashSet::new();
    let named = file.vector(&root, 2, 4)?;
    for i in 0..named.len {
        let data = file.item(named, i)?;
        let name = file.text(&data, 0)?;
        count(&name, budget)?;
        let segment = segments.get(file.int(&data, 1)? as u32)?;
        if !known.insert(name.clone()) {
            return Err(wrong(format!("two tensors are called `{name}`")));
        }
        let Some(layout) = file.child(&data, 2)? else {
            contents
                .skipped
                .push(Skipped { name, what: OPAQUE.to_owned() });
            continue;
        };
        let layout = ValueLayout::read(&mut file, &layout, [0, 1, 2]);
        let added = layout.and_then(|layout| layout.add(&mut contents, &name, 0, segment, true));
        added.map_err(|error| error.in_tensor(&name))?;
    }
    finish(contents, len)
}

/// What named data without a type and a shape is.
const OPAQUE: &str = "data without type and shape, which is a backend's";

/// Counts a table that many vectors may have, with its name.
fn count(name: &str, budget: &Budget) -> Result<()> {
    budget.items(1, "tensors")?;
    // Of long names there are a few copies.
    budget.tables(1, name.len() as u64 / 64, 0)
}

/// Sets what is known once all tensors of a file of `len` bytes are there.
fn finish(mut contents: ParsedModel, len: u64) -> Result<ParsedModel> {
    if contents.tensors.is_empty() && contents.skipped.is_empty() {
        return Err(wrong("it holds no tensors"));
    }
    let stored = contents.tensors.iter().filter(|t| t.source == 0);
    let stored: u64 = stored.map(|t| t.len).sum();
    contents.header_size = len.saturating_sub(stored) as usize;
    Ok(contents)
}
