//! Facts about a model on which its mixture depends, beside its tensors: from the metadata of a
//! GGUF file, or from `config.json`, completed from the tensors' names and shapes.
//!
//! Source: llama.cpp 0.6.0 `src/llama-model.cpp` (`load_hparams`), `src/models/*.cpp` (which models
//! are called 70B) and `convert_hf_to_gguf.py` (what of `config.json` becomes metadata).

use serde_json::Value;

use super::LlamaTensor;
use crate::model::gguf::{GgufMetadata, GgufMetadataArray, GgufMetadataValue};

/// The hyperparameters that the rules use (`llama_hparams`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModelFacts {
    /// llama.cpp's name of the architecture; empty if it is unknown.
    pub architecture: String,
    /// Number of layers, including those that predict further tokens.
    pub layers: i64,
    /// Number of layers that predict further tokens (`nextn_predict_layers`).
    pub nextn_layers: i64,
    /// Experts in a layer.
    pub experts: i64,
    /// Attention heads of the first layer.
    pub heads: i64,
    /// Heads of keys and values of the first layer.
    pub kv_heads: i64,
    /// Whether the facts are from a GGUF file's metadata, where a key that is missing means 0, not
    /// unknown.
    is_from_gguf: bool,
}

impl ModelFacts {
    /// The facts that the metadata of a GGUF file states.
    pub(crate) fn from_metadata(metadata: &GgufMetadata) -> Self {
        // Every key of the architecture carries its name, so without it nothing can be looked up.
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
        let (heads, nextn_layers) =
            (number("attention.head_count"), number("nextn_predict_layers"));
        let layers = match architecture.as_str() {
            // Nanbeige runs through its layers several times, and llama.cpp counts each pass.
            "nanbeige" => {
                number("block_count").saturating_mul(get("num_loops").unwrap_or(1).max(1))
            }
            // A router follows the last layer and counts as one.
            "graniteswitch" => number("block_count").saturating_add(1),
            _ => number("block_count"),
        };
        // Optional in llama.cpp (`load_hparams`), with the number of heads as the default.
        let (experts, kv_heads) =
            (number("expert_count"), get("attention.head_count_kv").unwrap_or(heads));
        let is_from_gguf = get("block_count").is_some();
        Self { layers, nextn_layers, experts, heads, kv_heads, architecture, is_from_gguf }
    }

    /// The facts of a `config.json` with the value `root`.
    pub(crate) fn from_config(root: &Value) -> Self {
        // Multimodal models nest the language model's config under one of these keys.
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
                // A list states a number for each layer; llama.cpp's rules ask for the first.
                .or_else(|| value.as_array()?.first()?.as_i64())
        };
        let kind = get("model_type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        // Names of `model_type` that `convert_hf_to_gguf.py` maps to another architecture, among
        // those that a rule asks for.
        let architecture = match kind {
            "RefinedWeb" | "RefinedWebModel" => "falcon",
            "mistral" | "mixtral" => "llama",
            "nemotron-nas" => "deci",
            other => other,
        };
        let heads = number(&["num_attention_heads", "n_head", "n_heads", "num_heads"]).unwrap_or(0);
        let kv_heads = number(&["num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"])
            .or_else(|| number(&["multi_query_group_num", "num_query_groups"]))
            .or_else(|| inner("attn_config", "kv_n_heads"))
            .or_else(|| get("multi_query")?.as_bool().filter(|&one| one).map(|_| 1));
        // llama.cpp's conversion stores latent attention as if all queries shared one key.
        let is_latent = get("kv_lora_rank").is_some() && !matches!(kind, "minicpm3" | "plm");
        let experts =
            number(&["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"])
                .or_else(|| inner("ffn_config", "moe_num_experts"));
        Self {
            architecture: architecture.to_owned(),
            layers: number(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])
                .unwrap_or(0),
            nextn_layers: 0,
            experts: experts.unwrap_or(0),
            heads,
            kv_heads: if is_latent {
                1
            } else {
                kv_heads.unwrap_or(heads)
            },
            is_from_gguf: false,
        }
    }

    /// Those of a tower of images or sounds, of which `llama-quantize` knows none.
    pub(crate) fn of_tower() -> Self {
        Self { architecture: "clip".to_owned(), is_from_gguf: true, ..Self::default() }
    }

    /// Whether the facts are from the metadata of a GGUF file, so that nothing has to be guessed.
    pub(crate) fn are_from_gguf(&self) -> bool {
        self.is_from_gguf
    }

    /// The facts, completed from `tensors` where a GGUF file's metadata does not state them.
    pub(super) fn completed(&self, tensors: &[LlamaTensor<'_>]) -> Self {
        let mut facts = self.clone();
        if self.is_from_gguf {
            return facts;
        }
        let counted = tensors
            .iter()
            .map(|tensor| tensor.layer)
            .max()
            .unwrap_or(-1)
            .saturating_add(1);
        if counted > facts.layers {
            // `num_hidden_layers` of a config does not include the layers that predict further
            // tokens.
            facts.nextn_layers = if facts.layers > 0 {
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
            // Queries and keys have as many rows for each head, so the ratio of rows is the ratio
            // of heads.
            if let (Some(query), Some(key)) = (rows(".attn_q.weight"), rows(".attn_k.weight")) {
                (facts.heads, facts.kv_heads) = (query, key);
            }
        }
        facts
    }

    /// Number of heads that share a key (`n_gqa`).
    pub(crate) fn gqa_ratio(&self) -> i64 {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    /// Whether llama.cpp calls the model 70B (`LLM_TYPE_70B`), which is by the number of layers.
    pub(crate) fn is_70b(&self) -> bool {
        // Layers that predict further tokens are not part of the model's size.
        let layers = self.layers - self.nextn_layers;
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

/// An integer, or the first of an array: some models state a number for each layer.
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
