//! What an adapter is as a file of its own: factors of PEFT for a GGUF file, and the other way round.

use std::collections::HashMap;
use std::path::Path;

use super::CONFIG;
use super::gguf_adapter::GgufAdapter;
use super::peft_config::PeftConfig;
use super::peft_tensors::{LoraTensors, SortedTensors};
use crate::config::Texts;
use crate::families::{LoraPair, SourceTensor};
use crate::remember::ResolvedItem;
use crate::{AnamnesisError, ParsedModel, Result};

/// The factors of an adapter, whose settings are among `texts`, and its alpha.
///
/// # Errors
/// `Unsupported` if it adds something else than products to weights; `Parse` if a file is malformed,
/// or a factor is missing.
pub(in crate::convert) fn lora_pairs<'m>(
    texts: &Texts,
    model: &'m ParsedModel,
    items: Vec<ResolvedItem<'m>>,
) -> Result<(Vec<LoraPair<'m>>, f64)> {
    let about = |error: AnamnesisError| error.about(CONFIG);
    let config = texts.json(CONFIG)?;
    let config = PeftConfig::new(&config.unwrap_or_default()).map_err(about)?;
    let sorted = SortedTensors::new(model)?;
    require_products(&config, &sorted, model).map_err(about)?;
    let names: Vec<&str> = model.tensors().map(|t| t.name()).collect();
    let mut by_name: HashMap<String, ResolvedItem<'m>> = items
        .into_iter()
        .map(|item| (item.name().to_owned(), item))
        .collect();
    let mut factor = |index: Option<usize>, module: &str| {
        let item = index.and_then(|index| by_name.remove(names[index]));
        let missing =
            || AnamnesisError::parse(format!("`{module}`: one of its factors is missing"));
        SourceTensor::new(item.ok_or_else(missing)?)
    };
    let mut pairs = Vec::with_capacity(sorted.lora.len());
    for (module, &LoraTensors { a, b, is_embedding, .. }) in &sorted.lora {
        let order = a.min(b);
        let (a, b) = (factor(a, module)?, factor(b, module)?);
        let rank = b.shape.get(1).copied().unwrap_or(0);
        let (stated, scale) = config.rank_and_scale(module).map_err(about)?;
        if stated != rank as f64 {
            let what = format!("its rank is {rank}, and {CONFIG} says {stated}");
            return Err(AnamnesisError::parse(what).in_tensor(&b.name));
        }
        // llama.cpp adds the product times alpha / rank.
        let factor = scale * stated / config.alpha;
        let weight = format!("{module}.weight");
        pairs.push((order, LoraPair { weight, a, b, is_embedding, factor }));
    }
    // As they are stored, and as the converter writes them.
    pairs.sort_by_key(|(order, _)| *order);
    Ok((pairs.into_iter().map(|(_, pair)| pair).collect(), config.alpha))
}

/// Fails if the adapter changes a model otherwise than by adding products to weights of modules.
fn require_products(
    config: &PeftConfig,
    sorted: &SortedTensors<'_>,
    model: &ParsedModel,
) -> Result<()> {
    let settings = [
        (config.has_lengths, "use_dora"),
        (config.has_bias_of_b, "lora_bias"),
        (config.has_trained_biases, "bias"),
        (config.has_tied_head, "ensure_weight_tying"),
        (!config.parameters.is_empty(), "target_parameters"),
    ];
    let way_out = "amn merge puts it into the model";
    if let Some((_, setting)) = settings.iter().find(|(is_on, _)| *is_on) {
        let what = format!("its `{setting}` is on, and llama.cpp adds products alone; {way_out}");
        return Err(AnamnesisError::unsupported("an adapter as a GGUF file", what));
    }
    let mut others = sorted.replacements.values().chain(sorted.rows.values());
    match others.next().and_then(|&index| model.tensors().nth(index)) {
        Some(t) => {
            let what = format!("llama.cpp adds products alone; {way_out}");
            Err(AnamnesisError::unsupported("an adapter as a GGUF file", what).in_tensor(t.name()))
        }
        None => Ok(()),
    }
}

/// What the products of an adapter in a GGUF file are multiplied by, and divided by their ranks; `None`:
/// they are added as they are.
///
/// # Errors
/// `Unsupported` if it is no LoRA, or has a setting that PEFT has not.
pub(in crate::convert) fn gguf_alpha(model: &ParsedModel) -> Result<Option<f64>> {
    let alpha = GgufAdapter::new(model)?.alpha;
    Ok((alpha != 0.0).then_some(alpha))
}

/// Whether `directory` has the settings of an adapter.
pub(in crate::convert) fn is_adapter(directory: &Path) -> bool {
    directory.join(CONFIG).is_file()
}
