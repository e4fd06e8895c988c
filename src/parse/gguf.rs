//! GGUF: a header of typed metadata and tensor descriptions, then the tensors, each at a multiple
//! of the alignment.
//!
//! Format: ggml `gguf.h`; versions 1 to 3 in both byte orders.

mod cursor;
mod edit;
pub(crate) mod header;
mod json;
pub(crate) mod split;

use std::io::Read;
use std::ops::Range;
use std::path::Path;

pub use self::edit::{GgufEdit, parse_gguf_edit, parse_gguf_edits_json};
pub(crate) use self::edit::{ResolvedEdits, resolve_edits};
use self::header::{GgufHeader, GgufTensorEntry, past_the_end};
pub(crate) use self::json::{from_text, plain_json};
pub use self::json::{parse_gguf_kv_arg, parse_gguf_metadata_json};
pub(crate) use self::split::MAX_PARTS;
pub use crate::compat::gguf::{
    GgufFrontMatter, GgufInspectInfo, GgufTensor, GgufTensorInfo, ParsedGguf,
    inspect_gguf_from_reader, inspect_gguf_from_reader_with_limits, parse_gguf, parse_gguf_bytes,
    parse_gguf_bytes_with_limits, parse_gguf_front_matter_from_reader,
    parse_gguf_front_matter_from_reader_with_limits, parse_gguf_with_limits,
};
pub use crate::dtype::Dtype as GgufType;
use crate::error::InTensor;
use crate::limits::Budget;
use crate::model::TensorInfo;
pub use crate::model::gguf::{Gguf, GgufMetadata, GgufMetadataArray, GgufMetadataValue};
use crate::sort::sort_by_key;
use crate::source::Source;
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

/// Reads the header of a file and, of a split model, those of its other files.
pub(super) fn read(source: Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let mut contents = read_file(source, budget)?;
    split::read_other_parts(&mut contents, path, budget)?;
    Ok(contents)
}

/// Reads the header of one file, which may be a part of a split model.
pub(crate) fn read_file(source: Source, budget: &Budget) -> Result<ParsedModel> {
    let (header, tensors) = read_part(&source, 0, budget)?;
    Ok(with_texts(contents(header, tensors, source)))
}

/// Reads the header of the GGUF file that lies at `place` of `source`, inside of another file.
#[cfg(any(feature = "npz", feature = "pth"))]
pub(super) fn read_within(
    source: Source,
    place: Range<u64>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let (header, mut tensors) = read_part_at(&source, place.clone(), 0, budget)?;
    for t in &mut tensors {
        t.offset += place.start;
    }
    let mut contents = with_texts(contents(header, tensors, source));
    // The other files of a split model would be beside the file around this one.
    split::read_other_parts(&mut contents, None, budget)?;
    Ok(contents)
}

/// Adds the metadata as texts.
fn with_texts(mut contents: ParsedModel) -> ParsedModel {
    contents.metadata = contents
        .gguf
        .as_ref()
        .map(|gguf| json::texts(&gguf.metadata))
        .unwrap_or_default();
    contents
}

/// Reads the header of one file, whatever its tensors are.
pub(crate) fn read_header(source: &Source, budget: &Budget) -> Result<GgufHeader> {
    header::read(SourceReader { source, at: 0 }, source.len(), budget)
}

/// Reads the header of one file from a stream, and nothing behind it. The tensors are in the order
/// of the header; those of unknown types have no bytes.
pub(crate) fn read_front<R: Read>(reader: R, budget: &Budget) -> Result<ParsedModel> {
    let mut header = header::read(reader, None, budget)?;
    let big_endian = header.big_endian;
    let tensor = |entry: GgufTensorEntry| TensorInfo {
        big_endian,
        ..TensorInfo::plain(
            entry.name,
            (entry.dtype, entry.shape),
            (0, entry.offset, entry.len.unwrap_or(0)),
        )
    };
    let entries = std::mem::take(&mut header.tensors);
    let tensors = entries.into_iter().map(tensor).collect();
    Ok(contents(header, tensors, Source::HeaderOnly))
}

/// A model of the tensors and the metadata of one file.
fn contents(header: GgufHeader, tensors: Vec<TensorInfo>, source: Source) -> ParsedModel {
    let header_size = usize::try_from(header.data_start).unwrap_or(usize::MAX);
    let mut contents = ParsedModel::new(Container::Gguf, header_size);
    contents.gguf = Some(Gguf {
        version: header.version,
        big_endian: header.big_endian,
        alignment: header.alignment,
        metadata: header.metadata,
    });
    contents.tensors = tensors;
    contents.sources.push(source);
    contents
}

/// Reads the header of the file in source number `index`. Returns it with the tensors in the order
/// of their data.
fn read_part(
    source: &Source,
    index: usize,
    budget: &Budget,
) -> Result<(GgufHeader, Vec<TensorInfo>)> {
    read_part_at(source, 0..source.len().unwrap_or(0), index, budget)
}

/// As [`read_part`], of the file that lies at `place` of the source. The offsets of tensors count
/// from its beginning.
fn read_part_at(
    source: &Source,
    place: Range<u64>,
    index: usize,
    budget: &Budget,
) -> Result<(GgufHeader, Vec<TensorInfo>)> {
    let len = place.end - place.start;
    let at = place.start;
    let mut header = header::read(SourceReader { source, at }, Some(len), budget)?;
    let mut entries = std::mem::take(&mut header.tensors);
    sort_by_key(&mut entries, |e| e.offset);
    tell_q2_0(&mut entries, header.alignment.into(), len);
    let tensors = check_extents(entries, &header, len, index)?;
    Ok((header, tensors))
}

/// `Read` over a source, from `at` on.
struct SourceReader<'a> {
    source: &'a Source,
    at: u64,
}

impl Read for SourceReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        // The cursor knows the length of the file and never asks for more, so that a short read
        // cannot occur.
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

/// Gives tensors of Q2_0 the type PQ2_0 if only that has the room between them. PrismML's files of
/// two bits had ggml's number before ggml had the type, and have a scale for 128 values in place
/// of 64.
fn tell_q2_0(entries: &mut [GgufTensorEntry], alignment: u64, file_len: u64) {
    let ends: Vec<u64> = entries.iter().skip(1).map(|e| e.offset).collect();
    let ends = ends.into_iter().chain([file_len]);
    let of_two_bits = entries
        .iter()
        .zip(ends)
        .filter(|(e, _)| e.dtype == Dtype::Q2_0);
    let rooms: Vec<_> = of_two_bits
        .map(|(e, end)| (&e.shape, end.saturating_sub(e.offset)))
        .collect();
    let fits = |dtype: Dtype| {
        rooms.iter().all(|&(shape, room)| {
            let len = dtype.byte_len(shape).map(|len| len as u64);
            len.is_some_and(|len| len == room || len.next_multiple_of(alignment) == room)
        })
    };
    if rooms.is_empty() || fits(Dtype::Q2_0) || !fits(Dtype::PQ2_0) {
        return;
    }
    for e in entries.iter_mut().filter(|e| e.dtype == Dtype::Q2_0) {
        e.len = Dtype::PQ2_0.byte_len(&e.shape).map(|len| len as u64);
        e.dtype = Dtype::PQ2_0;
    }
}

/// Whether the `room` for the last tensor is that of another type, which its number then may be.
fn has_room_of_other(dtype: Dtype, shape: &[usize], room: u64, alignment: u64) -> bool {
    let types = Dtype::ALL
        .iter()
        .filter(|other| other.ggml_id().is_some() && **other != dtype);
    types.filter_map(|other| other.byte_len(shape)).any(|len| {
        let len = len as u64;
        len == room || len.checked_next_multiple_of(alignment) == Some(room)
    })
}

/// Checks each tensor's size against the offset of the next one, and returns the tensors.
///
/// Forks of llama.cpp use numbers of types for other types than ggml does, so that a type's number
/// alone proves nothing. Its size does: a tensor, padded to the alignment, must end where the next
/// one begins. The last tensor may be followed by other data, unless it is of blocks and no other
/// tensor of its type has proved the size, or the room is that of another type. A tensor of an unknown type has the size that its neighbours leave it.
///
/// # Errors
/// `Parse` that names the tensor, if tensors overlap, leave a gap or lie past the end of the file.
fn check_extents(
    entries: Vec<GgufTensorEntry>,
    header: &GgufHeader,
    file_len: u64,
    source: usize,
) -> Result<Vec<TensorInfo>> {
    let alignment = u64::from(header.alignment);
    // Block types whose size a tensor has proved.
    let mut proven: Vec<Dtype> = Vec::new();
    let mut tensors: Vec<TensorInfo> = Vec::with_capacity(entries.len());
    let next: Vec<Option<u64>> = entries
        .iter()
        .skip(1)
        .map(|e| Some(e.offset))
        .chain([None])
        .collect();
    for (entry, next) in entries.into_iter().zip(next) {
        let GgufTensorEntry { name, dtype, shape, offset, len } = entry;
        let wrong = |what: String| {
            AnamnesisError::parse(format!("{} ({dtype} {shape:?}): {what}", InTensor(&name)))
        };
        if tensors.is_empty() && offset != header.data_start {
            return Err(wrong(format!(
                "it begins {} bytes into the data, where nothing is before it",
                offset - header.data_start
            )));
        }
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
                Some(_) => {
                    wrong(format!("it takes {len} bytes, and the next tensor begins after {room}"))
                }
                None => past_the_end(&name),
            });
        }
        if room > padded {
            match next {
                Some(_) => {
                    return Err(wrong(format!(
                        "it takes {len} bytes, and the next tensor begins after {room}"
                    )));
                }
                None if dtype.is_ggml_block() && !proven.contains(&dtype)
                    || has_room_of_other(dtype, &shape, room, alignment) =>
                {
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
            big_endian,
            ..TensorInfo::plain(name, (dtype, shape), (source, offset, len))
        });
    }
    Ok(tensors)
}
