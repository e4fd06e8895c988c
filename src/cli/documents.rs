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

/// The same for fish.
const FISH_VALUES: &str = include_str!("documents/values.fish");

/// Functions for zsh, which the script of [`with_names`] calls.
const ZSH_VALUES: &str = include_str!("documents/values.zsh");

/// Prints the script that completes commands and options in a shell.
pub(super) fn completions(args: &CompletionsArgs, out: &mut impl Write) -> Result<()> {
    // In memory, because the generator panics where a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), program(), &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match args.shell {
        Shell::Bash => script.push_str(&of_program(BASH_VALUES)),
        Shell::Fish => script.push_str(&of_program(FISH_VALUES)),
        Shell::Zsh => script = with_names(&script),
        _ => {}
    }
    Ok(out.write_all(script.as_bytes())?)
}

/// `text`, in which functions and commands have the program's name.
fn of_program(text: &str) -> String {
    text.replace("PROGRAM", program())
}

/// The script for zsh, which says of each argument what completes it, with names of tensors and of
/// models.
fn with_names(script: &str) -> String {
    let [models, tensors] = [":_PROGRAM_models'", ":_PROGRAM_tensors'"].map(of_program);
    let mut out = String::new();
    for line in script.lines() {
        let are_tensors = ["'*::tensors ", "'*::patterns "];
        let named = if line.contains("ORG/MODEL") {
            line.replace(":_files'", &models)
        } else if line.contains(":GLOB:") || are_tensors.iter().any(|are| line.starts_with(are)) {
            line.replace(":_default'", &tensors)
        } else {
            line.to_owned()
        };
        out += &named;
        out.push('\n');
        // The first line says whose script it is.
        if line.starts_with("#compdef") {
            out += &of_program(ZSH_VALUES);
        }
    }
    out
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
