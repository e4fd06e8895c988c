//! What the program prints of a finished conversion.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;

use crate::error::printable;
use crate::{AnamnesisError, Errors, Report, Result};

/// Prints a line and ignores errors: the conversion goes on even if the reader of a pipe has closed it.
pub(super) fn print_line(out: &mut impl Write, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Prints a report as JSON.
pub(super) fn print_as_json(report: &impl serde::Serialize, out: &mut impl Write) -> Result<()> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|e| AnamnesisError::Io(std::io::Error::other(e)))?;
    writeln!(out, "{text}")?;
    Ok(())
}

/// Prints the number of tensors that are not encoded for each reason, the most frequent reason first; if `verbose`, also their
/// names. Prints nothing if all are encoded, or if the conversion does not encode.
pub(super) fn print_kept(report: &Report, verbose: bool, out: &mut impl Write) {
    if report.kept.is_empty() {
        return;
    }
    print_line(
        out,
        format_args!("As they are: {} tensors", report.kept.len()),
    );
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
    let Errors {
        mean_absolute,
        rmse,
        maximum,
        relative,
        ..
    } = distance.all;
    let percent = relative * 100.0;
    print_line(
        out,
        format_args!(
            "Lethe distance: {} mean absolute error",
            format_error(mean_absolute)
        ),
    );
    print_line(
        out,
        format_args!(
            "  RMSE {} ({percent:.2} %), maximum {}",
            format_error(rmse),
            format_error(maximum)
        ),
    );
    for worst in &distance.worst {
        let Errors {
            mean_absolute,
            rmse,
            maximum,
            relative,
            ..
        } = worst.errors;
        let (mean, rmse, maximum, percent) = (
            format_error(mean_absolute),
            format_error(rmse),
            format_error(maximum),
            relative * 100.0,
        );
        let name = printable(&worst.name);
        print_line(
            out,
            format_args!("  {percent:>6.2} %  mean {mean}, RMSE {rmse}, maximum {maximum}  {name}"),
        );
    }
}

/// Formats an error with four decimals, or with an exponent if it is small.
fn format_error(x: f64) -> String {
    if x == 0.0 || x >= 1e-3 {
        format!("{x:.4}")
    } else {
        format!("{x:.1e}")
    }
}
