//! `amn diff`.

mod against;

use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::args::{DiffArgs, DiffSortKey};
use super::html::{self, Page, ShownModel};
use super::listing::{compared_in, error_of};
use super::paint::{Verdict, painted};
use super::printed::print_json;
use super::progress::{Meter, Work};
use super::table::{Column, Table};
use super::{CommandError, input, signals};
use crate::error::{counted, printable};
use crate::hooks::SideFile;
use crate::{
    AnamnesisError, CancelToken, ComparedTensor, DiffOptions, DiffReport, FieldDiff, ParsedModel,
    TensorDiff, ValueDiff,
};

/// Longest value of metadata or of a config that is printed whole, in characters.
const MAX_VALUE: usize = 60;

/// Compares two models and prints the differences. Returns whether there are any.
///
/// # Errors
/// A model that cannot be parsed or decoded, with its path; what [`ParsedModel::diff`] returns.
pub(super) fn diff(args: &DiffArgs, out: &mut impl Write) -> Result<bool, CommandError> {
    if let Some(reference) = &args.against {
        return against::diff_against(args, reference, out);
    }
    let (a, b) = (open(&args.a, args)?, open(&args.b, args)?);
    let files = || {
        [&a, &b]
            .into_iter()
            .flat_map(SideFile::inputs_of)
            .collect::<Vec<_>>()
    };
    if let Some(path) = &args.page.html {
        html::check_place(path, &files(), args.page.force)?;
    }
    let mut report = compared(args, [(&a, &args.a), (&b, &args.b)])?;
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
    // JSON has the order of A, unless another is asked for.
    if let Some(key) = args.sort.or((!args.json).then_some(DiffSortKey::Error)) {
        sort(&mut report.changed, key);
    }
    match args.json {
        true => print_json(&report, out)?,
        false => print(&report, args.top, out)?,
    }
    Ok(report.is_different())
}

/// The model at `path`.
fn open(path: &Path, args: &DiffArgs) -> Result<ParsedModel, CommandError> {
    input::open_path(path, &args.read.limits).map_err(|error| CommandError::of_model(path, error))
}

/// Compares two models, each with its path, as `args` say.
fn compared(
    args: &DiffArgs,
    models: [(&ParsedModel, &Path); 2],
) -> Result<DiffReport, CommandError> {
    let [(a, place), (b, _)] = models;
    let cancel = CancelToken::new();
    signals::cancel_at_termination(&cancel)?;
    let meter = Meter::new(&args.read);
    let run = args
        .read
        .options(args.to, cancel)
        .with_progress(meter.listener());
    meter.start(Work {
        verb: "Comparing",
        files: vec![place.to_string_lossy().into_owned()],
        ..Work::default()
    });
    let mut options = DiffOptions::default()
        .with_run(run)
        .with_tolerance(args.tolerance)
        .with_values_only(args.values_only || args.against.is_some());
    (options.include, options.exclude) = (args.include.clone(), args.exclude.clone());
    let report = a.diff(b, &options);
    meter.finish(report.is_ok());
    report.map_err(|error| match models.iter().find(|(model, _)| has_problem(model, &error)) {
        Some((_, path)) => CommandError::of_model(path, error),
        None => error.into(),
    })
}

/// Whether `error` is what makes it impossible to decode `model`.
pub(super) fn has_problem(model: &ParsedModel, error: &AnamnesisError) -> bool {
    let (text, problems) = (error.to_string(), model.problems());
    problems.iter().any(|problem| problem.to_string() == text)
}

/// Number of values of the tensor in A.
fn values_of(t: &TensorDiff) -> usize {
    let shape = t.a.shape.iter();
    shape.fold(1, |n: usize, dim| n.saturating_mul(*dim))
}

/// Sorts the tensors that differ. Those that are alike stay in the order of A.
fn sort(changed: &mut [TensorDiff], key: DiffSortKey) {
    changed.sort_by(|a, b| match key {
        DiffSortKey::Error => error_of(b).total_cmp(&error_of(a)),
        DiffSortKey::Name => a.name.cmp(&b.name),
        DiffSortKey::Size => values_of(b).cmp(&values_of(a)),
    });
}

/// Prints a report as text, with the first `top` of the tensors that differ.
fn print(report: &DiffReport, top: Option<usize>, out: &mut impl Write) -> crate::Result<()> {
    print_tensors("Only in A", &report.only_in_a, out)?;
    print_tensors("Only in B", &report.only_in_b, out)?;
    print_changed(&report.changed, top, out)?;
    print_fields("Metadata", &report.metadata, out)?;
    print_fields("Config", &report.config, out)?;
    for note in &report.notes {
        writeln!(out, "Note: {}", printable(note))?;
    }
    let verdict = match report.is_different() {
        true => painted("different", Verdict::Doubtful),
        false => painted("equal", Verdict::Good),
    };
    writeln!(out, "Equal: {}", counted(report.equal, "tensor"))?;
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
    writeln!(out, "{title}: {}", counted(tensors.len(), "tensor"))?;
    for t in tensors {
        let (name, scheme) = (printable(&t.name), t.scheme.column());
        writeln!(out, "  {name}  {} {:?}, {scheme}", t.dtype, t.shape)?;
    }
    Ok(())
}

/// Prints a line for each of the first `top` tensors that differ.
fn print_changed(
    changed: &[TensorDiff],
    top: Option<usize>,
    out: &mut impl Write,
) -> crate::Result<()> {
    const COLUMNS: [Column; 7] = [
        Column::text("NAME"),
        Column::number("RMSE"),
        Column::number("MAX"),
        Column::number("MEAN"),
        Column::number("COSINE"),
        Column::number("DIFFER"),
        Column::text("NOTE"),
    ];
    let n = changed.len();
    let shown = &changed[..top.unwrap_or(n).min(n)];
    match shown.len() {
        _ if n == 0 => return Ok(()),
        all if all == n => writeln!(out, "Changed: {}", counted(n, "tensor"))?,
        first => writeln!(out, "Changed: {n} tensors, of which these are the first {first}")?,
    }
    let table = Table::new(COLUMNS, shown.iter().map(row_of));
    if !shown.is_empty() {
        table.write_titles(out)?;
    }
    let mut rows = shown.iter();
    rows.try_for_each(|tensor| table.write_row("", &row_of(tensor), out))
}

fn row_of(tensor: &TensorDiff) -> [String; 7] {
    let values = tensor.values.as_ref();
    let number = |of: fn(&ValueDiff) -> Option<f64>| match values.and_then(of) {
        Some(0.0) => "0".to_owned(),
        Some(x) => format!("{x:.3e}"),
        None => "-".to_owned(),
    };
    let cosine = values.and_then(|values| values.cosine);
    [
        printable(&tensor.name),
        number(|values| values.rmse),
        number(|values| values.max_abs),
        number(|values| values.mean_abs),
        cosine.map_or("-".to_owned(), |x| format!("{x:.8}")),
        values.map_or("-".to_owned(), |values| format!("{} of {}", values.unequal, values.values)),
        note_on(tensor),
    ]
}

/// What figures do not say: how the tensor is stored, and where its values begin to differ.
fn note_on(tensor: &TensorDiff) -> String {
    let (a, b, mut notes) = (&tensor.a, &tensor.b, Vec::new());
    if tensor.is_stored_differently() {
        let [from, to] = match compared_in(a) == compared_in(b) {
            true => [a.dtype, b.dtype].map(|dtype| dtype.to_string()),
            false => [a, b].map(compared_in),
        };
        notes.push(format!("{from} -> {to}"));
    }
    let Some(values) = &tensor.values else {
        notes.push(match a.shape == b.shape {
            true => "cannot be compared".to_owned(),
            false => format!("{:?} -> {:?}", a.shape, b.shape),
        });
        return notes.join("; ");
    };
    if values.beyond_tolerance != values.unequal {
        notes.push(format!("{} by more than the tolerance", values.beyond_tolerance));
    }
    if values.not_finite > 0 {
        notes.push(format!("{} where a side is NaN or infinite", values.not_finite));
    }
    if let Some(first) = &values.first {
        notes.push(format!("first at {:?}: {} and {}", first.index, first.a, first.b));
    }
    notes.join("; ")
}

/// Prints values of metadata or of configs.
fn print_fields(title: &str, fields: &[FieldDiff], out: &mut impl Write) -> crate::Result<()> {
    if fields.is_empty() {
        return Ok(());
    }
    writeln!(out, "{title}: {}", counted(fields.len(), "difference"))?;
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
