//! Writes the output of `amn remember`, `forget` and `convert`, and says what was done.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use super::args::RunArgs;
use super::plan::{parsing_line, print_plan};
use super::report::{
    ConversionReport, by_reason, print_distance, print_json, print_kept, print_line,
};
use super::{input, progress, signals};
use crate::error::printable;
use crate::{
    AnamnesisError, CancelToken, ConvertOptions, ConvertTarget, ModelScope, ParsedModel,
    RememberOptions, Report, Result, TargetDtype, format_bytes,
};

/// The options that all commands share. Ctrl-C cancels the conversion instead of ending the process, so that temporary files are
/// removed.
pub(super) fn run_options(to: TargetDtype, args: &RunArgs) -> Result<RememberOptions> {
    let cancel = CancelToken::new();
    signals::cancel_at_termination(&cancel)?;
    let options = RememberOptions::new(to)
        .with_force(args.output.force)
        .with_cancel(cancel);
    Ok(match args.threads {
        Some(threads) => options.with_threads(threads as usize),
        None => options,
    })
}

/// How a command names its output and reports its work.
pub(super) struct OutputStyle<'a> {
    /// Suffix of the output's default name, such as `bf16`.
    pub suffix: &'a str,
    /// Whether to name the tensors that are not encoded.
    pub verbose: bool,
}

/// Converts the model and prints what is done; with `--dry-run`, only prints the plan.
pub(super) fn write(
    input: &input::NamedModel,
    options: &ConvertOptions,
    args: &RunArgs,
    style: &OutputStyle<'_>,
    out: &mut impl Write,
) -> Result<()> {
    let bar = progress::bar();
    let (moving, started) = (bar.clone(), Instant::now());
    let mut options = options.clone();
    options.skip_unsupported = args.select.skip_unsupported;
    (options.max_shard_size, options.part, options.resume) =
        (args.output.max_shard_size, args.part, args.resume);
    if !options.encodes() {
        (options.include, options.exclude) =
            (args.select.include.clone(), args.select.exclude.clone());
    }
    let extension = options.target.extension();
    let named = args
        .output
        .path
        .as_deref()
        .and_then(|output| output.extension());
    options.single_file =
        named.is_some_and(|ending| ending == extension) && args.output.max_shard_size.is_none();
    (options.scope, options.pre_tokenizer) = (
        scope(&input.model, &options, args),
        args.output.tokenizer_pre.clone(),
    );
    options.run = options
        .run
        .with_progress(move |p| moving.set_position(p.done_bytes));
    let keep = options.carries_blocks(&input.model);
    let scheme = options
        .forget
        .as_ref()
        .map(|forget| forget.scheme.to_string());
    let recovery = input.model.recovery(options)?;
    let output = args
        .output
        .path
        .clone()
        .unwrap_or_else(|| match recovery.is_directory() {
            true => input::output_directory(&input.named, style.suffix),
            false => input::output_file(&input.named, style.suffix, extension, keep),
        });
    let report = recovery.report();
    if let Some(scheme) = scheme.as_ref().filter(|_| report.encoded.is_empty()) {
        return Err(nothing_encoded(scheme, report));
    }
    let conversion = |report, seconds| {
        ConversionReport::new(
            input,
            &recovery,
            &output,
            scheme.as_deref(),
            report,
            seconds,
        )
    };
    if args.dry_run {
        return match args.json {
            true => print_json(&conversion(report, None), out),
            false => print_plan(input, &recovery, &output, out),
        };
    }
    if !args.json {
        print_line(out, format_args!("{}", parsing_line(input, report)));
    }
    let (verb, n) = match (report.recovered(), report.encoded.len()) {
        (0, 0) => ("Copying...  ", report.passthrough),
        (n, 0) => ("Recalling...", n),
        (_, n) => ("Forgetting...", n),
    };
    if recovery.is_directory() {
        settle(&output)?;
    }
    progress::start(&bar, verb, n, report.output_bytes);
    let result = recovery.write(&output);
    bar.finish_and_clear();
    let report = result?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        return print_json(&conversion(&report, Some(seconds)), out);
    }
    print_line(
        out,
        format_args!("{verb} {n} tensors [====================] {seconds:.1}s"),
    );
    print_kept(&report, style.verbose, out);
    for note in &report.notes {
        print_line(out, format_args!("Note: {}", printable(note)));
    }
    print_distance(&report, out);
    let paths = recovery.paths(&output);
    if recovery.is_directory() {
        let (path, size) = (
            printable(&output.to_string_lossy()),
            format_bytes(report.output_bytes),
        );
        print_line(
            out,
            format_args!("Output: {path} ({} files of weights, {size})", paths.len()),
        );
        return Ok(());
    }
    for path in &paths {
        let bytes = if paths.len() == 1 {
            report.output_bytes
        } else {
            path.metadata().map_or(0, |m| m.len())
        };
        print_line(
            out,
            format_args!(
                "Output: {} ({})",
                printable(&path.to_string_lossy()),
                format_bytes(bytes)
            ),
        );
    }
    Ok(())
}

/// The error that no tensor can be encoded to `scheme`, with the reasons.
fn nothing_encoded(scheme: &str, report: &Report) -> AnamnesisError {
    let reasons = by_reason(report).into_iter();
    let reasons = reasons.map(|(reason, names)| format!("{}: {reason}", names.len()));
    let what = match reasons.collect::<Vec<_>>().as_slice() {
        [] => "the model has no tensors".to_owned(),
        reasons => format!("no tensor can be encoded to it ({})", reasons.join("; ")),
    };
    AnamnesisError::unsupported(scheme, what)
}

/// Whether the output is a whole model. A GGUF file becomes one where a directory is asked for; some of its tensors are none.
fn scope(model: &ParsedModel, options: &ConvertOptions, args: &RunArgs) -> ModelScope {
    let is_some = !(args.select.include.is_empty() && args.select.exclude.is_empty());
    let is_directory = args.output.path.is_some() && !options.single_file;
    match () {
        () if args.output.tensors_only => ModelScope::Tensors,
        () if is_some || !is_directory || !model.is_gguf() => ModelScope::Auto,
        () if options.target == ConvertTarget::Safetensors => ModelScope::Model,
        () => ModelScope::Auto,
    }
}

/// Finishes or undoes what an interrupted run left at its end, and says so on stderr at once: the run that follows may be refused.
/// Returns whether that run's output has its name now.
pub(super) fn settle(output: &Path) -> Result<bool> {
    let Some(settled) = crate::convert::settle(output)? else {
        return Ok(false);
    };
    let _ = writeln!(std::io::stderr(), "note: {}", printable(&settled.note));
    Ok(settled.is_finished)
}
