//! [`Adapter`]: weights that were trained beside a model, and how they are merged into it.
//!
//! - `peft_config`, `peft_tensors`, `gguf_adapter`: adapters of PEFT and of llama.cpp; `form`,
//!   `blocks`: how they are stored.
//! - `parameters`, `apart`, `factors`, `matrices`: what is multiplied with what; `collect`,
//!   `change`: what an adapter changes; `merge`: into the items of a model.
//! - `alone`: adapters that become files of their own.
//! - `biases`, `tied`, `heads`, `vocabulary`, `tokens`, `added`: changes that are no product of factors.

mod added;
#[cfg(feature = "models")]
mod alone;
mod apart;
mod biases;
#[cfg(feature = "gguf")]
mod blocks;
mod change;
mod collect;
mod factors;
mod form;
#[cfg(feature = "gguf")]
mod gguf_adapter;
mod heads;
mod matrices;
mod merge;
mod parameters;
mod peft_config;
mod peft_tensors;
mod tensor;
mod tied;
mod tokens;
mod vocabulary;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(feature = "models")]
pub(super) use self::alone::{gguf_alpha, is_adapter, lora_pairs};
#[cfg(feature = "gguf")]
use self::gguf_adapter::GgufAdapter;
pub(super) use self::merge::merge;
use self::peft_config::PeftConfig;
pub(super) use self::vocabulary::ConfigField;
use crate::config::Texts;
use crate::limits::ParseLimits;
use crate::parse::parse_with_limits;
use crate::source::CompanionFile;
use crate::{AnamnesisError, ParsedModel, Result};
#[cfg(feature = "gguf")]
use crate::{Container, detect_format};

/// Name of the settings of an adapter of PEFT, and of its weights.
const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Files of adapters of other programs, which have other names of tensors.
const OTHER_WEIGHTS: &[(&str, &str)] =
    &[("adapters.safetensors", "mlx-lm"), ("pytorch_lora_weights.safetensors", "diffusers")];

/// A LoRA adapter as PEFT saves it, a directory with `adapter_config.json` and
/// `adapter_model.safetensors`, or as llama.cpp has it, a GGUF file.
///
/// It is merged into a model by
/// [`ConvertOptions::with_adapters`](super::ConvertOptions::with_adapters). Clones share what was
/// read.
#[derive(Clone)]
pub struct Adapter {
    files: Arc<AdapterFiles>,
    weight: f64,
}

/// What an adapter's directory or file holds.
struct AdapterFiles {
    path: PathBuf,
    settings: Settings,
    tensors: Arc<ParsedModel>,
    /// The settings and the weights, as they were when they were read.
    companions: Vec<CompanionFile>,
}

/// The settings of an adapter.
enum Settings {
    Peft(PeftConfig),
    #[cfg(feature = "gguf")]
    Gguf(GgufAdapter),
}

impl Adapter {
    /// Reads the settings of the adapter in the directory or the GGUF file `path`, and the header
    /// of its weights.
    ///
    /// # Errors
    /// - `Io`: a file is missing, or cannot be read.
    /// - `Unsupported`: the adapter is no LoRA, or its settings have something that is not merged
    ///   here.
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
        #[cfg(feature = "gguf")]
        if path.is_file() && detect_format(path).is_ok_and(|format| format == Container::Gguf) {
            return Self::open_gguf(path, limits);
        }
        let directory = match path.is_file() {
            true if path.ends_with(CONFIG) || path.ends_with(WEIGHTS) => {
                path.parent().unwrap_or(path)
            }
            true => return Err(not_an_adapter(path)),
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
        let files = AdapterFiles {
            path: directory.to_path_buf(),
            settings: Settings::Peft(config),
            tensors: Arc::new(parse_with_limits(&companions[1].path, limits)?),
            companions: companions.into(),
        };
        Ok(Self::new(files))
    }

    #[cfg(feature = "gguf")]
    fn open_gguf(path: &Path, limits: &ParseLimits) -> Result<Self> {
        let companion = CompanionFile::new(path.to_path_buf());
        let tensors = parse_with_limits(path, limits)?;
        let settings = GgufAdapter::new(&tensors).map_err(|e| e.about(path.display()))?;
        Ok(Self::new(AdapterFiles {
            path: path.to_path_buf(),
            settings: Settings::Gguf(settings),
            tensors: Arc::new(tensors),
            companions: vec![companion],
        }))
    }

    fn new(files: AdapterFiles) -> Self {
        Self { files: Arc::new(files), weight: 1.0 }
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

    /// The adapter's directory, or its GGUF file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.files.path
    }

    /// Whether the adapter names weights as llama.cpp does, and not as Hugging Face.
    pub(super) fn has_gguf_names(&self) -> bool {
        !matches!(self.files.settings, Settings::Peft(_))
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

/// A model that adapters are merged into, and what is made of it before.
pub(super) struct Base<'a> {
    pub model: &'a ParsedModel,
    /// The architecture of the whole model in GGUF that is made of it.
    #[cfg_attr(not(feature = "gguf"), expect(dead_code, reason = "for adapters in GGUF"))]
    pub made_architecture: Option<&'a str>,
    /// The text of the config that is made for it.
    pub made_config: Option<&'a str>,
}

impl<'a> Base<'a> {
    /// The model as it is.
    pub(super) fn new(model: &'a ParsedModel) -> Self {
        Self { model, made_architecture: None, made_config: None }
    }
}

/// The error that the file `path` is none of an adapter.
fn not_an_adapter(path: &Path) -> AnamnesisError {
    let what = format!(
        "{}: an adapter is a directory with {CONFIG} and {WEIGHTS}, one of these files, or a GGUF file; LoRA of other programs, such as files with `lora_down` and `lora_up`, are not merged",
        path.display()
    );
    AnamnesisError::unsupported("an adapter", what)
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
    let others = OTHER_WEIGHTS.iter();
    let other = others
        .copied()
        .find(|(name, _)| directory.join(name).exists());
    if let Some((name, program)) = other {
        let what = format!(
            "{}: `{name}` is an adapter of {program}; those of PEFT are merged, in {CONFIG} and {WEIGHTS}",
            directory.display()
        );
        return AnamnesisError::unsupported("an adapter", what);
    }
    AnamnesisError::io_at(path, &std::io::Error::from(std::io::ErrorKind::NotFound))
}
