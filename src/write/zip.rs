//! Lays out ZIP archives of stored members.
//!
//! All sizes are in ZIP64 fields, so that the layout does not depend on them. Checksums of the data are entered when it has been
//! written.
//!
//! Format: PKWARE APPNOTE 6.3.10.

use super::{ChecksumPatch, Framing, OutputLayout};
use crate::{AnamnesisError, Result};

/// General purpose flag: the name is UTF-8.
const UTF8: u16 = 1 << 11;

/// ZIP version 4.5, the first with 64-bit sizes.
const VERSION: u16 = 45;

/// 1 January 1980, the earliest date of the format. A fixed date makes the output reproducible.
const DATE: u16 = 1 << 5 | 1;

/// Bytes of the extra field with the two sizes of a local header.
const SIZES: u16 = 20;

/// Bytes of a local header before the name.
const LOCAL: u64 = 30;

/// A member of an archive: bytes that are known, and behind them the data of a tensor, if it has one.
pub(super) struct StoredMember {
    pub name: String,
    pub head: Vec<u8>,
    /// Length of the tensor's data; `None`: the member has the bytes of `head` alone.
    pub data: Option<u64>,
}

/// An archive that is being laid out.
#[derive(Default)]
pub(super) struct ArchiveLayout {
    pieces: Vec<(u64, Vec<u8>)>,
    offsets: Vec<u64>,
    patches: Vec<ChecksumPatch>,
    /// Records of the members for the end of the archive.
    directory: Vec<u8>,
    /// Where the checksums of tensors are in `directory`.
    crc_places: Vec<u64>,
    members: u64,
    /// Where the next member begins.
    at: u64,
}

impl ArchiveLayout {
    /// Adds a member, whose bytes begin at a multiple of `align` (a power of two; 1: anywhere).
    ///
    /// # Errors
    /// `Parse` if the size of the file overflows, or if the name is longer than 65 535 bytes.
    pub(super) fn add(&mut self, member: StoredMember, align: u64) -> Result<()> {
        let StoredMember { name, head, data } = member;
        let name_len = u16::try_from(name.len())
            .map_err(|_| AnamnesisError::parse("the name of a member is too long"))?;
        let size = (head.len() as u64).checked_add(data.unwrap_or(0));
        let size = size.ok_or_else(overflow)?;
        let start = LOCAL + u64::from(name_len) + u64::from(SIZES);
        let padding = padding(self.at.checked_add(start).ok_or_else(overflow)?, align);
        // Those of tensors are entered when their data has been written.
        let crc = match data {
            Some(_) => 0,
            None => crc32fast::hash(&head),
        };
        let (low, high) = (crc as u16, (crc >> 16) as u16);
        let mut local = b"PK\x03\x04".to_vec();
        let extra = SIZES + padding.len() as u16;
        let none = 0xffff;
        put(
            &mut local,
            &[VERSION, UTF8, 0, 0, DATE, low, high, none, none, none, none, name_len, extra],
        );
        local.extend(name.as_bytes());
        put(&mut local, &[1, 16]);
        local.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
        local.extend(padding);
        self.directory.extend(b"PK\x01\x02");
        put(&mut self.directory, &[VERSION, VERSION, UTF8, 0, 0, DATE]);
        let crc_place = self.directory.len() as u64;
        put(
            &mut self.directory,
            &[low, high, none, none, none, none, name_len, 28, 0, 0, 0, 0, 0, none, none],
        );
        self.directory.extend(name.as_bytes());
        put(&mut self.directory, &[1, 24]);
        let fields = [size.to_le_bytes(), size.to_le_bytes(), self.at.to_le_bytes()];
        self.directory.extend(fields.concat());
        if data.is_some() {
            let before = (head.len() as u64, crc32fast::hash(&head));
            self.patches
                .push(ChecksumPatch { places: [self.at + 14, 0], before });
            self.crc_places.push(crc_place);
        }
        local.extend(head);
        let end = self.at + local.len() as u64;
        if data.is_some() {
            self.offsets.push(end);
        }
        self.pieces.push((self.at, local));
        self.at = end.checked_add(data.unwrap_or(0)).ok_or_else(overflow)?;
        self.members += 1;
        Ok(())
    }

    /// The layout of the whole archive.
    ///
    /// # Errors
    /// `Parse` if the size of the file overflows.
    pub(super) fn finish(mut self) -> Result<OutputLayout> {
        for (patch, place) in self.patches.iter_mut().zip(self.crc_places) {
            patch.places[1] = self.at + place;
        }
        let end = end_records(self.members, self.directory.len() as u64, self.at);
        self.directory.extend(end);
        let file_len = self.at.checked_add(self.directory.len() as u64);
        let file_len = file_len.ok_or_else(overflow)?;
        self.pieces.push((self.at, self.directory));
        let framing = Framing::Pieces(self.pieces);
        Ok(OutputLayout { framing, offsets: self.offsets, file_len, patches: self.patches })
    }
}

fn overflow() -> AnamnesisError {
    AnamnesisError::parse("the output's size overflows")
}

/// The extra field that moves bytes which would begin at `start` to a multiple of `align`, as torch writes it (`FB`). Without need it
/// is empty.
fn padding(start: u64, align: u64) -> Vec<u8> {
    const HEADER: u64 = 4;
    let missing = start.next_multiple_of(align) - start;
    if missing == 0 {
        return vec![];
    }
    let len = (start + HEADER).next_multiple_of(align) - start - HEADER;
    let mut field = b"FB".to_vec();
    field.extend((len as u16).to_le_bytes());
    field.resize((HEADER + len) as usize, b'Z');
    field
}

/// The end records: ZIP64, its locator, and the plain one, whose fields all point to the 64-bit
/// record. The directory has `entries` members and `len` bytes, and begins at offset `at`.
fn end_records(entries: u64, len: u64, at: u64) -> Vec<u8> {
    let mut out = b"PK\x06\x06".to_vec();
    out.extend(44u64.to_le_bytes());
    put(&mut out, &[VERSION, VERSION, 0, 0, 0, 0]);
    out.extend([entries, entries, len, at].map(u64::to_le_bytes).concat());
    out.extend(b"PK\x06\x07\0\0\0\0");
    out.extend((at + len).to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend(b"PK\x05\x06");
    put(&mut out, &[0, 0, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0]);
    out
}

/// Appends 16-bit fields. A 32-bit field takes two words, the low one first.
fn put(out: &mut Vec<u8>, words: &[u16]) {
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
}
