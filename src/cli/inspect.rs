//! `amn parse` and `amn inspect`.

use std::io::Write;

use super::args::FileArgs;
use crate::error::printable;
use crate::inspect::{format_bytes, names};
use crate::{InspectInfo, Result, parse as parse_file};

/// Counts the tensors by role.
pub(super) fn parse(args: &FileArgs, out: &mut impl Write) -> Result<()> {
    let model = parse_file(&args.file)?;
    let info = model.inspect();
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
    writeln!(out, "File: {}", format_bytes(model.file_size().unwrap_or(0)))?;
    Ok(())
}

fn roles(info: &InspectInfo) -> [(usize, &'static str, String); 8] {
    [
        (info.scales, "scale", names(&info.scale_dtypes)),
        (info.zeropoints, "zero-point", "I32 (packed)".to_owned()),
        (info.group_indices, "g_idx", "I32 (activation-order)".to_owned()),
        (info.quant_maps, "quant-map", "F32 (lookup tables)".to_owned()),
        (info.nested_scales, "nested", "F32 (double-quant absmax)".to_owned()),
        (info.quant_states, "quant-state", "(descriptions of the quantization)".to_owned()),
        (info.activations, "activation", "(scales of activations, left out when recovered)".to_owned()),
        (info.passthrough, "passthrough", format!("{} (norms, embeddings, lm_head)", names(&info.passthrough_dtypes))),
    ]
}

/// Shows format and sizes.
pub(super) fn inspect(args: &FileArgs, out: &mut impl Write) -> Result<()> {
    let info = parse_file(&args.file)?.inspect();
    writeln!(out, "{info}")?;
    Ok(())
}
