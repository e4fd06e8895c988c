//! Models of MLC: a list of tensors, `tensor-cache.json` (older: `ndarray-cache.json`), and their data in
//! other files beside it. How they are quantized is in `mlc-chat-config.json`.
//!
//! ```text
//! {"metadata": {…}, "records": [{"dataPath", "nbytes", "format": "raw-shard", "records": [
//!     {"name", "shape", "dtype", "format", "nbytes", "byteOffset"}, …]}, …]}
//! ```
//!
//! F32 whose format is `f32-to-bf16` is stored as BF16, and is BF16 here: the same values.
//!
//! Format: TVM `python/tvm/contrib/tvmjs.py` (`dump_tensor_cache`, `load_tensor_cache`).

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::external::ExternalFiles;
use crate::limits::{Budget, cap};
use crate::model::TensorInfo;
use crate::source::Source;
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

/// Longest list, in bytes. Those of large language models have less than 1 MiB.
const MAX_LIST: u64 = 64 << 20;

/// Most sizes of a tensor.
const MAX_DIMS: u64 = 64;

#[derive(serde::Deserialize)]
struct TensorCache {
    #[serde(default)]
    metadata: Map<String, Value>,
    records: Vec<CacheShard>,
}

/// A file of data.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct CacheShard {
    data_path: String,
    format: String,
    nbytes: u64,
    records: Vec<CacheRecord>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct CacheRecord {
    name: String,
    shape: Vec<usize>,
    dtype: String,
    format: String,
    nbytes: u64,
    byte_offset: u64,
}

/// The dtype that TVM calls `name`, now or before 2025.
fn from_name(name: &str) -> Option<Dtype> {
    Some(match name {
        "bool" => Dtype::Bool,
        "int8" => Dtype::I8,
        "uint8" => Dtype::U8,
        "int16" => Dtype::I16,
        "uint16" => Dtype::U16,
        "int32" => Dtype::I32,
        "uint32" => Dtype::U32,
        "int64" => Dtype::I64,
        "uint64" => Dtype::U64,
        "float16" => Dtype::F16,
        "bfloat16" => Dtype::BF16,
        "float32" => Dtype::F32,
        "float64" => Dtype::F64,
        "float8_e4m3fn" | "e4m3_float8" => Dtype::F8E4M3,
        "float8_e5m2" | "e5m2_float8" => Dtype::F8E5M2,
        _ => return None,
    })
}

/// Reads the list of tensors; their data is passed over.
///
/// # Errors
/// `Parse` if the list is malformed, or a file of data is missing or has another length; `Unsupported` for
/// unknown formats, and if the model was not given by a path; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(0);
    cap("MAX_MLC_LIST_BYTES", len, MAX_LIST, "bytes of the list of tensors")?;
    budget.alloc(len, "the list of tensors")?;
    budget.tables(0, 0, len)?;
    let mut text = crate::limits::zeroed(len, "the list of tensors")?;
    source.read_at(0, &mut text)?;
    let cache: TensorCache = serde_json::from_slice(&text)
        .map_err(|e| wrong(format!("its list of tensors is malformed: {e}")))?;
    drop(text);
    let mut contents = ParsedModel::new(Container::Mlc, len as usize);
    contents.sources.push(source.share());
    let numbers = cache
        .metadata
        .into_iter()
        .filter(|(_, value)| value.is_number());
    contents
        .metadata
        .extend(numbers.map(|(key, value)| (format!("mlc.{key}"), value.to_string())));
    let mut files = ExternalFiles::new("a model of MLC", path);
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    for shard in cache.records {
        let CacheShard { data_path, format, nbytes, records } = shard;
        let about = |what: String| wrong(format!("`{data_path}`: {what}"));
        if format != "raw-shard" {
            let what = format!("`{data_path}` is of the format `{format}`");
            return Err(AnamnesisError::unsupported("model of MLC", what));
        }
        if !paths.insert(data_path.clone()) {
            return Err(about("it is listed twice".to_owned()));
        }
        let (number, found) = files.source(&data_path, &mut contents)?;
        if found != nbytes {
            return Err(about(format!("it has {found} bytes, and the list says {nbytes}")));
        }
        for record in records {
            budget.items(1, "tensors")?;
            budget.tables(1, 0, 0)?;
            if !names.insert(record.name.clone()) {
                return Err(wrong(format!("two tensors are called `{}`", record.name)));
            }
            let tensor = tensor(&record, number, nbytes).map_err(|e| e.in_tensor(&record.name))?;
            contents.tensors.push(tensor);
        }
    }
    if contents.tensors.is_empty() {
        return Err(wrong("it lists no tensors"));
    }
    files.check_ranges(&contents)?;
    Ok(contents)
}

/// The tensor that `record` describes, in a file of `file` bytes that is the source `source`.
fn tensor(record: &CacheRecord, source: usize, file: u64) -> Result<TensorInfo> {
    let CacheRecord { name, shape, dtype, format, nbytes, byte_offset } = record;
    cap("MAX_MLC_DIMS", shape.len() as u64, MAX_DIMS, "dimensions of a tensor")?;
    let stored = match (format.as_str(), from_name(dtype)) {
        ("f32-to-bf16", Some(Dtype::F32)) => Some(Dtype::BF16),
        ("raw" | "f32-to-bf16", stored) => stored,
        _ => None,
    };
    let Some(stored) = stored else {
        let what = format!("{dtype} in the format `{format}`");
        return Err(AnamnesisError::unsupported("model of MLC", what));
    };
    if stored.byte_len(shape).map(|n| n as u64) != Some(*nbytes) {
        let what = format!("{nbytes} bytes are not {stored} {shape:?}");
        return Err(AnamnesisError::parse(what));
    }
    if byte_offset
        .checked_add(*nbytes)
        .is_none_or(|end| end > file)
    {
        let what = format!("its {nbytes} bytes at {byte_offset} are not in its file of {file}");
        return Err(AnamnesisError::parse(what));
    }
    let place = (source, *byte_offset, *nbytes);
    Ok(TensorInfo::plain(name.as_str(), (stored, shape.clone()), place))
}

/// The error for a model that contradicts itself.
fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("model of MLC: {what}"))
}
