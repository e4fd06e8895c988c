//! Pickles of NumPy arrays: parameters of Paddle (`.pdparams`, `.pdopt`), and whatever else
//! `pickle.dump` has written of dicts, lists and tuples of arrays.
//!
//! The data of an array are bytes in the pickle itself. Up to protocol 2 they are text: UTF-8, each
//! character of which is a byte (Latin-1). Both stay in the file, and are read on demand.
//!
//! Paddle: `python/paddle/framework/io.py` and `io_utils.py`.
//!
//! - A tensor in nested objects is a tuple `(name, array)`. The name is that of the program's
//!   variable, and is dropped.
//! - Up to protocol 3 arrays of more than 1 GiB are in slices: `UnpackBigParamInfor@@` has the
//!   shape and the slices of each.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::input::PickleInput;
use super::ndarray::array_global;
use super::not_empty;
use super::pickle::PickleMachine;
use super::storage::StoragePlace;
use super::tensors::{FoundTensor, take_unread, walk};
use super::value::{Node, NodeId, StoredRange, TensorView};
use super::views::{check_ratio, tensor_of};
use crate::error::InTensor;
use crate::limits::Budget;
use crate::model::strided::row_major_strides;
use crate::parse::read_at::ReadAt;
use crate::source::{Derived, Latin1Text, Pieced, Source};
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

/// The key of a dict of Paddle's that lists arrays in slices.
const SLICES: &str = "UnpackBigParamInfor@@";

/// Reads a pickle of arrays from `file`, whose data is in `source`.
///
/// # Errors
/// `Parse` if it is malformed; `DisallowedGlobal`; `LimitExceeded`; `Io`.
pub(super) fn read(file: &mut dyn ReadAt, source: Source, budget: &Budget) -> Result<ParsedModel> {
    let mut contents = ParsedModel::new(Container::Pth, 0);
    contents.sources.push(source);
    let len = file.len();
    let array = ObjectArray { name: "", is_scalar: false, member: None };
    contents.header_size = add(file, 0..len, &array, &mut contents, budget)?;
    let what = "a pickle of NumPy arrays, as Paddle writes them: no code in it is run";
    contents.notes.push(what.to_owned());
    if let Some(first) = contents.tensors.iter().find(|t| t.dtype == Dtype::U16) {
        contents.notes.push(format!(
            "{} and others may be BF16, which Paddle stores as U16 without a mark; they are kept as U16",
            InTensor(&first.name)
        ));
    }
    not_empty(contents)
}

/// An array of objects, which is a pickle behind the header of an NPY file; or a file that is a pickle.
pub(in crate::parse) struct ObjectArray<'a> {
    /// What the names of the arrays in it begin with; empty: nothing.
    pub name: &'a str,
    /// Whether it has no dimensions: it stands for its only object.
    pub is_scalar: bool,
    /// The compressed member that it is, and how many bytes are stored.
    pub member: Option<(Arc<[Source]>, u64)>,
}

/// Adds the arrays of the pickle at `place` of `file`, which is the first of the sources or the
/// compressed member. Returns how many bytes of it were read.
///
/// # Errors
/// Those of [`read`].
pub(in crate::parse) fn add(
    file: &mut dyn ReadAt,
    place: Range<u64>,
    array: &ObjectArray<'_>,
    contents: &mut ParsedModel,
    budget: &Budget,
) -> Result<usize> {
    let len = place.end - place.start;
    let mut input = PickleInput::new(file, place.start, len, budget);
    if let Some((_, stored)) = &array.member {
        input.stored = usize::try_from(*stored).unwrap_or(usize::MAX);
    }
    let mut machine = PickleMachine::new(input, false);
    (machine.more_globals, machine.leaves_data) = (array_global, true);
    let mut root = machine.run()?;
    if !machine.input.is_at_end() {
        return Err(AnamnesisError::parse("pickle: there is data behind it"));
    }
    let &ObjectArray { name, is_scalar, ref member } = array;
    if is_scalar
        && let Node::List(items) = machine.values.node(root)
        && let &[only] = items.as_slice()
    {
        root = only;
    }
    let is_whole = matches!(machine.values.node(root), Node::Tensor(_) | Node::Refused(_));
    let mut found = walk(root, &machine)?;
    budget.items(found.len() as u64, "arrays")?;
    if !name.is_empty() {
        budget.grow((found.len() * name.len()) as u64, "names of arrays")?;
        for tensor in &mut found {
            tensor.name = if is_whole {
                name.to_owned()
            } else {
                format!("{name}.{}", tensor.name)
            };
        }
    }
    let slices = read_slices(root, &machine)?;
    let mut views = take_unread(found, contents);
    let joined = take_slices(&mut views, slices)?;
    let header = machine.input.at;
    let member = member.as_ref().map(|(member, _)| member);
    let mut data = ArrayData { machine, member, places: HashMap::new() };
    let whole = views.into_iter().map(|(name, view)| {
        let parts = vec![view.storage];
        (name, view, parts)
    });
    let before = contents.tensors.len();
    for (name, view, parts) in whole.chain(joined) {
        let tensor = data.tensor(&name, &view, &parts, contents)?;
        contents.tensors.push(tensor);
    }
    check_ratio(&contents.tensors[before..], data.places.values())?;
    Ok(header)
}

/// Adds the arrays among the tensors of a checkpoint, whose pickle is in the first of the sources.
///
/// # Errors
/// `Parse` if their data are no bytes of that, or have another length.
pub(super) fn add_among(
    found: Vec<FoundTensor>,
    machine: PickleMachine<'_>,
    contents: &mut ParsedModel,
) -> Result<()> {
    let views = take_unread(found, contents);
    let Some((first, _)) = views.first() else {
        return Ok(());
    };
    contents.notes.push(format!(
        "{} is an array of NumPy in the pickle itself, {}: no code in it is run",
        InTensor(first),
        match views.len() - 1 {
            0 => "the only one".to_owned(),
            n => format!("and so are {n} more"),
        }
    ));
    let (mut data, before) =
        (ArrayData { machine, member: None, places: HashMap::new() }, contents.tensors.len());
    for (name, view) in views {
        let tensor = data.tensor(&name, &view, &[view.storage], contents)?;
        contents.tensors.push(tensor);
    }
    check_ratio(&contents.tensors[before..], data.places.values())
}

/// An array that is stored in slices.
struct Sliced {
    name: String,
    shape: Vec<usize>,
    slices: Vec<String>,
}

/// The arrays that the dict `root` lists as being in slices.
fn read_slices(root: NodeId, machine: &PickleMachine<'_>) -> Result<Vec<Sliced>> {
    let wrong = || AnamnesisError::parse(format!("pickle: `{SLICES}` is not as Paddle writes it"));
    let text = |id: NodeId| match machine.values.node(id) {
        Node::Str(range) => machine.input.text(range).ok(),
        _ => None,
    };
    let dict = |id: NodeId| match machine.values.node(id) {
        Node::Dict(entries) => Some(entries.as_slice()),
        _ => None,
    };
    let list = dict(root).unwrap_or_default();
    let Some(&(_, list)) = list.iter().find(|&&(key, _)| text(key) == Some(SLICES)) else {
        return Ok(vec![]);
    };
    let mut found = vec![];
    for &(name, description) in dict(list).ok_or_else(wrong)? {
        let entries = dict(description).filter(|entries| entries.len() == 2);
        let entries = entries.ok_or_else(wrong)?;
        let value = |name: &str| {
            let entry = entries.iter().find(|&&(key, _)| text(key) == Some(name));
            entry.map(|&(_, value)| value).ok_or_else(wrong)
        };
        let shape = machine
            .values
            .sizes(value("OriginShape")?)
            .ok_or_else(wrong)?;
        let Node::List(slices) = machine.values.node(value("slices")?) else {
            return Err(wrong());
        };
        let slices: Option<Vec<String>> = slices
            .iter()
            .map(|&id| text(id).map(str::to_owned))
            .collect();
        let name = text(name).ok_or_else(wrong)?.to_owned();
        let slices = slices.ok_or_else(wrong)?;
        let names: usize = slices.iter().map(String::len).sum();
        machine.input.budget.grow(names as u64, "names of slices")?;
        found.push(Sliced { name, shape, slices });
    }
    Ok(found)
}

/// An array's name, what it is a view of, and the data of its slices.
type JoinedArray = (String, TensorView, Vec<NodeId>);

/// Takes the slices of arrays from `views`.
///
/// # Errors
/// `Parse` that names the array if a slice is missing, is of two arrays or is of another dtype than
/// the first.
fn take_slices(
    views: &mut Vec<(String, TensorView)>,
    sliced: Vec<Sliced>,
) -> Result<Vec<JoinedArray>> {
    if sliced.is_empty() {
        return Ok(vec![]);
    }
    let names = sliced.iter().flat_map(|array| array.slices.iter());
    let names: HashSet<&str> = names.map(String::as_str).collect();
    let taken = views.extract_if(.., |(name, _)| names.contains(name.as_str()));
    let mut by_name: HashMap<String, TensorView> = taken.collect();
    let others: HashSet<&str> = views.iter().map(|(name, _)| name.as_str()).collect();
    let mut joined: Vec<JoinedArray> = vec![];
    for Sliced { name, shape, slices } in sliced {
        let wrong =
            |what: &str| AnamnesisError::parse(format!("{}: its slices {what}", InTensor(&name)));
        if others.contains(name.as_str()) {
            return Err(wrong("are there beside the whole"));
        }
        let (mut parts, mut kind) = (vec![], None);
        for slice in &slices {
            let view = by_name
                .remove(slice)
                .ok_or_else(|| wrong("are missing, or of two arrays"))?;
            let of_view = (view.dtype, view.big_endian);
            if view.shape.len() != 1 || *kind.get_or_insert(of_view) != of_view {
                return Err(wrong("do not fit together"));
            }
            parts.push(view.storage);
        }
        let storage = *parts.first().ok_or_else(|| wrong("are missing"))?;
        let ((dtype, big_endian), strides) = (kind.unwrap_or_default(), row_major_strides(&shape));
        let view = TensorView { storage, dtype, offset: 0, shape, strides, big_endian };
        joined.push((name, view, parts));
    }
    Ok(joined)
}

/// The data of arrays, and the places of those that have been looked up.
struct ArrayData<'a> {
    machine: PickleMachine<'a>,
    /// The compressed member that the pickle is in. Decompressed from its beginning for each array,
    /// it would take time that grows with their square, so it lies in one temporary file for all.
    member: Option<&'a Arc<[Source]>>,
    /// By the values of the data, which is in one piece or in slices.
    places: HashMap<Vec<NodeId>, StoragePlace>,
}

impl ArrayData<'_> {
    /// The tensor `view`, whose data are the values `parts` one after another.
    fn tensor(
        &mut self,
        name: &str,
        view: &TensorView,
        parts: &[NodeId],
        contents: &mut ParsedModel,
    ) -> Result<crate::model::TensorInfo> {
        let Some(Some(dtype)) = view.dtype else {
            return Err(AnamnesisError::parse("its dtype is missing"));
        };
        let place = match self.places.get(parts) {
            Some(&place) => place,
            None => {
                let place = self.place(parts, contents);
                let place = place.map_err(|error| error.in_tensor(name))?;
                self.places.insert(parts.to_vec(), place);
                place
            }
        };
        let tensor = tensor_of(name, dtype, view, 0, place, view.big_endian)?;
        if tensor.len != place.len {
            let (len, stored) = (tensor.len, place.len);
            let what = format!("its type and shape need {len} bytes, and it has {stored}");
            return Err(AnamnesisError::parse(what).in_tensor(name));
        }
        Ok(tensor)
    }

    /// Where the bytes of `parts` are, one after another.
    fn place(&mut self, parts: &[NodeId], contents: &mut ParsedModel) -> Result<StoragePlace> {
        let no_data = || AnamnesisError::parse("its data are no bytes");
        let (mut bytes, mut texts) = (vec![], vec![]);
        for &part in parts {
            let values = &self.machine.values;
            match values.node(part) {
                Node::Bytes(range) if range.is_empty() => {
                    bytes.push(StoredRange { offset: 0, len: 0 });
                }
                Node::Encoded(text) => texts.push(self.range(*text).ok_or_else(no_data)?),
                Node::Bytes(_) | Node::Stored(_) => {
                    bytes.push(self.range(part).ok_or_else(no_data)?);
                }
                _ => return Err(no_data()),
            }
        }
        if let ([only], []) = (&*bytes, &*texts)
            && (self.member.is_none() || only.len == 0)
        {
            let &StoredRange { offset, len } = only;
            return Ok(StoragePlace { source: 0, offset, len, crc: None });
        }
        let base = match self.member {
            Some(member) => {
                let all = (0, 0, member.first().and_then(Source::len).unwrap_or(0));
                Source::Pieced(Box::new(Pieced::of_several(member.clone(), [all].into_iter())?))
            }
            None => contents.sources[0].share(),
        };
        let source = match bytes.is_empty() {
            true => {
                let input = &mut self.machine.input;
                let mut read = |offset: u64, out: &mut [u8]| input.read_file(offset, out);
                let ranges = texts.iter().map(|text| (text.offset, text.len)).collect();
                let text = Latin1Text::new(base, ranges, &mut read)?;
                Source::Derived(Box::new(Derived::Latin1(text)))
            }
            false if texts.is_empty() => {
                let ranges = bytes.iter().map(|range| (range.offset, range.len));
                Source::Pieced(Box::new(Pieced::joined(base, ranges)?))
            }
            false => return Err(no_data()),
        };
        let (number, len) = (contents.sources.len(), source.len().unwrap_or(0));
        contents.sources.push(source);
        Ok(StoragePlace { source: number, offset: 0, len, crc: None })
    }

    /// Where bytes or text are in the file.
    fn range(&self, id: NodeId) -> Option<StoredRange> {
        match self.machine.values.node(id) {
            &Node::Stored(range) | &Node::StoredText(range) => Some(range),
            Node::Bytes(range) | Node::Str(range) => {
                let offset = self.machine.input.file_offset(range)?;
                Some(StoredRange { offset, len: range.len() as u64 })
            }
            _ => None,
        }
    }
}
