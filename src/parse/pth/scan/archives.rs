//! Members of ZIP archives.

use super::Scanner;
use super::content::Item;
use super::unpack::Method;
use crate::Result;
use crate::parse::read_at::{FileWindow, ReadAt};
use crate::parse::zip::{ZipArchive, ZipMember, archive_len};

/// Bytes of the end of a file in which the end record of an archive can lie.
const MAX_END: u64 = 22 + 65_535;

/// Most archives that lie behind each other in a file.
const MAX_CHAINED: usize = 1 << 20;

/// Most members that are looked for in an archive that cannot be followed.
const MAX_LOCAL: usize = 1024;

impl Scanner<'_> {
    /// Looks into the members of a ZIP archive. One that is refused is a remark, and its members are
    /// looked for one by one.
    pub(super) fn zip(&mut self, file: &mut dyn ReadAt, item: &Item<'_>) -> Result<()> {
        match ZipArchive::read(file, self.budget) {
            Ok(archive) => self.members(file, &archive, item),
            Err(error) => {
                if let Some(archives) = chained(file) {
                    for (start, len) in archives {
                        let mut window = FileWindow { file: &mut *file, start, len };
                        let archive = ZipArchive::read_small(&mut window, self.budget);
                        if let Some(archive) = self.tolerate(archive, NOT_FOLLOWED, item)? {
                            self.members(&mut window, &archive, item)?;
                        }
                    }
                    return Ok(());
                }
                self.tolerate(Err::<(), _>(error), NOT_FOLLOWED, item)?;
                self.local_members(file, item)
            }
        }
    }

    fn members(
        &mut self,
        file: &mut dyn ReadAt,
        archive: &ZipArchive,
        item: &Item<'_>,
    ) -> Result<()> {
        let of_pickle = || Some(archive.pickle()?.name.trim_end_matches("data.pkl"));
        let root = archive.exported().or_else(of_pickle);
        for member in &archive.members {
            let start = archive.read_data_start(file, member);
            let mut inner = item.member(&member.name);
            inner.is_storage = root.is_some_and(|root| is_storage(member, root));
            if let Some(start) = self.tolerate(start, "a member that cannot be followed", &inner)? {
                self.member(file, (start, member.stored_len), member.deflated, &inner)?;
            }
        }
        Ok(())
    }

    /// Looks into a member whose bytes are at `start`.
    fn member(
        &mut self,
        file: &mut dyn ReadAt,
        (start, len): (u64, u64),
        is_deflated: bool,
        item: &Item<'_>,
    ) -> Result<()> {
        match is_deflated {
            true => self.packed(file, (start, len), Method::Deflate, item),
            false => self.content(&mut FileWindow { file, start, len }, item),
        }
    }

    /// Looks into an archive that other content is before: programs look for its directory at the
    /// end of the file.
    pub(super) fn zip_at_end(&mut self, file: &mut dyn ReadAt, item: &Item<'_>) -> Result<()> {
        let mut tail = vec![0; file.len().min(MAX_END) as usize];
        let tail_start = file.len() - tail.len() as u64;
        file.read_at(tail_start, &mut tail)?;
        let Some(at) = tail.windows(4).rposition(|bytes| bytes == b"PK\x05\x06") else {
            return Ok(());
        };
        let number = |at: usize| {
            let bytes = tail.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
        };
        let (len, offset) = (number(at + 12), number(at + 16));
        let end = tail_start + at as u64;
        // Offsets count from the beginning of the archive, or from that of the file.
        let Some(directory) = end.checked_sub(len).filter(|_| len > 0) else {
            return Ok(());
        };
        let mut mark = [0; 4];
        file.read_at(directory, &mut mark)?;
        let Some(start) = directory
            .checked_sub(offset)
            .filter(|_| mark == *b"PK\x01\x02")
        else {
            return Ok(());
        };
        // Bytes behind the record, such as the end of a tar archive, are passed over.
        let comment = tail
            .get(at + 20..at + 22)
            .map_or(0, |len| usize::from(len[0]) | usize::from(len[1]) << 8);
        let end = (end + 22 + comment as u64).min(file.len());
        let len = end - start;
        let mut window = FileWindow { file, start, len };
        self.zip(&mut window, item)
    }

    /// Looks for members by the marks before them, in an archive whose directory is refused.
    fn local_members(&mut self, file: &mut dyn ReadAt, item: &Item<'_>) -> Result<()> {
        let starts = local_headers(file)?;
        for (n, &at) in starts.iter().enumerate() {
            let mut header = [0; 30];
            if file.len() - at < 30 {
                break;
            }
            file.read_at(at, &mut header)?;
            let short = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
            let (name_len, extra_len) = (short(26), short(28));
            let start = at + 30 + name_len + extra_len;
            let end = starts.get(n + 1).copied().unwrap_or(file.len());
            let mut name = vec![0; name_len.min(256) as usize];
            if start > file.len() || at + 30 + name.len() as u64 > file.len() {
                continue;
            }
            file.read_at(at + 30, &mut name)?;
            let name = String::from_utf8_lossy(&name).into_owned();
            let inner = Item {
                // What is unknown is told of the archive.
                is_storage: true,
                ..item.member(&name)
            };
            let len = end.saturating_sub(start);
            match short(8) {
                0 | 8 if len > 0 => {
                    self.member(file, (start, len), short(8) == 8, &inner)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

const NOT_FOLLOWED: &str = "an archive that cannot be followed";

/// Whether a member of a checkpoint with the directory `root` holds numbers.
fn is_storage(member: &ZipMember, root: &str) -> bool {
    let below = member.name.strip_prefix(root);
    let directories = ["data/", ".data/", "constants/", "tensors/", "xl_model_weights/"];
    below.is_some_and(|below| {
        directories
            .iter()
            .any(|directory| below.starts_with(directory))
    })
}

/// Offsets and lengths of the archives that a file consists of, as those of distributed checkpoints
/// do.
fn chained(file: &mut dyn ReadAt) -> Option<Vec<(u64, u64)>> {
    let (mut archives, mut end) = (Vec::new(), file.len());
    while end > 0 {
        if archives.len() == MAX_CHAINED {
            return None;
        }
        let mut before = FileWindow { file: &mut *file, start: 0, len: end };
        let len = archive_len(&mut before).ok()?;
        end -= len;
        archives.push((end, len));
    }
    archives.reverse();
    (archives.len() > 1).then_some(archives)
}

/// Offsets of the first marks of members.
fn local_headers(file: &mut dyn ReadAt) -> Result<Vec<u64>> {
    const STEP: u64 = 1 << 20;
    let (mut starts, mut at) = (Vec::new(), 0);
    while at < file.len() && starts.len() < MAX_LOCAL {
        // Three bytes more, for a mark that reaches into the next piece.
        let mut piece = vec![0; (file.len() - at).min(STEP + 3) as usize];
        file.read_at(at, &mut piece)?;
        let marks = piece
            .windows(4)
            .enumerate()
            .filter(|(_, bytes)| *bytes == b"PK\x03\x04");
        starts.extend(marks.map(|(n, _)| at + n as u64));
        at += STEP;
    }
    starts.truncate(MAX_LOCAL);
    Ok(starts)
}
