//! Archives of `torch.export` (`.pt2`): a graph, which is not read, and its tensors.
//!
//! ```text
//! ROOT/archive_format                              pt2
//! ROOT/data/weights/NAME_weights_config.json       parameters and persistent buffers of the model NAME: file, dtype, sizes, strides
//! ROOT/data/weights/weight_0                       bytes of a storage, which several tensors may view
//! ROOT/data/constants/NAME_constants_config.json   other buffers and constants, in `tensor_0` and so on
//! ```
//!
//! Before, `NAME.pt` in these directories was a checkpoint of all tensors, and before torch 2.8 so
//! were `serialized_state_dict.pt` and `serialized_constants.pt` of an archive without a root.
//!
//! Format: torch `torch/export/pt2_archive/_package.py` and `torch/_export/serde/schema.py`.

mod config;

use std::collections::{BTreeMap, HashMap, HashSet};

use self::config::{Layout, Payload, read_config};
use super::archive::{
    OpenedArchive, find_storage, is_big_endian, members_by_name, read_line, run_archive,
};
use super::not_empty;
use super::storage::{Storage, StorageKeys, StoragePlace};
use super::tensors::{self, note_of_shared};
use super::value::TensorView;
use super::views::{check_ratio, tensor_of};
use crate::error::InTensor;
use crate::limits::{Budget, join_first};
use crate::model::Skipped;
use crate::parse::read_at::{FileWindow, ReadAt};
use crate::parse::zip::{ZipArchive, ZipMember};
use crate::source::Source;
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

/// Most names that a note lists.
const MAX_NAMED: usize = 5;

/// Where the tensors of a model are: the directory, and the ending of the file that describes them.
const TABLES: [(&str, &str); 2] =
    [("data/weights/", "_weights_config.json"), ("data/constants/", "_constants_config.json")];

/// The checkpoints of archives before torch 2.8.
const CHECKPOINTS: [&str; 2] = ["serialized_state_dict.pt", "serialized_constants.pt"];

/// Reads the tensors of the archive `file`, whose directory is `root`. The first source of the
/// model is to be replaced with that of the archive.
///
/// # Errors
/// `Parse` if the archive is malformed, a file of a tensor is missing, or a tensor leads out of it;
/// `Unsupported` if it has no weights, or they are compressed; `LimitExceeded`; `Io`.
pub(super) fn read(
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    root: &str,
    budget: &Budget,
) -> Result<ParsedModel> {
    archive.check_case(root)?;
    if !root.is_empty()
        && read_line(file, archive, &format!("{root}archive_format"), budget)?.as_deref()
            != Some("pt2")
    {
        return Err(AnamnesisError::unsupported(
            "archive of PyTorch",
            "its `archive_format` is not pt2",
        ));
    }
    let big_endian = is_big_endian(file, archive, root, budget)?;
    let mut contents = ParsedModel::new(Container::Pth, 0);
    contents.sources.push(Source::HeaderOnly);
    let mut reader = ExportedReader {
        file,
        archive,
        budget,
        big_endian,
        by_name: members_by_name(archive),
        contents,
        places: HashMap::new(),
        users: HashMap::new(),
        objects: vec![],
    };
    let tables = find_tables(archive, root);
    if tables.is_empty() {
        return Err(no_weights(archive, root));
    }
    for table in &tables {
        reader
            .add_table(table)
            .map_err(|e| e.about(format_args!("`{}`", table.member.name)))?;
    }
    reader.finish()
}

/// A file that says which tensors there are, or has them itself.
struct Table<'a> {
    member: &'a ZipMember,
    /// The directory of its files.
    directory: String,
    /// What comes before the names of tensors: the model, if there are several.
    prefix: String,
    /// Whether it is a checkpoint of its own.
    is_checkpoint: bool,
}

/// The tables of an archive: of each model the weights and the constants.
fn find_tables<'a>(archive: &'a ZipArchive, root: &str) -> Vec<Table<'a>> {
    let mut found: BTreeMap<(&str, usize), Table<'a>> = BTreeMap::new();
    for member in &archive.members {
        let Some(below) = member.name.strip_prefix(root) else {
            continue;
        };
        let older = CHECKPOINTS
            .iter()
            .position(|name| root.is_empty() && *name == below);
        let of_table = |(number, (directory, ending)): (usize, &(&str, &str))| {
            let name = below.strip_prefix(directory)?;
            let config = name
                .strip_suffix(ending)
                .map(|model| (model, number, false));
            config.or_else(|| name.strip_suffix(".pt").map(|model| (model, number, true)))
        };
        let of_table = || TABLES.iter().enumerate().find_map(of_table);
        let older = older.map(|number| ("", number, true));
        if let Some((model, number, is_checkpoint)) = older.or_else(of_table) {
            let directory = format!("{root}{}", TABLES[number].0);
            let table = Table { member, directory, prefix: String::new(), is_checkpoint };
            found.insert((model, number), table);
        }
    }
    let models: HashSet<&str> = found.keys().map(|&(model, _)| model).collect();
    let several = models.len() > 1;
    let named = |((model, _), table): ((&str, usize), Table<'a>)| match several {
        true => Table { prefix: format!("{model}."), ..table },
        false => table,
    };
    found.into_iter().map(named).collect()
}

/// The error of an archive without tables.
fn no_weights(archive: &ZipArchive, root: &str) -> AnamnesisError {
    let compiled = format!("{root}data/aotinductor/");
    match archive
        .members
        .iter()
        .any(|m| m.name.starts_with(&compiled))
    {
        true => AnamnesisError::unsupported(
            "package of AOTInductor",
            "its weights are in a compiled library; give the model that it was made of",
        ),
        false => AnamnesisError::parse("the archive of torch.export has no weights"),
    }
}

fn compressed() -> AnamnesisError {
    let advice =
        "torch stores members as they are: unpack it, and make an archive without compression";
    AnamnesisError::unsupported("a compressed archive of torch.export", advice)
}

/// Reads the tables of an archive.
struct ExportedReader<'a, 'f> {
    file: &'f mut dyn ReadAt,
    archive: &'a ZipArchive,
    budget: &'a Budget,
    big_endian: bool,
    by_name: HashMap<&'a str, &'a ZipMember>,
    contents: ParsedModel,
    /// The storages of tensors by their offsets, and how many tensors view each.
    places: HashMap<u64, StoragePlace>,
    users: HashMap<u64, usize>,
    /// Names of constants that are no tensors.
    objects: Vec<String>,
}

impl<'a> ExportedReader<'a, '_> {
    fn add_table(&mut self, table: &Table<'a>) -> Result<()> {
        // One that is compressed could be many times as long as the file.
        if table.member.deflated {
            return Err(compressed());
        }
        if table.is_checkpoint {
            return self.add_checkpoint(table);
        }
        let text = self.archive.read_content(
            &mut *self.file,
            table.member,
            config::MAX_BYTES,
            self.budget,
        )?;
        self.contents.header_size = self.contents.header_size.saturating_add(text.len());
        let payloads = read_config(&text)?;
        self.budget.items(payloads.len() as u64, "tensors")?;
        self.budget
            .tables(payloads.len() as u64, 0, self.file.len())?;
        for (name, payload) in payloads {
            let name = format!("{}{name}", table.prefix);
            self.add(&name, &payload, &table.directory)
                .map_err(|e| match e.tensor() {
                    Some(_) => e,
                    None => e.in_tensor(&name),
                })?;
        }
        Ok(())
    }

    /// Adds the tensor `name` to the model, or to what it cannot hold.
    fn add(&mut self, name: &str, payload: &Payload, directory: &str) -> Result<()> {
        let Some(meta) = &payload.tensor_meta else {
            self.objects.push(name.to_owned());
            return Ok(());
        };
        let refused = match (payload.use_pickle, meta.layout, meta.dtype()) {
            (true, ..) => "tensor of a class of its own, which is stored as a pickle",
            (_, layout, _) if layout != Layout::STRIDED => "sparse tensor",
            (.., None) => "tensor of a dtype that is not read",
            (_, _, Some(dtype)) => return self.add_view(name, dtype, payload, directory),
        };
        let what = refused.to_owned();
        self.contents
            .skipped
            .push(Skipped { name: name.to_owned(), what });
        Ok(())
    }

    fn add_view(
        &mut self,
        name: &str,
        dtype: Dtype,
        payload: &Payload,
        directory: &str,
    ) -> Result<()> {
        let file = format!("{directory}{}", payload.path_name);
        let missing = || AnamnesisError::parse(format!("its data `{file}` is not in the archive"));
        let member = self
            .by_name
            .get(file.as_str())
            .copied()
            .ok_or_else(missing)?;
        if member.deflated {
            return Err(compressed());
        }
        let offset = self.archive.read_data_start(&mut *self.file, member)?;
        let crc = Some(member.crc).filter(|&crc| crc != 0);
        let place = StoragePlace { source: 0, offset, len: member.len, crc };
        let view = payload.view()?;
        let info = tensor_of(name, dtype, &view, 0, place, self.big_endian)?;
        self.contents.tensors.push(info);
        self.places.insert(offset, place);
        *self.users.entry(offset).or_default() += 1;
        Ok(())
    }

    /// Adds the tensors of a checkpoint that is a member.
    fn add_checkpoint(&mut self, table: &Table<'a>) -> Result<()> {
        let Table { member, prefix, .. } = table;
        let start = self.archive.read_data_start(&mut *self.file, member)?;
        let mut window = FileWindow { file: &mut *self.file, start, len: member.len };
        let inner = ZipArchive::read(&mut window, self.budget)?;
        let OpenedArchive { machine, root, big_endian, prefix: directory } =
            run_archive(&mut window, &inner, false, &mut Vec::new(), self.budget)?;
        let mut found = tensors::walk(root, &machine)?;
        self.budget.items(found.len() as u64, "tensors")?;
        for tensor in &mut found {
            tensor.name.insert_str(0, prefix);
        }
        let by_name = members_by_name(&inner);
        let place = |storage: &Storage, _: &mut ParsedModel| {
            let member = find_storage(&by_name, &format!("{directory}data/"), storage)?;
            storage.check_len(member.len)?;
            let offset = start + inner.read_data_start(&mut window, member)?;
            let crc = Some(member.crc).filter(|&crc| crc != 0);
            Ok(StoragePlace { source: 0, offset, len: member.len, crc })
        };
        let keys = &mut StorageKeys::default();
        self.contents.header_size = self.contents.header_size.saturating_add(machine.input.at);
        tensors::add(found, &machine, keys, big_endian, place, &mut self.contents)
    }

    fn finish(mut self) -> Result<ParsedModel> {
        if !self.places.is_empty() {
            check_ratio(&self.contents.tensors, self.places.values())?;
        }
        let mut names = HashSet::new();
        if let Some(twice) = self
            .contents
            .tensors
            .iter()
            .find(|t| !names.insert(&*t.name))
        {
            let what = format!("{}: the archive has it twice", InTensor(&twice.name));
            return Err(AnamnesisError::parse(what));
        }
        self.contents
            .notes
            .extend(note_of_shared(self.users.values()));
        if !self.objects.is_empty() {
            let named = join_first(&self.objects, MAX_NAMED);
            self.contents
                .notes
                .push(format!("left out, as they are no tensors: {named}"));
        }
        not_empty(self.contents)
    }
}
