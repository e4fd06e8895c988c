//! `amn inspect` of several models: a row for each, also for those that cannot be read.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::super::args::InspectArgs;
use super::super::printed::{ErrorReport, print_json};
use super::super::table::{Column, Table, brief_count};
use super::super::{CommandError, CommandResult, input};
use super::Inspection;
use super::space::by_storage;
use crate::error::printable;
use crate::{InspectInfo, ModelDescription, Result, format_bytes};

/// What is known of a model.
struct Inspected {
    path: PathBuf,
    info: InspectInfo,
    description: ModelDescription,
    /// What most bytes are stored in.
    format: String,
}

/// What `amn inspect --json` prints of several models.
#[derive(serde::Serialize)]
struct InspectedModels<'a> {
    models: Vec<Inspection<'a>>,
    errors: Vec<ErrorReport<'a>>,
}

/// Prints what is known of each model.
///
/// # Errors
/// That of the first model that cannot be read, after all others have been.
pub(super) fn inspect(args: &InspectArgs, out: &mut impl Write) -> CommandResult {
    let inspected = |path: &PathBuf| {
        let found = inspect_one(path, args);
        found.map_err(|error| CommandError::of_model(path, error))
    };
    let all: Vec<_> = args.files.iter().map(inspected).collect();
    match args.json {
        true => print_json(&to_json(&all), out)?,
        false => print_table(&all, out)?,
    }
    all.into_iter()
        .find_map(std::result::Result::err)
        .map_or(Ok(()), Err)
}

fn inspect_one(path: &Path, args: &InspectArgs) -> Result<Inspected> {
    let model = input::open_below(path, args.root.as_deref(), &args.limits)?.model;
    let largest = by_storage(&model).into_iter().next();
    // What follows the comma is the size of groups or blocks.
    let format = largest
        .map_or("-".to_owned(), |(name, _)| name.split(',').next().unwrap_or_default().to_owned());
    let (info, description) = (model.inspect(), model.describe());
    Ok(Inspected { path: path.to_path_buf(), info, description, format })
}

fn to_json(all: &[CommandResult<Inspected>]) -> InspectedModels<'_> {
    let models = all.iter().flatten().map(|model| Inspection {
        file: model.path.to_string_lossy(),
        info: &model.info,
        model: &model.description,
    });
    let errors = all.iter().filter_map(|found| found.as_ref().err());
    InspectedModels {
        models: models.collect(),
        errors: errors
            .map(|error| ErrorReport::new(error, Path::new("")))
            .collect(),
    }
}

fn print_table(all: &[CommandResult<Inspected>], out: &mut impl Write) -> Result<()> {
    const COLUMNS: [Column; 7] = [
        Column::text("NAME"),
        Column::text("FORMAT"),
        Column::text("ARCHITECTURE"),
        Column::number("PARAMETERS"),
        Column::number("BITS"),
        Column::number("SIZE"),
        Column::number("DECODED"),
    ];
    let paths = all.iter().map(|found| match found {
        Ok(model) => model.path.as_path(),
        Err(error) => error.model.as_deref().unwrap_or(Path::new("")),
    });
    // The directory says nothing if each name is another.
    let ends: HashSet<_> = paths.clone().map(Path::file_name).collect();
    let name = |path: &Path| match path.file_name().filter(|_| ends.len() == all.len()) {
        Some(name) => printable(&name.to_string_lossy()),
        None => printable(&path.to_string_lossy()),
    };
    let row = |(path, found): (&Path, &CommandResult<Inspected>)| {
        let mut row = found.as_ref().map(row_of).unwrap_or_default();
        row[0] = name(path);
        row
    };
    let table = Table::new(COLUMNS, paths.clone().zip(all).map(row));
    table.write_titles(out)?;
    for (path, found) in paths.zip(all) {
        let mut row = row((path, found));
        if let Err(error) = found {
            // Not measured: a message does not widen the column.
            row[1] = format!("error: {error}");
        }
        table.write_row("", &row, out)?;
    }
    Ok(())
}

/// The row of a model, without its name.
fn row_of(model: &Inspected) -> [String; 7] {
    let Inspected { info, description, format, .. } = model;
    let decoded = match info.problems.is_empty() {
        true => format_bytes(info.dequantized_size),
        false => "?".to_owned(),
    };
    [
        String::new(),
        printable(format),
        description
            .architecture
            .as_deref()
            .map_or("-".to_owned(), printable),
        brief_count(description.parameters),
        description
            .bits_per_weight
            .map_or("-".to_owned(), |bits| format!("{bits:.2}")),
        format_bytes(info.current_size),
        decoded,
    ]
}
