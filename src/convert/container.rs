//! The step of the plan that depends on the container: which types it holds, which metadata it keeps, and how the tensors are
//! distributed over files.

#[cfg(feature = "gguf")]
mod gguf;

use std::ops::Range;

use super::draft::Draft;
use super::options::ConvertOptions;
use super::report::Report;
use crate::ConvertTarget;
use crate::config::IN_METADATA;
use crate::containers::model::ParsedModel;
use crate::containers::write::{OutputEntry, OutputLayout, safetensors};
use crate::scheme::descriptions;
use crate::{AnamnesisError, Result};

/// Lays the drafts out in one or several files. Returns the layout of each file, and for each draft the number of its file, in
/// ascending order.
///
/// # Errors
/// `Unsupported` if the container cannot hold a tensor, cannot be split, or is left out of this build.
pub(super) fn layout(
    model: &ParsedModel,
    drafts: &[Draft<'_>],
    quantization: Option<&(Vec<&'static str>, serde_json::Value)>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<(Vec<OutputLayout>, Vec<usize>)> {
    #[cfg(not(feature = "gguf"))]
    let _ = &report;
    if matches!(options.target, ConvertTarget::Npz | ConvertTarget::Qnat) {
        refuse_sharding(options)?;
    }
    match options.target {
        ConvertTarget::Safetensors => safetensors_layout(
            model,
            drafts,
            quantization.map(|(_, config)| config),
            options,
        ),
        #[cfg(feature = "lethe")]
        ConvertTarget::Qnat => Ok((
            vec![qnat_layout(model, drafts, options, report)?],
            vec![0; drafts.len()],
        )),
        #[cfg(not(feature = "lethe"))]
        ConvertTarget::Qnat => missing_feature("writing QNAT", "qnat` and `lethe"),
        #[cfg(feature = "npz")]
        ConvertTarget::Npz => Ok((vec![npz_layout(drafts)?], vec![0; drafts.len()])),
        #[cfg(not(feature = "npz"))]
        ConvertTarget::Npz => missing_feature("writing NPZ", "npz"),
        #[cfg(feature = "gguf")]
        ConvertTarget::Gguf => gguf::layout(model, drafts, options, report),
        #[cfg(not(feature = "gguf"))]
        ConvertTarget::Gguf => missing_feature("writing GGUF", "gguf"),
    }
}

/// One QNAT file. QNAT holds NF4 tensors and nothing else, so a tensor that is not encoded is an error; the report has the
/// reason why it is not.
#[cfg(feature = "lethe")]
fn qnat_layout(
    model: &ParsedModel,
    drafts: &[Draft<'_>],
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<OutputLayout> {
    use crate::containers::write::qnat::{QnatOutputTensor, block_for, layout};
    let tensor = |d: &'_ Draft<'_>| match d.body.encoding() {
        Some(encoding) => Ok(encoding.shape.clone()),
        None => {
            let reason = report
                .kept
                .iter()
                .find(|kept| kept.name == d.name)
                .map_or("", |kept| &kept.reason);
            Err(AnamnesisError::unsupported(
                "writing QNAT",
                format!("tensor `{}`: {reason}", d.name),
            ))
        }
    };
    let shapes = drafts.iter().map(tensor).collect::<Result<Vec<_>>>()?;
    let tensors = drafts.iter().zip(&shapes).map(|(d, shape)| {
        let n = shape.iter().product();
        let block = block_for(n).unwrap_or(1);
        QnatOutputTensor {
            name: &d.name,
            shape,
            block,
            blocks: n / block,
        }
    });
    let tensors: Vec<QnatOutputTensor<'_>> = tensors.collect();
    report.notes.push(format!(
        "{} tensors are quantized to NF4, which QNAT holds and nothing else",
        tensors.len()
    ));
    let double = options
        .forget
        .as_ref()
        .is_some_and(|forget| forget.scheme.quantizes_scales());
    layout(&tensors, &model.metadata, double)
}

/// The error for a container that this build cannot write.
#[allow(dead_code)] // not called if every feature is enabled
fn missing_feature<T>(what: &str, feature: &str) -> Result<T> {
    Err(AnamnesisError::unsupported(
        what,
        format!("needs the feature `{feature}`, which this build leaves out"),
    ))
}

/// Fails with `Unsupported` if the options ask for several files. For containers that have no convention for splitting.
fn refuse_sharding(options: &ConvertOptions) -> Result<()> {
    match options.max_shard_size {
        Some(_) => Err(AnamnesisError::unsupported(
            "sharding",
            "only safetensors and GGUF can be split",
        )),
        None => Ok(()),
    }
}

fn entry<'a>(d: &'a Draft<'_>) -> OutputEntry<'a> {
    let Draft {
        name,
        dtype,
        shape,
        len,
        ..
    } = d;
    OutputEntry {
        name,
        dtype: *dtype,
        shape,
        len: *len,
    }
}

#[cfg(feature = "npz")]
fn npz_layout(drafts: &[Draft<'_>]) -> Result<OutputLayout> {
    crate::containers::write::npz::layout(&drafts.iter().map(entry).collect::<Vec<_>>())
}

fn safetensors_layout(
    model: &ParsedModel,
    drafts: &[Draft<'_>],
    quantization: Option<&serde_json::Value>,
    options: &ConvertOptions,
) -> Result<(Vec<OutputLayout>, Vec<usize>)> {
    if let Some(d) = drafts.iter().find(|d| !d.dtype.in_safetensors()) {
        let what = format!("tensor `{}`: safetensors has no type {}", d.name, d.dtype);
        return Err(AnamnesisError::unsupported("writing safetensors", what));
    }
    let mut metadata = model.metadata.clone();
    let descriptions = descriptions(&metadata);
    metadata.retain(|key, _| {
        let is_stale = STALE_METADATA_PREFIXES
            .iter()
            .any(|stale| key.starts_with(stale));
        !(is_stale || descriptions.contains(key))
    });
    // A single file has no `config.json` beside it, so the quantization config goes into its metadata.
    if let Some(config) = quantization.filter(|_| !options.is_directory(model)) {
        metadata.insert(IN_METADATA.to_owned(), config.to_string());
    }
    // transformers refuses a file without this key.
    metadata
        .entry("format".to_owned())
        .or_insert_with(|| "pt".to_owned());
    let entries: Vec<OutputEntry<'_>> = drafts.iter().map(entry).collect();
    let shards = match (&model.directory, options.max_shard_size) {
        _ if !options.is_directory(model) => split_by_size(drafts, None),
        // Without a size limit, each input file becomes one output file.
        (Some(directory), None) => split_as_source(drafts, &directory.file_of),
        (_, max) => split_by_size(drafts, max),
    };
    let files = shards
        .iter()
        .enumerate()
        .flat_map(|(file, shard)| shard.clone().map(move |_| file))
        .collect();
    let layouts = shards
        .into_iter()
        .map(|shard| safetensors::layout(&entries[shard], &metadata));
    Ok((layouts.collect::<Result<_>>()?, files))
}

/// Splits the drafts wherever two neighbours come from different input files.
fn split_as_source(drafts: &[Draft<'_>], file_of: &[usize]) -> Vec<Range<usize>> {
    let file = |d: &Draft<'_>| file_of.get(d.source).copied().unwrap_or(0);
    let (mut shards, mut start) = (Vec::new(), 0);
    for i in 1..drafts.len() {
        if file(&drafts[i]) != file(&drafts[i - 1]) {
            shards.push(start..i);
            start = i;
        }
    }
    shards.push(start..drafts.len());
    shards
}

/// Splits the drafts into files of at most `max` bytes of data; one file if there is no limit. A larger tensor gets a file of its
/// own.
///
/// Tensors that the jobs of one encoding write, such as codes and their scales, stay in one file: the sink of a directory is
/// the shard that is being made, and bytes of another shard would have nowhere to go.
fn split_by_size(drafts: &[Draft<'_>], max: Option<u64>) -> Vec<Range<usize>> {
    let (mut shards, mut start, mut size) = (Vec::new(), 0, 0u64);
    let mut first = 0;
    while first < drafts.len() {
        let parts = 1 + drafts[first + 1..]
            .iter()
            .take_while(|d| d.body.is_written_with_another())
            .count();
        let len = drafts[first..first + parts]
            .iter()
            .fold(0u64, |len, d| len.saturating_add(d.len));
        if first > start && max.is_some_and(|max| size.saturating_add(len) > max) {
            shards.push(start..first);
            (start, size) = (first, 0);
        }
        size = size.saturating_add(len);
        first += parts;
    }
    shards.push(start..drafts.len());
    shards
}

/// Prefixes of metadata keys of the input that are false for the output, and would make readers misread it: they say that
/// tensors are quantized, that the file is a part of several, or that tensors have been reshaped. Decoded tensors are none of
/// these.
const STALE_METADATA_PREFIXES: [&str; 6] = [
    "gptq_",
    IN_METADATA,
    "gguf.general.file_type",
    "gguf.general.quantization_version",
    "gguf.split.",
    "gguf.comfy.gguf.orig_shape.",
];
