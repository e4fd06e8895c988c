//! A file's metadata in its order: the bytes as they were read, and an index of them. Values are made when
//! they are asked for, so that a tokenizer of a million strings costs what it takes in the file.

use std::borrow::Cow;
use std::collections::HashMap;

use super::value::{Bytes, GgufMetadataValue, Layout, write_str};

/// GGUF metadata: typed values by key, in the order of the file.
#[derive(Debug, Clone)]
pub struct GgufMetadata {
    bytes: Vec<u8>,
    layout: Layout,
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
}

#[derive(Debug, Clone)]
struct Entry {
    key: String,
    type_id: u32,
    /// Where the value's bytes are.
    start: usize,
    end: usize,
}

impl GgufMetadata {
    pub(crate) fn new(layout: Layout) -> Self {
        Self {
            bytes: Vec::new(),
            layout,
            entries: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Adds a key that has just been read; false if it is there already.
    pub(crate) fn add(&mut self, key: String, type_id: u32, start: usize, end: usize) -> bool {
        let fresh = self.index.insert(key.clone(), self.entries.len()).is_none();
        self.entries.push(Entry {
            key,
            type_id,
            start,
            end,
        });
        fresh
    }

    /// The bytes that the entries lie in.
    pub(crate) fn set_bytes(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no metadata.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of it in the file.
    pub(crate) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The keys, in the order of the file.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|e| e.key.as_str())
    }

    /// Every key with its value, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, GgufMetadataValue)> {
        self.entries.iter().map(|e| (e.key.as_str(), self.value(e)))
    }

    /// The value of `key`. Text that is not UTF-8 is shown with replacement characters.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<GgufMetadataValue> {
        self.index
            .get(key)
            .map(|&i| &self.entries[i])
            .map(|e| self.value(e))
    }

    /// The values that take at most `max` bytes.
    pub(crate) fn small(&self, max: usize) -> impl Iterator<Item = (&str, GgufMetadataValue)> {
        let small = self.entries.iter().filter(move |e| e.end - e.start <= max);
        small.map(|e| (e.key.as_str(), self.value(e)))
    }

    fn value(&self, entry: &Entry) -> GgufMetadataValue {
        let bytes = self.bytes.get(entry.start..entry.end).unwrap_or_default();
        GgufMetadataValue::read(
            entry.type_id,
            &mut Bytes {
                bytes,
                layout: self.layout,
            },
        )
    }

    /// Appends `key` and its value as files are written, if it is there.
    pub(crate) fn write_entry(&self, key: &str, out: &mut Vec<u8>) {
        if let Some(entry) = self.index.get(key).map(|&i| &self.entries[i]) {
            write_str(key, out);
            out.extend(entry.type_id.to_le_bytes());
            out.extend_from_slice(&self.written(entry));
        }
    }

    /// The value's bytes as files are written: the same ones, unless the file is spelt otherwise.
    fn written(&self, entry: &Entry) -> Cow<'_, [u8]> {
        if self.layout == Layout::WRITTEN {
            return Cow::Borrowed(self.bytes.get(entry.start..entry.end).unwrap_or_default());
        }
        let mut out = Vec::new();
        self.value(entry).write(&mut out);
        Cow::Owned(out)
    }
}

/// Appends one key and its value, as files are written.
pub(crate) fn write_entry(key: &str, value: &GgufMetadataValue, out: &mut Vec<u8>) {
    write_str(key, out);
    out.extend(value.type_id().to_le_bytes());
    value.write(out);
}
