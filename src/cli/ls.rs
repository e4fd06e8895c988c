//! `amn ls`: the tensors of a model, as a table or a tree, and what the model says of itself.

mod meta;
mod tree;

use std::io::Write;

use serde::Serialize;

use self::meta::ModelTexts;
use super::args::{LsArgs, SortKey};
use super::input;
use super::listing::{Total, shape_text};
use super::printed::print_json;
use super::table::{Column, Table};
use crate::error::{counted, printable};
use crate::hooks::{Selection, list_with_notes};
use crate::{Container, ListedTensor, ParsedModel, Result, format_bytes};

/// What `amn ls --json` prints.
#[derive(Serialize)]
struct Listing<'a> {
    container: Container,
    tensors: &'a [ListedTensor<'a>],
    tensor_count: usize,
    parameters: u64,
    bytes: u64,
    notes: &'a [String],
    #[serde(flatten)]
    texts: Option<&'a ModelTexts<'a>>,
}

/// Lists the tensors that the patterns select.
pub(super) fn ls(args: &LsArgs, out: &mut impl Write) -> Result<()> {
    // Standard output is flushed at each line, which takes most of the time of a long list.
    let mut buffered = std::io::BufWriter::new(out);
    let out = &mut buffered;
    let include = [args.patterns.as_slice(), &args.include].concat();
    let selection = Selection::new(&include, &args.exclude)?;
    let model = input::open(&args.input, &args.limits)?.model;
    let (mut tensors, notes) = list_with_notes(&model);
    tensors.retain(|t| selection.has(t.name));
    selection.check()?;
    if tensors.is_empty() && model.tensors().len() > 0 {
        let names = model.tensors().map(|t| t.name());
        return Err(selection.has_none(names.clone(), names));
    }
    if let Some(key) = args.sort {
        // Stable: tensors that are alike stay in the order of the data.
        tensors.sort_by(|a, b| match key {
            SortKey::Size => b.bytes.cmp(&a.bytes),
            SortKey::Name => a.name.cmp(b.name),
            SortKey::Dtype => a.dtype.name().cmp(b.dtype.name()),
        });
    }
    let texts = match args.meta {
        true => Some(ModelTexts::of(&model)?),
        false => None,
    };
    if args.json {
        let listing = Listing {
            container: model.container(),
            tensors: &tensors,
            tensor_count: tensors.len(),
            parameters: parameters(&tensors),
            bytes: tensors.iter().fold(0, |sum, t| t.bytes.saturating_add(sum)),
            notes: &notes,
            texts: texts.as_ref(),
        };
        print_json(&listing, out)?;
        return Ok(out.flush()?);
    }
    if let Some(texts) = &texts {
        texts.print(out)?;
        writeln!(out)?;
    }
    match args.tree {
        true => tree::print(&model, &tensors, args.depth, out)?,
        false => print_table(&model, &tensors, out)?,
    }
    print_total(&tensors, out)?;
    for note in &notes {
        writeln!(out, "Note: {}", printable(note))?;
    }
    Ok(out.flush()?)
}

/// Number of values of all tensors, as far as these can be decoded.
fn parameters(tensors: &[ListedTensor<'_>]) -> u64 {
    let known = tensors.iter().filter_map(|t| t.parameters);
    known.fold(0, u64::saturating_add)
}

fn print_table(
    model: &ParsedModel,
    tensors: &[ListedTensor<'_>],
    out: &mut impl Write,
) -> Result<()> {
    const COLUMNS: [Column; 7] = [
        Column::text("NAME"),
        Column::text("DTYPE"),
        Column::text("SHAPE"),
        Column::number("PARAMETERS"),
        Column::number("SIZE"),
        Column::text("SCHEME"),
        Column::text("FILE"),
    ];
    let container = model.container();
    let row = |t: &ListedTensor<'_>| {
        [
            printable(t.name),
            t.dtype.to_string(),
            shape_text(container, t.shape),
            t.parameters.map_or("?".to_owned(), |n| n.to_string()),
            format_bytes(t.bytes),
            t.scheme.map_or("-".to_owned(), |scheme| scheme.column()),
            printable(t.file.as_deref().unwrap_or_default()),
        ]
    };
    let table = Table::new(COLUMNS, tensors.iter().map(row));
    table.write_titles(out)?;
    tensors
        .iter()
        .try_for_each(|t| table.write_row("", &row(t), out))
}

/// Prints number, values and bytes of the listed tensors.
fn print_total(tensors: &[ListedTensor<'_>], out: &mut impl Write) -> Result<()> {
    let mut total = Total::default();
    tensors.iter().for_each(|t| total.add(t.dtype, t.bytes));
    writeln!(out, "{total}, {} parameters", parameters(tensors))?;
    match tensors.iter().filter(|t| t.parameters.is_none()).count() {
        0 => Ok(()),
        n => {
            let tensors = counted(n, "tensor");
            Ok(writeln!(out, "{tensors} cannot be decoded; `amn inspect` says why")?)
        }
    }
}
