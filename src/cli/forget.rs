//! `amn forget`.

use std::io::Write;
use std::path::Path;

use super::args::ForgetArgs;
use super::batch::write_all;
use super::plan::OutputStyle;
use super::write::run_options;
use super::{CommandResult, option_checks, tensor_types};
use crate::{ConvertOptions, Forget, ForgetScheme, Result};

/// Encodes a model and prints the error that this introduced; with `--list`, prints the schemes.
pub(super) fn forget(args: &ForgetArgs, out: &mut impl Write) -> CommandResult {
    let named = args.to.clone().filter(|_| !args.list);
    let (Some(mut scheme), Some(inputs)) = (named, &args.input) else {
        return Ok(list(out)?);
    };
    if let Some(group) = args.group_size {
        scheme = scheme.with_group_size(group as usize);
    }
    if let Some(rule) = &args.scale_rule {
        scheme = scheme.with_scale_rule(rule)?;
    }
    if args.pure {
        scheme = scheme.pure();
    }
    option_checks::require_files(args)?;
    let suffix = scheme.suffix();
    let to = args.out_dtype.unwrap_or_else(|| scheme.dtype());
    let mut forget = Forget::from(scheme);
    (forget.like, forget.imatrix) = (args.like.clone(), args.imatrix.clone());
    forget.activation_scales.clone_from(&args.activation_scales);
    (forget.search, forget.scales_inputs) = (args.search, args.awq_scaling);
    tensor_types::apply(&args.types, &mut forget)?;
    let mut options = ConvertOptions::from(forget);
    options.run = run_options(to, &args.run)?;
    options
        .files
        .extend(args.types.read_plan().map(Path::to_path_buf));
    args.model.apply(&mut options);
    write_all(
        inputs,
        &options,
        &args.run,
        &OutputStyle {
            suffix: Some(&suffix),
            asks_dtype: false,
            html: args.html.as_deref(),
            plan: args.types.saved_plan(),
            csv: args.csv,
        },
        out,
    )
}

/// Prints every scheme with a description.
fn list(out: &mut impl Write) -> Result<()> {
    for (name, about) in ForgetScheme::all() {
        let aliases = name.parse::<ForgetScheme>()?.aliases();
        let also = if aliases.is_empty() {
            String::new()
        } else {
            format!(" (also {})", aliases.join(", "))
        };
        writeln!(out, "{name:<18} {about}{also}")?;
    }
    let names: Vec<String> = ForgetScheme::all_gguf().map(str::to_lowercase).collect();
    writeln!(out, "{:<18} GGUF, a file type of llama.cpp's: {}", "gguf:TYPE", names.join(" "))?;
    Ok(())
}
