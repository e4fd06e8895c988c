//! Puts what adapters change into the items of a model, before they are drafted.

use std::collections::{BTreeMap, HashMap};

use super::Adapter;
use super::peft_tensors::{AdapterMatrix, AdapterTensor, LoraTensors, Replacement, SortedTensors};
use serde_json::Value;

use crate::config::{Texts, what_was_meant};
use crate::containers::model::Tensor;
use crate::convert::report::Report;
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

/// Merges `adapters` into `items`, in their order.
///
/// # Errors
/// `Parse` or `Unsupported` that names the adapter's tensor: its weight is not in the model, a half of a pair is missing, a shape
/// or a rank does not fit, or the weight is none of floats. `Unsupported` if it is one of two that the config ties.
pub(in crate::convert) fn merge<'m>(
    model: &ParsedModel,
    items: &mut Vec<ResolvedItem<'m>>,
    adapters: &[Adapter],
    report: &mut Report,
) -> Result<()> {
    if adapters.is_empty() {
        return Ok(());
    }
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
        let sorted = SortedTensors::new(&files.tensors)?;
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
            let hint = match is_ggml {
                true => {
                    "; its names are llama.cpp's, and an output directory (-o) gives it those of Hugging Face first"
                }
                false => "",
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
        let config = &self.adapter.files.config;
        let any = [tensors.a, tensors.b, tensors.lengths];
        let Some(first) = any.into_iter().flatten().next() else {
            return Ok(());
        };
        let (Some(a), Some(b)) = (tensors.a, tensors.b) else {
            let what = "of the module's `lora_A` and `lora_B` one is missing";
            return Err(wrong(&self.tensor(first).get(), what));
        };
        let (a, b) = (self.tensor(a), self.tensor(b));
        let weight = format!("{module}.weight");
        let (item, shape) = self.item(&weight, &a.get())?;
        // An embedding is a table of rows, whose product is transposed whatever the settings say of other modules.
        let is_transposed = tensors.is_embedding || config.is_transposed;
        let (rank, scale) = config.rank_and_scale(module)?;
        let size = fitting(&a.get(), &b.get(), (&weight, &shape), is_transposed)?;
        let [rows, cols] = size;
        let stored = a.get().shape()[0];
        if stored as f64 != rank {
            let what = format!("its rank is {stored}, and {rank} in the settings of the adapter");
            return Err(wrong(&a.get(), what));
        }
        let product = match is_transposed {
            // (B · A)ᵀ is Aᵀ · Bᵀ.
            true => (
                AdapterMatrix::boxed(b.clone(), [cols, stored], true)?,
                AdapterMatrix::boxed(a.clone(), [stored, rows], true)?,
            ),
            false => (
                AdapterMatrix::boxed(a.clone(), [stored, cols], false)?,
                AdapterMatrix::boxed(b, [rows, stored], false)?,
            ),
        };
        let lengths = self.lengths(&a.get(), tensors, (rows, is_transposed))?;
        let scale = scale * self.adapter.weight;
        let change = self.change(item);
        change.products.push(ScaledProduct {
            a: product.0,
            b: product.1,
            rank: stored,
            scale,
        });
        change.lengths = change.lengths.take().or(lengths);
        self.require_alone(item, &a.get())
    }

    /// The lengths that an adapter of DoRA has for the rows of the weight of `a`.
    fn lengths(
        &self,
        a: &Tensor<'_>,
        tensors: LoraTensors,
        (rows, is_transposed): (usize, bool),
    ) -> Result<Option<Box<dyn ScaleMatrix>>> {
        let is_dora = self.adapter.files.config.has_lengths;
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

/// Rows and columns of the weight `shape` that the factors `a` and `b` fit.
fn fitting(
    a: &Tensor<'_>,
    b: &Tensor<'_>,
    (weight, shape): (&str, &[usize]),
    is_transposed: bool,
) -> Result<[usize; 2]> {
    let (&[rank, inputs], &[outputs, same]) = (a.shape(), b.shape()) else {
        let what = format!(
            "tensors `{}` {:?} and `{}` {:?}: LoRA is merged into matrices alone",
            a.name(),
            a.shape(),
            b.name(),
            b.shape()
        );
        return Err(AnamnesisError::unsupported("an adapter", what));
    };
    let product = match is_transposed {
        true => [inputs, outputs],
        false => [outputs, inputs],
    };
    if rank != same {
        return Err(wrong(
            a,
            format!("its rank is {rank}, and that of `{}` {same}", b.name()),
        ));
    }
    if shape != product {
        let what = format!(
            "with `{}` {:?} it makes {product:?}, and `{weight}` is {shape:?}",
            b.name(),
            b.shape()
        );
        return Err(wrong(a, what));
    }
    Ok(product)
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
