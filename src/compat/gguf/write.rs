//! Writes GGUF files of tensors that are in memory.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::io::{BufWriter, Seek, Write};
use std::path::Path;

use crate::error::InTensor;
use crate::model::gguf::GgufMetadataValue;
use crate::sort::sort_by;
use crate::source::inputs::Inputs;
use crate::write::atomic::{OutputFile, OutputPlace};
use crate::write::gguf::{GgufKeys, layout, stored_dtype};
use crate::write::{OutputEntry, OutputLayout};
use crate::{AnamnesisError, Dtype, Result};

/// A tensor for [`write_gguf`].
#[derive(Debug, Clone, Copy)]
pub struct GgufWriteTensor<'a> {
    /// Name; llama.cpp accepts at most 63 bytes.
    pub name: &'a str,
    /// Shape in the file's order, as in [`GgufTensorInfo`](crate::GgufTensorInfo): the innermost
    /// dimension first.
    pub shape: &'a [usize],
    /// Element type, which must be one of ggml's.
    pub dtype: Dtype,
    /// The data: elements little-endian, or whole blocks.
    pub data: &'a [u8],
}

/// Writes a GGUF file. Keys are sorted; the file appears only when it is whole, and replaces an
/// older one.
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
/// `Unsupported` if GGUF cannot hold a tensor; `Parse` if a tensor's data does not fit its shape,
/// its name is given twice, or the metadata is invalid; `Io`. Only `Io` can occur after the first
/// byte was written.
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
            inputs: &Inputs::default(),
            space: layout.file_len,
            is_uncached: false,
        },
    )?;
    write_all(BufWriter::new(file.file()), &layout, tensors)?;
    file.commit()
}

/// Writes a GGUF file to a writer, from its position on.
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
/// The errors of [`write_gguf`].
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
    sort_by(&mut edits, |a, b| a.0.cmp(&b.0));
    let keys = GgufKeys::new(None, |_| false, &edits)?;
    let mut names = HashSet::new();
    let mut shapes = Vec::with_capacity(tensors.len());
    for t in tensors {
        let shape: Vec<usize> = t.shape.iter().rev().copied().collect();
        let dtype = stored_dtype(t.name, t.dtype, &shape)?;
        let wrong =
            |what: String| Err(AnamnesisError::parse(format!("{}: {what}", InTensor(&t.name))));
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
    // The pieces of GGUF are made when it is laid out.
    let pieces = layout.framing.pieces(Vec::new)?;
    pieces
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
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0), padding), &mut writer)?;
    }
    Ok(writer.flush()?)
}
