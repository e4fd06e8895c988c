//! [`Derived`]: a tensor whose bytes no file has as they are, and that are made of a file's while they
//! are read. Reading takes constant memory, at any place.

#[cfg(feature = "zarr")]
mod blosc;
#[cfg(any(feature = "hdf5", feature = "zarr"))]
mod chunk_bytes;
#[cfg(any(feature = "hdf5", feature = "zarr"))]
mod chunked;
#[cfg(feature = "pth")]
mod latin1;
#[cfg(feature = "coreml")]
mod masked;
#[cfg(feature = "onnx")]
mod repeated;
#[cfg(any(feature = "onnx", feature = "tflite"))]
mod sparse;
#[cfg(feature = "zarr")]
mod zstd;

#[cfg(any(feature = "hdf5", feature = "zarr"))]
pub(crate) use self::chunked::{ChunkFilter, ChunkPlace, ChunkedTensor, check_runs};
#[cfg(feature = "pth")]
pub(crate) use self::latin1::Latin1Text;
#[cfg(feature = "coreml")]
pub(crate) use self::masked::{MaskedFormat, MaskedValues, SourceAt};
#[cfg(feature = "onnx")]
pub(crate) use self::repeated::{FieldPlace, NumberKind, RepeatedField};
#[cfg(any(feature = "onnx", feature = "tflite"))]
pub(crate) use self::sparse::SparseValues;
#[cfg(feature = "zarr")]
pub(crate) use self::zstd::zstd_decoder;
use super::Source;
use crate::Result;

/// A tensor that is made of what a file has.
#[derive(Debug)]
pub(crate) enum Derived {
    /// The numbers of a repeated field of a message.
    #[cfg(feature = "onnx")]
    Repeated(RepeatedField),
    /// The values of a sparse tensor, with zeros between them.
    #[cfg(any(feature = "onnx", feature = "tflite"))]
    Sparse(SparseValues),
    /// The values of a tensor with a bit for each element, and one value between them.
    #[cfg(feature = "coreml")]
    Masked(Box<MaskedValues>),
    /// Elements in chunks, which may be compressed.
    #[cfg(any(feature = "hdf5", feature = "zarr"))]
    Chunked(Box<ChunkedTensor>),
    /// Bytes that the file has as text.
    #[cfg(feature = "pth")]
    Latin1(Latin1Text),
}

impl Derived {
    /// Bytes of the tensor.
    pub(super) fn len(&self) -> u64 {
        match self {
            #[cfg(feature = "onnx")]
            Self::Repeated(field) => field.len(),
            #[cfg(any(feature = "onnx", feature = "tflite"))]
            Self::Sparse(values) => values.len(),
            #[cfg(feature = "coreml")]
            Self::Masked(values) => values.len(),
            #[cfg(any(feature = "hdf5", feature = "zarr"))]
            Self::Chunked(tensor) => tensor.len(),
            #[cfg(feature = "pth")]
            Self::Latin1(text) => text.len(),
        }
    }

    /// The source that the bytes are made of.
    pub(super) fn base(&self) -> &Source {
        match self {
            #[cfg(feature = "onnx")]
            Self::Repeated(field) => field.base(),
            #[cfg(any(feature = "onnx", feature = "tflite"))]
            Self::Sparse(values) => values.base(),
            #[cfg(feature = "coreml")]
            Self::Masked(values) => values.base(),
            #[cfg(any(feature = "hdf5", feature = "zarr"))]
            Self::Chunked(tensor) => tensor.base(),
            #[cfg(feature = "pth")]
            Self::Latin1(text) => text.base(),
        }
    }

    /// Fills `out` with the tensor's bytes from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            #[cfg(feature = "onnx")]
            Self::Repeated(field) => field.read_at(offset, out),
            #[cfg(any(feature = "onnx", feature = "tflite"))]
            Self::Sparse(values) => values.read_at(offset, out),
            #[cfg(feature = "coreml")]
            Self::Masked(values) => values.read_at(offset, out),
            #[cfg(any(feature = "hdf5", feature = "zarr"))]
            Self::Chunked(tensor) => tensor.read_at(offset, out),
            #[cfg(feature = "pth")]
            Self::Latin1(text) => text.read_at(offset, out),
        }
    }
}
