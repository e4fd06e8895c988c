//! One piece of a distributed checkpoint: an archive of `torch.save` inside of a file, with a
//! single tensor.

use super::super::archive::{OpenedArchive, run_archive};
use super::super::storage::{Storage, StorageKeys, StoragePlace};
use super::super::value::Node;
use super::super::views::tensor_of;
use super::PlaceOfPiece;
use crate::limits::Budget;
use crate::model::TensorInfo;
use crate::parse::read_at::FileWindow;
use crate::parse::zip::ZipArchive;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// The tensor of a piece.
pub(super) struct PieceTensor {
    pub info: TensorInfo,
    /// The storage that it is a view of.
    pub place: StoragePlace,
}

/// Reads the archive at `place` of `file`, which is of the tensor `name`. `Err` inside says what
/// the piece is if it is a tensor of a kind that is not read.
///
/// # Errors
/// `Parse` if there is no archive, or it holds anything else than a tensor; `Unsupported` if it is
/// compressed.
pub(super) fn read_piece(
    file: &Source,
    place: &PlaceOfPiece,
    name: &str,
    budget: &Budget,
) -> Result<std::result::Result<PieceTensor, &'static str>> {
    let (start, len) = (place.offset, place.len);
    let mut file = file;
    let mut window = FileWindow { file: &mut file, start, len };
    let archive = ZipArchive::read_small(&mut window, budget)?;
    let OpenedArchive { machine, root, big_endian, prefix } =
        run_archive(&mut window, &archive, false, &mut Vec::new(), budget)?;
    let view = match machine.values.node(root) {
        Node::Tensor(view) => view,
        Node::Refused(what) => return Ok(Err(what)),
        _ => return Err(AnamnesisError::parse("a piece that is no tensor")),
    };
    let &Node::Persistent(id) = machine.values.node(view.storage) else {
        return Err(AnamnesisError::parse("a piece without a storage"));
    };
    let storage = Storage::from_persistent_id(id, &machine, &mut StorageKeys::default())?;
    let member = format!("{prefix}data/{}", storage.key.text);
    let missing = || AnamnesisError::parse(format!("its storage `{member}` is not in the archive"));
    let member = archive.member(&member).ok_or_else(missing)?;
    if member.deflated {
        let what = "a compressed archive in a distributed checkpoint";
        return Err(AnamnesisError::unsupported(what, "torch stores its pieces as they are"));
    }
    storage.check_len(member.len)?;
    let at = start + archive.read_data_start(&mut window, member)?;
    let stored = StoragePlace {
        source: place.file,
        offset: at,
        len: member.len,
        crc: Some(member.crc).filter(|&crc| crc != 0),
    };
    let dtype = view.dtype.or(storage.element.map(|element| element.dtype));
    let Some(dtype) = dtype.flatten() else {
        return Ok(Err("tensor of a dtype that is not read"));
    };
    let info = tensor_of(name, dtype, view, storage.offset, stored, big_endian)?;
    Ok(Ok(PieceTensor { info, place: stored }))
}
