//! `amn remember OUT --finish`: gives a directory that was made in parts its name.

use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::CommandResult;
use super::args::RunArgs;
use super::printed::print_line;
use super::sums::SideOutput;
use super::write::settle;
use super::{signals, sums};
use crate::error::printable;
use crate::hooks::{DirectoryInParts, directory_of};
use crate::{AnamnesisError, CancelToken, Result};

/// Gives the directory `output` its name, now that all its parts are made, and prints the sums that
/// the options ask for. That it has its name already is no error.
pub(super) fn finish(output: &Path, args: &RunArgs, out: &mut impl Write) -> CommandResult {
    let (is_quiet, force) = (args.read.messages.quiet, args.output.force);
    refuse_unfinished_name(output)?;
    if let Some(manifest) = &args.output.manifest {
        sums::check_place(SideOutput::manifest(manifest), output, &[], None, force)?;
    }
    let directory = DirectoryInParts(output);
    let note = match () {
        () if settle(output, is_quiet)? => None,
        () if directory.is_begun()? => directory.finish(force)?,
        () => {
            require_finished(output)?;
            Some("it has its name already, and no part of it is left to be finished".to_owned())
        }
    };
    if !is_quiet {
        if let Some(note) = note {
            print_line(out, format_args!("Note: {}", printable(&note)));
        }
        let path = printable(&output.to_string_lossy());
        print_line(out, format_args!("Output: {path}"));
    }
    if args.output.hashes() {
        let cancel = CancelToken::new();
        signals::cancel_at_termination(&cancel)?;
        let sums = directory.sums(&cancel)?;
        if let Some(manifest) = &args.output.manifest {
            sums::write(manifest, &sums, None, force)?;
        }
        if args.output.sha256 {
            sums::print(&sums, out);
        }
    }
    Ok(())
}

/// Refuses the name of a hidden directory of parts. It looks like an output whose last steps were
/// interrupted, and settling that would remove the records of its parts.
///
/// # Errors
/// `Io` with the name that is expected.
fn refuse_unfinished_name(output: &Path) -> Result<()> {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let expected = name
        .strip_prefix('.')
        .and_then(|name| name.strip_suffix(".partial"));
    expected.map_or(Ok(()), |expected| {
        let what = format!("--finish takes the name that the output is to have: `{expected}`");
        let error = Error::new(ErrorKind::InvalidInput, what);
        Err(AnamnesisError::io_at(output, &error))
    })
}

/// Fails unless `output`, of which no part is there, is a directory that can have been finished
/// before.
///
/// # Errors
/// `Io` that says what was expected: the output is missing, or is the input of a conversion whose
/// output is not finished.
fn require_finished(output: &Path) -> Result<()> {
    let refuse =
        |kind: ErrorKind, what: &str| Err(AnamnesisError::io_at(output, &Error::new(kind, what)));
    if let Some(expected) = output_of_input(output) {
        let (expected, command) = (expected.display(), "amn remember");
        let what = format!(
            "it is the input, and --finish takes the output: {command} {expected} --finish"
        );
        return refuse(ErrorKind::InvalidInput, &what);
    }
    let Ok(there) = output.metadata() else {
        let what = format!(
            "there is nothing to finish: neither this nor its parts in `.{}.partial`; --finish takes the output \
             that the parts were made for",
            output.file_name().unwrap_or_default().to_string_lossy()
        );
        return refuse(ErrorKind::NotFound, &what);
    };
    let has_weights = there.is_dir() && {
        let entries = std::fs::read_dir(output).map_err(|e| AnamnesisError::io_at(output, &e))?;
        let mut names = entries.flatten().map(|entry| entry.file_name());
        names.any(|name| {
            Path::new(&name)
                .extension()
                .is_some_and(|e| e == "safetensors")
        })
    };
    match has_weights {
        true => Ok(()),
        false => refuse(
            ErrorKind::InvalidInput,
            "there is nothing to finish, and it is no output of parts",
        ),
    }
}

/// The output of an unfinished conversion of `input`, beside it or in the current directory.
fn output_of_input(input: &Path) -> Option<PathBuf> {
    let beside = directory_of(input);
    for directory in [beside, Path::new(".")] {
        let entries = std::fs::read_dir(directory).ok()?.flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let output = name
                .strip_prefix('.')
                .and_then(|name| name.strip_suffix(".partial"));
            let output = output.map(|output| match directory == Path::new(".") {
                true => PathBuf::from(output),
                false => directory.join(output),
            });
            if let Some(output) = output.filter(|output| DirectoryInParts(output).is_made_of(input))
            {
                return Some(output);
            }
        }
    }
    None
}
