//! What each container makes of the drafts: their types, the metadata, and how many files there are.

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

/// Lays the drafts out in one file or several; the file of each draft, in ascending order.
pub(super) fn layout(
    model: &ParsedModel,
    drafts: &[Draft<'_>],
    quantization: Option<&(Vec<&'static str>, serde_json::Value)>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<(Vec<OutputLayout>, Vec<usize>)> {
    #[cfg(not(any(feature = "gguf", all(feature = "qnat", feature = "lethe"))))]
    let _ = &report;
    if matches!(options.target, ConvertTarget::Npz | ConvertTarget::Qnat) {
        one_file(options)?;
    }
    match options.target {
        ConvertTarget::Safetensors => in_safetensors(
            model,
            drafts,
            quantization.map(|(_, config)| config),
            options,
        ),
        #[cfg(all(feature = "qnat", feature = "lethe"))]
        ConvertTarget::Qnat => Ok((
            vec![in_qnat(model, drafts, options, report)?],
            vec![0; drafts.len()],
        )),
        #[cfg(not(all(feature = "qnat", feature = "lethe")))]
        ConvertTarget::Qnat => left_out("writing QNAT", "qnat` and `lethe"),
        #[cfg(feature = "npz")]
        ConvertTarget::Npz => Ok((vec![in_npz(drafts)?], vec![0; drafts.len()])),
        #[cfg(not(feature = "npz"))]
        ConvertTarget::Npz => left_out("writing NPZ", "npz"),
        #[cfg(feature = "gguf")]
        ConvertTarget::Gguf => gguf::layout(model, drafts, options, report),
        #[cfg(not(feature = "gguf"))]
        ConvertTarget::Gguf => left_out("writing GGUF", "gguf"),
    }
}

#[cfg(all(feature = "qnat", feature = "lethe"))]
fn in_qnat(
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

#[allow(dead_code)] // with every feature nothing is left out
fn left_out<T>(what: &str, feature: &str) -> Result<T> {
    Err(AnamnesisError::unsupported(
        what,
        format!("needs the feature `{feature}`, which this build leaves out"),
    ))
}

fn one_file(options: &ConvertOptions) -> Result<()> {
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
fn in_npz(drafts: &[Draft<'_>]) -> Result<OutputLayout> {
    crate::containers::write::npz::layout(&drafts.iter().map(entry).collect::<Vec<_>>())
}

fn in_safetensors(
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
        let is_untrue = UNTRUE.iter().any(|untrue| key.starts_with(untrue));
        !(is_untrue || descriptions.contains(key))
    });
    // A file alone has no other place to say it.
    if let Some(config) = quantization.filter(|_| !options.is_directory(model)) {
        metadata.insert(IN_METADATA.to_owned(), config.to_string());
    }
    metadata
        .entry("format".to_owned())
        .or_insert_with(|| "pt".to_owned());
    let entries: Vec<OutputEntry<'_>> = drafts.iter().map(entry).collect();
    let shards = match (&model.directory, options.max_shard_size) {
        _ if !options.is_directory(model) => runs(drafts, None),
        (Some(directory), None) => as_before(drafts, &directory.file_of),
        (_, max) => runs(drafts, max),
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

/// Runs of drafts whose codes are in the same file.
fn as_before(drafts: &[Draft<'_>], file_of: &[usize]) -> Vec<Range<usize>> {
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

/// Runs of tensors of at most `max` bytes, if there is such a limit; a larger tensor is alone, and what is made together
/// stays together.
fn runs(drafts: &[Draft<'_>], max: Option<u64>) -> Vec<Range<usize>> {
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

/// Beginnings of metadata keys that would be untrue of the output: that it is quantized, in parts, or reshaped.
const UNTRUE: [&str; 6] = [
    "gptq_",
    IN_METADATA,
    "gguf.general.file_type",
    "gguf.general.quantization_version",
    "gguf.split.",
    "gguf.comfy.gguf.orig_shape.",
];

#[cfg(feature = "gguf")]
mod gguf {
    use std::ops::Range;

    use super::{
        ConvertOptions, Draft, OutputEntry, OutputLayout, ParsedModel, Report, Result, runs,
    };
    use crate::containers::model::gguf::{GgufMetadataValue, is_split_key};
    use crate::containers::parse::gguf::{MAX_PARTS, PREFIX, from_text};
    use crate::containers::write::gguf::{GgufKeys, layout as lay_out, stored_dtype};
    use crate::{AnamnesisError, TargetDtype};

    /// Longest name that ggml reads.
    const LONGEST_NAME: usize = 63;

    pub(super) fn layout(
        model: &ParsedModel,
        drafts: &[Draft<'_>],
        options: &ConvertOptions,
        report: &mut Report,
    ) -> Result<(Vec<OutputLayout>, Vec<usize>)> {
        let accepted = drafts
            .iter()
            .map(|d| stored_dtype(&d.name, d.dtype, &d.shape))
            .collect::<Result<Vec<_>>>()?;
        let entries = drafts.iter().zip(&accepted);
        let entries: Vec<_> = entries
            .map(|(d, &dtype)| OutputEntry {
                name: &d.name,
                dtype,
                shape: &d.shape,
                len: d.len,
            })
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
        let shards = runs(drafts, options.max_shard_size);
        let keys = keys(model, drafts, options)?;
        let files = shards
            .iter()
            .enumerate()
            .flat_map(|(file, shard)| shard.clone().map(move |_| file))
            .collect();
        if shards.len() as u64 > MAX_PARTS {
            let what = format!("{} files, at most {MAX_PARTS} are read", shards.len());
            return Err(AnamnesisError::unsupported("splitting GGUF", what));
        }
        if shards.len() == 1 {
            return Ok((vec![lay_out(&entries, &keys)?], files));
        }
        let part = |(no, shard): (usize, &Range<usize>)| {
            let mut keys = if no == 0 {
                keys.clone()
            } else {
                keys.for_later_part()?
            };
            keys.add("split.no", &GgufMetadataValue::U16(no as u16))?;
            keys.add("split.count", &GgufMetadataValue::U16(shards.len() as u16))?;
            keys.add(
                "split.tensors.count",
                &GgufMetadataValue::I32(entries.len() as i32),
            )?;
            lay_out(&entries[shard.clone()], &keys)
        };
        Ok((
            shards.iter().enumerate().map(part).collect::<Result<_>>()?,
            files,
        ))
    }

    /// The source's metadata with the edits. Of a source that is not GGUF, what an earlier conversion kept.
    fn keys(
        model: &ParsedModel,
        drafts: &[Draft<'_>],
        options: &ConvertOptions,
    ) -> Result<GgufKeys> {
        if options.carries_blocks(model) {
            return GgufKeys::new(
                model.gguf().map(|source| &source.metadata),
                is_split_key,
                &options.gguf_metadata,
            );
        }
        let quantized = drafts.iter().any(|d| d.dtype.block_size() > 1);
        let mut all = Vec::new();
        if let Some(source) = model.gguf() {
            if quantized || source.metadata.get(FILE_TYPE).is_some() {
                all.push((
                    FILE_TYPE.to_owned(),
                    GgufMetadataValue::U32(file_type(options)),
                ));
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
            all.sort_by(|a, b| a.0.cmp(&b.0));
            if quantized {
                all.push((
                    FILE_TYPE.to_owned(),
                    GgufMetadataValue::U32(file_type(options)),
                ));
            }
        }
        if quantized || options.encodes() {
            all.push((VERSION.to_owned(), GgufMetadataValue::U32(GGML_QNT_VERSION)));
        }
        all.extend_from_slice(&options.gguf_metadata);
        let stale =
            |key: &str| is_split_key(key) || key == VERSION && !quantized && !options.encodes();
        GgufKeys::new(model.gguf().map(|source| &source.metadata), stale, &all)
    }

    const FILE_TYPE: &str = "general.file_type";
    const VERSION: &str = "general.quantization_version";

    /// Of ggml's block types, as ggml.h has it.
    const GGML_QNT_VERSION: u32 = 2;

    /// The number in llama.cpp's `enum llama_ftype`.
    fn file_type(options: &ConvertOptions) -> u32 {
        #[cfg(feature = "lethe")]
        if let Some(number) = options
            .forget
            .as_ref()
            .and_then(|forget| forget.scheme.file_type_number())
        {
            return number;
        }
        match options.run.to {
            TargetDtype::F32 => 0,
            TargetDtype::F16 => 1,
            TargetDtype::BF16 => 32,
        }
    }
}
