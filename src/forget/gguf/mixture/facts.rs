//! What a mixture has to know of a model beside its tensors: from the metadata of a GGUF file, or from `config.json`.
//!
//! Source: llama.cpp 0.6.0 `src/llama-model.cpp` (`load_hparams`), `src/models/*.cpp` (which models are called 70B) and
//! `convert_hf_to_gguf.py` (what of `config.json` becomes metadata).

use serde_json::Value;

use super::Stacked;
use crate::containers::model::gguf::{GgufMetadata, GgufMetadataArray, GgufMetadataValue};

/// What the rules ask of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModelFacts {
    /// As llama.cpp calls it; empty if it is unknown.
    pub architecture: String,
    /// Number of layers, with those that predict further tokens.
    pub layers: i64,
    /// Those of them that predict further tokens.
    pub next_layers: i64,
    /// Experts of a layer.
    pub experts: i64,
    /// Heads of the first layer's attention.
    pub heads: i64,
    /// Those of its keys and values.
    pub kv_heads: i64,
    /// Whether there is metadata of a model, and what it does not say is not so.
    is_certain: bool,
}

impl ModelFacts {
    /// What the metadata of a GGUF file says.
    pub(crate) fn from_metadata(metadata: &GgufMetadata) -> Self {
        let Some(architecture) = metadata.get("general.architecture") else {
            return Self::default();
        };
        let architecture = architecture.as_string().unwrap_or_default().to_owned();
        let get = |key: &str| {
            metadata
                .get(&format!("{architecture}.{key}"))
                .as_ref()
                .and_then(first)
        };
        let number = |key: &str| get(key).unwrap_or(0);
        let (heads, next_layers) = (
            number("attention.head_count"),
            number("nextn_predict_layers"),
        );
        let layers = match architecture.as_str() {
            // It goes through its layers several times.
            "nanbeige" => {
                number("block_count").saturating_mul(get("num_loops").unwrap_or(1).max(1))
            }
            // A router is behind the last.
            "graniteswitch" => number("block_count").saturating_add(1),
            _ => number("block_count"),
        };
        let (experts, kv_heads) = (
            number("expert_count"),
            get("attention.head_count_kv").unwrap_or(heads),
        );
        let is_certain = get("block_count").is_some();
        Self {
            layers,
            next_layers,
            experts,
            heads,
            kv_heads,
            architecture,
            is_certain,
        }
    }

    /// What `config.json`, which is `root`, says.
    pub(crate) fn from_config(root: &Value) -> Self {
        let parts = ["text_config", "llm_config", "language_config"]
            .iter()
            .find_map(|key| root.get(key));
        let get = |key: &str| {
            let found = parts
                .and_then(|text| text.get(key))
                .or_else(|| root.get(key));
            found.filter(|value| !value.is_null())
        };
        let inner = |outer: &str, key: &str| get(outer)?.get(key)?.as_i64();
        let number = |keys: &[&str]| {
            let value = keys.iter().find_map(|key| get(key))?;
            value
                .as_i64()
                .or_else(|| value.as_array()?.first()?.as_i64())
        };
        let kind = get("model_type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let architecture = match kind {
            "RefinedWeb" | "RefinedWebModel" => "falcon",
            "mistral" | "mixtral" => "llama",
            "nemotron-nas" => "deci",
            other => other,
        };
        let heads = number(&["num_attention_heads", "n_head", "n_heads", "num_heads"]).unwrap_or(0);
        let kv_heads = number(&[
            "num_key_value_heads",
            "num_kv_heads",
            "n_head_kv",
            "n_kv_heads",
        ])
        .or_else(|| number(&["multi_query_group_num", "num_query_groups"]))
        .or_else(|| inner("attn_config", "kv_n_heads"))
        .or_else(|| get("multi_query")?.as_bool().filter(|&one| one).map(|_| 1));
        // Latent attention is stored as if all queries shared one key.
        let is_latent = get("kv_lora_rank").is_some() && !matches!(kind, "minicpm3" | "plm");
        let experts = number(&[
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "moe_num_experts",
        ])
        .or_else(|| inner("ffn_config", "moe_num_experts"));
        Self {
            architecture: architecture.to_owned(),
            layers: number(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])
                .unwrap_or(0),
            next_layers: 0,
            experts: experts.unwrap_or(0),
            heads,
            kv_heads: if is_latent {
                1
            } else {
                kv_heads.unwrap_or(heads)
            },
            is_certain: false,
        }
    }

    /// Whether nothing has to be guessed.
    pub(crate) fn are_certain(&self) -> bool {
        self.is_certain
    }

    /// With what tensors tell, where there is no metadata.
    pub(super) fn completed(&self, tensors: &[Stacked<'_>]) -> Self {
        let mut facts = self.clone();
        if self.is_certain {
            return facts;
        }
        let counted = tensors
            .iter()
            .map(|tensor| tensor.layer)
            .max()
            .unwrap_or(-1)
            .saturating_add(1);
        if counted > facts.layers {
            // A config counts those apart that predict further tokens.
            facts.next_layers = if facts.layers > 0 {
                counted - facts.layers
            } else {
                0
            };
            facts.layers = counted;
        }
        if facts.experts == 0 {
            let stacked = tensors
                .iter()
                .filter(|tensor| tensor.dims.len() == 3 && tensor.name.contains("_exps."));
            facts.experts = stacked
                .filter_map(|tensor| i64::try_from(*tensor.dims.first()?).ok())
                .max()
                .unwrap_or(0);
        }
        if facts.heads == 0 {
            let rows = |what: &str| {
                let found = tensors
                    .iter()
                    .find(|tensor| tensor.name.ends_with(what) && tensor.dims.len() == 2)?;
                i64::try_from(*found.dims.first()?).ok()
            };
            // As many rows for each head, as a rule.
            if let (Some(query), Some(key)) = (rows(".attn_q.weight"), rows(".attn_k.weight")) {
                (facts.heads, facts.kv_heads) = (query, key);
            }
        }
        facts
    }

    /// How many heads share a key.
    pub(crate) fn group(&self) -> i64 {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    /// Whether llama.cpp calls the model 70B.
    pub(crate) fn is_70b(&self) -> bool {
        let layers = self.layers - self.next_layers;
        match self.architecture.as_str() {
            "llama" | "llama-embed" => {
                layers == 80 && self.heads != self.kv_heads && self.experts != 8
            }
            "qwen2" | "deci" | "olmo" => layers == 80,
            "jais2" => layers == 68,
            _ => false,
        }
    }
}

/// A number, or the first of an array of them.
fn first(value: &GgufMetadataValue) -> Option<i64> {
    let number = |n: u64| i64::try_from(n).ok();
    let Some(array) = value.as_array() else {
        return value.as_unsigned().and_then(number);
    };
    match array {
        GgufMetadataArray::I32(items) => items.first().map(|&n| n.into()),
        GgufMetadataArray::U32(items) => items.first().map(|&n| n.into()),
        GgufMetadataArray::I64(items) => items.first().copied(),
        GgufMetadataArray::U64(items) => items.first().copied().and_then(number),
        GgufMetadataArray::I16(items) => items.first().map(|&n| n.into()),
        GgufMetadataArray::U16(items) => items.first().map(|&n| n.into()),
        GgufMetadataArray::I8(items) => items.first().map(|&n| n.into()),
        GgufMetadataArray::U8(items) => items.first().map(|&n| n.into()),
        _ => None,
    }
}
