//! Writes the output of `amn remember`, `forget` and `convert`, and says what was done.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::args::RunArgs;
use super::outcome::{kept_note, not_quietly, nothing_encoded, print_outputs, with_advice};
use super::outputs::{OutputChoice, make_directory, print_input, require_outside_cache};
use super::plan::{parsing_line, print_plan};
use super::progress::{Meter, Work};
use super::report::{
    ConversionReport, print_distance, print_json, print_json_line, print_kept, print_line,
};
use super::{CommandResult, input, signals, sums};
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
    /// Whether the user has said, or the command says, which element type the output has.
    pub asks_dtype: bool,
}

/// Plans the conversion, and returns it with the path of its output.
///
/// # Errors
/// Those of [`ParsedModel::recovery`], and `Unsupported` if nothing can be encoded or an option has no effect on this model.
pub(super) fn plan<'m>(
    input: &'m input::NamedModel,
    mut options: ConvertOptions,
    args: &RunArgs,
    place: OutputChoice<'_>,
    style: &OutputStyle<'_>,
) -> Result<(Recovery<'m>, PathBuf)> {
    options.skip_unsupported = args.select.skip_unsupported;
    (options.max_shard_size, options.part, options.resume) =
        (args.output.max_shard_size, args.part(), args.resume);
    options.sha256 = args.output.hashes();
    if !options.encodes() {
        (options.include, options.exclude) =
            (args.select.include.clone(), args.select.exclude.clone());
    }
    let extension = options.target.extension();
    let named = place.path().and_then(Path::extension);
    options.single_file = named.is_some_and(|ending| ending.eq_ignore_ascii_case(extension))
        && args.output.max_shard_size.is_none()
        || args.output.is_stdout();
    (options.scope, options.pre_tokenizer) = (
        scope(&input.model, &options, args, place),
        args.output.tokenizer_pre.clone(),
    );
    let keep = options.carries_blocks(&input.model);
    let scheme = scheme_of(&options);
    let recovery = input.model.recovery(options)?;
    if args.output.tokenizer_pre.is_some() && !recovery.is_whole_model() {
        let what = "the output is no whole model of a Hugging Face directory, so it has no pre-tokenizer of that name";
        return Err(AnamnesisError::unsupported("--tokenizer-pre", what));
    }
    if let Some(scheme) = scheme.filter(|_| recovery.report().encoded.is_empty()) {
        return Err(nothing_encoded(&scheme, recovery.report()));
    }
    let suffix = style
        .suffix
        .map_or_else(|| dtype_suffix(&recovery), str::to_owned);
    let default = match recovery.is_directory() {
        true => input::output_directory(&input.named, &suffix),
        false => input::output_file(&input.named, &suffix, extension, keep),
    };
    let output = place.output(default, recovery.is_directory());
    require_outside_cache(&output)?;
    Ok((recovery, output))
}

/// Name of the scheme that tensors are encoded to.
fn scheme_of(options: &ConvertOptions) -> Option<String> {
    let forget = options.forget.as_ref();
    forget.map(|forget| forget.scheme.to_string())
}

/// Converts the model and prints what is done; with `--dry-run`, only prints the plan. What is printed goes to stderr if the output
/// goes to stdout.
pub(super) fn write(
    input: &input::NamedModel,
    options: &ConvertOptions,
    args: &RunArgs,
    place: OutputChoice<'_>,
    style: &OutputStyle<'_>,
    out: &mut impl Write,
) -> CommandResult {
    let mut stderr = std::io::stderr();
    match args.output.is_stdout() {
        true => carry_out(input, options, args, place, style, &mut stderr, Some(out)),
        false => carry_out(
            input,
            options,
            args,
            place,
            style,
            out,
            None::<&mut std::io::Sink>,
        ),
    }
}

/// Converts the model to `stdout` or, without it, to a file or directory, and prints to `out` what is done.
fn carry_out(
    input: &input::NamedModel,
    options: &ConvertOptions,
    args: &RunArgs,
    place: OutputChoice<'_>,
    style: &OutputStyle<'_>,
    out: &mut impl Write,
    stdout: Option<&mut impl Write>,
) -> CommandResult {
    let meter = Meter::new(&args.messages, args.progress.progress);
    let started = Instant::now();
    let mut options = options.clone();
    options.run = options.run.with_progress(meter.listener());
    let scheme = scheme_of(&options);
    let (recovery, output) = plan(input, options, args, place, style)?;
    let note = kept_note(recovery.report()).filter(|_| style.asks_dtype);
    let with_note = |report: &Report| {
        let mut report = report.clone();
        report.notes.extend(note.clone());
        report
    };
    let report = &with_note(recovery.report());
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
    // Of several inputs each gets its line, so that a program can read them one by one.
    let print_report = |report: &ConversionReport<'_>, out: &mut _| match place.is_of_several() {
        true => print_json_line(report, out),
        false => print_json(report, out),
    };
    let says = !args.json && !args.messages.quiet;
    if says {
        print_input(place, input, out);
    }
    if args.dry_run {
        match args.json {
            true => print_report(&conversion(report, None), out)?,
            false => print_plan(input, &recovery, report, &output, out)?,
        }
        return Ok(());
    }
    if says {
        print_line(out, format_args!("{}", parsing_line(input, report)));
    }
    let (verb, n) = verb(report);
    if let Some(manifest) = &args.output.manifest {
        sums::check_place(manifest, &output, args.output.force)?;
    }
    if recovery.is_directory() {
        settle(&output, args.messages.quiet)?;
    }
    make_directory(place, &output)?;
    meter.start(work(verb, &recovery, &output));
    let result = match stdout {
        Some(stdout) => recovery.write_in_order(stdout).map_err(not_quietly),
        None => recovery.write(&output),
    };
    meter.finish(result.is_ok());
    let report = with_note(&result.map_err(|error| with_advice(error, &recovery, &output))?);
    let seconds = started.elapsed().as_secs_f64();
    if let Some(manifest) = &args.output.manifest {
        sums::write(manifest, &report.sha256, args.output.force)?;
    }
    if args.json {
        print_report(&conversion(&report, Some(seconds)), out)?;
    }
    if says {
        let done = format!("{verb} {n} tensors [====================] {seconds:.1}s");
        print_line(out, format_args!("{done}"));
        print_kept(&report, args.messages.verbose, out);
        for note in &report.notes {
            print_line(out, format_args!("Note: {}", printable(note)));
        }
        print_distance(&report, out);
        match args.output.is_stdout() {
            true => {
                let size = format_bytes(report.output_bytes);
                print_line(out, format_args!("Output: stdout ({size})"));
            }
            false => print_outputs(&recovery, &output, &report, out),
        }
    }
    if !args.json && args.output.sha256 {
        sums::print(&report.sha256, out);
    }
    Ok(())
}

/// What is done, as a verb, and to how many tensors.
fn verb(report: &Report) -> (&'static str, usize) {
    match (report.recovered(), report.encoded.len(), report.cast) {
        (0, 0, 0) => ("Copying...  ", report.passthrough),
        (0, 0, n) => ("Casting...  ", n),
        (n, 0, _) => ("Recalling...", n),
        (_, n, _) => ("Forgetting...", n),
    }
}

/// What a progress meter shows of the conversion.
fn work(verb: &'static str, recovery: &Recovery<'_>, output: &Path) -> Work {
    let (total_bytes, total_tensors) = recovery.work();
    let files = recovery.paths(output).into_iter();
    Work {
        verb,
        files: files
            .map(|path| path.to_string_lossy().into_owned())
            .collect(),
        total_bytes,
        total_tensors,
    }
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

/// Whether the output is a whole model. A GGUF file becomes one where a directory is asked for; some of its tensors are none.
fn scope(
    model: &ParsedModel,
    options: &ConvertOptions,
    args: &RunArgs,
    place: OutputChoice<'_>,
) -> ModelScope {
    let is_some = !(args.select.include.is_empty() && args.select.exclude.is_empty());
    let is_directory = place.path().is_some() && !options.single_file;
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
