//! `amn diff A B --against REFERENCE`: which of two encodings of a model is nearer to it.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use serde_json::json;

use super::super::CommandError;
use super::super::args::{DiffArgs, DiffSortKey};
use super::super::listing::{compared_in, error_of};
use super::super::option_checks::require_model;
use super::super::printed::print_json;
use super::super::table::{Column, Table};
use super::{compared, open, values_of};
use crate::error::{counted, printable};
use crate::{DiffReport, TensorDiff, ValueDiff};

/// Compares both models with the one at `path` and prints the errors of each tensor side by side.
/// Returns whether a value of one differs from it.
///
/// # Errors
/// As for [`diff`](super::diff).
pub(super) fn diff_against(
    args: &DiffArgs,
    path: &Path,
    out: &mut impl Write,
) -> Result<bool, CommandError> {
    require_model("--against", path)?;
    let (reference, a, b) = (open(path, args)?, open(&args.a, args)?, open(&args.b, args)?);
    let report_of = |model, place: &Path| compared(args, [(&reference, path), (model, place)]);
    let (a, b) = (report_of(&a, &args.a)?, report_of(&b, &args.b)?);
    let is_different = a.is_different() || b.is_different();
    if args.json {
        print_json(&json!({"a": a, "b": b}), out)?;
        return Ok(is_different);
    }
    for (side, report) in [("A", &a), ("B", &b)] {
        super::print_tensors(&format!("Not in {side}"), &report.only_in_a, out)?;
        super::print_tensors(&format!("Only in {side}"), &report.only_in_b, out)?;
    }
    print(&mut rows_of([&a, &b]), args, out)?;
    Ok(is_different)
}

/// What became of a tensor in A and in B; `None` where its values are those of the reference.
struct Row<'r> {
    name: &'r str,
    sides: [Option<&'r TensorDiff>; 2],
}

impl Row<'_> {
    /// The larger error, which is infinite where values cannot be compared.
    fn error(&self) -> f64 {
        self.sides
            .iter()
            .flatten()
            .map(|t| error_of(t))
            .fold(0.0, f64::max)
    }

    fn size(&self) -> usize {
        self.sides.into_iter().flatten().next().map_or(0, values_of)
    }

    fn cells(&self) -> [String; 8] {
        let [a, b] = self.sides;
        let scheme =
            |t: Option<&TensorDiff>| t.map_or("as it was".to_owned(), |t| compared_in(&t.b));
        let number =
            |t: Option<&TensorDiff>, equal: &str, text: fn(&ValueDiff) -> Option<String>| match t {
                None => equal.to_owned(),
                Some(t) => t.values.as_ref().and_then(text).unwrap_or("-".to_owned()),
            };
        let rmse = |t| number(t, "0", |values| Some(format!("{:.3e}", values.rmse?)));
        let cosine = |t| number(t, "1", |values| Some(format!("{:.6}", values.cosine?)));
        let ratio = match [a, b].map(|t| t.map_or(0.0, error_of)) {
            [a, b] if a > 0.0 && a.is_finite() && b.is_finite() => format!("{:.3}", b / a),
            _ => "-".to_owned(),
        };
        [printable(self.name), scheme(a), rmse(a), cosine(a), scheme(b), rmse(b), cosine(b), ratio]
    }
}

/// The tensors that differ from the reference in A or in B, in its order as far as A has it.
fn rows_of<'r>(reports: [&'r DiffReport; 2]) -> Vec<Row<'r>> {
    let (mut rows, mut places): (Vec<Row<'r>>, HashMap<&str, usize>) = (vec![], HashMap::new());
    for (side, report) in reports.into_iter().enumerate() {
        for tensor in &report.changed {
            let place = *places.entry(&tensor.name).or_insert_with(|| {
                rows.push(Row { name: &tensor.name, sides: [None; 2] });
                rows.len() - 1
            });
            rows[place].sides[side] = Some(tensor);
        }
    }
    rows
}

/// Prints the first rows that are asked for, and the error over all of them.
fn print(rows: &mut [Row<'_>], args: &DiffArgs, out: &mut impl Write) -> crate::Result<()> {
    const COLUMNS: [Column; 8] = [
        Column::text("NAME"),
        Column::text("A"),
        Column::number("RMSE"),
        Column::number("COSINE"),
        Column::text("B"),
        Column::number("RMSE"),
        Column::number("COSINE"),
        Column::number("B / A"),
    ];
    match args.sort.unwrap_or(DiffSortKey::Error) {
        DiffSortKey::Error => rows.sort_by(|a, b| b.error().total_cmp(&a.error())),
        DiffSortKey::Name => rows.sort_by(|a, b| a.name.cmp(b.name)),
        DiffSortKey::Size => rows.sort_by_key(|row| std::cmp::Reverse(row.size())),
    }
    let shown = &rows[..args.top.unwrap_or(rows.len()).min(rows.len())];
    let table = Table::new(COLUMNS, shown.iter().map(Row::cells));
    if !shown.is_empty() {
        table.write_titles(out)?;
    }
    for row in shown {
        table.write_row("", &row.cells(), out)?;
    }
    let squares = |side: usize| {
        let values = rows
            .iter()
            .filter_map(|row| row.sides[side]?.values.as_ref());
        let square = |v: &ValueDiff| Some(v.rmse?.powi(2) * v.values as f64);
        values.filter_map(square).sum::<f64>()
    };
    // Over the same values, so that tensors as they were count on both sides.
    let n: f64 = rows.iter().map(|row| row.size() as f64).sum();
    let nearer = |side: usize| {
        let is_nearer = |row: &&Row<'_>| {
            let errors = row.sides.map(|t| t.map_or(0.0, error_of));
            errors[side] < errors[1 - side]
        };
        rows.iter().filter(is_nearer).count()
    };
    let of_all = |side| (squares(side) / n.max(1.0)).sqrt();
    writeln!(
        out,
        "{}: RMSE {:.3e} of A, {:.3e} of B",
        counted(rows.len(), "tensor"),
        of_all(0),
        of_all(1)
    )?;
    writeln!(out, "Nearer to the reference: {} in A, {} in B", nearer(0), nearer(1))?;
    Ok(())
}
