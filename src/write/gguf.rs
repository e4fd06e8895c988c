//! GGUF, written: version 3, little-endian, every tensor padded to the alignment, the last one too.
//!
//! Format: ggml `gguf.h`; rules: `gguf.cpp`, `gguf_init_from_reader`.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::io::{BufWriter, Seek, Write};
use std::path::Path;

use super::atomic::{OutputFile, OutputPlace};
use super::{OutputEntry, OutputLayout};
use crate::parse::gguf::{
    DEFAULT_ALIGNMENT, GgufMetadata, GgufMetadataValue, MAX_ALIGNMENT, is_split_key, write_entry,
    write_str,
};
use crate::{AnamnesisError, Dtype, Result};

/// Dimensions that ggml has.
const MAX_DIMS: usize = 4;

/// Metadata as it will be written.
#[derive(Debug, Default, Clone)]
pub(crate) struct GgufKeys {
    bytes: Vec<u8>,
    count: u64,
    alignment: Option<u32>,
}

impl GgufKeys {
    /// The metadata of `source`, less what `leave_out` names, with `edits` in the place of their keys, and new
    /// ones behind.
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
                    if key == ALIGNMENT {
                        keys.alignment = source
                            .and_then(|metadata| metadata.get(key))
                            .and_then(|v| v.as_u32());
                    }
                }
            }
            done.insert(key);
        }
        // Of two edits of a key the last one counts.
        for (key, _) in edits {
            if done.insert(key) {
                keys.add(key, by_key[key.as_str()])?;
            }
        }
        Ok(keys)
    }

    /// Adds a key that is not there yet.
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
        write_entry(key, value, &mut self.bytes);
        self.count += 1;
        Ok(())
    }

    /// What tensors are aligned to.
    pub(crate) fn alignment(&self) -> u32 {
        self.alignment.unwrap_or(DEFAULT_ALIGNMENT)
    }

    /// For a part of a model that is not the first: the alignment alone.
    pub(crate) fn of_part(&self) -> Result<Self> {
        let mut keys = Self::default();
        match self.alignment {
            Some(alignment) => keys
                .add(ALIGNMENT, &GgufMetadataValue::U32(alignment))
                .map(|()| keys),
            None => Ok(keys),
        }
    }
}

const ALIGNMENT: &str = "general.alignment";

/// The type under which a tensor is written, or why it cannot be.
pub(crate) fn accept(name: &str, dtype: Dtype, shape: &[usize]) -> Result<Dtype> {
    let refuse = |what: String| {
        let what = format!("tensor `{name}` ({dtype} {shape:?}): {what}");
        Err(AnamnesisError::unsupported("writing GGUF", what))
    };
    let stored = match dtype {
        Dtype::Bool => Dtype::I8, // the same bytes, 0 and 1
        _ => dtype,
    };
    if stored.ggml_id().is_none() {
        return refuse("ggml has no such type".to_owned());
    }
    if shape.len() > MAX_DIMS {
        return refuse(format!("ggml has at most {MAX_DIMS} dimensions"));
    }
    Ok(stored)
}

/// Lays out `entries` in their order.
pub(crate) fn layout(entries: &[OutputEntry<'_>], keys: &GgufKeys) -> Result<OutputLayout> {
    let alignment = u64::from(keys.alignment());
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((entries.len() as u64).to_le_bytes());
    header.extend(keys.count.to_le_bytes());
    header.extend_from_slice(&keys.bytes);
    let mut offsets = Vec::with_capacity(entries.len());
    let mut at = 0u64;
    let overflow = |e: &OutputEntry<'_>| {
        AnamnesisError::parse(format!("tensor `{}`: its size overflows", e.name))
    };
    for e in entries {
        write_str(e.name, &mut header);
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
    header.resize(header.len().next_multiple_of(alignment as usize), 0);
    let base = header.len() as u64;
    offsets.iter_mut().for_each(|offset| *offset += base);
    let file_len = base
        .checked_add(at)
        .ok_or_else(|| AnamnesisError::parse("the output's size overflows"))?;
    Ok(OutputLayout::of_header(header, offsets, file_len))
}

/// A tensor for [`write_gguf`].
#[derive(Debug, Clone, Copy)]
pub struct GgufWriteTensor<'a> {
    /// Name; llama.cpp reads up to 63 bytes.
    pub name: &'a str,
    /// Shape in the file's order, as in [`GgufTensorInfo`](crate::GgufTensorInfo): the innermost dimension first.
    pub shape: &'a [usize],
    /// Any type that ggml has.
    pub dtype: Dtype,
    /// The data: elements little-endian, or whole blocks.
    pub data: &'a [u8],
}

/// Writes a GGUF file. Keys are sorted; the file appears only when it is whole, and replaces an older one.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// use anamnesis::{GgufMetadataValue, GgufType, GgufWriteTensor, write_gguf};
/// let architecture = ("general.architecture".to_owned(), GgufMetadataValue::String("llama".into()));
/// let data: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
/// let norm = GgufWriteTensor { name: "output_norm.weight", shape: &[2], dtype: GgufType::F32, data: &data };
/// write_gguf(&path, &[norm], &std::collections::HashMap::from([architecture]))?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Unsupported` or `Parse` that names the tensor, before anything is written; I/O.
pub fn write_gguf<S: BuildHasher>(
    path: impl AsRef<Path>,
    tensors: &[GgufWriteTensor<'_>],
    metadata: &HashMap<String, GgufMetadataValue, S>,
) -> Result<()> {
    let layout = plan(tensors, metadata)?;
    let file = OutputFile::create(
        path.as_ref(),
        layout.file_len,
        &OutputPlace {
            force: true,
            inputs: &[],
            space: layout.file_len,
        },
    )?;
    write_all(BufWriter::new(file.file()), &layout, tensors)?;
    file.commit()
}

/// As [`write_gguf`], to a writer, from its position on.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// use anamnesis::{GgufType, GgufWriteTensor};
/// let data = 1f32.to_le_bytes();
/// let one = GgufWriteTensor { name: "one", shape: &[1], dtype: GgufType::F32, data: &data };
/// let mut file = std::io::Cursor::new(Vec::new());
/// anamnesis::write_gguf_to_writer(&mut file, &[one], &std::collections::HashMap::new())?;
/// assert_eq!(&file.into_inner()[..4], b"GGUF");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As there.
pub fn write_gguf_to_writer<W: Write + Seek, S: BuildHasher>(
    writer: W,
    tensors: &[GgufWriteTensor<'_>],
    metadata: &HashMap<String, GgufMetadataValue, S>,
) -> Result<()> {
    write_all(writer, &plan(tensors, metadata)?, tensors)
}

fn plan<S: BuildHasher>(
    tensors: &[GgufWriteTensor<'_>],
    metadata: &HashMap<String, GgufMetadataValue, S>,
) -> Result<OutputLayout> {
    let mut edits: Vec<_> = metadata
        .iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    edits.sort_by(|a, b| a.0.cmp(&b.0));
    let keys = GgufKeys::new(None, |_| false, &edits)?;
    let mut names = HashSet::new();
    let mut shapes = Vec::with_capacity(tensors.len());
    for t in tensors {
        let shape: Vec<usize> = t.shape.iter().rev().copied().collect();
        let dtype = accept(t.name, t.dtype, &shape)?;
        let wrong = |what: String| {
            Err(AnamnesisError::parse(format!(
                "tensor `{}`: {what}",
                t.name
            )))
        };
        if !names.insert(t.name) {
            return wrong("it is given twice".to_owned());
        }
        match dtype.byte_len(&shape) {
            Some(len) if len == t.data.len() => shapes.push((dtype, shape)),
            Some(len) => {
                return wrong(format!(
                    "{} bytes where {dtype} {:?} takes {len}",
                    t.data.len(),
                    t.shape
                ));
            }
            None => return wrong(format!("{:?} is no shape for {dtype}", t.shape)),
        }
    }
    let entries = tensors.iter().zip(&shapes);
    let entries: Vec<_> = entries
        .map(|(t, (dtype, shape))| OutputEntry {
            name: t.name,
            dtype: *dtype,
            shape,
            len: t.data.len() as u64,
        })
        .collect();
    layout(&entries, &keys)
}

fn write_all(
    mut writer: impl Write,
    layout: &OutputLayout,
    tensors: &[GgufWriteTensor<'_>],
) -> Result<()> {
    layout
        .pieces
        .iter()
        .try_for_each(|(_, piece)| writer.write_all(piece))?;
    let ends = layout
        .offsets
        .iter()
        .skip(1)
        .copied()
        .chain([layout.file_len]);
    for ((t, start), end) in tensors.iter().zip(&layout.offsets).zip(ends) {
        writer.write_all(t.data)?;
        let padding = end - start - t.data.len() as u64;
        std::io::copy(
            &mut std::io::Read::take(std::io::repeat(0), padding),
            &mut writer,
        )?;
    }
    Ok(writer.flush()?)
}
