//! Containers: one reader each, all into one [`ParsedModel`].

mod detect;
pub(crate) mod directory;
#[cfg(feature = "gguf")]
pub(crate) mod gguf;
#[cfg(feature = "npz")]
mod npy;
#[cfg(feature = "npz")]
pub(crate) mod npz;
#[cfg(feature = "ollama")]
pub(crate) mod ollama;
#[cfg(feature = "pth")]
pub(crate) mod pth;
#[cfg(feature = "npz")]
mod python;
#[cfg(feature = "qnat")]
mod qnat;
pub(crate) mod read_at;
pub(crate) mod safetensors;
#[cfg(any(feature = "npz", feature = "pth"))]
pub(crate) mod zip;

use std::path::Path;
use std::sync::Arc;

use crate::config::QuantConfig;
use crate::limits::Budget;
use crate::source::Source;
use crate::{ParseLimits, ParsedModel, Result};

/// Parses a model file, or a directory of Hugging Face's with all its shards: headers, and the quantization config
/// beside them. No tensor data is read.
///
/// Tensor views map the file: truncating it while they are in use raises SIGBUS. Conversions read
/// positionally and do not; for a file that others may change under you use [`parse_bytes`].
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
/// `Io` if the file cannot be read, `Parse` if it is malformed, `Unsupported` if the container (or the
/// feature for it) is not in this build.
pub fn parse(path: impl AsRef<Path>) -> Result<ParsedModel> {
    parse_with_limits(path, &ParseLimits::default())
}

/// As [`parse`], within `limits`, which also hold for each call that makes something of the model.
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
/// As [`parse`]; `LimitExceeded`.
pub fn parse_with_limits(path: impl AsRef<Path>, limits: &ParseLimits) -> Result<ParsedModel> {
    let (path, budget) = (path.as_ref(), Budget::new(limits));
    if path.is_dir() {
        return directory::read(path, &budget);
    }
    let source = Source::open(path)?;
    let config = QuantConfig::beside(path, &budget)?;
    read(source, config, Some(path), &budget)
}

/// Parses a whole container held in memory.
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
/// As [`parse`], without the I/O.
pub fn parse_bytes(bytes: Vec<u8>) -> Result<ParsedModel> {
    parse_bytes_with_limits(bytes, &ParseLimits::default())
}

/// As [`parse_bytes`], within `limits`.
///
/// # Errors
/// As there; `LimitExceeded`.
pub fn parse_bytes_with_limits(bytes: Vec<u8>, limits: &ParseLimits) -> Result<ParsedModel> {
    read(
        Source::Bytes(Arc::new(bytes)),
        QuantConfig::default(),
        None,
        &Budget::new(limits),
    )
}

fn read(
    source: Source,
    mut config: QuantConfig,
    path: Option<&Path>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let format = detect::detect(&source)?;
    let contents = (format.read)(source, path, budget)?;
    config.add_metadata(&contents.metadata);
    config.check()?;
    Ok(contents.complete(config, path, budget.limits()))
}
