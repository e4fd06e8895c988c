//! Lays out safetensors files. The `safetensors` crate's writer takes whole tensors, while here the header is made before
//! the first value is known. The tests read it back with that crate.

use std::collections::{BTreeMap, HashMap};

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{OutputEntry, OutputLayout};
use crate::{AnamnesisError, Dtype, Result};

/// Lays out `entries` behind a length prefix and JSON, which is padded so that the data begins at a multiple of 8.
///
/// The data is in the order of the entries. If that would put a tensor at an offset that is no multiple of its element
/// size, all data is sorted by descending element size instead: a reader can then view mapped bytes as elements.
///
/// # Errors
/// `Parse` if the size of the file overflows.
pub(crate) fn layout(
    entries: &[OutputEntry<'_>],
    metadata: &HashMap<String, String>,
) -> Result<OutputLayout> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    let width = |i: usize| (entries[i].dtype.bits() / 8).max(1) as u64;
    let mut at = 0;
    let aligned = order.iter().all(|&i| {
        let start = at;
        at += entries[i].len;
        start % width(i) == 0
    });
    if !aligned {
        order.sort_by_key(|&i| std::cmp::Reverse(width(i)));
    }
    let mut offsets = vec![0; entries.len()];
    let mut at = 0u64;
    for i in order {
        offsets[i] = at;
        at = at
            .checked_add(entries[i].len)
            .ok_or_else(|| AnamnesisError::parse("the output's size overflows"))?;
    }
    let json = serde_json::to_vec(&HeaderJson {
        entries,
        metadata,
        offsets: &offsets,
    });
    let mut json = json.map_err(|e| AnamnesisError::parse(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    let base = header.len() as u64;
    offsets.iter_mut().for_each(|offset| *offset += base);
    Ok(OutputLayout::of_header(header, offsets, base + at))
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
        map.serialize_entry(
            "__metadata__",
            &self.metadata.iter().collect::<BTreeMap<_, _>>(),
        )?;
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
        let layout = layout(&entries, &HashMap::new()).unwrap();
        let header = &layout.pieces[0].1;
        let mut file = header.clone();
        file.resize(layout.file_len as usize, 0);
        let read = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.len(), entries.len());
        layout
            .offsets
            .iter()
            .map(|o| o - header.len() as u64)
            .collect()
    }

    #[test]
    fn order_is_kept_while_it_is_aligned() {
        assert_eq!(
            offsets(&[(Dtype::BF16, 2), (Dtype::F32, 1), (Dtype::U8, 3)]),
            [0, 4, 8]
        );
        assert_eq!(
            offsets(&[(Dtype::U8, 3), (Dtype::F32, 1), (Dtype::BF16, 1)]),
            [6, 0, 4]
        );
    }
}
