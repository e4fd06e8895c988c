//! Adapters of mlx-lm: a directory with `adapter_config.json` and `adapters.safetensors`.
//!
//! `M.lora_a` `[in, rank]` and `M.lora_b` `[rank, out]` for a linear layer `M`, whose weight is
//! `[out, in]`; of an embedding `[tokens, rank]` and `[rank, width]`. The product is multiplied by
//! `scale`. Factors of three axes are those of [`stacks`](super::stacks). DoRA has lengths of rows,
//! `M.m`. With `fine_tune_type` `full` the tensors are whole weights.
//!
//! Source: mlx-lm 0.32.2 `tuner/lora.py`, `tuner/dora.py`, `tuner/utils.py` (`load_adapters`).

use serde_json::Value;

use super::factors::FactorForm;
use super::heads::is_embedding;
use super::sorted::SortedTensors;
use crate::remember::seam::wrong;
use crate::{AnamnesisError, ParsedModel, Result};

/// The settings of an adapter of mlx-lm.
pub(super) enum MlxConfig {
    /// Products of factors, with lengths of rows if `is_dora`.
    Lora { rank: f64, scale: f64, is_dora: bool },
    /// Weights that were trained as a whole.
    Full,
}

impl MlxConfig {
    /// # Errors
    /// `Unsupported` if `fine_tune_type` is not known; `Parse` if rank or scale is no number.
    pub(super) fn new(config: &Value) -> Result<Self> {
        let is_dora = match config
            .get("fine_tune_type")
            .map_or(Some("lora"), Value::as_str)
        {
            Some("lora") => false,
            Some("dora") => true,
            Some("full") => return Ok(Self::Full),
            _ => {
                let what = "its `fine_tune_type` is none of `lora`, `dora` and `full`";
                return Err(AnamnesisError::unsupported("an adapter of mlx-lm", what));
            }
        };
        let number = |key: &str| {
            let value = config.get("lora_parameters").and_then(|all| all.get(key));
            let missing =
                || AnamnesisError::parse(format!("`lora_parameters` has no number `{key}`"));
            value.and_then(Value::as_f64).ok_or_else(missing)
        };
        Ok(Self::Lora { rank: number("rank")?, scale: number("scale")?, is_dora })
    }

    /// Whether a file of settings is of mlx-lm, and not of PEFT.
    #[cfg(feature = "models")]
    pub(super) fn is_of_mlx(config: &Value) -> bool {
        let has = |key: &str| config.get(key).is_some();
        !has("peft_type") && (has("fine_tune_type") || has("lora_parameters"))
    }

    /// What the products are multiplied by, times their rank.
    #[cfg(feature = "models")]
    pub(super) fn alpha(&self) -> f64 {
        match self {
            Self::Lora { rank, scale, .. } => rank * scale,
            Self::Full => 1.0,
        }
    }

    pub(super) fn is_dora(&self) -> bool {
        matches!(self, Self::Lora { is_dora: true, .. })
    }
}

impl SortedTensors {
    /// The tensors of an adapter of mlx-lm with these settings.
    ///
    /// # Errors
    /// `Parse` if a tensor is none of the kind that the settings say, or its rank another.
    pub(super) fn of_mlx(model: &ParsedModel, config: &MlxConfig) -> Result<Self> {
        let mut sorted = Self::default();
        let &MlxConfig::Lora { rank, scale, .. } = config else {
            let names = model.tensors().map(|t| t.name().to_owned());
            sorted.replacements = names.zip(0..).collect();
            return Ok(sorted);
        };
        for (index, t) in model.tensors().enumerate() {
            let Some((module, part)) = t.name().rsplit_once('.') else {
                return Err(wrong(&t, "its name is none of a LoRA of mlx-lm"));
            };
            let tensors = sorted.lora.entry(module.to_owned()).or_default();
            // The product of an embedding is `lora_a · lora_b`, that of a linear layer its
            // transpose.
            let form = match is_embedding(&format!("{module}.weight")) {
                true => FactorForm::OutIn,
                false => FactorForm::Transposed,
            };
            (tensors.form, tensors.scale) = (Some(form), Some(scale));
            let is_stack = t.shape().len() == 3;
            tensors.is_stack |= is_stack;
            match (part, is_stack) {
                ("lora_b", false) | ("lora_a", true) => tensors.a = Some(index),
                ("lora_a", false) | ("lora_b", true) => tensors.b = Some(index),
                ("m", _) => tensors.lengths = Some(index),
                _ => return Err(wrong(&t, "its name is none of a LoRA of mlx-lm")),
            }
            let rank_axis = if is_stack { 2 } else { 0 };
            let stored = t.shape().get(rank_axis).filter(|_| part == "lora_b");
            if let Some(&stored) = stored.filter(|&&stored| stored as f64 != rank) {
                let what =
                    format!("its rank is {stored}, and {rank} in the settings of the adapter");
                return Err(wrong(&t, what));
            }
        }
        Ok(sorted)
    }
}
