//! safetensors, written: the header is laid out before the first value is known. The `safetensors` crate
//! takes whole tensors instead; it reads ours back in the tests.

use std::collections::{BTreeMap, HashMap};

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Entry, Layout};
use crate::{AnamnesisError, Dtype, Result};

/// Lays out `entries` in their order, behind a length prefix and JSON, padded so that the data begins at a multiple
/// of 8. Where that would leave a tensor at an offset that its element size
/// does not divide, the data is laid out widest element first instead, else in order.
pub(crate) fn layout(entries: &[Entry<'_>], metadata: &HashMap<String, String>) -> Result<Layout> {
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
    let json = serde_json::to_vec(&Header {
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
    Ok(Layout::of_header(header, offsets, base + at))
}

struct Header<'a> {
    entries: &'a [Entry<'a>],
    metadata: &'a HashMap<String, String>,
    offsets: &'a [u64],
}

#[derive(serde::Serialize)]
struct Record<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    data_offsets: [u64; 2],
}

impl Serialize for Header<'_> {
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
                &Record {
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
            .map(|((d, shape), name)| Entry {
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
