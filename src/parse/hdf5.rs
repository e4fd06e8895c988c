//! HDF5, as Keras, PyTables and h5py write weights: datasets in groups, called by their paths.
//!
//! Read are files of all versions of the superblock, behind a user block of any length as well, with
//! old and new groups. Data is contiguous, in the object's header, or in chunks with the filters
//! deflate, shuffle and Fletcher32. Links to paths and to other files are not followed.
//!
//! - `file`: structures at addresses; `object`: the messages of an object.
//! - `group`, `btree1`, `btree2`, `heap`: links by name.
//! - `keras`: layers that Keras has quantized.
//! - `datatype`, `dataset`, `layout`, `chunks`, `extensible`: datasets, and where their data is.
//!
//! Format: [HDF5 File Format Specification](https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html), versions 1 to 3.

mod btree1;
mod btree2;
mod chunks;
mod dataset;
mod datatype;
mod extensible;
mod file;
mod group;
mod heap;
mod keras;
mod layout;
mod object;

use std::collections::HashSet;
use std::path::Path;

use self::file::{Hdf5File, wrong};
use self::keras::{KerasLayers, KerasVariables};
use self::object::{Object, kind};
use super::magic::HDF5;
use super::read_at::ReadAt;
use super::zip::ZipArchive;
use crate::config::{Confined, parse_python, read_small};
use crate::limits::{Budget, cap};
use crate::model::Skipped;
use crate::source::Source;
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Largest config of a model of Keras, in bytes.
const MAX_CONFIG: u64 = 64 << 20;

/// Longest path, in bytes.
const MAX_PATH: usize = 4096;

/// Reads an HDF5 file.
///
/// # Errors
/// `Parse` if it is malformed; `Unsupported` for versions that are not read; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(0);
    let start = superblock_of(&mut &*source)?.ok_or_else(|| wrong("no superblock"))?;
    let beside = || config_beside(path, budget);
    read_range(source, (start, len), start, beside, budget)
}

/// The layers of the model whose `config.json` is beside its weights, if it is.
fn config_beside(path: Option<&Path>, budget: &Budget) -> Result<KerasLayers> {
    let Some(directory) = path.map(|path| path.parent().unwrap_or(Path::new(""))) else {
        return Ok(KerasLayers::default());
    };
    let file = directory.join("config.json");
    if !Confined::new(directory).has(&file) {
        return Ok(KerasLayers::default());
    }
    let json = read_small(&file, budget)?;
    json.map_or_else(|| Ok(KerasLayers::default()), |json| layers_of(&json, &file, budget))
}

/// The layers of a config.
fn layers_of(json: &[u8], file: &Path, budget: &Budget) -> Result<KerasLayers> {
    let json = parse_python(json, file, budget)?;
    Ok(KerasLayers::read(&json.value))
}

/// Offset of the superblock: 0, or a power of two from 512 on, behind a block of the user's; `None` if
/// there is none.
pub(super) fn superblock_of(file: &mut dyn ReadAt) -> Result<Option<u64>> {
    let (mut at, len) = (0, file.len());
    while at + HDF5.len() as u64 <= len {
        let mut head = [0; HDF5.len()];
        file.read_at(at, &mut head)?;
        if head == *HDF5 {
            return Ok(Some(at));
        }
        at = (at * 2).max(512);
    }
    Ok(None)
}

/// Reads the weights in an archive of Keras, which stores them as they are.
///
/// # Errors
/// As [`read`], and `Unsupported` if they are compressed.
pub(super) fn read_archive(
    source: &Source,
    archive: &ZipArchive,
    budget: &Budget,
) -> Result<ParsedModel> {
    let member = archive.keras().ok_or_else(|| archive.neither())?;
    if member.deflated {
        let what = "its weights are compressed; unpack it, and give `model.weights.h5`";
        return Err(AnamnesisError::unsupported("Keras", what));
    }
    let start = archive.read_data_start(&mut &*source, member)?;
    let config = archive.members.iter().find(|m| m.name == "config.json");
    let layers = match config {
        Some(config) => {
            let json = archive.read_content(&mut &*source, config, MAX_CONFIG, budget)?;
            layers_of(&json, Path::new("config.json"), budget)?
        }
        None => KerasLayers::default(),
    };
    read_range(source, (start, start + member.len), 0, || Ok(layers), budget)
}

/// Reads the file in `start..end` of `source`, before which there is a block of the user's of `before`
/// bytes. A whole model of Keras has its config in an attribute; `config` is that of others.
fn read_range(
    source: &Source,
    (start, end): (u64, u64),
    before: u64,
    config: impl FnOnce() -> Result<KerasLayers>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let mut file = Hdf5File::new(source, start, end);
    budget.tables(0, 0, file.len())?;
    let root = superblock(&mut file, before)?;
    let mut contents = ParsedModel::new(Container::Hdf5, 0);
    contents.sources.push(source.share());
    let mut walk = Walk {
        file,
        budget,
        contents,
        names: HashSet::new(),
        groups: HashSet::new(),
        variables: Vec::new(),
        repeated: 0,
        not_followed: (0, String::new()),
    };
    walk.all(root)?;
    let Walk { mut file, mut contents, variables, repeated, not_followed, .. } = walk;
    keras::mark(&mut contents, &variables, || {
        let object = Object::read(&mut file, root)?;
        let whole = dataset::text_attribute(&mut file, &object, b"model_config")?;
        match whole {
            Some(json) => layers_of(&json, Path::new("model_config"), budget),
            None => config(),
        }
    })?;
    if repeated > 0 {
        contents.notes.push(format!(
            "{repeated} links lead to groups that have other names as well, under which their datasets are listed"
        ));
    }
    if let (links @ 1.., one) = not_followed {
        contents.notes.push(format!(
            "{links} links lead to paths or to other files, and are not followed, such as `{one}`"
        ));
    }
    if contents.tensors.is_empty() && contents.skipped.is_empty() {
        return Err(AnamnesisError::parse("the HDF5 file holds no datasets"));
    }
    let stored: u64 = contents
        .tensors
        .iter()
        .filter(|t| t.source == 0)
        .map(|t| t.len)
        .sum();
    contents.header_size = (end - start).saturating_sub(stored) as usize;
    Ok(contents)
}

/// Reads the superblock, and returns the address of the root's object header.
fn superblock(file: &mut Hdf5File<'_>, before: u64) -> Result<u64> {
    let head = file.structure(0, 16)?;
    if !head.starts_with(HDF5) {
        return Err(wrong("no superblock"));
    }
    let version = head[8];
    let sizes = match version {
        0 | 1 => (head[13], head[14]),
        2 | 3 => (head[9], head[10]),
        _ => {
            let what = format!("HDF5 superblock version {version}");
            return Err(AnamnesisError::unsupported(what, "versions 0 to 3 are read"));
        }
    };
    let is_read = |size: u8| matches!(size, 2 | 4 | 8);
    if !is_read(sizes.0) || !is_read(sizes.1) {
        return Err(wrong("addresses of another size than 2, 4 or 8 bytes"));
    }
    file.sizes = (sizes.0.into(), sizes.1.into());
    let o = sizes.0.into();
    // Old ones have the root's entry behind four addresses: the place of its name, and its address.
    // The third address is the end of the file.
    let (end, root) = match version {
        0 => (24 + 2 * o, 24 + 4 * o + o),
        1 => (28 + 2 * o, 28 + 4 * o + o),
        _ => (12 + 2 * o, 12 + 3 * o),
    };
    let stated = file.structure(end, o)?;
    let stated = file.fields(&stated).some_address()?;
    if stated > file.len().saturating_add(before) {
        return Err(wrong(&format!("it should have {stated} bytes, and is truncated")));
    }
    let address = file.structure(root, o)?;
    file.fields(&address).some_address()
}

/// Walks over the groups, and collects their datasets.
struct Walk<'a> {
    file: Hdf5File<'a>,
    budget: &'a Budget,
    contents: ParsedModel,
    /// Paths of the datasets so far.
    names: HashSet<String>,
    /// Addresses of the groups so far.
    groups: HashSet<u64>,
    /// Groups with the variables of layers of Keras.
    variables: Vec<KerasVariables>,
    /// Links to groups that were met before.
    repeated: usize,
    /// Links to paths and to other files, and the path of one.
    not_followed: (usize, String),
}

impl Walk<'_> {
    fn all(&mut self, root: u64) -> Result<()> {
        let mut places = vec![(String::new(), root)];
        while let Some((path, address)) = places.pop() {
            let object = Object::read(&mut self.file, address)?;
            if object.find(kind::LAYOUT).is_some() {
                self.dataset(path, &object)?;
                continue;
            }
            let Some(mut links) = group::links(&mut self.file, &object)? else {
                continue;
            };
            if !self.groups.insert(address) {
                self.repeated += 1;
                continue;
            }
            if path == "vars" || path.ends_with("/vars") {
                let name = dataset::text_attribute(&mut self.file, &object, b"name")?;
                let name = String::from_utf8_lossy(&name.unwrap_or_default()).into_owned();
                self.budget
                    .tables(0, 1 + (name.len() + path.len()) as u64 / 64, 0)?;
                self.variables
                    .push(KerasVariables { path: path.clone(), name });
            }
            // Backwards, because the last one is taken first.
            links.sort_unstable_by(|a, b| b.name.cmp(&a.name));
            for link in links {
                let slash = if path.is_empty() { "" } else { "/" };
                let below = format!("{path}{slash}{}", link.name);
                cap("MAX_HDF5_PATH", below.len() as u64, MAX_PATH as u64, "bytes of a path")?;
                self.budget.tables(0, 1 + below.len() as u64 / 256, 0)?;
                match link.object {
                    Some(object) => places.push((below, object)),
                    None => {
                        self.not_followed.0 += 1;
                        self.not_followed.1 = below;
                    }
                }
            }
        }
        Ok(())
    }

    fn dataset(&mut self, path: String, object: &Object) -> Result<()> {
        self.budget.items(1, "datasets")?;
        self.budget.tables(1, 0, 0)?;
        let path = if path.is_empty() {
            "tensor".to_owned()
        } else {
            path
        };
        if !self.names.insert(path.clone()) {
            return Err(wrong(&format!("two datasets are called `{path}`")));
        }
        let added = dataset::read(&mut self.file, object, &path, self.budget, &mut self.contents);
        match added.map_err(|error| error.in_tensor(&path))? {
            Ok(tensor) => self.contents.tensors.push(tensor),
            Err(what) => self.contents.skipped.push(Skipped { name: path, what }),
        }
        Ok(())
    }
}
