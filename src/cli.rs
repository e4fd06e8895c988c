//! The command line: arguments, listings, progress, and exit codes.

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
mod progress;
mod report;
mod scan;
mod show;
mod signals;
mod table;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;

use self::args::{Args, Command};
use crate::AnamnesisError;

/// Runs the program with the arguments of this process. Results go to stdout, progress and errors to stderr.
///
/// Exit codes: 0 success, 1 something was found (`scan`, `diff`, `check`), 2 usage, 3 malformed input, 4 limit, 5 refused pickle
/// global, 6 unsupported, 7 I/O, 8 something dangerous was found, 130 interrupted.
pub fn run() -> ExitCode {
    signals::survive_file_size_limit();
    let args = Args::parse();
    let mut out = std::io::stdout().lock();
    let json_input = args.command.json_input().map(std::path::Path::to_path_buf);
    let mut code = 0;
    let result = match args.command {
        Command::Parse(args) => inspect::parse(&args, &mut out),
        Command::Ls(args) => ls::ls(&args, &mut out),
        Command::Show(args) => show::show(&args, &mut out),
        Command::Scan(args) => scan::scan(&args, &mut out).map(|found| code = found),
        Command::Inspect(args) => inspect::inspect(&args, &mut out),
        Command::Remember(args) => convert::remember(&args, &mut out),
        Command::Forget(args) => forget::forget(&args, &mut out),
        Command::Convert(args) => convert::convert(&args, &mut out),
        Command::Completions(args) => documents::completions(&args, &mut out),
        Command::Man(args) => documents::man(&args, &mut out),
        Command::Check(args) => check::check(&args, &mut out).map(|found| code = found.into()),
        Command::Diff(args) => diff::diff(&args, &mut out).map(|found| code = found.into()),
    };
    match result.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::from(code),
        // The reader of a pipe, such as `head`, has closed it. That is no failure.
        Err(AnamnesisError::Io(e)) if e.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = match json_input {
                Some(input) => report::print_error(&error, &input, &mut std::io::stderr()),
                None => writeln!(std::io::stderr(), "error: {error}").map_err(AnamnesisError::Io),
            };
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
