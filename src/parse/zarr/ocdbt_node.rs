//! Nodes of OCDBT: what is around them, and the fields that they consist of.

use std::io::Read;

use super::store::{ValuePlace, ZarrStore};
use crate::crc32c::crc32c;
use crate::limits::{Budget, cap};
use crate::protobuf::varint;
use crate::source::zstd_decoder;
use crate::{AnamnesisError, Result};

/// Most bytes of a node, as it is stored and decompressed. TensorStore's default is 8 MiB, and Orbax asks for 100 MB.
const MAX_NODE: u64 = 128 << 20;

/// Most bytes that a byte of a node decompresses to, and bytes that any node may have.
const MOST_TIMES: u64 = 200;
const FREE_NODE: u64 = 1 << 20;

/// Most bytes of the path of a file.
const MAX_PATH: usize = 4096;

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeKind {
    Manifest,
    Tree,
}

/// The bytes of the node at `place`, decompressed.
///
/// # Errors
/// `Parse` if it is malformed, or its checksum is wrong; `Unsupported` for other versions; `LimitExceeded`; `Io`.
pub(super) fn body_of(
    store: &ZarrStore,
    place: ValuePlace,
    kind: NodeKind,
    budget: &Budget,
) -> Result<Vec<u8>> {
    cap("MAX_OCDBT_NODE", place.len, MAX_NODE, "bytes of a node")?;
    budget.tables(0, 0, place.len)?;
    let mut stored = store.bytes(place, budget)?;
    let magic: [u8; 4] = match kind {
        NodeKind::Manifest => [0x0c, 0xdb, 0x3a, 0x2a],
        NodeKind::Tree => [0x0c, 0xdb, 0x20, 0xde],
    };
    let sum = stored.split_off(stored.len().saturating_sub(4));
    let mut head = NodeFields::new(&stored);
    if head.bytes(4)? != magic {
        return Err(wrong("a node of another kind"));
    }
    if head.bytes(8)? != place.len.to_le_bytes() {
        return Err(wrong("a node of another length"));
    }
    if crc32c(&stored).to_le_bytes() != *sum {
        return Err(wrong("a node with the wrong checksum"));
    }
    if head.varint()? != 0 {
        return Err(AnamnesisError::unsupported("OCDBT", "a version of nodes that is not known"));
    }
    match head.varint()? {
        0 => Ok(head.rest.to_vec()),
        1 => decompressed(head.rest, budget),
        _ => Err(AnamnesisError::unsupported("OCDBT", "a compression that is not known")),
    }
}

fn decompressed(stored: &[u8], budget: &Budget) -> Result<Vec<u8>> {
    let most = (stored.len() as u64).saturating_mul(MOST_TIMES);
    let most = most.clamp(FREE_NODE, MAX_NODE);
    budget.single(most, "a node of OCDBT")?;
    let mut body = vec![];
    let broken = |error: std::io::Error| wrong(&format!("a node that is malformed: {error}"));
    let decoder = zstd_decoder(stored).map_err(broken)?;
    decoder
        .take(most + 1)
        .read_to_end(&mut body)
        .map_err(broken)?;
    cap("MAX_OCDBT_NODE", body.len() as u64, most, "bytes of a node")?;
    budget.grow(body.len() as u64, "a node of OCDBT")?;
    Ok(body)
}

/// Takes fields from the beginning of a node.
pub(super) struct NodeFields<'a> {
    pub rest: &'a [u8],
}

impl<'a> NodeFields<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub(super) fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let (now, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or_else(|| wrong("a node that is truncated"))?;
        self.rest = rest;
        Ok(now)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    pub(super) fn varint(&mut self) -> Result<u64> {
        let (value, n) = varint(self.rest).map_err(|what| wrong(&format!("a node: {what}")))?;
        self.rest = &self.rest[n..];
        Ok(value)
    }

    /// A number of things, each of which takes a byte of the node at least.
    pub(super) fn count(&mut self) -> Result<usize> {
        let n = self.varint()?;
        let n = usize::try_from(n).ok().filter(|&n| n <= self.rest.len());
        n.ok_or_else(|| wrong("a node with more entries than bytes"))
    }

    pub(super) fn column(&mut self, n: usize) -> Result<Vec<u64>> {
        (0..n).map(|_| self.varint()).collect()
    }

    /// For each of `n` keys, how many bytes it shares with the one before, and how many it has of its own.
    pub(super) fn suffixes(&mut self, n: usize) -> Result<Vec<(u64, u64)>> {
        let shared = self.column(n.saturating_sub(1))?;
        let own = self.column(n)?;
        Ok([0].into_iter().chain(shared).zip(own).collect())
    }
}

/// The files that a node names.
pub(super) struct DataFiles {
    /// Their paths, each with the length of what comes before the paths of further files.
    paths: Vec<(String, usize)>,
}

impl DataFiles {
    /// Reads the table of files. `base` comes before their paths.
    ///
    /// # Errors
    /// `Parse` if it is malformed.
    pub(super) fn read(fields: &mut NodeFields<'_>, base: &str) -> Result<Self> {
        let count = fields.count()?;
        let suffixes = fields.suffixes(count)?;
        let bases = fields.column(count)?;
        let (mut paths, mut path, mut all) = (vec![], vec![], 0);
        for ((shared, own), own_base) in suffixes.into_iter().zip(bases) {
            let own = fields.bytes(usize::try_from(own).unwrap_or(usize::MAX))?;
            let shared = usize::try_from(shared).ok().filter(|&n| n <= path.len());
            path.truncate(shared.ok_or_else(|| wrong("a path that is malformed"))?);
            path.extend(own);
            all += path.len();
            if path.len() > MAX_PATH || all > FREE_NODE as usize {
                return Err(wrong("paths of files that are too long"));
            }
            let text = std::str::from_utf8(&path).map_err(|_| wrong("a path that is no UTF-8"))?;
            let own_base = usize::try_from(own_base)
                .ok()
                .filter(|&n| text.is_char_boundary(n));
            let own_base = own_base.ok_or_else(|| wrong("a path that is malformed"))?;
            paths.push((format!("{base}{text}"), base.len() + own_base));
        }
        Ok(Self { paths })
    }

    /// The path of file `number`, and what comes before the paths of the files that it names.
    pub(super) fn get(&self, number: u64) -> Result<(&str, &str)> {
        let file = usize::try_from(number).ok().and_then(|n| self.paths.get(n));
        let (path, base) = file.ok_or_else(|| wrong("a file that no table has"))?;
        Ok((path, &path[..*base]))
    }
}

fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("OCDBT: {what}"))
}
