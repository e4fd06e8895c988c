//! `amn edit`: metadata of GGUF and safetensors files, and fields of `config.json`.

use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::args::EditArgs;
use super::option_checks::read_text;
use super::outputs::require_outside_cache;
use super::printed::{print_json, short_value};
use super::{CommandError, CommandResult, signals};
use crate::error::printable;
use crate::hooks::NamedInput;
use crate::{
    AnamnesisError, EditOptions, EditReport, EditWritten, KeyChange, KeyValue, Result, format_bytes,
};

/// Edits a model and prints what has changed.
pub(super) fn edit(args: &EditArgs, out: &mut impl Write) -> CommandResult {
    let options = options(args)?;
    let path = NamedInput::find(&args.model)?.path;
    require_place(&path, &options)?;
    signals::cancel_at_termination(&options.cancel)?;
    let report = crate::edit(&path, &options)?;
    match args.json {
        true => print_json(&report, out)?,
        false => print_report(&report, args, out)?,
    }
    Ok(())
}

/// Fails if what is written is in the cache of Hugging Face.
fn require_place(path: &Path, options: &EditOptions) -> CommandResult {
    let (place, advice) = match &options.output {
        Some(output) => (Some(output.clone()), None),
        None => (path.canonicalize().ok(), Some("-o OUT writes a copy elsewhere".to_owned())),
    };
    let checked = place.map_or(Ok(()), |place| require_outside_cache(&place));
    checked.map_err(|error| CommandError { error, model: None, advice })
}

/// # Errors
/// `Usage` if no change or no place is given; those of reading the files of options.
fn options(args: &EditArgs) -> Result<EditOptions> {
    let refuse = |what: &str| Err(AnamnesisError::usage(what));
    let has_changes = !args.set.is_empty() || !args.unset.is_empty() || !args.rename.is_empty();
    if !has_changes && args.chat_template.is_none() && args.tokenizer_pre.is_none() {
        return refuse(
            "nothing to change: --set KEY=VALUE, --unset KEY, --rename OLD=NEW, --chat-template or --tokenizer-pre says what; `amn ls FILE --meta` lists the keys",
        );
    }
    let mut options = match &args.output {
        Some(output) if output == Path::new("-") => {
            return refuse("-o -: an edited file is not written to stdout; name a file");
        }
        Some(output) => EditOptions::to(output),
        None if args.in_place || args.dry_run => EditOptions::in_place(),
        None => return refuse("say where: -o OUT writes a copy, and --in-place changes the file"),
    };
    options.set.clone_from(&args.set);
    options.unset.clone_from(&args.unset);
    options.rename.clone_from(&args.rename);
    options.chat_template = args.chat_template.as_deref().map(template).transpose()?;
    options.tokenizer_pre.clone_from(&args.tokenizer_pre);
    options.force = args.force;
    options.backup.clone_from(&args.backup);
    options.dry_run = args.dry_run;
    options.limits = args.limits.limits();
    Ok(options)
}

/// The chat template in a file: its text, or what a JSON file such as tokenizer_config.json has.
fn template(path: &Path) -> Result<String> {
    const OPTION: &str = "--chat-template";
    let text = read_text(OPTION, path)?;
    if path.extension().is_none_or(|ending| ending != "json") {
        return Ok(text);
    }
    let config: Option<Value> = serde_json::from_str(&text).ok();
    let found = config
        .as_ref()
        .and_then(|config| config.get("chat_template")?.as_str());
    let missing = || {
        let path = path.display();
        AnamnesisError::usage(format!("{OPTION}: {path} has no text under `chat_template`"))
    };
    found.map(str::to_owned).ok_or_else(missing)
}

fn print_report(report: &EditReport, args: &EditArgs, out: &mut impl Write) -> Result<()> {
    if args.messages.quiet {
        return Ok(());
    }
    for change in &report.changes {
        writeln!(out, "{}", line_of(change))?;
    }
    for note in &report.notes {
        writeln!(out, "Note:    {}", printable(note))?;
    }
    let path = printable(&report.output.to_string_lossy());
    let size = format_bytes(report.output_bytes);
    let what = match (report.written, args.in_place || args.output.is_none()) {
        (EditWritten::Nothing, _) => "as wanted already, and not written",
        (EditWritten::Header, _) => "in place: one sector is written",
        (_, true) => "a new file in its place",
        _ => "a copy",
    };
    writeln!(out, "Output:  {path} ({size}, {what})")?;
    Ok(())
}

/// What has become of a key, in one line.
fn line_of(change: &KeyChange) -> String {
    let key = printable(&change.key);
    let value = |value: &KeyValue| short_value(&value.value);
    let renamed = change.renamed_from.as_ref().map(|from| printable(from));
    match (renamed, &change.before, &change.after) {
        (Some(from), before, Some(after)) if before.as_ref() == Some(after) => {
            format!("Renamed: {from} to {key}")
        }
        (Some(from), _, Some(after)) => format!("Renamed: {from} to {key} = {}", value(after)),
        (None, Some(before), Some(after)) => {
            format!("Set:     {key} = {}, was {}", value(after), value(before))
        }
        (_, None, Some(after)) => format!("Added:   {key} = {} ({})", value(after), after.kind),
        (_, Some(before), None) => format!("Removed: {key}, was {}", value(before)),
        (_, None, None) => format!("Removed: {key}"),
    }
}
