//! `amn completions` and `amn man`: what is made from the definitions of commands and options.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use super::args::{Args, CompletionsArgs, ManArgs};
use crate::{AnamnesisError, Result};

/// Name under which the program was started: there are two for the same program.
fn program() -> &'static str {
    let path = std::env::args_os().next().map(std::path::PathBuf::from);
    let stem = path.as_ref().and_then(|path| path.file_stem());
    match stem.is_some_and(|stem| stem == "anamnesis") {
        true => "anamnesis",
        false => "amn",
    }
}

/// What bash completes beside commands and options: names of tensors and of models.
const BASH_VALUES: &str = include_str!("documents/values.bash");

/// Prints the script that completes commands and options in a shell.
pub(super) fn completions(args: &CompletionsArgs, out: &mut impl Write) -> Result<()> {
    // In memory, because the generator panics where a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), program(), &mut script);
    if args.shell == Shell::Bash {
        script.extend(BASH_VALUES.replace("PROGRAM", program()).as_bytes());
    }
    Ok(out.write_all(&script)?)
}

/// Prints a manual page.
pub(super) fn man(args: &ManArgs, out: &mut impl Write) -> Result<()> {
    let mut all = Args::command().name(program()).bin_name(program());
    all.build();
    let page = match &args.command {
        None => all,
        Some(name) => {
            let Some(command) = all.find_subcommand(name) else {
                let what = format!("there is no command `{name}`; `amn help` lists them");
                return Err(AnamnesisError::usage(what));
            };
            // `build` has called it `amn-ls`.
            command.clone()
        }
    };
    Ok(clap_mangen::Man::new(page).render(out)?)
}
