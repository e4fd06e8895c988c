//! Writes safetensors files of tensors that are in memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::error::InTensor;
use crate::limits::zeroed;
use crate::write::{OutputEntry, OutputLayout, safetensors};
use crate::{AnamnesisError, Dtype, Result};

/// A tensor in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WholeTensor<'a> {
    pub name: &'a str,
    pub shape: &'a [usize],
    pub dtype: Dtype,
    pub data: &'a [u8],
}

impl<'a> WholeTensor<'a> {
    fn entry(&self) -> OutputEntry<'a> {
        OutputEntry {
            name: self.name,
            dtype: self.dtype,
            shape: self.shape,
            len: self.data.len() as u64,
        }
    }
}

#[cfg(any(feature = "npz", feature = "pth", feature = "bnb"))]
/// Metadata of every file: transformers refuses a file without it.
const FORMAT: (&str, &str) = ("format", "pt");

/// Lays out a file of `tensors` with one key of metadata.
///
/// # Errors
/// `Parse` that names the tensor, if its data does not fit its dtype and shape or its name is given
/// twice.
fn plan(tensors: &[WholeTensor<'_>], (key, value): (&str, &str)) -> Result<OutputLayout> {
    let mut names = HashSet::new();
    for t in tensors {
        let wrong =
            |what: String| Err(AnamnesisError::parse(format!("{}: {what}", InTensor(&t.name))));
        if t.dtype.byte_len(t.shape) != Some(t.data.len()) || !t.dtype.in_safetensors() {
            let (len, dtype, shape) = (t.data.len(), t.dtype, t.shape);
            return wrong(format!("{len} bytes are not {dtype} {shape:?}"));
        }
        if !names.insert(t.name) {
            return wrong("it is given twice".to_owned());
        }
    }
    let entries: Vec<_> = tensors.iter().map(WholeTensor::entry).collect();
    let metadata = HashMap::from([(key.to_owned(), value.to_owned())]);
    safetensors::layout(&entries, &Arc::new(metadata))
}

/// Passes every byte of the file to `put`, in pieces with their offsets.
fn write(
    layout: &OutputLayout,
    tensors: &[WholeTensor<'_>],
    mut put: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let entries = || tensors.iter().map(WholeTensor::entry).collect();
    let pieces = layout.framing.pieces(entries)?;
    pieces.iter().try_for_each(|(at, piece)| put(*at, piece))?;
    tensors
        .iter()
        .zip(&layout.offsets)
        .try_for_each(|(t, &at)| put(at, t.data))
}

#[cfg(any(feature = "npz", feature = "pth", feature = "bnb"))]
/// Writes a file atomically; an older one is replaced.
pub(crate) fn to_file(tensors: &[WholeTensor<'_>], path: &std::path::Path) -> Result<()> {
    use crate::source::inputs::Inputs;
    use crate::write::atomic::{OutputFile, OutputPlace};
    let layout = plan(tensors, FORMAT)?;
    let place = OutputPlace {
        force: true,
        inputs: &Inputs::default(),
        space: layout.file_len,
        is_uncached: false,
    };
    let file = OutputFile::create(path, layout.file_len, &place)?;
    write(&layout, tensors, |at, bytes| file.write_at(at, bytes))?;
    file.commit()
}

#[cfg(any(feature = "npz", feature = "pth", feature = "bnb"))]
/// Returns the bytes of the file.
pub(crate) fn to_bytes(tensors: &[WholeTensor<'_>]) -> Result<Vec<u8>> {
    to_bytes_with(tensors, FORMAT)
}

/// Returns the bytes of the file with another key and value as its metadata.
pub(crate) fn to_bytes_with(
    tensors: &[WholeTensor<'_>],
    metadata: (&str, &str),
) -> Result<Vec<u8>> {
    let layout = plan(tensors, metadata)?;
    let mut out = zeroed(layout.file_len, "the tensors")?;
    write(&layout, tensors, |at, bytes| {
        out[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    })?;
    Ok(out)
}
