//! Summaries of NPZ archives, read from any stream that can seek, without the arrays' data: for
//! tools that inspect remote files.

use std::fmt;
use std::io::{Read, Seek};
use std::path::Path;

use crate::limits::Budget;
use crate::parse::npz::read_front;
use crate::parse::read_at::ReadAt;
use crate::report::inspect::{format_bytes, join_dtypes, write_dequantized};
use crate::source::{Seeking, Source};
use crate::{Dtype, ParseLimits, Result, TargetDtype};

/// One array of an NPZ archive.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct NpzTensorInfo {
    /// Name, without `.npy`.
    pub name: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: Dtype,
    /// Bytes of the data.
    pub byte_len: usize,
}

/// Summary of an NPZ archive: its arrays, and a view of [`InspectInfo`](crate::InspectInfo).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct NpzInspectInfo {
    /// Arrays that tensors can hold, in the order of the archive.
    pub tensors: Vec<NpzTensorInfo>,
    /// Names of the other arrays, each with what its elements are.
    pub skipped: Vec<(String, String)>,
    /// Bytes of the data of `tensors`.
    pub total_bytes: u64,
    /// Element types, each once, sorted.
    pub dtypes: Vec<Dtype>,
    /// Bytes of the data after a recovery to `output_dtype`: equal to `total_bytes` unless arrays
    /// are quantized weights.
    pub dequantized_size: u64,
    /// Element type that quantized weights would be decoded to.
    pub output_dtype: TargetDtype,
    /// Element types after that recovery, the one with the most bytes first.
    pub output_dtypes: Vec<Dtype>,
}

/// Summarises an NPZ archive by its headers.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let info = anamnesis::inspect_npz("tests/data/demo/arrays.npz")?;
/// println!("{} arrays, {} bytes", info.tensors.len(), info.total_bytes);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` if the file cannot be read; `Parse` if the archive is malformed; `Unsupported` if it is no
/// NPZ archive; `LimitExceeded`.
pub fn inspect_npz(path: impl AsRef<Path>) -> Result<NpzInspectInfo> {
    inspect_npz_with_limits(path, &ParseLimits::default())
}

/// Summarises an NPZ archive as [`inspect_npz`] does, within `limits`.
///
/// # Errors
/// The errors of [`inspect_npz`]; `LimitExceeded` if the archive exceeds `limits`.
pub fn inspect_npz_with_limits(
    path: impl AsRef<Path>,
    limits: &ParseLimits,
) -> Result<NpzInspectInfo> {
    inspect(&mut &Source::open(path.as_ref())?, limits)
}

/// Summarises an NPZ archive from a stream: its directory, and the header of each array.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let file = std::fs::File::open("tests/data/demo/arrays.npz")?;
/// for array in anamnesis::inspect_npz_from_reader(file)?.tensors {
///     println!("{} {} {:?}", array.name, array.dtype, array.shape);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` with the reader's own error; otherwise those of [`inspect_npz`].
pub fn inspect_npz_from_reader<R: Read + Seek>(reader: R) -> Result<NpzInspectInfo> {
    inspect_npz_from_reader_with_limits(reader, &ParseLimits::default())
}

/// Summarises an NPZ archive from a stream as [`inspect_npz_from_reader`] does, within `limits`.
///
/// # Errors
/// The errors of [`inspect_npz_from_reader`]; `LimitExceeded` if the archive exceeds `limits`.
pub fn inspect_npz_from_reader_with_limits<R: Read + Seek>(
    reader: R,
    limits: &ParseLimits,
) -> Result<NpzInspectInfo> {
    inspect(&mut Seeking::new(reader)?, limits)
}

fn inspect(file: &mut dyn ReadAt, limits: &ParseLimits) -> Result<NpzInspectInfo> {
    let contents = read_front(file, &Budget::new(limits))?;
    let info = contents.inspect();
    let array = |t: crate::model::TensorInfo| NpzTensorInfo {
        name: t.name.into(),
        shape: t.shape.into(),
        dtype: t.dtype,
        byte_len: t.len as usize,
    };
    let skipped = contents.skipped.into_iter();
    Ok(NpzInspectInfo {
        tensors: contents.tensors.into_iter().map(array).collect(),
        skipped: skipped.map(|s| (s.name, s.what)).collect(),
        total_bytes: info.current_size,
        dtypes: info.dtypes.iter().map(|c| c.dtype).collect(),
        dequantized_size: info.dequantized_size,
        output_dtype: info.output_dtype,
        output_dtypes: info.output_dtypes.iter().map(|c| c.dtype).collect(),
    })
}

impl fmt::Display for NpzInspectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Format:      NPZ archive")?;
        writeln!(f, "Tensors:     {}", self.tensors.len())?;
        writeln!(f, "Total size:  {}", format_bytes(self.total_bytes))?;
        let (total, size) = (self.total_bytes, self.dequantized_size);
        write_dequantized(f, total, size, &self.output_dtypes)?;
        write!(f, "Dtypes:      {}", join_dtypes(&self.dtypes))?;
        match self.skipped.len() {
            0 => Ok(()),
            n => write!(f, "\nNot read:    {n} arrays that no tensor can hold"),
        }
    }
}
