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
//!   `views`, `tensors`, `keys`, `facts`: what a checkpoint holds; `legacy`, `tar`: files before
//!   archives; `archive`, `checkpoint`, `exported`: archives of `torch.save` and `torch.export`.
//! - `ndarray`, `arrays`: pickles of NumPy arrays; `subclass`: tensors that are stored in parts.
//! - `records`, `state`, `pieces`, `distributed`, `rank_files`, `zero`: checkpoints of many processes.
//! - `risk`, `scan`: what Python would run.

mod archive;
mod arrays;
mod calls;
mod checkpoint;
mod distributed;
mod exported;
mod facts;
mod fields;
mod globals;
mod input;
mod keys;
mod legacy;
mod ndarray;
mod objects;
mod pickle;
mod pieces;
mod rank_files;
mod records;
mod risk;
mod scan;
mod state;
mod storage;
mod subclass;
mod tar;
mod tensors;
mod value;
mod views;
mod zero;

use std::path::Path;

use self::archive::run_archive;
use self::pickle::PickleMachine;
use super::magic::is_tar;
use super::read_at::ReadAt;
use super::zip::ZipArchive;
use crate::ParsedModel;
pub use crate::compat::pth::{
    ParsedPth, PthDtype, PthFrontMatter, PthInspectInfo, PthTensor, PthTensorInfo,
    inspect_pth_from_reader, inspect_pth_from_reader_with_limits, parse_pth, parse_pth_bytes,
    parse_pth_bytes_with_limits, parse_pth_front_matter_from_reader,
    parse_pth_front_matter_from_reader_with_limits, parse_pth_with_limits, pth_to_safetensors,
    pth_to_safetensors_bytes,
};
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, ParseLimits, Result};

#[cfg(feature = "npz")]
pub(super) use self::arrays::{ObjectArray, add as add_arrays};
pub(super) use self::checkpoint::read_archive;
pub(super) use self::distributed::read as read_distributed;
pub(super) use self::rank_files::read as read_rank_files;
pub use self::risk::PickleRisk;
pub use self::scan::{GradedGlobal, PickleScan, scan_pickles};
pub(super) use self::zero::read as read_zero;

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
        if archive.exported().is_some() {
            let what = "`amn scan` looks into the pickles that it may have beside its weights";
            return Err(AnamnesisError::unsupported("an archive of torch.export", what));
        }
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
        return checkpoint::read_archive_front(file, budget);
    }
    let contents = if is_tar(head) {
        tar::read(file, none, budget)
    } else {
        legacy::read(file, none, false, &mut Vec::new(), budget)
    };
    let contents = contents?;
    let big_endian = contents.tensors.iter().any(|tensor| tensor.big_endian);
    Ok((contents, big_endian))
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
