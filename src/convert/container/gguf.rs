//! GGUF outputs: their metadata, and how they are split into files.

#[cfg(feature = "models")]
mod loading;
#[cfg(not(feature = "models"))]
#[path = "gguf/no_loading.rs"]
mod loading;
mod output_keys;
mod without_architecture;

use std::ops::Range;

use self::output_keys::OutputKeys;

use super::split::{numbered_names, split_by_size};
use super::{ContainerWriter, LayoutRequest, Sharding};
use crate::convert::options::{ConvertOptions, ModelScope};
use crate::convert::output::BoxedOutput;
use crate::error::counted;
use crate::model::gguf::{GGML_QNT_VERSION, GgufMetadataValue};
use crate::model::gguf_keys::{
    ARCHITECTURE, FILE_TYPE, PREFIX, VERSION, is_rotation_key, is_split_key,
};
use crate::parse::gguf::{MAX_PARTS, from_text};
use crate::remember::image_models::ImageModel;
use crate::sort::sort_by;
use crate::write::gguf::{GGML_MAX_DIMS, layout as lay_out, stored_dtype};
use crate::write::{OutputEntry, OutputLayout};
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

pub(super) const WRITER: ContainerWriter = ContainerWriter {
    holds: |dtype| dtype.ggml_id().is_some() || dtype == Dtype::Bool,
    copies_blocks_of: ParsedModel::is_gguf,
    widens_vectors: true, // llama.cpp expects it
    restores_shapes: false,
    layout,
    sharding: Some(Sharding {
        file_names: |stem, files| numbered_names(stem, "gguf", files.len()),
        directory: None,
    }),
};

/// Longest tensor name that ggml reads, in bytes: its `GGML_MAX_NAME` of 64 includes the final
/// zero.
const LONGEST_NAME: usize = 63;

/// One GGUF file, or a split GGUF if the drafts exceed `max_shard_size`.
///
/// # Errors
/// `Unsupported` if GGUF cannot hold a tensor, or there would be more files than can be read back.
fn layout(request: &mut LayoutRequest<'_, '_>) -> Result<Vec<OutputLayout>> {
    let LayoutRequest { model, drafts, options, report, gguf_keys, whole_metadata, .. } = request;
    let accepted = drafts
        .iter()
        .map(|d| stored_dtype(&d.name, d.dtype, &d.shape))
        .collect::<Result<Vec<_>>>()?;
    let entries = drafts.iter().zip(&accepted);
    let entries: Vec<_> = entries
        .map(|(d, &dtype)| OutputEntry { name: &d.name, dtype, shape: &d.shape, len: d.len })
        .collect();
    let long = entries
        .iter()
        .filter(|e| e.name.len() > LONGEST_NAME)
        .count();
    if long > 0 {
        let note = format!(
            "{long} names are longer than {LONGEST_NAME} bytes, which llama.cpp does not read"
        );
        report.notes.push(note);
    }
    let deep = entries.iter().filter(|e| e.shape.len() > GGML_MAX_DIMS);
    let deep: Vec<&str> = deep.map(|e| e.name).collect();
    if let Some(first) = deep.first() {
        let note = format!(
            "{} of more than {GGML_MAX_DIMS} dimensions, e.g. `{first}`, which ComfyUI-GGUF and diffusers read, and llama.cpp does not",
            counted(deep.len(), "tensor")
        );
        report.notes.push(note);
    }
    let of_fork = |e: &OutputEntry<'_>| e.dtype.fork().map(|fork| (fork, e.dtype));
    if let Some((fork, dtype)) = entries.iter().find_map(of_fork) {
        let note = format!(
            "{} in types of {fork} ({dtype}), which llama.cpp does not read",
            counted(entries.iter().filter_map(of_fork).count(), "tensor"),
        );
        report.notes.push(note);
    }
    let shards = split_by_size(drafts, options.max_shard_size);
    let made = match whole_metadata {
        // The metadata of a whole model is complete; only the caller's keys replace some.
        Some(whole) => OutputKeys::new([*whole, gguf_keys].concat()),
        None => keys(model, drafts, gguf_keys, options),
    };
    let edited = made.with_changes_of(options)?;
    let note = loading::note(model, &entries, (&made, edited.as_ref()), options)?;
    report.notes.extend(note);
    let keys = edited.as_ref().unwrap_or(&made).encode()?;
    if !keys.has_architecture() {
        let names = drafts.iter().map(|draft| &*draft.name);
        report
            .notes
            .extend(without_architecture::note(model, names, options)?);
    }
    if shards.len() as u64 > MAX_PARTS {
        let what = format!("{} files, at most {MAX_PARTS} are read", shards.len());
        return Err(AnamnesisError::unsupported("splitting GGUF", what));
    }
    if shards.len() == 1 {
        return Ok(vec![lay_out(&entries, &keys)?]);
    }
    // As llama.cpp's gguf-split does it: the first file has all metadata, later ones only what is
    // needed to read them, and each has its number and the totals.
    let part = |(no, shard): (usize, &Range<usize>)| {
        let mut keys = if no == 0 {
            keys.clone()
        } else {
            keys.for_later_part()?
        };
        keys.add("split.no", &GgufMetadataValue::U16(no as u16))?;
        keys.add("split.count", &GgufMetadataValue::U16(shards.len() as u16))?;
        keys.add("split.tensors.count", &GgufMetadataValue::I32(entries.len() as i32))?;
        lay_out(&entries[shard.clone()], &keys)
    };
    shards.iter().enumerate().map(part).collect()
}

/// The metadata of the output.
///
/// From GGUF it is the input's. From another container it is what an earlier conversion from GGUF
/// kept there under prefixed keys, and the architecture of an image model. Keys of a split and of
/// rotations are dropped, the file type and quantization version are set to what the output holds.
fn keys<'a>(
    model: &'a ParsedModel,
    drafts: &[BoxedOutput<'_>],
    of_encoding: &[(String, GgufMetadataValue)],
    options: &ConvertOptions,
) -> OutputKeys<'a> {
    // Blocks that are copied unchanged are still what the input's metadata says.
    if options.carries_blocks(model) {
        // Without tensors there is no number of parameters.
        let is_bare = options.scope == ModelScope::Vocabulary;
        let stale = |key: &str| is_split_key(key) || is_bare && key == "general.size_label";
        return OutputKeys::new(of_encoding.to_vec()).with_those_of(model, stale);
    }
    let quantized = drafts.iter().any(|d| d.dtype.block_size() > 1);
    let mut all = Vec::new();
    if let Some(source) = model.gguf() {
        if quantized || source.metadata.get(FILE_TYPE).is_some() {
            all.push((FILE_TYPE.to_owned(), GgufMetadataValue::U32(file_type(options))));
        }
    } else {
        let kept = model
            .metadata
            .iter()
            .filter_map(|(key, text)| Some((key.strip_prefix(PREFIX)?, from_text(text))));
        all = kept.map(|(key, value)| (key.to_owned(), value)).collect();
        all.retain(|(key, _)| {
            !is_split_key(key) && (!quantized || key != FILE_TYPE && key != VERSION)
        });
        sort_by(&mut all, |a, b| a.0.cmp(&b.0));
        let image = ImageModel::of(drafts.iter().map(|draft| &*draft.name));
        if let Some(image) = image.filter(|_| all.iter().all(|(key, _)| key != ARCHITECTURE)) {
            let value = GgufMetadataValue::String(image.architecture.into());
            all.insert(0, (ARCHITECTURE.to_owned(), value));
        }
        if quantized {
            all.push((FILE_TYPE.to_owned(), GgufMetadataValue::U32(file_type(options))));
        }
    }
    if quantized || options.encodes() {
        all.push((VERSION.to_owned(), GgufMetadataValue::U32(GGML_QNT_VERSION)));
    }
    all.extend_from_slice(of_encoding);
    let stale = |key: &str| {
        let is_untrue = key == VERSION && !quantized && !options.encodes();
        is_split_key(key) || is_rotation_key(key) || is_untrue
    };
    OutputKeys::new(all).with_those_of(model, stale)
}

/// The number of the output's file type in llama.cpp's `enum llama_ftype`.
fn file_type(options: &ConvertOptions) -> u32 {
    if let Some(number) = options.gguf_file_type() {
        return number;
    }
    options.run.to.gguf_file_type()
}
