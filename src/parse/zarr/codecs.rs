//! Codecs: what was done to the bytes of chunks, and of shards.

use serde_json::{Map, Value};

use super::shards::ShardLayout;
use crate::limits::cap;
use crate::source::ChunkFilter;
use crate::{AnamnesisError, Result};

/// Most dimensions of an array.
const MAX_DIMS: u64 = 64;

/// What one codec or several say of the bytes of a chunk.
#[derive(Default)]
pub(super) struct Codecs {
    pub order: Option<Vec<usize>>,
    pub is_big_endian: bool,
    pub filters: Vec<ChunkFilter>,
    pub sharding: Option<(ShardLayout, Vec<u64>)>,
}

impl Codecs {
    /// Parses the list of codecs of arrays with `rank` dimensions.
    ///
    /// # Errors
    /// `Parse` if it is malformed; `Unsupported` for those that are not read.
    pub(super) fn parse(list: Option<&Value>, rank: usize) -> Result<Self> {
        let list = list.and_then(Value::as_array);
        let list = list.ok_or_else(|| wrong("`codecs` are no list"))?;
        let (mut codecs, mut is_bytes) = (Self::default(), false);
        for codec in list {
            let (name, fields) = named(Some(codec))?;
            match name {
                "transpose" if !is_bytes && codecs.order.is_none() => {
                    codecs.order = Some(permutation(fields, rank)?);
                }
                "bytes" if !is_bytes => {
                    is_bytes = true;
                    let endian = fields.get("endian").and_then(Value::as_str);
                    codecs.is_big_endian = endian == Some("big");
                }
                "sharding_indexed" if !is_bytes && codecs.order.is_none() => {
                    let (sharding, inner, of_chunks) = shards_of(fields, rank)?;
                    is_bytes = true;
                    codecs = Self { sharding: Some((sharding, inner)), ..of_chunks };
                }
                // What is done to a whole shard hides its chunks.
                _ if codecs.sharding.is_some() || !is_bytes => {
                    return Err(unsupported(&format!("codec `{name}` in this place")));
                }
                "crc32c" => codecs.filters.push(ChunkFilter::Crc32c),
                _ => codecs.filters.push(compressor_of(codec, "name")?),
            }
        }
        match is_bytes {
            true => Ok(codecs),
            false => Err(wrong("no codec makes bytes of the chunks")),
        }
    }
}

/// What a compressor, which is called `key` in its fields, does.
pub(super) fn compressor_of(compressor: &Value, key: &str) -> Result<ChunkFilter> {
    match compressor.get(key).and_then(Value::as_str) {
        Some("zstd") => Ok(ChunkFilter::Zstd),
        Some("gzip") => Ok(ChunkFilter::Gzip),
        Some("zlib") => Ok(ChunkFilter::Deflate),
        Some("blosc") => Ok(ChunkFilter::Blosc),
        Some(other) => Err(unsupported(&format!("codec `{other}`"))),
        None => Err(wrong("a codec without a name")),
    }
}

/// The order of dimensions of a codec `transpose`.
fn permutation(fields: &Map<String, Value>, rank: usize) -> Result<Vec<usize>> {
    let order = sizes(fields, "order")?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    match sorted.into_iter().eq(0..rank as u64) {
        true => Ok(order.into_iter().map(|d| d as usize).collect()),
        false => Err(wrong("an order of dimensions that is none")),
    }
}

/// The name of an extension point, and its configuration.
pub(super) fn named(value: Option<&Value>) -> Result<(&str, &Map<String, Value>)> {
    static NOTHING: std::sync::OnceLock<Map<String, Value>> = std::sync::OnceLock::new();
    let nothing = NOTHING.get_or_init(Map::new);
    match value {
        Some(Value::String(name)) => Ok((name, nothing)),
        Some(Value::Object(fields)) => {
            let name = fields.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(|| wrong("a codec without a name"))?;
            let configuration = fields.get("configuration").and_then(Value::as_object);
            Ok((name, configuration.unwrap_or(nothing)))
        }
        _ => Err(wrong("a name is missing")),
    }
}

/// Parses the configuration of the codec of shards: how these are read, the sizes of their chunks, and what was done to them.
///
/// # Errors
/// `Parse` if it is malformed; `Unsupported` for codecs that are not read.
fn shards_of(fields: &Map<String, Value>, rank: usize) -> Result<(ShardLayout, Vec<u64>, Codecs)> {
    let chunk = sizes(fields, "chunk_shape")?;
    let codecs = Codecs::parse(fields.get("codecs"), rank)?;
    let index = Codecs::parse(fields.get("index_codecs"), rank + 1)?;
    let is_summed = match index.filters.as_slice() {
        [] => false,
        [ChunkFilter::Crc32c] => true,
        _ => return Err(unsupported("a compressed index of shards")),
    };
    if index.is_big_endian || index.order.is_some() || index.sharding.is_some() {
        return Err(unsupported("an index of shards in another order"));
    }
    if codecs.sharding.is_some() {
        return Err(unsupported("shards in shards"));
    }
    let is_index_first = match fields.get("index_location").map(Value::as_str) {
        None | Some(Some("end")) => false,
        Some(Some("start")) => true,
        Some(_) => return Err(wrong("`index_location` is neither start nor end")),
    };
    Ok((ShardLayout::new(is_index_first, is_summed), chunk, codecs))
}

/// The sizes that `fields` has as `key`.
pub(super) fn sizes(fields: &Map<String, Value>, key: &str) -> Result<Vec<u64>> {
    let list = fields.get(key).and_then(Value::as_array);
    let list = list.ok_or_else(|| wrong(&format!("`{key}` is no list")))?;
    cap("MAX_ZARR_DIMS", list.len() as u64, MAX_DIMS, "dimensions of an array")?;
    let sizes: Option<Vec<u64>> = list.iter().map(Value::as_u64).collect();
    sizes.ok_or_else(|| wrong(&format!("`{key}` has what is no size")))
}

pub(super) fn unsupported(what: &str) -> AnamnesisError {
    AnamnesisError::unsupported(
        "Zarr",
        format!("{what}; gzip, zlib, zstd, blosc and crc32c are read"),
    )
}

pub(super) fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(what)
}
