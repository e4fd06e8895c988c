//! What the program prints of a finished conversion.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::CommandError;
use super::input::NamedModel;
use crate::error::{counted, printable};
use crate::{AnamnesisError, Conversion, ErrorKind, Errors, Report, Result};

/// Prints a line and ignores errors: the conversion goes on even if the reader of a pipe has closed
/// it.
pub(super) fn print_line(out: &mut impl Write, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Prints a value as JSON.
pub(super) fn print_json(value: &impl serde::Serialize, out: &mut impl Write) -> Result<()> {
    // Serializers are compiled for each type of writer.
    let writer: &mut dyn Write = out;
    end_json(serde_json::to_writer_pretty(writer, value), out)
}

/// Prints a value as one line of JSON, at once.
pub(super) fn print_json_line(value: &impl serde::Serialize, out: &mut impl Write) -> Result<()> {
    let writer: &mut dyn Write = out;
    end_json(serde_json::to_writer(writer, value), out)?;
    Ok(out.flush()?)
}

fn end_json(written: serde_json::Result<()>, out: &mut impl Write) -> Result<()> {
    written.map_err(|e| match e.io_error_kind() {
        Some(kind) => AnamnesisError::Io(kind.into()),
        None => AnamnesisError::Io(std::io::Error::other(e)),
    })?;
    writeln!(out)?;
    Ok(())
}

/// What `--json` prints of a conversion, or with `--dry-run` of a plan.
#[derive(serde::Serialize)]
pub(super) struct ConversionReport<'a> {
    input: String,
    /// Bytes of the input's tensors.
    input_bytes: u64,
    /// The output file or directory.
    output: String,
    /// Files of weights.
    files: Vec<String>,
    /// What tensors are encoded to.
    scheme: Option<&'a str>,
    /// Time of the conversion; null of a plan.
    seconds: Option<f64>,
    /// 10^9 bytes of the output in a second; null of a plan.
    gb_per_second: Option<f64>,
    #[serde(flatten)]
    report: &'a Report,
}

impl<'a> ConversionReport<'a> {
    pub(super) fn new(
        input: &NamedModel,
        conversion: &Conversion<'_>,
        output: &Path,
        scheme: Option<&'a str>,
        report: &'a Report,
        seconds: Option<f64>,
    ) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let path = input.model.path().unwrap_or(&input.named);
        Self {
            input: text(path),
            input_bytes: input.model.tensor_bytes(),
            output: text(output),
            files: conversion
                .written_paths(output)
                .iter()
                .map(|path| text(path))
                .collect(),
            scheme,
            seconds,
            gb_per_second: seconds.map(|s| report.output_bytes as f64 / 1e9 / s.max(1e-9)),
            report,
        }
    }
}

/// What `--json` prints of an error, on stderr.
#[derive(serde::Serialize)]
pub(super) struct ErrorReport<'a> {
    kind: ErrorKind,
    message: String,
    /// The tensor at fault.
    tensor: Option<&'a str>,
    /// The file at fault; the input, if it is not known.
    file: Cow<'a, str>,
}

impl<'a> ErrorReport<'a> {
    /// An error about `input`, or about the model that it names itself.
    pub(super) fn new(failed: &'a CommandError, input: &'a Path) -> Self {
        let (error, model) = (&failed.error, failed.model.as_deref());
        Self {
            kind: error.kind(),
            message: failed.to_string(),
            tensor: error.tensor(),
            file: error.file().or(model).unwrap_or(input).to_string_lossy(),
        }
    }
}

/// Prints an error about `input`, or about the model that it names itself, as JSON; in one line if
/// `is_line`.
pub(super) fn print_error(
    failed: &CommandError,
    input: &Path,
    is_line: bool,
    out: &mut impl Write,
) -> Result<()> {
    let report = ErrorReport::new(failed, input);
    match serde_json::to_string(&report) {
        Ok(line) if is_line => Ok(writeln!(out, "{line}")?),
        _ => print_json(&report, out),
    }
}

/// Prints the number of tensors that are not encoded for each reason, the most frequent reason
/// first; if `verbose`, also their names. Prints nothing if all are encoded, or if the conversion
/// does not encode.
pub(super) fn print_kept(report: &Report, verbose: bool, out: &mut impl Write) {
    if report.kept.is_empty() {
        return;
    }
    print_line(out, format_args!("As they are: {}", counted(report.kept.len(), "tensor")));
    for (reason, names) in by_reason(report) {
        let (n, reason) = (names.len(), printable(reason));
        print_line(out, format_args!("{n:>7} {reason}"));
        for name in names.iter().filter(|_| verbose) {
            print_line(out, format_args!("          {}", printable(name)));
        }
    }
}

/// The reasons why tensors are not encoded, each with the tensors' names, the most frequent first.
pub(super) fn by_reason(report: &Report) -> Vec<(&str, Vec<&str>)> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for tensor in &report.kept {
        let names = reasons.entry(&tensor.reason).or_default();
        names.push(&tensor.name);
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, names)| Reverse(names.len()));
    reasons
}

/// Prints the error that encoding introduced.
pub(super) fn print_distance(report: &Report, out: &mut impl Write) {
    let Some(distance) = &report.distance else {
        return;
    };
    let Errors { mean_absolute, rmse, maximum, relative, cosine, outputs, .. } = distance.all;
    let percent = relative * 100.0;
    print_line(
        out,
        format_args!("Lethe distance: {} mean absolute error", format_error(mean_absolute)),
    );
    print_line(
        out,
        format_args!(
            "  RMSE {} ({percent:.2} %), cosine {cosine:.5}, maximum {}",
            format_error(rmse),
            format_error(maximum)
        ),
    );
    if let Some(outputs) = outputs {
        let percent = outputs * 100.0;
        print_line(out, format_args!("  of outputs, by the importance matrix: {percent:.2} %"));
    }
    for worst in &distance.worst {
        let Errors { mean_absolute, rmse, maximum, relative, outputs, .. } = worst.errors;
        let (mean, rmse, maximum, percent) = (
            format_error(mean_absolute),
            format_error(rmse),
            format_error(maximum),
            outputs.unwrap_or(relative) * 100.0,
        );
        let name = printable(&worst.name);
        print_line(
            out,
            format_args!("  {percent:>6.2} %  mean {mean}, RMSE {rmse}, maximum {maximum}  {name}"),
        );
    }
}

/// Writes the error of each encoded tensor as a line of CSV, behind a line of titles. Codes that were
/// moved undecoded have none.
pub(super) fn write_errors_as_csv(report: &Report, out: &mut impl Write) -> Result<()> {
    let tensors = report
        .distance
        .iter()
        .flat_map(|distance| &distance.tensors);
    let errors: HashMap<&str, &Errors> = tensors.map(|t| (&*t.name, &t.errors)).collect();
    writeln!(out, "name,scheme,values,mean_absolute,rmse,maximum,relative,cosine,outputs")?;
    for tensor in &report.encoded {
        let (name, scheme) = (csv_text(&tensor.name), csv_text(&tensor.scheme));
        let figures = errors
            .get(&*tensor.name)
            .map_or(",,,,,,".to_owned(), |errors| {
                let Errors { values, mean_absolute, rmse, maximum, relative, cosine, outputs, .. } =
                    errors;
                let outputs = outputs.map_or(String::new(), |outputs| format!("{outputs:e}"));
                format!("{values},{mean_absolute:e},{rmse:e},{maximum:e},{relative:e},{cosine},{outputs}")
            });
        writeln!(out, "{name},{scheme},{figures}")?;
    }
    Ok(())
}

/// A text as CSV quotes it.
pub(super) fn csv_text(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Formats an error with four decimals, or with an exponent if it is small.
fn format_error(x: f64) -> String {
    if x == 0.0 || x >= 1e-3 {
        format!("{x:.4}")
    } else {
        format!("{x:.1e}")
    }
}

/// Most characters of a value that a line shows.
const MOST_CHARS: usize = 120;

/// Most items of an array that a line shows.
const MOST_ITEMS: usize = 4;

/// `value` in one line: the first items of an array, the first characters of a text.
pub(super) fn short_value(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.len() > MOST_ITEMS => {
            let first: Vec<_> = items[..MOST_ITEMS].iter().map(short_value).collect();
            return format!("[{}, …] ({} items)", first.join(", "), items.len());
        }
        other => other.to_string(),
    };
    match text.chars().count() {
        n if n > MOST_CHARS => {
            let head: String = text.chars().take(MOST_CHARS).collect();
            format!("{}… ({n} characters)", printable(&head))
        }
        _ => printable(&text),
    }
}
