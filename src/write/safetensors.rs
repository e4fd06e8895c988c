//! Lays out safetensors files. The `safetensors` crate's writer takes whole tensors, while here the
//! header is made before the first value is known. The tests read it back with that crate.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Framing, OutputEntry, OutputLayout, unusable_name};
use crate::sort::sort_by_key;
use crate::{AnamnesisError, Dtype, Result};

/// Length in bytes of the length prefix, a `u64`.
const PREFIX_LEN: u64 = 8;

/// Alignment in bytes of the data behind the header.
const ALIGN: usize = 8;

/// Key of the metadata among the names of tensors.
pub(crate) const METADATA: &str = "__metadata__";

/// Longest header that readers accept, in bytes: `MAX_HEADER_SIZE` of the `safetensors` crate.
pub(crate) const LONGEST_HEADER: usize = 100_000_000;

/// Fails if readers would not find a tensor under its name.
///
/// # Errors
/// `Unsupported` that names the tensor.
pub(crate) fn check_names(entries: &[OutputEntry<'_>]) -> Result<()> {
    match entries.iter().find(|e| e.name == METADATA) {
        Some(e) => {
            let why = "safetensors has the metadata of the file under this name, and no reader would open it";
            Err(unusable_name("safetensors", e.name, why))
        }
        None => Ok(()),
    }
}

/// Lays out `entries` behind a length prefix and JSON, which is padded so that the data begins at a
/// multiple of 8.
///
/// The data is in the order of the entries. If that would put a tensor at an offset that is no
/// multiple of its element size, all data is sorted by descending element size instead: a reader
/// can then view mapped bytes as elements.
///
/// # Errors
/// `Unsupported` for a name that [`check_names`] refuses, and if the header would be longer than
/// readers accept; `Parse` if the size of the file overflows.
pub(crate) fn layout(
    entries: &[OutputEntry<'_>],
    metadata: &Arc<HashMap<String, String>>,
) -> Result<OutputLayout> {
    check_names(entries)?;
    let (mut offsets, data_len) = data_offsets(entries)?;
    let mut len = ByteCount(0);
    write_json(&mut len, entries, metadata, &offsets)?;
    if len.0.next_multiple_of(ALIGN) > LONGEST_HEADER {
        let what = format!(
            "{} names make a header of {} bytes, and readers accept {LONGEST_HEADER}; --max-shard-size makes several files",
            entries.len(),
            len.0
        );
        return Err(AnamnesisError::unsupported("writing safetensors", what));
    }
    let base = PREFIX_LEN + len.0.next_multiple_of(ALIGN) as u64;
    offsets.iter_mut().for_each(|offset| *offset += base);
    let file_len = base.checked_add(data_len).ok_or_else(overflow)?;
    Ok(OutputLayout {
        framing: Framing::Safetensors(metadata.clone()),
        offsets,
        file_len,
        patches: Vec::new(),
    })
}

/// The length prefix and the JSON of a file that [`layout`] has laid out.
///
/// # Errors
/// `Parse` if the size of the file overflows.
pub(crate) fn header(
    entries: &[OutputEntry<'_>],
    metadata: &HashMap<String, String>,
) -> Result<Vec<u8>> {
    let (offsets, _) = data_offsets(entries)?;
    let mut header = vec![0; PREFIX_LEN as usize];
    write_json(&mut header, entries, metadata, &offsets)?;
    // The prefix is as long as the alignment, so that what aligns the whole aligns the JSON.
    header.resize(header.len().next_multiple_of(ALIGN), b' ');
    let len = header.len() as u64 - PREFIX_LEN;
    header[..PREFIX_LEN as usize].copy_from_slice(&len.to_le_bytes());
    Ok(header)
}

/// Offset of each entry's data behind the header, and the length of all data.
fn data_offsets(entries: &[OutputEntry<'_>]) -> Result<(Vec<u64>, u64)> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    let width = |i: usize| (entries[i].dtype.bits() / 8).max(1) as u64;
    let mut at = 0;
    let aligned = order.iter().all(|&i| {
        let start = at;
        at += entries[i].len;
        start % width(i) == 0
    });
    if !aligned {
        sort_by_key(&mut order, |&i| std::cmp::Reverse(width(i)));
    }
    let mut offsets = vec![0; entries.len()];
    let mut at = 0u64;
    for i in order {
        offsets[i] = at;
        at = at.checked_add(entries[i].len).ok_or_else(overflow)?;
    }
    Ok((offsets, at))
}

fn overflow() -> AnamnesisError {
    AnamnesisError::parse("the output's size overflows")
}

fn write_json(
    writer: &mut impl io::Write,
    entries: &[OutputEntry<'_>],
    metadata: &HashMap<String, String>,
    offsets: &[u64],
) -> Result<()> {
    let json = HeaderJson { entries, metadata, offsets };
    serde_json::to_writer(writer, &json).map_err(|e| AnamnesisError::parse(e.to_string()))
}

/// Counts what is written to it.
struct ByteCount(usize);

impl io::Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The JSON header, written without a copy of names and shapes.
struct HeaderJson<'a> {
    entries: &'a [OutputEntry<'a>],
    metadata: &'a HashMap<String, String>,
    offsets: &'a [u64],
}

#[derive(serde::Serialize)]
struct HeaderJsonEntry<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    data_offsets: [u64; 2],
}

impl Serialize for HeaderJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        // Sorted, so that the same input gives the same bytes.
        map.serialize_entry("__metadata__", &self.metadata.iter().collect::<BTreeMap<_, _>>())?;
        for (e, &start) in self.entries.iter().zip(self.offsets) {
            map.serialize_entry(
                e.name,
                &HeaderJsonEntry {
                    dtype: e.dtype,
                    shape: e.shape,
                    data_offsets: [start, start + e.len],
                },
            )?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(dtypes: &[(Dtype, usize)]) -> Vec<u64> {
        let shapes: Vec<[usize; 1]> = dtypes.iter().map(|d| [d.1]).collect();
        let names: Vec<String> = (0..dtypes.len()).map(|i| i.to_string()).collect();
        let entries = dtypes.iter().zip(&shapes).zip(&names);
        let entries: Vec<_> = entries
            .map(|((d, shape), name)| OutputEntry {
                name,
                dtype: d.0,
                shape,
                len: (d.1 * d.0.bits() / 8) as u64,
            })
            .collect();
        let metadata = Arc::default();
        let layout = layout(&entries, &metadata).unwrap();
        let mut file = header(&entries, &metadata).unwrap();
        let header_len = file.len() as u64;
        file.resize(layout.file_len as usize, 0);
        let read = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.len(), entries.len());
        layout.offsets.iter().map(|o| o - header_len).collect()
    }

    #[test]
    fn order_is_kept_while_it_is_aligned() {
        assert_eq!(offsets(&[(Dtype::BF16, 2), (Dtype::F32, 1), (Dtype::U8, 3)]), [0, 4, 8]);
        assert_eq!(offsets(&[(Dtype::U8, 3), (Dtype::F32, 1), (Dtype::BF16, 1)]), [6, 0, 4]);
    }
}
