//! What lies beside a model and describes its quantization: `config.json` and its kin.
//!
//! The tensors decide how they are decoded; the config decides what tensors cannot tell (zero-point
//! convention, block size of ragged blocks) and is checked against them.

pub(crate) mod edit;
mod json;
mod method;
mod module;
mod patterns;
mod selection;
mod sizes;
mod skips;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Map, Value};

use self::json::read_json;
pub(crate) use self::json::read_small;
pub(crate) use self::method::QuantMethod;
pub(crate) use self::module::Module;
pub(crate) use self::selection::Selection;
use self::skips::Skips;
use self::skips::pattern;
use crate::limits::Budget;
use crate::{AnamnesisError, ParseLimits, Result};

/// Where a quantization config can be: file, then the path of keys inside it (empty: the file itself).
/// In order of authority.
const PLACES: &[(&str, &[&str])] = &[
    ("config.json", &["quantization_config"]),
    ("config.json", &["text_config", "quantization_config"]),
    ("config.json", &["compression_config"]),
    ("config.json", &["quantization"]),
    ("params.json", &["quantization"]),
    ("hf_quant_config.json", &["quantization"]),
    ("quantize_config.json", &[]),
    ("quant_config.json", &[]),
    ("quantization_map.json", &[]),
];

/// The key of a config in the metadata of a safetensors file that has no other.
pub(crate) const IN_METADATA: &str = "quantization_config";

/// Lists of modules that stay unquantized, under the names that producers give them.
const SKIP_KEYS: &[&str] = &[
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "llm_int8_skip_modules",
    "exclude",
];

/// Objects in a config whose first fitting entry counts.
const ORDERED: &[&str] = &["dynamic", "extra_config", "module_quant_configs"];

/// One quantization config and the place it was found in.
#[derive(Debug, Clone, Default)]
struct Place {
    name: String,
    values: Map<String, Value>,
    /// Keys of objects whose order matters, as the file has them.
    order: Vec<(&'static str, Vec<String>)>,
}

/// A model's quantization config, from whichever places hold one; empty if none does.
#[derive(Debug, Clone, Default)]
pub struct QuantConfig {
    places: Vec<Place>,
    /// Where the model lies, if it is a file.
    directory: Option<PathBuf>,
    /// What may be read there.
    limits: ParseLimits,
    /// `quant_method`, parsed when first asked for.
    method: OnceLock<Option<QuantMethod>>,
    /// Names in the index of a sharded model, read when first asked for.
    indexed: OnceLock<HashSet<String>>,
    /// Modules that stay unquantized, compiled when first asked for.
    skipped: OnceLock<Skips>,
    /// How large the model's layers are.
    sizes: sizes::Sizes,
    /// What is said of modules by expressions whose order counts.
    patterns: patterns::Patterns,
    /// What is said of single modules, compiled when first asked for.
    rules: OnceLock<module::Rules>,
}

impl QuantConfig {
    /// Names of the files that configs are read from.
    pub(crate) fn files() -> Vec<&'static str> {
        let mut files: Vec<_> = PLACES.iter().map(|(file, _)| *file).collect();
        files.dedup();
        files
    }

    /// Reads the configs in the directory of `model`.
    pub(crate) fn beside(model: &Path, budget: &Budget) -> Result<Self> {
        Self::of_directory(model.parent().unwrap_or(Path::new("")), budget)
    }

    /// Reads the configs in `dir`.
    pub(crate) fn of_directory(dir: &Path, budget: &Budget) -> Result<Self> {
        let mut files: HashMap<&str, Option<(Value, Vec<u8>)>> = HashMap::new();
        let mut places = Vec::new();
        for &(file, keys) in PLACES {
            if !files.contains_key(file) {
                files.insert(file, read_json(&dir.join(file), budget)?);
            }
            let Some((root, text)) = files.get(file).and_then(Option::as_ref) else {
                continue;
            };
            if let Some(Value::Object(values)) = keys.iter().try_fold(root, |v, key| v.get(key)) {
                let name = if keys.is_empty() {
                    file.to_owned()
                } else {
                    format!("{file}: {}", keys.join("."))
                };
                places.push(Place {
                    name,
                    values: values.clone(),
                    order: order(text, keys, values),
                });
            }
        }
        for file in module::maps(dir) {
            if let Some((Value::Object(values), _)) = read_json(&dir.join(&file), budget)? {
                places.push(Place {
                    name: file,
                    values,
                    ..Place::default()
                });
            }
        }
        let root = files
            .get("config.json")
            .and_then(Option::as_ref)
            .map(|(root, _)| root);
        let sizes = root.map(sizes::Sizes::new).unwrap_or_default();
        let patterns = patterns::Patterns::new(&places)?;
        let (directory, limits) = (Some(dir.to_path_buf()), budget.limits().clone());
        Ok(Self {
            places,
            sizes,
            patterns,
            directory,
            limits,
            ..Self::default()
        })
    }

    /// Adds what a safetensors file's own metadata say: AutoGPTQ's (`gptq_bits`, …), or a whole config where no file
    /// has one.
    pub(crate) fn add_metadata(&mut self, metadata: &HashMap<String, String>) {
        self.method.take();
        let config = metadata
            .get(IN_METADATA)
            .and_then(|text| serde_json::from_str(text).ok());
        if let Some(Value::Object(values)) = config.filter(|_| self.places.is_empty()) {
            self.places.push(Place {
                name: format!("__metadata__: {IN_METADATA}"),
                values,
                ..Place::default()
            });
        }
        let text = |(key, value): (&String, &String)| {
            Some((
                key.strip_prefix("gptq_")?.to_owned(),
                Value::String(value.clone()),
            ))
        };
        let mut values: Map<String, Value> = metadata.iter().filter_map(text).collect();
        if values.contains_key("bits") || values.contains_key("group_size") {
            values.insert("quant_method".to_owned(), "gptq".into());
            self.places.push(Place {
                name: "__metadata__".to_owned(),
                values,
                ..Place::default()
            });
        }
    }

    /// Whether the index of a sharded model, beside this file, lists one of `names`.
    pub(crate) fn is_indexed(&self, names: &[String]) -> Result<bool> {
        let Some(directory) = &self.directory else {
            return Ok(false);
        };
        let indexed = match self.indexed.get() {
            Some(indexed) => indexed,
            None => {
                let index = read_json(
                    &directory.join("model.safetensors.index.json"),
                    &Budget::new(&self.limits),
                )?;
                let map = index
                    .as_ref()
                    .and_then(|(index, _)| index.get("weight_map")?.as_object());
                let names = map
                    .into_iter()
                    .flat_map(|map| map.keys().cloned())
                    .collect();
                self.indexed.get_or_init(|| names)
            }
        };
        Ok(names.iter().any(|name| indexed.contains(name)))
    }

    /// Width of the layers, as `config.json` has it.
    pub(crate) fn hidden_size(&self) -> Option<usize> {
        self.sizes.hidden
    }

    /// Outputs and inputs of the layer called `module`, as far as `config.json` and its name tell.
    pub(crate) fn layer_sizes(&self, module: &str) -> [Option<usize>; 2] {
        self.sizes.layer(module)
    }

    /// Whether anything says that the model is quantized.
    #[must_use]
    pub fn is_quantized(&self) -> bool {
        !self.places.is_empty()
    }

    /// Two places that contradict each other are an error that names both. Of methods only GPTQ and AWQ
    /// exclude each other; producers name the rest as they like.
    pub(crate) fn check(&self) -> Result<()> {
        let mut facts: Vec<(&str, &Place, String)> = Vec::new();
        for place in &self.places {
            let format = |key: &str| {
                place
                    .text(&[key])
                    .filter(|f| f.starts_with("gptq"))
                    .map(str::to_owned)
            };
            let found = [
                ("bits", place.int(&["bits", "w_bit"]).map(|v| v.to_string())),
                ("symmetry", place.flag("sym").map(|v| v.to_string())),
                (
                    "zero points",
                    place.flag("zero_point").map(|v| v.to_string()),
                ),
                ("checkpoint format", format("checkpoint_format")),
                ("checkpoint format", format("format")),
                (
                    "block size",
                    place
                        .get("weight_block_size")
                        .and_then(pair)
                        .map(|[rows, cols]| format!("[{rows}, {cols}]")),
                ),
                (
                    "group size",
                    place
                        .int(&["group_size", "q_group_size"])
                        .map(|v| v.to_string()),
                ),
                (
                    "method",
                    place
                        .text(&["quant_method", "method"])
                        .map(str::to_lowercase)
                        .filter(|m| {
                            matches!(QuantMethod::parse(m), QuantMethod::Gptq | QuantMethod::Awq)
                        }),
                ),
            ];
            for (what, value) in found {
                let Some(value) = value else { continue };
                if let Some((_, other, theirs)) =
                    facts.iter().find(|(w, _, v)| *w == what && *v != value)
                {
                    return Err(AnamnesisError::parse(format!(
                        "contradicting {what}: {theirs} in {}, {value} in {}",
                        other.name, place.name
                    )));
                }
                facts.push((what, place, value));
            }
        }
        Ok(())
    }

    fn first<'a, T>(&'a self, f: impl Fn(&'a Place) -> Option<T>) -> Option<(T, &'a str)> {
        self.places
            .iter()
            .find_map(|place| Some((f(place)?, place.name.as_str())))
    }

    /// `quant_method`, in lower case (`gptq`, `fp8`, `compressed-tensors`, …).
    #[must_use]
    pub fn method(&self) -> Option<String> {
        let explicit = self.first(|p| p.text(&["quant_method", "method"]).map(str::to_lowercase));
        // AutoGPTQ and AutoAWQ keep files of their own, which need no method.
        let implied = || self.first(|p| p.get("w_bit").map(|_| "awq".to_owned()));
        explicit.or_else(implied).map(|(method, _)| method)
    }

    /// [`method`](Self::method), parsed.
    pub(crate) fn quant_method(&self) -> Option<&QuantMethod> {
        let parsed = || self.method().map(|text| QuantMethod::parse(&text));
        self.method.get_or_init(parsed).as_ref()
    }

    /// A string under the first of `keys` that is there, with the place's name.
    pub(crate) fn text(&self, keys: &[&str]) -> Option<(&str, &str)> {
        self.first(|p| p.text(keys))
    }

    /// A boolean under `key`.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.first(|p| p.flag(key)).map(|(flag, _)| flag)
    }

    /// Whether `key` holds anything but null, false or an empty list or object.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.first(|p| match p.get(key)? {
            Value::Object(map) => (!map.is_empty()).then_some(()),
            Value::Array(list) => (!list.is_empty()).then_some(()),
            Value::Null | Value::Bool(false) => None,
            _ => Some(()),
        })
        .is_some()
    }

    /// Whether a list of unquantized modules covers `module`: by name, by a trailing or inner part of
    /// its path, by a `*` pattern, or by a regular expression after `re:`.
    #[must_use]
    pub fn skips(&self, module: &str) -> bool {
        let skipped = self.skipped.get_or_init(|| {
            let lists = self
                .places
                .iter()
                .flat_map(|p| SKIP_KEYS.iter().filter_map(|key| p.get(key)?.as_array()));
            let mut skips = Skips::default();
            lists
                .flatten()
                .filter_map(Value::as_str)
                .for_each(|text| skips.add(text));
            skips
        });
        skipped.has(module)
    }
}

impl Place {
    fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The entries of the object under `key`, in the order of the file if that matters.
    fn entries(&self, key: &str) -> Vec<(&str, &Value)> {
        let Some(map) = self.get(key).and_then(Value::as_object) else {
            return vec![];
        };
        let entry = |(key, value)| (String::as_str(key), value);
        match self.order.iter().find(|(ordered, _)| *ordered == key) {
            Some((_, keys)) => keys
                .iter()
                .filter_map(|key| map.get_key_value(key))
                .map(entry)
                .collect(),
            None => map.iter().map(entry).collect(),
        }
    }

    fn int(&self, keys: &[&str]) -> Option<i64> {
        let value = keys.iter().find_map(|key| self.get(key))?;
        value
            .as_i64()
            .or_else(|| value.as_str()?.trim().parse().ok())
    }

    fn flag(&self, key: &str) -> Option<bool> {
        flag(self.get(key)?)
    }

    fn text(&self, keys: &[&str]) -> Option<&str> {
        keys.iter().find_map(|key| self.get(key)?.as_str())
    }
}

/// A boolean, which a safetensors file's metadata has as Python prints it.
fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) if text == "True" => Some(true),
        Value::String(text) if text == "False" => Some(false),
        _ => None,
    }
}

/// The keys, in their order, of what is [`ORDERED`] in `values`, which lie at `path` in `text`.
fn order(
    text: &[u8],
    path: &[&str],
    values: &Map<String, Value>,
) -> Vec<(&'static str, Vec<String>)> {
    let Ok(text) = std::str::from_utf8(text) else {
        return vec![];
    };
    let in_order = |&key: &&'static str| {
        values.get(key).filter(|value| value.is_object())?;
        let path: Vec<&str> = path.iter().copied().chain([key]).collect();
        Some((key, edit::keys(text, &path)?))
    };
    ORDERED.iter().filter_map(in_order).collect()
}

/// Two positive sizes.
fn pair(value: &Value) -> Option<[usize; 2]> {
    let size = |v: &Value| usize::try_from(v.as_u64()?).ok().filter(|&n| n > 0);
    match value.as_array()?.as_slice() {
        [rows, cols] => Some([size(rows)?, size(cols)?]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_patterns() {
        let skips = |pattern: &str, module: &str| {
            let values = serde_json::json!({"ignore": [pattern]})
                .as_object()
                .unwrap()
                .clone();
            let place = Place {
                name: "test".into(),
                values,
                ..Place::default()
            };
            QuantConfig {
                places: vec![place],
                ..QuantConfig::default()
            }
            .skips(module)
        };
        assert!(skips("lm_head", "lm_head"));
        assert!(skips("lm_head", "model.lm_head"));
        assert!(skips("mlp.gate", "model.layers.0.mlp.gate"));
        assert!(!skips("mlp.gate", "model.layers.0.mlp.gate_proj"));
        assert!(skips("re:.*lm_head", "model.lm_head"));
        assert!(!skips("re:(?=look)ahead", "lookahead"));
        assert!(skips("model.layers.0*", "model.layers.0.mlp"));
        assert!(!skips("model.layers.1*", "model.layers.0.mlp"));
        assert!(!skips("*.gate", "mlp.gate_proj"));
    }

    #[test]
    fn rules_for_modules() {
        let json = br#"{"bits":4,"sym":"False","dynamic":{"-:.*v_proj":{},"+:.*o_proj$":{"group_size":64},"+:.*_proj":{"bits":8}},
            "extra_config":{"a.up":{"bits":2},".*up":{"bits":3,"sym":true},"gate|out":{"bits":16}}}"#;
        let values = serde_json::from_slice::<Value>(json)
            .unwrap()
            .as_object()
            .unwrap()
            .clone();
        let place = Place {
            name: "test".into(),
            order: order(json, &[], &values),
            values,
        };
        let config = QuantConfig {
            places: vec![place],
            ..QuantConfig::default()
        };
        let bits = |module: &str| config.at(module).int(&["bits"]).map(|(bits, _)| bits);
        assert!(
            config.at("a.v_proj").skipped
                && config.at("a.gates").skipped
                && !config.at("a.q_proj").skipped
        );
        // The first that fits, matched from the name's beginning; what it does not say is said of all.
        assert_eq!(
            (bits("a.o_proj"), bits("a.q_proj"), bits("a.norm")),
            (Some(4), Some(8), Some(4))
        );
        // A name before an expression, which is searched.
        assert_eq!((bits("a.up"), bits("b.a.up.c")), (Some(2), Some(3)));
        assert_eq!(
            (config.at("a.up").flag("sym"), config.at("b.up").flag("sym")),
            (Some(false), Some(true))
        );
    }

    #[test]
    fn metadata_of_autogptq() {
        let mut config = QuantConfig::default();
        config.add_metadata(&HashMap::from([
            ("gptq_bits".into(), "8".into()),
            ("gptq_group_size".into(), "-1".into()),
        ]));
        assert_eq!(config.at("x").int(&["bits"]), Some((8, "__metadata__")));
        assert_eq!(
            config.at("x").int(&["group_size"]),
            Some((-1, "__metadata__"))
        );
        assert_eq!(config.method().as_deref(), Some("gptq"));
    }
}
