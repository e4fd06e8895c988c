//! Reads the model in a ZIP archive: a checkpoint of `torch.save`, a whole module, or TorchScript.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::archive::{
    MAX_PICKLE_BYTES, OpenedArchive, find_storage, is_big_endian, members_by_name,
    run_archive_allowing,
};
use super::input::PickleInput;
use super::ndarray::array_global;
use super::objects::{ObjectForm, class, of_module, script_global};
use super::pickle::{MoreGlobals, PickleMachine};
use super::storage::{Storage, StorageKeys, StoragePlace};
use super::tensors::{self, FoundTensor, WalkedTensors};
use super::value::Node;
use super::{arrays, exported, not_empty, zero};
use crate::limits::Budget;
use crate::parse::read_at::ReadAt;
use crate::parse::zip::{ZipArchive, ZipMember};
use crate::source::{Deflated, Source};
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Reads the model in a ZIP archive.
pub(in crate::parse) fn read_archive(
    source: Source,
    archive: &ZipArchive,
    budget: &Budget,
) -> Result<ParsedModel> {
    let mut contents = match archive.exported() {
        Some(root) => exported::read(&mut &source, archive, root, budget)?,
        None => open_archive(&source, archive, budget)?,
    };
    contents.sources[0] = source;
    Ok(contents)
}

fn open_archive(source: &Source, archive: &ZipArchive, budget: &Budget) -> Result<ParsedModel> {
    let place = |member: &ZipMember, storage: &Storage, contents: &mut ParsedModel| {
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
    read_checkpoint(source, &mut &*source, archive, place, budget).map(|(contents, _)| contents)
}

/// Reads the model in an archive whose storages may be longer than its pickle says, since none of
/// their bytes is read. Returns whether they are big-endian, too.
pub(super) fn read_archive_front(
    file: &mut dyn ReadAt,
    budget: &Budget,
) -> Result<(ParsedModel, bool)> {
    let archive = ZipArchive::read(file, budget)?;
    archive.check_format(Container::Pth)?;
    if let Some(root) = archive.exported() {
        let big_endian = is_big_endian(file, &archive, root, budget)?;
        return Ok((exported::read(file, &archive, root, budget)?, big_endian));
    }
    let place = |member: &ZipMember, storage: &Storage, _: &mut ParsedModel| {
        Ok(StoragePlace { source: 0, offset: 0, len: storage.len_within(member.len)?, crc: None })
    };
    read_checkpoint(&Source::HeaderOnly, file, &archive, place, budget)
}

/// Reads the pickle of an archive, the data of which is in `source`. `place` says where a storage
/// is that is the member. Returns whether storages are big-endian, too.
fn read_checkpoint(
    source: &Source,
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    mut place: impl FnMut(&ZipMember, &Storage, &mut ParsedModel) -> Result<StoragePlace>,
    budget: &Budget,
) -> Result<(ParsedModel, bool)> {
    let mut facts = HashMap::new();
    let (opened, mut found) = match script_directory(archive) {
        Some(_) => {
            run_and_walk(script_global, ObjectForm::Script, file, archive, budget, &mut facts)
                .map(|(opened, walked)| (opened, walked.found))?
        }
        None => run_module(file, archive, budget, &mut facts)?,
    };
    let OpenedArchive { mut machine, root, big_endian, prefix } = opened;
    let mut contents = ParsedModel::new(Container::Pth, machine.input.at);
    contents.facts = facts;
    contents.sources.push(source.share());
    count_tensors(&found, archive, budget)?;
    let by_name = members_by_name(archive);
    let mut place_in = |directory: &str, storage: &Storage, contents: &mut ParsedModel| {
        let directory = format!("{prefix}{directory}/");
        place(find_storage(&by_name, &directory, storage)?, storage, contents)
    };
    let keys = &mut StorageKeys::default();
    let of_data =
        |storage: &Storage, contents: &mut ParsedModel| place_in("data", storage, contents);
    let is_array = |found: &mut FoundTensor| {
        let view = found.tensor.as_ref();
        view.is_ok_and(|view| !matches!(machine.values.node(view.storage), Node::Persistent(_)))
    };
    let arrays: Vec<_> = found.extract_if(.., is_array).collect();
    tensors::add(found, &machine, keys, big_endian, of_data, &mut contents)?;
    if let Some(constants) = script_directory(archive) {
        let of_constants = |storage: &Storage, contents: &mut ParsedModel| {
            place_in("constants", storage, contents)
        };
        add_constants(file, (archive, constants), of_constants, budget, big_endian, &mut contents)?;
    }
    zero::check_alone(root, &machine, &contents)?;
    if let Some(pickle) = archive.pickle().filter(|_| !arrays.is_empty()) {
        machine
            .input
            .set_offset(archive.read_data_start(file, pickle)?);
        arrays::add_among(arrays, machine, &mut contents)?;
    }
    Ok((not_empty(contents)?, big_endian))
}

/// The member with the constants of TorchScript, which no other archive has beside its pickle.
fn script_directory(archive: &ZipArchive) -> Option<&ZipMember> {
    let prefix = archive.pickle()?.name.trim_end_matches("data.pkl");
    archive.member(&format!("{prefix}constants.pkl"))
}

/// Runs the pickle of an archive, which may name `more_globals`, and finds its tensors.
fn run_and_walk<'b>(
    more_globals: MoreGlobals,
    form: ObjectForm,
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    budget: &'b Budget,
    facts: &mut HashMap<String, String>,
) -> Result<(OpenedArchive<'b>, WalkedTensors)> {
    let named = &mut Vec::new();
    let opened = run_archive_allowing(more_globals, file, archive, false, named, budget)?;
    let walked = tensors::walk_with_facts(opened.root, &opened.machine, form, facts)?;
    Ok((opened, walked))
}

/// Runs the pickle of an archive, and finds its tensors. If it names a global that is not allowed,
/// arrays of NumPy may be among them, or it may be that of a whole module, whose classes are opaque
/// names.
fn run_module<'b>(
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    budget: &'b Budget,
    facts: &mut HashMap<String, String>,
) -> Result<(OpenedArchive<'b>, Vec<FoundTensor>)> {
    let form = ObjectForm::Python;
    let mut run = |more: MoreGlobals| run_and_walk(more, form, file, archive, budget, facts);
    let mut read = run(|_, _| None);
    if let Err(AnamnesisError::DisallowedGlobal { module, name }) = &read
        && module.starts_with("numpy")
        && array_global(module, name).is_some()
        && has_plain_pickle(archive)
    {
        read = run(array_global);
    }
    let (opened, walked) = match read {
        Err(error @ AnamnesisError::DisallowedGlobal { .. }) => {
            let again = run(class);
            let modules = again.as_ref().map_or(0, |(_, walked)| walked.modules);
            of_module(again, modules, error).map_err(of_one_process)?
        }
        read => read?,
    };
    Ok((opened, walked.found))
}

/// Whether the pickle is stored as it is, so that arrays in it can be read where they are.
fn has_plain_pickle(archive: &ZipArchive) -> bool {
    archive.pickle().is_some_and(|member| !member.deflated)
}

/// The error of a file of one process of FSDP, if `error` is that of its class of tensors.
fn of_one_process(error: AnamnesisError) -> AnamnesisError {
    match error {
        AnamnesisError::DisallowedGlobal { name, .. } if name == "DTensor" => {
            let what = "its tensors are parts: give the directory with the files of all processes";
            AnamnesisError::unsupported("file of one process (FSDP)", what)
        }
        error => error,
    }
}

/// Adds the tensors of `constants.pkl`, a tuple, under the names that the code of TorchScript has for
/// them: `CONSTANTS.c0`. The names that they had in the model are lost.
fn add_constants(
    file: &mut dyn ReadAt,
    (archive, constants): (&ZipArchive, &ZipMember),
    place: impl FnMut(&Storage, &mut ParsedModel) -> Result<StoragePlace>,
    budget: &Budget,
    big_endian: bool,
    contents: &mut ParsedModel,
) -> Result<()> {
    let pickle = archive.read_content(file, constants, MAX_PICKLE_BYTES, budget)?;
    let stored = constants.stored_len as usize;
    let mut machine =
        PickleMachine::new(PickleInput::of_bytes(pickle, stored, file.len(), budget), false);
    machine.more_globals = script_global;
    let root = machine.run()?;
    let Node::Tuple(_) = machine.values.node(root) else {
        return Err(AnamnesisError::parse("the constants of TorchScript are no tuple"));
    };
    let facts = &mut HashMap::new();
    let walked = tensors::walk_with_facts(root, &machine, ObjectForm::Script, facts)?;
    let mut found = walked.found;
    for constant in &mut found {
        constant.name.insert_str(0, "CONSTANTS.c");
    }
    budget.items(found.len() as u64, "constants")?;
    contents.header_size = contents.header_size.saturating_add(machine.input.at);
    tensors::add(found, &machine, &mut StorageKeys::default(), big_endian, place, contents)
}

/// Counts the tensors against the item limit. Members of the archive are counted already, and a
/// tensor usually is one.
fn count_tensors(found: &[FoundTensor], archive: &ZipArchive, budget: &Budget) -> Result<()> {
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
