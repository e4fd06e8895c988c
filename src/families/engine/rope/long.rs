//! Phi's LongRoPE: factors for long texts and for short ones.

use crate::Result;
use crate::families::engine::fields::{CONTEXT, Fields};

/// The tensors of factors for long and for short texts, with the fields that have them.
pub(crate) const LONG_FACTORS: [(&str, &str); 2] =
    [("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor")];

/// What scores are multiplied by in texts longer than those of the training.
///
/// Source: `Phi3MiniModel.generate_extra_tensors` in `conversion/phi.py` of llama.cpp;
/// `SuScaledRoPE` in `mlx_lm/models/rope_utils.py`.
pub(crate) fn long_attention_factor(fields: &Fields) -> Result<f64> {
    let original = f64::from(fields.need(&["original_max_position_embeddings"])?);
    let scale = f64::from(fields.need(CONTEXT)?) / original;
    Ok(match scale > 1.0 {
        true => (1.0 + scale.ln() / original.ln()).sqrt(),
        false => 1.0,
    })
}
