//! Finds the files of a UQFF model of mistral.rs: `NAME-0.uqff`, `NAME-1.uqff` and so on, and those
//! of its other tensors.
//!
//! `mistralrs quantize` writes a report beside them, `{"outputs": [{"quant": …, "shards":
//! [file]}]}`, whose list counts, whatever the names are: mistral.rs
//! `mistralrs-core/src/pipeline/isq.rs`, `resolve_uqff_report_output`. Without a report nothing
//! says how many files there are.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use super::super::detect;
use super::{MAX_NAMED, append};
use crate::config::read_small;
use crate::error::InTensor;
use crate::limits::{Budget, join_first};
use crate::parse::listing::list;
use crate::source::{CompanionFile, FilePool, Source};
use crate::{AnamnesisError, ParsedModel, Result};

/// The file with the tensors of a UQFF model that are not quantized.
const RESIDUAL: &str = "residual.safetensors";

/// The file that lists the others.
const REPORT: &str = "uqff_report.json";

/// Finds the files of a UQFF model, and their report, which need not be there. `other` is the file
/// of another model in the directory.
///
/// # Errors
/// `Parse` if both models are there, or several UQFF models; if one has gaps, lacks files of its
/// report, or the other tensors are missing.
pub(super) fn find_uqff(
    dir: &Path,
    names: &[String],
    other: Option<&str>,
    budget: &Budget,
) -> Result<Option<(Vec<String>, CompanionFile)>> {
    let has = |name: &str| names.iter().any(|n| n == name);
    let found: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| name.ends_with(".uqff"))
        .collect();
    let first = match (found.first(), has(RESIDUAL), other) {
        // The other tensors alone are no model.
        (None, true, None) if has(REPORT) => REPORT,
        (None, ..) | (_, false, Some(_)) => return Ok(None),
        (Some(first), true, None) => first,
        (Some(first), true, Some(other)) => {
            return Err(AnamnesisError::parse(format!(
                "which of two models? {first} and {RESIDUAL} are of one, and there is {other}"
            )));
        }
        (Some(first), false, None) => {
            let what = format!("`{RESIDUAL}` is missing, which a UQFF model has beside {first}");
            return Err(AnamnesisError::parse(what));
        }
    };
    let report = CompanionFile::new(dir.join(REPORT));
    let listed = read_report(&report.path, budget);
    let listed = listed.and_then(|all| all.map(only_output).transpose());
    let mut files = match listed.map_err(|e| e.about(format_args!("`{REPORT}`")))? {
        Some(listed) => {
            require_listed(&listed, names)?;
            if let Some(stray) = found.iter().find(|name| !listed.iter().any(|l| l == *name)) {
                let what = format!("which of several models? `{REPORT}` does not list {stray}");
                return Err(AnamnesisError::parse(what));
            }
            listed
        }
        None => numbered(&found, first)?,
    };
    files.push(RESIDUAL.to_owned());
    Ok(Some((files, report)))
}

/// Adds the tensors of the other files of a UQFF model to `contents`, which was read from its first
/// file `path`: a directory may have several models, which share `residual.safetensors`. Any other
/// file stays alone.
///
/// # Errors
/// Those of [`find_uqff`], of one of the models; `Parse` if two files have the same tensor; those
/// of reading a file, with its name.
pub(in crate::parse) fn read_other_files(
    contents: &mut ParsedModel,
    path: &Path,
    budget: &Budget,
) -> Result<()> {
    let (Some(dir), Some(first)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
        return Ok(());
    };
    if !first.ends_with(".uqff") || !dir.join(RESIDUAL).is_file() {
        return Ok(());
    }
    let dir = match dir.as_os_str().is_empty() {
        true => Path::new("."),
        false => dir,
    };
    let Some(files) = files_after(dir, first, budget)? else {
        let note = format!("`{RESIDUAL}` and other files of its model are left out");
        contents.notes.push(note);
        return Ok(());
    };
    let pool = Arc::new(FilePool::default());
    for (number, file) in files.iter().enumerate() {
        let path = dir.join(file);
        let shard = Source::open_pooled(&pool, number, &path)
            .and_then(|source| detect::detect(&mut &source)?.read(source, Some(&path), budget));
        append(contents, shard.map_err(|e| e.about(format_args!("`{file}`")))?);
    }
    let mut names = HashSet::with_capacity(contents.tensors.len());
    match contents.tensors.iter().find(|t| !names.insert(&t.name)) {
        None => Ok(()),
        Some(twice) => Err(AnamnesisError::parse(format!(
            "{} is in two files of the model",
            InTensor(&twice.name)
        ))),
    }
}

/// The files behind `first` of the model in `dir` that begins with it, `residual.safetensors`
/// included; `None` if none does.
fn files_after(dir: &Path, first: &str, budget: &Budget) -> Result<Option<Vec<String>>> {
    let names = list(dir)?;
    let report = read_report(&dir.join(REPORT), budget);
    let report = report.map_err(|e| e.about(format_args!("`{REPORT}`")))?;
    let is_its = |output: &ReportedModel| output.shards.first().is_some_and(|file| file == first);
    let mut files = if let Some(output) = report.and_then(|all| all.into_iter().find(is_its)) {
        require_listed(&output.shards, &names)?;
        output.shards
    } else {
        let (set, no) = set_and_number(first);
        let names = names.iter().map(String::as_str);
        let found: Vec<&str> = names
            .filter(|name| name.ends_with(".uqff") && set_and_number(name).0 == set)
            .collect();
        if no != 0 {
            return Ok(None);
        }
        numbered(&found, first)?
    };
    files.retain(|file| file != first);
    files.push(RESIDUAL.to_owned());
    Ok(Some(files))
}

/// # Errors
/// `Parse` if one of the files `listed` is not among `names`, or is listed twice.
fn require_listed(listed: &[String], names: &[String]) -> Result<()> {
    let names: HashSet<&String> = names.iter().collect();
    let mut seen = HashSet::new();
    for file in listed {
        let what = match (names.contains(file), seen.insert(file)) {
            (true, true) => continue,
            (false, _) => format!("`{file}` is missing, which `{REPORT}` lists"),
            (true, false) => format!("`{REPORT}` lists `{file}` twice"),
        };
        return Err(AnamnesisError::parse(what));
    }
    Ok(())
}

/// The name of a file of UQFF without its number, and the number.
fn set_and_number(name: &str) -> (String, usize) {
    let stem = name.strip_suffix(".uqff").unwrap_or(name);
    let parts = stem.rsplit_once('-');
    let parts = parts.and_then(|(set, no)| Some((set.to_owned(), no.parse::<usize>().ok()?)));
    parts.unwrap_or((stem.to_owned(), 0))
}

/// The files `found` in the order of their numbers, which begin with 0 and have no gaps.
fn numbered(found: &[&str], first: &str) -> Result<Vec<String>> {
    let mut files: Vec<_> = found
        .iter()
        .map(|name| (set_and_number(name), *name))
        .collect();
    files.sort_unstable();
    let (set, _) = set_and_number(first);
    if let Some((_, other)) = files.iter().find(|((other, _), _)| *other != set) {
        let what = format!("which of several models? {first}, {other}; give the first file of one");
        return Err(AnamnesisError::parse(what));
    }
    if let Some(no) = (0..files.len()).find(|&no| files[no].0.1 != no) {
        let what = format!("`{set}-{no}.uqff` is missing");
        return Err(AnamnesisError::parse(what));
    }
    Ok(files.into_iter().map(|(_, name)| name.to_owned()).collect())
}

/// A model that a report lists.
#[derive(serde::Deserialize)]
struct ReportedModel {
    quant: String,
    shards: Vec<String>,
}

/// The models that the report at `path` lists; `None` if there is no report.
///
/// # Errors
/// `Parse` if it is malformed.
fn read_report(path: &Path, budget: &Budget) -> Result<Option<Vec<ReportedModel>>> {
    #[derive(serde::Deserialize)]
    struct Report {
        outputs: Vec<ReportedModel>,
    }
    let Some(json) = read_small(path, budget)? else {
        return Ok(None);
    };
    let report: Report =
        serde_json::from_slice(&json).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    Ok(Some(report.outputs))
}

/// The files of the only model that a report lists.
///
/// # Errors
/// `Parse` if it lists several, or none.
fn only_output(outputs: Vec<ReportedModel>) -> Result<Vec<String>> {
    match <[ReportedModel; 1]>::try_from(outputs) {
        Ok([output]) if output.shards.is_empty() => {
            let what = format!("its model {} has no files", output.quant);
            Err(AnamnesisError::parse(what))
        }
        Ok([output]) => Ok(output.shards),
        Err(outputs) if outputs.is_empty() => Err(AnamnesisError::parse("it lists no model")),
        Err(outputs) => {
            let quants: Vec<&str> = outputs.iter().map(|output| output.quant.as_str()).collect();
            let what = format!(
                "which of several models? {}; give the first file of one",
                join_first(&quants, MAX_NAMED)
            );
            Err(AnamnesisError::parse(what))
        }
    }
}
