//! LiteRT, which was TensorFlow Lite: a model is a FlatBuffer. Weights are the tensors of its subgraphs
//! that have data, in the FlatBuffer or behind it. Their data is not read here.
//!
//! - `graph`: which tensors of the subgraphs are weights. `names`: what they are called.
//! - `tensor`: types, shapes and data. `sparse`: places of the values of sparse tensors.
//! - `quantized`: scales and zero points. `litertlm`: bundles of LiteRT-LM.
//!
//! Format: `tflite/schema/schema.fbs` of LiteRT.

mod graph;
mod litertlm;
mod names;
mod quantized;
mod sparse;
mod tensor;

use std::ops::Range;

use self::graph::SubgraphWalk;
pub(super) use self::litertlm::read as read_litertlm;
use super::flatbuffer::{FlatBuffer, FlatTable};
use super::zip::{ZipArchive, ZipMember};
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Reads a model.
///
/// # Errors
/// `Parse` if it is malformed; `Unsupported` for data in other files; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, budget: &Budget) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(0);
    budget.tables(0, 0, len)?;
    let mut contents = ParsedModel::new(Container::Tflite, 0);
    contents.sources.push(source.share());
    read_range(&mut contents, source, 0..len, "", budget)?;
    finish(&mut contents, len);
    Ok(contents)
}

/// Reads the models in an archive, which stores them as they are. If there are several, the name of each
/// comes before those of its tensors.
///
/// # Errors
/// As [`read`], and `Unsupported` if they are compressed.
pub(super) fn read_archive(
    source: &Source,
    archive: &ZipArchive,
    budget: &Budget,
) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(0);
    budget.tables(0, 0, len)?;
    let mut contents = ParsedModel::new(Container::Tflite, 0);
    contents.sources.push(source.share());
    let members: Vec<&ZipMember> = archive.tflite().collect();
    for member in &members {
        let name = &member.name;
        if member.deflated {
            let what = format!("`{name}` is compressed; unpack the archive, and give its models");
            return Err(AnamnesisError::unsupported("LiteRT", what));
        }
        let start = archive.read_data_start(&mut &*source, member)?;
        let before = match members.len() {
            1 => String::new(),
            _ => format!("{}.", name.strip_suffix(".tflite").unwrap_or(name)),
        };
        let added = read_range(&mut contents, source, start..start + member.len, &before, budget);
        added.map_err(|error| error.about(format_args!("`{name}`")))?;
    }
    finish(&mut contents, len);
    Ok(contents)
}

/// Adds the model in `range` of `source` to `contents`. `before` comes before the names of its tensors.
fn read_range(
    contents: &mut ParsedModel,
    source: &Source,
    range: Range<u64>,
    before: &str,
    budget: &Budget,
) -> Result<()> {
    let mut file = FlatBuffer::new(source, range);
    let model = file.root()?;
    read_metadata(&mut file, &model, contents)?;
    let mut walk = SubgraphWalk::new(file, &model, budget)?;
    walk.all(&model)?;
    let repeated = walk.repeated;
    if repeated > 0 {
        contents.notes.push(format!(
            "{repeated} tensors of further subgraphs have the data of others, under whose names they are listed"
        ));
    }
    tensor::add_all(contents, walk, source, before)
}

/// Adds what the model says of itself.
fn read_metadata(
    file: &mut FlatBuffer<'_>,
    model: &FlatTable,
    contents: &mut ParsedModel,
) -> Result<()> {
    let version = file.int(model, 0)?;
    let description = file.text(model, 3)?;
    for (key, text) in [("version", version.to_string()), ("description", description)] {
        if !text.is_empty() {
            contents
                .metadata
                .entry(format!("tflite.{key}"))
                .or_insert(text);
        }
    }
    Ok(())
}

/// Sets what is known once all tensors of a file of `len` bytes are there.
fn finish(contents: &mut ParsedModel, len: u64) {
    let stored = contents.tensors.iter().filter(|t| t.source == 0);
    let stored: u64 = stored.map(|t| t.len).sum();
    contents.header_size = len.saturating_sub(stored) as usize;
}

/// The error for a model that contradicts itself.
fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("LiteRT: {what}"))
}
