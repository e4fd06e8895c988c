//! `amn report`: one HTML page on a model, or on two.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::args::ReportArgs;
use super::diff::has_problem;
use super::html::{self, CheckedPart, Page, ShownModel};
use super::printed::print_line;
use super::progress::{Meter, Work};
use super::{CommandError, CommandResult, input, signals};
use crate::error::printable;
use crate::hooks::{Distribution, Selection, SideFile};
use crate::{
    AnamnesisError, CancelToken, CheckOptions, DiffOptions, ErrorKind, ParsedModel,
    RememberOptions, Result, format_bytes,
};

/// Writes the page that the arguments ask for.
///
/// # Errors
/// A model that cannot be parsed, with its path, and of two models one that cannot be decoded; `Io`
/// if the page cannot be written. What is wrong with a model alone is on the page.
pub(super) fn report(args: &ReportArgs, out: &mut impl Write) -> CommandResult {
    let output = Some(args.output.as_path()).filter(|path| *path != Path::new("-"));
    if let Some(path) = output {
        // Before a model is parsed, which may take a while.
        html::check_place(path, &[], args.force)?;
    }
    let selection = Selection::new(&args.include, &args.exclude)?;
    let open = |path: &Path| {
        let opened = input::open_below(path, args.root.as_deref(), &args.read.limits);
        opened
            .map(|named| named.model)
            .map_err(|error| fault_of(path, error))
    };
    let a = open(&args.a)?;
    let b = args.b.as_deref().map(open).transpose()?;
    let models = [Some((&a, &args.a)), b.as_ref().zip(args.b.as_ref())];
    let models: Vec<_> = models.into_iter().flatten().collect();
    let files: Vec<PathBuf> = models
        .iter()
        .flat_map(|(model, _)| SideFile::inputs_of(model))
        .collect();
    if let Some(path) = output {
        html::check_place(path, &files, args.force)?;
    }
    let cancel = CancelToken::new();
    signals::cancel_at_termination(&cancel)?;
    let meter = Meter::new(&args.read);
    let silent = args.read.options(args.to, cancel);
    let run = silent.clone().with_progress(meter.listener());
    let reads_values = b.is_some() || !args.no_values;
    if reads_values {
        meter.start(Work {
            verb: if b.is_some() { "Comparing" } else { "Reading" },
            files: vec![args.a.to_string_lossy().into_owned()],
            ..Work::default()
        });
    }
    let read = read_values(&a, b.as_ref(), run, args);
    if reads_values {
        meter.finish(read.is_ok());
    }
    let (diff, values) =
        read.map_err(|error| match models.iter().find(|(model, _)| has_problem(model, &error)) {
            Some((_, path)) => CommandError::of_model(path, error),
            None if models.len() == 1 => fault_of(&args.a, error),
            None => error.into(),
        })?;
    let labels = if b.is_some() { ["A", "B"] } else { ["", ""] };
    let options = CheckOptions::default().with_run(silent);
    let checks = models.iter().map(|(model, path)| {
        model
            .check(&options)
            .map_err(|error| CommandError::of_model(path, error))
    });
    let checks = checks.collect::<std::result::Result<Vec<_>, _>>()?;
    let parts = models.iter().zip(&checks).zip(["A: ", "B: "]);
    let page = Page {
        title: title(args),
        checked: parts
            .map(|(((_, path), report), label)| CheckedPart {
                path: path.to_string_lossy().into_owned(),
                report,
                label: if b.is_some() { label } else { "" },
                reads_data: false,
            })
            .collect(),
        models: models
            .iter()
            .zip(labels)
            .map(|((model, path), label)| {
                let mut shown = ShownModel::new(label, path, model);
                shown.tensors.retain(|t| selection.has(t.name));
                shown
            })
            .collect(),
        diff: diff.as_ref(),
        values: values.as_ref(),
        encoding: None,
    };
    let Some(path) = output else {
        return Ok(out.write_all(html::render(&page).as_bytes())?);
    };
    let len = html::write(&page, path, &files, args.force)?;
    if !args.read.messages.quiet {
        let (path, len) = (printable(&path.to_string_lossy()), format_bytes(len));
        print_line(out, format_args!("Output: {path} ({len})"));
    }
    Ok(())
}

/// An error about the model at `path`, whose fault a wrong pattern or root is not.
fn fault_of(path: &Path, error: AnamnesisError) -> CommandError {
    match error.kind() {
        ErrorKind::Usage => error.into(),
        _ => CommandError::of_model(path, error),
    }
}

/// Compares the models, or reads the values of one: each value once.
fn read_values(
    a: &ParsedModel,
    b: Option<&ParsedModel>,
    run: RememberOptions,
    args: &ReportArgs,
) -> Result<(Option<crate::DiffReport>, Option<Distribution>)> {
    let mut options = DiffOptions::default().with_run(run);
    (options.include, options.exclude) = (args.include.clone(), args.exclude.clone());
    let Some(b) = b else {
        return match args.no_values {
            true => Ok((None, None)),
            false => Ok((None, Some(Distribution::of_model(a, &options)?))),
        };
    };
    match args.no_values {
        true => Ok((Some(a.diff(b, &options)?), None)),
        false => {
            let (diff, values) = Distribution::of_diff(a, b, &options)?;
            Ok((Some(diff), Some(values)))
        }
    }
}

/// The names of the models.
fn title(args: &ReportArgs) -> String {
    match &args.b {
        Some(b) => format!("{} → {}", html::name_of(&args.a), html::name_of(b)),
        None => html::name_of(&args.a),
    }
}
