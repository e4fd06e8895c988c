//! Writes the output of `amn remember`, `forget` and `convert`, and says what was done.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
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
    /// Suffix of the output's default name, such as `nf4`; `None`: the element type of its tensors, such as `bf16`.
    pub suffix: Option<&'a str>,
    /// Whether to name the tensors that are not encoded.
    pub verbose: bool,
    /// Whether the user has said, or the command says, which element type the output has.
    pub asks_dtype: bool,
}

/// Converts the model and prints what is done; with `--dry-run`, only prints the plan. What is printed goes to stderr if the output
/// goes to stdout.
pub(super) fn write(
    input: &input::NamedModel,
    options: &ConvertOptions,
    args: &RunArgs,
    style: &OutputStyle<'_>,
    out: &mut impl Write,
) -> Result<()> {
    match args.output.is_stdout() {
        true => carry_out(
            input,
            options,
            args,
            style,
            &mut std::io::stderr(),
            Some(out),
        ),
        false => carry_out(input, options, args, style, out, None::<&mut std::io::Sink>),
    }
}

/// Converts the model to `stdout` or, without it, to a file or directory, and prints to `out` what is done.
fn carry_out(
    input: &input::NamedModel,
    options: &ConvertOptions,
    args: &RunArgs,
    style: &OutputStyle<'_>,
    out: &mut impl Write,
    stdout: Option<&mut impl Write>,
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
    options.single_file = named.is_some_and(|ending| ending.eq_ignore_ascii_case(extension))
        && args.output.max_shard_size.is_none()
        || stdout.is_some();
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
    if args.output.tokenizer_pre.is_some() && !recovery.is_whole_model() {
        let what = "the output is no whole model of a Hugging Face directory, so it has no pre-tokenizer of that name";
        return Err(AnamnesisError::unsupported("--tokenizer-pre", what));
    }
    let suffix = style
        .suffix
        .map_or_else(|| dtype_suffix(&recovery), str::to_owned);
    let output = args
        .output
        .path
        .clone()
        .unwrap_or_else(|| match recovery.is_directory() {
            true => input::output_directory(&input.named, &suffix),
            false => input::output_file(&input.named, &suffix, extension, keep),
        });
    let note = kept_note(recovery.report()).filter(|_| style.asks_dtype);
    let with_note = |report: &Report| {
        let mut report = report.clone();
        report.notes.extend(note.clone());
        report
    };
    let report = &with_note(recovery.report());
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
            false => print_plan(input, &recovery, report, &output, out),
        };
    }
    if !args.json {
        print_line(out, format_args!("{}", parsing_line(input, report)));
    }
    let (verb, n) = match (report.recovered(), report.encoded.len(), report.cast) {
        (0, 0, 0) => ("Copying...  ", report.passthrough),
        (0, 0, n) => ("Casting...  ", n),
        (n, 0, _) => ("Recalling...", n),
        (_, n, _) => ("Forgetting...", n),
    };
    if recovery.is_directory() {
        settle(&output)?;
    }
    progress::start(&bar, verb, n, report.output_bytes);
    let result = match stdout {
        Some(stdout) => recovery.write_in_order(stdout).map_err(not_quietly),
        None => recovery.write(&output),
    };
    bar.finish_and_clear();
    let report = with_note(&result?);
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
    if args.output.is_stdout() {
        print_line(
            out,
            format_args!("Output: stdout ({})", format_bytes(report.output_bytes)),
        );
        return Ok(());
    }
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

/// End of the default name of an output that is not encoded: the element type that was asked for, if a tensor has been decoded or
/// cast to it, else the one that most bytes have.
fn dtype_suffix(recovery: &Recovery<'_>) -> String {
    let (report, mut bytes) = (recovery.report(), BTreeMap::new());
    for tensor in recovery.outputs() {
        *bytes.entry(tensor.dtype.to_string()).or_insert(0) += tensor.byte_len;
    }
    let to = report.to.to_string();
    let is_made = report.recovered() + report.cast > 0 && bytes.contains_key(&to);
    let most = bytes.into_iter().max_by_key(|&(_, bytes)| bytes);
    match most {
        Some((most, _)) => (if is_made { to } else { most }).to_lowercase(),
        // It has no tensors.
        None => "copy".to_owned(),
    }
}

/// The note that floats which are not quantized keep their types; `None` if there are none but of the type that was asked for.
fn kept_note(report: &Report) -> Option<String> {
    let kept = report.kept_floats();
    let n: usize = kept.iter().map(|(_, n)| n).sum();
    let each: Vec<String> = kept
        .iter()
        .map(|(dtype, n)| format!("{n} {dtype}"))
        .collect();
    let each = each.join(", ");
    (n > 0).then(|| {
        format!("{n} tensors are not quantized and keep their type ({each}); --cast converts them")
    })
}

/// An error of writing to stdout. A pipe that is closed ends listings quietly, but here the output is not complete.
fn not_quietly(error: AnamnesisError) -> AnamnesisError {
    match error {
        AnamnesisError::Io(e) if e.kind() == ErrorKind::BrokenPipe => {
            let what = "stdout was closed before the whole output was written";
            AnamnesisError::Io(std::io::Error::other(what))
        }
        error => error,
    }
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
