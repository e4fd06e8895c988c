//! PyTorch checkpoints: ZIP archives (torch 1.6 and later), legacy streams of pickles, and the tar
//! files before those.
//!
//! All three name their tensors in a pickle, a program for Python's unpickler. The module `pickle`
//! interprets it without ever calling anything, and `tensors` finds the tensors among the resulting
//! values. They are views of storages, which the container holds.
//!
//! Formats: torch `torch/serialization.py`, `_load`, `_legacy_load` and `legacy_load`.
//!
//! - `pickle`, `value`, `input`, `literal`, `globals`: the machine and its values; `storage`,
//!   `views`, `tensors`, `facts`: what a checkpoint holds; `legacy`, `tar`: files before
//!   archives.
//! - `records`, `distributed`, `zero`: checkpoints of many processes.
//! - `risk`, `scan`: what Python would run.

mod calls;
mod distributed;
mod facts;
mod fields;
mod globals;
mod input;
mod legacy;
mod pickle;
mod records;
mod risk;
mod scan;
mod storage;
mod tar;
mod tensors;
mod value;
mod views;
mod zero;

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use self::input::PickleInput;
use self::pickle::{MoreGlobals, PickleMachine};
use self::storage::{Storage, StorageKeys, StoragePlace};
use super::magic::is_tar;
use super::read_at::ReadAt;
use super::zip::{ZipArchive, ZipMember};
use crate::ParsedModel;
pub use crate::compat::pth::{
    ParsedPth, PthDtype, PthFrontMatter, PthInspectInfo, PthTensor, PthTensorInfo,
    inspect_pth_from_reader, inspect_pth_from_reader_with_limits, parse_pth, parse_pth_bytes,
    parse_pth_bytes_with_limits, parse_pth_front_matter_from_reader,
    parse_pth_front_matter_from_reader_with_limits, parse_pth_with_limits, pth_to_safetensors,
    pth_to_safetensors_bytes,
};
use crate::limits::Budget;
use crate::source::{Deflated, Source};
use crate::{AnamnesisError, Container, ParseLimits, Result};

pub(super) use self::distributed::read as read_distributed;
pub use self::risk::PickleRisk;
pub use self::scan::{GradedGlobal, PickleScan, scan_pickles};
pub(super) use self::zero::read as read_zero;

/// Largest `data.pkl` that is read, in bytes.
const MAX_PICKLE_BYTES: u64 = 100 << 20;

/// A Python global that a checkpoint's pickle names; see [`pickle_globals`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PickleGlobal {
    /// Module of the global, such as `torch._utils`.
    pub module: String,
    /// Name of the global in its module.
    pub name: String,
    /// Whether the global is on this crate's allow-list.
    pub allowed: bool,
}

impl PickleGlobal {
    /// What the global could do to somebody who unpickles the file with Python.
    #[must_use]
    pub fn risk(&self) -> PickleRisk {
        match self::globals::Global::find(&self.module, &self.name) {
            Some(_) => PickleRisk::Safe,
            None => self::risk::risk_of(&self.module, &self.name),
        }
    }
}

/// Lists every global that the pickles of a checkpoint name, allowed or not. Nothing is imported or
/// called.
///
/// The interpreter goes on past errors of a pickle, as long as it can tell where the next opcode
/// begins. If it cannot, or if the file is malformed otherwise, the list has the globals named
/// before that point. A module or name that is not written in the pickle, but would be computed, is
/// listed as `?`.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// for global in anamnesis::pickle_globals("tests/data/demo/checkpoint.pth")? {
///     assert!(global.allowed, "{}.{}", global.module, global.name);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Unsupported` if the file is no pickle; `Parse` if it is malformed and names no global before
/// that point; `LimitExceeded`; `Io`.
pub fn pickle_globals(path: impl AsRef<Path>) -> Result<Vec<PickleGlobal>> {
    pickle_globals_with_limits(path, &ParseLimits::default())
}

/// [`pickle_globals`] with limits of the caller's.
///
/// # Errors
/// As [`pickle_globals`].
pub fn pickle_globals_with_limits(
    path: impl AsRef<Path>,
    limits: &ParseLimits,
) -> Result<Vec<PickleGlobal>> {
    let source = Source::open(path.as_ref())?;
    let mut named = Vec::new();
    match collect_globals(&source, &mut named, limits) {
        // A list cut off by a limit would hide the globals behind that point.
        Err(e @ (AnamnesisError::LimitExceeded { .. } | AnamnesisError::Io(_))) => Err(e),
        Err(e) if named.is_empty() => Err(e),
        _ => Ok(named),
    }
}

/// Appends every global that the pickles of a checkpoint name to `named`, those before an error
/// too.
fn collect_globals(
    source: &Source,
    named: &mut Vec<PickleGlobal>,
    limits: &ParseLimits,
) -> Result<()> {
    let mut head = [0; 512];
    let n = source.len().unwrap_or(0).min(512) as usize;
    source.read_at(0, &mut head[..n])?;
    let budget = Budget::new(limits);
    if head.starts_with(b"PK\x03\x04") {
        let archive = ZipArchive::read(&mut &*source, &budget)?;
        run_archive(&mut &*source, &archive, true, named, &budget).map(drop)
    } else if is_tar(&head[..n]) {
        tar::collect_globals(&mut &*source, named, &budget)
    } else if head[0] == 0x80 {
        legacy::read(&mut &*source, Source::HeaderOnly, true, named, &budget).map(drop)
    } else {
        let what = "globals are named by PyTorch checkpoints and pickles";
        Err(AnamnesisError::unsupported("not a pickle", what))
    }
}

/// Reads the checkpoint in a ZIP archive.
pub(super) fn read_archive(
    source: Source,
    archive: &ZipArchive,
    budget: &Budget,
) -> Result<ParsedModel> {
    let mut contents = open_archive(&source, archive, budget)?;
    contents.sources[0] = source;
    Ok(contents)
}

/// Reads a legacy stream of pickles.
pub(super) fn read_pickles(
    source: Source,
    _path: Option<&Path>,
    budget: &Budget,
) -> Result<ParsedModel> {
    legacy::read(&mut &source.share(), source, false, &mut Vec::new(), budget)
}

/// Reads a tar checkpoint.
pub(super) fn read_tar(
    source: Source,
    _path: Option<&Path>,
    budget: &Budget,
) -> Result<ParsedModel> {
    tar::read(&mut &source.share(), source, budget)
}

/// An archive whose pickle has been run and whose records have been read, before its storages are
/// looked up.
struct OpenedArchive<'a> {
    machine: PickleMachine<'a>,
    /// The value of the pickle.
    root: value::NodeId,
    /// Whether storages are big-endian, by the record `byteorder`.
    big_endian: bool,
    /// Directory of `data.pkl` in the archive, with its slash.
    prefix: String,
}

/// Runs the pickle of an archive, reads the records beside it, and appends the globals that it
/// names to `named`. With `lenient`, the machine goes on past errors. No tensor data is read.
fn run_archive<'b>(
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    lenient: bool,
    named: &mut Vec<PickleGlobal>,
    budget: &'b Budget,
) -> Result<OpenedArchive<'b>> {
    run_archive_allowing(|_, _| None, file, archive, lenient, named, budget)
}

/// [`run_archive`] of a pickle that may name `more_globals` as well.
fn run_archive_allowing<'b>(
    more_globals: MoreGlobals,
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    lenient: bool,
    named: &mut Vec<PickleGlobal>,
    budget: &'b Budget,
) -> Result<OpenedArchive<'b>> {
    let member = archive.pickle().ok_or_else(|| archive.neither())?;
    archive.check_only_root(member)?;
    let prefix = member.name.trim_end_matches("data.pkl").to_owned();
    let pickle = archive.read_content(file, member, MAX_PICKLE_BYTES, budget)?;
    let input = PickleInput::of_bytes(pickle, member.stored_len as usize, file.len(), budget);
    let mut machine = PickleMachine::new(input, lenient);
    machine.more_globals = more_globals;
    let root = machine.run();
    record_globals(&machine, named);
    let root = root?;
    let mut text = |name: &str| -> Result<Option<String>> {
        match archive.member(&format!("{prefix}{name}")) {
            Some(member) => {
                let content = archive.read_content(file, member, 64, budget)?;
                Ok(Some(String::from_utf8_lossy(content.trim_ascii_end()).into_owned()))
            }
            None => Ok(None),
        }
    };
    let big_endian = match text("byteorder")?.as_deref() {
        None | Some("little") => false,
        Some("big") => true,
        _ => {
            return Err(AnamnesisError::parse("the archive's byteorder is neither little nor big"));
        }
    };
    if let Some(version) =
        text("version")?.filter(|v| !v.parse().is_ok_and(|v: u32| (1..=10).contains(&v)))
    {
        return Err(AnamnesisError::unsupported(
            format!("PyTorch archive version {version}"),
            "1 to 10 are read",
        ));
    }
    Ok(OpenedArchive { machine, root, big_endian, prefix })
}

fn open_archive(source: &Source, archive: &ZipArchive, budget: &Budget) -> Result<ParsedModel> {
    let OpenedArchive { machine, root, big_endian, prefix } =
        run_archive(&mut &*source, archive, false, &mut Vec::new(), budget)?;
    let mut contents = ParsedModel::new(Container::Pth, machine.input.at);
    let by_name: HashMap<&str, &ZipMember> = archive
        .members
        .iter()
        .map(|m| (m.name.as_str(), m))
        .collect();
    contents.sources.push(source.share());
    let place = |storage: &Storage, contents: &mut ParsedModel| {
        let name = format!("{prefix}data/{}", storage.key.text);
        let what = || AnamnesisError::parse(format!("its storage `{name}` is not in the archive"));
        let member = by_name.get(name.as_str()).ok_or_else(what)?;
        let (data, offset) = member_source(source, archive, member)?;
        // Writers may leave the checksum out; it is zero then. A compressed member checks itself.
        let crc = Some(member.crc).filter(|&crc| crc != 0 && !member.deflated);
        let source = if member.deflated {
            contents.sources.len()
        } else {
            0
        };
        let place = StoragePlace { source, offset, len: member.len, crc };
        if member.deflated {
            contents.sources.push(data);
        }
        storage.check_len(member.len).map(|()| place)
    };
    let found = tensors::walk_with_facts(root, &machine, &mut contents.facts)?;
    count_tensors(&found, archive, budget)?;
    tensors::add(found, &machine, &mut StorageKeys::default(), big_endian, place, &mut contents)?;
    zero::check_alone(root, &machine, &contents)?;
    not_empty(contents)
}

/// Reads the pickles of a checkpoint and, of an archive, its directory and small records; no tensor
/// data. Returns the tensors, and whether their storages are big-endian. A storage of an archive
/// may be longer than the pickle says, since none of its bytes is read. `head` is what the file begins
/// with, which is that of a checkpoint.
pub(crate) fn read_front(
    file: &mut dyn ReadAt,
    head: &[u8],
    budget: &Budget,
) -> Result<(ParsedModel, bool)> {
    let none = Source::HeaderOnly;
    // By the beginning, as when a file is parsed: what follows it could be an archive with other
    // tensors.
    if head.starts_with(b"PK") {
        return read_archive_front(file, budget);
    }
    let contents = if is_tar(head) {
        tar::read(file, none, budget)
    } else {
        legacy::read(file, none, false, &mut Vec::new(), budget)
    };
    Ok((contents?, false))
}

fn read_archive_front(file: &mut dyn ReadAt, budget: &Budget) -> Result<(ParsedModel, bool)> {
    let archive = ZipArchive::read(file, budget)?;
    archive.check_format(Container::Pth)?;
    let OpenedArchive { machine, root, big_endian, prefix } =
        run_archive(file, &archive, false, &mut Vec::new(), budget)?;
    let mut contents = ParsedModel::new(Container::Pth, machine.input.at);
    contents.sources.push(Source::HeaderOnly);
    let by_name: HashMap<&str, &ZipMember> = archive
        .members
        .iter()
        .map(|m| (m.name.as_str(), m))
        .collect();
    let place = |storage: &Storage, _: &mut ParsedModel| {
        let name = format!("{prefix}data/{}", storage.key.text);
        let what = || AnamnesisError::parse(format!("its storage `{name}` is not in the archive"));
        let member = by_name.get(name.as_str()).ok_or_else(what)?;
        Ok(StoragePlace { source: 0, offset: 0, len: storage.len_within(member.len)?, crc: None })
    };
    let found = tensors::walk_with_facts(root, &machine, &mut contents.facts)?;
    tensors::add(found, &machine, &mut StorageKeys::default(), big_endian, place, &mut contents)?;
    Ok((not_empty(contents)?, big_endian))
}

/// Counts the tensors against the item limit. Members of the archive are counted already, and a
/// tensor usually is one.
fn count_tensors(
    found: &[tensors::FoundTensor],
    archive: &ZipArchive,
    budget: &Budget,
) -> Result<()> {
    budget.items((found.len() as u64).saturating_sub(archive.members.len() as u64), "tensors")
}

/// The source of a member's decompressed bytes, and their offset in it.
fn member_source(
    source: &Source,
    archive: &ZipArchive,
    member: &ZipMember,
) -> Result<(Source, u64)> {
    let start = archive.read_data_start(&mut &*source, member)?;
    if !member.deflated {
        return Ok((source.share(), start));
    }
    let ZipMember { stored_len, len, crc, .. } = *member;
    let deflated =
        Deflated { base: source.share(), start, stored_len, len, crc, spool: OnceLock::new() };
    Ok((Source::Deflated(Box::new(deflated)), 0))
}

/// Returns `contents`, or an error if a checkpoint has no tensors at all: it would pass for a model
/// otherwise.
fn not_empty(contents: ParsedModel) -> Result<ParsedModel> {
    if contents.tensors.is_empty() && contents.skipped.is_empty() {
        return Err(AnamnesisError::parse("the checkpoint holds no tensors"));
    }
    Ok(contents)
}

/// Appends the globals that `machine` has met to `named`, each once.
fn record_globals(machine: &PickleMachine<'_>, named: &mut Vec<PickleGlobal>) {
    for global in &machine.named {
        let (module, name, allowed) = (global.module.clone(), global.name.clone(), global.allowed);
        let new = PickleGlobal { module, name, allowed };
        if !named.contains(&new) {
            named.push(new);
        }
    }
}
