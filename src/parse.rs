//! Containers: one reader each, all into one [`ParsedModel`].

mod detect;
pub(crate) mod directory;
#[cfg(feature = "gguf")]
pub mod gguf;
#[cfg(feature = "npz")]
mod npy;
#[cfg(feature = "npz")]
pub mod npz;
#[cfg(feature = "ollama")]
pub(crate) mod ollama;
#[cfg(feature = "pth")]
pub mod pth;
#[cfg(feature = "npz")]
mod python;
#[cfg(feature = "qnat")]
mod qnat;
mod read_at;
pub mod safetensors;
#[cfg(any(feature = "npz", feature = "pth"))]
mod zip;

use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "gguf")]
pub use self::gguf::{
    Gguf, GgufFrontMatter, GgufInspectInfo, GgufMetadata, GgufMetadataArray, GgufMetadataValue,
    GgufTensor, GgufTensorInfo, ParsedGguf, inspect_gguf_from_reader, parse_gguf,
    parse_gguf_front_matter_from_reader, parse_gguf_kv_arg, parse_gguf_metadata_json,
    parse_gguf_with_limits,
};
#[cfg(feature = "npz")]
pub use self::npz::{
    NpzDtype, NpzInspectInfo, NpzTensor, NpzTensorInfo, inspect_npz, inspect_npz_from_reader,
    npz_to_safetensors, npz_to_safetensors_bytes, parse_npz, parse_npz_bytes,
    parse_npz_with_limits,
};
#[cfg(feature = "ollama")]
pub use self::ollama::resolve_ollama_model;
#[cfg(feature = "pth")]
pub use self::pth::{
    ParsedPth, PickleGlobal, PthDtype, PthFrontMatter, PthInspectInfo, PthTensor, PthTensorInfo,
    inspect_pth_from_reader, parse_pth, parse_pth_bytes, parse_pth_front_matter_from_reader,
    parse_pth_with_limits, pickle_globals, pth_to_safetensors, pth_to_safetensors_bytes,
};
pub use self::safetensors::{
    AwqCompanions, AwqConfig, Bnb4Companions, BnbConfig, GptqCompanions, GptqConfig,
    SafetensorsHeader, TensorEntry, parse_safetensors_header, parse_safetensors_header_from_reader,
    parse_safetensors_header_from_reader_with_limits, parse_safetensors_header_with_limits,
};
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
    let config = QuantConfig::read_beside(path, &budget)?;
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
    Ok(contents.into_model(config, path, budget.limits()))
}

/// What a container's reader returns.
pub(crate) struct Contents {
    pub sources: Vec<Source>,
    pub tensors: Vec<crate::model::TensorInfo>,
    pub metadata: std::collections::HashMap<String, String>,
    /// What a pickle says beside tensors, by the way there.
    pub facts: std::collections::HashMap<String, String>,
    pub header_size: usize,
    pub skipped: Vec<crate::model::Skipped>,
    /// What the tensors of a QNAT file are, one for each.
    pub qnat: Vec<crate::model::QnatTensor>,
    /// What a user should know.
    pub notes: Vec<String>,
    #[cfg(feature = "gguf")]
    pub gguf: Option<gguf::Gguf>,
}

impl Contents {
    /// Nothing yet, behind a header of `header_size` bytes.
    fn new(header_size: usize) -> Self {
        Self {
            sources: Vec::new(),
            tensors: Vec::new(),
            metadata: std::collections::HashMap::new(),
            facts: std::collections::HashMap::new(),
            header_size,
            skipped: Vec::new(),
            qnat: Vec::new(),
            notes: Vec::new(),
            #[cfg(feature = "gguf")]
            gguf: None,
        }
    }

    fn into_model(
        self,
        config: QuantConfig,
        path: Option<&Path>,
        limits: &ParseLimits,
    ) -> ParsedModel {
        ParsedModel {
            sources: self.sources,
            path: path.map(Path::to_path_buf),
            limits: limits.clone(),
            directory: None,
            tensors: self.tensors,
            metadata: self.metadata,
            facts: self.facts,
            header_size: self.header_size,
            config,
            skipped: self.skipped,
            qnat: self.qnat,
            notes: self.notes,
            #[cfg(feature = "gguf")]
            gguf: self.gguf,
        }
    }
}
