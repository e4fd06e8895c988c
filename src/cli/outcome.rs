//! What is said of a conversion that has ended, and of one that cannot begin.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::CommandError;
use super::printed::{by_reason, print_line};
use crate::error::{counted, printable};
use crate::{AnamnesisError, Conversion, Kept, Report, format_bytes};

/// Prints the files that were written: their directory, or each of them.
pub(super) fn print_outputs(
    conversion: &Conversion<'_>,
    output: &Path,
    report: &Report,
    out: &mut impl Write,
) {
    let paths = conversion.written_paths(output);
    let len = |path: &PathBuf| path.metadata().map_or(0, |there| there.len());
    let line = |out: &mut _, path: &Path, what: &str| {
        let path = printable(&path.to_string_lossy());
        print_line(out, format_args!("Output: {path} ({what})"));
    };
    let all = conversion.paths(output).len();
    match paths.first().and_then(|path| path.parent()) {
        Some(unfinished) if conversion.is_directory() && unfinished != output => {
            let size = format_bytes(paths.iter().map(len).sum());
            let what = format!("{} of {} of weights, {size}", paths.len(), counted(all, "file"));
            line(out, unfinished, &what);
        }
        _ if conversion.is_directory() => {
            let size = format_bytes(report.output_bytes);
            line(out, output, &format!("{} of weights, {size}", counted(all, "file")));
        }
        _ => {
            for path in &paths {
                let bytes = match paths.len() {
                    1 => report.output_bytes,
                    _ => len(path),
                };
                line(out, path, &format_bytes(bytes));
            }
        }
    }
}

/// Adds to an error of an interrupted conversion what is left of it.
pub(super) fn with_advice(
    error: AnamnesisError,
    conversion: &Conversion<'_>,
    output: &Path,
) -> CommandError {
    let mut failed = CommandError::from(error);
    if matches!(failed.error, AnamnesisError::Cancelled) {
        let unfinished = conversion.unfinished(output);
        failed.advice = Some(match unfinished {
            Some((path, finished)) => format!(
                "`{}` has {} of {} files of weights; the same command with --resume makes the others",
                printable(&path.to_string_lossy()),
                finished,
                conversion.paths(output).len()
            ),
            None => "nothing of the output is left".to_owned(),
        });
    }
    failed
}

/// An error of writing to stdout. A pipe that is closed ends listings quietly, but here the output
/// is not complete.
pub(super) fn not_quietly(error: AnamnesisError) -> AnamnesisError {
    match error {
        AnamnesisError::Io(e) if e.kind() == ErrorKind::BrokenPipe => {
            let what = "stdout was closed before the whole output was written";
            AnamnesisError::Io(std::io::Error::other(what))
        }
        error => error,
    }
}

/// The note that floats which are not quantized keep their types; `None` if there are none but of
/// the type that was asked for.
pub(super) fn kept_note(report: &Report) -> Option<String> {
    let kept = report.kept_floats();
    let n: usize = kept.iter().map(|(_, n)| n).sum();
    let each: Vec<String> = kept
        .iter()
        .map(|(dtype, n)| format!("{n} {dtype}"))
        .collect();
    let each = each.join(", ");
    (n > 0).then(|| {
        let tensors = counted(n, "tensor");
        format!(
            "not quantized, and of the same type as before: {tensors} ({each}); --cast converts them"
        )
    })
}

/// Whether tensors have the types of a GGUF file type already, so that the output is a copy, as
/// `llama-quantize` makes it.
pub(super) fn is_copied(report: &Report) -> bool {
    report.kept.iter().any(Kept::has_type_already)
}

/// The error that no tensor can be encoded to `scheme`, with the reasons.
pub(super) fn nothing_encoded(scheme: &str, report: &Report) -> AnamnesisError {
    let reasons = by_reason(report).into_iter();
    let reasons = reasons.map(|(reason, names)| format!("{}: {reason}", names.len()));
    let what = match reasons.collect::<Vec<_>>().as_slice() {
        [] => "the model has no tensors".to_owned(),
        reasons => format!("no tensor can be encoded to it ({})", reasons.join("; ")),
    };
    AnamnesisError::unsupported(scheme, what)
}
