//! `amn diff`.

use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::args::DiffArgs;
use super::html::{self, Page, ShownModel};
use super::printed::print_json;
use super::progress::{Meter, Work};
use super::{CommandError, input, signals};
use crate::error::printable;
use crate::hooks::SideFile;
use crate::{
    AnamnesisError, CancelToken, ComparedTensor, DiffOptions, DiffReport, FieldDiff, ParsedModel,
    RememberOptions, TensorDiff, ValueDiff,
};

/// Longest value of metadata or of a config that is printed whole, in characters.
const MAX_VALUE: usize = 60;

/// Compares two models and prints the differences. Returns whether there are any.
///
/// # Errors
/// A model that cannot be parsed or decoded, with its path; what [`ParsedModel::diff`] returns.
pub(super) fn diff(args: &DiffArgs, out: &mut impl Write) -> Result<bool, CommandError> {
    let open = |path: &Path| {
        input::open_path(path, &args.limits).map_err(|error| CommandError::of_model(path, error))
    };
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let files = || {
        [&a, &b]
            .into_iter()
            .flat_map(SideFile::inputs_of)
            .collect::<Vec<_>>()
    };
    if let Some(path) = &args.page.html {
        html::check_place(path, &files(), args.page.force)?;
    }
    let cancel = CancelToken::new();
    signals::cancel_at_termination(&cancel)?;
    let meter = Meter::new(&args.messages, args.progress.progress);
    let mut run = RememberOptions::new(args.to).with_cancel(cancel);
    if let Some(threads) = args.threads {
        run = run.with_threads(threads as usize);
    }
    let run = run.with_progress(meter.listener());
    meter.start(Work {
        verb: "Comparing",
        files: vec![args.a.to_string_lossy().into_owned()],
        ..Work::default()
    });
    let mut options = DiffOptions::default()
        .with_run(run)
        .with_tolerance(args.tolerance)
        .with_values_only(args.values_only);
    (options.include, options.exclude) = (args.include.clone(), args.exclude.clone());
    let report = a.diff(&b, &options);
    meter.finish(report.is_ok());
    let report = report.map_err(|error| {
        let models = [(&a, &args.a), (&b, &args.b)];
        match models.iter().find(|(model, _)| has_problem(model, &error)) {
            Some((_, path)) => CommandError::of_model(path, error),
            None => error.into(),
        }
    })?;
    if let Some(path) = &args.page.html {
        let (name_a, name_b) = (html::name_of(&args.a), html::name_of(&args.b));
        let page = Page {
            title: format!("{name_a} → {name_b}"),
            models: vec![ShownModel::new("A", &args.a, &a), ShownModel::new("B", &args.b, &b)],
            diff: Some(&report),
            ..Page::default()
        };
        html::write(&page, path, &files(), args.page.force)?;
    }
    if args.json {
        print_json(&report, out)?;
    } else {
        print(&report, out)?;
    }
    Ok(report.is_different())
}

/// Whether `error` is what makes it impossible to decode `model`.
pub(super) fn has_problem(model: &ParsedModel, error: &AnamnesisError) -> bool {
    let (text, problems) = (error.to_string(), model.problems());
    problems.iter().any(|problem| problem.to_string() == text)
}

/// Prints a report as text.
fn print(report: &DiffReport, out: &mut impl Write) -> crate::Result<()> {
    print_tensors("Only in A", &report.only_in_a, out)?;
    print_tensors("Only in B", &report.only_in_b, out)?;
    if !report.changed.is_empty() {
        writeln!(out, "Changed: {} tensors", report.changed.len())?;
        for tensor in &report.changed {
            print_change(tensor, out)?;
        }
    }
    print_fields("Metadata", &report.metadata, out)?;
    print_fields("Config", &report.config, out)?;
    for note in &report.notes {
        writeln!(out, "Note: {}", printable(note))?;
    }
    let verdict = match report.is_different() {
        true => "different",
        false => "equal",
    };
    writeln!(out, "Equal: {} tensors", report.equal)?;
    writeln!(out, "The models are {verdict}.")?;
    Ok(())
}

/// Prints tensors that only one of the models has.
fn print_tensors(
    title: &str,
    tensors: &[ComparedTensor],
    out: &mut impl Write,
) -> crate::Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    writeln!(out, "{title}: {} tensors", tensors.len())?;
    for t in tensors {
        let (name, scheme) = (printable(&t.name), t.scheme.column());
        writeln!(out, "  {name}  {} {:?}, {scheme}", t.dtype, t.shape)?;
    }
    Ok(())
}

/// Prints what differs in one tensor.
fn print_change(tensor: &TensorDiff, out: &mut impl Write) -> crate::Result<()> {
    writeln!(out, "  {}", printable(&tensor.name))?;
    let (a, b) = (&tensor.a, &tensor.b);
    for (what, a, b) in [
        ("dtype", a.dtype.to_string(), b.dtype.to_string()),
        ("scheme", a.scheme.column(), b.scheme.column()),
        ("shape", format!("{:?}", a.shape), format!("{:?}", b.shape)),
    ] {
        if a != b {
            writeln!(out, "    {what}: {a} -> {b}")?;
        }
    }
    match &tensor.values {
        Some(values) => print_values(values, out),
        None if a.shape == b.shape => {
            writeln!(out, "    values: {} and {} cannot be compared", a.dtype, b.dtype)?;
            Ok(())
        }
        None => Ok(()),
    }
}

/// Prints the differences of the values of one tensor.
fn print_values(values: &ValueDiff, out: &mut impl Write) -> crate::Result<()> {
    if values.unequal == 0 {
        writeln!(out, "    values: equal")?;
        return Ok(());
    }
    let (unequal, all) = (values.unequal, values.values);
    write!(out, "    values: {unequal} of {all} differ")?;
    if values.beyond_tolerance != unequal {
        let beyond = values.beyond_tolerance;
        write!(out, ", {beyond} by more than the tolerance")?;
    }
    if values.not_finite > 0 {
        write!(out, ", {} where a side is NaN or infinite", values.not_finite)?;
    }
    writeln!(out)?;
    if let (Some(max), Some(mean), Some(rmse)) = (values.max_abs, values.mean_abs, values.rmse) {
        write!(out, "    max {max:.3e}, mean {mean:.3e}, RMSE {rmse:.3e}")?;
        match values.cosine {
            Some(cosine) => writeln!(out, ", cosine {cosine:.8}")?,
            None => writeln!(out)?,
        }
    }
    if let Some(first) = &values.first {
        let (index, a, b) = (&first.index, first.a, first.b);
        writeln!(out, "    first at {index:?}: {a} and {b}")?;
    }
    Ok(())
}

/// Prints values of metadata or of configs.
fn print_fields(title: &str, fields: &[FieldDiff], out: &mut impl Write) -> crate::Result<()> {
    if fields.is_empty() {
        return Ok(());
    }
    writeln!(out, "{title}: {} differences", fields.len())?;
    for field in fields {
        let (a, b) = (brief(field.a.as_ref()), brief(field.b.as_ref()));
        writeln!(out, "  {}: {a} -> {b}", printable(&field.path))?;
    }
    Ok(())
}

/// A value on one line, cut after [`MAX_VALUE`] characters.
fn brief(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "(none)".to_owned();
    };
    let text = value.to_string();
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", printable(&text[..end])),
        None => printable(&text),
    }
}
