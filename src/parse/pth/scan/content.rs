//! A file, or a member of an archive: what its content is, and what is done with it.

use super::super::PickleGlobal;
use super::Scanner;
use super::kinds::{self, ContentKind};
use crate::Result;
use crate::parse::read_at::ReadAt;

/// Bytes of the beginning that tell what the content is.
pub(super) const HEAD: u64 = 64 << 10;

/// Most archives inside of each other that are looked into.
const MAX_DEPTH: usize = 8;

/// A file, or a member of an archive.
#[derive(Debug, Clone)]
pub(super) struct Item<'a> {
    /// The name, which tells what programs may do with the content.
    pub name: &'a str,
    /// What remarks call it.
    pub label: String,
    /// Number of archives and compressed streams around it.
    pub depth: usize,
    /// Whether it is a storage of a checkpoint: numbers, which no program unpickles.
    pub is_storage: bool,
    /// Whether only its beginning is there, because it is compressed.
    pub is_cut: bool,
}

impl<'a> Item<'a> {
    pub(super) fn file(name: &'a str) -> Self {
        Self { name, label: name.to_owned(), depth: 0, is_storage: false, is_cut: false }
    }

    /// What is inside of this item under `name`.
    pub(super) fn member<'m>(&self, name: &'m str) -> Item<'m> {
        let label = match self.depth {
            0 => name.to_owned(),
            _ => format!("{}/{name}", self.label),
        };
        Item { name, label, depth: self.depth + 1, is_storage: false, is_cut: false }
    }
}

impl Scanner<'_> {
    /// Looks into a file, or a member of an archive.
    ///
    /// # Errors
    /// Those of the caller's limits and of the system; whatever is wrong with the content is a
    /// remark.
    pub(super) fn content(&mut self, file: &mut dyn ReadAt, item: &Item<'_>) -> Result<()> {
        if file.len() == 0 {
            return Ok(());
        }
        if item.depth > MAX_DEPTH {
            self.remark("archives inside of each other, which were not looked into", item);
            return Ok(());
        }
        let mut head = vec![0; file.len().min(HEAD) as usize];
        file.read_at(0, &mut head)?;
        let kind = kinds::kind_of(&head);
        let is_pickle = self.pickles(file, 0, kind == ContentKind::Pickle, item)?;
        match kind {
            ContentKind::Zip => self.zip(file, item)?,
            ContentKind::Tar => self.tar(file, item)?,
            ContentKind::Gzip | ContentKind::Zlib => self.compressed(file, kind, item)?,
            ContentKind::Npy => self.array(file, &head, item)?,
            ContentKind::Hides(what) => self.remark(what, item),
            ContentKind::Text | ContentKind::Unknown if is_pickle || item.is_storage => {}
            ContentKind::Unknown if kinds::is_unpickled(item.name) => self
                .remark("a file of this name may be unpickled, and its content is unknown", item),
            ContentKind::Unknown => {
                self.remark("content of an unknown kind, not looked into", item);
            }
            ContentKind::Text if kinds::is_always_unpickled(item.name) => {
                self.remark("a file of this name may be unpickled, and its content is text", item);
            }
            ContentKind::Pickle | ContentKind::Text | ContentKind::Weights => {}
        }
        if kind != ContentKind::Zip && !item.is_cut {
            self.zip_at_end(file, item)?;
        }
        if let Some(what) = kinds::program(item.name, &head) {
            self.remark(what, item);
        }
        if kind == ContentKind::Text
            && let Some(what) = kinds::names_code(item.name, file, &head)?
        {
            self.remark(what, item);
        }
        Ok(())
    }

    /// Adds the globals that a run has named.
    pub(super) fn add_all(&mut self, named: impl IntoIterator<Item = PickleGlobal>) {
        for global in named {
            self.add(global);
        }
    }
}
