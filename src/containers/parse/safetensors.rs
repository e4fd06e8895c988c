//! safetensors: `u64 n | n bytes of JSON | data`, all little-endian. The `safetensors` crate validates
//! the JSON (contiguous offsets, no holes, sizes that fit the shapes); here are the file's length,
//! the order and the duplicates, which it cannot see.
//!
//! Format: <https://huggingface.co/docs/safetensors/index#format>

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::read_at::ReadAt;
use crate::limits::{Budget, cap};
use crate::source::Source;
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// Largest JSON header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Reads the header of a complete file.
pub(super) fn read(source: Source, _path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let mut contents = read_at(&mut &source, budget)?;
    contents.sources.push(source);
    Ok(contents)
}

/// Reads the header of a complete file, and checks the file's length.
pub(crate) fn read_at(file: &mut impl ReadAt, budget: &Budget) -> Result<ParsedModel> {
    let len = file.len();
    let mut prefix = [0; 8];
    if len < 8 {
        return Err(AnamnesisError::parse(format!(
            "{len} bytes are too few for a safetensors file"
        )));
    }
    file.read_at(0, &mut prefix)?;
    let n = u64::from_le_bytes(prefix);
    if n > len - 8 {
        return Err(AnamnesisError::parse(format!(
            "not a safetensors file: it declares a header of {n} bytes, and the file has {len}"
        )));
    }
    let mut json = vec![0; checked_header_size(n, budget)?];
    file.read_at(8, &mut json)?;
    let (contents, data_len) = parse_json(&json, budget)?;
    let expected = (8 + n).saturating_add(data_len);
    if expected != len {
        return Err(AnamnesisError::parse(format!(
            "safetensors file of {len} bytes where its header describes {expected}: {}",
            if len < expected {
                "it is truncated"
            } else {
                "there is data that no tensor owns"
            },
        )));
    }
    Ok(contents)
}

/// Reads the header from a stream: the eight bytes of its length and then exactly that many.
pub(crate) fn read_from<R: Read>(mut reader: R, budget: &Budget) -> Result<ParsedModel> {
    let mut prefix = [0; 8];
    reader.read_exact(&mut prefix)?;
    let n = checked_header_size(u64::from_le_bytes(prefix), budget)?;
    let mut json = Vec::new();
    // Grows with what arrives: a lie about the length costs nothing.
    reader.take(n as u64).read_to_end(&mut json)?;
    if json.len() != n {
        let what = format!(
            "the safetensors header ends after {} of {n} bytes",
            json.len()
        );
        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, what).into());
    }
    let mut contents = parse_json(&json, budget)?.0;
    contents.sources.push(Source::HeaderOnly);
    Ok(contents)
}

fn checked_header_size(n: u64, budget: &Budget) -> Result<usize> {
    cap(
        "MAX_SAFETENSORS_HEADER_BYTES",
        n,
        MAX_HEADER_BYTES,
        "bytes of header, which the format does not allow",
    )?;
    budget
        .alloc(n, "the safetensors header")
        .map(|()| n as usize)
}

/// The tensors in order of their data (ties, which only empty tensors make, as the header has them),
/// and the length of the data section.
fn parse_json(json: &[u8], budget: &Budget) -> Result<(ParsedModel, u64)> {
    let header: Header = serde_json::from_slice(json)
        .map_err(|e| AnamnesisError::parse(format!("safetensors header: {e}")))?;
    let Header {
        mut entries,
        metadata,
    } = header;
    budget.items(entries.len() as u64, "tensors")?;
    entries.sort_by_key(|(_, info)| info.data_offsets);
    let base = 8 + json.len() as u64;
    let tensor = |(name, info): &(String, TensorInfo)| {
        let (start, end) = info.data_offsets;
        Ok(crate::containers::model::TensorInfo {
            name: name.clone(),
            dtype: Dtype::try_from(info.dtype)?,
            shape: info.shape.clone(),
            source: 0,
            offset: base.saturating_add(start as u64),
            len: end.saturating_sub(start) as u64,
            strides: None,
            big_endian: false,
            check: None,
        })
    };
    let tensors = entries.iter().map(tensor).collect::<Result<Vec<_>>>()?;
    let culprit = culprit(&tensors, base);
    let validated =
        Metadata::new(None, entries).map_err(|e| match (AnamnesisError::from(e), culprit) {
            (AnamnesisError::Parse { reason }, Some(t)) => AnamnesisError::parse(format!(
                "{reason}: tensor `{}` ({} {:?})",
                t.name, t.dtype, t.shape
            )),
            (error, _) => error,
        })?;
    let metadata = metadata.unwrap_or_default();
    Ok((
        ParsedModel {
            tensors,
            metadata,
            ..ParsedModel::new(json.len())
        },
        validated.data_len() as u64,
    ))
}

/// The tensor that a failed validation was about, which the library does not always name.
fn culprit(
    tensors: &[crate::containers::model::TensorInfo],
    base: u64,
) -> Option<&crate::containers::model::TensorInfo> {
    let mut end = base;
    tensors.iter().find(|t| {
        let fits = t.offset == end && t.dtype.byte_len(&t.shape) == Some(t.len as usize);
        end = t.offset.saturating_add(t.len);
        !fits
    })
}

/// The JSON as it is written: in order, and with a second entry of a name an error, for which is meant?
struct Header {
    entries: Vec<(String, TensorInfo)>,
    metadata: Option<HashMap<String, String>>,
}

impl<'de> serde::Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from names to tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Header, A::Error> {
                let (mut entries, mut metadata) = (Vec::new(), None::<Option<_>>);
                while let Some(name) = map.next_key::<String>()? {
                    if name != "__metadata__" {
                        entries.push((name, map.next_value()?));
                    } else if metadata.replace(map.next_value()?).is_some() {
                        return Err(A::Error::custom("`__metadata__` is listed twice"));
                    }
                }
                let mut names: Vec<&str> = entries
                    .iter()
                    .map(|(name, _): &(String, TensorInfo)| name.as_str())
                    .collect();
                names.sort_unstable();
                match names.windows(2).find(|pair| pair[0] == pair[1]) {
                    Some(pair) => Err(A::Error::custom(format!("`{}` is listed twice", pair[0]))),
                    None => Ok(Header {
                        entries,
                        metadata: metadata.flatten(),
                    }),
                }
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
