//! `amn scan`: what files could do to somebody who opens them with Python.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::args::ScanArgs;
use super::paint::{Verdict, painted};
use super::printed::print_json;
use super::sarif::Sarif;
use super::{CommandError, CommandResult};
use crate::error::{counted, printable};
use crate::hooks::NamedInput;
use crate::{AnamnesisError, GradedGlobal, PickleRisk, PickleScan, Result, scan_pickles};

/// Characters of the longest name of a risk.
const WIDTH: usize = 10;

/// Most directories below each other. Symbolic links are not followed, so it bounds the stack
/// alone.
const MOST_LEVELS: usize = 128;

/// A file and what was found in it.
#[derive(Serialize)]
struct ScannedFile {
    file: String,
    #[serde(flatten)]
    scan: PickleScan,
}

/// What `amn scan --json` prints.
#[derive(Serialize)]
struct Scans {
    risk: PickleRisk,
    files: Vec<ScannedFile>,
}

/// Grades files and returns the exit code: 0 if all are safe, 1 if some are suspicious, 8 if some
/// are dangerous.
pub(super) fn scan(args: &ScanArgs, out: &mut impl Write) -> CommandResult<u8> {
    let mut entries = Vec::new();
    for path in &args.paths {
        let snapshot = NamedInput::in_hub(path)?;
        let path = snapshot.as_ref().unwrap_or(path);
        match path.is_dir() {
            true => add_entries(path, 0, &mut entries)?,
            false => entries.push((path.clone(), None)),
        }
    }
    let (limits, mut worst, mut files) = (args.limits.limits(), PickleRisk::Safe, Vec::new());
    let mut log = Sarif::default();
    for (path, not_followed) in &entries {
        let scan = match not_followed {
            Some(what) => PickleScan::of_unread(*what),
            None => {
                let scan = scan_pickles(path, &limits);
                scan.map_err(|error| CommandError::of_model(path, error))?
            }
        };
        worst = worst.max(scan.risk);
        let file = path.to_string_lossy().into_owned();
        match () {
            () if args.json => files.push(ScannedFile { file, scan }),
            () if args.sarif => log.add_scan(path, &scan),
            () => print(&file, &scan, args.messages.verbose, out)?,
        }
    }
    match () {
        () if args.json => print_json(&Scans { risk: worst, files }, out)?,
        () if args.sarif => log.print(out)?,
        () => writeln!(out, "{}: {}", counted(entries.len(), "file"), name(worst, 0))?,
    }
    Ok(match grade(worst).1 {
        Verdict::Good => 0,
        Verdict::Doubtful => 1,
        Verdict::Bad => 8,
    })
}

/// A file, or why something in a directory is not looked into.
type Entry = (PathBuf, Option<&'static str>);

/// Adds the regular files in `directory` and below it, in alphabetical order, and links to files:
/// the hub's cache has those. A link to a directory is not followed, for it may lead anywhere.
fn add_entries(directory: &Path, level: usize, entries: &mut Vec<Entry>) -> Result<()> {
    let failed = |e: std::io::Error| AnamnesisError::io_at(directory, &e);
    if level == MOST_LEVELS {
        let what = format!("{}: more than {MOST_LEVELS} levels", directory.display());
        return Err(AnamnesisError::unsupported("a directory", what));
    }
    let found = std::fs::read_dir(directory).map_err(failed)?;
    let mut found: Vec<_> = found.collect::<std::io::Result<_>>().map_err(failed)?;
    found.sort_by_key(std::fs::DirEntry::file_name);
    for entry in found {
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
        let what = match () {
            () if kind.is_dir() => {
                add_entries(&path, level + 1, entries)?;
                continue;
            }
            () if path.is_file() => None,
            () if path.is_dir() => Some("a link to a directory, which was not followed"),
            () if kind.is_symlink() => Some("a link to what is not there, or is no file"),
            // A pipe would wait for a writer.
            () => Some("no regular file, and not looked into"),
        };
        entries.push((path, what));
    }
    Ok(())
}

/// Name of a risk, and what it means. What the program does not know is dangerous.
fn grade(risk: PickleRisk) -> (&'static str, Verdict) {
    match risk {
        PickleRisk::Safe => ("safe", Verdict::Good),
        PickleRisk::Suspicious => ("suspicious", Verdict::Doubtful),
        _ => ("dangerous", Verdict::Bad),
    }
}

/// The name of a risk, which takes `width` characters at least.
fn name(risk: PickleRisk, width: usize) -> String {
    let (name, verdict) = grade(risk);
    let padding = " ".repeat(width.saturating_sub(name.len()));
    painted(name, verdict) + &padding
}

/// Prints a file with what makes it suspicious or dangerous. Without `is_verbose`, a safe file has
/// no line.
fn print(file: &str, scan: &PickleScan, is_verbose: bool, out: &mut impl Write) -> Result<()> {
    if scan.risk == PickleRisk::Safe && !is_verbose {
        return Ok(());
    }
    writeln!(out, "{}  {}", name(scan.risk, WIDTH), printable(file))?;
    let is_told = |graded: &&GradedGlobal| is_verbose || graded.risk > PickleRisk::Safe;
    for graded in scan.globals.iter().filter(is_told) {
        let global = &graded.global;
        let (module, global) = (printable(&global.module), printable(&global.name));
        writeln!(out, "  {}  {module}.{global}", name(graded.risk, WIDTH))?;
    }
    for remark in &scan.remarks {
        let suspicious = name(PickleRisk::Suspicious, WIDTH);
        writeln!(out, "  {suspicious}  {}", printable(remark))?;
    }
    Ok(())
}
