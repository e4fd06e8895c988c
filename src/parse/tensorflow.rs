//! Checkpoints of TensorFlow, and the variables of a SavedModel: an index of names, and the variables'
//! data in files beside it. That is not read here.
//!
//! - `table`: the file of the index, a table of LevelDB. `entry`: what it says of a variable.
//! - `slices`: variables that lie in several parts.
//!
//! Format: `tensor_bundle.h` of TensorFlow (`tensorflow/core/util/tensor_bundle`).

mod entry;
mod slices;
mod table;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use self::entry::{BundleEntry, BundleHeader, ElementType};
use self::table::LevelTable;
use crate::config::Confined;
use crate::limits::{Budget, cap};
use crate::model::{Skipped, TensorInfo};
use crate::source::{FilePool, Source};
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Longest index, in bytes. Those of models have some hundred for a variable.
const MAX_INDEX: u64 = 256 << 20;

/// Most files of data.
const MAX_SHARDS: u64 = 10_000;

/// The name of the graph of objects that have the variables. It is a text.
const OBJECT_GRAPH: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";

/// Reads an index, and finds the files of data beside `path`.
///
/// # Errors
/// `Parse` if it is malformed, or data is not where it says; `Unsupported` if it is compressed or
/// big-endian, and if the model was not given by a path; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(0);
    cap("TENSORFLOW_MAX_INDEX_BYTES", len, MAX_INDEX, "bytes of an index")?;
    budget.alloc(len, "the index of a checkpoint")?;
    budget.tables(0, 0, len)?;
    let mut bytes = crate::limits::zeroed(len, "the index of a checkpoint")?;
    source.read_at(0, &mut bytes)?;
    let entries = LevelTable::read(&bytes, budget)?;
    let header = entries
        .get(&b""[..])
        .ok_or_else(|| wrong("it has no header"))?;
    let header = BundleHeader::read(header)?;
    cap("TENSORFLOW_MAX_SHARDS", header.shards, MAX_SHARDS, "files of data")?;
    let mut contents = ParsedModel::new(Container::TensorFlow, len as usize);
    contents.sources.push(source.share());
    open_shards(&mut contents, path, header.shards)?;
    let files: Arc<[Source]> = contents.sources.iter().map(Source::share).collect();
    for (key, value) in &entries {
        // Parts of variables have keys that begin with zero, and are found by them.
        if key.is_empty() || key.first() == Some(&0) {
            continue;
        }
        let name = std::str::from_utf8(key).map_err(|_| wrong("a name is not UTF-8"))?;
        budget.items(1, "variables")?;
        budget.tables(1, name.len() as u64 / 256, 0)?;
        let added = add(&mut contents, name, value, &entries, &files);
        added.map_err(|error| error.in_tensor(name))?;
    }
    Ok(contents)
}

/// Entries of a table, by their keys.
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Adds the variable `name` that `value` describes, or notes that no tensor can hold it.
fn add(
    contents: &mut ParsedModel,
    name: &str,
    value: &[u8],
    entries: &Entries,
    files: &Arc<[Source]>,
) -> Result<()> {
    let entry = BundleEntry::read(value)?;
    let dtype = match entry.element_type() {
        ElementType::Text if name == OBJECT_GRAPH => return Ok(()),
        ElementType::Text => Err("text (string)".to_owned()),
        ElementType::Other(number) => Err(format!("element type {number} of TensorFlow")),
        ElementType::Of(dtype) => Ok(dtype),
    };
    let dtype = match dtype {
        Ok(dtype) => dtype,
        Err(what) => {
            contents
                .skipped
                .push(Skipped { name: name.to_owned(), what });
            return Ok(());
        }
    };
    let bytes = dtype.byte_len(&entry.shape);
    let len = bytes.ok_or_else(|| wrong(format!("its size overflows ({:?})", entry.shape)))? as u64;
    let (source, offset) = match entry.slices.is_empty() {
        true => (entry.place(len, files)?, entry.offset),
        false => {
            let joined = slices::join(name, &entry, dtype, entries, files)?;
            contents.sources.push(Source::Pieced(Box::new(joined)));
            (contents.sources.len() - 1, 0)
        }
    };
    contents.tensors.push(TensorInfo::plain(
        name,
        (dtype, entry.shape),
        (source, if len > 0 { offset } else { 0 }, len),
    ));
    Ok(())
}

/// Opens the `shards` files of data beside the index `path`.
fn open_shards(contents: &mut ParsedModel, path: Option<&Path>, shards: u64) -> Result<()> {
    let Some(path) = path else {
        let what = "its data is in other files; give the path of the index";
        return Err(AnamnesisError::unsupported("TensorFlow checkpoint", what));
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".index").ok_or_else(|| {
        wrong("its name does not end in `.index`, which tells the names of the files of data")
    })?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let (confined, pool) = (Confined::new(directory), Arc::<FilePool>::default());
    for i in 0..shards {
        let name = format!("{stem}.data-{i:05}-of-{shards:05}");
        let file = directory.join(&name);
        if file.exists() && !confined.has(&file) {
            return Err(wrong(format!("`{name}` leads out of the checkpoint's directory")));
        }
        let shard = Source::open_pooled(&pool, i as usize, &file).map_err(|error| match error {
            AnamnesisError::Io(e) if e.kind() == std::io::ErrorKind::NotFound => {
                wrong(format!("the file of data `{name}` is missing: {e}"))
            }
            error => error,
        })?;
        contents.sources.push(shard);
    }
    Ok(())
}

/// The error for a checkpoint that contradicts itself.
fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("TensorFlow checkpoint: {what}"))
}
