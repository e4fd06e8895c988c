//! GGUF files made in memory byte for byte, valid or not.
#![allow(dead_code)]

/// A builder of a file. By default the header is little-endian, of version 3.
pub struct Gguf {
    pub version: u32,
    pub alignment: usize,
    pub tensor_count: u64,
    pub kv_count: u64,
    keys: Vec<u8>,
    infos: Vec<u8>,
    data: Vec<u8>,
}

impl Default for Gguf {
    fn default() -> Self {
        let (keys, infos, data) = Default::default();
        Self { version: 3, alignment: 32, tensor_count: 0, kv_count: 0, keys, infos, data }
    }
}

/// A string as GGUF stores it: its length, then its bytes.
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Gguf {
    /// Adds a key with a value of type `kind` and these bytes.
    pub fn key(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.kv_count += 1;
        self.keys
            .extend([&string(key)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    /// Adds a key with a string as its value.
    pub fn text(self, key: &str, value: &str) -> Self {
        self.key(key, 8, &string(value))
    }

    /// Adds a tensor of ggml type `kind` after the others; `shape` has the fastest dimension first,
    /// as the file does.
    pub fn tensor(self, name: &str, kind: u32, shape: &[u64], bytes: &[u8]) -> Self {
        let offset = self.data.len().next_multiple_of(self.alignment) as u64;
        self.tensor_at(name, kind, shape, offset, bytes)
    }

    /// Adds a tensor that claims to be at `offset` of the data.
    pub fn tensor_at(
        mut self,
        name: &str,
        kind: u32,
        shape: &[u64],
        offset: u64,
        bytes: &[u8],
    ) -> Self {
        self.tensor_count += 1;
        self.infos
            .extend([&string(name)[..], &(shape.len() as u32).to_le_bytes()].concat());
        shape
            .iter()
            .for_each(|d| self.infos.extend(d.to_le_bytes()));
        self.infos.extend(kind.to_le_bytes());
        self.infos.extend(offset.to_le_bytes());
        self.data
            .resize(self.data.len().next_multiple_of(self.alignment), 0);
        self.data.extend(bytes);
        self
    }

    /// The header alone, padded.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.kv_count.to_le_bytes());
        out.extend(&self.keys);
        out.extend(&self.infos);
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }

    /// The whole file.
    pub fn file(&self) -> Vec<u8> {
        [self.header(), self.data.clone()].concat()
    }
}
