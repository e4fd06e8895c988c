//! Reading containers, a module for each, all into one [`ParsedModel`]. Readers know names, shapes and
//! places of tensors, and nothing of quantization schemes. The public modules also have functions and
//! types of their container alone.

#[cfg(feature = "burnpack")]
mod burnpack;
#[cfg(feature = "coreml")]
mod coreml;
mod detect;
pub(crate) mod directory;
#[cfg(feature = "executorch")]
mod executorch;
#[cfg(any(feature = "mlc", feature = "onnx"))]
mod external;
#[cfg(any(feature = "executorch", feature = "tflite"))]
mod flatbuffer;
#[cfg(feature = "gguf")]
mod ggml;
#[cfg(feature = "gguf")]
pub mod gguf;
#[cfg(feature = "hdf5")]
mod hdf5;
pub(crate) mod hub;
mod listing;
#[cfg(all(feature = "gguf", any(feature = "npz", feature = "pth")))]
mod llamafile;
mod magic;
#[cfg(feature = "onnx")]
mod message;
#[cfg(feature = "mindspore")]
mod mindspore;
#[cfg(feature = "mlc")]
mod mlc;
#[cfg(feature = "gguf")]
mod mmproj;
#[cfg(feature = "msgpack")]
mod msgpack;
#[cfg(feature = "npz")]
mod npy;
#[cfg(feature = "npz")]
pub mod npz;
#[cfg(feature = "ollama")]
pub mod ollama;
#[cfg(feature = "onnx")]
mod onnx;
#[cfg(feature = "openvino")]
mod openvino;
mod other_files;
#[cfg(feature = "paddle")]
mod paddle;
#[cfg(feature = "pth")]
pub mod pth;
#[cfg(feature = "npz")]
mod python;
mod qnat;
pub(crate) mod read_at;
pub mod safetensors;
#[cfg(feature = "tensorflow")]
mod tensorflow;
#[cfg(feature = "tflite")]
mod tflite;
#[cfg(any(
    feature = "burnpack",
    feature = "executorch",
    feature = "gguf",
    feature = "hdf5",
    feature = "msgpack",
    feature = "onnx",
    feature = "tflite"
))]
mod window;
#[cfg(feature = "openvino")]
mod xml;
#[cfg(feature = "zarr")]
mod zarr;
#[cfg(any(feature = "npz", feature = "pth"))]
pub(crate) mod zip;

use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;

pub(crate) use self::detect::format_of;
#[cfg(feature = "pth")]
pub(crate) use self::detect::read_head_of;
pub use self::detect::{detect_format, detect_format_from_reader};
#[cfg(feature = "npz")]
pub use self::npz::*;
#[cfg(feature = "ollama")]
pub use self::ollama::*;
#[cfg(feature = "pth")]
pub use self::pth::*;
pub use self::safetensors::*;
#[cfg(feature = "gguf")]
pub use self::{gguf::*, gguf_write::*};
use crate::config::QuantConfig;
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Container, ParseLimits, ParsedModel, Result};

#[cfg(feature = "gguf")]
pub mod gguf_write {
    //! Writing GGUF files of plain tensors.

    pub use crate::compat::gguf::{GgufWriteTensor, write_gguf, write_gguf_to_writer};
}

/// Parses a model file, or a Hugging Face model directory with all its shards: their headers, and
/// the quantization config beside them. No tensor data is read.
///
/// [`Tensor::bytes`](crate::Tensor::bytes) maps the file: if another process truncates it
/// meanwhile, the access raises SIGBUS. Conversions read positionally and report an I/O error
/// instead. For a file that others may change, use [`parse_bytes`].
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
/// for tensor in model.tensors() {
///     println!("{} {:?}", tensor.name(), tensor.shape());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` if the file cannot be read; `Parse` if it is malformed; `Unsupported` if this build cannot
/// read the container; `LimitExceeded` if it exceeds a permanent cap; `DisallowedGlobal` if a
/// pickle names a global that is not allowed.
pub fn parse(path: impl AsRef<Path>) -> Result<ParsedModel> {
    parse_with_limits(path, &ParseLimits::default())
}

/// Parses a model file or directory as [`parse`] does, within `limits`. They also hold for each
/// later call that materialises tensors of the model.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let limits = anamnesis::ParseLimits::default().with_max_total_bytes(1 << 20);
/// let model = anamnesis::parse_with_limits("tests/data/demo/model-fp8.safetensors", &limits)?;
/// assert!(model.inspect().dequantized_size <= 1 << 20);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`parse`]; `LimitExceeded` if the model exceeds `limits`.
pub fn parse_with_limits(path: impl AsRef<Path>, limits: &ParseLimits) -> Result<ParsedModel> {
    let (path, budget) = (path.as_ref(), Budget::new(limits));
    if path.is_dir() {
        return directory::read(path, &budget);
    }
    read_path(path, None, &budget)
}

/// Parses a file of the format `expected` alone.
#[cfg(any(feature = "npz", feature = "pth"))]
pub(crate) fn parse_only(
    path: &Path,
    expected: Container,
    limits: &ParseLimits,
) -> Result<ParsedModel> {
    read_path(path, Some(expected), &Budget::new(limits))
}

fn read_path(path: &Path, expected: Option<Container>, budget: &Budget) -> Result<ParsedModel> {
    // Such a file holds pieces of tensors without names; which they are is in `.metadata` of its
    // directory.
    if path.extension().is_some_and(|ending| ending == "distcp") {
        let what = "a file of a distributed checkpoint";
        return Err(AnamnesisError::unsupported(what, "give the directory that it is in"));
    }
    let source = Source::open(path)?;
    let config = QuantConfig::read_beside(path, budget)?;
    let model = read(source, config, Some(path), expected, budget);
    model.map_err(|error| other_files::of_part(error, path))
}

/// Parses a container in memory. Nothing beside it, such as `config.json`, is read.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let model = anamnesis::parse_bytes(std::fs::read("tests/data/demo/model-fp8.safetensors")?)?;
/// assert!(model.path().is_none());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`parse`], without `Io`.
pub fn parse_bytes(bytes: Vec<u8>) -> Result<ParsedModel> {
    parse_bytes_with_limits(bytes, &ParseLimits::default())
}

/// Parses a container in memory as [`parse_bytes`] does, within `limits`.
///
/// # Errors
/// Those of [`parse_bytes`]; `LimitExceeded` if the model exceeds `limits`.
pub fn parse_bytes_with_limits(bytes: Vec<u8>, limits: &ParseLimits) -> Result<ParsedModel> {
    read_alone(Source::Bytes(Arc::new(bytes)), None, limits)
}

/// Parses a container in memory of the format `expected` alone.
#[cfg(any(feature = "npz", feature = "pth"))]
pub(crate) fn parse_bytes_only(
    bytes: Vec<u8>,
    expected: Container,
    limits: &ParseLimits,
) -> Result<ParsedModel> {
    read_alone(Source::Bytes(Arc::new(bytes)), Some(expected), limits)
}

/// Parses a container in a stream that can seek, such as a remote file: its header now, and tensor
/// data on demand, in the pieces that are asked for. Nothing beside it, such as `config.json`, is
/// read; of a split GGUF model only this file is.
///
/// The model keeps the stream. Threads take turns in reading it, and views copy.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let file = std::fs::File::open("tests/data/demo/model-fp8.safetensors")?;
/// let model = anamnesis::parse_from_reader(file)?;
/// assert!(!model.remember_to_bytes(anamnesis::TargetDtype::BF16)?.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`parse_bytes`]; `Io` with the reader's own error.
pub fn parse_from_reader<R: Read + Seek + Send + 'static>(reader: R) -> Result<ParsedModel> {
    parse_from_reader_with_limits(reader, &ParseLimits::default())
}

/// Parses a container in a stream as [`parse_from_reader`] does, within `limits`.
///
/// # Errors
/// Those of [`parse_from_reader`]; `LimitExceeded` if the model exceeds `limits`.
pub fn parse_from_reader_with_limits<R: Read + Seek + Send + 'static>(
    reader: R,
    limits: &ParseLimits,
) -> Result<ParsedModel> {
    read_alone(Source::from_stream(Box::new(reader))?, None, limits)
}

fn read_alone(
    source: Source,
    expected: Option<Container>,
    limits: &ParseLimits,
) -> Result<ParsedModel> {
    let config = QuantConfig::default();
    read(source, config, None, expected, &Budget::new(limits))
}

/// Detects the container of `source`, reads its header, and completes `config` with the container's
/// metadata.
fn read(
    source: Source,
    mut config: QuantConfig,
    path: Option<&Path>,
    expected: Option<Container>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let format = detect::detect(&mut &source)?;
    let mut contents = match expected {
        Some(expected) => format.read_only(expected, source, path, budget)?,
        None => format.read(source, path, budget)?,
    };
    if let Some(path) = path.filter(|_| expected.is_none()) {
        directory::read_other_files(&mut contents, path, budget)?;
    }
    config.add_metadata(&contents.metadata)?;
    config.check()?;
    Ok(contents.complete(config, path, budget.limits()))
}
