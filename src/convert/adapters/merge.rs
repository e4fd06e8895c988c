//! Puts what adapters change into the items of a model, before they are drafted.

use std::collections::{BTreeMap, HashMap};

use super::change::WeightChange;
use super::collect::Collector;
use super::image::place;
use super::sorted::SortedTensors;
use super::tied::TiedHead;
use super::vocabulary::ConfigField;
use super::{Adapter, AdapterFiles, Base, Settings, added, tokens, vocabulary};
use crate::convert::report::Report;
use crate::error::{InTensor, counted};
use crate::remember::layout::adapted::AdaptedWeight;
use crate::remember::{Decode, Group, PlainFloats, QuantScheme, ResolvedItem, TensorRole};
use crate::{AnamnesisError, Result, TargetDtype};

/// Merges `adapters` into `items` of `base`, in their order. Returns what changes in the model's config.
///
/// # Errors
/// `Parse` or `Unsupported` that names the adapter's tensor: its weight is not in the model, a half
/// of a pair is missing, a shape or a rank does not fit, or the weight is none of floats.
/// `Unsupported` if it is one of two that the config ties.
pub(in crate::convert) fn merge<'m>(
    base: &Base<'_>,
    items: &mut Vec<ResolvedItem<'m>>,
    adapters: &[Adapter],
    report: &mut Report,
) -> Result<Vec<ConfigField>> {
    if adapters.is_empty() {
        return Ok(vec![]);
    }
    require_same_architecture(base, adapters)?;
    let sorted = adapters.iter().map(|adapter| {
        let sorted = sorted(&adapter.files, items);
        sorted.map_err(|e| e.about(adapter.path().display()))
    });
    let sorted: Vec<SortedTensors> = sorted.collect::<Result<_>>()?;
    let with_tensors: Vec<_> = adapters.iter().zip(&sorted).collect();
    let tied = TiedHead::new(base, items, &with_tensors)?;
    let added = added::modules(items, &with_tensors, tied.embedding.is_some())?;
    let names = items.iter().enumerate();
    let names: HashMap<String, usize> =
        names.map(|(i, item)| (item.name().to_owned(), i)).collect();
    let mut changes: BTreeMap<usize, WeightChange> = BTreeMap::new();
    for (number, (adapter, sorted)) in with_tensors.into_iter().enumerate() {
        report.notes.extend(sorted.notes.iter().cloned());
        let mut collector = Collector {
            number,
            adapter,
            names: &names,
            items,
            tied: tied.embedding,
            changes: &mut changes,
        };
        let collected = collector.collect(sorted);
        collected.map_err(|e| e.about(adapter.path().display()))?;
    }
    let of_ties = tied.check(items, &changes)?;
    let mut fields = vec![];
    if tied.is_untied {
        fields.push(ConfigField { key: "tie_word_embeddings", old: None, new: false.into() });
    }
    let of_vocabulary = vocabulary::resized(items, &changes)?.map(|(field, note)| {
        fields.push(field);
        note
    });
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
    report
        .notes
        .push(format!("{from} merged into {}", counted(n, "tensor")));
    report.notes.extend(tied.notes);
    report.notes.extend(of_ties);
    report.notes.extend(of_vocabulary);
    report.notes.extend(added);
    Ok(fields)
}

/// The tensors of an adapter to `items`, sorted.
fn sorted(files: &AdapterFiles, items: &[ResolvedItem<'_>]) -> Result<SortedTensors> {
    match &files.settings {
        Settings::Peft(_) => SortedTensors::of_peft(&files.tensors),
        Settings::Mlx(config) => SortedTensors::of_mlx(&files.tensors, config),
        Settings::Image => place(&files.tensors, items, None),
        #[cfg(feature = "gguf")]
        Settings::Gguf(settings) => SortedTensors::of_gguf(&files.tensors, settings),
    }
}

/// Fails if an adapter in GGUF is one for models of another architecture: its rows may be in
/// another order.
#[cfg(feature = "gguf")]
fn require_same_architecture(base: &Base<'_>, adapters: &[Adapter]) -> Result<()> {
    let of_file = || {
        base.model
            .gguf
            .as_ref()
            .and_then(|gguf| gguf.architecture())
    };
    // A model without an architecture has no tensors of llama.cpp's names either.
    let ours = base.made_architecture.map(str::to_owned).or_else(of_file);
    let Some(ours) = ours else {
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
fn require_same_architecture(_base: &Base<'_>, _adapters: &[Adapter]) -> Result<()> {
    Ok(())
}

/// The item that `change` makes of `item`.
fn changed<'m>(item: ResolvedItem<'m>, change: WeightChange) -> Result<ResolvedItem<'m>> {
    let mut group = match item {
        ResolvedItem::Group(group) => *group,
        ResolvedItem::Plain(t) => {
            let Some(plain) = PlainFloats::of(&t.stored) else {
                let (name, dtype) = (t.name(), t.stored.dtype());
                let what = format!(
                    "{}: it is {dtype}; what changes is F32, F16, BF16 or quantized",
                    InTensor(&name)
                );
                return Err(AnamnesisError::unsupported("an adapter", what));
            };
            let stored = t.stored;
            let part = (TensorRole::Passthrough, stored);
            let (name, shape, scheme) = (t.into_name(), stored.shape(), QuantScheme::Unquantized);
            Group {
                keeps: TargetDtype::of(stored.dtype()),
                ..Group::new(name, shape, scheme, vec![part], Box::new(plain))
            }
        }
    };
    change.require_rows_alone(&group.name)?;
    let mut base: Box<dyn Decode + 'm> = match change.replacement {
        Some(replacement) => Box::new(replacement),
        None => group.decoder,
    };
    if let Some(shape) = &change.shape {
        group.shape = shape.as_slice().into();
    }
    if let (false, &[rows, cols]) = (change.rows.is_empty(), &*group.shape) {
        base = tokens::with_rows(base, [rows, cols], change.rows)?;
    }
    group.decoder = match change.size {
        Some(size) => {
            let name = group.name.to_string();
            let weight = AdaptedWeight::new(name, base, size, change.products, change.lengths);
            require_small_tiles(&group.name, &weight)?;
            Box::new(weight)
        }
        None => base,
    };
    // No stored bytes have these values, neither as they are nor as a module lays them out.
    (group.is_merged, group.is_copied, group.module) = (true, false, None);
    Ok(ResolvedItem::from(group))
}

/// Values of the smallest tile of a weight at most, each of which takes 12 bytes of a thread's
/// memory.
const MAX_TILE_VALUES: usize = 16 << 20;

/// Fails if a thread would need much memory for the weight `name`: the lengths of DoRA are those of
/// whole rows or columns, of which quantized weights may have many in a block.
fn require_small_tiles(name: &str, weight: &AdaptedWeight<'_>) -> Result<()> {
    let grid = weight.grid();
    let rows = grid.row_align.min(grid.rows);
    if rows.saturating_mul(grid.col_align.min(grid.cols)) <= MAX_TILE_VALUES {
        return Ok(());
    }
    let what = format!(
        "{}: DoRA gives lengths to whole rows or columns, and those of the least part that can be decoded have more than 16 Mi values; decode the weight to floats first",
        InTensor(&name)
    );
    Err(AnamnesisError::unsupported("an adapter", what))
}
