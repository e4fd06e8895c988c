//! The central directory of a ZIP archive: its end records, its entries, and the checks that every
//! reader of the file sees the same members.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::Cursor;

use zip::HasZipMetadata;
use zip::read::{ArchiveOffset, Config};

use super::{LOCAL_HEADER_LEN, ZipMember, broken};
use crate::limits::cap;
use crate::parse::read_at::ReadAt;
use crate::{AnamnesisError, Result};

/// Longest name of a member, in bytes.
const MAX_NAME_LEN: usize = 4096;

/// The end record: where the central directory is.
pub(super) struct ZipEnd {
    /// Number of members.
    pub entries: u64,
    /// Offset of the directory in the file.
    pub offset: u64,
    /// Length of the directory in bytes.
    pub len: u64,
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Finds the end record in `tail`, the end of the file from offset `tail_start` on, and the 64-bit
/// end record if there is one. The directory must end where the records begin, so that no other one
/// can hide behind it.
///
/// # Errors
/// `Parse` if there is no end record at the end of the file, or if the records contradict each
/// other; `Io`.
pub(super) fn find_end(file: &mut dyn ReadAt, tail: &[u8], tail_start: u64) -> Result<ZipEnd> {
    // A record counts only if its comment ends with the file. The last such one is taken: a
    // signature inside of the comment would need a comment of its own that ends there, too.
    let ends_file = |&at: &usize| {
        tail[at..].starts_with(b"PK\x05\x06")
            && at + 22 + usize::from(u16_at(tail, at + 20)) == tail.len()
    };
    let last = tail
        .len()
        .checked_sub(22)
        .ok_or_else(|| broken("it is too short"))?;
    let at = (0..=last)
        .rev()
        .find(ends_file)
        .ok_or_else(|| broken("it does not end in a directory"))?;
    // Python and torch take the last record, whatever its comment is.
    if tail[at + 4..]
        .windows(4)
        .any(|bytes| bytes == b"PK\x05\x06")
    {
        return Err(broken("it has two end records"));
    }
    let record = &tail[at..at + 22];
    // 0xffff in both disk numbers says that the 64-bit record has them.
    if !matches!((u16_at(record, 4), u16_at(record, 6)), (0, 0) | (0xffff, 0xffff))
        || u16_at(record, 8) != u16_at(record, 10)
    {
        return Err(broken("it is in several parts"));
    }
    let mut end = ZipEnd {
        entries: u16_at(record, 10).into(),
        offset: u32_at(record, 16).into(),
        len: u32_at(record, 12).into(),
    };
    let mut directory_end = tail_start + at as u64;
    let needs_64 = end.entries == 0xffff || end.offset == 0xffff_ffff || end.len == 0xffff_ffff;
    if let Some(locator) = at
        .checked_sub(20)
        .filter(|&l| tail[l..].starts_with(b"PK\x06\x07"))
    {
        (end, directory_end) = read_zip64_end(file, tail, tail_start, locator, &end)?;
    } else if needs_64 {
        return Err(broken("its 64-bit end record is missing"));
    }
    if end.offset.checked_add(end.len) != Some(directory_end) {
        return Err(broken("its directory is not where its end says"));
    }
    Ok(end)
}

/// Length of the archive that a file ends in, if other bytes are before it. It has no comment.
///
/// # Errors
/// `Parse` if the file does not end in an archive, or the archive would begin before the file.
#[cfg(feature = "pth")]
pub(in crate::parse) fn archive_len(file: &mut dyn ReadAt) -> Result<u64> {
    /// The 64-bit end record, its locator and the 32-bit record.
    const RECORDS: usize = 56 + 20 + 22;
    let mut tail = vec![0; (RECORDS as u64).min(file.len()) as usize];
    file.read_at(file.len() - tail.len() as u64, &mut tail)?;
    let record = tail.len().checked_sub(22).map_or(&[][..], |at| &tail[at..]);
    if !record.starts_with(b"PK\x05\x06") || u16_at(record, 20) != 0 {
        return Err(broken("it does not end in a directory"));
    }
    let (len, offset, records) = match tail.starts_with(b"PK\x06\x06") {
        true => (u64_at(&tail, 40), u64_at(&tail, 48), RECORDS),
        false => (u32_at(record, 12).into(), u32_at(record, 16).into(), 22),
    };
    let len = offset
        .checked_add(len)
        .and_then(|n| n.checked_add(records as u64));
    len.filter(|&len| len <= file.len())
        .ok_or_else(|| broken("it begins before the file"))
}

/// Reads the 64-bit end record by its locator, which is at index `locator` of `tail`. Returns it
/// with its offset in the file. `end` is the 32-bit record.
fn read_zip64_end(
    file: &mut dyn ReadAt,
    tail: &[u8],
    tail_start: u64,
    locator: usize,
    end: &ZipEnd,
) -> Result<(ZipEnd, u64)> {
    // The number of disks may be 0: some writers count none.
    if u32_at(tail, locator + 4) != 0 || u32_at(tail, locator + 16) > 1 {
        return Err(broken("it is in several parts"));
    }
    let place = u64_at(tail, locator + 8);
    let mut record = [0; 56];
    if place
        .checked_add(56)
        .is_none_or(|end| end > tail_start + locator as u64)
    {
        return Err(broken("its 64-bit end record is out of place"));
    }
    file.read_at(place, &mut record)?;
    let ends = u64_at(&record, 4).checked_add(place + 12);
    if !record.starts_with(b"PK\x06\x06") || ends != Some(tail_start + locator as u64) {
        return Err(broken("its 64-bit end record is malformed"));
    }
    if (u32_at(&record, 16), u32_at(&record, 20)) != (0, 0)
        || u64_at(&record, 24) != u64_at(&record, 32)
    {
        return Err(broken("it is in several parts"));
    }
    let end_64 = ZipEnd {
        entries: u64_at(&record, 32),
        len: u64_at(&record, 40),
        offset: u64_at(&record, 48),
    };
    // Readers differ in which of the two records counts, so a value that both have must be the
    // same.
    let agree = |short: u64, all_ones: u64, long: u64| short == all_ones || short == long;
    if !agree(end.entries, 0xffff, end_64.entries)
        || !agree(end.len, 0xffff_ffff, end_64.len)
        || !agree(end.offset, 0xffff_ffff, end_64.offset)
    {
        return Err(broken("its two end records contradict each other"));
    }
    Ok((end_64, place))
}

/// Splits the central directory into its entries, which must fill it exactly: `zip` stops behind
/// the declared number of them, where other readers go on.
pub(super) fn parse_directory(directory: &[u8], end: &ZipEnd) -> Result<Vec<ZipMember>> {
    // Grows with the entries that are there: their declared number is not trusted.
    let mut members = Vec::new();
    let (mut rest, mut archive) = (directory, Vec::new());
    for i in 0..end.entries {
        if rest.len() < 46 || !rest.starts_with(b"PK\x01\x02") {
            return Err(broken(format!(
                "its directory has {i} members where {} are declared",
                end.entries
            )));
        }
        let lens = [28, 30, 32].map(|at| usize::from(u16_at(rest, at)));
        let len = 46 + lens.iter().sum::<usize>();
        let entry = rest
            .get(..len)
            .ok_or_else(|| broken("its directory is truncated"))?;
        members.push(parse_member(entry, lens, &mut archive)?);
        rest = &rest[len..];
    }
    if !rest.is_empty() {
        return Err(broken(format!(
            "its directory has more than the {} members that are declared",
            end.entries
        )));
    }
    Ok(members)
}

/// Parses one entry of the central directory with the `zip` crate, and checks what the crate lets
/// pass. The lengths are those of its name, extra fields and comment; `archive` is scratch.
///
/// The crate keeps all that it parses, extra fields and comments as well: some 200 bytes a member,
/// and a dozen for each byte of a hostile extra field. So it is given an archive of this entry
/// alone.
fn parse_member(
    entry: &[u8],
    [name_len, extra_len, _]: [usize; 3],
    archive: &mut Vec<u8>,
) -> Result<ZipMember> {
    cap("ZIP_MAX_NAME_LEN", name_len as u64, MAX_NAME_LEN as u64, "bytes of a ZIP member's name")?;
    let (name, extra) = entry[46..].split_at(name_len);
    let name = std::str::from_utf8(name).map_err(|_| broken("a member's name is not UTF-8"))?;
    if name.contains('\0') {
        return Err(broken(format!("`{name}`: its name has a NUL, where some readers end it")));
    }
    let wrong = |what: &dyn Display| Err(broken(format!("`{name}`: {what}")));
    archive.clear();
    archive.extend_from_slice(entry);
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    archive.extend_from_slice(&(entry.len() as u32).to_le_bytes());
    archive.extend_from_slice(&[0; 6]);
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let parsed = match zip::ZipArchive::with_config(config, Cursor::new(archive.as_slice())) {
        Ok(archive) => archive.metadata(),
        Err(error) => return wrong(&error),
    };
    let parsed = match parsed.entry(0) {
        Ok(entry) => entry,
        Err(error) => return wrong(&error),
    };
    let (len, stored_len, header) =
        (parsed.size(), parsed.compressed_size(), parsed.header_start());
    // A size of all ones is in the 64-bit field, of which the crate lets none and several pass.
    let is_missing =
        [len, stored_len, header].contains(&0xffff_ffff) && !parsed.get_metadata().large_file;
    if is_missing {
        return wrong(&"its 64-bit sizes are missing");
    }
    if extra_ids(&extra[..extra_len]).filter(|&id| id == 1).count() > 1 {
        return wrong(&"its 64-bit sizes are there twice");
    }
    // Info-ZIP's field with the name in Unicode, which only some readers follow.
    if parsed.name_raw() != name.as_bytes() {
        return wrong(&"it has another name in an extra field");
    }
    // The crate sets a flag where it finds a name in Unicode; local headers are compared with what
    // is stored.
    let (flags, method) = (u16_at(entry, 8), u16_at(entry, 10));
    if flags & 0x20 != 0 {
        let what = format!("member `{name}`: its data is a patch of other data");
        return Err(AnamnesisError::unsupported("ZIP compression", what));
    }
    // Bit 0: encrypted; bit 6: strong encryption; bit 13: the directory's values are masked.
    if flags & 0x2041 != 0 {
        return Err(AnamnesisError::unsupported(
            "encrypted ZIP archive",
            format!("member `{name}`"),
        ));
    }
    if method != 0 && method != 8 {
        let what =
            format!("member `{name}`: method {method}; stored and deflated members are read");
        return Err(AnamnesisError::unsupported("ZIP compression", what));
    }
    // Deflate's best ratio is 1032: a match of 258 bytes takes two bits at least.
    if method == 8 && len > stored_len.saturating_add(1).saturating_mul(1032) {
        return wrong(&"it cannot become as long as it is said to be");
    }
    if method == 0 && len != stored_len {
        return wrong(&"it is stored, and its two sizes differ");
    }
    if !matches!(u16_at(entry, 34), 0 | 0xffff) {
        return wrong(&"it is on another disk");
    }
    Ok(ZipMember {
        name: name.to_owned(),
        deflated: method == 8,
        crc: parsed.crc32(),
        stored_len,
        len,
        header,
        flags,
        method,
    })
}

/// The ids of extra fields.
fn extra_ids(mut extra: &[u8]) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(extra, 2));
        let (field, rest) = extra.split_at_checked(4 + len)?;
        extra = rest;
        Some(u16_at(field, 0))
    })
}

/// Checks that names are unique: readers differ in which of two members of one name they take.
pub(super) fn check_names(members: &[ZipMember]) -> Result<()> {
    let mut seen = HashMap::with_capacity(members.len());
    match members
        .iter()
        .find(|m| seen.insert(m.name.as_str(), ()).is_some())
    {
        Some(twice) => Err(broken(format!("`{}` is in it twice", twice.name))),
        None => Ok(()),
    }
}

/// Checks that no two members share a byte, and that none reaches into the directory at offset
/// `directory`. Members that overlap make a "ZIP bomb" whose size grows quadratically with that of
/// the file.
pub(super) fn check_overlap(members: &[ZipMember], directory: u64) -> Result<()> {
    let mut spans: Vec<(u64, Option<u64>, &str)> = Vec::with_capacity(members.len());
    for m in members {
        // The extra fields of local headers are not known yet; `read_data_start` counts them.
        let least = LOCAL_HEADER_LEN + m.name.len() as u64;
        spans.push((
            m.header,
            m.header
                .checked_add(least)
                .and_then(|at| at.checked_add(m.stored_len)),
            &m.name,
        ));
    }
    spans.sort_unstable();
    let next = spans.iter().skip(1).map(|s| s.0).chain([directory]);
    for (&(_, end, name), next) in spans.iter().zip(next) {
        if end.is_none_or(|end| end > next) {
            return Err(broken(format!("`{name}` overlaps what follows it")));
        }
    }
    Ok(())
}
