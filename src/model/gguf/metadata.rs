//! [`GgufMetadata`]: the bytes of a file's metadata and an index of them. Values are decoded when
//! they are asked for, so that a tokenizer of a million strings takes no more memory than its bytes
//! in the file.

use std::borrow::Cow;
use std::collections::HashMap;

#[cfg(feature = "models")]
use super::value::{ARRAY, STRING};
use super::value::{GgufBytes, GgufEncoding, GgufMetadataValue};

/// GGUF metadata: typed values by key, in the order of the file.
#[derive(Debug, Clone)]
pub struct GgufMetadata {
    bytes: Vec<u8>,
    encoding: GgufEncoding,
    entries: Vec<GgufMetadataEntry>,
    index: HashMap<String, usize>,
}

#[derive(Debug, Clone)]
struct GgufMetadataEntry {
    key: String,
    type_id: u32,
    /// Range of the value in the metadata's bytes.
    start: usize,
    end: usize,
}

impl GgufMetadata {
    pub(crate) fn new(encoding: GgufEncoding) -> Self {
        Self { bytes: Vec::new(), encoding, entries: Vec::new(), index: HashMap::new() }
    }

    /// Adds a key whose value is at bytes `start..end`. Returns false if the key is there already.
    pub(crate) fn add(&mut self, key: String, type_id: u32, start: usize, end: usize) -> bool {
        let is_new = self.index.insert(key.clone(), self.entries.len()).is_none();
        self.entries
            .push(GgufMetadataEntry { key, type_id, start, end });
        is_new
    }

    /// Sets the bytes that the ranges of all entries refer to.
    pub(crate) fn set_bytes(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }

    /// How the file stores numbers and lengths.
    pub(crate) fn encoding(&self) -> GgufEncoding {
        self.encoding
    }

    /// The number of the type and the bytes of the value of `key`, as they are stored.
    pub(crate) fn stored(&self, key: &str) -> Option<(u32, &[u8])> {
        let entry = &self.entries[*self.index.get(key)?];
        Some((entry.type_id, self.bytes.get(entry.start..entry.end)?))
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

    /// Bytes of the file up to the end of its metadata.
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

    /// The value of `key`. In text that is not UTF-8, each malformed sequence becomes a replacement
    /// character.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<GgufMetadataValue> {
        self.index
            .get(key)
            .map(|&i| &self.entries[i])
            .map(|e| self.value(e))
    }

    /// Whether `key` holds text, by itself or in an array, that is not UTF-8 throughout.
    /// [`get`](Self::get) replaces what is malformed.
    #[cfg(feature = "models")]
    pub(crate) fn has_malformed_text(&self, key: &str) -> bool {
        let Some(entry) = self.index.get(key).map(|&i| &self.entries[i]) else {
            return false;
        };
        let bytes = self.bytes.get(entry.start..entry.end).unwrap_or_default();
        let encoding = self.encoding;
        let mut bytes = GgufBytes { bytes, encoding };
        let texts = match entry.type_id {
            STRING => 1,
            ARRAY if bytes.number(4) == u64::from(STRING) => bytes.len(),
            _ => 0,
        };
        (0..texts).any(|_| {
            let length = bytes.len();
            std::str::from_utf8(bytes.take(length)).is_err()
        })
    }

    /// The keys whose values take at most `max` bytes, with the values.
    pub(crate) fn small(&self, max: usize) -> impl Iterator<Item = (&str, GgufMetadataValue)> {
        let small = self.entries.iter().filter(move |e| e.end - e.start <= max);
        small.map(|e| (e.key.as_str(), self.value(e)))
    }

    fn value(&self, entry: &GgufMetadataEntry) -> GgufMetadataValue {
        let bytes = self.bytes.get(entry.start..entry.end).unwrap_or_default();
        GgufMetadataValue::read(entry.type_id, &mut GgufBytes { bytes, encoding: self.encoding })
    }

    /// Appends `key` with its value to `out`, in the encoding of written files. Does nothing if
    /// there is no such key.
    pub(crate) fn write_entry(&self, key: &str, out: &mut Vec<u8>) {
        if let Some(entry) = self.index.get(key).map(|&i| &self.entries[i]) {
            GgufEncoding::WRITTEN.write_str(key, out);
            GgufEncoding::WRITTEN.write_type(entry.type_id, out);
            out.extend_from_slice(&self.encoded(entry));
        }
    }

    /// The value's bytes in the encoding of written files: the stored bytes, unless the file has
    /// another encoding.
    fn encoded(&self, entry: &GgufMetadataEntry) -> Cow<'_, [u8]> {
        if self.encoding == GgufEncoding::WRITTEN {
            return Cow::Borrowed(self.bytes.get(entry.start..entry.end).unwrap_or_default());
        }
        let mut out = Vec::new();
        self.value(entry).write(GgufEncoding::WRITTEN, &mut out);
        Cow::Owned(out)
    }
}

/// A map in the order of the file.
impl serde::Serialize for GgufMetadata {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Appends one key with its value to `out`.
pub(crate) fn write_entry(
    key: &str,
    value: &GgufMetadataValue,
    encoding: GgufEncoding,
    out: &mut Vec<u8>,
) {
    encoding.write_str(key, out);
    encoding.write_type(value.type_id(), out);
    value.write(encoding, out);
}
