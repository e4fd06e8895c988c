//! OCDBT, the database in which TensorStore keeps values: a manifest, which leads to a tree of nodes. Values are in its leaves, or in
//! files that these name. Of all versions the last one is read.

use super::ocdbt_node::{DataFiles, NodeFields, NodeKind, body_of};
use super::store::{ValuePlace, ZarrStore};
use crate::limits::{Budget, cap};
use crate::{AnamnesisError, Result};

/// Most nodes on the way from the root to a value.
const MAX_HEIGHT: u64 = 32;

/// Longest key, in bytes.
const MAX_KEY: usize = 4096;

/// A node, or a value: the path that comes before those of its files, and where it is.
struct NodeAt {
    /// What comes before the paths of its files.
    base: String,
    place: ValuePlace,
}

/// Adds the values of the database whose manifest is the first source of `store`.
///
/// # Errors
/// `Parse` if it is malformed, or a checksum is wrong; `Unsupported` for manifests in several files; `LimitExceeded`; `Io`.
pub(super) fn fill(store: &mut ZarrStore, budget: &Budget) -> Result<()> {
    let len = store.source(0).len().unwrap_or(0);
    let place = store.place(0, 0, len)?;
    let body = body_of(store, place, NodeKind::Manifest, budget)?;
    let mut fields = NodeFields::new(&body);
    fields.bytes(16)?; // the name of the database
    if fields.varint()? != 0 {
        let what = "its manifest is in several files; give it as TensorStore copies it";
        return Err(AnamnesisError::unsupported("OCDBT", what));
    }
    // The longest values in leaves, the largest nodes, the versions of a node.
    fields.column(2)?;
    fields.u8()?;
    match fields.varint()? {
        0 => {}
        1 => drop(fields.bytes(4)?),
        _ => return Err(AnamnesisError::unsupported("OCDBT", "a compression that is not known")),
    }
    let files = DataFiles::read(&mut fields, "")?;
    let versions = fields.count()?;
    let column = |fields: &mut NodeFields<'_>| -> Result<u64> {
        let mut last = 0;
        for _ in 0..versions {
            last = fields.varint()?;
        }
        Ok(last)
    };
    column(&mut fields)?; // numbers of the versions
    let heights = fields.bytes(versions)?;
    let (file, offset, len) = (column(&mut fields)?, column(&mut fields)?, column(&mut fields)?);
    let Some(&height) = heights.last() else {
        return Err(AnamnesisError::parse("the database has no version"));
    };
    if len == 0 {
        return Ok(());
    }
    let root = node_at(store, &files, file, offset, len)?;
    let mut walk = TreeWalk { store, budget };
    walk.node(&root, height.into(), &mut vec![])
}

/// The node that `files` and three numbers say.
fn node_at(
    store: &mut ZarrStore,
    files: &DataFiles,
    file: u64,
    offset: u64,
    len: u64,
) -> Result<NodeAt> {
    let (path, base) = files.get(file)?;
    let source = store.open(path)?;
    let place = store.place(source, offset, len);
    let place = place.map_err(|error| error.about(format_args!("`{path}`")))?;
    Ok(NodeAt { base: base.to_owned(), place })
}

/// Walks over the tree, and adds the values to the store.
struct TreeWalk<'a> {
    store: &'a mut ZarrStore,
    budget: &'a Budget,
}

impl TreeWalk<'_> {
    /// Takes a node of `height`, whose keys all begin with `prefix`.
    fn node(&mut self, at: &NodeAt, height: u64, prefix: &mut Vec<u8>) -> Result<()> {
        cap("MAX_OCDBT_HEIGHT", height, MAX_HEIGHT, "nodes above each other")?;
        let body = body_of(self.store, at.place, NodeKind::Tree, self.budget)?;
        let mut fields = NodeFields::new(&body);
        if u64::from(fields.u8()?) != height {
            return Err(AnamnesisError::parse("a node has another height than is said"));
        }
        let files = DataFiles::read(&mut fields, &at.base)?;
        let entries = fields.count()?;
        if entries == 0 {
            return Err(AnamnesisError::parse("a node is empty"));
        }
        match height {
            0 => self.leaf(fields, &files, entries, prefix, &body),
            _ => self.inner(fields, &files, entries, prefix, height),
        }
    }

    /// The keys of a node's entries, behind the prefix of all.
    fn keys(&self, suffixes: &[(u64, u64)], fields: &mut NodeFields<'_>) -> Result<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> = vec![];
        for &(shared, own) in suffixes {
            let own = fields.bytes(usize::try_from(own).unwrap_or(usize::MAX))?;
            let last = keys.last().map_or(&[][..], Vec::as_slice);
            let shared = usize::try_from(shared).ok().and_then(|n| last.get(..n));
            let shared = shared.ok_or_else(|| AnamnesisError::parse("a key that is malformed"))?;
            let len = shared.len() + own.len();
            cap("MAX_OCDBT_KEY", len as u64, MAX_KEY as u64, "bytes of a key")?;
            self.budget.tables(0, 1 + len as u64 / 256, 0)?;
            keys.push([shared, own].concat());
        }
        Ok(keys)
    }

    fn inner(
        &mut self,
        mut fields: NodeFields<'_>,
        files: &DataFiles,
        entries: usize,
        prefix: &mut Vec<u8>,
        height: u64,
    ) -> Result<()> {
        let suffixes = fields.suffixes(entries)?;
        let common = fields.column(entries)?;
        let keys = self.keys(&suffixes, &mut fields)?;
        let (file, offset, len) =
            (fields.column(entries)?, fields.column(entries)?, fields.column(entries)?);
        let before = prefix.len();
        for (i, key) in keys.iter().enumerate() {
            let common = usize::try_from(common[i]).ok().and_then(|n| key.get(..n));
            let common = common.ok_or_else(|| AnamnesisError::parse("a prefix of no key"))?;
            prefix.extend(common);
            cap("MAX_OCDBT_KEY", prefix.len() as u64, MAX_KEY as u64, "bytes of a key")?;
            let child = node_at(self.store, files, file[i], offset[i], len[i])?;
            self.node(&child, height - 1, prefix)?;
            prefix.truncate(before);
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        mut fields: NodeFields<'_>,
        files: &DataFiles,
        entries: usize,
        prefix: &[u8],
        body: &[u8],
    ) -> Result<()> {
        let suffixes = fields.suffixes(entries)?;
        let keys = self.keys(&suffixes, &mut fields)?;
        let (lens, kinds) = (fields.column(entries)?, fields.column(entries)?);
        let is_apart = |kind: &u64| *kind == 1;
        let apart = kinds.iter().filter(|kind| is_apart(kind)).count();
        if kinds.iter().any(|&kind| kind > 1) {
            return Err(AnamnesisError::parse("a value of an unknown kind"));
        }
        let (file, offset) = (fields.column(apart)?, fields.column(apart)?);
        let values = body.len() - fields.rest.len();
        let inside = lens.iter().zip(&kinds).filter(|(_, kind)| !is_apart(kind));
        let inside = inside.fold(0u64, |n, (len, _)| n.saturating_add(*len));
        let inside = fields.bytes(usize::try_from(inside).unwrap_or(usize::MAX))?;
        let source = match inside.is_empty() {
            true => 0,
            false => self.store.add_bytes(body[values..].to_vec()),
        };
        let (mut number, mut at) = (0, 0);
        for ((key, &len), kind) in keys.into_iter().zip(&lens).zip(&kinds) {
            let key = [prefix, &key].concat();
            let key = String::from_utf8(key)
                .map_err(|_| AnamnesisError::parse("a key that is no UTF-8"))?;
            self.budget.items(1, "values")?;
            self.budget.tables(0, 1 + key.len() as u64 / 256, 0)?;
            let place = match is_apart(kind) {
                true => {
                    let node = node_at(self.store, files, file[number], offset[number], len);
                    number += 1;
                    node.map_err(|error| error.about(format_args!("`{key}`")))?
                        .place
                }
                false => {
                    at += len;
                    ValuePlace { source, offset: at - len, len }
                }
            };
            self.store.add(key, place)?;
        }
        Ok(())
    }
}
