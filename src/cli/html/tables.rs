//! The tables of a page: tensors, differences, findings.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::super::listing::{compared_in, error_of, shape_text, stored_in};
use super::errors::TensorError;
use super::table::{HtmlColumn, HtmlTable};
use super::text::{Text, bits, count, error, percent, things};
use super::{CheckedPart, ShownModel};

use crate::{CheckReport, ComparedTensor, DiffReport, FieldDiff, Report, Severity, format_bytes};

/// Rows of a table. Browsers show more slowly; what is left out is said.
pub(super) const MOST_ROWS: usize = 10_000;

/// Characters of a value of metadata.
const MOST_CHARACTERS: usize = 200;

/// The first rows of `all` in the order that `is_before` gives; those in which most is to be seen.
fn cut<T>(mut all: Vec<T>, more: impl Fn(&T) -> f64) -> Vec<T> {
    if all.len() > MOST_ROWS {
        all.sort_by(|a, b| more(b).total_cmp(&more(a)));
        all.truncate(MOST_ROWS);
    }
    all
}

/// Says that a table has fewer rows than there are, and what prints all.
fn note_of_cut(all: usize, which: &str, command: &str, out: &mut String) {
    if all > MOST_ROWS {
        let (shown, all) = (count(MOST_ROWS as u64), count(all as u64));
        let _ = writeln!(
            out,
            "<p class=\"note\">The {shown} {which} of {all}; <code>{command}</code> prints all.</p>"
        );
    }
}

/// Writes the table of the stored tensors of `model`.
pub(super) fn tensors(model: &ShownModel<'_>, id: &str, out: &mut String) {
    let label = model.of_label();
    let _ = writeln!(out, "<section id=\"{id}\"><h2>Tensors{label}</h2>");
    let all: Vec<_> = model.tensors.iter().collect();
    note_of_cut(all.len(), "largest tensors", "amn ls FILE --json", out);
    let undecodable = all.iter().filter(|t| t.parameters.is_none()).count();
    if undecodable > 0 {
        let n = things(undecodable as u64, "tensor");
        let _ = writeln!(out, "<p class=\"error\">{n} cannot be decoded; see the findings.</p>");
    }
    let has_files = {
        let mut files = all.iter().map(|t| &t.file);
        let first = files.next();
        files.any(|file| Some(file) != first)
    };
    let mut columns = vec![
        HtmlColumn::text("Name"),
        HtmlColumn::text("Type"),
        HtmlColumn::text("Shape"),
        HtmlColumn::number("Values"),
        HtmlColumn::number("Size"),
        HtmlColumn::number("Bits per value"),
        HtmlColumn::text("Stored in"),
        HtmlColumn::text("Role"),
    ];
    if has_files {
        columns.push(HtmlColumn::text("File"));
    }
    let mut table = HtmlTable::begin(out, &format!("{id}-table"), &columns);
    for t in cut(all, |t| t.bytes as f64) {
        table.begin_row();
        table.name(t.name);
        table.text(&t.dtype.to_string());
        table.text(&shape_text(model.info.container, t.shape));
        table.count(t.parameters);
        table.integer(t.bytes, format_bytes(t.bytes));
        let values = t.parameters.filter(|n| *n > 0);
        table.number(values.map(|n| t.bytes as f64 * 8.0 / n as f64), bits);
        table.text(&stored_in(t));
        table.text(&t.role.to_string());
        if has_files {
            table.text(t.file.as_deref().unwrap_or_default());
        }
        table.end_row();
    }
    table.end();
    out.push_str("</section>\n");
}

/// Writes what differs between two models.
pub(super) fn differences(report: &DiffReport, out: &mut String) {
    out.push_str("<section id=\"differences\"><h2>Differences</h2>\n");
    let verdict = if report.is_different() {
        "different"
    } else {
        "equal"
    };
    let _ = write!(
        out,
        "<p>The models are <b>{verdict}</b>. {} equal, {} changed, {} only in A, {} only in B.",
        things(report.equal as u64, "tensor"),
        count(report.changed.len() as u64),
        count(report.only_in_a.len() as u64),
        count(report.only_in_b.len() as u64)
    );
    if report.tolerance > 0.0 {
        let _ = write!(out, " Differences up to {} count as none.", error(report.tolerance));
    }
    if report.values_only {
        out.push_str(" Only names, shapes and values count.");
    }
    out.push_str("</p>\n");
    for note in report.notes.iter().take(MOST_NOTES) {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", Text(note));
    }
    changed(report, out);
    one_sided("Only in A", &report.only_in_a, out);
    one_sided("Only in B", &report.only_in_b, out);
    fields("Metadata", &report.metadata, out);
    fields("Config", &report.config, out);
    out.push_str("</section>\n");
}

/// Notes of a model that are shown.
pub(super) const MOST_NOTES: usize = 20;

/// Writes the tensors that differ, the worst first.
fn changed(report: &DiffReport, out: &mut String) {
    if report.changed.is_empty() {
        return;
    }
    out.push_str("<h3>Changed tensors</h3>\n");
    let mut all: Vec<_> = report.changed.iter().collect();
    note_of_cut(all.len(), "worst", "amn diff A B --json", out);
    all.sort_by(|a, b| error_of(b).total_cmp(&error_of(a)));
    const COLUMNS: [HtmlColumn; 11] = [
        HtmlColumn::text("Name"),
        HtmlColumn::text("Shape"),
        HtmlColumn::text("A"),
        HtmlColumn::text("B"),
        HtmlColumn::number("Values"),
        HtmlColumn::number("Differ"),
        HtmlColumn::number("RMSE"),
        HtmlColumn::number("Mean"),
        HtmlColumn::number("Largest"),
        HtmlColumn::number("1 − cosine"),
        HtmlColumn::text("Note"),
    ];
    let mut table = HtmlTable::begin(out, "changed-table", &COLUMNS);
    for t in cut(all, |t| error_of(t)) {
        table.begin_row();
        table.name(&t.name);
        table.text(&match t.a.shape == t.b.shape {
            true => format!("{:?}", t.a.shape),
            false => format!("{:?} → {:?}", t.a.shape, t.b.shape),
        });
        table.text(&compared_in(&t.a));
        table.text(&compared_in(&t.b));
        let values = t.values.as_ref();
        table.count(values.map(|v| v.values));
        table.count(values.map(|v| v.unequal));
        table.number(values.and_then(|v| v.rmse), error);
        table.number(values.and_then(|v| v.mean_abs), error);
        table.number(values.and_then(|v| v.max_abs), error);
        table.number(values.and_then(|v| v.cosine).map(|x| 1.0 - x), error);
        table.text(&match values {
            None if t.a.shape != t.b.shape => "shapes differ".to_owned(),
            None => "cannot be compared".to_owned(),
            Some(v) if v.not_finite > 0 => format!("{} NaN or infinite", count(v.not_finite)),
            Some(_) => String::new(),
        });
        table.end_row();
    }
    table.end();
}

/// Writes the tensors that one of two models has.
fn one_sided(title: &str, tensors: &[ComparedTensor], out: &mut String) {
    if tensors.is_empty() {
        return;
    }
    let _ = writeln!(out, "<h3>{title}</h3>");
    note_of_cut(tensors.len(), "first", "amn diff A B --json", out);
    const COLUMNS: [HtmlColumn; 3] =
        [HtmlColumn::text("Name"), HtmlColumn::text("Shape"), HtmlColumn::text("Stored in")];
    let id = title.to_lowercase().replace(' ', "-");
    let mut table = HtmlTable::begin(out, &id, &COLUMNS);
    for t in tensors.iter().take(MOST_ROWS) {
        table.begin_row();
        table.name(&t.name);
        table.text(&format!("{:?}", t.shape));
        table.text(&compared_in(t));
        table.end_row();
    }
    table.end();
}

/// Writes values of metadata or of configs that differ.
fn fields(title: &str, fields: &[FieldDiff], out: &mut String) {
    if fields.is_empty() {
        return;
    }
    let _ = writeln!(out, "<h3>{title}</h3>");
    note_of_cut(fields.len(), "first", "amn diff A B --json", out);
    const COLUMNS: [HtmlColumn; 3] =
        [HtmlColumn::text("Key"), HtmlColumn::text("A"), HtmlColumn::text("B")];
    let mut table = HtmlTable::begin(out, &title.to_lowercase(), &COLUMNS);
    let text = |value: &Option<Value>| match value {
        Some(value) => {
            let text = value.to_string();
            match text.char_indices().nth(MOST_CHARACTERS) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        }
        None => "(none)".to_owned(),
    };
    for field in fields.iter().take(MOST_ROWS) {
        table.begin_row();
        table.name(&field.path);
        table.text(&text(&field.a));
        table.text(&text(&field.b));
        table.end_row();
    }
    table.end();
}

/// Writes the tensors that were encoded, with their errors, and why others were not.
pub(super) fn encoding(report: &Report, errors: &[TensorError<'_>], out: &mut String) {
    let errors: HashMap<&str, &TensorError<'_>> = errors.iter().map(|t| (t.name, t)).collect();
    out.push_str("<section id=\"encoded\"><h2>Encoded tensors</h2>\n");
    note_of_cut(report.encoded.len(), "worst", "amn forget … --json", out);
    const COLUMNS: [HtmlColumn; 6] = [
        HtmlColumn::text("Name"),
        HtmlColumn::text("Encoded to"),
        HtmlColumn::number("Values"),
        HtmlColumn::number("RMSE"),
        HtmlColumn::number("Relative"),
        HtmlColumn::number("Largest"),
    ];
    let rows: Vec<_> = report
        .encoded
        .iter()
        .map(|t| (t, errors.get(t.name.as_str())))
        .collect();
    let mut table = HtmlTable::begin(out, "encoded-table", &COLUMNS);
    for (t, errors) in cut(rows, |(_, errors)| errors.and_then(|t| t.relative).unwrap_or(0.0)) {
        table.begin_row();
        table.name(&t.name);
        table.text(&t.scheme);
        table.count(errors.map(|t| t.values));
        table.number(errors.map(|t| t.rmse), error);
        table.number(errors.and_then(|t| t.relative), percent);
        table.number(errors.map(|t| t.max), error);
        table.end_row();
    }
    table.end();
    if !report.kept.is_empty() {
        out.push_str("<h3>Tensors that stay as they are</h3>\n");
        note_of_cut(report.kept.len(), "first", "amn forget … --json", out);
        const KEPT: [HtmlColumn; 2] = [HtmlColumn::text("Name"), HtmlColumn::text("Reason")];
        let mut table = HtmlTable::begin(out, "kept-table", &KEPT);
        for t in report.kept.iter().take(MOST_ROWS) {
            table.begin_row();
            table.name(&t.name);
            table.text(&t.reason);
            table.end_row();
        }
        table.end();
    }
    out.push_str("</section>\n");
}

/// Writes the findings of `check`.
pub(super) fn findings(checked: &[CheckedPart<'_>], out: &mut String) {
    out.push_str("<section id=\"findings\"><h2>Findings</h2>\n");
    for CheckedPart { path, report, label, reads_data } in checked {
        let n = report.findings.len();
        let what = match (n, reads_data) {
            (0, true) => {
                "Nothing is wrong with the headers, the configs and the values.".to_owned()
            }
            (0, false) => {
                "Nothing is wrong with the headers, the configs and the stored checksums. \
                           <code>amn check --data</code> looks at the values, too."
                    .to_owned()
            }
            (n, _) => format!("{}.", things(n as u64, "finding")),
        };
        let class = if worst(report) == Some(Severity::Error) {
            " class=\"error\""
        } else {
            ""
        };
        let _ = write!(out, "<p{class}>");
        if checked.len() > 1 {
            let _ = write!(out, "<b>{label}{}</b> ", Text(path));
        }
        let _ = writeln!(out, "{what}</p>");
        if n > 0 {
            list(Path::new(path), report, out);
        }
    }
    out.push_str("</section>\n");
}

/// The gravest severity of the findings.
fn worst(report: &CheckReport) -> Option<Severity> {
    report.findings.iter().map(|finding| finding.severity).max()
}

fn list(model: &Path, report: &CheckReport, out: &mut String) {
    note_of_cut(report.findings.len(), "first", "amn check FILE --json", out);
    const COLUMNS: [HtmlColumn; 4] = [
        HtmlColumn::text("Severity"),
        HtmlColumn::text("File"),
        HtmlColumn::text("Tensor"),
        HtmlColumn::text("What is wrong"),
    ];
    let mut table = HtmlTable::begin(out, "", &COLUMNS);
    for finding in report.findings.iter().take(MOST_ROWS) {
        table.begin_row();
        table.text(match finding.severity == Severity::Warning {
            true => "warning",
            false => "error",
        });
        let file = finding.file.as_deref().filter(|file| *file != model);
        let file = file.map(|file| file.strip_prefix(model).unwrap_or(file).to_string_lossy());
        table.text(&file.unwrap_or_default());
        table.name(finding.tensor.as_deref().unwrap_or_default());
        table.text(&finding.message);
        table.end_row();
    }
    table.end();
}
