//! The command line: arguments, listings, progress, and exit codes.

mod applies;
mod args;
mod check;
mod convert;
mod diff;
mod documents;
mod forget;
mod input;
mod inspect;
mod listing;
mod ls;
mod plan;
mod progress;
mod report;
mod scan;
mod show;
mod signals;
mod table;
mod write;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use self::args::{Args, Command};
use crate::AnamnesisError;
use crate::error::printable;

/// Runs the program with the arguments of this process. Results go to stdout, progress and errors to stderr.
///
/// Exit codes: 0 success, 1 something was found (`scan`, `diff`, `check`), 2 usage, 3 malformed input, 4 limit, 5 refused pickle
/// global, 6 unsupported, 7 I/O, 8 something dangerous was found, 130 interrupted.
pub fn run() -> ExitCode {
    signals::survive_file_size_limit();
    let args = Args::parse();
    if let Err(what) = applies::check(&args.command) {
        let mut program = Args::command();
        program
            .error(clap::error::ErrorKind::ArgumentConflict, what)
            .exit();
    }
    let mut out = std::io::stdout().lock();
    let json_input = args.command.json_input().map(Path::to_path_buf);
    let result = run_command(args.command, &mut out);
    match result.and_then(|code| Ok(out.flush().map(|()| code)?)) {
        Ok(code) => ExitCode::from(code),
        // The reader of a pipe, such as `head`, has closed it. That is no failure.
        Err(CommandError {
            error: AnamnesisError::Io(e),
            ..
        }) if e.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(CommandError { error, model }) => {
            let mut stderr = std::io::stderr();
            let _ = match (json_input, model) {
                (Some(input), model) => {
                    report::print_error(&error, &model.unwrap_or(input), &mut stderr)
                }
                (None, model) => print_error(&error, model.as_deref(), &mut stderr),
            };
            ExitCode::from(exit_code(&error))
        }
    }
}

/// An error of a command.
struct CommandError {
    error: AnamnesisError,
    /// The model at fault, of a command that reads several.
    model: Option<PathBuf>,
}

impl CommandError {
    /// An error about the model at `path`, which is one of several.
    fn of_model(path: &Path, error: AnamnesisError) -> Self {
        Self {
            error,
            model: Some(path.to_path_buf()),
        }
    }
}

impl<E: Into<AnamnesisError>> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            model: None,
        }
    }
}

/// Runs a command and returns the exit code.
fn run_command(command: Command, out: &mut impl Write) -> Result<u8, CommandError> {
    match command {
        Command::Parse(args) => inspect::parse(&args, out)?,
        Command::Ls(args) => ls::ls(&args, out)?,
        Command::Show(args) => show::show(&args, out)?,
        Command::Scan(args) => return Ok(scan::scan(&args, out)?),
        Command::Inspect(args) => inspect::inspect(&args, out)?,
        Command::Remember(args) => convert::remember(&args, out)?,
        Command::Forget(args) => forget::forget(&args, out)?,
        Command::Convert(args) => convert::convert(&args, out)?,
        Command::Completions(args) => documents::completions(&args, out)?,
        Command::Man(args) => documents::man(&args, out)?,
        Command::Check(args) => return check::check(&args, out).map(u8::from),
        Command::Diff(args) => return diff::diff(&args, out).map(u8::from),
    }
    Ok(0)
}

/// Prints an error as a line of text. It begins with the path of the model at fault, unless the message names that file itself.
fn print_error(
    error: &AnamnesisError,
    model: Option<&Path>,
    out: &mut impl Write,
) -> crate::Result<()> {
    match model.filter(|_| error.file().is_none()) {
        Some(model) => writeln!(
            out,
            "error: {}: {error}",
            printable(&model.to_string_lossy())
        )?,
        None => writeln!(out, "error: {error}")?,
    }
    Ok(())
}

/// The exit code that tells scripts who is to blame.
fn exit_code(error: &AnamnesisError) -> u8 {
    match error {
        AnamnesisError::Parse { .. } => 3,
        AnamnesisError::LimitExceeded { .. } => 4,
        AnamnesisError::DisallowedGlobal { .. } => 5,
        AnamnesisError::Unsupported { .. } => 6,
        AnamnesisError::Io(_) => 7,
        AnamnesisError::Cancelled => 130,
    }
}
