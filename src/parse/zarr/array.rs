//! What is said of an array: its type and sizes, its chunks, and what was done to their bytes.

use serde_json::{Map, Value};

use super::NumberedChunk;
use super::codecs::{Codecs, compressor_of, named, sizes, unsupported, wrong};
use super::dtype::{ZarrType, of_version_2};
use super::fill::fill_bytes;
use super::shards::ShardLayout;
use super::store::{ValuePlace, ZarrStore};
use crate::config::unique_json::parse_embedded;
use crate::limits::Budget;
use crate::source::ChunkFilter;
use crate::{Dtype, Result};

/// An array.
pub(super) struct ZarrArray {
    /// The element type; `Err` is the name of one that no tensor can hold.
    pub dtype: std::result::Result<Dtype, String>,
    pub is_big_endian: bool,
    pub shape: Vec<u64>,
    /// Sizes of the chunks that are compressed each by itself, none of which is zero.
    pub chunk: Vec<u64>,
    /// The dimensions in the order in which chunks have them, if that is another one.
    pub order: Option<Vec<usize>>,
    /// What was done to a chunk, in order.
    pub filters: Vec<ChunkFilter>,
    fill: Value,
    keys: ChunkKeys,
    /// How several chunks are stored in one value.
    sharding: Option<ShardLayout>,
}

/// The keys of chunks: numbers, one for each dimension.
struct ChunkKeys {
    /// What stands before them, which is itself the key of a chunk without dimensions.
    prefix: &'static str,
    separator: char,
}

/// The name of the array or group that the value of `key` describes.
pub(super) fn metadata_of(key: &str) -> Option<&str> {
    let name = [".zarray", "zarr.json"]
        .iter()
        .find_map(|end| key.strip_suffix(end))?;
    match name {
        "" => Some(""),
        name => name.strip_suffix('/'),
    }
}

impl ZarrArray {
    /// Parses the description `json`, which is the value of `key`; `None` if it is of a group.
    ///
    /// # Errors
    /// `Parse` if it is malformed; `Unsupported` for codecs that are not read.
    pub(super) fn parse(key: &str, json: &[u8], budget: &Budget) -> Result<Option<Self>> {
        let mut free = budget.free_json.get();
        let value = parse_embedded(json, &mut free);
        budget.free_json.set(free);
        let value = value.map_err(|what| wrong(&what))?;
        let fields = value.as_object().ok_or_else(|| wrong("it is no object"))?;
        if key.ends_with(".zarray") {
            return Self::of_version_2(fields).map(Some);
        }
        match fields.get("node_type").and_then(Value::as_str) {
            Some("group") => Ok(None),
            Some("array") => Self::of_version_3(fields).map(Some),
            _ => Err(wrong("`node_type` is neither array nor group")),
        }
    }

    fn of_version_2(fields: &Map<String, Value>) -> Result<Self> {
        require_version(fields, 2)?;
        let (dtype, is_big_endian): ZarrType = match fields.get("dtype") {
            Some(Value::String(text)) => of_version_2(text),
            Some(_) => (Err("records".to_owned()), false),
            None => return Err(wrong("`dtype` is missing")),
        };
        if fields
            .get("filters")
            .is_some_and(|filters| !is_empty(filters))
        {
            return Err(unsupported("filters of Zarr 2"));
        }
        let (shape, chunk) = (sizes(fields, "shape")?, sizes(fields, "chunks")?);
        let order = match fields.get("order").and_then(Value::as_str) {
            Some("F") => Some((0..shape.len()).rev().collect()),
            Some("C") => None,
            _ => return Err(wrong("`order` is neither C nor F")),
        };
        let filters = match fields.get("compressor") {
            None | Some(Value::Null) => vec![],
            Some(compressor) => vec![compressor_of(compressor, "id")?],
        };
        let separator = separator(fields.get("dimension_separator"), '.')?;
        let keys = ChunkKeys { prefix: "", separator };
        let fill = fields.get("fill_value").cloned().unwrap_or_default();
        let codecs = Codecs { order, is_big_endian, filters, sharding: None };
        Self::new(dtype, shape, chunk, keys, codecs, fill)
    }

    fn of_version_3(fields: &Map<String, Value>) -> Result<Self> {
        require_version(fields, 3)?;
        let dtype = match fields.get("data_type") {
            Some(Value::String(name)) => Dtype::from_numpy(name).ok_or_else(|| name.clone()),
            Some(_) => Err("an extension".to_owned()),
            None => return Err(wrong("`data_type` is missing")),
        };
        let shape = sizes(fields, "shape")?;
        let grid = named(fields.get("chunk_grid"))?;
        if grid.0 != "regular" {
            return Err(unsupported(&format!("grid `{}` of chunks", grid.0)));
        }
        let chunk = sizes(grid.1, "chunk_shape")?;
        let encoding = named(fields.get("chunk_key_encoding"))?;
        let keys = match encoding.0 {
            "default" => {
                ChunkKeys { prefix: "c", separator: separator(encoding.1.get("separator"), '/')? }
            }
            "v2" => {
                ChunkKeys { prefix: "", separator: separator(encoding.1.get("separator"), '.')? }
            }
            other => return Err(unsupported(&format!("keys of chunks `{other}`"))),
        };
        if fields
            .get("storage_transformers")
            .is_some_and(|all| !is_empty(all))
        {
            return Err(unsupported("storage transformers"));
        }
        let codecs = Codecs::parse(fields.get("codecs"), shape.len())?;
        let fill = fields.get("fill_value").cloned().unwrap_or_default();
        Self::new(dtype, shape, chunk, keys, codecs, fill)
    }

    fn new(
        dtype: std::result::Result<Dtype, String>,
        shape: Vec<u64>,
        chunk: Vec<u64>,
        keys: ChunkKeys,
        codecs: Codecs,
        fill: Value,
    ) -> Result<Self> {
        let Codecs { order, is_big_endian, filters, sharding } = codecs;
        let (sharding, chunk) = match sharding {
            None => (None, chunk),
            Some((sharding, inner)) => (Some(sharding.of_chunks(&chunk, &inner)?), inner),
        };
        if chunk.len() != shape.len() || chunk.contains(&0) {
            return Err(wrong(&format!("chunks of {chunk:?} of an array of {shape:?}")));
        }
        Ok(Self { dtype, is_big_endian, shape, chunk, order, filters, fill, keys, sharding })
    }

    /// `sizes` in the order in which chunks have the dimensions.
    pub(super) fn stored(&self, sizes: &[u64]) -> Vec<u64> {
        match &self.order {
            Some(order) => order.iter().map(|&d| sizes[d]).collect(),
            None => sizes.to_vec(),
        }
    }

    /// The element where no chunk was written, of `size` bytes; empty if it is zero.
    pub(super) fn fill(&self, size: usize) -> Result<Vec<u8>> {
        let Ok(dtype) = self.dtype else {
            return Ok(vec![]);
        };
        let mut bytes = fill_bytes(&self.fill, dtype)?;
        if self.is_big_endian {
            bytes.reverse();
        }
        debug_assert!(bytes.is_empty() || bytes.len() == size);
        Ok(bytes)
    }

    /// Where all bytes of the array are, if its only chunk has them as they are.
    pub(super) fn whole(&self, chunks: &[NumberedChunk], len: u64) -> Option<ValuePlace> {
        let is_plain = self.filters.is_empty() && self.chunk == self.shape;
        match chunks {
            [(_, place)] if is_plain && place.len == len => Some(*place),
            _ => None,
        }
    }

    /// The chunks of the array `name` that are in `store`.
    ///
    /// # Errors
    /// `Parse` if a shard is malformed, or a file is missing; `Io`.
    pub(super) fn chunks(
        &self,
        name: &str,
        store: &mut ZarrStore,
        budget: &Budget,
    ) -> Result<Vec<NumberedChunk>> {
        let prefix = match name {
            "" => String::new(),
            name => format!("{name}/"),
        };
        let mut found = vec![];
        for key in store.keys_below(&prefix) {
            let Some(at) = self.keys.coordinates(&key, self.shape.len()) else {
                continue;
            };
            let place = store.find(&format!("{prefix}{key}"))?;
            match &self.sharding {
                None => found.extend(self.number(&at).map(|number| (number, place))),
                Some(sharding) => {
                    sharding.each(store, place, &at, budget, &mut |at, place| {
                        found.extend(self.number(at).map(|number| (number, place)));
                    })?;
                }
            }
        }
        Ok(found)
    }

    /// The number of the chunk at these coordinates, in the order in which they have the dimensions; `None` outside of the array.
    fn number(&self, at: &[u64]) -> Option<u64> {
        let count = |d: usize| self.shape[d].div_ceil(self.chunk[d]);
        let dimensions: Vec<usize> = match &self.order {
            Some(order) => order.clone(),
            None => (0..self.shape.len()).collect(),
        };
        dimensions.into_iter().try_fold(0u64, |number, d| {
            let within = at[d] < count(d);
            number
                .checked_mul(count(d))?
                .checked_add(at[d])
                .filter(|_| within)
        })
    }
}

impl ChunkKeys {
    /// The numbers in a key of an array with `rank` dimensions; `None` if it is not that of a chunk.
    fn coordinates(&self, key: &str, rank: usize) -> Option<Vec<u64>> {
        let numbers = key.strip_prefix(self.prefix)?;
        if rank == 0 {
            let only = if self.prefix.is_empty() { "0" } else { "" };
            return (numbers == only).then(Vec::new);
        }
        let numbers = match self.prefix.is_empty() {
            true => numbers,
            false => numbers.strip_prefix(self.separator)?,
        };
        // As they are written, so that no chunk has two keys.
        let number = |text: &str| text.parse::<u64>().ok().filter(|n| n.to_string() == text);
        let at: Option<Vec<u64>> = numbers.split(self.separator).map(number).collect();
        at.filter(|at| at.len() == rank)
    }
}

fn separator(value: Option<&Value>, default: char) -> Result<char> {
    match value.map(Value::as_str) {
        None => Ok(default),
        Some(Some(".")) => Ok('.'),
        Some(Some("/")) => Ok('/'),
        Some(_) => Err(wrong("a separator that is neither a dot nor a slash")),
    }
}

fn require_version(fields: &Map<String, Value>, version: u64) -> Result<()> {
    match fields.get("zarr_format").and_then(Value::as_u64) == Some(version) {
        true => Ok(()),
        false => Err(wrong(&format!("`zarr_format` is not {version}"))),
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}
