//! [`ParsedGguf`]: one GGUF file, for callers who expect no other container. It wraps a
//! [`ParsedModel`].

mod front;
mod write;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

pub use self::front::{
    GgufFrontMatter, GgufInspectInfo, GgufTensorInfo, inspect_gguf_from_reader,
    inspect_gguf_from_reader_with_limits, parse_gguf_front_matter_from_reader,
    parse_gguf_front_matter_from_reader_with_limits,
};
pub use self::write::{GgufWriteTensor, write_gguf, write_gguf_to_writer};
use super::dequantize::dequantize_gguf_to_bf16;
use crate::config::QuantConfig;
use crate::error::InTensor;
use crate::limits::Budget;
use crate::model::gguf::GgufMetadataValue;
use crate::parse::gguf::read_file;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, ParseLimits, ParsedModel, RememberOptions, Report, Result};

/// Most bytes of memory that a metadata value takes for each byte in the file. The worst case is an
/// empty string, which is a length in the file and three words in memory.
const VALUE_BYTES: u64 = 4;

/// A tensor of a GGUF file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GgufTensor<'a> {
    /// Name, as stored.
    pub name: &'a str,
    /// Shape in the file's order: the innermost dimension first.
    pub shape: &'a [usize],
    /// Element type.
    pub dtype: Dtype,
    /// The data, little-endian: elements, or whole blocks. Borrowed unless the file is big-endian.
    pub data: Cow<'a, [u8]>,
}

/// A GGUF file.
#[derive(Debug)]
pub struct ParsedGguf {
    model: ParsedModel,
    metadata: HashMap<String, GgufMetadataValue>,
    /// One entry for each of the model's tensors, in their order.
    tensors: Vec<GgufTensorInfo>,
}

/// Parses one GGUF file. Of a split model that is one part; [`parse`](crate::parse()) joins the
/// parts.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let gguf = anamnesis::parse_gguf("tests/data/demo/model-q4_k.gguf")?;
/// for (info, tensor) in gguf.tensor_info().iter().zip(gguf.tensors()) {
///     println!("{} {} at {}: {} bytes", info.name, info.dtype, info.data_offset, tensor.data.len());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` if the file cannot be read or mapped; `Parse` if it is no GGUF file, or malformed;
/// `Unsupported` if it is big-endian and has blocks for which no byte order is defined.
pub fn parse_gguf(path: impl AsRef<Path>) -> Result<ParsedGguf> {
    parse_gguf_with_limits(path, &ParseLimits::default())
}

/// Parses one GGUF file as [`parse_gguf`] does, within `limits`.
///
/// # Errors
/// The errors of [`parse_gguf`]; `LimitExceeded` if the file exceeds `limits`.
pub fn parse_gguf_with_limits(path: impl AsRef<Path>, limits: &ParseLimits) -> Result<ParsedGguf> {
    let path = path.as_ref();
    ParsedGguf::read(Source::open(path)?, Some(path), limits)
}

/// Parses one GGUF file in memory.
///
/// # Errors
/// The errors of [`parse_gguf`], without `Io`.
pub fn parse_gguf_bytes(bytes: Vec<u8>) -> Result<ParsedGguf> {
    parse_gguf_bytes_with_limits(bytes, &ParseLimits::default())
}

/// Parses one GGUF file in memory as [`parse_gguf_bytes`] does, within `limits`.
///
/// # Errors
/// The errors of [`parse_gguf_bytes`]; `LimitExceeded` if the file exceeds `limits`.
pub fn parse_gguf_bytes_with_limits(bytes: Vec<u8>, limits: &ParseLimits) -> Result<ParsedGguf> {
    ParsedGguf::read(Source::Bytes(Arc::new(bytes)), None, limits)
}

impl ParsedGguf {
    fn read(source: Source, path: Option<&Path>, limits: &ParseLimits) -> Result<Self> {
        let budget = Budget::new(limits);
        let contents = read_file(source, &budget)?;
        Self::new(contents.complete(QuantConfig::default(), path, limits), &budget)
    }

    fn new(model: ParsedModel, budget: &Budget) -> Result<Self> {
        let info = |t: crate::Tensor<'_>| {
            let (info, dtype) = (t.info(), t.dtype());
            if info.has_unknown_order() {
                let what =
                    format!("{}: no byte order is defined for {dtype}", InTensor(&info.name));
                return Err(AnamnesisError::unsupported("big-endian GGUF", what));
            }
            Ok(GgufTensorInfo::of(info))
        };
        let tensors = model.tensors().map(info).collect::<Result<_>>()?;
        let metadata = model.gguf().map(crate::model::gguf::Gguf::metadata);
        budget
            .grow(metadata.map_or(0, |m| m.size()).saturating_mul(VALUE_BYTES), "its metadata")?;
        let metadata = metadata
            .into_iter()
            .flat_map(|m| m.iter())
            .map(|(key, value)| (key.to_owned(), value));
        let metadata = metadata.collect();
        // The file is mapped now, because `tensors` cannot return an error.
        model
            .sources
            .iter()
            .try_for_each(|source| source.view(0..0).map(drop))?;
        Ok(Self { model, metadata, tensors })
    }

    /// Version of the format, 1 to 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.model
            .gguf()
            .map_or(0, crate::model::gguf::Gguf::version)
    }

    /// Alignment of the tensors' offsets, in bytes.
    #[must_use]
    pub fn alignment(&self) -> u32 {
        self.model
            .gguf()
            .map_or(0, crate::model::gguf::Gguf::alignment)
    }

    /// Number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the file has no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Metadata by key.
    #[must_use]
    pub fn metadata(&self) -> &HashMap<String, GgufMetadataValue> {
        &self.metadata
    }

    /// Name, shape, dtype and place of every tensor, in the order of the data.
    #[must_use]
    pub fn tensor_info(&self) -> &[GgufTensorInfo] {
        &self.tensors
    }

    /// Every tensor with its data, in the order of the data.
    pub fn tensors(&self) -> impl Iterator<Item = GgufTensor<'_>> {
        self.tensors
            .iter()
            .zip(&self.model.tensors)
            .map(|(t, info)| {
                // Cannot fail: the file is mapped, and parsing checked that the range is within it.
                let stored =
                    self.model.sources[info.source].view(info.offset..info.offset + info.len);
                let mut data = stored.unwrap_or_default();
                if info.big_endian {
                    t.dtype.swap_bytes(data.to_mut());
                }
                GgufTensor { name: &t.name, shape: &t.shape, dtype: t.dtype, data }
            })
    }

    /// Decodes a tensor of blocks to BF16. Tensors beside it, such as the scale of NVFP4, are not
    /// applied.
    ///
    /// # Errors
    /// `Parse` if there is no tensor of this name; `Unsupported` if its dtype has no blocks.
    pub fn dequantize_tensor(&self, info: &GgufTensorInfo) -> Result<Vec<u8>> {
        let tensor = self.tensors().find(|t| t.name == info.name);
        let tensor = tensor
            .ok_or_else(|| AnamnesisError::parse(format!("there is no tensor `{}`", info.name)))?;
        dequantize_gguf_to_bf16(&tensor.data, tensor.dtype, tensor.shape.iter().product())
    }

    /// Summarises the file.
    #[must_use]
    pub fn inspect(&self) -> GgufInspectInfo {
        // The model was read from GGUF, so that there is a summary.
        GgufInspectInfo::of(&self.model).unwrap_or_default()
    }

    /// The wrapped model.
    #[must_use]
    pub fn model(&self) -> &ParsedModel {
        &self.model
    }

    /// Writes the decoded tensors as a safetensors file; see [`ParsedModel::remember`].
    ///
    /// # Errors
    /// The errors of [`ParsedModel::remember`].
    pub fn remember(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<RememberOptions>,
    ) -> Result<Report> {
        self.model.remember(output, options)
    }

    /// Returns the bytes of the safetensors file that [`remember`](Self::remember) writes.
    ///
    /// # Errors
    /// The errors of [`ParsedModel::remember_to_bytes`].
    pub fn remember_to_bytes(&self, options: impl Into<RememberOptions>) -> Result<Vec<u8>> {
        self.model.remember_to_bytes(options)
    }
}
