//! Adapters in GGUF files, as llama.cpp's `convert_lora_to_gguf.py` writes them.
//!
//! `W.lora_a` `[rank, in]` and `W.lora_b` `[out, rank]` for a weight `W`; of `token_embd.weight`
//! `[tokens, rank]` and `[width, rank]`. `general.type` is `adapter`, `adapter.type` is `lora`.
//! What is added is the product times `adapter.lora.alpha / rank`, or the product itself if alpha
//! is 0 or missing.
//!
//! Source:
//! [llama-adapter.cpp](https://github.com/ggml-org/llama.cpp/blob/0650ea8c05bc6e31273182470197e9b2e50253e0/src/llama-adapter.cpp),
//! [export-lora.cpp](https://github.com/ggml-org/llama.cpp/blob/09de1292cd31552069022b49c29e6e736dff3d1b/tools/export-lora/export-lora.cpp).

use super::factors::FactorForm;
use super::sorted::SortedTensors;
use crate::model::gguf::{GgufMetadata, GgufMetadataValue};
use crate::remember::seam::wrong;
use crate::{AnamnesisError, ParsedModel, Result};

/// Keys that change nothing of what is merged.
const IGNORED: &[&str] =
    &["adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix"];

/// The settings of an adapter in a GGUF file.
pub(super) struct GgufAdapter {
    /// 0: products are added as they are.
    pub alpha: f64,
    /// Value of `general.architecture`, which is that of the model.
    pub architecture: Option<String>,
}

impl GgufAdapter {
    /// # Errors
    /// `Unsupported` if the file is no LoRA, or has a setting that is not merged; `Parse` if a
    /// value has another type than llama.cpp gives it.
    pub(super) fn new(model: &ParsedModel) -> Result<Self> {
        let Some(gguf) = &model.gguf else {
            return Err(AnamnesisError::parse("it is no GGUF file"));
        };
        let metadata = gguf.metadata();
        for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            let value = metadata.get(key);
            let value = value.as_ref().and_then(GgufMetadataValue::as_string);
            if value != Some(expected) {
                let found =
                    value.map_or_else(|| "missing".to_owned(), |value| format!("`{value}`"));
                let what = format!("its `{key}` is {found}; `{expected}` is merged");
                return Err(AnamnesisError::unsupported("a GGUF file as an adapter", what));
            }
        }
        let mut keys = metadata.keys();
        if let Some(key) = keys.find(|key| key.starts_with("adapter.") && !IGNORED.contains(key)) {
            let what = format!("it has `{key}`, which is not merged");
            return Err(AnamnesisError::unsupported("an adapter", what));
        }
        Ok(Self { alpha: alpha(metadata)?, architecture: gguf.architecture() })
    }

    /// The factor of a product of rank `rank`.
    fn scale(&self, rank: usize) -> f64 {
        match self.alpha {
            0.0 => 1.0,
            alpha => alpha / rank as f64,
        }
    }
}

fn alpha(metadata: &GgufMetadata) -> Result<f64> {
    let key = "adapter.lora.alpha";
    match metadata.get(key) {
        None => Ok(0.0),
        Some(GgufMetadataValue::F32(alpha)) if alpha >= 0.0 && alpha.is_finite() => {
            Ok(alpha.into())
        }
        Some(_) => {
            let what = format!("its `{key}` is no F32 of zero or more");
            Err(AnamnesisError::parse(what))
        }
    }
}

impl SortedTensors {
    /// The tensors of an adapter in a GGUF file with these `settings`.
    ///
    /// # Errors
    /// `Unsupported` if a tensor is none of a LoRA of weights.
    pub(super) fn of_gguf(model: &ParsedModel, settings: &GgufAdapter) -> Result<Self> {
        let mut sorted = Self::default();
        for (index, t) in model.tensors().enumerate() {
            let (module, is_a) = match t.name().rsplit_once(".weight.lora_") {
                Some((module, "a")) => (module, true),
                Some((module, "b")) => (module, false),
                // llama.cpp passes over norms, so that what it runs is not what was trained.
                _ => {
                    let what = "its name is none of a LoRA for weights";
                    return Err(wrong(&t, what));
                }
            };
            let tensors = sorted.lora.entry(module.to_owned()).or_default();
            tensors.is_embedding = module == "token_embd";
            let form = match tensors.is_embedding {
                true => FactorForm::Rows,
                false => FactorForm::OutIn,
            };
            tensors.form = Some(form);
            let place = match is_a {
                true => {
                    let rank = t.shape().get(usize::from(tensors.is_embedding));
                    tensors.scale = rank.map(|&rank| settings.scale(rank));
                    &mut tensors.a
                }
                false => &mut tensors.b,
            };
            if place.replace(index).is_some() {
                return Err(wrong(&t, "another tensor of the adapter has its place"));
            }
        }
        Ok(sorted)
    }
}
