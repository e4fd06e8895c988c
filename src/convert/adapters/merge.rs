//! Puts what adapters change into the items of a model, before they are drafted.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::factors::{FactorForm, Factors};
use super::peft_tensors::{AdapterMatrix, AdapterTensor, LoraTensors, Replacement, SortedTensors};
use super::{Adapter, Settings};
use crate::config::{Texts, what_was_meant};
use crate::containers::model::Tensor;
use crate::convert::report::Report;
use crate::convert::whole::WholeModel;
use crate::scheme::layout::adapted::{AdaptedWeight, ScaledProduct};
use crate::scheme::seam::numbers::ScaleMatrix;
use crate::scheme::seam::wrong;
use crate::scheme::{Decode, Group, PlainFloats, QuantScheme, ResolvedItem, TensorRole};
use crate::{AnamnesisError, ParsedModel, Result, TargetDtype};

/// What adapters change of one weight.
#[derive(Default)]
struct WeightChange {
    products: Vec<ScaledProduct>,
    replacement: Option<Replacement>,
    lengths: Option<Box<dyn ScaleMatrix>>,
    /// Number of the last adapter that changes it, and how many do.
    last: Option<usize>,
    adapters: usize,
}

/// Merges `adapters` into `items` of `model`, or of the whole model that is made of it, in their order.
///
/// # Errors
/// `Parse` or `Unsupported` that names the adapter's tensor: its weight is not in the model, a half of a pair is missing, a shape
/// or a rank does not fit, or the weight is none of floats. `Unsupported` if it is one of two that the config ties.
pub(in crate::convert) fn merge<'m>(
    (model, whole): (&ParsedModel, Option<&WholeModel>),
    items: &mut Vec<ResolvedItem<'m>>,
    adapters: &[Adapter],
    report: &mut Report,
) -> Result<()> {
    if adapters.is_empty() {
        return Ok(());
    }
    require_same_architecture(model, whole, adapters)?;
    let names = items.iter().enumerate();
    let names: HashMap<String, usize> =
        names.map(|(i, item)| (item.name().to_owned(), i)).collect();
    let mut changes: BTreeMap<usize, WeightChange> = BTreeMap::new();
    for (number, adapter) in adapters.iter().enumerate() {
        let mut collector = Collector {
            number,
            adapter,
            names: &names,
            items,
            changes: &mut changes,
        };
        let collected = collector.collect();
        collected.map_err(|e| e.about(adapter.path().display()))?;
    }
    require_untied(model, &names, &changes)?;
    let n = changes.len();
    let all = std::mem::take(items).into_iter().enumerate();
    let merged = all.map(|(index, item)| match changes.remove(&index) {
        Some(change) => changed(item, change),
        None => Ok(item),
    });
    *items = merged.collect::<Result<_>>()?;
    report.merged = n;
    let from = match adapters.len() {
        1 => "an adapter".to_owned(),
        several => format!("{several} adapters"),
    };
    report.notes.push(format!("{from} merged into {n} tensors"));
    Ok(())
}

/// Fails if an adapter in GGUF is one for models of another architecture: its rows may be in another order.
#[cfg(feature = "gguf")]
fn require_same_architecture(
    model: &ParsedModel,
    whole: Option<&WholeModel>,
    adapters: &[Adapter],
) -> Result<()> {
    let of_whole = whole.and_then(|whole| {
        let mut keys = whole.metadata().iter();
        let (_, value) = keys.find(|(key, _)| key == "general.architecture")?;
        value.as_string().map(str::to_owned)
    });
    let of_file = || model.gguf.as_ref().and_then(|gguf| gguf.architecture());
    // A model without an architecture has no tensors of llama.cpp's names either.
    let Some(ours) = of_whole.or_else(of_file) else {
        return Ok(());
    };
    for adapter in adapters {
        let Settings::Gguf(settings) = &adapter.files.settings else {
            continue;
        };
        if settings.architecture.as_ref() != Some(&ours) {
            let theirs = settings.architecture.as_deref().unwrap_or("none");
            let what =
                format!("the model's architecture is `{ours}`, and the adapter's `{theirs}`");
            return Err(AnamnesisError::parse(what).about(adapter.path().display()));
        }
    }
    Ok(())
}

#[cfg(not(feature = "gguf"))]
fn require_same_architecture(
    _model: &ParsedModel,
    _whole: Option<&WholeModel>,
    _adapters: &[Adapter],
) -> Result<()> {
    Ok(())
}

/// Fails if an embedding or a head changes that the config ties although both are stored: programs load one of them for both.
fn require_untied(
    model: &ParsedModel,
    names: &HashMap<String, usize>,
    changes: &BTreeMap<usize, WeightChange>,
) -> Result<()> {
    let find = |ending: &str| names.iter().find(|(name, _)| name.ends_with(ending));
    let (Some(embedding), Some(head)) = (find("embed_tokens.weight"), find("lm_head.weight"))
    else {
        return Ok(());
    };
    let changed = [embedding, head];
    let changed = changed.iter().find(|(_, at)| changes.contains_key(at));
    let (Some((name, _)), Some(directory)) = (changed, &model.directory) else {
        return Ok(());
    };
    let config = Texts::new(&directory.path, &model.limits).json("config.json")?;
    let is_tied = |config: &Value| config.get("tie_word_embeddings") == Some(&Value::Bool(true));
    if config.as_ref().is_some_and(is_tied) {
        let what = format!(
            "tensor `{name}`: config.json ties it to another that the model has as well (`tie_word_embeddings`); leave one out first, with --drop of remember"
        );
        return Err(AnamnesisError::unsupported("an adapter", what));
    }
    Ok(())
}

/// Collects the changes of one adapter.
struct Collector<'a, 'm> {
    number: usize,
    adapter: &'a Adapter,
    names: &'a HashMap<String, usize>,
    items: &'a [ResolvedItem<'m>],
    changes: &'a mut BTreeMap<usize, WeightChange>,
}

impl Collector<'_, '_> {
    fn collect(&mut self) -> Result<()> {
        if !self.adapter.weight.is_finite() {
            let what = format!("its weight is {}", self.adapter.weight);
            return Err(AnamnesisError::unsupported("an adapter", what));
        }
        let files = self.adapter.files.clone();
        let sorted = match &files.settings {
            Settings::Peft(_) => SortedTensors::new(&files.tensors)?,
            #[cfg(feature = "gguf")]
            Settings::Gguf(_) => SortedTensors::of_gguf(&files.tensors)?,
        };
        if sorted.lora.is_empty() && sorted.replacements.is_empty() {
            return Err(AnamnesisError::parse("it has no tensors"));
        }
        for (weight, index) in &sorted.replacements {
            self.replace(weight, *index)?;
        }
        for (module, tensors) in &sorted.lora {
            self.add_product(module, *tensors)?;
        }
        Ok(())
    }

    fn tensor(&self, index: usize) -> AdapterTensor {
        let model = self.adapter.files.tensors.clone();
        AdapterTensor { model, index }
    }

    /// The item that the adapter's tensor `t` changes: its number and its shape.
    fn item(&self, weight: &str, t: &Tensor<'_>) -> Result<(usize, Vec<usize>)> {
        let Some(&index) = self.names.get(weight) else {
            let meant = what_was_meant(weight, self.names.keys().map(String::as_str));
            let is_ggml = self.names.contains_key("token_embd.weight");
            let hint = match (is_ggml, self.adapter.has_gguf_names()) {
                (true, false) => {
                    "; its names are llama.cpp's, and an output directory (-o) gives it those of Hugging Face first"
                }
                (false, true) => {
                    "; the adapter's names are llama.cpp's, which models in GGUF have, and those that become GGUF (--to gguf)"
                }
                _ => "",
            };
            let what = format!("the model has no `{weight}` that it could change; {meant}{hint}");
            return Err(wrong(t, what));
        };
        let shape = match &self.items[index] {
            ResolvedItem::Group(group) => group.shape.clone(),
            ResolvedItem::Plain(t) => t.stored.shape().to_vec(),
        };
        Ok((index, shape))
    }

    /// The changes of item `index`, which this adapter is about to make.
    fn change(&mut self, index: usize) -> &mut WeightChange {
        let change = self.changes.entry(index).or_default();
        if change.last.replace(self.number) != Some(self.number) {
            change.adapters += 1;
        }
        change
    }

    /// A weight that was trained as a whole.
    fn replace(&mut self, weight: &str, index: usize) -> Result<()> {
        let tensor = self.tensor(index);
        let t = tensor.get();
        let (item, shape) = self.item(weight, &t)?;
        if t.shape() != shape {
            return Err(wrong(&t, format!("`{weight}` of the model is {shape:?}")));
        }
        if self.adapter.weight != 1.0 {
            let what =
                "it replaces a weight, of which there is no part: the adapter's weight must be 1";
            return Err(wrong(&t, what));
        }
        let replacement = Replacement::new(tensor.clone())?;
        self.change(item).replacement = Some(replacement);
        self.require_alone(item, &t)
    }

    /// A product of low rank, with the lengths of DoRA.
    fn add_product(&mut self, module: &str, tensors: LoraTensors) -> Result<()> {
        let any = [tensors.a, tensors.b, tensors.lengths];
        let Some(first) = any.into_iter().flatten().next() else {
            return Ok(());
        };
        let (Some(a), Some(b)) = (tensors.a, tensors.b) else {
            let what = "one of the two factors (A, B) of the module is missing";
            return Err(wrong(&self.tensor(first).get(), what));
        };
        let (a, b) = (self.tensor(a), self.tensor(b));
        let weight = format!("{module}.weight");
        let (item, shape) = self.item(&weight, &a.get())?;
        let form = self.form(tensors);
        let factors = Factors {
            form,
            a: a.clone(),
            b,
        };
        let size = factors.fit((&weight, &shape))?;
        let [rows, _, rank] = size;
        let scale = self.scale(module, &a.get(), rank)?;
        let product = factors.scaled(size, scale * self.adapter.weight)?;
        let is_transposed = form != FactorForm::OutIn;
        let lengths = self.lengths(&a.get(), tensors, (rows, is_transposed))?;
        let change = self.change(item);
        change.products.push(product);
        change.lengths = change.lengths.take().or(lengths);
        self.require_alone(item, &a.get())
    }

    /// How the factors of a module are stored.
    fn form(&self, tensors: LoraTensors) -> FactorForm {
        match &self.adapter.files.settings {
            // An embedding is a table of rows, whose product is transposed whatever the settings say of other modules.
            Settings::Peft(config) if tensors.is_embedding || config.is_transposed => {
                FactorForm::InOut
            }
            #[cfg(feature = "gguf")]
            Settings::Gguf(_) if tensors.is_embedding => FactorForm::Rows,
            _ => FactorForm::OutIn,
        }
    }

    /// The factor of the product of a module, whose A is `a` and whose rank is `stored`.
    fn scale(&self, module: &str, a: &Tensor<'_>, stored: usize) -> Result<f64> {
        let config = match &self.adapter.files.settings {
            Settings::Peft(config) => config,
            #[cfg(feature = "gguf")]
            Settings::Gguf(settings) => return Ok(settings.scale(stored)),
        };
        let (rank, scale) = config.rank_and_scale(module)?;
        if stored as f64 != rank {
            let what = format!("its rank is {stored}, and {rank} in the settings of the adapter");
            return Err(wrong(a, what));
        }
        Ok(scale)
    }

    /// The lengths that an adapter of DoRA has for the rows of the weight of `a`.
    fn lengths(
        &self,
        a: &Tensor<'_>,
        tensors: LoraTensors,
        (rows, is_transposed): (usize, bool),
    ) -> Result<Option<Box<dyn ScaleMatrix>>> {
        let is_dora = match &self.adapter.files.settings {
            Settings::Peft(config) => config.has_lengths,
            #[cfg(feature = "gguf")]
            Settings::Gguf(_) => false,
        };
        let Some(index) = tensors.lengths else {
            return match is_dora {
                true => Err(wrong(
                    a,
                    "the settings say DoRA, and the module has no `lora_magnitude_vector`",
                )),
                false => Ok(None),
            };
        };
        let tensor = self.tensor(index);
        let t = tensor.get();
        if !is_dora {
            return Err(wrong(
                &t,
                "the settings of the adapter do not say DoRA (`use_dora`)",
            ));
        }
        if is_transposed || self.adapter.weight != 1.0 {
            let what = format!(
                "tensor `{}`: DoRA is merged into weights [out, in] alone, with weight 1",
                t.name()
            );
            return Err(AnamnesisError::unsupported("an adapter", what));
        }
        if t.elements() != rows {
            return Err(wrong(&t, format!("the weight has {rows} rows")));
        }
        AdapterMatrix::boxed(tensor.clone(), [rows, 1], false).map(Some)
    }

    /// Fails if several adapters change an item that one of them replaces, or whose rows get lengths: the order would count.
    fn require_alone(&self, item: usize, t: &Tensor<'_>) -> Result<()> {
        let Some(change) = self.changes.get(&item) else {
            return Ok(());
        };
        let is_whole = change.replacement.is_some() || change.lengths.is_some();
        if is_whole && change.adapters > 1 {
            let what = format!(
                "tensor `{}`: several adapters change the weight, and one of them replaces it or is DoRA",
                t.name()
            );
            return Err(AnamnesisError::unsupported("several adapters", what));
        }
        Ok(())
    }
}

/// The item that `change` makes of `item`.
fn changed<'m>(item: ResolvedItem<'m>, change: WeightChange) -> Result<ResolvedItem<'m>> {
    let mut group = match item {
        ResolvedItem::Group(group) => *group,
        ResolvedItem::Plain(t) => {
            let Some(plain) = PlainFloats::of(&t.stored) else {
                let (name, dtype) = (t.name(), t.stored.dtype());
                let what = format!(
                    "tensor `{name}`: it is {dtype}; what changes is F32, F16, BF16 or quantized"
                );
                return Err(AnamnesisError::unsupported("an adapter", what));
            };
            let (name, shape) = (t.name().to_owned(), t.stored.shape().to_vec());
            let part = (TensorRole::Passthrough, t.stored);
            let scheme = QuantScheme::Unquantized;
            let group = Group::new(name, shape, scheme, vec![part], Box::new(plain));
            Group {
                keeps: TargetDtype::of(t.stored.dtype()),
                ..group
            }
        }
    };
    let base: Box<dyn Decode + 'm> = match change.replacement {
        Some(replacement) => Box::new(replacement),
        None => group.decoder,
    };
    group.decoder = match *group.shape {
        [rows, cols] if !change.products.is_empty() => Box::new(AdaptedWeight::new(
            group.name.clone(),
            base,
            [rows, cols],
            change.products,
            change.lengths,
        )),
        _ => base,
    };
    // No stored bytes have these values, neither as they are nor as a module lays them out.
    (group.is_merged, group.is_copied, group.module) = (true, false, None);
    Ok(ResolvedItem::from(group))
}
