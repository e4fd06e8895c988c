//! `amn remember` and `amn convert`.

use std::io::Write;

use super::args::{ConvertArgs, ConvertTo, RememberArgs};
use super::input;
use super::report::print_line;
use super::write::{OutputStyle, run_options, settle, write};
use crate::error::printable;
use crate::{AnamnesisError, ConvertOptions, Result};

/// Decodes a model and prints a summary; with `--finish`, gives a directory made in parts its name.
pub(super) fn remember(args: &RememberArgs, out: &mut impl Write) -> Result<()> {
    if args.finish {
        let output = &args.input.file;
        if !settle(output)?
            && let Some(note) = crate::convert::finish(output, args.run.output.force, true)?
        {
            print_line(out, format_args!("Note: {}", printable(&note)));
        }
        print_line(
            out,
            format_args!("Output: {}", printable(&args.input.file.to_string_lossy())),
        );
        return Ok(());
    }
    let input = input::open(&args.input, &args.run.limits)?;
    let options = ConvertOptions::from(run_options(args.to, &args.run)?);
    let suffix = args.to.to_string().to_lowercase();
    write(
        &input,
        &options,
        &args.run,
        &OutputStyle {
            suffix: &suffix,
            verbose: false,
        },
        out,
    )
}

/// Writes a model into another container.
pub(super) fn convert(args: &ConvertArgs, out: &mut impl Write) -> Result<()> {
    let mut options = match &args.to {
        ConvertTo::Container(container) => {
            ConvertOptions::new(*container).with_decode(args.out_dtype.is_some())
        }
        ConvertTo::Scheme(scheme) => ConvertOptions::from(scheme.clone()),
    };
    if (args.gguf_metadata.is_some() || !args.gguf_kv.is_empty())
        && !options.target.container().has_gguf_metadata
    {
        return Err(AnamnesisError::unsupported(
            "GGUF metadata",
            "only a GGUF output has it; use --to gguf",
        ));
    }
    options.gguf_metadata = metadata(args)?;
    let input = input::open(&args.input, &args.run.limits)?;
    let to = args.out_dtype.unwrap_or(options.run.to);
    options.run = run_options(to, &args.run)?;
    let suffix = match &args.to {
        ConvertTo::Scheme(scheme) => scheme.suffix(),
        ConvertTo::Container(container) => match container.container().suffix {
            Some(suffix) if args.out_dtype.is_none() => suffix.to_owned(),
            _ => to.to_string().to_lowercase(),
        },
    };
    write(
        &input,
        &options,
        &args.run,
        &OutputStyle {
            suffix: &suffix,
            verbose: args.verbose,
        },
        out,
    )
}

/// The GGUF metadata of `--gguf-metadata`, followed by that of `--gguf-kv`. Of two values for a key the last one counts, so single
/// values override the file.
fn metadata(args: &ConvertArgs) -> Result<Vec<(String, crate::GgufMetadataValue)>> {
    let mut all = Vec::new();
    if let Some(path) = &args.gguf_metadata {
        let text = std::fs::read_to_string(path).map_err(|e| AnamnesisError::io_at(path, &e))?;
        all = crate::parse_gguf_metadata_json(&text)?;
    }
    for text in &args.gguf_kv {
        all.push(crate::parse_gguf_kv_arg(text)?);
    }
    Ok(all)
}
