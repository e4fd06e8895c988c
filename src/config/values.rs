//! What a config says: the values under its keys, each from the first place that has one.

use serde_json::{Map, Value};

use super::place::ConfigPlace;
use super::skips::SkipLists;
use super::{QuantConfig, QuantMethod};

/// Keys of lists of modules that stay unquantized; each producer has its own.
const SKIP_KEYS: &[&str] = &[
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "llm_int8_skip_modules",
    "exclude",
];

/// Ends of the names of companions that Quark's exporter writes, with those in models that were
/// saved as Quark's modules are (transformers `quantizer_quark.py`, `CHECKPOINT_KEYS`).
const NAMES_IN_QUANTIZERS: &[(&str, &str)] = &[
    (".weight_scale", ".weight_quantizer.scale"),
    (".weight_zero_point", ".weight_quantizer.zero_point"),
];

impl QuantConfig {
    /// Another name of the companion `name` in models of the config's method.
    pub(crate) fn other_name(&self, name: &str) -> Option<String> {
        let found = |&(exported, stored): &(&str, &str)| {
            Some(format!("{}{stored}", name.strip_suffix(exported)?))
        };
        let other = NAMES_IN_QUANTIZERS.iter().find_map(found)?;
        self.is_quark().then_some(other)
    }

    /// `model_type` of `config.json`: the architecture, as transformers and mlx-lm name it.
    pub(crate) fn model_type(&self) -> Option<&str> {
        self.model_types.first().map(String::as_str)
    }

    /// Whether the model or its language model is of the architecture `name`.
    pub(crate) fn has_model_type(&self, name: &str) -> bool {
        self.model_types.iter().any(|found| found == name)
    }

    /// `hidden_size` of `config.json`: the width of the residual stream.
    pub(crate) fn hidden_size(&self) -> Option<usize> {
        self.sizes.hidden
    }

    /// `num_key_value_heads` of `config.json`.
    pub(crate) fn key_value_heads(&self) -> Option<usize> {
        self.sizes.key_value_heads
    }

    /// Whether the rows of a fused projection of queries, keys and values lie in a chunk for each
    /// head of keys.
    pub(crate) fn has_fused_heads(&self) -> bool {
        self.sizes.has_fused_heads
    }

    /// Whether `config.json` says that the model multiplies values by a factor
    /// (`attention_value_scale`).
    pub(crate) fn scales_values(&self) -> bool {
        self.sizes.scales_values
    }

    /// Whether the class of diffusers that `config.json` names makes no quantized layer of
    /// `module`.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub(crate) fn keeps_unquantized(&self, module: &str) -> bool {
        let kept = self.sizes.unquantized;
        module.split('.').any(|part| kept.contains(&part))
    }

    /// Whether `config.json` is that of a component of a pipeline of diffusers.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub(crate) fn is_of_diffusers(&self) -> bool {
        self.sizes.is_of_diffusers
    }

    /// `[out_features, in_features]` of the linear layer `module`, as far as `config.json` and the
    /// layer's name tell.
    pub(crate) fn layer_sizes(&self, module: &str) -> [Option<usize>; 2] {
        self.sizes.layer(module)
    }

    /// Whether any file or metadata has a quantization config.
    #[must_use]
    pub fn is_quantized(&self) -> bool {
        !self.places.is_empty()
    }

    /// The first value that `f` finds, with the name of its place.
    pub(super) fn first<'a, T>(
        &'a self,
        f: impl Fn(&'a ConfigPlace) -> Option<T>,
    ) -> Option<(T, &'a str)> {
        self.places
            .iter()
            .find_map(|place| Some((f(place)?, place.name.as_str())))
    }

    /// `quant_method` in lower case (`gptq`, `fp8`, `compressed-tensors`, …).
    #[must_use]
    pub fn method(&self) -> Option<String> {
        let explicit = self.first(|p| p.text(&["quant_method", "method"]).map(str::to_lowercase));
        // AutoAWQ's own file names no method; its key `w_bit` is in no other config.
        let implied = || self.first(|p| p.get("w_bit").map(|_| "awq".to_owned()));
        explicit.or_else(implied).map(|(method, _)| method)
    }

    /// [`method`](Self::method), parsed.
    pub(crate) fn quant_method(&self) -> Option<&QuantMethod> {
        let parsed = || self.method().map(|text| QuantMethod::parse(&text));
        self.method.get_or_init(parsed).as_ref()
    }

    /// Whether AMD's Quark wrote the model.
    pub(crate) fn is_quark(&self) -> bool {
        self.quant_method() == Some(&QuantMethod::Quark)
    }

    /// Whether AutoRound wrote the model, under its own method's name or another's.
    pub(crate) fn is_auto_round(&self) -> bool {
        self.quant_method() == Some(&QuantMethod::AutoRound)
            || self.text(&["autoround_version"]).is_some()
    }

    /// The string under the first of `keys` that has one, with the name of its place.
    pub(crate) fn text(&self, keys: &[&str]) -> Option<(&str, &str)> {
        self.first(|p| p.text(keys))
    }

    /// The object under `key`.
    pub(crate) fn section(&self, key: &str) -> Option<&Map<String, Value>> {
        self.first(|p| p.get(key)?.as_object())
            .map(|(section, _)| section)
    }

    /// The list under `key`; empty without one.
    pub(crate) fn list(&self, key: &str) -> &[Value] {
        self.first(|p| p.get(key)?.as_array())
            .map_or(&[], |(list, _)| list)
    }

    /// Whether there is `file`, one of the files that configs are read from.
    pub(crate) fn has_file(&self, file: &str) -> bool {
        self.places.iter().any(|p| p.name == file)
    }

    /// The keys of all places.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        let places = self.places.iter();
        places.flat_map(|p| p.values.keys()).map(String::as_str)
    }

    /// The value under `key` in `file`, one of the files that configs are read from.
    pub(crate) fn in_file(&self, file: &str, key: &str) -> Option<&Value> {
        self.places.iter().find(|p| p.name == file)?.get(key)
    }

    /// The boolean under `key`.
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

    /// Whether a list of unquantized modules covers `module`. An entry is a path or a run of its
    /// components, a pattern with `*`, or a regular expression after `re:`.
    #[must_use]
    pub fn skips(&self, module: &str) -> bool {
        let skipped = self.skipped.get_or_init(|| {
            let lists = self
                .places
                .iter()
                .flat_map(|p| SKIP_KEYS.iter().filter_map(|key| p.get(key)?.as_array()));
            let mut skips = SkipLists::default();
            lists
                .flatten()
                .filter_map(Value::as_str)
                .for_each(|text| skips.add(text));
            skips
        });
        skipped.has(module)
    }
}

/// `[major, minor, patch]` of a version: the digits that each part begins with, or zero.
pub(crate) fn version_numbers(text: &str) -> [u32; 3] {
    let mut parts = text.split('.').map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit());
        part[..end.unwrap_or(part.len())].parse().unwrap_or(0)
    });
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}
