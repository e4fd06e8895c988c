//! The tensors of a PyTorch checkpoint, read from any stream that can seek, without tensor data:
//! for tools that inspect remote files.

use std::fmt;
use std::io::{Read, Seek};

use crate::limits::Budget;
use crate::parse::pth::read_front;
use crate::parse::read_head_of;
use crate::report::inspect::{InspectInfo, format_bytes, join_dtypes, write_dequantized};
use crate::source::Seeking;
use crate::{Container, Dtype, ParseLimits, Result, TargetDtype};

/// One tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PthTensorInfo {
    /// Path in the checkpoint's dicts and lists, joined with dots.
    pub name: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: Dtype,
    /// Bytes of the tensor in row-major order, which can be more than are stored.
    pub byte_len: usize,
}

impl PthTensorInfo {
    pub(super) fn of(t: &crate::model::TensorInfo) -> Self {
        Self {
            name: t.name.to_string(),
            shape: t.shape.to_vec(),
            dtype: t.dtype,
            byte_len: t.len as usize,
        }
    }
}

/// Summary of a checkpoint: a view of [`InspectInfo`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PthInspectInfo {
    /// Number of tensors.
    pub tensor_count: usize,
    /// Bytes of all tensors.
    pub total_bytes: u64,
    /// Element types, each once, sorted.
    pub dtypes: Vec<Dtype>,
    /// Whether numbers are stored with their most significant byte first.
    pub big_endian: bool,
    /// Bytes of all tensors after a recovery to `output_dtype`: equal to `total_bytes` unless some
    /// are quantized weights.
    pub dequantized_size: u64,
    /// Element type that quantized weights would be decoded to.
    pub output_dtype: TargetDtype,
    /// Element types after that recovery, the one with the most bytes first.
    pub output_dtypes: Vec<Dtype>,
}

/// The tensors of a checkpoint, as its pickle describes them.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct PthFrontMatter {
    /// Every tensor, in the order of the checkpoint.
    pub tensors: Vec<PthTensorInfo>,
    /// Whether numbers are stored with their most significant byte first.
    pub big_endian: bool,
    #[serde(skip)]
    info: PthInspectInfo,
}

/// Reads the tensors of a PyTorch checkpoint from a stream. Nothing that the pickle names is
/// called.
///
/// Of an archive (torch 1.6 and later) this is its directory, its pickle and two small records, and
/// no tensor data; a storage may be longer than the pickle says, which
/// [`parse_pth`](crate::parse_pth) refuses. Of a legacy or tar file it is the pickles, which have
/// no length, so that up to 1 MiB behind them is read as well.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let file = std::fs::File::open("tests/data/demo/checkpoint.pth")?;
/// for tensor in anamnesis::parse_pth_front_matter_from_reader(file)?.tensors {
///     println!("{} {} {:?}", tensor.name, tensor.dtype, tensor.shape);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` with the reader's own error; `DisallowedGlobal`; `Parse` if the file or its pickle is
/// malformed; `Unsupported` if it is of another container; `LimitExceeded`.
pub fn parse_pth_front_matter_from_reader<R: Read + Seek>(reader: R) -> Result<PthFrontMatter> {
    parse_pth_front_matter_from_reader_with_limits(reader, &ParseLimits::default())
}

/// Reads the tensors of a PyTorch checkpoint as [`parse_pth_front_matter_from_reader`] does, within
/// `limits`.
///
/// # Errors
/// The errors of [`parse_pth_front_matter_from_reader`]; `LimitExceeded` if the checkpoint exceeds
/// `limits`.
pub fn parse_pth_front_matter_from_reader_with_limits<R: Read + Seek>(
    reader: R,
    limits: &ParseLimits,
) -> Result<PthFrontMatter> {
    let budget = Budget::new(limits);
    let mut file = Seeking::new(reader)?;
    let head = read_head_of(&mut file, Container::Pth)?;
    let (contents, big_endian) = read_front(&mut file, &head, &budget)?;
    let tensors = contents.tensors.iter().map(PthTensorInfo::of).collect();
    let info = PthInspectInfo::new(&contents.inspect(), big_endian);
    Ok(PthFrontMatter { tensors, big_endian, info })
}

/// Summarises a PyTorch checkpoint by its pickle; see [`parse_pth_front_matter_from_reader`].
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let info = anamnesis::inspect_pth_from_reader(std::fs::File::open("tests/data/demo/checkpoint.pth")?)?;
/// println!("{} tensors, {} bytes", info.tensor_count, info.total_bytes);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`parse_pth_front_matter_from_reader`].
pub fn inspect_pth_from_reader<R: Read + Seek>(reader: R) -> Result<PthInspectInfo> {
    inspect_pth_from_reader_with_limits(reader, &ParseLimits::default())
}

/// Summarises a PyTorch checkpoint as [`inspect_pth_from_reader`] does, within `limits`.
///
/// # Errors
/// The errors of [`inspect_pth_from_reader`]; `LimitExceeded` if the checkpoint exceeds `limits`.
pub fn inspect_pth_from_reader_with_limits<R: Read + Seek>(
    reader: R,
    limits: &ParseLimits,
) -> Result<PthInspectInfo> {
    Ok(parse_pth_front_matter_from_reader_with_limits(reader, limits)?.inspect())
}

impl PthFrontMatter {
    /// Summary of the checkpoint as it was read.
    #[must_use]
    pub fn inspect(&self) -> PthInspectInfo {
        self.info.clone()
    }
}

impl PthInspectInfo {
    /// The part of `info` that is about checkpoints. `big_endian` is the byte order that the file
    /// states, which one without tensors has as well.
    pub(super) fn new(info: &InspectInfo, big_endian: bool) -> Self {
        Self {
            tensor_count: info.tensor_count,
            total_bytes: info.current_size,
            dtypes: info.dtypes.iter().map(|c| c.dtype).collect(),
            big_endian,
            dequantized_size: info.dequantized_size,
            output_dtype: info.output_dtype,
            output_dtypes: info.output_dtypes.iter().map(|c| c.dtype).collect(),
        }
    }
}

impl fmt::Display for PthInspectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Format:      PyTorch state_dict (.pth)")?;
        writeln!(f, "Tensors:     {}", self.tensor_count)?;
        writeln!(f, "Total size:  {}", format_bytes(self.total_bytes))?;
        let (total, size) = (self.total_bytes, self.dequantized_size);
        write_dequantized(f, total, size, &self.output_dtypes)?;
        writeln!(f, "Dtypes:      {}", join_dtypes(&self.dtypes))?;
        let order = if self.big_endian { "big" } else { "little" };
        write!(f, "Byte order:  {order}-endian")
    }
}
