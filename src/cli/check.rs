//! `amn check`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::args::CheckArgs;
use super::html::{self, CheckedPart, Page};
use super::paint::{Verdict, painted};
use super::printed::print_json;
use super::progress::{Meter, Work};
use super::sarif::Sarif;
use super::{CommandError, input, option_checks, signals};
use crate::error::{counted, printable};
use crate::hooks::{NamedInput, SideFile};
use crate::{
    AnamnesisError, CancelToken, CheckOptions, CheckReport, Finding, Severity, TargetDtype,
    format_bytes,
};

/// The reports on all models.
#[derive(Serialize)]
struct CheckedModels<'a> {
    models: &'a [CheckedModel],
}

/// The report on one model.
#[derive(Serialize)]
struct CheckedModel {
    path: String,
    #[serde(flatten)]
    report: CheckReport,
}

impl CheckedModel {
    fn part(&self, reads_data: bool) -> CheckedPart<'_> {
        CheckedPart { path: self.path.clone(), report: &self.report, label: "", reads_data }
    }
}

/// Checks models and prints what is wrong. Returns whether there are findings.
///
/// # Errors
/// That of the first model that cannot be parsed, after all others have been checked.
pub(super) fn check(args: &CheckArgs, out: &mut impl Write) -> Result<bool, CommandError> {
    let cancel = CancelToken::new();
    signals::cancel_at_termination(&cancel)?;
    let run = args.read.options(TargetDtype::F32, cancel);
    let mut options = CheckOptions::default().with_run(run).with_data(args.data);
    if let Some(manifest) = &args.manifest {
        option_checks::require_regular("--manifest", manifest)?;
    }
    options.manifest.clone_from(&args.manifest);
    // What is read, which the page does not replace.
    let mut files = args.models.clone();
    files.extend(args.manifest.clone());
    if let Some(path) = &args.page.html {
        html::check_place(path, &files, args.page.force)?;
    }
    let mut models = Vec::new();
    for path in &args.models {
        match args.recursive && path.is_dir() {
            true => find_models(path, &mut models)?,
            false => models.push(path.clone()),
        }
    }
    if models.is_empty() {
        let what = "there is no model in the directories or below";
        return Err(AnamnesisError::parse(what).into());
    }
    let (mut checked, mut unreadable) = (Vec::new(), None);
    for path in models {
        let model = input::open_path(&path, &args.read.limits);
        let checked_model = model.and_then(|model| {
            files.extend(SideFile::inputs_of(&model));
            let meter = Meter::new(&args.read);
            let reads_data = args.data || args.manifest.is_some();
            if reads_data {
                meter.start(Work {
                    verb: "Checking",
                    files: vec![path.to_string_lossy().into_owned()],
                    ..Work::default()
                });
            }
            let run = options.run.clone().with_progress(meter.listener());
            let report = model.check(&options.clone().with_run(run));
            if reads_data {
                meter.finish(report.is_ok());
            }
            report
        });
        let is_read = checked_model.is_ok();
        let report = match checked_model {
            Ok(report) => report,
            Err(AnamnesisError::Cancelled) => return Err(AnamnesisError::Cancelled.into()),
            Err(error) => {
                let report = CheckReport::of_unreadable(&path, &error);
                unreadable.get_or_insert(CommandError::of_model(&path, error));
                report
            }
        };
        let is_said = !args.read.messages.quiet || !report.findings.is_empty();
        if is_said && !args.json && !args.sarif {
            print(&path, &report, out)?;
            if !is_read && !args.recursive && path.is_dir() {
                writeln!(out, "  `amn check -r` checks every model in the directory and below")?;
            }
        }
        let path = path.to_string_lossy().into_owned();
        checked.push(CheckedModel { path, report });
    }
    if let Some(path) = &args.page.html {
        let page = Page {
            title: match checked.as_slice() {
                [one] => html::name_of(Path::new(&one.path)),
                several => format!("Check of {} models", several.len()),
            },
            checked: checked.iter().map(|model| model.part(args.data)).collect(),
            ..Page::default()
        };
        html::write(&page, path, &files, args.page.force)?;
    }
    if args.json {
        print_json(&CheckedModels { models: &checked }, out)?;
    }
    if args.sarif {
        let mut log = Sarif::default();
        for model in &checked {
            log.add_findings(Path::new(&model.path), &model.report.findings);
        }
        log.print(out)?;
    }
    match unreadable {
        Some(error) => Err(error),
        None => Ok(checked
            .iter()
            .any(|model| !model.report.findings.is_empty())),
    }
}

/// Prints a line for a model, and one for each finding.
fn print(model: &Path, report: &CheckReport, out: &mut impl Write) -> crate::Result<()> {
    let path = printable(&model.to_string_lossy());
    let (tensors, bytes) = (counted(report.tensors, "tensor"), format_bytes(report.bytes));
    let worst = report
        .findings
        .iter()
        .map(verdict)
        .find(|verdict| *verdict == Verdict::Bad);
    let worst = worst.unwrap_or(Verdict::Doubtful);
    let found = match report.findings.len() {
        0 => painted("clean", Verdict::Good),
        n => painted(&counted(n, "finding"), worst),
    };
    writeln!(out, "{path}: {found} ({tensors}, {bytes})")?;
    for finding in &report.findings {
        print_finding(finding, model, out)?;
    }
    Ok(())
}

fn verdict(finding: &Finding) -> Verdict {
    match finding.severity {
        Severity::Warning => Verdict::Doubtful,
        _ => Verdict::Bad,
    }
}

fn print_finding(finding: &Finding, model: &Path, out: &mut impl Write) -> crate::Result<()> {
    let severity = match verdict(finding) {
        Verdict::Bad => "error",
        _ => "warning",
    };
    write!(out, "  {}: ", painted(severity, verdict(finding)))?;
    if let Some(file) = finding.file.as_deref().filter(|&file| file != model) {
        let file = file.strip_prefix(model).unwrap_or(file);
        write!(out, "{}: ", printable(&file.to_string_lossy()))?;
    }
    // Messages that are errors of the library name the tensor themselves.
    let tensor = finding.tensor.as_deref();
    if let Some(name) = tensor.filter(|name| !finding.message.contains(&format!("`{name}`"))) {
        write!(out, "tensor `{}`: ", printable(name))?;
    }
    writeln!(out, "{}", printable(&finding.message))?;
    Ok(())
}

/// Adds the models in `directory` and below: each directory that has weights and a config or an
/// index, and each file of weights anywhere else. Links to directories are not followed.
fn find_models(directory: &Path, models: &mut Vec<PathBuf>) -> crate::Result<()> {
    let error = |e: std::io::Error| AnamnesisError::io_at(directory, &e);
    let (mut files, mut below) = (BTreeSet::new(), BTreeSet::new());
    for entry in std::fs::read_dir(directory).map_err(error)? {
        let entry = entry.map_err(error)?;
        let path = entry.path();
        match entry.file_type().map_err(error)?.is_dir() {
            true => drop(below.insert(path)),
            false => drop(path.is_file() && files.insert(path)),
        }
    }
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let is_weights = |path: &&PathBuf| NamedInput::is_model_file(&name(path));
    let is_index = |path: &PathBuf| {
        let name = name(path);
        matches!(name.as_str(), "config.json" | ".metadata" | "residual.safetensors")
            || name.ends_with(".safetensors.index.json")
    };
    let weights: Vec<&PathBuf> = files.iter().filter(is_weights).collect();
    if !weights.is_empty() && files.iter().any(is_index) {
        models.push(directory.to_path_buf());
    } else {
        // The first file of a split GGUF model stands for all.
        let is_first = |path: &&&PathBuf| match name(path).split_once("-of-") {
            Some((stem, _)) if name(path).ends_with(".gguf") => stem.ends_with("-00001"),
            // The data of a graph of OpenVINO.
            _ => !name(path).ends_with(".bin") || !files.contains(&path.with_extension("xml")),
        };
        models.extend(weights.iter().filter(is_first).map(|&path| path.clone()));
    }
    below.iter().try_for_each(|path| find_models(path, models))
}
