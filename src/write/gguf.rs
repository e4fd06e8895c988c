//! Lays out GGUF files: version 3, little-endian, each tensor padded to the alignment, including
//! the last one.
//!
//! Format: ggml `gguf.h`; rules: `gguf.cpp`, `gguf_init_from_reader`.

use std::collections::{HashMap, HashSet};

use super::{OutputEntry, OutputLayout, unusable_name};
use crate::error::InTensor;
use crate::model::gguf::{
    DEFAULT_ALIGNMENT, GgufEncoding, GgufMetadata, GgufMetadataValue, MAX_ALIGNMENT, write_entry,
};
use crate::model::gguf_keys::{ALIGNMENT, ARCHITECTURE, is_split_key};
use crate::{AnamnesisError, Dtype, Result};

/// Most dimensions of a tensor that llama.cpp reads (`GGML_MAX_DIMS`).
pub(crate) const GGML_MAX_DIMS: usize = 4;

/// Most dimensions of a tensor that is read back. Convolutions of video models have five.
const MAX_DIMS: usize = 8;

/// Longest name of a tensor that is read back, in bytes.
const LONGEST_NAME: usize = 65_535;

/// The metadata of an output, encoded.
#[derive(Debug, Default, Clone)]
pub(crate) struct GgufKeys {
    bytes: Vec<u8>,
    /// Number of keys in `bytes`.
    count: u64,
    /// Value of `general.alignment`, if it is among the keys.
    alignment: Option<u32>,
    has_architecture: bool,
}

impl GgufKeys {
    /// Encodes the metadata of `source` without the keys that `leave_out` selects. A value of
    /// `edits` replaces that of its key in place; the keys that `source` does not have follow at
    /// the end.
    ///
    /// # Errors
    /// `Parse` if an edit has an invalid key, sets a split key, or sets an invalid alignment.
    pub(crate) fn new(
        source: Option<&GgufMetadata>,
        leave_out: impl Fn(&str) -> bool,
        edits: &[(String, GgufMetadataValue)],
    ) -> Result<Self> {
        let by_key: HashMap<&str, &GgufMetadataValue> = edits
            .iter()
            .map(|(key, value)| (key.as_str(), value))
            .collect();
        if let Some((key, _)) = edits.iter().find(|(key, _)| is_split_key(key)) {
            return Err(AnamnesisError::parse(format!(
                "metadata `{key}` is set where a model is split, and only there"
            )));
        }
        let mut keys = Self::default();
        let mut done = HashSet::new();
        for key in source
            .iter()
            .flat_map(|metadata| metadata.keys())
            .filter(|key| !leave_out(key))
        {
            match by_key.get(key) {
                Some(value) => keys.add(key, value)?,
                None => {
                    source
                        .iter()
                        .for_each(|metadata| metadata.write_entry(key, &mut keys.bytes));
                    keys.count += 1;
                    keys.has_architecture |= key == ARCHITECTURE;
                    if key == ALIGNMENT {
                        keys.alignment = source
                            .and_then(|metadata| metadata.get(key))
                            .and_then(|v| v.as_u32());
                    }
                }
            }
            done.insert(key);
        }
        // `by_key` has the last of several edits of a key, and `done` lets each key through once.
        for (key, _) in edits {
            if done.insert(key) {
                keys.add(key, by_key[key.as_str()])?;
            }
        }
        Ok(keys)
    }

    /// Appends a key that is not there yet.
    ///
    /// # Errors
    /// `Parse` if the key is empty or longer than readers accept, or if the alignment is invalid.
    pub(crate) fn add(&mut self, key: &str, value: &GgufMetadataValue) -> Result<()> {
        if key.is_empty() || key.len() > 65535 {
            return Err(AnamnesisError::parse(format!(
                "a metadata key of {} bytes: 1 to 65535 are written",
                key.len()
            )));
        }
        if key == ALIGNMENT {
            let usable =
                |&alignment: &u32| alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT;
            let what =
                format!("general.alignment is a u32 and a power of two, at most {MAX_ALIGNMENT}");
            self.alignment = Some(
                value
                    .as_u32()
                    .filter(usable)
                    .ok_or_else(|| AnamnesisError::parse(what))?,
            );
        }
        write_entry(key, value, GgufEncoding::WRITTEN, &mut self.bytes);
        self.has_architecture |= key == ARCHITECTURE;
        self.count += 1;
        Ok(())
    }

    /// Whether `general.architecture` is among the keys.
    pub(crate) fn has_architecture(&self) -> bool {
        self.has_architecture
    }

    /// Alignment of the tensors, in bytes.
    pub(crate) fn alignment(&self) -> u32 {
        self.alignment.unwrap_or(DEFAULT_ALIGNMENT)
    }

    /// The metadata of a split model's file that is not the first: the alignment alone.
    pub(crate) fn for_later_part(&self) -> Result<Self> {
        let mut keys = Self::default();
        match self.alignment {
            Some(alignment) => keys
                .add(ALIGNMENT, &GgufMetadataValue::U32(alignment))
                .map(|()| keys),
            None => Ok(keys),
        }
    }
}

/// The dtype that a tensor is stored as.
///
/// # Errors
/// `Unsupported` if ggml has no such type, or not so many dimensions.
pub(crate) fn stored_dtype(name: &str, dtype: Dtype, shape: &[usize]) -> Result<Dtype> {
    let refuse = |what: String| {
        let what = format!("{} ({dtype} {shape:?}): {what}", InTensor(&name));
        Err(AnamnesisError::unsupported("writing GGUF", what))
    };
    let stored = match dtype {
        Dtype::Bool => Dtype::I8, // ggml has no booleans; their bytes are the integers 0 and 1
        _ => dtype,
    };
    if stored.ggml_id().is_none() {
        return refuse("ggml has no such type".to_owned());
    }
    if shape.len() > MAX_DIMS {
        return refuse(format!("more than {MAX_DIMS} dimensions"));
    }
    Ok(stored)
}

/// Fails if readers would not find a tensor under its name. Names that are longer than llama.cpp
/// reads are no error: other readers have no such limit.
///
/// # Errors
/// `Unsupported` that names the tensor.
pub(crate) fn check_names(entries: &[OutputEntry<'_>]) -> Result<()> {
    let flaw = |name: &str| {
        if name.contains('\0') {
            return Some("readers in C end a name at a NUL");
        }
        (name.len() > LONGEST_NAME).then_some("it is longer than 65535 bytes")
    };
    let mut flaws = entries.iter().filter_map(|e| Some((e, flaw(e.name)?)));
    match flaws.next() {
        Some((e, why)) => Err(unusable_name("GGUF", e.name, why)),
        None => Ok(()),
    }
}

/// Lays out `entries` in their order, behind the metadata `keys`.
///
/// # Errors
/// `Unsupported` for a name that [`check_names`] refuses; `Parse` if the size of the file overflows,
/// or if a dtype is no ggml type.
pub(crate) fn layout(entries: &[OutputEntry<'_>], keys: &GgufKeys) -> Result<OutputLayout> {
    check_names(entries)?;
    let alignment = u64::from(keys.alignment());
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((entries.len() as u64).to_le_bytes());
    header.extend(keys.count.to_le_bytes());
    header.extend_from_slice(&keys.bytes);
    let mut offsets = Vec::with_capacity(entries.len());
    let mut at = 0u64;
    let overflow = |e: &OutputEntry<'_>| {
        AnamnesisError::parse(format!("{}: its size overflows", InTensor(&e.name)))
    };
    for e in entries {
        GgufEncoding::WRITTEN.write_str(e.name, &mut header);
        header.extend((e.shape.len() as u32).to_le_bytes());
        e.shape
            .iter()
            .rev()
            .for_each(|&d| header.extend((d as u64).to_le_bytes()));
        let id = e
            .dtype
            .ggml_id()
            .ok_or_else(|| AnamnesisError::parse(format!("{} is no type of ggml", e.dtype)))?;
        header.extend(id.to_le_bytes());
        header.extend(at.to_le_bytes());
        offsets.push(at);
        at = at
            .checked_add(e.len)
            .and_then(|end| end.checked_next_multiple_of(alignment))
            .ok_or_else(|| overflow(e))?;
    }
    // A file without tensors ends behind its keys, as gguf-py writes it.
    if !entries.is_empty() {
        header.resize(header.len().next_multiple_of(alignment as usize), 0);
    }
    let base = header.len() as u64;
    offsets.iter_mut().for_each(|offset| *offset += base);
    let file_len = base
        .checked_add(at)
        .ok_or_else(|| AnamnesisError::parse("the output's size overflows"))?;
    Ok(OutputLayout::of_header(header, offsets, file_len))
}
