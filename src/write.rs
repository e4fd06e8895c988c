//! Writers: each container lays out its header and the offsets of all tensors before the first
//! value is known. Workers then write the tensors' data positionally, in any order.

pub(crate) mod atomic;
#[cfg(feature = "burnpack")]
pub(crate) mod burnpack;
#[cfg(feature = "gguf")]
pub(crate) mod gguf;
#[cfg(feature = "msgpack")]
pub(crate) mod msgpack;
#[cfg(feature = "npz")]
pub(crate) mod npy;
#[cfg(feature = "npz")]
pub(crate) mod npz;
#[cfg(feature = "pth")]
pub(crate) mod pth;
#[cfg(feature = "lethe")]
pub(crate) mod qnat;
pub(crate) mod safetensors;
mod target;
pub(crate) mod temporary;
pub(crate) mod written_file;
#[cfg(any(feature = "npz", feature = "pth"))]
mod zip;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

pub use self::target::ConvertTarget;
use self::written_file::WrittenFile;
use crate::error::InTensor;
use crate::{AnamnesisError, Dtype, Result};

/// One tensor of an output file.
#[derive(Debug)]
pub(crate) struct OutputEntry<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// Length of the data in bytes.
    pub len: u64,
}

/// The layout of an output file: all of its bytes but the tensors' data, and the offsets of that.
#[derive(Debug)]
pub(crate) struct OutputLayout {
    pub framing: Framing,
    /// Offset in the file of each entry's data, in the order of the entries.
    pub offsets: Vec<u64>,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// Where each entry's checksum goes; empty if the container has none.
    pub patches: Vec<ChecksumPatch>,
}

/// The bytes of a file besides its tensors' data.
#[derive(Debug)]
pub(crate) enum Framing {
    /// Pieces with their offsets in the file.
    Pieces(Vec<(u64, Vec<u8>)>),
    /// A safetensors header with this metadata. It is made when its file is: the headers of a
    /// thousand shards take as much memory as the names of all tensors.
    Safetensors(Arc<HashMap<String, String>>),
}

/// Pieces of a file with their offsets in it.
pub(crate) type FilePieces<'a> = Cow<'a, [(u64, Vec<u8>)]>;

impl Framing {
    /// The pieces with their offsets in the file. `entries` gives what was laid out, and is called
    /// only if that is needed.
    ///
    /// # Errors
    /// None that laying out has not met before.
    pub(crate) fn pieces<'a>(
        &self,
        entries: impl FnOnce() -> Vec<OutputEntry<'a>>,
    ) -> Result<FilePieces<'_>> {
        match self {
            Self::Pieces(pieces) => Ok(Cow::Borrowed(pieces)),
            Self::Safetensors(metadata) => {
                let header = safetensors::header(&entries(), metadata)?;
                Ok(Cow::Owned(vec![(0, header)]))
            }
        }
    }
}

/// The error that no reader of `container` would find the tensor `name` under its name.
pub(crate) fn unusable_name(container: &str, name: &str, why: &str) -> AnamnesisError {
    let way_out = "--rename gives it another name, and --drop leaves it out";
    let what = format!("{}: {why}; {way_out}", InTensor(&name));
    AnamnesisError::unsupported(format!("writing {container}"), what)
}

/// The error that the program of `container` has no type for the elements of a tensor.
#[cfg(any(feature = "burnpack", feature = "msgpack", feature = "npz", feature = "pth"))]
fn no_such_type(container: &str, program: &str, e: &OutputEntry<'_>) -> AnamnesisError {
    let is_cast = e.dtype.is_floating_point() || e.dtype.is_quantized();
    let way_out = match is_cast {
        true => "--out-dtype f32 --cast writes one that it has",
        false => "--to safetensors may hold it, and --drop leaves it out",
    };
    let what = format!("{}: {program} has no type {}; {way_out}", InTensor(&e.name), e.dtype);
    AnamnesisError::unsupported(format!("writing {container}"), what)
}

/// A CRC-32 that is entered when all data of its tensor has been written. In the pieces it is zero.
#[derive(Debug, Clone)]
pub(crate) struct ChecksumPatch {
    /// The two offsets in the file that the checksum is written at.
    pub places: [u64; 2],
    /// Length and CRC-32 of the bytes that the checksum covers before the data.
    pub before: (u64, u32),
}

impl OutputLayout {
    /// The layout of a file that consists of a header and the data, without checksums.
    #[cfg_attr(not(feature = "gguf"), allow(dead_code))]
    pub(crate) fn of_header(header: Vec<u8>, offsets: Vec<u64>, file_len: u64) -> Self {
        Self { framing: Framing::Pieces(vec![(0, header)]), offsets, file_len, patches: Vec::new() }
    }
}

/// The files of an output. Threads write to it concurrently, in any order, and never the same
/// bytes.
pub(crate) trait Sink: Sync {
    /// Writes all of `bytes` at `offset` of file number `file`.
    fn write_at(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()>;

    /// File number `file`, if what is written to it goes there and nowhere else.
    fn written_file(&self, _file: usize) -> Option<&WrittenFile> {
        None
    }
}
