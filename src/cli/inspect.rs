//! `amn parse` and `amn inspect`.

use std::io::Write;
use std::path::Path;

use super::args::{InspectArgs, ParseArgs};
use super::{input, listing};
use crate::error::printable;
use crate::inspect::{format_bytes, join_dtypes};
use crate::{GgufInspectInfo, InspectInfo, ParsedModel, Result, TensorRole};

/// Prints the number of tensors of each role, for a GGUF file its header, and a line for each tensor.
pub(super) fn parse(args: &ParseArgs, out: &mut impl Write) -> Result<()> {
    let model = input::open(&args.input, &args.limits)?.model;
    let info = model.inspect();
    match GgufInspectInfo::of_inspected(&model, &info) {
        Some(summary) => print_gguf(&args.input.file, &summary, &info, out)?,
        None => print_roles(&model, &info, out)?,
    }
    writeln!(out)?;
    listing::print_tensors(&model, out)
}

/// Prints the number of tensors of each scheme and role, the problems, and the size of the file.
fn print_roles(model: &ParsedModel, info: &InspectInfo, out: &mut impl Write) -> Result<()> {
    writeln!(out, "{} tensors parsed", info.tensor_count)?;
    for s in &info.schemes {
        let role = TensorRole::Quantized;
        writeln!(out, "  {:>3} {role:<11} {}", s.tensors, s.scheme.column())?;
    }
    for (n, role, what) in roles(info) {
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
fn roles(info: &InspectInfo) -> [(usize, TensorRole, String); 8] {
    let kinds = match info.passthrough_kinds.as_slice() {
        [] => String::new(),
        kinds => format!(" ({})", kinds.join(", ")),
    };
    let passthrough = join_dtypes(&info.passthrough_dtypes) + &kinds;
    let fixed = |n, role, what: &str| (n, role, what.to_owned());
    [
        (
            info.scales,
            TensorRole::Scale,
            join_dtypes(&info.scale_dtypes),
        ),
        fixed(info.zeropoints, TensorRole::ZeroPoint, "I32 (packed)"),
        fixed(
            info.group_indices,
            TensorRole::GroupIndex,
            "I32 (activation-order)",
        ),
        fixed(info.quant_maps, TensorRole::QuantMap, "F32 (lookup tables)"),
        fixed(
            info.nested_scales,
            TensorRole::NestedScale,
            "F32 (double-quant absmax)",
        ),
        fixed(
            info.quant_states,
            TensorRole::QuantState,
            "(descriptions of the quantization)",
        ),
        fixed(
            info.activations,
            TensorRole::Activation,
            "(scales of activations, left out when recovered)",
        ),
        (info.passthrough, TensorRole::Passthrough, passthrough),
    ]
}

/// Prints the format and the sizes before and after recovery; with `--globals`, the globals of a pickle.
pub(super) fn inspect(args: &InspectArgs, out: &mut impl Write) -> Result<()> {
    if args.globals {
        return print_globals(args, out);
    }
    let model = input::open(&args.input, &args.limits)?.model;
    let info = model.inspect();
    if let Some(summary) = GgufInspectInfo::of_inspected(&model, &info) {
        writeln!(out, "{summary}")?;
        return print_problems(&info, out);
    }
    writeln!(out, "{info}")?;
    if model.path().is_some_and(Path::is_dir) {
        print_modules(&info, out)
    } else {
        Ok(())
    }
}

/// Prints a line for each module class.
fn print_modules(info: &InspectInfo, out: &mut impl Write) -> Result<()> {
    let bits = info.current_size as f64 * 8.0 / (info.parameters() as f64).max(1.0);
    writeln!(
        out,
        "Parameters:  {} ({bits:.2} bits each as stored)",
        info.parameters()
    )?;
    let width = info
        .modules
        .iter()
        .map(|m| m.class.chars().count())
        .max()
        .unwrap_or(0)
        .min(64);
    for m in &info.modules {
        let (class, bits, scheme) = (printable(&m.class), m.bits_per_weight(), m.scheme.column());
        writeln!(
            out,
            "  {class:<width$} {:>5} x {:>14} values {bits:>6.2} bits  {scheme}",
            m.tensors, m.parameters
        )?;
    }
    Ok(())
}

/// Prints the globals that a pickle names.
fn print_globals(args: &InspectArgs, out: &mut impl Write) -> Result<()> {
    for global in crate::pickle_globals_with_limits(&args.input.file, &args.limits.limits())? {
        let verdict = if global.allowed { "allowed" } else { "refused" };
        writeln!(
            out,
            "{verdict}  {}.{}",
            printable(&global.module),
            printable(&global.name)
        )?;
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
    writeln!(
        out,
        "Parsed {} (GGUF v{})",
        printable(&name),
        summary.version
    )?;
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
