//! `amn remember` and `amn convert`.

use std::io::Write;

use super::args::{ConvertArgs, ConvertTo, RememberArgs};
use super::report::print_line;
use super::write::{OutputStyle, run_options, settle, write};
use super::{applies, input};
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
    let run = run_options(args.to, &args.run)?.with_cast(args.cast.cast());
    let mut options = ConvertOptions::from(run);
    let output = args.run.output.path.as_deref();
    options.target = applies::remembered_as(output).unwrap_or_default();
    write(
        &input,
        &options,
        &args.run,
        &OutputStyle {
            suffix: None,
            verbose: false,
            asks_dtype: true,
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
    options.gguf_metadata = metadata(args)?;
    let input = input::open(&args.input, &args.run.limits)?;
    let to = args.out_dtype.unwrap_or(options.run.to);
    options.run = run_options(to, &args.run)?.with_cast(args.cast.cast());
    let suffix = match &args.to {
        ConvertTo::Scheme(scheme) => Some(scheme.suffix()),
        ConvertTo::Container(container) => {
            let suffix = container.container().suffix;
            suffix
                .filter(|_| args.out_dtype.is_none())
                .map(str::to_owned)
        }
    };
    write(
        &input,
        &options,
        &args.run,
        &OutputStyle {
            suffix: suffix.as_deref(),
            verbose: args.verbose,
            asks_dtype: args.out_dtype.is_some(),
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
