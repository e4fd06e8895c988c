//! Writes the output of `amn remember`, `forget` and `convert`, and says what was done.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use super::args::RunArgs;
use super::html::{self, Page, ShownModel};
use super::input::NamedModel;
use super::outcome::{not_quietly, print_outputs, with_advice};
use super::outputs::{make_directory, print_input};
use super::plan::{PlannedOutput, WriteRequest, parsing_line};
use super::printed::{
    ConversionReport, print_distance, print_json, print_json_line, print_kept, print_line,
    write_errors_as_csv,
};
use super::progress::{Meter, Work};
use super::sums::SideOutput;
use super::{CommandResult, signals, sums, tensor_types};
use crate::error::{counted, printable};
use crate::hooks::{DirectoryInParts, SideFile};
use crate::{CancelToken, RememberOptions, Report, Result, TargetDtype, format_bytes};

/// The options that all commands share. Ctrl-C cancels the conversion instead of ending the
/// process, so that temporary files are removed.
pub(super) fn run_options(to: TargetDtype, args: &RunArgs) -> Result<RememberOptions> {
    let cancel = CancelToken::new();
    signals::cancel_at_termination(&cancel)?;
    let options = args.read.options(to, cancel);
    Ok(options
        .with_force(args.output.force)
        .with_uncached(args.uncached))
}

/// Converts the model and prints what is done; with `--dry-run`, only prints the plan. What is
/// printed goes to stderr if the output goes to stdout.
pub(super) fn write(
    request: &WriteRequest<'_>,
    input: &NamedModel,
    out: &mut impl Write,
) -> CommandResult {
    let mut stderr = std::io::stderr();
    match request.args.output.is_stdout() {
        true => carry_out(request, input, &mut stderr, Some(out)),
        false => carry_out(request, input, out, None::<&mut std::io::Sink>),
    }
}

/// Converts the model to `stdout` or, without it, to a file or directory, and prints to `out` what
/// is done.
fn carry_out(
    request: &WriteRequest<'_>,
    input: &NamedModel,
    out: &mut impl Write,
    stdout: Option<&mut impl Write>,
) -> CommandResult {
    let (args, started) = (request.args, Instant::now());
    let meter = Meter::new(&args.read);
    let mut options = request.options.clone();
    options.run = options.run.with_progress(meter.listener());
    let plan = WriteRequest { options: &options, ..*request }.plan(input)?;
    let planned = plan.with_note(plan.conversion.report());
    if says(request) && request.place.is_of_several() {
        print_input(input, out);
    }
    if let Some(path) = request.style.plan {
        tensor_types::write(path, &plan.conversion, &plan.output, args.output.force)?;
    }
    if args.dry_run {
        return match args.json {
            true => print_report(request, &plan.json(input, &planned, None), out),
            false => Ok(plan.print(input, &planned, out)?),
        };
    }
    if says(request) {
        print_line(out, format_args!("{}", parsing_line(input, &planned)));
    }
    prepare(request, &plan)?;
    meter.start(work(&plan, &planned));
    let result = match stdout {
        Some(stdout) => plan.conversion.write_in_order(stdout).map_err(not_quietly),
        None => plan.conversion.write(&plan.output),
    };
    meter.finish(result.is_ok());
    let report = result.map_err(|error| with_advice(error, &plan.conversion, &plan.output))?;
    let report = plan.with_note(&report);
    let seconds = started.elapsed().as_secs_f64();
    if let Some(manifest) = &args.output.manifest {
        let force = args.output.force;
        sums::write(manifest, &report.sha256, Some(&plan.conversion), force)?;
    }
    if let Some(path) = request.style.html {
        write_page(path, input, &plan, &report, args.output.force)?;
    }
    if args.json {
        print_report(request, &plan.json(input, &report, Some(seconds)), out)?;
    }
    if request.style.csv {
        write_errors_as_csv(&report, out)?;
    }
    if says(request) {
        print_done(request, &plan, &report, seconds, out);
    }
    if !args.json && args.output.sha256 {
        sums::print(&report.sha256, out);
    }
    Ok(())
}

/// Writes the page on what encoding `input` has changed. If the output has its name, the page shows
/// it as well.
fn write_page(
    path: &Path,
    input: &NamedModel,
    plan: &PlannedOutput<'_>,
    report: &Report,
    force: bool,
) -> Result<()> {
    let output = match plan.conversion.is_directory() {
        true => Some(plan.output.clone()),
        false => plan.conversion.paths(&plan.output).into_iter().next(),
    };
    let written = output.as_ref().and_then(|path| crate::parse(path).ok());
    let before = input.model.path().unwrap_or(&input.named);
    let mut files = SideFile::inputs_of(&input.model);
    let mut models = vec![ShownModel::new("A", before, &input.model)];
    if let (Some(written), Some(path)) = (&written, &output) {
        files.extend(SideFile::inputs_of(written));
        models.push(ShownModel::new("B", path, written));
    }
    let (from, to) = (html::name_of(before), html::name_of(&plan.output));
    let page =
        Page {
            title: format!("{from} → {to}"), models, encoding: Some(report), ..Page::default()
        };
    html::write(&page, path, &files, force)?;
    Ok(())
}

/// Whether the work is described in lines of text.
fn says(request: &WriteRequest<'_>) -> bool {
    !request.args.json && !request.args.read.messages.quiet && !request.style.csv
}

/// Makes the places of what is written, before the work begins.
fn prepare(request: &WriteRequest<'_>, plan: &PlannedOutput<'_>) -> Result<()> {
    if let Some(manifest) = &request.args.output.manifest {
        let (weights, force) = (plan.conversion.paths(&plan.output), request.args.output.force);
        let side = SideOutput::manifest(manifest);
        sums::check_place(side, &plan.output, &weights, Some(&plan.conversion), force)?;
    }
    if let Some(page) = request.style.html {
        let (weights, force) = (plan.conversion.paths(&plan.output), request.args.output.force);
        html::check_name(page)?;
        let side = SideOutput::page(page);
        sums::check_place(side, &plan.output, &weights, Some(&plan.conversion), force)?;
    }
    if plan.conversion.is_directory() {
        settle(&plan.output, request.args.read.messages.quiet)?;
    }
    make_directory(request.place, &plan.output)
}

/// Prints a report as JSON. Of several inputs each gets its line, so that a program can read them
/// one by one.
fn print_report(
    request: &WriteRequest<'_>,
    report: &ConversionReport<'_>,
    out: &mut impl Write,
) -> CommandResult {
    match request.place.is_of_several() {
        true => print_json_line(report, out)?,
        false => print_json(report, out)?,
    }
    Ok(())
}

/// Prints what was done, with notes and the error that encoding introduced, and the outputs.
fn print_done(
    request: &WriteRequest<'_>,
    plan: &PlannedOutput<'_>,
    report: &Report,
    seconds: f64,
    out: &mut impl Write,
) {
    let (verb, n) = verb(report);
    let bar = "[====================]";
    print_line(out, format_args!("{verb} {} {bar} {seconds:.1}s", counted(n, "tensor")));
    print_kept(report, request.args.read.messages.verbose, out);
    for note in &report.notes {
        print_line(out, format_args!("Note: {}", printable(note)));
    }
    print_distance(report, out);
    match request.args.output.is_stdout() {
        true => {
            let size = format_bytes(report.output_bytes);
            print_line(out, format_args!("Output: stdout ({size})"));
        }
        false => print_outputs(&plan.conversion, &plan.output, report, out),
    }
}

/// What is done, as a verb, and to how many tensors.
fn verb(report: &Report) -> (&'static str, usize) {
    match (report.recovered(), report.encoded.len(), report.cast) {
        (_, 0, _) if report.merged > 0 => ("Merging...  ", report.merged),
        (0, 0, 0) => ("Copying...  ", report.passthrough),
        (0, 0, n) => ("Casting...  ", n),
        (n, 0, _) => ("Recalling...", n),
        (_, n, _) => ("Forgetting...", n),
    }
}

/// What a progress meter shows of the conversion.
fn work(plan: &PlannedOutput<'_>, report: &Report) -> Work {
    let (total_bytes, total_tensors) = plan.conversion.work();
    let files = plan.conversion.paths(&plan.output).into_iter();
    Work {
        verb: verb(report).0,
        files: files
            .map(|path| path.to_string_lossy().into_owned())
            .collect(),
        total_bytes,
        total_tensors,
    }
}

/// Finishes or undoes what an interrupted run left at its end, and unless `is_quiet` says so on
/// stderr at once: the run that follows may be refused. Returns whether that run's output has its
/// name now.
pub(super) fn settle(output: &Path, is_quiet: bool) -> Result<bool> {
    let Some(settled) = DirectoryInParts(output).settle()? else {
        return Ok(false);
    };
    if !is_quiet {
        let _ = writeln!(std::io::stderr(), "note: {}", printable(&settled.note));
    }
    Ok(settled.is_finished)
}
