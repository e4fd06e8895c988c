//! Zarr, versions 2 and 3, as Orbax, TensorStore and Zarr write it: arrays in chunks, called by their paths, whose parts are joined by
//! dots. The chunks are files, or values in a database of OCDBT. They are not read here.
//!
//! - `store`: values by their keys; `ocdbt`, `ocdbt_node`: the database that holds them.
//! - `array`, `dtype`, `fill`: what is said of an array; `codecs`: what was done to its chunks; `shards`: chunks in chunks.
//!
//! Formats: [Zarr 2](https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html),
//! [Zarr 3](https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html),
//! [OCDBT](https://google.github.io/tensorstore/kvstore/ocdbt/index.html).

mod array;
mod codecs;
mod dtype;
mod fill;
mod ocdbt;
mod ocdbt_node;
mod shards;
mod store;

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use self::array::{ZarrArray, metadata_of};
use self::store::{ValuePlace, ZarrStore};
use crate::error::counted;
use crate::limits::{Budget, cap, join_first};
use crate::model::strided::row_major_strides;
use crate::model::{ShortList, Skipped, TensorInfo};
use crate::source::{ChunkPlace, ChunkedTensor, Derived, Pieced, Source, check_runs};
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Name of the file by which a database of OCDBT is read.
pub(super) const MANIFEST: &str = "manifest.ocdbt";

/// Most arrays that a note names.
const MAX_NAMED: usize = 5;

/// Most bytes of a chunk that is not decoded in a stream.
const MAX_CHUNK: u64 = 64 << 20;

/// Reads the arrays of the database or the directory with the file `path`, which is [`MANIFEST`] or a description of an array, a
/// group or a checkpoint. `source` is that file.
///
/// # Errors
/// `Parse` if they are malformed; `Unsupported` for codecs that are not read; `LimitExceeded`; `Io`.
pub(super) fn read(source: Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let Some(path) = path else {
        let what = "its data is in other files; give the path of the directory";
        return Err(AnamnesisError::unsupported("Zarr", what));
    };
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut store = ZarrStore::new(directory, source);
    match path.file_name().is_some_and(|name| name == MANIFEST) {
        true => ocdbt::fill(&mut store, budget)?,
        false => store.add_files(budget)?,
    }
    let mut arrays = vec![];
    for key in store.keys() {
        let Some(name) = metadata_of(&key) else {
            continue;
        };
        let array = store
            .read(&key, budget)
            .and_then(|json| ZarrArray::parse(&key, &json, budget));
        let array = array.map_err(|error| error.about(format_args!("`{key}`")))?;
        if let Some(array) = array {
            arrays.push((name.to_owned(), array));
        }
    }
    require_no_nesting(&arrays)?;
    let mut chunks = vec![];
    for (name, array) in &arrays {
        let found = array.chunks(name, &mut store, budget);
        chunks.push(found.map_err(|error| error.in_tensor(name))?);
    }
    store::require_apart(&mut chunks)?;
    let mut contents = ParsedModel::new(Container::Zarr, 0);
    contents.sources = store.into_sources();
    let files: Arc<[Source]> = contents.sources.iter().map(Source::share).collect();
    let (mut names, mut partial) = (HashSet::new(), vec![]);
    for ((name, array), chunks) in arrays.iter().zip(chunks) {
        let context = (&files, &mut names);
        let added = add(&mut contents, name, array, &chunks, context, budget);
        if added.map_err(|error| error.in_tensor(name))? {
            partial.push(name.as_str());
        }
    }
    if !partial.is_empty() {
        contents.notes.push(format!(
            "{} lack chunks, which are taken as the fill value: {}",
            counted(partial.len(), "array"),
            join_first(&partial, MAX_NAMED)
        ));
    }
    match contents.tensors.is_empty() && contents.skipped.is_empty() {
        true => Err(AnamnesisError::parse("there are no arrays")),
        false => Ok(contents),
    }
}

/// Fails if an array is in the directory of another one, or has two descriptions.
fn require_no_nesting(arrays: &[(String, ZarrArray)]) -> Result<()> {
    let mut names = HashSet::with_capacity(arrays.len());
    for (name, _) in arrays {
        if !names.insert(name.as_str()) {
            return Err(AnamnesisError::parse("it is described twice").in_tensor(name));
        }
    }
    for (name, _) in arrays.iter().filter(|(name, _)| !name.is_empty()) {
        let above = name.match_indices('/').map(|(at, _)| &name[..at]);
        if let Some(above) = above.chain([""]).find(|above| names.contains(above)) {
            let what = format!("it is inside of the array `{above}`");
            return Err(AnamnesisError::parse(what).in_tensor(name));
        }
    }
    Ok(())
}

/// A chunk: its number among all, and where its bytes are.
type NumberedChunk = (u64, ValuePlace);

/// Adds the array called `key`, or notes that no tensor can hold it. Returns whether it lacks chunks.
fn add(
    contents: &mut ParsedModel,
    key: &str,
    array: &ZarrArray,
    chunks: &[NumberedChunk],
    (files, names): (&Arc<[Source]>, &mut HashSet<String>),
    budget: &Budget,
) -> Result<bool> {
    let name = match key {
        "" => "tensor".to_owned(),
        key => key.replace('/', "."),
    };
    budget.items(1, "arrays")?;
    budget.tables(1, name.len() as u64 / 256 + chunks.len() as u64, 0)?;
    if !names.insert(name.clone()) {
        return Err(AnamnesisError::parse("another array has its name"));
    }
    let dtype = match &array.dtype {
        Ok(dtype) => *dtype,
        Err(what) => {
            let what = format!("array of {what}");
            contents.skipped.push(Skipped { name, what });
            return Ok(false);
        }
    };
    let shape: Vec<usize> = array.shape.iter().map(|&n| n as usize).collect();
    let bytes = dtype.byte_len(&shape).map(|bytes| bytes as u64);
    let Some(len) = bytes.filter(|_| array.shape.iter().all(|&n| usize::try_from(n).is_ok()))
    else {
        return Err(AnamnesisError::parse(format!("its size overflows ({shape:?})")));
    };
    let mut is_partial = false;
    let (source, offset) = match array.whole(chunks, len) {
        _ if len == 0 => (0, 0),
        Some(place) => (place.source, place.offset),
        None => {
            let tensor = chunked(array, chunks, len, files, budget)?;
            is_partial = tensor.lacks_chunks();
            let derived = Derived::Chunked(Box::new(tensor));
            contents.sources.push(Source::Derived(Box::new(derived)));
            (contents.sources.len() - 1, 0)
        }
    };
    contents.tensors.push(TensorInfo {
        strides: strides(array).filter(|_| len > 0),
        big_endian: array.is_big_endian && dtype.byte_size() > 1,
        ..TensorInfo::plain(name, (dtype, shape), (source, offset, len))
    });
    Ok(is_partial)
}

/// The strides of an array whose chunks have its dimensions in another order; `None` if they have not.
fn strides(array: &ZarrArray) -> Option<Box<ShortList>> {
    let order = array.order.as_ref()?;
    let stored: Vec<usize> = array
        .stored(&array.shape)
        .iter()
        .map(|&n| n as usize)
        .collect();
    let mut strides = vec![0; stored.len()];
    for (&d, stride) in order.iter().zip(row_major_strides(&stored)) {
        strides[d] = stride;
    }
    Some(Box::new(strides.into()))
}

/// The tensor of `len` bytes that is made of `chunks`.
fn chunked(
    array: &ZarrArray,
    chunks: &[NumberedChunk],
    len: u64,
    files: &Arc<[Source]>,
    budget: &Budget,
) -> Result<ChunkedTensor> {
    let (mut shape, mut chunk) = (array.stored(&array.shape), array.stored(&array.chunk));
    if shape.is_empty() {
        (shape, chunk) = (vec![1], vec![1]);
    }
    let size = len / array.shape.iter().product::<u64>().max(1);
    let whole = chunk.iter().try_fold(size, |n, &size| n.checked_mul(size));
    let whole = whole.ok_or_else(|| AnamnesisError::parse("the size of its chunks overflows"))?;
    let is_stream = match array.filters.as_slice() {
        [] => true,
        [only] => only.is_stream(),
        _ => false,
    };
    if !is_stream {
        cap("MAX_ZARR_CHUNK", whole, MAX_CHUNK, "bytes of a chunk")?;
        for (_, place) in chunks {
            cap("MAX_ZARR_CHUNK", place.len, MAX_CHUNK, "bytes of a chunk")?;
        }
    }
    let stored: u64 = chunks.iter().map(|(_, place)| place.len).sum();
    let made = whole.saturating_mul(chunks.len() as u64).max(len);
    budget.decompress(stored, made, "chunks of an array")?;
    check_runs(&shape, &chunk, len)?;
    let (base, chunks) = base_of(chunks, files)?;
    let mut tensor = ChunkedTensor {
        base,
        shape,
        chunk,
        size,
        chunks,
        filters: array.filters.clone(),
        keeps_partial: false,
        fill: vec![],
        spool: OnceLock::new(),
    };
    if tensor.lacks_chunks() {
        tensor.fill = array.fill(size as usize)?;
    }
    Ok(tensor)
}

/// One source that has the bytes of all chunks, and their places in it.
fn base_of(chunks: &[NumberedChunk], files: &Arc<[Source]>) -> Result<(Source, Vec<ChunkPlace>)> {
    let place = |number, offset, len| ChunkPlace { number, offset, len, mask: 0 };
    let first = chunks.first().map_or(0, |(_, place)| place.source);
    if chunks.iter().all(|(_, place)| place.source == first) {
        let places = chunks
            .iter()
            .map(|(number, at)| place(*number, at.offset, at.len));
        return Ok((files[first].share(), places.collect()));
    }
    let ranges = chunks.iter().map(|(_, at)| (at.source, at.offset, at.len));
    let joined = Pieced::of_several(files.clone(), ranges)?;
    let mut end = 0;
    let places = chunks.iter().map(|(number, at)| {
        end += at.len;
        place(*number, end - at.len, at.len)
    });
    let places = places.collect();
    Ok((Source::Pieced(Box::new(joined)), places))
}
