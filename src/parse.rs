//! Containers: one reader each, all into one [`ParsedModel`].

mod detect;
pub(crate) mod directory;
#[cfg(feature = "gguf")]
pub mod gguf;
mod header;
#[cfg(feature = "npz")]
mod npy;
#[cfg(feature = "npz")]
mod npz;
#[cfg(feature = "ollama")]
pub(crate) mod ollama;
#[cfg(feature = "pth")]
mod pth;
#[cfg(feature = "npz")]
mod python;
#[cfg(feature = "qnat")]
mod qnat;
#[cfg(any(feature = "npz", feature = "pth", feature = "qnat"))]
mod read_at;
mod safetensors;
#[cfg(any(feature = "npz", feature = "pth"))]
mod zip;

use std::path::Path;
use std::sync::Arc;

pub use self::header::{SafetensorsHeader, TensorEntry, parse_safetensors_header_from_reader};
#[cfg(feature = "npz")]
pub use self::npz::{
    NpzDtype, NpzInspectInfo, NpzTensor, NpzTensorInfo, inspect_npz, inspect_npz_from_reader, npz_to_safetensors,
    npz_to_safetensors_bytes, parse_npz, parse_npz_bytes,
};
#[cfg(feature = "pth")]
pub use self::pth::{
    ParsedPth, PickleGlobal, PthDtype, PthFrontMatter, PthTensor, PthTensorInfo, parse_pth, parse_pth_bytes,
    parse_pth_front_matter_from_reader, pickle_globals, pth_to_safetensors, pth_to_safetensors_bytes,
};
use crate::config::QuantConfig;
use crate::source::Source;
use crate::{ParsedModel, Result};

/// Parses a model file, or a directory of Hugging Face's with all its shards: headers, and the quantization config
/// beside them. No tensor data is read.
///
/// Tensor views map the file: truncating it while they are in use raises SIGBUS. Conversions read
/// positionally and do not; for a file that others may change under you use [`parse_bytes`].
///
/// # Errors
/// `Io` if the file cannot be read, `Parse` if it is malformed, `Unsupported` if the container (or the
/// feature for it) is not in this build.
pub fn parse(path: impl AsRef<Path>) -> Result<ParsedModel> {
    let path = path.as_ref();
    if path.is_dir() {
        return directory::read(path);
    }
    let source = Source::open(path)?;
    let config = QuantConfig::beside(path)?;
    read(source, config, Some(path))
}

/// Parses a whole container held in memory.
///
/// # Errors
/// As [`parse`], without the I/O.
pub fn parse_bytes(bytes: Vec<u8>) -> Result<ParsedModel> {
    read(Source::Bytes(Arc::new(bytes)), QuantConfig::default(), None)
}

fn read(source: Source, mut config: QuantConfig, path: Option<&Path>) -> Result<ParsedModel> {
    let format = detect::detect(&source)?;
    let contents = (format.read)(source, path)?;
    config.add_metadata(&contents.metadata);
    config.check()?;
    Ok(contents.into_model(config, path))
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

    fn into_model(self, config: QuantConfig, path: Option<&Path>) -> ParsedModel {
        ParsedModel {
            sources: self.sources,
            path: path.map(Path::to_path_buf),
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
