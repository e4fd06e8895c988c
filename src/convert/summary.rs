//! The part of a report that follows from the resolved model: schemes with their counts, dropped
//! tensors, and assumptions.

use super::draft::is_carried;
use super::options::ConvertOptions;
use super::report::Report;
use crate::limits::join_first;
use crate::model::ParsedModel;
use crate::remember::{QuantScheme, Resolution, count};

/// Returns the report of a conversion before any work. Notes name what the model leaves open and
/// how it is read: where a default could be wrong, the user has to know that it was taken.
pub(super) fn summary(
    model: &ParsedModel,
    resolution: &Resolution<'_>,
    options: &ConvertOptions,
) -> Report {
    let mut report = Report::new(options.run.to);
    report.dropped = resolution
        .dropped
        .iter()
        .map(|t| t.name().to_owned())
        .collect();
    for group in resolution
        .groups()
        // A stack of floats is taken apart and not decoded.
        .filter(|group| !is_carried(group, options) && group.scheme != QuantScheme::Unquantized)
    {
        count(&mut report.schemes, group.scheme);
    }
    // Every item is either decoded, and counted by its scheme, or copied.
    report.passthrough = resolution.items.len() - report.recovered();
    let is_cast = |scheme: &QuantScheme| matches!(scheme, QuantScheme::CastFp8 { .. });
    let cast: usize = report
        .schemes
        .iter()
        .filter(|s| is_cast(&s.scheme))
        .map(|s| s.tensors)
        .sum();
    if cast > 0 {
        report
            .notes
            .push(format!("{cast} FP8 tensors have no scale, and nothing says that they should: read as plain casts"));
    }
    let gptq = report.schemes.iter().any(|s| s.scheme == QuantScheme::Gptq);
    if gptq
        && model.config.is_quantized()
        && model
            .config
            .text(&["checkpoint_format", "format", "packing_format"])
            .is_none()
    {
        report
            .notes
            .push("nothing says the version of GPTQ's zero points: read as version 1".to_owned());
    }
    let assumptions = resolution.assumptions.iter();
    report.notes.extend(assumptions.map(ToString::to_string));
    if !report.dropped.is_empty() {
        let n = report.dropped.len();
        report.notes.push(format!(
            "{n} activation scales and markers left out, e.g. `{}`",
            report.dropped[0]
        ));
    }
    report.notes.extend_from_slice(&model.notes);
    report.notes.extend(note_on_files(model, options));
    report.notes.extend(model.note_on_skipped("left out"));
    report
}

/// The note that an output of one file has none of the files that belong beside the weights, with
/// their paths.
fn note_on_files(model: &ParsedModel, options: &ConvertOptions) -> Option<String> {
    const MAX_NAMED: usize = 16;
    if model.beside.is_empty() || options.is_directory(model) {
        return None;
    }
    let files = model.beside.iter();
    let files = files.map(|file| format!("`{}` is {}", file.name, file.path.display()));
    let files = join_first(&files.collect::<Vec<_>>(), MAX_NAMED);
    Some(format!("files of the model are left out, for which the output has no place: {files}"))
}
