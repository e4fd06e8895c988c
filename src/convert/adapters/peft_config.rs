//! `adapter_config.json` of PEFT: ranks and scales of modules, and what is refused.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::composed::ComposedForm;
use super::tokens::TrainedTokens;
use crate::config::Selection;
use crate::{AnamnesisError, Result};

/// Settings that change nothing of what is merged: where the adapter belongs, how it was trained,
/// how it was initialised.
const IGNORED: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

/// Settings that are read here.
const READ: &[&str] = &[
    "alpha_pattern",
    "bias",
    "ensure_weight_tying",
    "fan_in_fan_out",
    "init_lora_weights",
    "lora_alpha",
    "lora_bias",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
    "use_rslora",
];

/// Settings of LoHa and LoKr that are read here, or tell how tensors were made.
const OF_COMPOSED: &[&str] = &[
    "alpha",
    "alpha_pattern",
    "decompose_both",
    "decompose_factor",
    "init_weights",
    "module_dropout",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_dropout",
    "rank_dropout_scale",
    "rank_pattern",
    "use_effective_conv2d",
];

/// Settings that PEFT regards as on unless they are null, even if they are empty.
const ON_UNLESS_NULL: &[&str] = &[
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "use_bdlora",
    "velora_config",
];

/// Initialisations that leave the base's weights as they are. Others, such as PiSSA, take their
/// part out of the base before training, so that the adapter belongs to another base than the one
/// that is published.
const INITIALISATIONS: &[&str] = &["gaussian", "eva", "orthogonal", "mica"];

/// Most patterns of ranks or scales. Each may be tried for each module.
const MAX_PATTERNS: usize = 4096;

/// The settings of a LoRA adapter, of LoHa or LoKr.
pub(super) struct PeftConfig {
    /// How the matrices of LoHa and LoKr are multiplied; `None`: LoRA.
    pub form: Option<ComposedForm>,
    rank: f64,
    pub alpha: f64,
    /// Whether the scale is `alpha / sqrt(rank)`, not `alpha / rank`.
    has_root_scale: bool,
    rank_pattern: Vec<(Selection, f64)>,
    alpha_pattern: Vec<(Selection, f64)>,
    /// Whether weights are stored as `[in, out]`.
    pub is_transposed: bool,
    /// Whether rows get lengths of the adapter (DoRA).
    pub has_lengths: bool,
    /// Whether the second factors have biases (`lora_bias`).
    pub has_bias_of_b: bool,
    /// Whether biases of the base were trained as well (`bias`).
    pub has_trained_biases: bool,
    /// Ends of the names of weights that have factors though they are no weight of a module of
    /// their own (`target_parameters`).
    pub parameters: BTreeSet<String>,
    /// Whether the head has what was trained of the embedding (`ensure_weight_tying`).
    pub has_tied_head: bool,
    /// The rows of embeddings that were trained (`trainable_token_indices`).
    pub tokens: TrainedTokens,
    /// Ends of the names of modules of which copies were trained (`modules_to_save`).
    saved_modules: BTreeSet<String>,
}

impl PeftConfig {
    /// # Errors
    /// `Unsupported` if the adapter is no LoRA, or a setting is unknown or not merged here; `Parse`
    /// if a value has another type than PEFT gives it.
    pub(super) fn new(config: &Value) -> Result<Self> {
        let Some(config) = config.as_object() else {
            return Err(AnamnesisError::parse("it is no JSON object"));
        };
        let form = match config.get("peft_type").and_then(Value::as_str) {
            Some("LORA") => None,
            Some("LOHA") => Some(ComposedForm::Hadamard),
            Some("LOKR") => Some(ComposedForm::Kronecker),
            Some(other) => {
                let what = "adapters of this `peft_type` are not merged; LORA, LOHA and LOKR are";
                return Err(AnamnesisError::unsupported(format!("{other} of PEFT"), what));
            }
            None => return Err(AnamnesisError::parse("it has no `peft_type`")),
        };
        let (read, alpha) = match form {
            Some(_) => (OF_COMPOSED, "alpha"),
            None => (READ, "lora_alpha"),
        };
        let known = |key: &str| IGNORED.contains(&key) || read.contains(&key);
        // PEFT adds settings with each release. One that is off changes nothing; one that is on may
        // change every weight.
        if let Some((key, value)) = config
            .iter()
            .find(|(key, value)| !known(key) && is_on(key, value))
        {
            return Err(refused(key, value));
        }
        let has_trained_biases = match config.get("bias") {
            None | Some(Value::Null) => false,
            Some(bias) if bias == "none" => false,
            Some(bias) if bias == "all" || bias == "lora_only" => true,
            Some(bias) => return Err(refused("bias", bias)),
        };
        match config.get("init_lora_weights") {
            None | Some(Value::Null | Value::Bool(_)) => {}
            Some(Value::String(name)) if INITIALISATIONS.contains(&name.as_str()) => {}
            Some(other) => {
                let what = format!(
                    "`init_lora_weights` is {other}: it changes the base's weights; PEFT saves a plain LoRA of it with `path_initial_model_for_weight_conversion`"
                );
                return Err(AnamnesisError::unsupported("an adapter", what));
            }
        }
        let (has_lengths, has_bias_of_b) = (flag(config, "use_dora")?, flag(config, "lora_bias")?);
        if has_lengths && has_bias_of_b {
            // PEFT makes no such adapter.
            return Err(refused("lora_bias", &Value::from("true, with `use_dora`")));
        }
        Ok(Self {
            form,
            rank: number(config, "r")?,
            alpha: number(config, alpha)?,
            has_root_scale: flag(config, "use_rslora")?,
            rank_pattern: patterns(config, "rank_pattern")?,
            alpha_pattern: patterns(config, "alpha_pattern")?,
            is_transposed: flag(config, "fan_in_fan_out")?,
            has_lengths,
            has_bias_of_b,
            has_trained_biases,
            parameters: names(config, "target_parameters")?,
            has_tied_head: flag(config, "ensure_weight_tying")?,
            tokens: TrainedTokens::new(config.get("trainable_token_indices"))?,
            saved_modules: names(config, "modules_to_save")?,
        })
    }

    /// Whether a copy of a module that has `weight` was trained.
    pub(super) fn is_copied(&self, weight: &str) -> bool {
        let mut modules = weight.match_indices('.').map(|(at, _)| &weight[..at]);
        // As PEFT's `_set_trainable` matches them.
        let is_saved = |module: &str| {
            self.saved_modules
                .iter()
                .any(|end| module.ends_with(&**end))
        };
        modules.any(is_saved)
    }

    /// The rank of the module `module`, and the scale of its product.
    ///
    /// # Errors
    /// `Parse` if patterns give it different values; `LimitExceeded` if a pattern takes too many
    /// steps.
    pub(super) fn rank_and_scale(&self, module: &str) -> Result<(f64, f64)> {
        let rank = value_of(&self.rank_pattern, module, self.rank)?;
        let alpha = value_of(&self.alpha_pattern, module, self.alpha)?;
        let scale = match self.has_root_scale {
            true => alpha / rank.sqrt(),
            false => alpha / rank,
        };
        Ok((rank, scale))
    }
}

/// Whether the setting `key` is on.
fn is_on(key: &str, value: &Value) -> bool {
    match ON_UNLESS_NULL.contains(&key) {
        true => !value.is_null() && value != false,
        false => is_set(value),
    }
}

/// Whether a value is neither null, false, 0 nor empty.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

fn refused(key: &str, value: &Value) -> AnamnesisError {
    let what = format!("its `{key}` is {value}, which is not merged");
    AnamnesisError::unsupported("an adapter", what)
}

/// A positive number.
fn number(config: &Map<String, Value>, key: &str) -> Result<f64> {
    let value = config.get(key).unwrap_or(&Value::Null);
    positive(value).ok_or_else(|| {
        AnamnesisError::parse(format!("its `{key}` is {value}, and no positive number"))
    })
}

fn positive(value: &Value) -> Option<f64> {
    value.as_f64().filter(|x| *x > 0.0 && x.is_finite())
}

fn flag(config: &Map<String, Value>, key: &str) -> Result<bool> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(value) => Err(AnamnesisError::parse(format!(
            "its `{key}` is {value}, and neither true nor false"
        ))),
    }
}

/// A list of names.
fn names(config: &Map<String, Value>, key: &str) -> Result<BTreeSet<String>> {
    let wrong = || AnamnesisError::parse(format!("its `{key}` is no list of names"));
    match config.get(key) {
        None | Some(Value::Null) => Ok(BTreeSet::new()),
        Some(Value::Array(names)) => {
            let name = |name: &Value| name.as_str().map(str::to_owned).ok_or_else(wrong);
            names.iter().map(name).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// Expressions over the ends of modules' names, each with a number.
fn patterns(config: &Map<String, Value>, key: &str) -> Result<Vec<(Selection, f64)>> {
    let fields = match config.get(key) {
        None | Some(Value::Null) => return Ok(vec![]),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(AnamnesisError::parse(format!("its `{key}` is no object"))),
    };
    if fields.len() > MAX_PATTERNS {
        return Err(AnamnesisError::LimitExceeded {
            limit: "patterns of an adapter",
            message: format!("its `{key}` has {}, and {MAX_PATTERNS} are read", fields.len()),
        });
    }
    let pattern = |(text, value): (&String, &Value)| {
        // As peft's `get_pattern_key` matches it.
        let expression = format!(r"re:(?:.*\.)?(?:{text})$");
        let number = positive(value).ok_or_else(|| {
            let what = format!("its `{key}` has {value} for `{text}`, and no positive number");
            AnamnesisError::parse(what)
        })?;
        // The pattern is the adapter's, and none of an option.
        let pattern = Selection::of(&[expression]).map_err(|error| match error {
            AnamnesisError::Usage { message } => {
                AnamnesisError::parse(format!("its `{key}`: {message}"))
            }
            error => error,
        })?;
        Ok((pattern, number))
    };
    fields.iter().map(pattern).collect()
}

/// The number that patterns give `module`, or `default`.
fn value_of(patterns: &[(Selection, f64)], module: &str, default: f64) -> Result<f64> {
    let mut found: Option<f64> = None;
    for (pattern, value) in patterns {
        let is_match = pattern.has(module);
        pattern.check()?;
        if !is_match {
            continue;
        }
        // PEFT takes the first in the order of its file, which a sorted map no longer has.
        if found.is_some_and(|before| before != *value) {
            let what = format!(
                "module `{module}`: patterns of its rank or its scale contradict each other"
            );
            return Err(AnamnesisError::parse(what));
        }
        found = Some(*value);
    }
    Ok(found.unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(more: &Value) -> Result<PeftConfig> {
        let mut all = json!({"peft_type": "LORA", "r": 8, "lora_alpha": 12, "bias": "none"});
        let (all_fields, more) = (all.as_object_mut().unwrap(), more.as_object().unwrap());
        all_fields.extend(more.clone());
        PeftConfig::new(&all)
    }

    #[test]
    fn scales() {
        let plain = config(&json!({})).unwrap();
        assert_eq!(plain.rank_and_scale("a.q_proj").unwrap(), (8.0, 1.5));
        let patterns = json!({
            "use_rslora": true,
            "rank_pattern": {"q_proj": 4, "layers.1.v_proj": 16},
            "alpha_pattern": {r"layers\.\d+\.v_proj": 2},
        });
        let by_pattern = config(&patterns).unwrap();
        for (module, expected) in [
            ("layers.0.q_proj", (4.0, 6.0)),
            ("layers.0.my_q_proj", (8.0, 12.0 / 8.0_f64.sqrt())),
            ("layers.1.v_proj", (16.0, 0.5)),
            ("layers.1.v_proj.x", (8.0, 12.0 / 8.0_f64.sqrt())),
        ] {
            assert_eq!(by_pattern.rank_and_scale(module).unwrap(), expected, "{module}");
        }
        let twice = json!({"rank_pattern": {"q_proj": 4, ".*_proj": 5}});
        assert!(config(&twice).unwrap().rank_and_scale("a.q_proj").is_err());
        assert!(config(&twice).unwrap().rank_and_scale("a.k_proj").is_ok());
    }

    #[test]
    fn what_is_not_merged_is_refused() {
        for more in [
            json!({"peft_type": "LOHA"}),
            json!({"peft_type": null}),
            json!({"bias": "some"}),
            json!({"init_lora_weights": "pissa_niter_4"}),
            json!({"layer_replication": [[0, 1]]}),
            json!({"lora_bias": 1}),
            json!({"lora_bias": true, "use_dora": true}),
            json!({"target_parameters": "experts.down_proj"}),
            json!({"target_parameters": [1]}),
            json!({"alora_invocation_tokens": [1]}),
            json!({"alora_invocation_tokens": []}),
            json!({"arrow_config": {}}),
            json!({"kasa_config": {}}),
            json!({"use_bdlora": {}}),
            json!({"megatron_config": {"a": 1}}),
            json!({"use_qalora": true}),
            json!({"init_lora_weights": "olora"}),
            json!({"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}}),
            json!({"init_lora_weights": "corda"}),
            json!({"init_lora_weights": "lora_ga"}),
            json!({"ensure_weight_tying": 1}),
            json!({"trainable_token_indices": 1}),
            json!({"trainable_token_indices": [1, -1]}),
            json!({"trainable_token_indices": [1, 1]}),
            json!({"trainable_token_indices": {"a": "b"}}),
            json!({"something_new": {"a": 1}}),
            json!({"r": 0}),
            json!({"r": "8"}),
            json!({"lora_alpha": -1}),
            json!({"use_dora": 1}),
            json!({"rank_pattern": {"(": 1}}),
            json!({"alpha_pattern": {"a": null}}),
        ] {
            assert!(config(&more).is_err(), "{more}");
        }
        let off = json!({"something_new": null, "other": {}, "init_lora_weights": "gaussian"});
        assert!(config(&off).is_ok());
    }
}
