//! [`Adapter`]: weights that were trained beside a model, and how they are merged into it.
//!
//! - `peft_config`, `peft_tensors`, `gguf_adapter`, `mlx_adapter`: adapters of PEFT, llama.cpp and
//!   mlx-lm; `image`: those for image and video models.
//!   `sorted`: what all of them have in common; `form`, `blocks`: how factors are stored.
//! - `parameters`, `apart`, `factors`, `matrices`: what is multiplied with what; `composed`,
//!   `three_factors`, `spread`, `stacks`: products of other kinds, and `product`: of all kinds.
//! - `collect`, `placed`, `change`: what an adapter changes; `merge`: into the items of a model.
//! - `alone`: adapters that become files of their own.
//! - `biases`, `tied`, `heads`, `vocabulary`, `tokens`, `added`: changes that are no product.

mod added;
#[cfg(feature = "models")]
mod alone;
mod apart;
mod biases;
#[cfg(feature = "gguf")]
mod blocks;
mod change;
mod collect;
mod composed;
mod factors;
mod form;
#[cfg(feature = "gguf")]
mod gguf_adapter;
mod heads;
mod image;
mod matrices;
mod merge;
mod mlx_adapter;
mod parameters;
mod peft_config;
mod peft_tensors;
mod placed;
mod product;
mod sorted;
mod spread;
mod stacks;
mod tensor;
mod three_factors;
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
use self::image::LoraName;
#[cfg(feature = "models")]
pub(super) use self::image::{LoraNames, RenamedLora, renamed_lora};
pub(super) use self::merge::merge;
use self::mlx_adapter::MlxConfig;
use self::peft_config::PeftConfig;
pub(super) use self::vocabulary::ConfigField;
use crate::config::Texts;
use crate::limits::ParseLimits;
use crate::parse::parse_with_limits;
use crate::source::CompanionFile;
use crate::{AnamnesisError, ParsedModel, Result};
#[cfg(feature = "gguf")]
use crate::{Container, detect_format};

/// Name of the settings of an adapter of PEFT or mlx-lm, and of its weights.
const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const MLX_WEIGHTS: &str = "adapters.safetensors";

/// Name of a LoRA that diffusers saves.
const DIFFUSERS_WEIGHTS: &str = "pytorch_lora_weights.safetensors";

/// A LoRA adapter: a directory of PEFT (`adapter_config.json` and `adapter_model.safetensors`) or
/// mlx-lm (`adapters.safetensors`), a GGUF file of llama.cpp, or a file for an image or video model
/// with the names of kohya's scripts, diffusers or ComfyUI.
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
    Mlx(MlxConfig),
    /// None: names and tensors say all that there is.
    Image,
    #[cfg(feature = "gguf")]
    Gguf(GgufAdapter),
}

impl Adapter {
    /// Reads the settings of the adapter in the directory or the file `path`, and the header of its
    /// weights.
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
        let is_part = [CONFIG, WEIGHTS, MLX_WEIGHTS]
            .iter()
            .any(|name| path.ends_with(name));
        let directory = match path.is_file() {
            true if is_part => path.parent().unwrap_or(path),
            true => return Self::open_image(path, limits),
            false => path,
        };
        let has = |name: &str| directory.join(name).exists();
        if has(DIFFUSERS_WEIGHTS) && !has(CONFIG) {
            return Self::open_image(&directory.join(DIFFUSERS_WEIGHTS), limits);
        }
        let is_mlx = has(MLX_WEIGHTS) && !has(WEIGHTS);
        let weights = if is_mlx { MLX_WEIGHTS } else { WEIGHTS };
        // The states are taken before the files are read.
        let companions = [CONFIG, weights].map(|name| CompanionFile::new(directory.join(name)));
        for companion in &companions {
            if !companion.exists() {
                return Err(missing(directory, &companion.path));
            }
        }
        let config = Texts::new(directory, limits)
            .json(CONFIG)?
            .unwrap_or_default();
        let settings = match is_mlx {
            true => MlxConfig::new(&config).map(Settings::Mlx),
            false => PeftConfig::new(&config).map(Settings::Peft),
        };
        let settings = settings.map_err(|e| e.about(companions[0].path.display()))?;
        let tensors = Arc::new(parse_with_limits(&companions[1].path, limits)?);
        let (path, companions) = (directory.to_path_buf(), companions.into());
        Ok(Self::new(AdapterFiles { path, settings, tensors, companions }))
    }

    /// A file for an image or video model.
    fn open_image(path: &Path, limits: &ParseLimits) -> Result<Self> {
        let companions = vec![CompanionFile::new(path.to_path_buf())];
        let tensors = Arc::new(parse_with_limits(path, limits)?);
        if !tensors.tensors().any(|t| LoraName::is_of_lora(t.name())) {
            return Err(not_an_adapter(path));
        }
        let (path, settings) = (path.to_path_buf(), Settings::Image);
        Ok(Self::new(AdapterFiles { path, settings, tensors, companions }))
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
        self.files.tensors.is_gguf()
    }

    /// The settings of PEFT; `None` if another program made the adapter.
    fn peft(&self) -> Option<&PeftConfig> {
        match &self.files.settings {
            Settings::Peft(config) => Some(config),
            _ => None,
        }
    }

    /// Whether the settings say that rows or columns get lengths of the adapter.
    fn is_dora(&self) -> bool {
        match &self.files.settings {
            Settings::Peft(config) => config.has_lengths,
            Settings::Mlx(config) => config.is_dora(),
            _ => false,
        }
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
        "{}: an adapter is a directory of PEFT or mlx-lm ({CONFIG} with {WEIGHTS} or {MLX_WEIGHTS}), a GGUF file, or a file with tensors like `lora_unet_….lora_down.weight` or `transformer.….lora_A.weight`",
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
    AnamnesisError::io_at(path, &std::io::Error::from(std::io::ErrorKind::NotFound))
}
