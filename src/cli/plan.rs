//! What `--dry-run` prints, and what was found in the input.

use std::io::Write;
use std::path::Path;

use super::input;
use crate::error::printable;
use crate::{QuantScheme, Report, Result, format_bytes};

/// Prints the plan: the tensors by what becomes of them, the output, its memory and the free space.
pub(super) fn print_plan(
    input: &input::NamedModel,
    recovery: &crate::Recovery<'_>,
    report: &Report,
    output: &Path,
    out: &mut impl Write,
) -> Result<()> {
    let free = crate::source::platform::available_space(
        crate::containers::write::atomic::directory_of(output),
    );
    writeln!(out, "{}", parsing_line(input, report))?;
    if report.encoded.is_empty() {
        writeln!(
            out,
            "Decoded:     {} tensors to {}",
            report.recovered(),
            report.to
        )?;
    } else {
        writeln!(out, "Encoded:     {} tensors", report.encoded.len())?;
        for tensor in &report.encoded {
            writeln!(out, "  {}  {}", printable(&tensor.name), tensor.scheme)?;
        }
    }
    if report.cast > 0 {
        writeln!(out, "Cast:        {} tensors", report.cast)?;
    }
    writeln!(out, "As they are: {} tensors", report.passthrough)?;
    for tensor in &report.kept {
        writeln!(
            out,
            "  {}  {}",
            printable(&tensor.name),
            printable(&tensor.reason)
        )?;
    }
    writeln!(out, "Left out:    {} tensors", report.dropped.len())?;
    for note in &report.notes {
        writeln!(out, "Note:        {}", printable(note))?;
    }
    let files = recovery.paths(output).len();
    let path = printable(&output.to_string_lossy());
    writeln!(
        out,
        "Output:      {path} ({}, files of weights: {files})",
        format_bytes(report.output_bytes)
    )?;
    writeln!(
        out,
        "Memory:      at most {}",
        format_bytes(recovery.peak_memory())
    )?;
    writeln!(
        out,
        "Free space:  {}",
        free.map_or("unknown".to_owned(), format_bytes)
    )?;
    Ok(())
}

/// The line that says what was found in the input.
pub(super) fn parsing_line(input: &input::NamedModel, report: &Report) -> String {
    format!(
        "Parsing...   {} tensors, {}",
        input.model.tensors().len(),
        schemes(input, report)
    )
}

/// The schemes of a report: a single one as a phrase, several as lines with their counts.
fn schemes(input: &input::NamedModel, report: &Report) -> String {
    match report.schemes.as_slice() {
        [] if input.model.tensors().any(|t| t.dtype().is_ggml_block()) => {
            "GGUF, copied as it is".to_owned()
        }
        [] => QuantScheme::Unquantized.phrase(),
        [only] => only.scheme.phrase(),
        several => {
            let each = several
                .iter()
                .map(|s| format!("\n{:>15} {}", s.tensors, s.scheme.phrase()));
            format!("{} schemes{}", several.len(), each.collect::<String>())
        }
    }
}
