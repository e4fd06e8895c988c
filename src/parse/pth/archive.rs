//! ZIP archives of `torch.save`: the pickle, the records beside it, and the storages that it names.

use std::collections::HashMap;

use super::input::PickleInput;
use super::pickle::{MoreGlobals, PickleMachine};
use super::storage::Storage;
use super::value::NodeId;
use super::{PickleGlobal, record_globals};
use crate::limits::Budget;
use crate::parse::read_at::ReadAt;
use crate::parse::zip::{ZipArchive, ZipMember};
use crate::{AnamnesisError, Result};

/// Largest pickle of an archive that is read, in bytes.
pub(super) const MAX_PICKLE_BYTES: u64 = 100 << 20;

/// An archive whose pickle has been run and whose records have been read, before its storages are
/// looked up.
pub(super) struct OpenedArchive<'a> {
    pub machine: PickleMachine<'a>,
    /// The value of the pickle.
    pub root: NodeId,
    /// Whether storages are big-endian, by the record `byteorder`.
    pub big_endian: bool,
    /// Directory of `data.pkl` in the archive, with its slash.
    pub prefix: String,
}

/// Runs the pickle of an archive, reads the records beside it, and appends the globals that it
/// names to `named`. With `lenient`, the machine goes on past errors. No tensor data is read.
pub(super) fn run_archive<'b>(
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    lenient: bool,
    named: &mut Vec<PickleGlobal>,
    budget: &'b Budget,
) -> Result<OpenedArchive<'b>> {
    run_archive_allowing(|_, _| None, file, archive, lenient, named, budget)
}

/// [`run_archive`] of a pickle that may name `more_globals` as well.
pub(super) fn run_archive_allowing<'b>(
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
    let big_endian = is_big_endian(file, archive, &prefix, budget)?;
    if let Some(version) = read_line(file, archive, &format!("{prefix}version"), budget)?
        .filter(|v| !v.parse().is_ok_and(|v: u32| (1..=10).contains(&v)))
    {
        return Err(AnamnesisError::unsupported(
            format!("PyTorch archive version {version}"),
            "1 to 10 are read",
        ));
    }
    Ok(OpenedArchive { machine, root, big_endian, prefix })
}

/// Whether numbers are big-endian, by the record `byteorder` below `prefix`.
pub(super) fn is_big_endian(
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    prefix: &str,
    budget: &Budget,
) -> Result<bool> {
    match read_line(file, archive, &format!("{prefix}byteorder"), budget)?.as_deref() {
        None | Some("little") => Ok(false),
        Some("big") => Ok(true),
        _ => Err(AnamnesisError::parse("the archive's byteorder is neither little nor big")),
    }
}

/// The text of the small member `name`, if it is there.
pub(super) fn read_line(
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    name: &str,
    budget: &Budget,
) -> Result<Option<String>> {
    let Some(member) = archive.member(name) else {
        return Ok(None);
    };
    let content = archive.read_content(file, member, 64, budget)?;
    Ok(Some(String::from_utf8_lossy(content.trim_ascii_end()).into_owned()))
}

/// The members of an archive by their names.
pub(super) fn members_by_name(archive: &ZipArchive) -> HashMap<&str, &ZipMember> {
    let members = archive.members.iter();
    members.map(|m| (m.name.as_str(), m)).collect()
}

/// The member of a storage in the directory `data`.
pub(super) fn find_storage<'a>(
    by_name: &HashMap<&str, &'a ZipMember>,
    data: &str,
    storage: &Storage,
) -> Result<&'a ZipMember> {
    let name = format!("{data}{}", storage.key.text);
    let what = || AnamnesisError::parse(format!("its storage `{name}` is not in the archive"));
    by_name.get(name.as_str()).copied().ok_or_else(what)
}
