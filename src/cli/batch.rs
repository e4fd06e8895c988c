//! The inputs of a command that writes models, converted one after another.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::args::{InputsArgs, OutputArgs, RunArgs};
use super::input::NamedModel;
use super::option_checks::read_text;
use super::outputs::{OutputChoice, full_path};
use super::plan::{OutputStyle, WriteRequest};
use super::write::write;
use super::{CommandError, CommandResult, input};
use crate::hooks::Selection;
use crate::{AnamnesisError, ConvertOptions, GgufEdit, ModelScope, NameChanges, Result};

/// The changes of names that the arguments ask for.
pub(super) fn name_changes(args: &RunArgs) -> Result<NameChanges> {
    let mut names = NameChanges::default();
    names.drop.clone_from(&args.select.drop);
    names.rename.clone_from(&args.select.rename);
    names.prune_layers.clone_from(&args.select.prune_layers);
    if let Some(path) = &args.select.rename_file {
        let text = read_text("--rename-file", path)?;
        let about = format!("--rename-file: {}", path.display());
        let renames = crate::parse_renames(&text).map_err(|e| e.about(about))?;
        names.rename.extend(renames);
    }
    Ok(names)
}

/// Compiles the patterns of the arguments, so that a mistake shows before an input is opened.
///
/// # Errors
/// `Usage` that names the option.
fn check_patterns(args: &RunArgs) -> Result<()> {
    let select = &args.select;
    Selection::new(&select.include, &select.exclude)?;
    Selection::of(&select.drop)
        .map(drop)
        .map_err(|e| e.about("--drop"))
}

/// The changes of GGUF metadata of `--gguf-metadata`, followed by those of `--gguf-kv`. Of two values
/// for a key the last one counts, so single values override the file.
fn gguf_edits(args: &OutputArgs) -> Result<Vec<GgufEdit>> {
    let mut all = Vec::new();
    if let Some(path) = &args.gguf_metadata {
        let text = read_text("--gguf-metadata", path)?;
        let about = format!("--gguf-metadata: {}", path.display());
        all = crate::parse_gguf_edits_json(&text).map_err(|e| e.about(about))?;
    }
    for text in &args.gguf_kv {
        all.push(crate::parse_gguf_edit(text).map_err(|e| e.about("--gguf-kv"))?);
    }
    Ok(all)
}

/// Converts each input and prints what is done. The first error ends it; what is written stays.
pub(super) fn write_all(
    inputs: &InputsArgs,
    options: &ConvertOptions,
    args: &RunArgs,
    style: &OutputStyle<'_>,
    out: &mut impl Write,
) -> CommandResult {
    check_patterns(args)?;
    let mut options = options.clone().with_names(name_changes(args)?);
    options.files.extend(args.select.rename_file.clone());
    options.files.extend(args.output.gguf_metadata.clone());
    options
        .files
        .extend(args.output.tower().map(Path::to_path_buf));
    // The output of one input is not another input either.
    options.files.extend(inputs.files.iter().cloned());
    let options = &options.with_gguf_edits(gguf_edits(&args.output)?);
    let given = args.output.path.as_deref();
    let place = match inputs.files.as_slice() {
        [_] => OutputChoice::OfOne(given),
        files => OutputChoice::of_several(given, files.len())?,
    };
    let open = |file: &Path| match options.scope {
        ModelScope::Vocabulary => input::open_with_or_without_weights(file, &args.read.limits),
        _ => open_input(file, inputs.root.as_deref(), args),
    };
    let request = WriteRequest { options, args, place, style };
    if let [file] = inputs.files.as_slice() {
        return write(&request, &open(file)?, out);
    }
    // Each input is opened and planned twice, for all of them at once may not fit the memory.
    let mut outputs: HashMap<PathBuf, &Path> = HashMap::new();
    for file in &inputs.files {
        let planned = open(file).map_err(CommandError::from);
        let planned = planned.and_then(|input| Ok(request.plan(&input)?.output));
        planned
            .and_then(|output| Ok(require_own(file, &output, args, &mut outputs)?))
            .map_err(|failed| failed.about_model(file))?;
    }
    for (done, file) in inputs.files.iter().enumerate() {
        let written = open(file).map_err(CommandError::from);
        let written = written.and_then(|input| write(&request, &input, out));
        if let Err(failed) = written {
            if !args.json {
                let n = inputs.files.len();
                let mut stderr = std::io::stderr();
                let _ = writeln!(stderr, "note: {done} of {n} inputs are converted");
            }
            return Err(failed.about_model(file));
        }
    }
    Ok(())
}

/// Opens the input at `file` below `root`, with its tower, if the arguments name one.
///
/// # Errors
/// Those of opening either, and of [`with_mmproj`](crate::ParsedModel::with_mmproj).
fn open_input(file: &Path, root: Option<&str>, args: &RunArgs) -> Result<NamedModel> {
    let limits = &args.read.limits;
    let input = input::open_below(file, root, limits)?;
    let Some(tower) = args.output.tower() else {
        return Ok(input);
    };
    let tower = input::open_path(tower, limits).map_err(|error| error.about(tower.display()))?;
    Ok(NamedModel { model: input.model.with_mmproj(tower)?, named: input.named })
}

/// Checks that the path `output`, to which the input `file` is written, is new: no earlier input,
/// which `outputs` has by path, is written there, and no file is there.
fn require_own<'a>(
    file: &'a Path,
    output: &Path,
    args: &RunArgs,
    outputs: &mut HashMap<PathBuf, &'a Path>,
) -> Result<()> {
    if let Some(other) = outputs.insert(full_path(output), file) {
        let (output, other) = (output.display(), other.display());
        let what = format!("its output is `{output}`, and so is that of `{other}`");
        return Err(AnamnesisError::usage(format!("one name for two outputs: {what}")));
    }
    let may_be_there = args.output.force || args.resume || args.dry_run;
    if !may_be_there && output.exists() {
        let error = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(AnamnesisError::io_at(output, &error));
    }
    Ok(())
}
