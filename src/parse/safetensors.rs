//! safetensors: `u64 n | n bytes of JSON | data`, all little-endian.
//!
//! The `safetensors` crate validates the JSON: contiguous offsets, no holes, sizes that fit the
//! shapes. Here the file's length and the order of tensors are checked, and repeated names, which
//! the crate does not see.
//!
//! Format: <https://huggingface.co/docs/safetensors/index#format>

use std::collections::HashMap;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::read_at::ReadAt;
pub use crate::compat::safetensors::{
    AwqCompanions, AwqConfig, Bnb4Companions, BnbConfig, GptqCompanions, GptqConfig,
    SafetensorsHeader, TensorEntry, parse_safetensors_header, parse_safetensors_header_from_reader,
    parse_safetensors_header_from_reader_with_limits, parse_safetensors_header_with_limits,
};
use crate::error::InTensor;
use crate::limits::{Budget, cap};
use crate::sort::sort_by_key;
use crate::source::Source;
use crate::{AnamnesisError, Container, ParsedModel, Result};
pub use crate::{Dtype, QuantScheme, TensorRole};

/// Largest JSON header that the format allows, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Most keys of `__metadata__`. Models whose every parameter is described there have some ten
/// thousand.
const MAX_METADATA_KEYS: usize = 1 << 18;

/// Most bytes of one read from a stream. The buffer grows by this at a time, so that a false length
/// costs no more.
const MAX_READ: usize = 8 << 20;

/// Reads the header of a complete file in `source`.
pub(super) fn read(source: Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let mut contents = read_at(&mut &source, budget)?;
    require_whole_tensors(&contents, path)?;
    if path
        .and_then(Path::extension)
        .is_some_and(|ending| ending == "uqff")
    {
        require_described_layers(&contents)?;
    }
    contents.sources.push(source);
    Ok(contents)
}

/// Refuses a file of a distributed checkpoint, whose tensors are pieces of larger ones. Where each
/// begins is in the metadata. Those of the first process begin at zero, like whole tensors, but the
/// file is named after the process.
fn require_whole_tensors(contents: &ParsedModel, path: Option<&Path>) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct SavedPiece {
        saved_offsets: Vec<u64>,
    }
    let Some(pieces) = contents.metadata.get("DCP_SHARDING_INFO") else {
        return Ok(());
    };
    let pieces: Option<HashMap<String, SavedPiece>> = serde_json::from_str(pieces).ok();
    let begins_inside = |piece: &SavedPiece| piece.saved_offsets.iter().any(|&at| at > 0);
    let name = path
        .and_then(Path::file_name)
        .map(|name| name.to_string_lossy());
    let is_of_process = name.is_some_and(|name| name.starts_with("shard-"));
    if !is_of_process && pieces.is_some_and(|pieces| !pieces.values().any(begins_inside)) {
        return Ok(());
    }
    Err(AnamnesisError::unsupported(
        "safetensors of a distributed checkpoint",
        "its tensors are pieces; torch joins them with `consolidate_safetensors_files`",
    ))
}

/// Refuses a UQFF file of mistral.rs whose layers do not say how they are stored: before version
/// 1.0 each was one tensor of bytes, under a number.
fn require_described_layers(contents: &ParsedModel) -> Result<()> {
    let has_format = |t: &crate::model::TensorInfo| t.name.ends_with(".weight.format");
    match contents.tensors.iter().any(has_format) {
        true => Ok(()),
        false => Err(AnamnesisError::unsupported(
            "UQFF before version 1.0",
            "mistral.rs no longer reads it either; `mistralrs quantize` writes the model anew",
        )),
    }
}

/// Reads the header of a complete file, and checks that the file ends with the data of the last
/// tensor.
pub(crate) fn read_at(file: &mut dyn ReadAt, budget: &Budget) -> Result<ParsedModel> {
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

/// Reads the header from a stream: the eight bytes of its length and then exactly that many. The
/// source of the result has no data.
pub(crate) fn read_from<R: Read>(mut reader: R, budget: &Budget) -> Result<ParsedModel> {
    let mut prefix = [0; 8];
    reader.read_exact(&mut prefix)?;
    let n = checked_header_size(u64::from_le_bytes(prefix), budget)?;
    let (mut json, mut have) = (Vec::new(), 0);
    while have < n {
        if have == json.len() {
            json.resize(n.min(have + MAX_READ), 0);
        }
        match reader.read(&mut json[have..]) {
            Ok(0) => {
                let what = format!("the safetensors header ends after {have} of {n} bytes");
                return Err(std::io::Error::new(ErrorKind::UnexpectedEof, what).into());
            }
            Ok(more) => have += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut contents = parse_json(&json, budget)?.0;
    contents.sources.push(Source::HeaderOnly);
    Ok(contents)
}

/// Checks the length of a header against the format's limit, and charges `budget` with it.
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

/// Parses and validates the JSON. Returns the tensors in the order of their data, and the length of
/// the data section. Empty tensors at one offset are in the order of the header.
fn parse_json(json: &[u8], budget: &Budget) -> Result<(ParsedModel, u64)> {
    let header: SafetensorsJson = serde_json::from_slice(json)
        .map_err(|e| AnamnesisError::parse(format!("safetensors header: {e}")))?;
    let SafetensorsJson { mut entries, metadata } = header;
    budget.items(entries.len() as u64, "tensors")?;
    let keys = metadata.as_ref().map_or(0, HashMap::len) as u64;
    let data_len = entries.iter().map(|(_, info)| info.data_offsets.1).max();
    let len = (json.len() as u64).saturating_add(data_len.unwrap_or(0) as u64);
    budget.tables(entries.len() as u64, keys, len)?;
    sort_by_key(&mut entries, |(_, info)| info.data_offsets);
    let base = 8 + json.len() as u64;
    let tensor = |(name, info): &(String, TensorInfo)| {
        let (start, end) = info.data_offsets;
        Ok(crate::model::TensorInfo::plain(
            name.as_str(),
            (Dtype::try_from(info.dtype)?, info.shape.as_slice()),
            (0, base.saturating_add(start as u64), end.saturating_sub(start) as u64),
        ))
    };
    let tensors = entries.iter().map(tensor).collect::<Result<Vec<_>>>()?;
    let culprit = culprit(&tensors, base);
    let validated =
        Metadata::new(None, entries).map_err(|e| match (AnamnesisError::from(e), culprit) {
            (AnamnesisError::Parse { reason }, Some(t)) => {
                let name = format!("{}", InTensor(&t.name));
                let named = match reason.ends_with(&name) {
                    true => reason,
                    false => format!("{reason}: {name}"),
                };
                AnamnesisError::parse(format!("{named} ({} {:?})", t.dtype, t.shape))
            }
            (error, _) => error,
        })?;
    let metadata = metadata.unwrap_or_default();
    Ok((
        ParsedModel { tensors, metadata, ..ParsedModel::new(Container::Safetensors, json.len()) },
        validated.data_len() as u64,
    ))
}

/// The first tensor that is not where the one before it ends, or whose size does not fit its shape.
/// It is the one that a failed validation of the `safetensors` crate is about, which does not
/// always name it. `base` is the offset of the data.
fn culprit(tensors: &[crate::model::TensorInfo], base: u64) -> Option<&crate::model::TensorInfo> {
    let mut end = base;
    tensors.iter().find(|t| {
        let fits = t.offset == end && t.dtype.byte_len(&t.shape) == Some(t.len as usize);
        end = t.offset.saturating_add(t.len);
        !fits
    })
}

/// The entries of the JSON header in their order. A repeated name is an error: readers differ in
/// which entry counts.
struct SafetensorsJson {
    entries: Vec<(String, TensorInfo)>,
    metadata: Option<HashMap<String, String>>,
}

impl<'de> serde::Deserialize<'de> for SafetensorsJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct SafetensorsJsonVisitor;
        impl<'de> Visitor<'de> for SafetensorsJsonVisitor {
            type Value = SafetensorsJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from names to tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<SafetensorsJson, A::Error> {
                let (mut entries, mut metadata) = (Vec::new(), None::<Option<SafetensorsMetadata>>);
                while let Some(name) = map.next_key::<String>()? {
                    if name != "__metadata__" {
                        entries.push((name, map.next_value()?));
                    } else if metadata.replace(map.next_value::<Option<_>>()?).is_some() {
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
                    None => Ok(SafetensorsJson {
                        entries,
                        metadata: metadata.flatten().map(|metadata| metadata.0),
                    }),
                }
            }
        }
        deserializer.deserialize_map(SafetensorsJsonVisitor)
    }
}

/// The texts under `__metadata__`. A repeated key is an error, even with the same value: writers
/// have a map of them.
struct SafetensorsMetadata(HashMap<String, String>);

impl<'de> serde::Deserialize<'de> for SafetensorsMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct SafetensorsMetadataVisitor;
        impl<'de> Visitor<'de> for SafetensorsMetadataVisitor {
            type Value = SafetensorsMetadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<SafetensorsMetadata, A::Error> {
                let mut texts = HashMap::new();
                while let Some((key, text)) = map.next_entry::<String, String>()? {
                    if texts.contains_key(&key) {
                        let twice = format!("`{key}` is in `__metadata__` twice");
                        return Err(A::Error::custom(twice));
                    }
                    texts.insert(key, text);
                    if texts.len() > MAX_METADATA_KEYS {
                        let many = format!("more than {MAX_METADATA_KEYS} keys in `__metadata__`");
                        return Err(A::Error::custom(many));
                    }
                }
                Ok(SafetensorsMetadata(texts))
            }
        }
        deserializer.deserialize_map(SafetensorsMetadataVisitor)
    }
}
