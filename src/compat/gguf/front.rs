//! A GGUF header, read from any stream without tensor data: for tools that inspect remote files.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::{Read, Seek};

use super::VALUE_BYTES;
use crate::containers::model::gguf::GgufMetadataValue;
use crate::containers::parse::gguf::header::{self, GgufHeader, GgufTensorEntry};
use crate::error::printable;
use crate::inspect::{format_bytes, join_dtypes};
use crate::limits::Budget;
use crate::{Dtype, ParseLimits, ParsedModel, Result, TargetDtype};

/// One tensor of a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GgufTensorInfo {
    /// Name, as stored.
    pub name: String,
    /// Shape in the file's order: the innermost dimension first.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: Dtype,
    /// Offset of the data from the beginning of the file, in bytes.
    pub data_offset: u64,
    /// Length of the data in bytes; `None` if the type is unknown.
    pub byte_len: Option<u64>,
}

/// The header of a GGUF file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GgufFrontMatter {
    /// Version of the format, 1 to 3.
    pub version: u32,
    /// Alignment of the tensors' offsets, in bytes.
    pub alignment: u32,
    /// Metadata by key.
    pub metadata: HashMap<String, GgufMetadataValue>,
    /// Every tensor, in the order of the file.
    pub tensor_infos: Vec<GgufTensorInfo>,
}

/// Reads a GGUF header from `reader`, sequentially and never past the header's end. Of a split model it is the header of
/// this one file.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let mut file = std::fs::File::open("tests/data/demo/model-q4_k.gguf")?;
/// let header = anamnesis::parse_gguf_front_matter_from_reader(&mut file)?;
/// println!("version {}, {} tensors", header.version, header.tensor_infos.len());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` with the reader's own error, or if the stream ends before the header; `Parse` if it is malformed;
/// `LimitExceeded` if it is larger than any model needs.
pub fn parse_gguf_front_matter_from_reader<R: Read + Seek>(reader: R) -> Result<GgufFrontMatter> {
    parse_gguf_front_matter_from_reader_with_limits(reader, &ParseLimits::default())
}

/// Reads a GGUF header as [`parse_gguf_front_matter_from_reader`] does, within `limits`.
///
/// # Errors
/// The errors of [`parse_gguf_front_matter_from_reader`]; `LimitExceeded` if the header exceeds `limits`.
pub fn parse_gguf_front_matter_from_reader_with_limits<R: Read + Seek>(
    reader: R,
    limits: &ParseLimits,
) -> Result<GgufFrontMatter> {
    let budget = Budget::new(limits);
    let GgufHeader {
        version,
        alignment,
        metadata,
        tensors,
        ..
    } = header::read(reader, None, &budget)?;
    budget.grow(metadata.size().saturating_mul(VALUE_BYTES), "its metadata")?;
    let info = |GgufTensorEntry {
                    name,
                    dtype,
                    mut shape,
                    offset,
                    len,
                }: GgufTensorEntry| {
        shape.reverse();
        GgufTensorInfo {
            name,
            shape,
            dtype,
            data_offset: offset,
            byte_len: len,
        }
    };
    Ok(GgufFrontMatter {
        version,
        alignment,
        metadata: metadata
            .iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        tensor_infos: tensors.into_iter().map(info).collect(),
    })
}

/// Summarises a GGUF file by its header; see [`parse_gguf_front_matter_from_reader`].
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// println!("{}", anamnesis::inspect_gguf_from_reader(std::fs::File::open("tests/data/demo/model-q4_k.gguf")?)?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`parse_gguf_front_matter_from_reader`].
pub fn inspect_gguf_from_reader<R: Read + Seek>(reader: R) -> Result<GgufInspectInfo> {
    inspect_gguf_from_reader_with_limits(reader, &ParseLimits::default())
}

/// Summarises a GGUF file as [`inspect_gguf_from_reader`] does, within `limits`.
///
/// # Errors
/// The errors of [`inspect_gguf_from_reader`]; `LimitExceeded` if the header exceeds `limits`.
pub fn inspect_gguf_from_reader_with_limits<R: Read + Seek>(
    reader: R,
    limits: &ParseLimits,
) -> Result<GgufInspectInfo> {
    Ok(parse_gguf_front_matter_from_reader_with_limits(reader, limits)?.inspect())
}

impl GgufFrontMatter {
    /// Summarises the header.
    #[must_use]
    pub fn inspect(&self) -> GgufInspectInfo {
        let tensors = self
            .tensor_infos
            .iter()
            .map(|t| (t.dtype, t.shape.iter().product(), t.byte_len));
        let architecture = self
            .metadata
            .get("general.architecture")
            .and_then(|v| v.as_string())
            .map(str::to_owned);
        GgufInspectInfo::new(self.version, self.alignment, architecture, tensors)
    }
}

/// Summary of a GGUF file, and of the output of its recovery.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct GgufInspectInfo {
    /// Version of the format, 1 to 3.
    pub version: u32,
    /// Value of `general.architecture`, such as `llama`.
    pub architecture: Option<String>,
    /// Number of tensors.
    pub tensor_count: usize,
    /// Bytes of all tensors whose size is known.
    pub total_bytes: u64,
    /// Number of tensors whose type, and so whose size, is unknown.
    pub unknown_size_tensors: usize,
    /// Element types, each once, sorted.
    pub dtypes: Vec<Dtype>,
    /// Alignment of the tensors' offsets, in bytes.
    pub alignment: u32,
    /// Bytes of all tensors after a recovery to `output_dtype`.
    pub dequantized_size: u64,
    /// Element type that blocks are decoded to.
    #[serde(skip)]
    pub output_dtype: TargetDtype,
}

impl GgufInspectInfo {
    pub(super) fn new(
        version: u32,
        alignment: u32,
        architecture: Option<String>,
        tensors: impl Iterator<Item = (Dtype, usize, Option<u64>)>,
    ) -> Self {
        let output_dtype = TargetDtype::BF16;
        let (mut dtypes, mut tensor_count, mut unknown_size_tensors) = (BTreeSet::new(), 0, 0);
        let (mut total_bytes, mut dequantized_size) = (0u64, 0u64);
        for (dtype, elements, len) in tensors {
            dtypes.insert(dtype);
            tensor_count += 1;
            unknown_size_tensors += usize::from(len.is_none());
            let (now, decoded) = (
                len.unwrap_or(0),
                (elements as u64).saturating_mul(output_dtype.byte_size() as u64),
            );
            total_bytes = total_bytes.saturating_add(now);
            dequantized_size =
                dequantized_size.saturating_add(if dtype.is_ggml_block() { decoded } else { now });
        }
        let dtypes = dtypes.into_iter().collect();
        Self {
            version,
            architecture,
            tensor_count,
            total_bytes,
            unknown_size_tensors,
            dtypes,
            alignment,
            dequantized_size,
            output_dtype,
        }
    }

    /// Summarises a model that was read from GGUF; `None` if it was read from another container.
    #[must_use]
    pub fn of(model: &ParsedModel) -> Option<Self> {
        let gguf = model.gguf()?;
        let len = |d: Dtype, len: u64| (!matches!(d, Dtype::UnknownGgml(_))).then_some(len);
        let tensors = model
            .tensors()
            .map(|t| (t.dtype(), t.elements(), len(t.dtype(), t.info().len)));
        Some(Self::new(
            gguf.version,
            gguf.alignment,
            gguf.architecture(),
            tensors,
        ))
    }
}

impl fmt::Display for GgufInspectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Format:      GGUF v{}", self.version)?;
        if let Some(architecture) = &self.architecture {
            writeln!(f, "Arch:        {}", printable(architecture))?;
        }
        writeln!(f, "Tensors:     {}", self.tensor_count)?;
        write!(f, "Total size:  {}", format_bytes(self.total_bytes))?;
        if self.unknown_size_tensors > 0 {
            write!(
                f,
                " (+{} tensors with dtype of unknown size)",
                self.unknown_size_tensors
            )?;
        }
        writeln!(f)?;
        if self.dequantized_size != self.total_bytes {
            writeln!(
                f,
                "Dequantized: {} ({})",
                format_bytes(self.dequantized_size),
                self.output_dtype
            )?;
        }
        writeln!(f, "Dtypes:      {}", join_dtypes(&self.dtypes))?;
        write!(f, "Alignment:   {} bytes", self.alignment)
    }
}
