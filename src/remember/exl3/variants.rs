//! Layers and tables of exllamav3 that are not decoded, though they have the layout of EXL3.

use super::FAMILY;
use crate::Result;
use crate::model::Tensor;
use crate::remember::seam::{Index, refused, wrong};

/// Architectures of which exllamav3 stores the `up_proj` of routed experts divided by 128, so that
/// activations stay halves, and the layer if it is one alone. It multiplies their sums by 128
/// instead (`interm_div` in `architecture/laguna.py`, `architecture/mistral4.py` and
/// `architecture/mimo_v2.py`).
const DIVIDED_EXPERTS: &[(&str, Option<&str>)] =
    &[("laguna", None), ("mistral4", None), ("mimo_v2", Some("layers.47."))];

/// Refuses what has the layout of EXL3 and is not a whole weight with its original values.
///
/// # Errors
/// The layer is a slice of a layer, has a part that no current version reads, is stored multiplied
/// or divided, or is a table of embeddings.
pub(super) fn refuse_variants(t: &Tensor<'_>, base: &str, all: &Index<'_>) -> Result<()> {
    let module = base.trim_end_matches('.');
    let mut path = module.rsplit('.');
    if let (Some(number), Some("slice")) = (path.next(), path.next())
        && number.parse::<u32>().is_ok()
    {
        let what = "it is a slice of a layer, which exllamav3 has of layers that are very wide, and of DeepSeek-V4's `wo_a`";
        return Err(refused(t, FAMILY, what));
    }
    if all.at(base, "SU").is_some() {
        return Err(refused(t, "QTIP", "recognised, not decoded by this version"));
    }
    if t.shape().len() == 2 && all.at(base, "suh").is_none() && all.at(base, "su").is_none() {
        let what = "it is a table of embeddings, of n-grams or without its signs, that exllamav3 has quantized row by row";
        return Err(refused(t, FAMILY, what));
    }
    if let Some(scale) = all.at(base, "scale") {
        let what = format!("its `{}` is of a layout before EXL3 1.0", scale.name());
        return Err(refused(t, FAMILY, what));
    }
    if let Some(weight) = all.at(base, "weight") {
        return Err(wrong(t, format!("`{}` is stored as well", weight.name())));
    }
    let is_divided = DIVIDED_EXPERTS.iter().any(|(name, layer)| {
        let is_layer = layer.is_none_or(|layer| module.contains(layer));
        is_layer && all.config.has_model_type(name)
    });
    if is_divided && module.contains(".experts.") && module.ends_with("up_proj") {
        let what = "exllamav3 stores this projection of the architecture divided by 128, and its outputs are multiplied elsewhere";
        return Err(refused(t, FAMILY, what));
    }
    if all.config.scales_values() && module.ends_with("self_attn.o_proj") {
        let what = "exllamav3 stores it multiplied by the config's `attention_value_scale`, with which models multiply values";
        return Err(refused(t, FAMILY, what));
    }
    Ok(())
}
