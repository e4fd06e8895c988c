//! `amn parse` and `amn inspect`.

use std::io::Write;

use super::args::{FileArgs, InspectArgs};
use super::input;
use crate::error::printable;
use crate::inspect::{format_bytes, join_dtypes};
use crate::{InspectInfo, Result};

/// Prints the number of tensors of each role; for a GGUF file, lists its tensors.
pub(super) fn parse(args: &FileArgs, out: &mut impl Write) -> Result<()> {
    let model = input::open(args)?.model;
    let info = model.inspect();
    if let Some(summary) = crate::GgufInspectInfo::of(&model) {
        return print_gguf(&args.file, &model, &summary, &info, out);
    }
    writeln!(out, "{} tensors parsed", info.tensor_count)?;
    for s in &info.schemes {
        writeln!(out, "  {:>3} quantized   {}", s.tensors, s.scheme.column())?;
    }
    for (n, role, what) in roles(&info) {
        if n > 0 {
            writeln!(out, "  {n:>3} {role:<11} {what}")?;
        }
    }
    for problem in &info.problems {
        writeln!(out, "Problem: {}", printable(problem))?;
    }
    writeln!(
        out,
        "File: {}",
        format_bytes(model.file_size().unwrap_or(0))
    )?;
    Ok(())
}

/// For each role: the number of tensors, its name in the listing, and a remark.
fn roles(info: &InspectInfo) -> [(usize, &'static str, String); 8] {
    [
        (info.scales, "scale", join_dtypes(&info.scale_dtypes)),
        (info.zeropoints, "zero-point", "I32 (packed)".to_owned()),
        (
            info.group_indices,
            "g_idx",
            "I32 (activation-order)".to_owned(),
        ),
        (
            info.quant_maps,
            "quant-map",
            "F32 (lookup tables)".to_owned(),
        ),
        (
            info.nested_scales,
            "nested",
            "F32 (double-quant absmax)".to_owned(),
        ),
        (
            info.quant_states,
            "quant-state",
            "(descriptions of the quantization)".to_owned(),
        ),
        (
            info.activations,
            "activation",
            "(scales of activations, left out when recovered)".to_owned(),
        ),
        (
            info.passthrough,
            "passthrough",
            format!(
                "{} (norms, embeddings, lm_head)",
                join_dtypes(&info.passthrough_dtypes)
            ),
        ),
    ]
}

/// Prints the format and the sizes before and after recovery; with `--globals`, the globals of a pickle.
pub(super) fn inspect(args: &InspectArgs, out: &mut impl Write) -> Result<()> {
    if args.globals {
        return print_globals(&args.input, out);
    }
    let model = input::open(&args.input)?.model;
    if let Some(summary) = crate::GgufInspectInfo::of(&model) {
        writeln!(out, "{summary}")?;
        return print_problems(&model.inspect(), out);
    }
    let info = model.inspect();
    writeln!(out, "{info}")?;
    if model.path().is_some_and(std::path::Path::is_dir) {
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
fn print_globals(args: &FileArgs, out: &mut impl Write) -> Result<()> {
    for global in crate::pickle_globals(&args.file)? {
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

/// Prints a summary of a GGUF file, and a line for each tensor. Shapes have the innermost dimension first, as ggml prints them.
fn print_gguf(
    path: &std::path::Path,
    model: &crate::ParsedModel,
    summary: &crate::GgufInspectInfo,
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
    writeln!(out)?;
    for t in model.tensors() {
        let shape: Vec<usize> = t.shape().iter().rev().copied().collect();
        let (name, dtype, shape) = (printable(t.name()), t.dtype(), format!("{shape:?}"));
        writeln!(
            out,
            "  {name:<40} {dtype:<8} {shape:<15} {}",
            format_bytes(t.info().len)
        )?;
    }
    print_problems(info, out)
}

/// Prints the reasons why a model cannot be recovered.
fn print_problems(info: &InspectInfo, out: &mut impl Write) -> Result<()> {
    for problem in &info.problems {
        writeln!(out, "Problem:     {}", printable(problem))?;
    }
    Ok(())
}
