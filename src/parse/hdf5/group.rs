//! Links of groups: names, and the objects that they lead to.
//!
//! - Old groups: a B-tree of version 1, whose leaves are tables of symbols with names in a heap.
//! - New groups: a message for each link, or, if there are many, a fractal heap of these messages.

use super::btree1::{self, GroupTree};
use super::btree2;
use super::file::{Hdf5File, utf8, wrong};
use super::heap::FractalHeap;
use super::object::{Object, kind};
use crate::{AnamnesisError, Result};

/// A link to an object.
pub(super) struct Link {
    pub name: String,
    /// The object's address; `None` if the link leads to a path, or to another file.
    pub object: Option<u64>,
}

/// The links of a group; `None` if the object is no group.
pub(super) fn links(file: &mut Hdf5File<'_>, object: &Object) -> Result<Option<Vec<Link>>> {
    if let Some(table) = object.find(kind::SYMBOL_TABLE) {
        let mut fields = file.fields(table);
        let (tree, heap) = (fields.some_address()?, fields.some_address()?);
        return symbols(file, tree, heap).map(Some);
    }
    let info = object.find(kind::LINK_INFO);
    let mut found = Vec::new();
    for message in object.all(kind::LINK) {
        found.push(link(file, message)?);
    }
    let Some(info) = info else {
        return Ok(Some(found).filter(|found| !found.is_empty()));
    };
    let mut fields = file.fields(info);
    let (_, flags) = (fields.u8()?, fields.u8()?);
    if flags & 1 != 0 {
        fields.take(8)?;
    }
    if let (Some(heap), Some(names)) = (fields.address()?, fields.address()?) {
        let heap = FractalHeap::read(file, heap)?;
        for record in btree2::records(file, names, &[5])?.each() {
            // A hash of the name, and the place in the heap.
            let id = record.get(4..).unwrap_or_default();
            let message = heap.object(file, id)?;
            found.push(link(file, &message)?);
        }
    }
    Ok(Some(found))
}

/// The links of an old group.
fn symbols(file: &mut Hdf5File<'_>, tree: u64, heap: u64) -> Result<Vec<Link>> {
    let (offset_size, length_size) = file.sizes;
    let head = file.structure(heap, 8 + (2 * length_size + offset_size) as u64)?;
    let mut fields = file.fields(&head);
    fields.magic(b"HEAP")?;
    fields.take(4)?;
    let (len, _, names) = (fields.length()?, fields.length()?, fields.some_address()?);
    let names = file.structure(names, len)?;
    let mut found = Vec::new();
    for table in btree1::leaves(file, tree, &GroupTree)? {
        let head = file.structure(table, 8)?;
        let mut fields = file.fields(&head);
        fields.magic(b"SNOD")?;
        fields.take(2)?;
        let count = u64::from(fields.u16()?);
        let size = 2 * offset_size as u64 + 24;
        let entries = file.structure(table.saturating_add(8), count * size)?;
        for entry in entries.chunks_exact(size as usize) {
            let mut fields = file.fields(entry);
            let name = fields.number(offset_size)?;
            let object = fields.some_address();
            let is_link = fields.u32()? == 2;
            let name = usize::try_from(name).ok().and_then(|at| names.get(at..));
            let mut name = file.fields(name.ok_or_else(|| wrong("a name outside of its heap"))?);
            let name = name.text()?.to_owned();
            // Many links may have one name.
            file.charge(name.len() as u64)?;
            let object = if is_link { None } else { Some(object?) };
            found.push(Link { name, object });
        }
    }
    Ok(found)
}

/// A link message.
fn link(file: &Hdf5File<'_>, message: &[u8]) -> Result<Link> {
    let mut fields = file.fields(message);
    let (version, flags) = (fields.u8()?, fields.u8()?);
    if version != 1 {
        let what = format!("HDF5 link version {version}");
        return Err(AnamnesisError::unsupported(what, "version 1 is read"));
    }
    let is_hard = if flags & 8 != 0 {
        fields.u8()? == 0
    } else {
        true
    };
    if flags & 4 != 0 {
        fields.take(8)?;
    }
    if flags & 0x10 != 0 {
        fields.take(1)?;
    }
    let len = fields.number(1 << (flags & 3))?;
    let len = usize::try_from(len).map_err(|_| wrong("a name of a false length"))?;
    let name = utf8(fields.take(len)?)?.to_owned();
    let object = if is_hard {
        Some(fields.some_address()?)
    } else {
        None
    };
    Ok(Link { name, object })
}
