//! GGUF: a header with typed metadata, and tensors in ggml's types.

mod cursor;
pub(crate) mod header;
mod json;
mod split;

use std::io::Read;
use std::path::Path;

use self::header::{GgufHeader, GgufTensorEntry, past_the_end};
pub(crate) use self::json::{PREFIX, from_text};
pub use self::json::{parse_gguf_kv_arg, parse_gguf_metadata_json};
pub(crate) use self::split::MAX_PARTS;
use crate::containers::model::TensorInfo;
use crate::containers::model::gguf::Gguf;
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// Reads a file, and the files that continue it.
pub(super) fn read(source: Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let mut contents = read_file(source, budget)?;
    split::join(&mut contents, path, budget)?;
    Ok(contents)
}

/// Reads a file, whatever continues it.
pub(crate) fn read_file(source: Source, budget: &Budget) -> Result<ParsedModel> {
    let (header, tensors) = read_one(&source, 0, budget)?;
    let header_size = usize::try_from(header.data_start).unwrap_or(usize::MAX);
    let GgufHeader {
        version,
        big_endian,
        alignment,
        metadata,
        ..
    } = header;
    let gguf = Gguf {
        version,
        big_endian,
        alignment,
        metadata,
    };
    let mut contents = ParsedModel::new(header_size);
    contents.metadata = json::texts(&gguf.metadata);
    contents.gguf = Some(gguf);
    contents.tensors = tensors;
    contents.sources.push(source);
    Ok(contents)
}

/// The header of one file, and its tensors in the order of their data.
fn read_one(
    source: &Source,
    index: usize,
    budget: &Budget,
) -> Result<(GgufHeader, Vec<TensorInfo>)> {
    let len = source.len().unwrap_or(0);
    let mut header = header::read(SourceReader { source, at: 0 }, Some(len), budget)?;
    let mut entries = std::mem::take(&mut header.tensors);
    entries.sort_by_key(|e| e.offset);
    let tensors = prove(entries, &header, len, index)?;
    Ok((header, tensors))
}

/// A source as a stream.
struct SourceReader<'a> {
    source: &'a Source,
    at: u64,
}

impl Read for SourceReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        // The cursor asks for nothing past the end.
        self.source
            .read_at(self.at, out)
            .map_err(|error| match error {
                AnamnesisError::Io(error) => error,
                other => std::io::Error::other(other.to_string()),
            })?;
        self.at += out.len() as u64;
        Ok(out.len())
    }
}

/// Proves each tensor's size by where the next one begins: a writer may have other types under these numbers.
/// The size of an unknown type is what its neighbours leave it.
fn prove(
    entries: Vec<GgufTensorEntry>,
    header: &GgufHeader,
    file_len: u64,
    source: usize,
) -> Result<Vec<TensorInfo>> {
    let alignment = u64::from(header.alignment);
    let mut proven: Vec<Dtype> = Vec::new();
    let mut tensors: Vec<TensorInfo> = Vec::with_capacity(entries.len());
    let next: Vec<Option<u64>> = entries
        .iter()
        .skip(1)
        .map(|e| Some(e.offset))
        .chain([None])
        .collect();
    let mut first = header.data_start;
    for (entry, next) in entries.into_iter().zip(next) {
        let GgufTensorEntry {
            name,
            dtype,
            shape,
            offset,
            len,
        } = entry;
        let wrong = |what: String| {
            AnamnesisError::parse(format!("tensor `{name}` ({dtype} {shape:?}): {what}"))
        };
        if tensors.is_empty() && offset != first {
            return Err(wrong(format!(
                "it begins {} bytes into the data, where nothing is before it",
                offset - first
            )));
        }
        first = offset;
        let room = next
            .unwrap_or(file_len)
            .checked_sub(offset)
            .ok_or_else(|| past_the_end(&name))?;
        let len = len.unwrap_or(room);
        let padded = len
            .checked_next_multiple_of(alignment)
            .ok_or_else(|| past_the_end(&name))?;
        if len > room {
            return Err(match next {
                Some(_) => wrong(format!(
                    "it takes {len} bytes, and the next tensor begins after {room}"
                )),
                None => past_the_end(&name),
            });
        }
        if room > padded {
            // Behind the last tensor there may be something else, if another tensor proves the type's size.
            match next {
                Some(_) => {
                    return Err(wrong(format!(
                        "it takes {len} bytes, and the next tensor begins after {room}"
                    )));
                }
                None if dtype.is_ggml_block() && !proven.contains(&dtype) => {
                    let what = format!(
                        "it takes {len} bytes, and the file has {room}: the type may be another"
                    );
                    return Err(wrong(what));
                }
                None => {}
            }
        } else if len > 0 && !proven.contains(&dtype) {
            proven.push(dtype);
        }
        let big_endian = header.big_endian;
        tensors.push(TensorInfo {
            name,
            dtype,
            shape,
            source,
            offset,
            len,
            strides: None,
            big_endian,
            check: None,
        });
    }
    Ok(tensors)
}
