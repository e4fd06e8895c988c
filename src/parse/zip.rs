//! ZIP archives, as NPZ and PyTorch files are: reads the central directory and finds each member's bytes. Members are
//! read in place; nothing is extracted.
//!
//! A ZIP file says most things twice: in its directory and in its members, in 32 bits and in 64. Readers differ in what
//! they believe, so that one file can be two models. Here the directory counts, and every contradiction is an error.
//! The `zip` crate keeps one of two members of the same name and hides where they are, so the directory is read here.
//!
//! Format: PKWARE APPNOTE 6.3.10.

use std::collections::HashMap;
use std::io::Read;

use super::read_at::ReadAt;
use crate::limits::{Budget, cap};
use crate::{AnamnesisError, Result};

const MAX_ENTRIES: u64 = 1 << 20;
const MAX_NAME_LEN: usize = 4096;

/// Largest central directory that is read, in bytes.
const MAX_DIRECTORY_BYTES: u64 = 256 << 20;

/// Length of a local header without name and extra fields.
const LOCAL_HEADER_LEN: u64 = 30;

/// Longest end of file that can hold the end record: 22 bytes and a comment of at most 65535. The 64-bit records before it
/// take 76 bytes more, if they are adjacent.
const MAX_TAIL: u64 = 22 + 65_535 + 76;

/// A member of an archive, as the central directory describes it.
#[derive(Debug, Clone)]
pub(crate) struct ZipMember {
    pub name: String,
    /// Whether the member is deflated; otherwise it is stored as it is.
    pub deflated: bool,
    /// CRC-32 of the member's decompressed bytes.
    pub crc: u32,
    /// Bytes that the member takes in the archive.
    pub stored_len: u64,
    /// Bytes of the member after decompression.
    pub len: u64,
    /// Offset of the local header.
    header: u64,
    flags: u16,
    method: u16,
}

/// An archive whose central directory has been read and checked.
#[derive(Debug)]
pub(crate) struct ZipArchive {
    /// The members in the order of the directory. Names are unique, and no two members overlap.
    pub members: Vec<ZipMember>,
    /// Offsets of all local headers, in ascending order.
    headers: Vec<u64>,
    /// Offset of the central directory, which no member reaches into.
    directory: u64,
}

fn broken(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("ZIP archive: {what}"))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The end record: where the central directory is.
struct ZipEnd {
    entries: u64,
    offset: u64,
    len: u64,
}

impl ZipArchive {
    /// Reads and checks the central directory. It takes one read of the file's end, and another one if the directory is
    /// longer than that.
    ///
    /// # Errors
    /// `Parse` if the archive is malformed, contradicts itself, or does not end with its directory; `Unsupported` if a
    /// member is encrypted or compressed by another method than deflate; `LimitExceeded`; `Io`.
    pub(crate) fn read(file: &mut impl ReadAt, budget: &Budget) -> Result<Self> {
        let len = file.len();
        let mut tail = vec![0; len.min(MAX_TAIL) as usize];
        let tail_start = len - tail.len() as u64;
        file.read_at(tail_start, &mut tail)?;
        let end = find_end(file, &tail, tail_start)?;
        let members = format_args!("members in a ZIP directory of {} bytes", end.len);
        cap("ZIP_MAX_ENTRIES", end.entries, MAX_ENTRIES, members)?;
        cap(
            "ZIP_MAX_DIRECTORY_BYTES",
            end.len,
            MAX_DIRECTORY_BYTES,
            "bytes of a ZIP directory",
        )?;
        budget.items(end.entries, "members of the archive")?;
        budget.alloc(end.len, "the ZIP directory")?;
        let directory = if end.offset >= tail_start {
            let start = (end.offset - tail_start) as usize;
            tail[start..start + end.len as usize].to_vec()
        } else {
            let mut directory = vec![0; end.len as usize];
            file.read_at(end.offset, &mut directory)?;
            directory
        };
        let members = parse_directory(&directory, &end)?;
        for m in members.iter().filter(|m| m.deflated) {
            budget.ratio(m.stored_len, m.len, format_args!("`{}`", m.name))?;
        }
        check_names(&members)?;
        check_overlap(&members, end.offset)?;
        let mut headers: Vec<u64> = members.iter().map(|m| m.header).collect();
        headers.sort_unstable();
        Ok(Self {
            members,
            headers,
            directory: end.offset,
        })
    }

    /// Reads the local header of `member` and returns the offset of the data behind it.
    ///
    /// # Errors
    /// `Parse` if the local header has another name, method or flags than the directory, or if the data would reach into
    /// the next member. Sizes and checksum are not compared: streaming writers leave them out of local headers.
    pub(crate) fn read_data_start(
        &self,
        file: &mut impl ReadAt,
        member: &ZipMember,
    ) -> Result<u64> {
        let name = &member.name;
        let mut header = vec![0; LOCAL_HEADER_LEN as usize + name.len()];
        file.read_at(member.header, &mut header)?;
        let same = u32_at(&header, 0) == 0x0403_4b50
            && u16_at(&header, 6) == member.flags
            && u16_at(&header, 8) == member.method
            && usize::from(u16_at(&header, 26)) == name.len()
            && &header[LOCAL_HEADER_LEN as usize..] == name.as_bytes();
        if !same {
            return Err(broken(format!(
                "the local header of `{name}` is not what the directory says"
            )));
        }
        let start = member.header + header.len() as u64 + u64::from(u16_at(&header, 28));
        // The length of the local header's extra fields is known only now, so that overlap is checked once more.
        let next = self
            .headers
            .partition_point(|&header| header <= member.header);
        let next = self.headers.get(next).copied().unwrap_or(self.directory);
        match start
            .checked_add(member.stored_len)
            .filter(|&end| end <= next)
        {
            Some(_) => Ok(start),
            None => Err(broken(format!("`{name}` reaches into what follows it"))),
        }
    }

    /// Reads a whole member of at most `max` bytes, decompresses it, and checks its length and CRC-32. A compressed
    /// member may take at most 16 MiB and twice its stored length: a pickle's values take a multiple of its length, so
    /// that a greater ratio would make a small file expensive.
    ///
    /// # Errors
    /// `Parse` if the member is malformed; `LimitExceeded` if it is too large; `Io`.
    pub(crate) fn read_content(
        &self,
        file: &mut impl ReadAt,
        member: &ZipMember,
        max: u64,
        budget: &Budget,
    ) -> Result<Vec<u8>> {
        let name = &member.name;
        let bound = max.min((16 << 20) + member.stored_len.saturating_mul(2));
        let of_member = || format!("bytes of `{name}`");
        cap("MAX_MEMBER_BYTES", member.len, bound, of_member())?;
        cap("MAX_MEMBER_BYTES", member.stored_len, max, of_member())?;
        budget.alloc(member.stored_len, format_args!("`{name}`"))?;
        if member.deflated {
            budget.alloc(member.len, format_args!("`{name}`"))?;
        }
        let start = self.read_data_start(file, member)?;
        let mut bytes = vec![0; member.stored_len as usize];
        file.read_at(start, &mut bytes)?;
        if member.deflated {
            // One byte more than declared, so that a longer member is noticed.
            bytes =
                inflate(&bytes, member.len + 1).map_err(|e| broken(format!("`{name}`: {e}")))?;
        }
        if bytes.len() as u64 != member.len
            || member.crc != 0 && crc32fast::hash(&bytes) != member.crc
        {
            return Err(broken(format!("`{name}` has the wrong length or checksum")));
        }
        Ok(bytes)
    }

    /// The member with the name `name`.
    pub(crate) fn member(&self, name: &str) -> Option<&ZipMember> {
        self.members.iter().find(|m| m.name == name)
    }
}

/// Decompresses `bytes` and returns at most the first `max` bytes of the result.
fn inflate(bytes: &[u8], max: u64) -> std::io::Result<Vec<u8>> {
    // Allocated at once: a growing vector holds its content twice while it moves.
    let mut out = Vec::with_capacity(max as usize + 1);
    flate2::bufread::DeflateDecoder::new(bytes)
        .take(max)
        .read_to_end(&mut out)?;
    Ok(out)
}

/// Finds the end record in `tail`, the end of the file from offset `tail_start` on, and the 64-bit end record if there is
/// one. The directory must end where the records begin, so that no other one can hide behind it.
///
/// # Errors
/// `Parse` if there is no end record at the end of the file, or if the records contradict each other; `Io`.
fn find_end(file: &mut impl ReadAt, tail: &[u8], tail_start: u64) -> Result<ZipEnd> {
    // A record counts only if its comment ends with the file. The last such one is taken: a signature inside of the
    // comment would need a comment of its own that ends there, too.
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
    let record = &tail[at..at + 22];
    // 0xffff in both disk numbers says that the 64-bit record has them.
    if !matches!(
        (u16_at(record, 4), u16_at(record, 6)),
        (0, 0) | (0xffff, 0xffff)
    ) || u16_at(record, 8) != u16_at(record, 10)
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

/// Reads the 64-bit end record by its locator, which is at index `locator` of `tail`. Returns it with its offset in the
/// file. `end` is the 32-bit record.
fn read_zip64_end(
    file: &mut impl ReadAt,
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
    // Readers differ in which of the two records counts, so a value that both have must be the same.
    let agree = |short: u64, all_ones: u64, long: u64| short == all_ones || short == long;
    if !agree(end.entries, 0xffff, end_64.entries)
        || !agree(end.len, 0xffff_ffff, end_64.len)
        || !agree(end.offset, 0xffff_ffff, end_64.offset)
    {
        return Err(broken("its two end records contradict each other"));
    }
    Ok((end_64, place))
}

/// Parses the entries of the central directory, which must fill it exactly.
fn parse_directory(directory: &[u8], end: &ZipEnd) -> Result<Vec<ZipMember>> {
    // Grows with the entries that are there: their declared number is not trusted.
    let mut members = Vec::new();
    let mut rest = directory;
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
        members.push(parse_member(entry, lens)?);
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

/// Parses one entry of the central directory. The lengths are those of its name, extra fields and comment.
fn parse_member(entry: &[u8], [name_len, extra_len, _]: [usize; 3]) -> Result<ZipMember> {
    cap(
        "ZIP_MAX_NAME_LEN",
        name_len as u64,
        MAX_NAME_LEN as u64,
        "bytes of a ZIP member's name",
    )?;
    let name = std::str::from_utf8(&entry[46..46 + name_len])
        .map_err(|_| broken("a member's name is not UTF-8"))?;
    let wrong = |what: &str| Err(broken(format!("`{name}`: {what}")));
    let (flags, method) = (u16_at(entry, 8), u16_at(entry, 10));
    let mut sizes = [
        u32_at(entry, 24).into(),
        u32_at(entry, 20).into(),
        u32_at(entry, 42).into(),
    ];
    // The 64-bit field holds the sizes whose 32-bit field is all ones, in this order.
    let mut zip64 = zip64_field(&entry[46 + name_len..46 + name_len + extra_len]);
    for size in sizes
        .iter_mut()
        .filter(|size: &&mut u64| **size == 0xffff_ffff)
    {
        let Some((value, rest)) = zip64.and_then(|field| field.split_first_chunk()) else {
            return wrong("its 64-bit sizes are missing");
        };
        (*size, zip64) = (u64::from_le_bytes(*value), Some(rest));
    }
    let [len, stored_len, header] = sizes;
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
        return wrong("it cannot become as long as it is said to be");
    }
    if method == 0 && len != stored_len {
        return wrong("it is stored, and its two sizes differ");
    }
    if !matches!(u16_at(entry, 34), 0 | 0xffff) {
        return wrong("it is on another disk");
    }
    let crc = u32_at(entry, 16);
    Ok(ZipMember {
        name: name.to_owned(),
        deflated: method == 8,
        crc,
        stored_len,
        len,
        header,
        flags,
        method,
    })
}

/// The content of the extra field with 64-bit sizes (header id 1).
fn zip64_field(mut extra: &[u8]) -> Option<&[u8]> {
    while extra.len() >= 4 {
        let len = usize::from(u16_at(extra, 2));
        let content = extra.get(4..4 + len)?;
        if u16_at(extra, 0) == 1 {
            return Some(content);
        }
        extra = &extra[4 + len..];
    }
    None
}

/// Checks that names are unique: readers differ in which of two members of one name they take.
fn check_names(members: &[ZipMember]) -> Result<()> {
    let mut seen = HashMap::with_capacity(members.len());
    match members
        .iter()
        .find(|m| seen.insert(m.name.as_str(), ()).is_some())
    {
        Some(twice) => Err(broken(format!("`{}` is in it twice", twice.name))),
        None => Ok(()),
    }
}

/// Checks that no two members share a byte, and that none reaches into the directory at offset `directory`. Members that
/// overlap make a "ZIP bomb" whose size grows quadratically with that of the file.
fn check_overlap(members: &[ZipMember], directory: u64) -> Result<()> {
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
