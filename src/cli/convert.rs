//! `amn remember` and `amn convert`.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use super::args::{ConvertArgs, ConvertTo, RememberArgs, RunArgs};
use super::report::{by_reason, print_as_json, print_distance, print_kept, print_line};
use super::{input, progress, signals};
use crate::error::printable;
use crate::{
    AnamnesisError, CancelToken, ConvertOptions, ConvertTarget, ModelScope, ParsedModel,
    QuantScheme, RememberOptions, Report, Result, TargetDtype, format_bytes,
};

/// Decodes a model and prints a summary; with `--finish`, gives a directory made in parts its name.
pub(super) fn remember(args: &RememberArgs, out: &mut impl Write) -> Result<()> {
    if args.finish {
        let output = &args.input.file;
        if !settle(output)?
            && let Some(note) = crate::convert::finish(output, args.run.force, true)?
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
            json: false,
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
            json: false,
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

/// The options that all commands share. Ctrl-C cancels the conversion instead of ending the process, so that temporary files are
/// removed.
pub(super) fn run_options(to: TargetDtype, args: &RunArgs) -> Result<RememberOptions> {
    let cancel = CancelToken::new();
    signals::cancel_at_termination(&cancel)?;
    let options = RememberOptions::new(to)
        .with_force(args.force)
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
    /// Whether to print nothing but the report as JSON, at the end.
    pub json: bool,
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
    options.skip_unsupported = args.skip_unsupported;
    (options.max_shard_size, options.part, options.resume) =
        (args.max_shard_size, args.part, args.resume);
    if !options.encodes() {
        (options.include, options.exclude) = (args.include.clone(), args.exclude.clone());
    }
    let extension = options.target.extension();
    let named = args.output.as_deref().and_then(|output| output.extension());
    options.single_file =
        named.is_some_and(|ending| ending == extension) && args.max_shard_size.is_none();
    (options.scope, options.pre_tokenizer) = (
        scope(&input.model, &options, args),
        args.tokenizer_pre.clone(),
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
        .clone()
        .unwrap_or_else(|| match recovery.is_directory() {
            true => input::output_directory(&input.named, style.suffix),
            false => input::output_file(&input.named, style.suffix, extension, keep),
        });
    let report = recovery.report();
    if let Some(scheme) = scheme.filter(|_| report.encoded.is_empty()) {
        return Err(nothing_encoded(&scheme, report));
    }
    if args.dry_run {
        return match style.json {
            true => print_as_json(report, out),
            false => print_plan(input, &recovery, &output, out),
        };
    }
    if !style.json {
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
    if style.json {
        return print_as_json(&report, out);
    }
    let seconds = started.elapsed().as_secs_f64();
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
    let is_some = !(args.include.is_empty() && args.exclude.is_empty());
    let is_directory = args.output.is_some() && !options.single_file;
    match () {
        () if args.tensors_only => ModelScope::Tensors,
        () if is_some || !is_directory || !model.is_gguf() => ModelScope::Auto,
        () if options.target == ConvertTarget::Safetensors => ModelScope::Model,
        () => ModelScope::Auto,
    }
}

/// Finishes or undoes what an interrupted run left at its end, and says so on stderr at once: the run that follows may be refused.
/// Returns whether that run's output has its name now.
fn settle(output: &Path) -> Result<bool> {
    let Some(settled) = crate::convert::settle(output)? else {
        return Ok(false);
    };
    let _ = writeln!(std::io::stderr(), "note: {}", printable(&settled.note));
    Ok(settled.is_finished)
}

/// Prints the plan: the tensors by what becomes of them, the output, its memory and the free space.
fn print_plan(
    input: &input::NamedModel,
    recovery: &crate::Recovery<'_>,
    output: &Path,
    out: &mut impl Write,
) -> Result<()> {
    let report = recovery.report();
    let free = crate::source::platform::available_space(
        crate::containers::write::atomic::directory_of(output),
    );
    writeln!(out, "{}", parsing_line(input, report))?;
    if report.encoded.is_empty() {
        writeln!(
            out,
            "Decoded:     {} tensors to {}",
            report.recovered(),
            report.to
        )?;
    } else {
        writeln!(out, "Encoded:     {} tensors", report.encoded.len())?;
        for tensor in &report.encoded {
            writeln!(out, "  {}  {}", printable(&tensor.name), tensor.scheme)?;
        }
    }
    writeln!(out, "As they are: {} tensors", report.passthrough)?;
    for tensor in &report.kept {
        writeln!(
            out,
            "  {}  {}",
            printable(&tensor.name),
            printable(&tensor.reason)
        )?;
    }
    writeln!(out, "Left out:    {} tensors", report.dropped.len())?;
    for note in &report.notes {
        writeln!(out, "Note:        {}", printable(note))?;
    }
    let files = recovery.paths(output).len();
    let path = printable(&output.to_string_lossy());
    writeln!(
        out,
        "Output:      {path} ({}, files of weights: {files})",
        format_bytes(report.output_bytes)
    )?;
    writeln!(
        out,
        "Memory:      at most {}",
        format_bytes(recovery.peak_memory())
    )?;
    writeln!(
        out,
        "Free space:  {}",
        free.map_or("unknown".to_owned(), format_bytes)
    )?;
    Ok(())
}

/// The line that says what was found in the input.
fn parsing_line(input: &input::NamedModel, report: &Report) -> String {
    format!(
        "Parsing...   {} tensors, {}",
        input.model.tensors().len(),
        schemes(input, report)
    )
}

/// The schemes of a report: a single one as a phrase, several as lines with their counts.
fn schemes(input: &input::NamedModel, report: &Report) -> String {
    match report.schemes.as_slice() {
        [] if input.model.is_gguf() => "GGUF, copied as it is".to_owned(),
        [] => QuantScheme::Unquantized.phrase(),
        [only] => only.scheme.phrase(),
        several => {
            let each = several
                .iter()
                .map(|s| format!("\n{:>15} {}", s.tensors, s.scheme.phrase()));
            format!("{} schemes{}", several.len(), each.collect::<String>())
        }
    }
}
