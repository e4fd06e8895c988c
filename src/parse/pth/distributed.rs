//! Distributed checkpoints of PyTorch (DCP), as training with FSDP writes them: a directory of
//! files `__0_0.distcp`, and `.metadata`, a pickle that says what lies where in them.
//!
//! ```text
//! .metadata       Metadata
//!   state_dict_metadata   name → TensorStorageMetadata: dtype, size, rectangles of its pieces; or BytesStorageMetadata
//!   storage_data          MetadataIndex (name, first element of a piece) → _StorageInfo: file, offset, length
//! __0_0.distcp    archives of `torch.save` behind each other, one for each piece, of a single tensor
//! ```
//!
//! A tensor in one piece is a view of its archive's storage, as in other checkpoints. One in
//! several pieces is a source of its own, [`Pieced`](crate::source::Pieced). Values that are no
//! tensors, such as the step of an optimizer, are left out.
//!
//! Format: torch `torch/distributed/checkpoint/metadata.py`, `filesystem.py` and
//! `planner_helpers.py`.

mod archive;
mod index;

use std::path::Path;
use std::sync::Arc;

use self::archive::{PieceTensor, read_piece};
use self::index::{CheckpointIndex, LogicalTensor, read_index};
use super::not_empty;
use super::pieces::{Rectangle, assemble, stored_shape};
use super::storage::StoragePlace;
use super::views::check_ratio;
use crate::error::InTensor;
use crate::limits::{Budget, join_first};
use crate::model::{Skipped, TensorInfo};
use crate::source::{FilePool, Source};
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Bytes of a file that a piece takes, and which piece it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PlaceOfPiece {
    file: usize,
    offset: u64,
    len: u64,
}

/// Most names that a note lists.
const MAX_NAMED: usize = 5;

/// Reads the checkpoint whose `.metadata` is `source`, at `path`: the metadata, and of each piece
/// its archive's directory and pickle.
///
/// # Errors
/// `Parse` that names the tensor if a piece is missing, is not within its file, overlaps another or
/// is not what the metadata say; `Unsupported`; `DisallowedGlobal`; `LimitExceeded`; `Io`.
pub(in crate::parse) fn read(source: &Source, path: &Path, budget: &Budget) -> Result<ParsedModel> {
    let CheckpointIndex { tensors, files, values, header_size } = read_index(source, budget)?;
    let pool = Arc::new(FilePool::default());
    let open = |(number, name): (usize, &String)| {
        Source::open_pooled(&pool, number, &path.with_file_name(name))
    };
    let opened: Vec<Source> = files.iter().enumerate().map(open).collect::<Result<_>>()?;
    check_places(&tensors, &files, &opened)?;
    let (count, bytes) = (tensors.len() as u64, opened.iter().filter_map(Source::len).sum());
    let pieces = tensors
        .iter()
        .map(|tensor| tensor.pieces.len() as u64)
        .sum();
    budget.items(count, "tensors")?;
    budget.tables(count, pieces, bytes)?;
    let mut model = ParsedModel::new(Container::Pth, header_size);
    model.sources = opened.iter().map(Source::share).collect();
    let mut assembly = Assembly { files: opened.into(), budget, places: vec![] };
    for tensor in &tensors {
        let added = assembly.add(tensor, &mut model);
        added.map_err(|error| of_tensor(error, &tensor.name))?;
    }
    check_ratio(&model.tensors, assembly.places.iter())?;
    if !values.is_empty() {
        let (n, named) = (values.len(), join_first(&values, MAX_NAMED));
        let note = format!("left out, as they are no tensors: {n} values ({named})");
        model.notes.push(note);
    }
    not_empty(model)
}

/// Adds the name of a tensor to an error, unless it has it.
fn of_tensor(error: AnamnesisError, name: &str) -> AnamnesisError {
    let about = format!("{}", InTensor(&name));
    match error {
        error if error.to_string().contains(&about) => error,
        AnamnesisError::Unsupported { format, detail } => {
            AnamnesisError::unsupported(format, format!("{about}: {detail}"))
        }
        error => error.about(about),
    }
}

/// Checks that every piece is within its file, and that no two share a byte: an archive that stood
/// for many pieces would make a small file large.
fn check_places(tensors: &[LogicalTensor], files: &[String], opened: &[Source]) -> Result<()> {
    let mut all: Vec<(&PlaceOfPiece, &str)> = vec![];
    for LogicalTensor { name, pieces, .. } in tensors {
        all.extend(pieces.iter().map(|(_, place)| (place, name.as_str())));
    }
    all.sort_unstable();
    let mut before = (usize::MAX, 0);
    for (&PlaceOfPiece { file, offset, len }, name) in all {
        let wrong = |what: &str| {
            let file = &files[file];
            let what = format!(
                "{}: its piece of {len} bytes at {offset} {what} `{file}`",
                InTensor(&name)
            );
            Err(AnamnesisError::parse(what))
        };
        let end = offset.checked_add(len);
        let Some(end) = end.filter(|&end| end <= opened[file].len().unwrap_or(0)) else {
            return wrong("is not within");
        };
        if before.0 == file && before.1 > offset {
            return wrong("overlaps another in");
        }
        before = (file, end);
    }
    Ok(())
}

/// Makes the tensors of the model from their pieces.
struct Assembly<'a> {
    files: Arc<[Source]>,
    budget: &'a Budget,
    /// The storages of all pieces.
    places: Vec<StoragePlace>,
}

impl Assembly<'_> {
    /// Adds a tensor to the model, or to what it cannot hold.
    fn add(&mut self, tensor: &LogicalTensor, model: &mut ParsedModel) -> Result<()> {
        let LogicalTensor { name, dtype, size, pieces } = tensor;
        let mut skip = |what: &str| {
            let (name, what) = (name.clone(), what.to_owned());
            model.skipped.push(Skipped { name, what });
            Ok(())
        };
        let Some(dtype) = *dtype else {
            return skip("tensor of a dtype that is not read");
        };
        let mut found = Vec::with_capacity(pieces.len());
        for (rectangle, place) in pieces {
            let file = &self.files[place.file];
            let PieceTensor { info, place } = match read_piece(file, place, name, self.budget)? {
                Ok(stored) => stored,
                Err(what) => return skip(what),
            };
            self.places.push(place);
            let shape = stored_shape(dtype, &rectangle.sizes);
            if info.dtype != dtype || Some(&*info.shape) != shape.as_deref() {
                let what = format!(
                    "a piece is {} {:?}, where the metadata say {dtype} {:?}",
                    info.dtype, info.shape, rectangle.sizes
                );
                return Err(AnamnesisError::parse(what));
            }
            found.push((rectangle, info));
        }
        let whole = |(rectangle, _): &(&Rectangle, TensorInfo)| {
            rectangle.sizes == *size && rectangle.start.iter().all(|&at| at == 0)
        };
        let info = match found.pop() {
            Some(only) if found.is_empty() && whole(&only) => only.1,
            last => {
                found.extend(last);
                assemble((name, dtype, size), &found, &self.files, model)?
            }
        };
        model.tensors.push(info);
        Ok(())
    }
}
