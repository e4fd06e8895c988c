//! Finds the files of a UQFF model of mistral.rs: `NAME-0.uqff`, `NAME-1.uqff` and so on, and those of its other tensors.
//!
//! `mistralrs quantize` writes a report beside them, `{"outputs": [{"quant": …, "shards": [file]}]}`, whose list counts, whatever
//! the names are: mistral.rs `mistralrs-core/src/pipeline/isq.rs`, `resolve_uqff_report_output`. Without a report nothing says how
//! many files there are.

use std::path::Path;

use super::join_first;
use crate::config::read_small;
use crate::limits::Budget;
use crate::source::CompanionFile;
use crate::{AnamnesisError, Result};

/// The file with the tensors of a UQFF model that are not quantized.
const RESIDUAL: &str = "residual.safetensors";

/// The file that lists the others.
const REPORT: &str = "uqff_report.json";

/// Finds the files of a UQFF model, and their report, which need not be there. `other` is the file of another model in the directory.
///
/// # Errors
/// `Parse` if both models are there, or several UQFF models; if one has gaps, lacks files of its report, or the other tensors are
/// missing.
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
    let mut files = match listed.map_err(|e| e.about(format_args!("`{REPORT}`")))? {
        Some(listed) => {
            if let Some(missing) = listed.iter().find(|file| !has(file)) {
                let what = format!("`{missing}` is missing, which `{REPORT}` lists");
                return Err(AnamnesisError::parse(what));
            }
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

/// The files `found` in the order of their numbers, which begin with 0 and have no gaps.
fn numbered(found: &[&str], first: &str) -> Result<Vec<String>> {
    let parts = |name: &'_ str| {
        let stem = name.strip_suffix(".uqff").unwrap_or(name);
        let parts = stem.rsplit_once('-');
        let parts = parts.and_then(|(set, no)| Some((set.to_owned(), no.parse::<usize>().ok()?)));
        parts.unwrap_or((stem.to_owned(), 0))
    };
    let mut files: Vec<_> = found.iter().map(|name| (parts(name), *name)).collect();
    files.sort_unstable();
    let (set, _) = parts(first);
    if let Some((_, other)) = files.iter().find(|((other, _), _)| *other != set) {
        let what = format!("which of several models? {first}, {other}");
        return Err(AnamnesisError::parse(what));
    }
    if let Some(no) = (0..files.len()).find(|&no| files[no].0.1 != no) {
        let what = format!("`{set}-{no}.uqff` is missing");
        return Err(AnamnesisError::parse(what));
    }
    Ok(files.into_iter().map(|(_, name)| name.to_owned()).collect())
}

/// The files that the report at `path` lists; `None` if there is no report.
///
/// # Errors
/// `Parse` if it is malformed, or lists several models, or none.
fn read_report(path: &Path, budget: &Budget) -> Result<Option<Vec<String>>> {
    #[derive(serde::Deserialize)]
    struct Output {
        quant: String,
        shards: Vec<String>,
    }
    #[derive(serde::Deserialize)]
    struct Report {
        outputs: Vec<Output>,
    }
    let Some(json) = read_small(path, budget)? else {
        return Ok(None);
    };
    let report: Report =
        serde_json::from_slice(&json).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    match <[Output; 1]>::try_from(report.outputs) {
        Ok([output]) if output.shards.is_empty() => {
            let what = format!("its model {} has no files", output.quant);
            Err(AnamnesisError::parse(what))
        }
        Ok([output]) => Ok(Some(output.shards)),
        Err(outputs) if outputs.is_empty() => Err(AnamnesisError::parse("it lists no model")),
        Err(outputs) => {
            let quants: Vec<&str> = outputs.iter().map(|output| output.quant.as_str()).collect();
            let what = format!("which of several models? {}", join_first(&quants));
            Err(AnamnesisError::parse(what))
        }
    }
}
