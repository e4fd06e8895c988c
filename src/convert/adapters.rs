//! [`Adapter`]: weights that were trained beside a model, and how they are merged into it.

mod merge;
mod peft_config;
mod peft_tensors;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) use self::merge::merge;
use self::peft_config::PeftConfig;
use crate::config::Texts;
use crate::containers::parse::parse_with_limits;
use crate::limits::ParseLimits;
use crate::source::CompanionFile;
use crate::{AnamnesisError, ParsedModel, Result};

/// Name of the settings of an adapter of PEFT, and of its weights.
const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// A LoRA adapter as PEFT saves it: a directory with `adapter_config.json` and `adapter_model.safetensors`.
///
/// It is merged into a model by [`ConvertOptions::with_adapters`](super::ConvertOptions::with_adapters). Clones share what was
/// read.
#[derive(Clone)]
pub struct Adapter {
    files: Arc<AdapterFiles>,
    weight: f64,
}

/// What an adapter's directory holds.
struct AdapterFiles {
    path: PathBuf,
    config: PeftConfig,
    tensors: Arc<ParsedModel>,
    /// The settings and the weights, as they were when they were read.
    companions: Vec<CompanionFile>,
}

impl Adapter {
    /// Reads the settings of the adapter in the directory `path`, and the header of its weights.
    ///
    /// # Errors
    /// - `Io`: one of the two files is missing, or cannot be read.
    /// - `Unsupported`: the adapter is no LoRA, or its settings have something that is not merged here.
    /// - `Parse`: a file is malformed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with_limits(path, &ParseLimits::default())
    }

    /// As [`open`](Self::open), within `limits`.
    ///
    /// # Errors
    /// As [`open`](Self::open); `LimitExceeded` if a file claims more than `limits` allow.
    pub fn open_with_limits(path: impl AsRef<Path>, limits: &ParseLimits) -> Result<Self> {
        let path = path.as_ref();
        let directory = match path.is_file() {
            true => path.parent().unwrap_or(path),
            false => path,
        };
        // The states are taken before the files are read.
        let companions = [CONFIG, WEIGHTS].map(|name| CompanionFile::new(directory.join(name)));
        for companion in &companions {
            if !companion.exists() {
                return Err(missing(directory, &companion.path));
            }
        }
        let config = Texts::new(directory, limits).json(CONFIG)?;
        let config = config.unwrap_or_default();
        let config = PeftConfig::new(&config).map_err(|e| e.about(companions[0].path.display()))?;
        Ok(Self {
            files: Arc::new(AdapterFiles {
                path: directory.to_path_buf(),
                config,
                tensors: Arc::new(parse_with_limits(&companions[1].path, limits)?),
                companions: companions.into(),
            }),
            weight: 1.0,
        })
    }

    /// Sets the factor by which what the adapter adds is multiplied; 1 by default.
    #[must_use]
    pub fn with_weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// The factor by which what the adapter adds is multiplied.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// The adapter's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.files.path
    }

    /// The files of the adapter.
    pub(super) fn companions(&self) -> &[CompanionFile] {
        &self.files.companions
    }

    /// The weight and the states of the files as text, to compare two runs.
    pub(super) fn fingerprint(&self) -> String {
        format!("{:?} {:?}", self.weight, self.files.companions)
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter")
            .field("path", &self.files.path)
            .field("weight", &self.weight)
            .finish_non_exhaustive()
    }
}

/// The error that an adapter's directory has no file `path`, with what may be there instead.
fn missing(directory: &Path, path: &Path) -> AnamnesisError {
    let is_pickle = directory.join("adapter_model.bin").exists();
    if is_pickle && path.ends_with(WEIGHTS) {
        let what = format!(
            "{}: its weights are a pickle; `amn convert adapter_model.bin --to safetensors -o {WEIGHTS}` makes what is merged",
            directory.display()
        );
        return AnamnesisError::unsupported("an adapter", what);
    }
    AnamnesisError::io_at(path, &std::io::Error::from(std::io::ErrorKind::NotFound))
}
