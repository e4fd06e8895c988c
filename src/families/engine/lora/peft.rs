//! `adapter_config.json` of PEFT for a LoRA that is written.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use crate::families::engine::to_hf::pretty;

/// What PEFT's names begin with.
pub(crate) const PEFT_PREFIX: &str = "base_model.model.";

/// A LoRA of PEFT: rank and alpha of each module.
#[derive(Default)]
pub(crate) struct PeftSettings {
    pub modules: BTreeMap<String, (usize, f64)>,
    /// Modules without factors that PEFT would find by the name of one that has some.
    pub excluded: Vec<String>,
    /// What the model is for; `None`: PEFT wraps it as it is.
    pub task: Option<&'static str>,
    /// Whether the weights of modules are `[in, out]`.
    pub is_turned: bool,
}

impl PeftSettings {
    /// Name and text of the file.
    pub(crate) fn file(&self) -> (String, String) {
        let modules = || self.modules.iter();
        let (rank, ranks) = patterns(modules().map(|(module, of)| (module, of.0 as f64)));
        let (alpha, alphas) = patterns(modules().map(|(module, of)| (module, of.1)));
        let mut config = json!({
            "peft_type": "LORA",
            "task_type": self.task,
            "base_model_name_or_path": null,
            "inference_mode": true,
            "r": rank,
            "lora_alpha": alpha,
            "rank_pattern": ranks,
            "alpha_pattern": alphas,
            "target_modules": self.modules.keys().collect::<Vec<_>>(),
            "fan_in_fan_out": self.is_turned,
            "bias": "none",
        });
        if !self.excluded.is_empty() {
            // A list would exclude modules whose names end as these, too.
            let excluded: Vec<String> = self.excluded.iter().map(|name| escaped(name)).collect();
            config["exclude_modules"] = excluded.join("|").into();
        }
        ("adapter_config.json".to_owned(), pretty(&config))
    }
}

/// The number that most modules have, the largest of several, and those of the others by expressions
/// that PEFT finds one module by.
fn patterns<'a>(
    all: impl Iterator<Item = (&'a String, f64)> + Clone,
) -> (Value, Map<String, Value>) {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for (_, number) in all.clone() {
        *counts.entry(number.to_bits()).or_default() += 1;
    }
    let most = |&(bits, count): &(u64, usize)| (count, bits);
    let (usual, _) = counts
        .into_iter()
        .max_by_key(most)
        .unwrap_or((1.0_f64.to_bits(), 0));
    let others = all.filter(|(_, number)| number.to_bits() != usual);
    let pattern =
        |(module, of): (&String, f64)| (format!("^{}", escaped(module)), whole_or_float(of));
    (whole_or_float(f64::from_bits(usual)), others.map(pattern).collect())
}

/// A number as PEFT has it, where whole ones are integers.
fn whole_or_float(number: f64) -> Value {
    match number.fract() == 0.0 && number.abs() < 1e15 {
        true => Value::from(number as i64),
        false => Value::from(number),
    }
}

/// An expression of `name` alone.
fn escaped(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if !(c.is_alphanumeric() || c == '_') {
            text.push('\\');
        }
        text.push(c);
    }
    text
}
