//! The one model: a flat list of named tensors, where their bytes are, and what describes them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::config::QuantConfig;
use crate::error::printable;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// A parsed file: every tensor's name, dtype, shape and place, without the data.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
/// for tensor in model.tensors() {
///     println!("{} {} {:?} {} bytes", tensor.name(), tensor.dtype(), tensor.shape(), tensor.bytes()?.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ParsedModel {
    /// The file, or the files that hold parts of the model.
    pub(crate) sources: Vec<Source>,
    pub(crate) path: Option<PathBuf>,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) metadata: HashMap<String, String>,
    pub(crate) header_size: usize,
    pub(crate) config: QuantConfig,
    #[cfg(feature = "gguf")]
    pub(crate) gguf: Option<crate::parse::gguf::Gguf>,
}

/// One stored tensor: what the container's header says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Which of the model's sources has the bytes.
    pub source: usize,
    /// Absolute position there, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl ParsedModel {
    /// Every tensor, in the order of the data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        (0..self.tensors.len()).map(|index| Tensor { model: self, index })
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.tensors().find(|t| t.name() == name)
    }

    /// Free-form metadata of the container (`__metadata__` in safetensors).
    #[must_use]
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }

    /// What the files beside the model, and its metadata, say about its quantization.
    #[must_use]
    pub fn config(&self) -> &QuantConfig {
        &self.config
    }

    /// Length of the container's header, in bytes.
    #[must_use]
    pub fn header_size(&self) -> usize {
        self.header_size
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.len).sum()
    }

    /// Bytes of the whole container, in all its files; `None` if only its header was read.
    #[must_use]
    pub fn file_size(&self) -> Option<u64> {
        self.sources.iter().map(Source::len).sum()
    }

    /// What a GGUF file says of itself.
    #[cfg(feature = "gguf")]
    #[must_use]
    pub fn gguf(&self) -> Option<&crate::parse::gguf::Gguf> {
        self.gguf.as_ref()
    }

    /// Whether the model was read from GGUF.
    pub(crate) fn is_gguf(&self) -> bool {
        #[cfg(feature = "gguf")]
        return self.gguf.is_some();
        #[cfg(not(feature = "gguf"))]
        false
    }

    /// Whether tensors are stored with their most significant bytes first.
    pub(crate) fn is_big_endian(&self) -> bool {
        #[cfg(feature = "gguf")]
        return self.gguf.as_ref().is_some_and(|gguf| gguf.big_endian);
        #[cfg(not(feature = "gguf"))]
        false
    }

    /// The file that was parsed, if it was one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// A stored tensor, as it lies in the container.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'m> {
    pub(crate) model: &'m ParsedModel,
    pub(crate) index: usize,
}

impl<'m> Tensor<'m> {
    pub(crate) fn info(&self) -> &'m TensorInfo {
        &self.model.tensors[self.index]
    }

    /// Name, as stored.
    #[must_use]
    pub fn name(&self) -> &'m str {
        &self.info().name
    }

    /// Element type, as stored.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.info().dtype
    }

    /// Shape, outermost dimension first (GGUF files have it the other way round).
    #[must_use]
    pub fn shape(&self) -> &'m [usize] {
        &self.info().shape
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        // The container's validation proved that the product times the width fits.
        self.shape().iter().product()
    }

    /// The stored bytes (little-endian, row-major), without a copy where the source allows it.
    ///
    /// # Errors
    /// If only the header was read, or the file cannot be mapped.
    pub fn bytes(&self) -> Result<Cow<'m, [u8]>> {
        let info = self.info();
        let bytes = self.source().view(info.offset..info.offset + info.len)?;
        if !self.model.is_big_endian() {
            return Ok(bytes);
        }
        if !info.dtype.can_swap() {
            let what = format!("tensor `{}`: no byte order is defined for {}", info.name, info.dtype);
            return Err(AnamnesisError::unsupported("big-endian GGUF", what));
        }
        let mut bytes = bytes.into_owned();
        info.dtype.swap_bytes(&mut bytes);
        Ok(Cow::Owned(bytes))
    }

    /// Where the bytes are, for positional reads.
    pub(crate) fn part(&self) -> Part<'m> {
        let info = self.info();
        let swap = self.model.is_big_endian().then_some(info.dtype);
        Part { source: self.source(), offset: info.offset, len: info.len, name: &info.name, swap }
    }

    fn source(&self) -> &'m Source {
        &self.model.sources[self.info().source]
    }
}

/// A tensor's bytes as the pipeline reads them: positionally, into the caller's buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'m> {
    source: &'m Source,
    offset: u64,
    pub len: u64,
    pub name: &'m str,
    /// The type whose numbers have to be turned round, in reads of whole blocks.
    swap: Option<Dtype>,
}

impl Part<'_> {
    /// Fills `out` from byte `at` of the tensor on, both at the bounds of elements (or blocks).
    pub(crate) fn read_at(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let end = at.checked_add(out.len() as u64).filter(|&end| end <= self.len);
        if end.is_none() {
            let (n, name, len) = (out.len(), self.name, self.len);
            return Err(AnamnesisError::parse(format!("tensor `{name}`: {n} bytes at {at} of {len}")));
        }
        self.source.read_at(self.offset + at, out).map_err(|error| match error {
            AnamnesisError::Io(e) => {
                let name = printable(self.name);
                AnamnesisError::Io(std::io::Error::new(e.kind(), format!("reading tensor `{name}`: {e}")))
            }
            other => other,
        })?;
        if let Some(dtype) = self.swap {
            dtype.swap_bytes(out);
        }
        Ok(())
    }

    /// The whole tensor, if it is at most `max` bytes.
    pub(crate) fn read_small(&self, max: u64) -> Result<Vec<u8>> {
        if self.len > max {
            let (name, len) = (self.name, self.len);
            return Err(AnamnesisError::parse(format!("tensor `{name}`: {len} bytes where at most {max} make sense")));
        }
        let mut out = vec![0; self.len as usize];
        self.read_at(0, &mut out)?;
        Ok(out)
    }

    /// Whether data can be read at all, or only the header is known.
    pub(crate) fn is_readable(&self) -> bool {
        self.source.len().is_some()
    }
}
