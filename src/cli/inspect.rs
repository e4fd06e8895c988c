//! `amn parse` and `amn inspect`: `space` draws what takes the space, `several` is the table of several
//! models.

mod several;
mod space;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use super::args::{InspectArgs, ParseArgs};
use super::printed::print_json;
use super::table::{cut, line_width};
use super::{CommandResult, input, listing};
use crate::error::{counted, printable};
use crate::{
    AnamnesisError, Dtype, GgufInspectInfo, InspectInfo, ListedTensor, ModelDescription,
    ParsedModel, Result, Tensor, TensorRole, format_bytes,
};

/// Prints the number of tensors of each role, for a GGUF file its header, and a line for each
/// tensor.
pub(super) fn parse(args: &ParseArgs, out: &mut impl Write) -> Result<()> {
    let model = input::open(&args.input, &args.limits)?.model;
    let info = model.inspect();
    if args.json {
        let parsed = ParsedTensors {
            inspection: Inspection {
                file: args.input.file.to_string_lossy(),
                info: &info,
                model: &model.describe(),
            },
            tensors: model.list(),
        };
        return print_json(&parsed, out);
    }
    match GgufInspectInfo::of_inspected(&model, &info) {
        Some(summary) => print_gguf(&args.input.file, &summary, &info, out)?,
        None => print_roles(&model, &info, out)?,
    }
    writeln!(out)?;
    listing::print_tensors(&model, out)
}

/// Prints the number of tensors of each scheme and role, the problems, and the size of the file.
fn print_roles(model: &ParsedModel, info: &InspectInfo, out: &mut impl Write) -> Result<()> {
    writeln!(out, "{} parsed", counted(info.tensor_count, "tensor"))?;
    for s in &info.schemes {
        let role = TensorRole::Quantized;
        writeln!(out, "  {:>3} {role:<11} {}", s.tensors, s.scheme.column())?;
    }
    for (n, role, what) in remarks(model, info) {
        if n > 0 {
            writeln!(out, "  {n:>3} {role:<11} {what}")?;
        }
    }
    for problem in &info.problems {
        writeln!(out, "Problem: {}", printable(problem))?;
    }
    let size = format_bytes(model.file_size().unwrap_or(0));
    writeln!(out, "File: {size}")?;
    Ok(())
}

/// For each role: the number of tensors, and a remark.
fn remarks(model: &ParsedModel, info: &InspectInfo) -> [(usize, TensorRole, String); 9] {
    let kinds = match info.passthrough_kinds.as_slice() {
        [] => String::new(),
        kinds => format!(" ({})", kinds.join(", ")),
    };
    let passthrough = join_dtypes(&info.passthrough_dtypes) + &kinds;
    let with_role = |role| model.tensors().filter(move |t| t.role() == role);
    let dtypes = |role, what: &str| {
        let found: BTreeSet<_> = with_role(role).map(|t| t.dtype()).collect();
        join_dtypes(&found) + what
    };
    let is_packed = |t: Tensor<'_>| t.name().ends_with(".qzeros");
    let packed = match with_role(TensorRole::ZeroPoint).any(is_packed) {
        true => " (packed)",
        false => "",
    };
    let order = info.order_of_columns();
    let order = order.map_or(String::new(), |order| format!(" ({order})"));
    let of = |n, role, what: &str| (n, role, dtypes(role, what));
    let fixed = |n, role, what: &str| (n, role, what.to_owned());
    [
        of(info.scales, TensorRole::Scale, ""),
        of(info.zeropoints, TensorRole::ZeroPoint, packed),
        of(info.offsets, TensorRole::Offset, ""),
        of(info.group_indices, TensorRole::GroupIndex, &order),
        of(info.quant_maps, TensorRole::QuantMap, " (lookup tables)"),
        of(info.nested_scales, TensorRole::NestedScale, " (double-quant absmax)"),
        fixed(info.quant_states, TensorRole::QuantState, "(descriptions of the quantization)"),
        fixed(
            info.activations,
            TensorRole::Activation,
            "(scales of activations, left out when recovered)",
        ),
        (info.passthrough, TensorRole::Passthrough, passthrough),
    ]
}

/// The names of `dtypes`, joined by commas.
fn join_dtypes<'a>(dtypes: impl IntoIterator<Item = &'a Dtype>) -> String {
    let names: Vec<String> = dtypes.into_iter().map(Dtype::to_string).collect();
    names.join(", ")
}

/// What `amn parse --json` prints.
#[derive(serde::Serialize)]
struct ParsedTensors<'a> {
    #[serde(flatten)]
    inspection: Inspection<'a>,
    tensors: Vec<ListedTensor<'a>>,
}

/// What `amn inspect --globals --json` prints.
#[derive(serde::Serialize)]
struct NamedGlobals<'a> {
    file: Cow<'a, str>,
    globals: Vec<crate::PickleGlobal>,
}

/// What `amn inspect --json` prints.
#[derive(serde::Serialize)]
struct Inspection<'a> {
    file: Cow<'a, str>,
    #[serde(flatten)]
    info: &'a InspectInfo,
    model: &'a ModelDescription,
}

/// Prints the format and the sizes before and after recovery; with `--globals`, the globals of a
/// pickle; of several models a table.
pub(super) fn inspect(args: &InspectArgs, out: &mut impl Write) -> CommandResult {
    match args.files.as_slice() {
        [file] if args.globals => Ok(print_globals(file, args, out)?),
        [file] => Ok(inspect_one(file, args, out)?),
        _ if args.globals => {
            let what = "--globals: it lists what one file names; several are given";
            Err(AnamnesisError::usage(what).into())
        }
        _ => several::inspect(args, out),
    }
}

fn inspect_one(file: &Path, args: &InspectArgs, out: &mut impl Write) -> Result<()> {
    let model = input::open_below(file, args.root.as_deref(), &args.limits)?.model;
    let (info, mut description) = (model.inspect(), model.describe());
    if args.json {
        let file = file.to_string_lossy();
        return print_json(&Inspection { file, info: &info, model: &description }, out);
    }
    if let Some(summary) = GgufInspectInfo::of_inspected(&model, &info) {
        writeln!(out, "{summary}")?;
        // The summary has it.
        description.architecture = None;
        writeln!(out, "{description}")?;
        space::print(&model, out)?;
        return print_problems(&info, out);
    }
    writeln!(out, "{info}")?;
    writeln!(out, "{description}")?;
    space::print(&model, out)?;
    if model.path().is_some_and(Path::is_dir) {
        print_modules(&info, out)
    } else {
        Ok(())
    }
}

/// Prints a line for each module class.
fn print_modules(info: &InspectInfo, out: &mut impl Write) -> Result<()> {
    let width = info
        .modules
        .iter()
        .map(|m| m.class.chars().count())
        .max()
        .unwrap_or(0)
        .min(64);
    for m in &info.modules {
        let (class, bits, scheme) = (printable(&m.class), m.bits_per_weight(), m.scheme.column());
        let line = format!(
            "  {class:<width$} {:>5} x {:>14} values {bits:>6.2} bits  {scheme}",
            m.tensors, m.parameters
        );
        writeln!(out, "{}", cut(&line, line_width().unwrap_or(usize::MAX)))?;
    }
    Ok(())
}

/// Prints the globals that a pickle names.
fn print_globals(file: &Path, args: &InspectArgs, out: &mut impl Write) -> Result<()> {
    let globals = crate::pickle_globals_with_limits(file, &args.limits.limits())?;
    if args.json {
        let file = file.to_string_lossy();
        return print_json(&NamedGlobals { file, globals }, out);
    }
    for global in globals {
        let verdict = if global.allowed { "allowed" } else { "refused" };
        writeln!(out, "{verdict}  {}.{}", printable(&global.module), printable(&global.name))?;
    }
    Ok(())
}

/// Prints the summary of a GGUF file, and the problems.
fn print_gguf(
    path: &Path,
    summary: &GgufInspectInfo,
    info: &InspectInfo,
    out: &mut impl Write,
) -> Result<()> {
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    writeln!(out, "Parsed {} (GGUF v{})", printable(&name), summary.version)?;
    if let Some(architecture) = &summary.architecture {
        writeln!(out, "  Arch:       {}", printable(architecture))?;
    }
    writeln!(out, "  Tensors:    {}", summary.tensor_count)?;
    writeln!(out, "  Total size: {}", format_bytes(summary.total_bytes))?;
    writeln!(out, "  Dtypes:     {}", join_dtypes(&summary.dtypes))?;
    writeln!(out, "  Alignment:  {} bytes", summary.alignment)?;
    print_problems(info, out)
}

/// Prints the reasons why a model cannot be recovered.
fn print_problems(info: &InspectInfo, out: &mut impl Write) -> Result<()> {
    for problem in &info.problems {
        writeln!(out, "Problem:     {}", printable(problem))?;
    }
    Ok(())
}
