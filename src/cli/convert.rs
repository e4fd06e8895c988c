//! `amn remember` and `amn convert`.

use std::io::Write;
use std::time::Instant;

use super::args::{ConvertArgs, RememberArgs, RunArgs};
use super::{input, progress};
use crate::error::printable;
use crate::{
    AnamnesisError, CancelToken, ConvertOptions, ConvertTarget, QuantScheme, RememberOptions, Report, Result,
    TargetDtype, format_bytes,
};

/// Decodes a file and says what was done.
pub(super) fn remember(args: &RememberArgs, out: &mut impl Write) -> Result<()> {
    let input = input::open(&args.input)?;
    let options = ConvertOptions::from(run_options(args.to, &args.run)?);
    let suffix = args.to.to_string().to_lowercase();
    write(&input, &options, &args.run, &suffix, out)
}

/// Writes a model into another container.
pub(super) fn convert(args: &ConvertArgs, out: &mut impl Write) -> Result<()> {
    #[cfg_attr(not(feature = "gguf"), allow(unused_mut))]
    let mut options = ConvertOptions::new(args.to).with_decode(args.out_dtype.is_some());
    options.max_shard_size = args.max_shard_size;
    if (args.gguf_metadata.is_some() || !args.gguf_kv.is_empty()) && args.to != ConvertTarget::Gguf {
        return Err(AnamnesisError::unsupported("GGUF metadata", "only a GGUF output has it; use --to gguf"));
    }
    #[cfg(feature = "gguf")]
    {
        options.gguf_metadata = metadata(args)?;
    }
    let input = input::open(&args.input)?;
    let to = args.out_dtype.unwrap_or_default();
    options.run = run_options(to, &args.run)?;
    let suffix = match args.to {
        _ if args.out_dtype.is_some() => to.to_string().to_lowercase(),
        ConvertTarget::Safetensors | ConvertTarget::Npz => to.to_string().to_lowercase(),
        ConvertTarget::Gguf => "gguf".to_owned(),
        ConvertTarget::Qnat => "nf4".to_owned(),
    };
    write(&input, &options, &args.run, &suffix, out)
}

/// The metadata of the file, and then of the single values, which come before it.
#[cfg(feature = "gguf")]
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

fn run_options(to: TargetDtype, args: &RunArgs) -> Result<RememberOptions> {
    let cancel = CancelToken::new();
    let on_signal = cancel.clone();
    ctrlc::set_handler(move || on_signal.cancel()).map_err(|e| AnamnesisError::Io(std::io::Error::other(e)))?;
    let options = RememberOptions::new(to).with_force(args.force).with_cancel(cancel);
    Ok(match args.threads {
        Some(threads) => options.with_threads(threads as usize),
        None => options,
    })
}

/// Does the work, and says so.
fn write(
    input: &input::Input,
    options: &ConvertOptions,
    args: &RunArgs,
    suffix: &str,
    out: &mut impl Write,
) -> Result<()> {
    let output = args.output.clone();
    let output = output.unwrap_or_else(|| {
        let keep = options.carries_blocks(&input.model);
        input::output(&input.named, suffix, options.target.extension(), keep)
    });
    let bar = progress::bar();
    let (moving, started) = (bar.clone(), Instant::now());
    let mut options = options.clone();
    options.skip_unsupported = args.skip_unsupported;
    options.run = options.run.with_progress(move |p| moving.set_position(p.done_bytes));
    let recovery = input.model.recovery(options)?;
    let report = recovery.report();
    say(out, format_args!("Parsing...   {} tensors, {}", input.model.tensors().len(), schemes(input, report)));
    let (verb, n) = match report.recovered() {
        0 => ("Copying...  ", report.passthrough),
        n => ("Recalling...", n),
    };
    progress::start(&bar, verb, n, report.output_bytes);
    let result = recovery.write(&output);
    bar.finish_and_clear();
    let report = result?;
    let seconds = started.elapsed().as_secs_f64();
    say(out, format_args!("{verb} {n} tensors [====================] {seconds:.1}s"));
    for note in &report.notes {
        say(out, format_args!("Note: {}", printable(note)));
    }
    let paths = recovery.paths(&output);
    for path in &paths {
        let bytes = if paths.len() == 1 { report.output_bytes } else { path.metadata().map_or(0, |m| m.len()) };
        say(out, format_args!("Output: {} ({})", printable(&path.to_string_lossy()), format_bytes(bytes)));
    }
    Ok(())
}

/// A line for whoever listens. The output file matters more than a reader who has gone.
fn say(out: &mut impl Write, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// The schemes of a plan: one in the same line, several one a line with their counts.
fn schemes(input: &input::Input, report: &Report) -> String {
    match report.schemes.as_slice() {
        [] if input.model.is_gguf() => "GGUF, copied as it is".to_owned(),
        [] => QuantScheme::Unquantized.phrase(),
        [only] => only.scheme.phrase(),
        several => {
            let each = several.iter().map(|s| format!("\n{:>15} {}", s.tensors, s.scheme.phrase()));
            format!("{} schemes{}", several.len(), each.collect::<String>())
        }
    }
}
