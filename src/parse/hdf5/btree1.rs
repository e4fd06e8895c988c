//! B-trees of version 1: those of old groups, and those of chunks.

use super::file::{Hdf5File, StructureFields, wrong};
use crate::Result;

/// What the nodes of a kind of tree have.
pub(super) trait TreeKind {
    /// The kind's number.
    const NUMBER: u8;
    /// What is collected of a child of a leaf.
    type Leaf;
    /// Bytes of a key.
    fn key_len(&self, sizes: (usize, usize)) -> usize;
    /// What is collected of a child and the key before it.
    fn leaf(&self, key: StructureFields<'_>, child: u64) -> Result<Self::Leaf>;
}

/// The tree of a group, whose leaves are addresses of tables of symbols.
pub(super) struct GroupTree;

impl TreeKind for GroupTree {
    const NUMBER: u8 = 0;
    type Leaf = u64;

    fn key_len(&self, sizes: (usize, usize)) -> usize {
        sizes.1
    }

    fn leaf(&self, _key: StructureFields<'_>, child: u64) -> Result<u64> {
        Ok(child)
    }
}

/// What a tree's leaves lead to, in order.
pub(super) fn leaves<T: TreeKind>(
    file: &mut Hdf5File<'_>,
    root: u64,
    tree: &T,
) -> Result<Vec<T::Leaf>> {
    let mut found = Vec::new();
    node(file, (root, None), tree, &mut found)?;
    Ok(found)
}

/// Collects the leaves below the node at `address`, which is of `level` if there is one above it.
fn node<T: TreeKind>(
    file: &mut Hdf5File<'_>,
    (address, level): (u64, Option<u8>),
    tree: &T,
    found: &mut Vec<T::Leaf>,
) -> Result<()> {
    let sizes = file.sizes;
    let head_len = 8 + 2 * sizes.0 as u64;
    let head = file.structure(address, head_len)?;
    let mut fields = file.fields(&head);
    fields.magic(b"TREE")?;
    let (number, this_level, count) = (fields.u8()?, fields.u8()?, fields.u16()?);
    // Levels fall on each way down, so that it ends.
    if number != T::NUMBER || level.is_some_and(|level| level != this_level) || this_level > 32 {
        return Err(wrong("a node of another tree"));
    }
    let key_len = tree.key_len(sizes);
    let entry = key_len + sizes.0;
    let entries =
        file.structure(address.saturating_add(head_len), u64::from(count) * entry as u64)?;
    for entry in entries.chunks_exact(entry) {
        let (key, child) = entry.split_at(key_len);
        let child = file.fields(child).some_address()?;
        match this_level.checked_sub(1) {
            Some(below) => node(file, (child, Some(below)), tree, found)?,
            None => found.push(tree.leaf(file.fields(key), child)?),
        }
    }
    Ok(())
}
