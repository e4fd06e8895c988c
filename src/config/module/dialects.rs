//! How each producer writes rules for single modules.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{FLOAT_BITS, ModuleMatcher, ModuleRules, ModuleSettings, is_top_module, objects};
use crate::config::object;
use crate::config::pattern::Pattern;
use crate::config::place::ConfigPlace;
use crate::config::presets;

/// Stands for the dtype of Quark's weights whose two levels of scales are NVFP4's.
pub(crate) const NVFP4: &str = "nvfp4";

/// Key of the rule for Quark's weights of two levels, the first of which has one scale for all:
/// codes of the second are scaled to FP8, and that to the weight.
pub(crate) const OF_FP8: &str = "of_fp8";

/// Key of the rule for Quark's integers whose scales are FP8 and have one scale.
pub(crate) const FP8_SCALES: &str = "fp8_scales";

/// Quark's settings of the codes of two `levels`, if they are integers of a weight in FP8
/// (`ProgressiveSpec`).
fn integers_of_fp8(levels: &[Value]) -> Option<Map<String, Value>> {
    let [first, second] = levels else {
        return None;
    };
    let says = |key: &str, text: &str| first.get(key).and_then(Value::as_str) == Some(text);
    let dtype = second.get("dtype")?.as_str()?;
    let is_of_scales = second.get("is_scale_quant")?.as_bool()?;
    let is_known = says("dtype", "fp8_e4m3") && says("qscheme", "per_tensor") && !is_of_scales;
    if !is_known || !matches!(dtype, "int4" | "uint4" | "int8" | "uint8") {
        return None;
    }
    let mut args = second.as_object()?.clone();
    args.insert(OF_FP8.to_owned(), true.into());
    Some(args)
}

/// Quark's settings of the codes of two `levels`, if they are integers in groups whose scales are
/// in FP8, with one scale for these (`ScaleQuantSpec`).
fn integers_of_fp8_scales(levels: &[Value]) -> Option<Map<String, Value>> {
    let [codes, scales] = levels else {
        return None;
    };
    let says = |key: &str, text: &str| scales.get(key).and_then(Value::as_str) == Some(text);
    let dtype = codes.get("dtype")?.as_str()?;
    let is_of_scales = scales.get("is_scale_quant")?.as_bool()?;
    let is_known = says("dtype", "fp8_e4m3") && says("qscheme", "per_tensor") && is_of_scales;
    if !is_known || !matches!(dtype, "int4" | "uint4" | "int8" | "uint8") {
        return None;
    }
    let mut args = codes.as_object()?.clone();
    args.insert(FP8_SCALES.to_owned(), true.into());
    Some(args)
}

/// Whether Quark's two `levels` of scales are NVFP4's: E4M3 for 16 codes of FP4, and one for all of
/// these.
fn is_nvfp4(levels: &[Value]) -> bool {
    let says =
        |level: &Value, key: &str, text: &str| level.get(key).and_then(Value::as_str) == Some(text);
    let [codes, scales] = levels else {
        return false;
    };
    says(codes, "dtype", "fp4")
        && says(codes, "qscheme", "per_group")
        && codes.get("group_size").and_then(Value::as_i64) == Some(16)
        && says(scales, "dtype", "fp8_e4m3")
        && says(scales, "qscheme", "per_tensor")
}

impl ModuleRules {
    /// ModelOpt: an object for each of some modules, by path or pattern.
    pub(super) fn read_modelopt(&mut self, place: &ConfigPlace) {
        for (path, value) in objects(place, "quantized_layers") {
            self.add(place, self.matcher(path), value);
        }
    }

    /// AutoRound: `extra_config`, by a module's name or an expression.
    pub(super) fn read_auto_round(&mut self, place: &ConfigPlace) {
        for (name, value) in place.entries("extra_config") {
            let is_float = value
                .get("bits")
                .and_then(Value::as_i64)
                .is_some_and(|bits| bits >= FLOAT_BITS);
            // AutoRound keeps such a module as a float tensor, so nothing of it is stored as codes.
            let value = if is_float { &Value::Bool(false) } else { value };
            self.add(place, Some(ModuleMatcher::Path(name.to_owned())), value);
            // AutoRound takes a key that is no module's name for an expression, and searches names
            // for it.
            if name.contains(|c: char| r"*+?[](){}|^$\".contains(c)) {
                // Entered besides the path: a key with such characters can still be a module's
                // name.
                self.add(place, self.expression(name, Pattern::anywhere), value);
            }
        }
    }

    /// GPTQModel: `dynamic`, by expressions; one after `-:` leaves its modules unquantized.
    pub(super) fn read_gptqmodel(&mut self, place: &ConfigPlace) {
        // In the order of the file, as gptqmodel's `dynamic_get` returns the first pattern that
        // matches.
        for (pattern, value) in place.entries("dynamic") {
            let (text, value) = match pattern.strip_prefix("-:") {
                Some(text) => (text, &Value::Bool(false)),
                None => (pattern.strip_prefix("+:").unwrap_or(pattern), value),
            };
            self.add(place, self.expression(text, Pattern::from_start), value);
        }
    }

    /// MLX: a module's path is a key of the config.
    pub(super) fn read_mlx(&mut self, place: &ConfigPlace) {
        self.is_of_mlx |= place.name == "config.json: quantization";
        // The settings of the config lie under the same object as the modules. Their keys have no
        // dot, as modules at the top (`lm_head`, `output`, `score`) have none; none is an object
        // with one of these.
        let is_entry = |value: &Value| {
            ["bits", "group_size"]
                .iter()
                .any(|key| value.get(key).is_some())
        };
        let paths = place
            .values
            .iter()
            .filter(|(path, value)| path.contains('.') || is_top_module(path) || is_entry(value));
        paths.for_each(|(path, value)| {
            self.add(place, Some(ModuleMatcher::Path(path.clone())), value);
        });
    }

    /// Quark: what the config says of weights, by path or pattern (`layer_quant_config`), and of
    /// all others (`global_quant_config`).
    pub(super) fn read_quark(&mut self, place: &ConfigPlace) {
        let export = place
            .get("export")
            .and_then(|export| export.get("pack_method"));
        let weight = |layer: &Value| {
            let mut args = match layer.get("weight")? {
                Value::Object(args) => args.clone(),
                // Quark leaves a layer alone by a `weight` of null.
                Value::Null => return Some(Value::Bool(false)),
                // One level may be a list as well (vLLM `_unwrap_single_quant_config`).
                Value::Array(levels) if levels.len() == 1 => levels[0].as_object()?.clone(),
                Value::Array(levels) if is_nvfp4(levels) => {
                    object([("dtype".to_owned(), NVFP4.into())])
                }
                Value::Array(levels) if let Some(args) = integers_of_fp8(levels) => args,
                Value::Array(levels) if let Some(args) = integers_of_fp8_scales(levels) => args,
                // A list describes several levels of scales. Its text becomes a dtype that no
                // scheme decodes, so that the weight is refused.
                levels => object([("dtype".to_owned(), Value::String(levels.to_string()))]),
            };
            // The order of packing is stated once for the model, but belongs to each weight, so it
            // joins every rule.
            args.extend(export.map(|method| ("pack_method".to_owned(), method.clone())));
            Some(Value::Object(args))
        };
        for (path, layer) in objects(place, "layer_quant_config") {
            let rule = weight(layer).unwrap_or_else(|| layer.clone());
            self.add(place, self.matcher(path), &rule);
        }
        // The global rule is for whatever has no rule of its own, hence the class of all modules.
        if let Some(weight) = place.get("global_quant_config").and_then(weight) {
            self.add(place, Some(ModuleMatcher::Class(String::new())), &weight);
        }
    }

    /// VPTQ: an object for each module by its path (`config_for_layers`), or by the last part of
    /// its path, which modules of all layers have (`shared_layer_config`).
    pub(super) fn read_vptq(&mut self, place: &ConfigPlace) {
        for (path, value) in objects(place, "config_for_layers") {
            self.add(place, Some(ModuleMatcher::Path(path.clone())), value);
        }
        for (name, value) in objects(place, "shared_layer_config") {
            let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let last = format!(r"(.*\.)?{name}$");
            let last = is_plain.then(|| self.expression(&last, Pattern::from_start));
            self.add(place, last.flatten(), value);
        }
    }

    /// compressed-tensors: groups of modules (`config_groups`), each with its targets: paths,
    /// patterns and classes. Where several fit a module, the order is by their texts, expressions
    /// after the others and classes last. Of one target in two groups the last counts
    /// (compressed-tensors `apply_quantization_config`, `match_targets`).
    pub(super) fn read_compressed_tensors(&mut self, place: &ConfigPlace) {
        // Keyed as `match_targets` sorts: by whether it is an expression, then by the text.
        let mut by_target = BTreeMap::new();
        for (name, group) in place.entries("config_groups") {
            // A list of targets alone is a group that has the name of a preset.
            let preset = || group.is_array().then(|| presets::weights(name))?;
            let stated = group.get("weights").and_then(Value::as_object).cloned();
            let Some(mut args) = stated.or_else(preset) else {
                continue;
            };
            // The group's format is more specific than the one of the whole config, which may be
            // `mixed-precision`.
            if let Some(format) = group.get("format") {
                args.insert("format".to_owned(), format.clone());
            }
            let mut rule = ModuleSettings::new(&args, place);
            let targets = group.get("targets").unwrap_or(group).as_array();
            for target in targets.into_iter().flatten().filter_map(Value::as_str) {
                let key = (target.contains("re:"), target);
                let other = by_target.remove(&key).filter(|other| *other != rule);
                if let Some(other) = other {
                    rule = ModuleSettings::with_other(&rule, other);
                }
                by_target.insert(key, rule.clone());
            }
        }
        for ((_, target), rule) in by_target {
            let is_path = target.starts_with("re:") || target.contains('.');
            // A target without a dot and without `re:` is a class, such as `Linear`, or a module at
            // the top, such as `score`.
            if !is_path && !is_top_module(target) {
                let class = ModuleMatcher::Class(target.to_owned());
                self.enter(Some(class), Some(rule.clone()));
            }
            self.enter(self.matcher(target), Some(rule));
        }
    }
}
