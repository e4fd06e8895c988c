//! Split models: `NAME-00001-of-0000N.gguf` and its siblings. File names count from 1, the key
//! `split.no` from 0.
//!
//! Keys and names: llama.cpp `llama_split_path` and `gguf-split`.

use std::path::{Path, PathBuf};

use super::read_part;
use crate::ParsedModel;
use crate::error::InTensor;
use crate::limits::{Budget, cap};
use crate::model::gguf::GgufMetadata;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Most files of a split model.
pub(crate) const MAX_PARTS: u64 = 10_000;

/// Reads the other files of a split model, of which `contents` is the first file, and adds their
/// tensors. Does nothing if the model is one file.
///
/// # Errors
/// `Unsupported` if `contents` is not the first file, or has no path to find the others by; `Parse`
/// if the files do not belong together; those of reading the files.
pub(super) fn read_other_parts(
    contents: &mut ParsedModel,
    path: Option<&Path>,
    budget: &Budget,
) -> Result<()> {
    let Some(gguf) = &contents.gguf else {
        return Ok(());
    };
    let (no, count) = numbers(&gguf.metadata)?;
    let tensors = unsigned(&gguf.metadata, "split.tensors.count")?;
    if count <= 1 {
        return Ok(());
    }
    cap("MAX_SPLIT_COUNT", count, MAX_PARTS, "files of a model")?;
    let Some(path) = path else {
        let what = format!("this is part {} of {count}; open the first part as a file", no + 1);
        return Err(AnamnesisError::unsupported("split GGUF in memory", what));
    };
    require_first((no, count), path)?;
    let part = |no: u64| sibling(path, no, count);
    let big_endian = gguf.big_endian;
    for no in 1..count {
        let path = part(no).ok_or_else(|| {
            let ending = format!("-00001-of-{count:05}.gguf");
            AnamnesisError::parse(format!(
                "the model is in {count} files, but the name of the first, `{}`, does not end in `{ending}`",
                file_name(path)
            ))
        })?;
        let source = Source::open(&path)?;
        let index = contents.sources.len();
        let (header, more) = read_part(&source, index, budget)
            .map_err(|e| e.about(format_args!("`{}`", file_name(&path))))?;
        let wrong =
            |what: String| Err(AnamnesisError::parse(format!("`{}`: {what}", file_name(&path))));
        let theirs =
            (unsigned(&header.metadata, "split.no")?, unsigned(&header.metadata, "split.count")?);
        if theirs != (Some(no), Some(count)) {
            let shown = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
            return wrong(format!(
                "it is no part {} of {count}: split.no is {}, split.count {}",
                no + 1,
                shown(theirs.0),
                shown(theirs.1)
            ));
        }
        if header.big_endian != big_endian {
            return wrong("its byte order is not that of the first part".to_owned());
        }
        contents.header_size = contents
            .header_size
            .saturating_add(header.data_start as usize);
        contents.tensors.extend(more);
        contents.sources.push(source);
    }
    check_names(contents)?;
    let found = contents.tensors.len() as u64;
    match tensors.filter(|&declared| declared != found) {
        Some(declared) => Err(AnamnesisError::parse(format!(
            "the model has {declared} tensors, and its {count} files have {found}"
        ))),
        None => Ok(()),
    }
}

/// The number of a file, from 0 on, and of all files of its model.
///
/// # Errors
/// `Parse` if the metadata have no integers there.
pub(crate) fn numbers(metadata: &GgufMetadata) -> Result<(u64, u64)> {
    let number = |key: &str| unsigned(metadata, key);
    Ok((number("split.no")?.unwrap_or(0), number("split.count")?.unwrap_or(1)))
}

/// Checks that the file at `path`, number `no` of `count`, is the first, which has the model's
/// metadata.
///
/// # Errors
/// `Unsupported` that names the first file.
pub(crate) fn require_first((no, count): (u64, u64), path: &Path) -> Result<()> {
    if no == 0 {
        return Ok(());
    }
    let first = sibling(path, 0, count).unwrap_or_default();
    let no = no.saturating_add(1);
    let what = format!("this is part {no} of {count}; open the first, `{}`", file_name(&first));
    Err(AnamnesisError::unsupported("a part of a split GGUF", what))
}

/// Checks that no two tensors of the model have one name.
fn check_names(contents: &ParsedModel) -> Result<()> {
    let mut names: Vec<&str> = contents.tensors.iter().map(|t| &*t.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(AnamnesisError::parse(format!(
            "{} is in two parts of the model",
            InTensor(&pair[0])
        ))),
        None => Ok(()),
    }
}

/// The value of `key` as a number; `None` if there is no such key.
///
/// # Errors
/// `Parse` if it is no integer, or negative.
fn unsigned(metadata: &GgufMetadata, key: &str) -> Result<Option<u64>> {
    let Some(value) = metadata.get(key) else {
        return Ok(None);
    };
    let found = value.as_unsigned();
    found.map(Some).ok_or_else(|| {
        AnamnesisError::parse(format!("metadata `{key}` is no number, but a {}", value.type_name()))
    })
}

/// Path of part `no`, counted from 0, in the directory of `path`. `None` if the name of `path` does
/// not end in `-xxxxx-of-NNNNN.gguf` with this `count`.
fn sibling(path: &Path, no: u64, count: u64) -> Option<PathBuf> {
    let stem = path
        .file_name()?
        .to_str()?
        .strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (prefix, digits) = stem.rsplit_once('-')?;
    let is_number = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| path.with_file_name(format!("{prefix}-{:05}-of-{count:05}.gguf", no + 1)))
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
