//! PyTorch checkpoints: ZIP archives (torch 1.6 and later), streams of pickles, and the tar files before those.
//! Pickles are run by a machine that calls nothing.
//!
//! Formats: torch `torch/serialization.py`, `_load` and `_legacy_load`.

mod facts;
mod globals;
mod input;
mod legacy;
mod literal;
mod pickle;
mod storage;
mod tar;
mod tensors;
mod value;

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use self::input::Input;
use self::pickle::Machine;
use self::storage::{Keys, Place, Storage};
use super::read_at::ReadAt;
use super::zip::{Archive, Member};
use crate::ParsedModel;
use crate::limits::Budget;
use crate::source::{Deflated, Source};
use crate::{AnamnesisError, ParseLimits, Result};

pub(super) use self::tar::is_tar;

/// Largest `data.pkl`.
const MAX_PICKLE_BYTES: u64 = 100 << 20;

/// A global that a checkpoint names; see [`pickle_globals`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PickleGlobal {
    /// Module.
    pub module: String,
    /// Name in it.
    pub name: String,
    /// Whether checkpoints may name it here.
    pub allowed: bool,
}

/// Lists every global that the pickles of a checkpoint name, allowed or not. Nothing is imported or called.
///
/// A pickle is followed past what is wrong with it, as long as its opcodes can be told. If they no longer can, or
/// something else is wrong with the file, the list has what was named before. A module or name that is not written in
/// the pickle, but would be computed, is `?`.
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
/// `Unsupported` if the file is no pickle; `Parse` if it is malformed and nothing was named; `LimitExceeded` and `Io`
/// as [`parse`](super::parse()).
pub fn pickle_globals(path: impl AsRef<Path>) -> Result<Vec<PickleGlobal>> {
    let source = Source::open(path.as_ref())?;
    let mut head = [0; 512];
    let n = source.len().unwrap_or(0).min(512) as usize;
    source.read_at(0, &mut head[..n])?;
    let (mut named, budget) = (Vec::new(), Budget::new(&ParseLimits::default()));
    let result = if head.starts_with(b"PK\x03\x04") {
        let archive = Archive::read(&mut &source, &budget)?;
        run_archive(&mut &source, &archive, true, &mut named, &budget).map(drop)
    } else if is_tar(&head[..n]) {
        tar::name_all(&source, &mut named, &budget)
    } else if head[0] == 0x80 {
        legacy::read(source, true, &mut named, &budget).map(drop)
    } else {
        let what = "globals are named by PyTorch checkpoints and pickles";
        return Err(AnamnesisError::unsupported("not a pickle", what));
    };
    match result {
        // A list that a limit ends would hide what comes behind it.
        Err(e @ (AnamnesisError::LimitExceeded { .. } | AnamnesisError::Io(_))) => Err(e),
        Err(e) if named.is_empty() => Err(e),
        _ => Ok(named),
    }
}

/// Reads an archive.
pub(super) fn read_archive(
    source: Source,
    archive: &Archive,
    budget: &Budget,
) -> Result<ParsedModel> {
    let mut contents = open_archive(&source, archive, budget)?;
    contents.sources[0] = source;
    Ok(contents)
}

/// Reads a stream of pickles, or the tar file that such a stream replaced.
pub(super) fn read_pickles(
    source: Source,
    _path: Option<&Path>,
    budget: &Budget,
) -> Result<ParsedModel> {
    legacy::read(source, false, &mut Vec::new(), budget)
}

pub(super) fn read_tar(
    source: Source,
    _path: Option<&Path>,
    budget: &Budget,
) -> Result<ParsedModel> {
    tar::read(source, budget)
}

/// Whether an archive is a checkpoint.
pub(super) fn is_checkpoint(archive: &Archive) -> bool {
    pickle_member(archive).is_some()
}

fn pickle_member(archive: &Archive) -> Option<&Member> {
    archive
        .members
        .iter()
        .find(|m| m.name == "data.pkl" || m.name.ends_with("/data.pkl"))
}

/// What the records of an archive say, before any storage is looked for.
struct Opened<'a> {
    machine: Machine<'a>,
    root: value::Id,
    big_endian: bool,
    prefix: String,
}

/// Runs the pickle of an archive, in few reads.
fn run_archive<'b>(
    file: &mut impl ReadAt,
    archive: &Archive,
    lenient: bool,
    named: &mut Vec<PickleGlobal>,
    budget: &'b Budget,
) -> Result<Opened<'b>> {
    let Some(member) = pickle_member(archive) else {
        return Err(AnamnesisError::unsupported(
            "ZIP archive",
            "neither NPZ nor a PyTorch checkpoint",
        ));
    };
    let prefix = member.name.trim_end_matches("data.pkl").to_owned();
    let pickle = archive.content(file, member, MAX_PICKLE_BYTES, budget)?;
    let input = Input::of_bytes(pickle, member.stored_len as usize, file.len(), budget);
    let mut machine = Machine::new(input, lenient);
    let root = machine.run();
    record(&machine, named);
    let root = root?;
    let mut text = |name: &str| -> Result<Option<String>> {
        match archive.member(&format!("{prefix}{name}")) {
            Some(member) => {
                let content = archive.content(file, member, 64, budget)?;
                Ok(Some(
                    String::from_utf8_lossy(content.trim_ascii_end()).into_owned(),
                ))
            }
            None => Ok(None),
        }
    };
    let big_endian = match text("byteorder")?.as_deref() {
        None | Some("little") => false,
        Some("big") => true,
        _ => {
            return Err(AnamnesisError::parse(
                "the archive's byteorder is neither little nor big",
            ));
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
    Ok(Opened {
        machine,
        root,
        big_endian,
        prefix,
    })
}

fn open_archive(source: &Source, archive: &Archive, budget: &Budget) -> Result<ParsedModel> {
    let Opened {
        machine,
        root,
        big_endian,
        prefix,
    } = run_archive(&mut &*source, archive, false, &mut Vec::new(), budget)?;
    let mut contents = ParsedModel::new(machine.input.at);
    let by_name: HashMap<&str, &Member> = archive
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
        // Writers may leave the checksum out.
        let crc = Some(member.crc).filter(|&crc| crc != 0 && !member.deflated);
        let source = if member.deflated {
            contents.sources.len()
        } else {
            0
        };
        let place = Place {
            source,
            offset,
            len: member.len,
            crc,
        };
        if member.deflated {
            contents.sources.push(data);
        }
        storage.check_len(member.len).map(|()| place)
    };
    let found = tensors::walk_with(root, &machine, &mut contents.facts)?;
    count(&found, archive, budget)?;
    tensors::add(
        found,
        &machine,
        &mut Keys::default(),
        big_endian,
        place,
        &mut contents,
    )?;
    not_empty(contents)
}

/// Reads an archive's directory, pickle and small records alone, and says whether its numbers are big-endian. Storages
/// may be longer than the pickle says: their data is not read here, so nothing beyond their beginning matters.
pub(crate) fn read_front(file: &mut impl ReadAt, budget: &Budget) -> Result<(ParsedModel, bool)> {
    let archive = Archive::read(file, budget)?;
    let Opened {
        machine,
        root,
        big_endian,
        prefix,
    } = run_archive(file, &archive, false, &mut Vec::new(), budget)?;
    let mut contents = ParsedModel::new(machine.input.at);
    contents.sources.push(Source::HeaderOnly);
    let by_name: HashMap<&str, &Member> = archive
        .members
        .iter()
        .map(|m| (m.name.as_str(), m))
        .collect();
    let place = |storage: &Storage, _: &mut ParsedModel| {
        let name = format!("{prefix}data/{}", storage.key.text);
        let what = || AnamnesisError::parse(format!("its storage `{name}` is not in the archive"));
        let member = by_name.get(name.as_str()).ok_or_else(what)?;
        Ok(Place {
            source: 0,
            offset: 0,
            len: storage.within(member.len)?,
            crc: None,
        })
    };
    let found = tensors::walk(root, &machine)?;
    tensors::add(
        found,
        &machine,
        &mut Keys::default(),
        big_endian,
        place,
        &mut contents,
    )?;
    Ok((not_empty(contents)?, big_endian))
}

/// Counts the tensors beyond the members of the archive, which are counted already.
fn count(found: &[tensors::Found], archive: &Archive, budget: &Budget) -> Result<()> {
    budget.items(
        (found.len() as u64).saturating_sub(archive.members.len() as u64),
        "tensors",
    )
}

/// The source that has a member's bytes, and where they begin there.
fn member_source(source: &Source, archive: &Archive, member: &Member) -> Result<(Source, u64)> {
    let start = archive.data_start(&mut &*source, member)?;
    if !member.deflated {
        return Ok((source.share(), start));
    }
    let Member {
        stored_len,
        len,
        crc,
        ..
    } = *member;
    let deflated = Deflated {
        base: source.share(),
        start,
        stored_len,
        len,
        crc,
        spool: OnceLock::new(),
    };
    Ok((Source::Deflated(Box::new(deflated)), 0))
}

fn not_empty(contents: ParsedModel) -> Result<ParsedModel> {
    if contents.tensors.is_empty() && contents.skipped.is_empty() {
        return Err(AnamnesisError::parse("the checkpoint holds no tensors"));
    }
    Ok(contents)
}

/// Enters the globals of a machine that has run.
fn record(machine: &Machine<'_>, named: &mut Vec<PickleGlobal>) {
    for global in &machine.named {
        let (module, name, allowed) = (global.module.clone(), global.name.clone(), global.allowed);
        let new = PickleGlobal {
            module,
            name,
            allowed,
        };
        if !named.contains(&new) {
            named.push(new);
        }
    }
}
