//! ZIP archives as NPZ and PyTorch files have them: the central directory with every rule that a lie could break,
//! and where each member's bytes are. Members are read in place; nothing is extracted.
//!
//! Format: PKWARE APPNOTE 6.3.10. The `zip` crate keeps one of two members of the same name and hides where they
//! are, so the directory is read here.

use std::collections::HashMap;
use std::io::Read;

use super::read_at::ReadAt;
use crate::limits::{Budget, cap};
use crate::{AnamnesisError, Result};

const MAX_ENTRIES: u64 = 1 << 20;
const MAX_NAME_LEN: usize = 4096;

/// Largest central directory that is read.
const MAX_DIRECTORY_BYTES: u64 = 256 << 20;

/// Length of a local header without name and extra fields.
const LOCAL_HEADER: u64 = 30;

/// One member.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub name: String,
    pub deflated: bool,
    pub crc: u32,
    /// Bytes in the archive.
    pub stored_len: u64,
    /// Bytes of the member itself.
    pub len: u64,
    /// Where its local header begins.
    header: u64,
    flags: u16,
    method: u16,
}

/// The members of an archive, in the order of its directory.
#[derive(Debug)]
pub(crate) struct Archive {
    pub members: Vec<Member>,
    /// Where the members' local headers begin, in ascending order.
    headers: Vec<u64>,
    /// Where the central directory begins: no member reaches beyond.
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

/// What the end of an archive says of its directory.
struct End {
    entries: u64,
    offset: u64,
    len: u64,
}

impl Archive {
    /// Reads the central directory, in one read if it is small.
    pub(crate) fn read(file: &mut impl ReadAt, budget: &Budget) -> Result<Self> {
        let len = file.len();
        let mut tail = vec![0; len.min(65_557 + 76) as usize];
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
        let members = read_directory(&directory, &end)?;
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

    /// Where the data of `member` begins: behind its local header, which must say what the directory says.
    pub(crate) fn data_start(&self, file: &mut impl ReadAt, member: &Member) -> Result<u64> {
        let name = &member.name;
        let mut header = vec![0; LOCAL_HEADER as usize + name.len()];
        file.read_at(member.header, &mut header)?;
        let same = u32_at(&header, 0) == 0x0403_4b50
            && u16_at(&header, 6) == member.flags
            && u16_at(&header, 8) == member.method
            && usize::from(u16_at(&header, 26)) == name.len()
            && &header[LOCAL_HEADER as usize..] == name.as_bytes();
        if !same {
            return Err(broken(format!(
                "the local header of `{name}` is not what the directory says"
            )));
        }
        let start = member.header + header.len() as u64 + u64::from(u16_at(&header, 28));
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

    /// A whole member, checked. Of a compressed one at most some MiB more than twice what is stored, for what is made
    /// of it takes memory besides.
    pub(crate) fn content(
        &self,
        file: &mut impl ReadAt,
        member: &Member,
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
        let start = self.data_start(file, member)?;
        let mut bytes = vec![0; member.stored_len as usize];
        file.read_at(start, &mut bytes)?;
        if member.deflated {
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

    /// The member called `name`.
    pub(crate) fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|m| m.name == name)
    }
}

/// Decompresses `bytes`, at most `max` bytes of them.
pub(super) fn inflate(bytes: &[u8], max: u64) -> std::io::Result<Vec<u8>> {
    // Made for all of it at once: what grows takes twice as much in between.
    let mut out = Vec::with_capacity(max as usize + 1);
    flate2::bufread::DeflateDecoder::new(bytes)
        .take(max)
        .read_to_end(&mut out)?;
    Ok(out)
}

/// The end record, which ends the file, and its 64-bit twin if there is one.
fn find_end(file: &mut impl ReadAt, tail: &[u8], tail_start: u64) -> Result<End> {
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
    // Of both disks, 0xffff says that the 64-bit record has their numbers.
    if !matches!(
        (u16_at(record, 4), u16_at(record, 6)),
        (0, 0) | (0xffff, 0xffff)
    ) || u16_at(record, 8) != u16_at(record, 10)
    {
        return Err(broken("it is in several parts"));
    }
    let mut end = End {
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
        (end, directory_end) = wide_end(file, tail, tail_start, locator, &end)?;
    } else if needs_64 {
        return Err(broken("its 64-bit end record is missing"));
    }
    if end.offset.checked_add(end.len) != Some(directory_end) {
        return Err(broken("its directory is not where its end says"));
    }
    Ok(end)
}

/// What the 64-bit end record says, which is found by its locator, and where it begins.
fn wide_end(
    file: &mut impl ReadAt,
    tail: &[u8],
    tail_start: u64,
    locator: usize,
    end: &End,
) -> Result<(End, u64)> {
    // Some writers number no disks, and so count none.
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
    let wide = End {
        entries: u64_at(&record, 32),
        len: u64_at(&record, 40),
        offset: u64_at(&record, 48),
    };
    // Which of the two counts depends on the reader, so what is in both must be the same.
    let agree = |short: u64, all_ones: u64, wide: u64| short == all_ones || short == wide;
    if !agree(end.entries, 0xffff, wide.entries)
        || !agree(end.len, 0xffff_ffff, wide.len)
        || !agree(end.offset, 0xffff_ffff, wide.offset)
    {
        return Err(broken("its two end records contradict each other"));
    }
    Ok((wide, place))
}

fn read_directory(directory: &[u8], end: &End) -> Result<Vec<Member>> {
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
        members.push(read_member(entry, lens)?);
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

fn read_member(entry: &[u8], [name_len, extra_len, _]: [usize; 3]) -> Result<Member> {
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
    // The 64-bit field holds those that did not fit, in this order.
    let mut wide = zip64_field(&entry[46 + name_len..46 + name_len + extra_len]);
    for size in sizes
        .iter_mut()
        .filter(|size: &&mut u64| **size == 0xffff_ffff)
    {
        let Some((value, rest)) = wide.and_then(|wide| wide.split_first_chunk()) else {
            return wrong("its 64-bit sizes are missing");
        };
        (*size, wide) = (u64::from_le_bytes(*value), Some(rest));
    }
    let [len, stored_len, header] = sizes;
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
    // A byte of deflated data gives 1032 bytes at most.
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
    Ok(Member {
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

/// The content of the field for 64-bit sizes.
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

fn check_names(members: &[Member]) -> Result<()> {
    let mut seen = HashMap::with_capacity(members.len());
    match members
        .iter()
        .find(|m| seen.insert(m.name.as_str(), ()).is_some())
    {
        Some(twice) => Err(broken(format!("`{}` is in it twice", twice.name))),
        None => Ok(()),
    }
}

/// No two members share a byte, and none reaches into the directory.
fn check_overlap(members: &[Member], directory: u64) -> Result<()> {
    let mut spans: Vec<(u64, Option<u64>, &str)> = Vec::with_capacity(members.len());
    for m in members {
        let least = LOCAL_HEADER + m.name.len() as u64;
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
