//! Writes the output of `amn remember`, `forget` and `convert`, and says what was done.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::args::RunArgs;
use super::plan::{parsing_line, print_plan};
use super::progress::{Meter, Work};
use super::report::{
    ConversionReport, by_reason, print_distance, print_json, print_kept, print_line,
};
use super::{CommandError, CommandResult, input, signals, sums};
use crate::error::printable;
use crate::{
    AnamnesisError, CancelToken, ConvertOptions, ConvertTarget, ModelScope, ParsedModel, Recovery,
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
}

/// Converts the model and prints what is done; with `--dry-run`, only prints the plan.
pub(super) fn write(
    input: &input::NamedModel,
    options: &ConvertOptions,
    args: &RunArgs,
    style: &OutputStyle<'_>,
    out: &mut impl Write,
) -> CommandResult {
    let (meter, started) = (
        Meter::new(&args.messages, args.progress.progress),
        Instant::now(),
    );
    let mut options = options.clone();
    options.skip_unsupported = args.select.skip_unsupported;
    (options.max_shard_size, options.part, options.resume) =
        (args.output.max_shard_size, args.part(), args.resume);
    options.sha256 = args.output.hashes();
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
    options.run = options.run.with_progress(meter.listener());
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
        return Err(nothing_encoded(scheme, report).into());
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
        match args.json {
            true => print_json(&conversion(report, None), out)?,
            false => print_plan(input, &recovery, &output, out)?,
        }
        return Ok(());
    }
    let says = !args.json && !args.messages.quiet;
    if says {
        print_line(out, format_args!("{}", parsing_line(input, report)));
    }
    let (verb, n) = match (report.recovered(), report.encoded.len()) {
        (0, 0) => ("Copying...  ", report.passthrough),
        (n, 0) => ("Recalling...", n),
        (_, n) => ("Forgetting...", n),
    };
    if let Some(manifest) = &args.output.manifest {
        sums::check_place(manifest, &output, args.output.force)?;
    }
    if recovery.is_directory() {
        settle(&output, args.messages.quiet)?;
    }
    let files = recovery.paths(&output);
    let (total_bytes, total_tensors) = recovery.work();
    meter.start(Work {
        verb,
        files: files
            .iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect(),
        total_bytes,
        total_tensors,
    });
    let result = recovery.write(&output);
    meter.finish(result.is_ok());
    let report = result.map_err(|error| with_advice(error, &recovery, &output))?;
    let seconds = started.elapsed().as_secs_f64();
    let manifest = args.output.manifest.as_deref();
    if let Some(manifest) = manifest {
        sums::write(manifest, &report.sha256, args.output.force)?;
    }
    if args.json {
        print_json(&conversion(&report, Some(seconds)), out)?;
    }
    if says {
        let done = format!("{verb} {n} tensors [====================] {seconds:.1}s");
        print_line(out, format_args!("{done}"));
        print_kept(&report, args.messages.verbose, out);
        for note in &report.notes {
            print_line(out, format_args!("Note: {}", printable(note)));
        }
        print_distance(&report, out);
        print_outputs(&recovery, &output, &report, out);
    }
    if !args.json && args.output.sha256 {
        sums::print(&report.sha256, out);
    }
    Ok(())
}

/// Prints the files that were written: their directory, or each of them.
fn print_outputs(recovery: &Recovery<'_>, output: &Path, report: &Report, out: &mut impl Write) {
    let paths = recovery.written_paths(output);
    let len = |path: &PathBuf| path.metadata().map_or(0, |there| there.len());
    let line = |out: &mut _, path: &Path, what: &str| {
        let path = printable(&path.to_string_lossy());
        print_line(out, format_args!("Output: {path} ({what})"));
    };
    let all = recovery.paths(output).len();
    match paths.first().and_then(|path| path.parent()) {
        Some(unfinished) if recovery.is_directory() && unfinished != output => {
            let size = format_bytes(paths.iter().map(len).sum());
            let what = format!("{} of {all} files of weights, {size}", paths.len());
            line(out, unfinished, &what);
        }
        _ if recovery.is_directory() => {
            let size = format_bytes(report.output_bytes);
            line(out, output, &format!("{all} files of weights, {size}"));
        }
        _ => {
            for path in &paths {
                let bytes = match paths.len() {
                    1 => report.output_bytes,
                    _ => len(path),
                };
                line(out, path, &format_bytes(bytes));
            }
        }
    }
}

/// Adds to an error of an interrupted conversion what is left of it.
fn with_advice(error: AnamnesisError, recovery: &Recovery<'_>, output: &Path) -> CommandError {
    let mut failed = CommandError::from(error);
    if matches!(failed.error, AnamnesisError::Cancelled) {
        let unfinished = recovery.unfinished(output);
        failed.advice = Some(match unfinished {
            Some(unfinished) => format!(
                "`{}` has {} of {} files of weights; the same command with --resume makes the others",
                printable(&unfinished.path.to_string_lossy()),
                unfinished.finished,
                recovery.paths(output).len()
            ),
            None => "nothing of the output is left".to_owned(),
        });
    }
    failed
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

/// Finishes or undoes what an interrupted run left at its end, and unless `is_quiet` says so on stderr at once: the run that
/// follows may be refused. Returns whether that run's output has its name now.
pub(super) fn settle(output: &Path, is_quiet: bool) -> Result<bool> {
    let Some(settled) = crate::convert::settle(output)? else {
        return Ok(false);
    };
    if !is_quiet {
        let _ = writeln!(std::io::stderr(), "note: {}", printable(&settled.note));
    }
    Ok(settled.is_finished)
}
