//! [`LayersLeft`]: a model without some of its layers. The others are numbered anew, and what a config
//! or the metadata says of each layer, or by their numbers, follows.
//!
//! `llama-quantize --prune-layers` changes names and the number of layers, and nothing else:
//! <https://github.com/ggml-org/llama.cpp/blob/b11434/src/llama-quant.cpp>.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::fields::{HEADS, INNER, KV_HEADS, LAYER_KINDS, LAYERS};
use super::names::of_language_model;
use super::table::ModelClass;
use crate::limits::join_first;
use crate::model::gguf::{GgufMetadata, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// Architectures whose layers differ by nothing but what the lists and numbers below say, and what the
/// traits of a class say of every so many layers.
const KNOWN: &[&str] = &[
    "bloom",
    "cohere2",
    "command-r",
    "deepseek",
    "deepseek2",
    "ernie4_5",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "glm4",
    "glm4moe",
    "gpt-oss",
    "gpt2",
    "gptneox",
    "granite",
    "granitemoe",
    "internlm2",
    "lfm2",
    "lfm2moe",
    "llama",
    "mamba",
    "mamba2",
    "mistral3",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "olmoe",
    "phi2",
    "phi3",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "qwen3next",
    "seed_oss",
    "stablelm",
    "starcoder2",
];

/// Fields that have an entry for each layer, if they are lists.
const ENTRIES: &[&[&str]] = &[
    &[LAYER_KINDS, "mlp_layer_types", "layers_block_type", "moe_layer_freq"],
    HEADS,
    KV_HEADS,
    INNER,
];

/// Fields that are numbers of layers.
const NUMBERS: &[&str] = &["mlp_only_layers", "full_attn_idxs"];

/// Fields that are how many of the first layers are of another kind than the rest.
const FIRST: &[&str] = &["first_k_dense_replace", "num_dense_layers", "max_window_layers"];

/// Fields that are how many layers there are from one of a kind to the next.
const EVERY: &[&str] = &["decoder_sparse_step", "moe_layer_freq"];

/// Flags that the number of a layer counts in what it computes.
const BY_NUMBER: &[&str] = &["scale_attn_by_inverse_layer_idx"];

/// Lists that may be as long as the model has layers, and say nothing of them.
const OTHER_LISTS: &[&str] = &[
    "architectures",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "suppress_tokens",
    "time_step_limit",
];

/// Keys, without the architecture's name, that have an entry for each layer, if they are arrays.
const ENTRY_KEYS: &[&[&str]] =
    &[&["attention.head_count", "attention.head_count_kv", "feed_forward_length"], KIND_KEYS];

/// Those of them that say what each layer is.
const KIND_KEYS: &[&str] = &["attention.recurrent_layers", "attention.sliding_window_pattern"];

/// The same of those that are how many of the first layers are of another kind than the rest.
const FIRST_KEY: &str = "leading_dense_block_count";

/// Most layers that a message names.
const MAX_NAMED: usize = 5;

/// The layers of a model that stay.
pub(crate) struct LayersLeft {
    /// The number that each had.
    kept: Vec<usize>,
    /// How many layers there were. Those behind them, which predict further tokens, stay.
    layers: usize,
    /// What names of tensors of layers begin with, in front of the number.
    starts: Vec<String>,
}

/// What becomes of a field: its name, its value, and its value in the output.
pub(crate) type ChangedField = (&'static str, Value, Value);

impl LayersLeft {
    /// The layers of a model of the `classes`, one in transformers and perhaps several in GGUF, that
    /// are not among `pruned`, of so many.
    ///
    /// # Errors
    /// `Unsupported` if it is not known what depends on the numbers of layers; `Usage` if a layer
    /// that goes is none of the model's, or none stays.
    pub(crate) fn new(
        classes: &[&ModelClass],
        (name, layers): (&str, usize),
        pruned: &[RangeInclusive<usize>],
        is_gguf: bool,
    ) -> Result<Self> {
        let class = classes.first().filter(|class| KNOWN.contains(&class.gguf));
        let Some(class) = class else {
            let what = format!(
                "of `{name}` it is not known what else depends on the numbers of layers; those of {} can be left out",
                KNOWN.join(", ")
            );
            return Err(AnamnesisError::unsupported("--prune-layers", what));
        };
        if let Some(range) = pruned
            .iter()
            .find(|range| range.is_empty() || *range.end() >= layers)
        {
            let what = format!(
                "{}-{}: the model has the layers 0 to {}",
                range.start(),
                range.end(),
                layers.saturating_sub(1)
            );
            return Err(AnamnesisError::usage(format!("--prune-layers {what}")));
        }
        let stays = |layer: &usize| !pruned.iter().any(|range| range.contains(layer));
        let kept: Vec<usize> = (0..layers).filter(stays).collect();
        if kept.is_empty() {
            return Err(AnamnesisError::usage("--prune-layers: no layer is left"));
        }
        let rules = class.tensors.iter().copied().flatten();
        let in_layers = rules.filter_map(|rule| {
            let name = if is_gguf { rule.gguf } else { rule.hf };
            Some(name.split_once("{i}")?.0)
        });
        let mut starts: Vec<String> = vec![];
        for start in in_layers {
            let without = start.strip_prefix(&*class.base_prefix()).unwrap_or(start);
            for start in [start, without] {
                if !starts.iter().any(|known| known == start) {
                    starts.push(start.to_owned());
                }
            }
        }
        Ok(Self { kept, layers, starts })
    }

    /// The name that the tensor `name` gets; `None`: it is left out.
    pub(crate) fn new_name<'n>(&self, name: &'n str) -> Option<Cow<'n, str>> {
        let own = of_language_model(name);
        let mut found = self.starts.iter().filter_map(|start| {
            let (number, rest) = own.strip_prefix(start)?.split_once('.')?;
            Some((number, number.parse::<usize>().ok()?, rest))
        });
        let Some((digits, layer, rest)) = found.next() else {
            return Some(Cow::Borrowed(name));
        };
        let new = self.new_number(layer)?;
        let before = &name[..name.len() - rest.len() - 1 - digits.len()];
        Some(Cow::Owned(format!("{before}{new}.{rest}")))
    }

    /// The number that `layer` gets; `None`: it is left out.
    fn new_number(&self, layer: usize) -> Option<usize> {
        match layer.checked_sub(self.layers) {
            Some(behind) => Some(self.kept.len() + behind),
            None => self.kept.binary_search(&layer).ok(),
        }
    }

    /// How many layers stay of the first `count`.
    fn first(&self, count: u64) -> usize {
        let before = |kept: &&usize| (**kept as u64) < count;
        self.kept.iter().filter(before).count()
    }

    /// Those of the entries, one for each layer, whose layers stay.
    fn entries(&self, entries: &[Value]) -> Value {
        let entries = entries.iter().enumerate();
        entries
            .filter(|(layer, _)| self.new_number(*layer).is_some())
            .map(|(_, entry)| entry.clone())
            .collect()
    }

    /// The fields of `config` that change.
    ///
    /// # Errors
    /// `Unsupported` if a field says of the layers what no field of the output could say.
    pub(crate) fn fields(
        &self,
        classes: &[&ModelClass],
        config: &Value,
    ) -> Result<Vec<ChangedField>> {
        self.check_texts(config)?;
        let mut members = config.as_object().into_iter().flatten();
        let has_layers =
            |(_, inner): &(&String, &Value)| LAYERS.iter().any(|&key| inner.get(key).is_some());
        if let Some((part, _)) = members.find(has_layers) {
            let what = format!("config.json has layers in `{part}` too: a model of several parts");
            return Err(AnamnesisError::unsupported("--prune-layers", what));
        }
        if let Some(flag) = BY_NUMBER.iter().find(|&&flag| config[flag] == true) {
            let what = format!("`{flag}`: each layer computes by its number");
            return Err(AnamnesisError::unsupported("--prune-layers", what));
        }
        let states_kinds = config[LAYER_KINDS].is_array();
        for class in classes.iter().filter(|_| !states_kinds) {
            self.check_periods_of(class)?;
        }
        let mut changed = vec![];
        let mut known: Vec<&str> = OTHER_LISTS.to_vec();
        for &field in LAYERS {
            if config[field].as_u64() == Some(self.layers as u64) {
                changed.push((field, self.first(self.layers as u64).into()));
            }
        }
        for &field in ENTRIES.iter().copied().flatten() {
            if let Some(entries) = config[field].as_array() {
                changed.push((field, self.entries(entries)));
                known.push(field);
            }
        }
        for &field in NUMBERS {
            if let Some(numbers) = config[field].as_array() {
                let new = |number: &Value| self.new_number(number.as_u64()? as usize);
                changed.push((field, numbers.iter().filter_map(new).collect()));
                known.push(field);
            }
        }
        for &field in FIRST {
            if let Some(count) = config[field].as_u64() {
                changed.push((field, self.first(count.min(self.layers as u64)).into()));
            }
        }
        for &field in EVERY {
            self.check_period(config[field].as_u64().unwrap_or(1), field)?;
        }
        let fields = config.as_object().into_iter().flatten();
        for (field, value) in fields.filter(|(field, _)| !known.contains(&&***field)) {
            if value
                .as_array()
                .is_some_and(|list| list.len() == self.layers && self.layers > 1)
            {
                return Err(unknown(&format!("`{field}` of config.json")));
            }
        }
        let with_old = |(field, new): (&'static str, Value)| (field, config[field].clone(), new);
        Ok(changed.into_iter().map(with_old).collect())
    }

    /// The keys of `metadata` that change.
    ///
    /// # Errors
    /// As [`fields`](Self::fields).
    pub(crate) fn keys(
        &self,
        classes: &[&ModelClass],
        metadata: &GgufMetadata,
    ) -> Result<Vec<(String, GgufMetadataValue)>> {
        let Some(class) = classes.first() else {
            return Ok(vec![]);
        };
        let whole = |key: &str| format!("{}.{key}", class.gguf);
        // Kinds of layers are those of a list, or llama.cpp goes by their numbers.
        let has_list = KIND_KEYS.iter().any(|key| {
            let kinds = metadata.get(&whole(key));
            kinds.is_some_and(|kinds| kinds.as_array().is_some())
        });
        if !has_list && metadata.get(&whole("attention.sliding_window")).is_some() {
            for class in classes {
                self.check_periods_of(class)?;
            }
        }
        let blocks = metadata
            .get(&whole("block_count"))
            .and_then(|n| n.as_unsigned());
        let blocks = blocks.map_or(self.layers, |n| n as usize);
        let number = |n: usize| GgufMetadataValue::U32(n as u32);
        let left = blocks.saturating_sub(self.layers - self.kept.len());
        let mut changed = vec![(whole("block_count"), number(left))];
        if let Some(count) = metadata
            .get(&whole(FIRST_KEY))
            .and_then(|n| n.as_unsigned())
        {
            changed.push((whole(FIRST_KEY), number(self.first(count))));
        }
        for (key, mut value) in metadata.iter() {
            let Some(own) = key.strip_prefix(&whole("")) else {
                continue;
            };
            let GgufMetadataValue::Array(array) = &mut value else {
                continue;
            };
            let is_entry = ENTRY_KEYS.iter().any(|keys| keys.contains(&own));
            if is_entry {
                array.retain(|layer| self.new_number(layer).is_some());
                changed.push((key.to_owned(), value));
            } else if array.len() == blocks && blocks > 1 && !own.starts_with("rope.") {
                return Err(unknown(&format!("key `{key}`")));
            }
        }
        Ok(changed)
    }

    /// Fails if a layer gets another place among the layers from one of a kind to the next.
    fn check_periods_of(&self, class: &ModelClass) -> Result<()> {
        let traits = &class.traits;
        let periods = [traits.full_attention_every, traits.layer_kinds.map(|(_, every)| every)];
        let mut periods = periods.into_iter().flatten();
        periods.try_for_each(|period| self.check_period(period as u64, class.gguf))
    }

    fn check_period(&self, period: u64, what: &str) -> Result<()> {
        let moved = |(new, old): &(usize, &usize)| {
            !(**old as u64)
                .abs_diff(*new as u64)
                .is_multiple_of(period.max(1))
        };
        let Some((new, old)) = self.kept.iter().enumerate().find(moved) else {
            return Ok(());
        };
        let reason = format!(
            "one of {period} layers is of another kind ({what}), and layer {old} would be layer {new}: leave out {period} in a row, or the last ones"
        );
        Err(AnamnesisError::unsupported("--prune-layers", reason))
    }

    /// Fails if a text or a key of `config` names a layer: it would mean another one.
    fn check_texts(&self, config: &Value) -> Result<()> {
        let mut named = vec![];
        let mut rest = vec![config];
        while let Some(value) = rest.pop() {
            match value {
                Value::String(text) => named.extend(self.names_layer(text).then_some(text)),
                Value::Array(values) => rest.extend(values),
                Value::Object(members) => {
                    named.extend(members.keys().filter(|key| self.names_layer(key)));
                    rest.extend(members.values());
                }
                _ => {}
            }
        }
        match named.is_empty() {
            true => Ok(()),
            false => Err(unknown(&format!("config.json ({})", join_first(&named, MAX_NAMED)))),
        }
    }

    /// Whether `text`, a name or an expression, has the number of a layer.
    fn names_layer(&self, text: &str) -> bool {
        let plain = text.replace('\\', "");
        let is_number =
            |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit() || "([".contains(c));
        self.starts.iter().any(|start| {
            let word = start
                .trim_end_matches('.')
                .rsplit('.')
                .next()
                .unwrap_or(start);
            plain.split(&format!("{word}.")).skip(1).any(is_number)
        })
    }
}

fn unknown(what: &str) -> AnamnesisError {
    let what = format!(
        "{what} has an entry for each layer, or names one, and it is not known what becomes of it"
    );
    AnamnesisError::unsupported("--prune-layers", what)
}
