//! The command line: arguments, listings, progress, and exit codes.

mod args;
mod check;
mod convert;
mod diff;
mod forget;
mod input;
mod inspect;
mod listing;
mod progress;
mod report;
mod signals;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;

use self::args::{Args, Command};
use crate::AnamnesisError;

/// Runs the program with the arguments of this process. Results go to stdout, progress and errors to stderr.
///
/// Exit codes: 0 success, 1 models that differ or have findings, 2 usage, 3 malformed input, 4 limit, 5 refused pickle
/// global, 6 unsupported, 7 I/O, 130 interrupted.
pub fn run() -> ExitCode {
    signals::survive_file_size_limit();
    let args = Args::parse();
    let mut out = std::io::stdout().lock();
    let mut has_findings = false;
    let result = match args.command {
        Command::Parse(args) => inspect::parse(&args, &mut out),
        Command::Inspect(args) => inspect::inspect(&args, &mut out),
        Command::Remember(args) => convert::remember(&args, &mut out),
        Command::Forget(args) => forget::forget(&args, &mut out),
        Command::Convert(args) => convert::convert(&args, &mut out),
        Command::Check(args) => check::check(&args, &mut out).map(|found| has_findings = found),
        Command::Diff(args) => diff::diff(&args, &mut out).map(|found| has_findings = found),
    };
    match result.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::from(u8::from(has_findings)),
        // The reader of a pipe, such as `head`, has closed it. That is no failure.
        Err(AnamnesisError::Io(e)) if e.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(exit_code(&error))
        }
    }
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
