//! The metadata of a distributed checkpoint: which tensors there are, and where the pieces of each
//! lie.

use std::collections::{HashMap, HashSet};

use super::super::globals::Global;
use super::super::input::PickleInput;
use super::super::pickle::{PickleMachine, wrong};
use super::super::pieces::Rectangle;
use super::super::records::Record;
use super::super::value::{Node, NodeId};
use super::{PlaceOfPiece, of_tensor};
use crate::error::InTensor;
use crate::limits::{Budget, cap};
use crate::parse::listing::is_inside;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// Memory that the values of metadata may take for each byte, besides what values of checkpoints
/// may take: a piece is two objects, of a dozen small values each.
const EXTRA_BYTES_PER_BYTE: usize = 26;

/// Most dimensions of a tensor. Pieces can share their sizes in the pickle, and each has its own
/// afterwards.
const MAX_DIMENSIONS: usize = 16;

/// Longest name of a tensor, in bytes.
const MAX_NAME_BYTES: u64 = 4096;

/// A tensor as the metadata describe it.
#[derive(Debug)]
pub(super) struct LogicalTensor {
    pub name: String,
    /// `None` for a type that is not read.
    pub dtype: Option<Dtype>,
    pub size: Vec<usize>,
    /// The pieces that are not empty, in the order of the metadata.
    pub pieces: Vec<(Rectangle, PlaceOfPiece)>,
}

/// Everything that the metadata say.
pub(super) struct CheckpointIndex {
    pub tensors: Vec<LogicalTensor>,
    /// Names of the files, as the places of pieces count them.
    pub files: Vec<String>,
    /// Names of the values that are no tensors.
    pub values: Vec<String>,
    /// Bytes of the pickle.
    pub header_size: usize,
}

/// Reads the pickle `source`.
///
/// # Errors
/// `Parse` if it is malformed or its parts contradict each other; `Unsupported` if a piece is
/// encoded; `DisallowedGlobal`; `LimitExceeded`; `Io`.
pub(super) fn read_index(source: &Source, budget: &Budget) -> Result<CheckpointIndex> {
    let mut file = source;
    let len = source.len().unwrap_or(0);
    let mut machine = PickleMachine::new(PickleInput::new(&mut file, 0, len, budget), false);
    machine.values.extra_bytes_per_byte = EXTRA_BYTES_PER_BYTE;
    let root = machine.run()?;
    let reader = IndexReader { machine: &machine };
    let mut index = reader.read(root)?;
    index.header_size = machine.input.at;
    Ok(index)
}

/// The path `text` of a file in the directory, as its components joined: `a//b` and `a/./b` are the
/// file `a/b`, whose bytes no two pieces may share.
///
/// # Errors
/// `Parse` if it leads out of the directory.
fn joined_path(text: &str) -> Result<String> {
    if !is_inside(text) {
        let what = format!("the file `{text}` is not in the directory");
        return Err(AnamnesisError::parse(what));
    }
    let parts = text.split('/').filter(|part| !matches!(*part, "" | "."));
    Ok(parts.collect::<Vec<_>>().join("/"))
}

/// Reads the values of the pickle.
struct IndexReader<'a, 'b> {
    machine: &'a PickleMachine<'b>,
}

/// Pieces by the number of their tensor and their first element.
type Places = HashMap<(usize, Vec<usize>), PlaceOfPiece>;

impl IndexReader<'_, '_> {
    fn read(&self, root: NodeId) -> Result<CheckpointIndex> {
        let machine = self.machine;
        self.check_version(root)?;
        let described = machine.required(root, Record::Metadata, "state_dict_metadata")?;
        let stored = machine.required(root, Record::Metadata, "storage_data")?;
        // Values are numbered as they are described, tensors or not.
        let mut numbers: HashMap<&[u8], usize> = HashMap::new();
        for (number, &(key, _)) in self.entries(described)?.iter().enumerate() {
            let name = self.name(key)?;
            if numbers.insert(name.as_bytes(), number).is_some() {
                return Err(wrong(&format!("the metadata have `{name}` twice")));
            }
        }
        let (mut places, files) = self.places(stored, &numbers)?;
        // Of an empty piece there may be a rectangle and no bytes, and equal rectangles are one.
        let most = places.len().saturating_mul(4).saturating_add(10_000);
        let (mut tensors, mut values, mut rectangles) = (vec![], vec![], 0);
        for (number, &(key, value)) in self.entries(described)?.iter().enumerate() {
            let name = self.name(key)?.to_owned();
            if matches!(machine.values.node(value), Node::Record(Record::Bytes, _)) {
                values.push(name);
                continue;
            }
            let about = |e: AnamnesisError| of_tensor(e, &name);
            let (mut tensor, chunks) = self.tensor(value, most - rectangles).map_err(about)?;
            rectangles += chunks.len();
            tensor.pieces = self
                .pieces(chunks, &tensor.size, number, &mut places)
                .map_err(about)?;
            tensor.name = name;
            tensors.push(tensor);
        }
        if let Some((number, start)) = places.into_keys().next() {
            let name = self
                .entries(described)?
                .get(number)
                .map(|&(key, _)| self.name(key));
            let name = name.transpose()?.unwrap_or_default();
            let what = format!(
                "{}: there is a piece at {start:?}, which it does not have",
                InTensor(&name)
            );
            return Err(AnamnesisError::parse(what));
        }
        let header_size = 0;
        Ok(CheckpointIndex { tensors, files, values, header_size })
    }

    /// Checks the version of the metadata, which the first writers left out.
    fn check_version(&self, root: NodeId) -> Result<()> {
        let Some(version) = self.machine.field(root, Record::Metadata, "version")? else {
            return Ok(());
        };
        let version = self.text(version)?;
        match version.split('.').next() {
            Some("1") => Ok(()),
            _ => {
                let what = format!("distributed checkpoint of version {version}");
                Err(AnamnesisError::unsupported(what, "version 1 is read"))
            }
        }
    }

    /// Reads where pieces are: by tensor and first element, with the names of the files.
    fn places(
        &self,
        stored: NodeId,
        numbers: &HashMap<&[u8], usize>,
    ) -> Result<(Places, Vec<String>)> {
        let machine = self.machine;
        let (mut places, mut files) = (Places::new(), Vec::new());
        // Texts are written once and referred to by each piece, so that each is looked at once.
        let (mut known_names, mut known_files) = (HashMap::new(), HashMap::new());
        let mut file_numbers: HashMap<String, usize> = HashMap::new();
        for &(index, place) in self.entries(stored)? {
            let name = machine.required(index, Record::Index, "fqn")?;
            let number = match known_names.get(&name) {
                Some(&number) => number,
                None => {
                    let text = self.name(name)?;
                    let stray = || wrong(&format!("a piece of `{text}`, which is not described"));
                    let number = *numbers.get(text.as_bytes()).ok_or_else(stray)?;
                    known_names.insert(name, number);
                    number
                }
            };
            // A value that is no tensor has no first element.
            let Some(start) = machine.field(index, Record::Index, "offset")? else {
                continue;
            };
            let about = |e: AnamnesisError| match self.name(name) {
                Ok(name) => of_tensor(e, name),
                Err(_) => e,
            };
            let start = self.sizes(start).map_err(about)?;
            let file = machine.required(place, Record::Place, "relative_path")?;
            let file = match known_files.get(&file) {
                Some(&number) => number,
                None => {
                    let next = file_numbers.len();
                    let path = joined_path(self.name(file)?)?;
                    let number = *file_numbers.entry(path).or_insert_with_key(|path| {
                        files.push(path.clone());
                        next
                    });
                    known_files.insert(file, number);
                    number
                }
            };
            self.check_transforms(place).map_err(about)?;
            let size = |name: &str| {
                let value = machine
                    .values
                    .size(machine.required(place, Record::Place, name)?);
                value.ok_or_else(|| wrong(&format!("the {name} of a piece is no size")))
            };
            let place = PlaceOfPiece {
                file,
                offset: size("offset").map_err(about)? as u64,
                len: size("length").map_err(about)? as u64,
            };
            if places.insert((number, start), place).is_some() {
                return Err(about(wrong("one of its pieces is in two places")));
            }
        }
        Ok((places, files))
    }

    /// Refuses a piece that was compressed or encrypted on its way to the file.
    fn check_transforms(&self, place: NodeId) -> Result<()> {
        let machine = self.machine;
        let transforms = machine.field(place, Record::Place, "transform_descriptors")?;
        let Some(transforms) = transforms else {
            return Ok(());
        };
        match machine.values.node(transforms) {
            Node::List(items) | Node::Tuple(items) if items.is_empty() => Ok(()),
            Node::List(items) | Node::Tuple(items) => {
                let first = self.text(items[0]).unwrap_or("?");
                let what = format!("its pieces went through `{first}` (transform_descriptors)");
                Err(AnamnesisError::unsupported("distributed checkpoint", what))
            }
            _ => Err(wrong("transform_descriptors that are no list")),
        }
    }

    /// Reads the description of a tensor: without its name and pieces, and with the rectangles of
    /// these, `most` or fewer.
    fn tensor(&self, value: NodeId, most: usize) -> Result<(LogicalTensor, Vec<Rectangle>)> {
        let machine = self.machine;
        let properties = machine.required(value, Record::Tensor, "properties")?;
        let properties = machine.state(properties, Record::Properties)?;
        let dtype = machine
            .values
            .tuple(properties)
            .and_then(|fields| fields.first());
        let dtype = match dtype.map(|&id| machine.values.node(id)) {
            Some(&Node::Global(Global::Dtype(dtype))) => dtype,
            _ => return Err(wrong("its properties do not begin with a dtype")),
        };
        let size = self.sizes(machine.required(value, Record::Tensor, "size")?)?;
        let chunks = machine.required(value, Record::Tensor, "chunks")?;
        let Node::List(chunks) = machine.values.node(chunks) else {
            return Err(wrong("its chunks are no list"));
        };
        // The pickle may repeat a chunk in a byte or two, so that none is read before they are
        // counted.
        let of = "more rectangles of pieces";
        cap("MAX_PIECES", chunks.len() as u64, most as u64, of)?;
        let rectangle = |&chunk: &NodeId| {
            let sizes = |name| self.sizes(machine.required(chunk, Record::Chunk, name)?);
            let (start, sizes) = (sizes("offsets")?, sizes("sizes")?);
            match start.len() == size.len() && sizes.len() == size.len() {
                true => Ok(Rectangle { start, sizes }),
                false => Err(wrong("a piece has another number of dimensions")),
            }
        };
        let chunks = chunks.iter().map(rectangle).collect::<Result<_>>()?;
        let tensor = LogicalTensor { name: String::new(), dtype, size, pieces: vec![] };
        Ok((tensor, chunks))
    }

    /// Takes the places of the pieces `chunks` of tensor `number` from `places`. Devices that have
    /// no part of a tensor have an empty piece, with bytes or without. Older versions of torch list
    /// the pieces of replicas, which are equal.
    fn pieces(
        &self,
        chunks: Vec<Rectangle>,
        size: &[usize],
        number: usize,
        places: &mut Places,
    ) -> Result<Vec<(Rectangle, PlaceOfPiece)>> {
        let mut pieces = Vec::with_capacity(chunks.len());
        let mut seen: HashSet<Rectangle> = HashSet::new();
        let mut empty = vec![];
        for chunk in chunks {
            // The only piece of an empty tensor is kept: its archive tells that the tensor is of a
            // kind that is read.
            let is_empty = chunk.sizes.contains(&0) && chunk.sizes != size;
            if is_empty {
                empty.push(chunk.start);
                continue;
            }
            if !seen.insert(chunk.clone()) {
                continue;
            }
            let Rectangle { start, sizes } = &chunk;
            let missing = || wrong(&format!("its piece at {start:?} of {sizes:?} is missing"));
            let place = places
                .remove(&(number, start.clone()))
                .ok_or_else(missing)?;
            pieces.push((chunk, place));
        }
        for start in empty {
            places.remove(&(number, start));
        }
        Ok(pieces)
    }

    fn entries(&self, id: NodeId) -> Result<&[(NodeId, NodeId)]> {
        match self.machine.values.node(id) {
            Node::Dict(entries) => Ok(entries),
            _ => Err(wrong("a field of the metadata is no dict")),
        }
    }

    fn text(&self, id: NodeId) -> Result<&str> {
        match self.machine.values.node(id) {
            Node::Str(range) => self.machine.input.text(range),
            _ => Err(wrong("a name that is no text")),
        }
    }

    /// The text of a name, which is kept for each thing of that name.
    fn name(&self, id: NodeId) -> Result<&str> {
        let name = self.text(id)?;
        cap("MAX_NAME_BYTES", name.len() as u64, MAX_NAME_BYTES, "bytes of a name")?;
        Ok(name)
    }

    fn sizes(&self, id: NodeId) -> Result<Vec<usize>> {
        let values = &self.machine.values;
        let sizes = values
            .tuple(id)
            .filter(|sizes| sizes.len() <= MAX_DIMENSIONS);
        let sizes = sizes.and_then(|_| values.sizes(id));
        sizes.ok_or_else(|| wrong("expected a tuple of sizes"))
    }
}
