//! safetensors outputs: one file, or a directory of shards with an index, as Hugging Face libraries
//! read it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::split::{numbered_names, split_as_source, split_by_size};
use super::{ContainerWriter, LayoutRequest, OutputDirectory, Sharding};
use crate::config::IN_METADATA;
use crate::convert::options::ModelScope;
use crate::error::InTensor;
use crate::model::gguf_keys::{
    FILE_TYPE, ORIGINAL_SHAPE, PREFIX, VERSION, is_rotation_key, is_split_key,
};
use crate::remember::descriptions;
use crate::write::{OutputEntry, OutputLayout, safetensors};
use crate::{AnamnesisError, Dtype, Result};

pub(super) const WRITER: ContainerWriter = ContainerWriter {
    holds: Dtype::in_safetensors,
    copies_blocks_of: |_| false,
    widens_vectors: false,
    restores_shapes: true,
    layout,
    sharding: Some(Sharding {
        file_names: |stem, files| numbered_names(stem, "safetensors", files.len()),
        directory: Some(OutputDirectory {
            is_made: |options, model| {
                let many = model.directory.is_some()
                    || !model.beside.is_empty()
                    || options.max_shard_size.is_some()
                    || options.scope == ModelScope::Model
                    || options.base.is_some();
                many && !options.single_file
            },
            index_name,
            is_weights: |name| {
                name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
            },
        }),
    }),
};

/// Name of the index file of the shards `names`; `None` if there is only one, because an index of
/// one file says nothing.
fn index_name(names: &[String]) -> Option<String> {
    let [first, _, ..] = names else {
        return None;
    };
    let stem = first
        .split_once("-00001-of-")
        .map_or("model", |(stem, _)| stem);
    Some(format!("{stem}.safetensors.index.json"))
}

/// One file, or the shards of a directory.
///
/// # Errors
/// `Unsupported` if safetensors has not the dtype of a tensor.
fn layout(request: &mut LayoutRequest<'_, '_>) -> Result<Vec<OutputLayout>> {
    let &mut LayoutRequest { model, drafts, quantization, options, framework, .. } = request;
    if let Some(d) = drafts.iter().find(|d| !d.dtype.in_safetensors()) {
        let what = format!("{}: safetensors has no type {}", InTensor(&d.name), d.dtype);
        return Err(AnamnesisError::unsupported("writing safetensors", what));
    }
    // A whole model has its settings in files.
    let mut metadata = match framework {
        Some(_) => HashMap::new(),
        None => model.metadata.clone(),
    };
    let descriptions = descriptions(&metadata);
    metadata.retain(|key, _| !(is_stale(key) || descriptions.contains(key)));
    // A single file has no `config.json` beside it, so the quantization config goes into its
    // metadata.
    if let Some(config) = quantization.filter(|_| !options.is_directory(model)) {
        metadata.insert(IN_METADATA.to_owned(), config.to_string());
    }
    // transformers refuses a file without this key.
    metadata
        .entry("format".to_owned())
        .or_insert_with(|| framework.unwrap_or("pt").to_owned());
    let metadata = Arc::new(metadata);
    let shards = match (&model.directory, options.max_shard_size) {
        _ if !options.is_directory(model) => split_by_size(drafts, None),
        // Without a size limit, each input file becomes one output file.
        (Some(directory), None) => split_as_source(drafts, &directory.file_of),
        (_, max) => split_by_size(drafts, max),
    };
    let of_shard = |shard: Range<usize>| {
        let entries: Vec<OutputEntry<'_>> = drafts[shard].iter().map(super::entry).collect();
        safetensors::layout(&entries, &metadata)
    };
    shards.into_iter().map(of_shard).collect()
}

/// Whether a metadata key of the input is false for the output and would make readers misread it:
/// it says that tensors are quantized or rotated, that the file is a part of several, or that
/// tensors have been reshaped. Decoded tensors are none of these.
fn is_stale(key: &str) -> bool {
    match key.strip_prefix(PREFIX) {
        Some(key) => {
            matches!(key, FILE_TYPE | VERSION)
                || key.starts_with(ORIGINAL_SHAPE)
                || is_split_key(key)
                || is_rotation_key(key)
        }
        None => key.starts_with("gptq_") || key.starts_with(IN_METADATA),
    }
}
