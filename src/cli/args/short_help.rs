//! What `-h` prints of a command: the options that are used most, a line or two for each. `--help` has
//! all.

use std::ffi::OsString;

/// Options that `-h` names.
const COMMON: &[&str] = &[
    "bins",
    "data",
    "dry_run",
    "exclude",
    "force",
    "globals",
    "help",
    "html",
    "imatrix",
    "in_place",
    "include",
    "json",
    "list",
    "meta",
    "no_values",
    "npy",
    "output",
    "quiet",
    "recursive",
    "root",
    "set",
    "slice",
    "sort",
    "stored",
    "threads",
    "to",
    "tolerance",
    "top",
    "tree",
    "unset",
    "values_only",
    "verbose",
];

/// The command of `program` with the options of its short help, if `args` ask for that.
pub(in super::super) fn asked(program: &clap::Command, args: &[OsString]) -> Option<clap::Command> {
    let is_short = args.iter().any(|arg| arg == "-h") && !args.iter().any(|arg| arg == "--help");
    let command = program.find_subcommand(args.get(1)?)?;
    is_short.then(|| short(command))
}

fn short(command: &clap::Command) -> clap::Command {
    let mut hidden = 0;
    let name = command
        .get_bin_name()
        .unwrap_or(command.get_name())
        .to_owned();
    let short = command.clone().mut_args(|arg| {
        let is_shown = arg.is_positional() || COMMON.contains(&arg.get_id().as_str());
        hidden += usize::from(!is_shown);
        let help = arg
            .get_help()
            .map(|help| first_clause(&help.to_string()).to_owned());
        arg.help_heading(None)
            .help(help.unwrap_or_default())
            .hide(!is_shown)
    });
    let examples = short
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    match hidden {
        0 => short,
        n => short.after_help(format!("{examples}\n\n{name} --help has {n} more options.")),
    }
}

/// What a help says before it goes into particulars.
fn first_clause(help: &str) -> &str {
    let help = help.split("; ").next().unwrap_or(help);
    help.split(" [default").next().unwrap_or(help)
}
