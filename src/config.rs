//! [`QuantConfig`]: the quantization config of a model, from `config.json` and other files beside
//! the weights.
//!
//! Names, dtypes and shapes of tensors decide which scheme decodes them. The config supplies what
//! they cannot tell (zero-point convention, block size of ragged blocks), and is checked against
//! them.
//!
//! - `place`, `values`, `agreement`: one config, the first that has a value, and
//!   contradictions.
//! - `module`, `ordered`, `skips`, `presets`, `sizes`: entries for single modules; `method`:
//!   names of methods.
//! - `json`, `unique_json`, `json_object`, `member`, `edit`: reading, and edits of the text; `confined`, `texts`: which
//!   files are the model's.
//! - `pattern`: names with wildcards and expressions.

mod agreement;
mod confined;
mod dfloat11;
mod diffusion;
pub(crate) mod edit;
mod hadamard_pack;
mod indexed;
mod json;
mod json_object;
mod member;
mod method;
mod module;
mod ordered;
mod pattern;
mod place;
mod presets;
mod sdnq;
mod sizes;
mod skips;
#[cfg(test)]
mod tests;
// Descriptions of models need a few of its methods, whole models all.
#[cfg_attr(not(feature = "models"), allow(dead_code))]
mod texts;
mod transform;
pub(crate) mod unique_json;
mod unwritten;
mod values;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use self::agreement::{check_repeated, repeated};
pub(crate) use self::confined::{Confined, resolve_links};
pub(crate) use self::dfloat11::DFloat11Config;
use self::hadamard_pack::HadamardPack;
pub(crate) use self::json::{object, parse_python, read_json, read_small};
pub(crate) use self::member::{Member, quoted};
pub(crate) use self::method::QuantMethod;
pub(crate) use self::module::{FP8_SCALES, Module, NVFP4, OF_FP8, is_embedding};
#[cfg(feature = "lethe")]
pub(crate) use self::pattern::ByName;
pub use self::pattern::Selection;
#[cfg(feature = "lethe")]
pub(crate) use self::pattern::nearest;
pub(crate) use self::pattern::{RenameRule, what_was_meant};
use self::place::{ConfigPlace, order};
pub(crate) use self::sdnq::{NativeFloat, SdnqConfig, SdnqDtype, SdnqSettings};
pub(crate) use self::sizes::is_cross_attention;
use self::skips::SkipLists;
pub(crate) use self::texts::Texts;
pub(crate) use self::transform::{
    TargetedBy, TransformConfig, TransformKind, TransformLocation, TransformScheme, TransformUse,
};
use self::unique_json::UniqueJson;
#[cfg_attr(not(feature = "ollama"), allow(unused_imports))]
pub(crate) use self::unwritten::{
    MARKER_FILE, RECORD_PREFIX, Unwritten, folded, is_usual, why_unwritten,
};
pub(crate) use self::values::version_numbers;
use crate::limits::{Budget, FREE_JSON_BYTES};
use crate::source::CompanionFile;
use crate::{ParseLimits, Result};

/// Where a quantization config can be: a file and the path of keys in it (empty: the whole file).
/// Earlier places take precedence.
pub(crate) const PLACES: &[(&str, &[&str])] = &[
    ("config.json", &["quantization_config"]),
    ("config.json", &["text_config", "quantization_config"]),
    ("config.json", &["compression_config"]),
    ("config.json", &["dfloat11_config"]),
    ("config.json", &["quantization"]),
    ("params.json", &["quantization"]),
    ("hf_quant_config.json", &["quantization"]),
    // TensorRT-LLM's list of the layers' algorithms, where that file says `MIXED_PRECISION` alone.
    ("quant_cfg.json", &[]),
    ("quantize_config.json", &[]),
    ("quant_config.json", &[]),
    ("quantization_config.json", &[]),
    ("quantization_map.json", &[]),
    (MLC_FILE, &[]),
    (SINQ_FILE, &[]),
    (MODELSLIM_FILE, &[]),
];

/// ModelSlim's description: the type of each tensor.
pub(crate) const MODELSLIM_FILE: &str = "quant_model_description.json";

/// MLC's config of a model, with sizes of its layers in `model_config`.
pub(crate) const MLC_FILE: &str = "mlc-chat-config.json";

/// SINQ's description of layers: an object for each module.
pub(crate) const SINQ_FILE: &str = "model.safetensors.index.json.meta.json";

/// Keys under which multimodal models nest the config of their language model.
pub(crate) const TEXT_CONFIGS: &[&str] =
    &["text_config", "llm_config", "lm_config", "language_config", "transformer_layer_config"];

/// The config of the language model in that of a multimodal model. Qwen's models that speak have it in
/// the config of the part that thinks.
#[cfg(feature = "models")]
pub(crate) fn text_config(config: &Value) -> Option<&Value> {
    let mut nested = TEXT_CONFIGS.iter().filter_map(|key| config.get(*key));
    let thinking = || config.pointer("/thinker_config/text_config");
    nested.find(|text| text.is_object()).or_else(thinking)
}

/// Key of the safetensors metadata that holds a whole config as JSON. It counts only where no file
/// has a config.
pub(crate) const IN_METADATA: &str = "quantization_config";

/// Key of the safetensors metadata in which mflux says how many bits most weights have.
pub(crate) const MFLUX_LEVEL: &str = "quantization_level";

/// A model's quantization config, merged from all places that have one; empty for a model without.
#[derive(Debug, Clone, Default)]
pub struct QuantConfig {
    places: Vec<ConfigPlace>,
    /// The files that configs are read from, whether they exist or not, with their states before
    /// that.
    companions: Vec<CompanionFile>,
    /// Names of those that are links out of the model's directory.
    linked: Vec<String>,
    /// Limits for reading the index of shards.
    limits: ParseLimits,
    /// `quant_method`, parsed at the first [`quant_method`](Self::quant_method).
    method: OnceLock<Option<QuantMethod>>,
    /// Name of the file that the config was read beside; `None` of a directory.
    file: Option<String>,
    /// Names of tensors in indexes of shards, read at the first [`indexed`](Self::indexed).
    indexed: OnceLock<Vec<String>>,
    /// Modules that stay unquantized, compiled at the first [`skips`](Self::skips).
    skipped: OnceLock<SkipLists>,
    sizes: sizes::LayerSizes,
    /// `model_type` of `config.json`, then that of its `text_config`.
    model_types: Vec<String>,
    patterns: ordered::OrderedPatterns,
    hadamard: Option<HadamardPack>,
    /// DFloat11's config, read at the first [`dfloat11`](Self::dfloat11).
    dfloat11: OnceLock<std::result::Result<DFloat11Config, String>>,
    /// SDNQ's config, read at the first [`sdnq`](Self::sdnq).
    sdnq: OnceLock<std::result::Result<SdnqConfig, String>>,
    /// Entries for single modules, compiled at the first [`at`](Self::at).
    rules: OnceLock<module::ModuleRules>,
}

impl QuantConfig {
    /// Names of the files that configs are read from, each once.
    pub(crate) fn files() -> Vec<&'static str> {
        // Places of one file are adjacent in the table, so that `dedup` finds them.
        let mut files: Vec<_> = PLACES.iter().map(|(file, _)| *file).collect();
        files.dedup();
        files
    }

    /// The files that configs were read from, and those that would have been if they existed.
    pub(crate) fn companions(&self) -> &[CompanionFile] {
        &self.companions
    }

    /// A note on the files that are links out of the model's directory: what they say counts, for codes
    /// cannot be decoded without it, and gets into no output.
    pub(crate) fn note_on_links(&self) -> Option<String> {
        (!self.linked.is_empty()).then(|| {
            format!(
                "links out of the model's directory say how it is decoded: {}",
                self.linked.join(", ")
            )
        })
    }

    /// Whether two configs say the same in the same places, about quantization and about the
    /// architecture.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        self.places == other.places
            && self.sizes == other.sizes
            && self.model_types == other.model_types
            && self.hadamard == other.hadamard
    }

    /// The files that configs were read from, as JSON by name. A file that does not exist is left
    /// out.
    ///
    /// # Errors
    /// `Io` if a file cannot be read; `Parse` if it is no JSON; `LimitExceeded`.
    pub(crate) fn json_files(&self) -> Result<BTreeMap<String, Value>> {
        let budget = Budget::new(&self.limits);
        let mut out = BTreeMap::new();
        for companion in &self.companions {
            let name = companion.path.file_name().unwrap_or_default();
            if indexed::is_index(&name.to_string_lossy()) {
                continue;
            }
            if let Some((parsed, _)) = read_json(&companion.path, &budget)? {
                out.insert(name.to_string_lossy().into_owned(), parsed.value);
            }
        }
        Ok(out)
    }

    /// Reads the configs in the directory of the file `model`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_beside(model: &Path, budget: &Budget) -> Result<Self> {
        let file = model.file_name();
        Ok(Self {
            file: file.map(|name| name.to_string_lossy().into_owned()),
            ..Self::read(model.parent().unwrap_or(Path::new("")), budget)?
        })
    }

    /// Reads the configs in `dir`: the files of [`PLACES`] and quanto's maps.
    ///
    /// # Errors
    /// `Io` if a file that is there cannot be read; `Parse` if it is no JSON, or repeats a key that
    /// counts with another value; `LimitExceeded`.
    pub(crate) fn read(dir: &Path, budget: &Budget) -> Result<Self> {
        let mut files: HashMap<&str, Option<(UniqueJson, Vec<u8>)>> = HashMap::new();
        let (mut places, mut sizes) = (Vec::new(), sizes::LayerSizes::default());
        let (mut model_types, mut hadamard) = (Vec::new(), None);
        let companion = |name: &str| CompanionFile::new(dir.join(name));
        let mut companions: Vec<_> = Self::files().into_iter().map(companion).collect();
        // Indexes are read later, and only for a file by itself.
        let indexes = indexed::list_indexes(dir);
        companions.extend(indexes.iter().map(|name| companion(name)));
        for &(file, keys) in PLACES {
            if !files.contains_key(file) {
                let read = read_json(&dir.join(file), budget)?;
                if let Some((parsed, _)) = &read {
                    check_repeated(file, parsed)?;
                    if let (MLC_FILE, Some(model)) = (file, parsed.value.get("model_config"))
                        && sizes == sizes::LayerSizes::default()
                    {
                        sizes = sizes::LayerSizes::new(model);
                    }
                    if file == "config.json" {
                        sizes = sizes::LayerSizes::new(&parsed.value);
                        let root = &parsed.value;
                        hadamard = HadamardPack::new(root);
                        let found =
                            [root.get("model_type"), root.pointer("/text_config/model_type")];
                        let found = found.into_iter().flatten().filter_map(Value::as_str);
                        model_types = found.map(str::to_owned).collect();
                    }
                }
                files.insert(file, read);
            }
            let Some((parsed, text)) = files.get_mut(file).and_then(Option::as_mut) else {
                continue;
            };
            let section = keys
                .iter()
                .try_fold(&mut parsed.value, |v, key| v.get_mut(key));
            if let Some(section @ Value::Object(_)) = section {
                let name = if keys.is_empty() {
                    file.to_owned()
                } else {
                    format!("{file}: {}", keys.join("."))
                };
                // Taken out of the file's values, for a copy would double the memory.
                if let Value::Object(mut values) = section.take() {
                    if file == MLC_FILE {
                        // Other keys are of programs that run models, and have meanings in other configs.
                        values.retain(|key, _| {
                            ["model_config", "quantization"].contains(&key.as_str())
                        });
                    }
                    places.push(ConfigPlace { name, order: order(text, keys, &values), values });
                }
            }
        }
        for file in module::list_quanto_maps(dir) {
            companions.push(companion(&file));
            let Some((parsed, _)) = read_json(&dir.join(&file), budget)? else {
                continue;
            };
            if let Some(path) = parsed.repeated.first() {
                return Err(repeated(&file, path));
            }
            if let Value::Object(values) = parsed.value {
                places.push(ConfigPlace { name: file, values, ..ConfigPlace::default() });
            }
        }
        place::leave_only_mlx(&mut places);
        let confined = Confined::new(dir);
        let is_outside = |path: &Path| path.is_file() && !confined.has(path);
        let linked = companions.iter().map(|companion| &companion.path);
        let linked = linked.filter(|path| is_outside(path));
        let name = |path: &PathBuf| path.file_name().map(|n| n.to_string_lossy().into_owned());
        let linked = linked.filter_map(name).collect();
        let patterns = ordered::OrderedPatterns::new(&places)?;
        let limits = budget.limits().clone();
        Ok(Self {
            places,
            companions,
            linked,
            sizes,
            model_types,
            patterns,
            hadamard,
            limits,
            ..Self::default()
        })
    }

    /// Adds the config in a safetensors file's own metadata: AutoGPTQ's keys (`gptq_bits`, …) and
    /// mflux's in any case, and a whole config as JSON if no file has one.
    ///
    /// # Errors
    /// `Parse` if the JSON repeats a key with another value.
    pub(crate) fn add_metadata(&mut self, metadata: &HashMap<String, String>) -> Result<()> {
        self.method.take();
        let text = metadata.get(IN_METADATA).filter(|_| self.places.is_empty());
        // A text that is no JSON is something else of that name.
        let config = text.and_then(|text| {
            unique_json::parse(text.as_bytes(), &mut FREE_JSON_BYTES.clone()).ok()
        });
        if let Some(UniqueJson { value: Value::Object(values), repeated: paths }) = config {
            let name = format!("__metadata__: {IN_METADATA}");
            if let Some(path) = paths.first() {
                return Err(repeated(&name, path));
            }
            self.places.push(ConfigPlace {
                name,
                order: order(text.map_or(&[], |text| text.as_bytes()), &[], &values),
                values,
            });
        }
        let text = |(key, value): (&String, &String)| {
            Some((key.strip_prefix("gptq_")?.to_owned(), Value::String(value.clone())))
        };
        let mut values = object(metadata.iter().filter_map(text));
        if values.contains_key("bits") || values.contains_key("group_size") {
            values.insert("quant_method".to_owned(), "gptq".into());
            self.places.push(ConfigPlace {
                name: "__metadata__".to_owned(),
                values,
                ..ConfigPlace::default()
            });
        }
        // That of a model of floats is no number.
        let level = metadata.get(MFLUX_LEVEL);
        let level = level.filter(|level| level.trim().parse::<u8>().is_ok());
        if let Some(level) = level {
            self.places.push(ConfigPlace {
                name: "__metadata__".to_owned(),
                values: object([(MFLUX_LEVEL.to_owned(), level.as_str().into())]),
                ..ConfigPlace::default()
            });
        }
        Ok(())
    }
}
