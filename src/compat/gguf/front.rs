//! A GGUF header, read from any stream without tensor data: for tools that inspect remote files.

use std::collections::HashMap;
use std::fmt;
use std::io::{Read, Seek};

use super::VALUE_BYTES;
use crate::error::{counted, printable};
use crate::limits::Budget;
use crate::model::TensorInfo;
use crate::model::gguf::GgufMetadataValue;
use crate::parse::gguf::read_front;
use crate::report::inspect::{
    DtypeCount, InspectInfo, format_bytes, join_dtypes, write_dequantized,
};
use crate::{AnamnesisError, Dtype, ParseLimits, ParsedModel, Result, TargetDtype};

/// One tensor of a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
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

impl GgufTensorInfo {
    /// What the header says of `t`, with the shape in the file's order.
    pub(super) fn of(t: &TensorInfo) -> Self {
        Self {
            name: t.name.to_string(),
            shape: t.shape.iter().rev().copied().collect(),
            dtype: t.dtype,
            data_offset: t.offset,
            byte_len: (!matches!(t.dtype, Dtype::UnknownGgml(_))).then_some(t.len),
        }
    }
}

/// The header of a GGUF file.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct GgufFrontMatter {
    /// Version of the format, 1 to 3.
    pub version: u32,
    /// Alignment of the tensors' offsets, in bytes.
    pub alignment: u32,
    /// Metadata by key; serialized in the order of the keys.
    #[serde(serialize_with = "crate::compat::serialize::sorted")]
    pub metadata: HashMap<String, GgufMetadataValue>,
    /// Every tensor, in the order of the file.
    pub tensor_infos: Vec<GgufTensorInfo>,
    #[serde(skip)]
    info: GgufInspectInfo,
}

/// Reads a GGUF header from `reader`, sequentially and never past the header's end. Of a split
/// model it is the header of this one file.
///
/// The format does not say how long a header is, so each read is of the bytes that certainly belong
/// to it: of the strings that are left of an array, their lengths. Headers of 6 to 15 MiB with the
/// tokenizers of Llama 3, Qwen 2, Command R and Gemma 4 take 47 to 67 reads, and a client that
/// fetches 64 KiB or more at once sends 19 to 22 requests. Fewer would have to guess, and to fetch
/// tensor data where the guess is wrong. [`parse_safetensors_header_from_reader`] takes two reads.
///
/// [`parse_safetensors_header_from_reader`]: crate::parse_safetensors_header_from_reader
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
/// `Io` with the reader's own error, or if the stream ends before the header; `Parse` if it is
/// malformed; `LimitExceeded` if it is larger than any model needs.
pub fn parse_gguf_front_matter_from_reader<R: Read + Seek>(reader: R) -> Result<GgufFrontMatter> {
    parse_gguf_front_matter_from_reader_with_limits(reader, &ParseLimits::default())
}

/// Reads a GGUF header as [`parse_gguf_front_matter_from_reader`] does, within `limits`.
///
/// # Errors
/// The errors of [`parse_gguf_front_matter_from_reader`]; `LimitExceeded` if the header exceeds
/// `limits`.
pub fn parse_gguf_front_matter_from_reader_with_limits<R: Read + Seek>(
    reader: R,
    limits: &ParseLimits,
) -> Result<GgufFrontMatter> {
    let budget = Budget::new(limits);
    let model = read_front(reader, &budget)?;
    let (Some(gguf), Some(info)) = (model.gguf(), GgufInspectInfo::of(&model)) else {
        return Err(AnamnesisError::parse("not a GGUF file"));
    };
    let size = gguf.metadata().size().saturating_mul(VALUE_BYTES);
    budget.grow(size, "its metadata")?;
    let metadata = gguf.metadata().iter();
    Ok(GgufFrontMatter {
        version: gguf.version,
        alignment: gguf.alignment,
        metadata: metadata
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        tensor_infos: model.tensors.iter().map(GgufTensorInfo::of).collect(),
        info,
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
    /// Summary of the header as it was read.
    #[must_use]
    pub fn inspect(&self) -> GgufInspectInfo {
        self.info.clone()
    }
}

/// Summary of a GGUF file, and of the output of its recovery: a view of [`InspectInfo`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
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
    pub output_dtype: TargetDtype,
    /// Element types after that recovery, the one with the most bytes first; without unknown types.
    pub output_dtypes: Vec<Dtype>,
}

impl GgufInspectInfo {
    /// Summarises a model that was read from GGUF; `None` if it was read from another container.
    #[must_use]
    pub fn of(model: &ParsedModel) -> Option<Self> {
        Self::of_inspected(model, &model.inspect())
    }

    /// Summarises a model as [`of`](Self::of) does. `info` is the model's summary, so that the model is
    /// not inspected a second time.
    #[must_use]
    pub fn of_inspected(model: &ParsedModel, info: &InspectInfo) -> Option<Self> {
        let gguf = model.gguf()?;
        // The bytes of a tensor of unknown type are only a guess, from where the next one begins.
        let is_known = |c: &&DtypeCount| !matches!(c.dtype, Dtype::UnknownGgml(_));
        let bytes = |counts: &[DtypeCount]| {
            let known = counts.iter().filter(is_known).map(|c| c.bytes);
            known.fold(0, u64::saturating_add)
        };
        let known: usize = info.dtypes.iter().filter(is_known).map(|c| c.tensors).sum();
        Some(Self {
            version: gguf.version,
            architecture: gguf.architecture(),
            tensor_count: info.tensor_count,
            total_bytes: bytes(&info.dtypes),
            unknown_size_tensors: info.tensor_count - known,
            dtypes: info.dtypes.iter().map(|c| c.dtype).collect(),
            alignment: gguf.alignment,
            dequantized_size: bytes(&info.output_dtypes),
            output_dtype: info.output_dtype,
            output_dtypes: {
                let known = info.output_dtypes.iter().filter(is_known);
                known.map(|c| c.dtype).collect()
            },
        })
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
            let unknown = counted(self.unknown_size_tensors, "tensor");
            write!(f, " (+{unknown} with dtype of unknown size)")?;
        }
        writeln!(f)?;
        let (total, size) = (self.total_bytes, self.dequantized_size);
        write_dequantized(f, total, size, &self.output_dtypes)?;
        writeln!(f, "Dtypes:      {}", join_dtypes(&self.dtypes))?;
        write!(f, "Alignment:   {} bytes", self.alignment)
    }
}
