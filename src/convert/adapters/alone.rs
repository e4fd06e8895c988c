//! What an adapter is as a file of its own: factors of PEFT and mlx-lm for a GGUF file, and the other
//! way round.

use std::collections::HashMap;
use std::path::Path;

use super::CONFIG;
use super::gguf_adapter::GgufAdapter;
use super::heads::is_embedding;
use super::mlx_adapter::MlxConfig;
use super::peft_config::PeftConfig;
use super::sorted::{LoraTensors, SortedTensors};
use crate::config::Texts;
use crate::families::{LoraPair, SourceTensor, transposed};
use crate::remember::ResolvedItem;
use crate::{AnamnesisError, ParsedModel, Result, TargetDtype};

/// The factors of an adapter of PEFT or mlx-lm, whose settings are among `texts`, and its alpha.
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
    let config = texts.json(CONFIG)?.unwrap_or_default();
    match MlxConfig::is_of_mlx(&config) {
        true => mlx_pairs(&MlxConfig::new(&config).map_err(about)?, model, items),
        false => peft_pairs(&PeftConfig::new(&config).map_err(about)?, model, items),
    }
}

fn peft_pairs<'m>(
    config: &PeftConfig,
    model: &'m ParsedModel,
    items: Vec<ResolvedItem<'m>>,
) -> Result<(Vec<LoraPair<'m>>, f64)> {
    let about = |error: AnamnesisError| error.about(CONFIG);
    let sorted = SortedTensors::of_peft(model)?;
    let settings = [
        (config.form.is_some(), "peft_type: LOHA or LOKR"),
        (config.has_lengths, "use_dora"),
        (config.has_bias_of_b, "lora_bias"),
        (config.has_trained_biases, "bias"),
        (config.has_tied_head, "ensure_weight_tying"),
        (!config.parameters.is_empty(), "target_parameters"),
    ];
    require_products(&settings, &sorted, model).map_err(about)?;
    let mut factors = StoredFactors::new(model, items);
    let mut pairs = Vec::with_capacity(sorted.lora.len());
    for (module, &LoraTensors { a, b, is_embedding, .. }) in &sorted.lora {
        let order = a.min(b);
        let (a, b) = (factors.take(a, module)?, factors.take(b, module)?);
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
    Ok((in_order(pairs), config.alpha))
}

/// As PEFT's, the factors of mlx-lm are both transposed.
fn mlx_pairs<'m>(
    config: &MlxConfig,
    model: &'m ParsedModel,
    items: Vec<ResolvedItem<'m>>,
) -> Result<(Vec<LoraPair<'m>>, f64)> {
    let sorted = SortedTensors::of_mlx(model, config)?;
    let settings = [(config.is_dora(), "fine_tune_type: dora")];
    require_products(&settings, &sorted, model).map_err(|error| error.about(CONFIG))?;
    let mut factors = StoredFactors::new(model, items);
    let mut pairs = Vec::with_capacity(sorted.lora.len());
    for (module, &LoraTensors { a: lora_b, b: lora_a, .. }) in &sorted.lora {
        let order = lora_a.min(lora_b);
        let [a, b] = [lora_a, lora_b].map(|index| {
            let factor = factors.take(index, module)?;
            if factor.shape.len() != 2 {
                let what =
                    format!("its shape is {:?}: stacked experts are not converted", factor.shape);
                return Err(AnamnesisError::unsupported("an adapter of mlx-lm", what)
                    .in_tensor(&factor.name));
            }
            let dtype = factor.stored.unwrap_or(TargetDtype::F32);
            Ok(transposed(factor, dtype))
        });
        let weight = format!("{module}.weight");
        let is_embedding = is_embedding(&weight);
        pairs.push((order, LoraPair { weight, a: a?, b: b?, is_embedding, factor: 1.0 }));
    }
    Ok((in_order(pairs), config.alpha()))
}

/// The factors of an adapter.
struct StoredFactors<'m> {
    names: Vec<&'m str>,
    by_name: HashMap<String, ResolvedItem<'m>>,
}

impl<'m> StoredFactors<'m> {
    fn new(model: &'m ParsedModel, items: Vec<ResolvedItem<'m>>) -> Self {
        let names = model.tensors().map(|t| t.name()).collect();
        let items = items.into_iter();
        let by_name = items.map(|item| (item.name().to_owned(), item)).collect();
        Self { names, by_name }
    }

    /// The factor that is tensor `index`, of `module`.
    fn take(&mut self, index: Option<usize>, module: &str) -> Result<SourceTensor<'m>> {
        let item = index.and_then(|index| self.by_name.remove(self.names[index]));
        let missing =
            || AnamnesisError::parse(format!("`{module}`: one of its factors is missing"));
        SourceTensor::new(item.ok_or_else(missing)?)
    }
}

/// The pairs as they are stored, which is how the converter writes them.
fn in_order<'m>(mut pairs: Vec<(Option<usize>, LoraPair<'m>)>) -> Vec<LoraPair<'m>> {
    pairs.sort_by_key(|(order, _)| *order);
    pairs.into_iter().map(|(_, pair)| pair).collect()
}

/// Fails if the adapter changes a model otherwise than by adding products to weights of modules, as
/// one of `settings` or a tensor says.
fn require_products(
    settings: &[(bool, &str)],
    sorted: &SortedTensors,
    model: &ParsedModel,
) -> Result<()> {
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
