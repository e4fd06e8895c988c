//! The command line: arguments, listings, progress, and exit codes.

mod args;
mod batch;
mod check;
mod convert;
mod diff;
mod documents;
mod edit;
mod finish;
mod forget;
mod html;
mod input;
mod inspect;
mod listing;
mod logger;
mod ls;
mod merge;
mod option_checks;
mod outcome;
mod outputs;
mod paint;
mod plan;
mod printed;
mod progress;
mod report;
mod sarif;
mod scan;
mod show;
mod signals;
mod sums;
mod table;
mod tensor_types;
mod way_out;
mod write;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use self::args::{Args, Command, ProgressMode, hints, short_help};
use crate::AnamnesisError;
use crate::error::printable;
use crate::hooks::end_process_at_panic;

/// Runs the program with the arguments of this process. Results go to stdout, progress and errors
/// to stderr.
///
/// Exit codes: 0 success, 1 something was found (`scan`, `diff`, `check`), 2 usage, 3 malformed
/// input, 4 limit, 5 refused pickle global, 6 unsupported, 7 I/O, 8 something dangerous was found,
/// 130 interrupted.
pub fn run() -> ExitCode {
    end_process_at_panic();
    signals::survive_file_size_limit();
    let args = parse_arguments();
    if args
        .command
        .messages()
        .is_some_and(|messages| messages.verbose)
    {
        logger::print_records();
    }
    let mut out = std::io::stdout().lock();
    let input = args.command.input();
    let first_input = input.as_ref().map(|input| input.path.to_path_buf());
    let json_input = input.as_ref().filter(|input| input.json);
    let json_input = json_input.map(|input| input.path.to_path_buf());
    let only_input = input.filter(|input| input.is_only);
    let only_input = only_input.map(|input| input.path.to_path_buf());
    let reading = args.command.reading();
    let is_line = reading.is_some_and(|read| read.progress == ProgressMode::Json);
    let result = run_command(args.command, &mut out);
    match result.and_then(|code| Ok(out.flush().map(|()| code)?)) {
        Ok(code) => ExitCode::from(code),
        // The reader of a pipe, such as `head`, has closed it. That is no failure.
        Err(CommandError { error: AnamnesisError::Io(e), .. })
            if e.kind() == ErrorKind::BrokenPipe =>
        {
            ExitCode::SUCCESS
        }
        Err(mut failed) => {
            let path = failed.model.as_deref().or(first_input.as_deref());
            let way_out = path.and_then(|path| way_out::of_global(&failed.error, path));
            failed.advice = failed.advice.or(way_out);
            let mut stderr = std::io::stderr();
            let _ = match json_input {
                Some(input) => printed::print_error(&failed, &input, is_line, &mut stderr),
                None => print_error(&failed, only_input.as_deref(), &mut stderr),
            };
            ExitCode::from(exit_code(&failed.error))
        }
    }
}

/// The arguments of this process. Wrong ones end it.
fn parse_arguments() -> Args {
    let mut program = Args::command();
    let given = hints::meant(&program, std::env::args_os().collect());
    let matches = program.try_get_matches_from_mut(&given);
    let matches = matches.unwrap_or_else(|error| {
        if let Some(what) = hints::hint(&given, &error) {
            refuse(&mut program, given.get(1), error.kind(), what);
        }
        let is_help = error.kind() == clap::error::ErrorKind::DisplayHelp;
        let short = is_help
            .then(|| short_help::asked(&program, &given))
            .flatten();
        match short.map(|mut command| command.print_help()) {
            Some(Ok(())) => std::process::exit(0),
            _ => error.exit(),
        }
    });
    let mut args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    args.command.join_shards();
    if let Err(what) = option_checks::check(&args.command) {
        let kind = clap::error::ErrorKind::ArgumentConflict;
        refuse(&mut program, given.get(1), kind, what);
    }
    args
}

/// Ends the process with an error about its arguments and the usage of `command`.
fn refuse(
    program: &mut clap::Command,
    command: Option<&OsString>,
    kind: clap::error::ErrorKind,
    what: impl std::fmt::Display,
) -> ! {
    let command = command.and_then(|name| name.to_str());
    match command.and_then(|name| program.find_subcommand_mut(name)) {
        Some(command) => command.error(kind, what).exit(),
        None => program.error(kind, what).exit(),
    }
}

/// An error of a command.
struct CommandError {
    error: AnamnesisError,
    /// The model at fault, of a command that reads several.
    model: Option<PathBuf>,
    /// What the user can do now.
    advice: Option<String>,
}

type CommandResult<T = ()> = Result<T, CommandError>;

impl CommandError {
    /// An error about the model at `path`, which is one of several.
    fn of_model(path: &Path, error: AnamnesisError) -> Self {
        Self { error, model: Some(path.to_path_buf()), advice: None }
    }

    /// The same error, about the model at `path`, which is one of several.
    fn about_model(self, path: &Path) -> Self {
        Self { model: Some(path.to_path_buf()), ..self }
    }
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.advice {
            Some(advice) => write!(f, "{}; {advice}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl<E: Into<AnamnesisError>> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self { error: error.into(), model: None, advice: None }
    }
}

/// Runs a command and returns the exit code.
fn run_command(command: Command, out: &mut impl Write) -> CommandResult<u8> {
    match command {
        Command::Parse(args) => inspect::parse(&args, out)?,
        Command::Ls(args) => ls::ls(&args, out)?,
        Command::Show(args) => show::show(&args, out)?,
        Command::Scan(args) => return scan::scan(&args, out),
        Command::Inspect(args) => inspect::inspect(&args, out)?,
        Command::Remember(args) => convert::remember(&args, out)?,
        Command::Forget(args) => forget::forget(&args, out)?,
        Command::Convert(args) => convert::convert(&args, out)?,
        Command::Merge(args) => merge::merge(&args, out)?,
        Command::Edit(args) => edit::edit(&args, out)?,
        Command::Completions(args) => documents::completions(&args, out)?,
        Command::Man(args) => documents::man(&args, out)?,
        Command::Check(args) => return check::check(&args, out).map(u8::from),
        Command::Diff(args) => return diff::diff(&args, out).map(u8::from),
        Command::Report(args) => report::report(&args, out)?,
    }
    Ok(0)
}

/// Prints an error as a line of text. It begins with the path of the model at fault, or of `input`
/// if that is the only model, unless the message names the file itself.
fn print_error(
    failed: &CommandError,
    input: Option<&Path>,
    out: &mut impl Write,
) -> crate::Result<()> {
    // An interruption and a wrong option are no faults of the model, and an I/O error may be about
    // the output.
    let is_about_input = !matches!(
        failed.error,
        AnamnesisError::Io(_) | AnamnesisError::Cancelled | AnamnesisError::Usage { .. }
    );
    let model = failed.model.as_deref().or(input.filter(|_| is_about_input));
    match model.filter(|_| failed.error.file().is_none()) {
        Some(model) => writeln!(out, "error: {}: {failed}", printable(&model.to_string_lossy()))?,
        None => writeln!(out, "error: {failed}")?,
    }
    Ok(())
}

/// The exit codes that tell scripts who is to blame.
const EXIT_CODES: [(crate::ErrorKind, u8); 7] = [
    (crate::ErrorKind::Usage, 2),
    (crate::ErrorKind::Parse, 3),
    (crate::ErrorKind::LimitExceeded, 4),
    (crate::ErrorKind::DisallowedGlobal, 5),
    (crate::ErrorKind::Unsupported, 6),
    (crate::ErrorKind::Io, 7),
    (crate::ErrorKind::Cancelled, 130),
];

/// The exit code of an error; of a kind that is not in the table, that of what is unsupported.
fn exit_code(error: &AnamnesisError) -> u8 {
    let row = EXIT_CODES.iter().find(|(kind, _)| *kind == error.kind());
    row.map_or(6, |(_, code)| *code)
}
