//! `amn remember`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::args::RememberArgs;
use super::progress;
use crate::error::printable;
use crate::{
    AnamnesisError, CancelToken, QuantScheme, RememberOptions, Report, Result, TargetDtype, format_bytes, parse,
};

/// Decodes a file and says what was done.
pub(super) fn remember(args: &RememberArgs, out: &mut impl Write) -> Result<()> {
    let model = parse(&args.file)?;
    let output = args.output.clone().unwrap_or_else(|| derive_output(&args.file, args.to));
    let cancel = CancelToken::new();
    let on_signal = cancel.clone();
    ctrlc::set_handler(move || on_signal.cancel()).map_err(|e| AnamnesisError::Io(std::io::Error::other(e)))?;

    let mut options = RememberOptions::new(args.to).with_force(args.force).with_cancel(cancel);
    if let Some(threads) = args.threads {
        options = options.with_threads(threads as usize);
    }
    let bar = progress::bar();
    let (moving, started) = (bar.clone(), Instant::now());
    let recovery = model.recovery(options.with_progress(move |p| moving.set_position(p.done_bytes)))?;
    let report = recovery.report();
    say(out, format_args!("Parsing...   {} tensors, {}", model.tensors().len(), schemes(report)));
    progress::start(&bar, report.recovered(), report.output_bytes);
    let result = recovery.write(&output);
    bar.finish_and_clear();
    let report = result?;
    let seconds = started.elapsed().as_secs_f64();
    say(out, format_args!("Recalling... {} tensors [====================] {seconds:.1}s", report.recovered()));
    for note in &report.notes {
        say(out, format_args!("Note: {}", printable(note)));
    }
    let name = printable(&output.to_string_lossy());
    say(out, format_args!("Output: {name} ({})", format_bytes(report.output_bytes)));
    Ok(())
}

/// A line for whoever listens. The output file matters more than a reader who has gone.
fn say(out: &mut impl Write, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// The schemes of a plan: one in the same line, several one a line with their counts.
fn schemes(report: &Report) -> String {
    match report.schemes.as_slice() {
        [] => QuantScheme::Unquantized.phrase(),
        [only] => only.scheme.phrase(),
        several => {
            let each = several.iter().map(|s| format!("\n{:>15} {}", s.tensors, s.scheme.phrase()));
            format!("{} schemes{}", several.len(), each.collect::<String>())
        }
    }
}

/// Endings of file names that name a quantization, which a recovered file is not.
const QUANT_SUFFIXES: &[&str] = &[
    "gptq-int4",
    "gptq-int8",
    "gptq4",
    "gptq8",
    "gptq",
    "awq",
    "bnb-4bit",
    "bnb-int8",
    "bnb",
    "4bit",
    "int4",
    "int8",
    "fp8",
    "nf4",
    "nvfp4",
    "fp4",
];

/// `dir/model-fp8.safetensors` as `dir/model-bf16.safetensors`.
fn derive_output(input: &Path, to: TargetDtype) -> PathBuf {
    let stem = input.file_stem().unwrap_or_default().to_string_lossy();
    let lower = stem.to_ascii_lowercase();
    let cut = QUANT_SUFFIXES.iter().find_map(|suffix| {
        let rest = lower.strip_suffix(suffix)?.strip_suffix(['-', '_'])?;
        (!rest.is_empty()).then_some(rest.len())
    });
    let stem = &stem[..cut.unwrap_or(stem.len())];
    input.with_file_name(format!("{stem}-{}.safetensors", to.to_string().to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_names() {
        let derive = |name: &str| derive_output(Path::new(name), TargetDtype::BF16).to_string_lossy().into_owned();
        assert_eq!(derive("a/model-fp8.safetensors"), "a/model-bf16.safetensors");
        assert_eq!(derive("Llama-3-GPTQ-Int4.safetensors"), "Llama-3-bf16.safetensors");
        assert_eq!(derive("model.safetensors"), "model-bf16.safetensors");
        assert_eq!(derive("fp8.safetensors"), "fp8-bf16.safetensors");
    }
}
