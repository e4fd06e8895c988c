//! B-trees of version 2: those of the names of groups, and those of chunks.

use super::file::{Hdf5File, bytes_of, wrong};
use crate::Result;

/// The records of a tree, in order.
pub(super) struct Records {
    pub kind: u8,
    /// Bytes of a record, which is not zero.
    record: usize,
    bytes: Vec<u8>,
}

impl Records {
    pub(super) fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.record)
    }
}

/// Bytes of the beginning and the checksum of a node.
const NODE_OVERHEAD: u64 = 10;

/// Sizes of the nodes of a level: the most records, and how numbers of records are written.
#[derive(Clone, Copy)]
struct Level {
    most: u64,
    /// Most records of a node with all below it.
    most_below: u64,
    /// Bytes of a pointer to a node of this level.
    pointer: u64,
}

/// The tree, as its header describes it.
struct Tree {
    kind: u8,
    record: u64,
    levels: Vec<Level>,
    /// Bytes of a number of records of a node.
    count_size: usize,
}

/// Reads the records of the tree with the header at `address`, which must be of one of `kinds`.
pub(super) fn records(file: &mut Hdf5File<'_>, address: u64, kinds: &[u8]) -> Result<Records> {
    let (offset_size, length_size) = file.sizes;
    let head = file.structure(address, 22 + (offset_size + length_size) as u64)?;
    let mut fields = file.fields(&head);
    fields.magic(b"BTHD")?;
    let (_, kind, node) = (fields.u8()?, fields.u8()?, u64::from(fields.u32()?));
    let (record, depth) = (u64::from(fields.u16()?), fields.u16()?);
    fields.take(2)?;
    let (root, count) = (fields.address()?, u64::from(fields.u16()?));
    if !kinds.contains(&kind) || record == 0 || depth > 16 {
        return Err(wrong("a tree of another kind"));
    }
    let levels = levels(node, record, depth.into(), offset_size as u64);
    let levels = levels.ok_or_else(|| wrong("a tree whose nodes are too small"))?;
    let count_size = bytes_of(levels[0].most);
    let tree = Tree { kind, record, levels, count_size };
    let mut found = Vec::new();
    if let Some(root) = root {
        tree.node(file, (root, count), depth.into(), &mut found)?;
    }
    Ok(Records { kind, record: record as usize, bytes: found })
}

/// The sizes of nodes from the leaves up.
fn levels(node: u64, record: u64, depth: usize, address: u64) -> Option<Vec<Level>> {
    let room = node.checked_sub(NODE_OVERHEAD)?;
    let most = room / record;
    let mut levels =
        vec![Level { most, most_below: most, pointer: address + bytes_of(most) as u64 }];
    for level in 0..depth {
        let below = *levels.last()?;
        // A pointer to a leaf has no number of all records below.
        let all = if level > 0 {
            bytes_of(below.most_below) as u64
        } else {
            0
        };
        let pointer = address + bytes_of(levels[0].most) as u64 + all;
        let most = room.checked_sub(pointer)? / (record + pointer);
        let most_below = most
            .checked_add(1)?
            .checked_mul(below.most_below)?
            .checked_add(most)?;
        if let Some(below) = levels.last_mut() {
            below.pointer = pointer;
        }
        levels.push(Level { most, most_below, pointer });
    }
    (levels.iter().all(|level| level.most > 0)).then_some(levels)
}

impl Tree {
    /// Collects the records of the node at `address`, which has `count` of them, and of those below.
    fn node(
        &self,
        file: &mut Hdf5File<'_>,
        (address, count): (u64, u64),
        level: usize,
        found: &mut Vec<u8>,
    ) -> Result<()> {
        if count > self.levels[level].most {
            return Err(wrong("a node with too many records"));
        }
        let (record, len) = (self.record as usize, count * self.record);
        let pointers = match level.checked_sub(1) {
            Some(below) => (count + 1) * self.levels[below].pointer,
            None => 0,
        };
        let node = file.structure(address, 6 + len + pointers)?;
        let mut fields = file.fields(&node);
        fields.magic(if level > 0 { b"BTIN" } else { b"BTLF" })?;
        if (fields.u8()?, fields.u8()?) != (0, self.kind) {
            return Err(wrong("a node of another tree"));
        }
        let records = fields.take(len as usize)?;
        let Some(below) = level.checked_sub(1) else {
            found.extend(records);
            return Ok(());
        };
        let mut records = records.chunks_exact(record);
        for pointer in fields
            .rest
            .chunks_exact(self.levels[below].pointer as usize)
        {
            let mut fields = file.fields(pointer);
            let child = (fields.some_address()?, fields.number(self.count_size)?);
            self.node(file, child, below, found)?;
            found.extend(records.next().unwrap_or_default());
        }
        Ok(())
    }
}
