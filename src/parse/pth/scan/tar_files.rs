//! Files of tar archives, as Python's `tarfile` finds them.

use super::super::tar::{self, is_header};
use super::Scanner;
use super::content::Item;
use crate::Result;
use crate::parse::read_at::{FileWindow, ReadAt};

/// Files that a checkpoint of torch's oldest format has.
const CHECKPOINT: [&str; 3] = ["storages", "tensors", "pickle"];

impl Scanner<'_> {
    /// Looks into the files of a tar archive.
    pub(super) fn tar(&mut self, file: &mut dyn ReadAt, item: &Item<'_>) -> Result<()> {
        let (mut at, mut names) = (0, 0);
        while file.len() - at >= 512 {
            let mut header = [0; 512];
            file.read_at(at, &mut header)?;
            if header.iter().all(|&b| b == 0) {
                break;
            }
            if !is_header(&header) {
                self.remark("a tar archive with other content behind its files", item);
                break;
            }
            let Some(size) = size_of(&header) else {
                self.remark("a tar archive that cannot be followed: a size is no number", item);
                break;
            };
            let name = header[..100].split(|&b| b == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            let inner = item.member(&name);
            let start = at + 512;
            let left = file.len() - start;
            match header[156] {
                // Links, devices and pipes. Python does not pass over bytes behind them.
                b'1'..=b'4' | b'6' => {
                    self.remark(
                        "a tar archive with links or devices, which were not followed",
                        &inner,
                    );
                    at = start;
                    continue;
                }
                b'5' => {
                    at = start;
                    continue;
                }
                b'S' => self.remark("a tar archive with sparse files, not looked into", &inner),
                // Headers of GNU and of POSIX for the next file, which can give it another size.
                b'x' | b'g' | b'X' => {
                    self.extended_header(file, (start, size.min(left)), &inner)?;
                }
                b'L' | b'K' | b'V' => {}
                _ => {
                    names += usize::from(CHECKPOINT.contains(&name.trim_start_matches("./")));
                    let len = size.min(left);
                    let inner = Item { is_storage: names > 0, ..inner };
                    self.content(&mut FileWindow { file: &mut *file, start, len }, &inner)?;
                }
            }
            if size > left {
                self.remark("a tar archive that is truncated", item);
                break;
            }
            // The last block may be short.
            at = (start + size.next_multiple_of(512)).min(file.len());
        }
        if names > 0 {
            let mut named = Vec::new();
            let result = tar::collect_globals(file, &mut named, self.budget);
            self.add_all(named);
            self.tolerate(result, "a checkpoint that cannot be followed", item)?;
        }
        Ok(())
    }

    /// Notes an extended header that says where a file's content is.
    fn extended_header(
        &mut self,
        file: &mut dyn ReadAt,
        (start, len): (u64, u64),
        item: &Item<'_>,
    ) -> Result<()> {
        let mut text = vec![0; len.min(64 << 10) as usize];
        file.read_at(start, &mut text)?;
        let has = |word: &[u8]| text.windows(word.len()).any(|at| at == word);
        if len > text.len() as u64 || has(b" size=") || has(b"GNU.sparse") {
            self.remark("a tar archive with sizes in extended headers, not followed", item);
        }
        Ok(())
    }
}

/// The size in a header, as Python's `tarfile` reads it: octal, or base 256.
fn size_of(header: &[u8; 512]) -> Option<u64> {
    let field = &header[124..136];
    if field[0] == 0x80 {
        let (high, low) = field.split_at(4);
        let is_short = high[1..].iter().all(|&b| b == 0);
        return low
            .first_chunk()
            .map(|low| u64::from_be_bytes(*low))
            .filter(|n| is_short && *n >> 62 == 0);
    }
    let text = field
        .split(|&b| b == 0)
        .next()
        .unwrap_or_default()
        .trim_ascii();
    match text {
        [] => Some(0),
        _ if text.iter().all(|b| matches!(b, b'0'..=b'7')) => {
            u64::from_str_radix(std::str::from_utf8(text).ok()?, 8).ok()
        }
        _ => None,
    }
}
