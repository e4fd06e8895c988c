//! Flax: a tree of dicts in MessagePack, whose leaves are arrays.
//!
//! ```text
//! tree    map of keys to trees; arrays are lists, whose items are called by their numbers
//! array   ext type 1 (of NumPy or JAX) or 3 (a number of NumPy): MessagePack of [shape, name of the dtype, bytes]
//! large   {"__msgpack_chunked_array__": true, "shape": {"0": n, …}, "chunks": {"0": array, …}}: arrays of more than 1 GiB,
//!         in pieces of one dimension
//! ```
//!
//! A tensor is called by the keys on its way, joined by dots. Numbers, texts and others are no tensors.
//!
//! Format: Flax `flax/serialization.py`.

mod chunked;
mod value;

use std::collections::HashSet;

use self::chunked::ChunkedArray;
use self::value::{ValueKind, ValueReader};
use crate::limits::{Budget, cap};
use crate::model::{Skipped, TensorInfo};
use crate::source::Source;
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

/// Deepest nesting of maps and arrays.
const MAX_DEPTH: usize = 64;

/// The key of a map that stands for a large array.
const CHUNKED: &str = "__msgpack_chunked_array__";

/// Reads the tree; the arrays' data is passed over.
///
/// # Errors
/// `Parse` if the file is malformed, or an array's bytes do not fit its shape; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, budget: &Budget) -> Result<ParsedModel> {
    let mut contents = ParsedModel::new(Container::Msgpack, 0);
    contents.sources.push(source.share());
    let reader = ValueReader::new(source);
    let len = reader.len;
    budget.tables(0, 0, len)?;
    let mut walk = TreeWalk { reader, budget, contents, names: HashSet::new() };
    walk.tree(&mut String::new(), 0)?;
    if walk.reader.at != len {
        return Err(AnamnesisError::parse("there is data behind its tree"));
    }
    let mut contents = walk.contents;
    if contents.tensors.is_empty() && contents.skipped.is_empty() {
        return Err(AnamnesisError::parse("the file holds no arrays"));
    }
    let stored: u64 = contents.tensors.iter().map(|t| t.len).sum();
    contents.header_size = len.saturating_sub(stored) as usize;
    Ok(contents)
}

/// An array in the file.
#[derive(Debug)]
struct StoredArray {
    /// The element type; `Err` is the name of one that no tensor can hold.
    dtype: std::result::Result<Dtype, String>,
    shape: Vec<usize>,
    offset: u64,
    len: u64,
}

/// Walks over the tree, and collects its arrays.
struct TreeWalk<'a> {
    reader: ValueReader<'a>,
    budget: &'a Budget,
    contents: ParsedModel,
    names: HashSet<Box<str>>,
}

impl TreeWalk<'_> {
    /// Takes the tree at the position, which is called `name`.
    fn tree(&mut self, name: &mut String, depth: usize) -> Result<()> {
        cap("MAX_MSGPACK_DEPTH", depth as u64, MAX_DEPTH as u64, "maps inside of each other")?;
        let (number, is_map) = match self.reader.next()? {
            ValueKind::Map(number) => (number, true),
            ValueKind::Array(number) => (number, false),
            ValueKind::Ext(1 | 3, len) => {
                let array = self.reader.array(len).map_err(|e| e.in_tensor(name))?;
                return self.add(name, array);
            }
            ValueKind::Bytes(len) | ValueKind::Text(len) | ValueKind::Ext(_, len) => {
                return self.reader.skip(len);
            }
            ValueKind::Nil | ValueKind::Bool(_) | ValueKind::Int(_) | ValueKind::Float => {
                return Ok(());
            }
        };
        let before = name.len();
        for item in 0..number {
            match is_map {
                true => {
                    let key = self.reader.key()?;
                    if key == CHUNKED {
                        // Its parts would pass for arrays.
                        if item > 0 {
                            let what = "a large array whose mark is not the first key";
                            return Err(value::wrong(what, self.reader.at));
                        }
                        let array = ChunkedArray::read(&mut self.reader, number)
                            .map_err(|e| e.in_tensor(name))?;
                        return self.add_chunked(name, array);
                    }
                    push_key(name, &key);
                }
                false => push_key(name, &item.to_string()),
            }
            self.tree(name, depth + 1)?;
            name.truncate(before);
        }
        Ok(())
    }

    fn add(&mut self, name: &str, array: StoredArray) -> Result<()> {
        let StoredArray { dtype, shape, offset, len } = array;
        let Some(name) = self.new_name(name)? else {
            return Err(AnamnesisError::parse(format!("two tensors are called `{name}`")));
        };
        match dtype {
            Ok(dtype) => self.contents.tensors.push(TensorInfo::plain(
                name,
                (dtype, shape),
                (0, offset, len),
            )),
            Err(what) => {
                let (name, what) = (name.into(), format!("array of {what}"));
                self.contents.skipped.push(Skipped { name, what });
            }
        }
        Ok(())
    }

    fn add_chunked(&mut self, name: &str, array: ChunkedArray) -> Result<()> {
        // Each piece takes memory, however short it is.
        self.budget.tables(array.pieces(), 0, 0)?;
        let source = self.contents.sources.len();
        let base = self.contents.sources[0].share();
        let (made, array) = array.join(base).map_err(|e| e.in_tensor(name))?;
        self.add(name, array)?;
        if let Some(tensor) = self.contents.tensors.last_mut() {
            tensor.source = source;
        }
        self.contents.sources.push(made);
        Ok(())
    }

    /// The name of a tensor, which is charged; `None` if another one has it.
    fn new_name(&mut self, name: &str) -> Result<Option<Box<str>>> {
        let name: Box<str> = match name {
            "" => "tensor".into(),
            name => name.into(),
        };
        self.budget.items(1, "arrays")?;
        // Names repeat the keys of the maps around: a long one with many arrays is charged for each.
        self.budget.tables(1, 2 * name.len() as u64 / 256, 0)?;
        Ok(self.names.insert(name.clone()).then_some(name))
    }
}

/// Makes `name` that of what is called `key` in it.
fn push_key(name: &mut String, key: &str) {
    if !name.is_empty() {
        name.push('.');
    }
    name.push_str(key);
}
