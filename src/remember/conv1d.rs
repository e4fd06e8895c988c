//! Layers of GPT-2 and its relatives (`Conv1D`), whose models store weights as `[in, out]`.
//! bitsandbytes, GPTQ and AWQ have them as weights of any linear layer, `[out, in]`: a decoded
//! model has them in its own order, and they are encoded in that of the libraries.
//!
//! Source: transformers 5.24 `integrations/bitsandbytes.py`; gptqmodel 7.7 and auto-round 0.16
//! transpose weights of `Conv1D` when they pack them.

use std::sync::Arc;

use super::transforms::{change_decoder, stored_of};
use crate::remember::layout::transposed::TransposedStack;
use crate::remember::seam::{QuantScheme, Resolution, ResolvedItem, base_of};
use crate::{ParsedModel, TargetDtype};

/// Names of the modules that are a `Conv1D` in transformers (GPT-2 and its relatives).
pub(crate) const CONV1D_MODULES: [&str; 4] = ["c_attn", "c_proj", "c_fc", "q_attn"];

/// `model_type` of the models that have such modules.
const MODELS: [&str; 4] = ["gpt2", "openai-gpt", "imagegpt", "decision_transformer"];

/// Transposes the weights of `Conv1D` among the items of `resolution` that are stored `[out, in]`.
pub(super) fn transpose(model: &ParsedModel, resolution: &mut Resolution<'_>) {
    let orders = have_rows_of_outputs(model, resolution, is_of_transposing_scheme);
    for (item, order) in resolution.items.iter_mut().zip(orders) {
        if order == Some(true) {
            transpose_item(item);
        }
    }
}

/// The shapes `[out, in]` of the weights of `Conv1D` among the items of `resolution` that have the
/// model's order, for schemes whose libraries transpose them; `None` for all other items.
#[cfg(feature = "lethe")]
pub(crate) fn transposed_shapes(
    model: &ParsedModel,
    resolution: &Resolution<'_>,
) -> Vec<Option<[usize; 2]>> {
    let orders = have_rows_of_outputs(model, resolution, |_| true);
    let shape = |(item, order): (&ResolvedItem<'_>, Option<bool>)| match (order?, item.shape()) {
        (false, &[inputs, outputs]) => Some([outputs, inputs]),
        _ => None,
    };
    resolution.items.iter().zip(orders).map(shape).collect()
}

/// For each item of `resolution` that is a weight of `Conv1D` and one of those that `are` says:
/// whether it is known that its rows are the layer's outputs.
fn have_rows_of_outputs<'m>(
    model: &ParsedModel,
    resolution: &Resolution<'m>,
    are: impl Fn(&ResolvedItem<'m>) -> bool,
) -> Vec<Option<bool>> {
    let has_any = MODELS.iter().any(|name| model.config.has_model_type(name));
    let is_its = |item: &ResolvedItem<'m>| has_any && is_conv1d(item) && are(item);
    let items = resolution.items.iter();
    let told = items.map(|item| is_its(item).then(|| has_rows_of_outputs(item, model)));
    let told: Vec<_> = told.collect();
    // A square weight has the order of the others: a model is quantized by one library.
    let of_model = told.iter().flatten().find_map(|order| *order);
    let known = |order: Option<bool>| order.or(of_model) == Some(true);
    told.into_iter().map(|order| order.map(known)).collect()
}

/// Whether the libraries of the item's scheme transpose weights of `Conv1D`.
fn is_of_transposing_scheme(item: &ResolvedItem<'_>) -> bool {
    let ResolvedItem::Group(group) = item else {
        return false;
    };
    matches!(
        group.scheme,
        QuantScheme::Gptq | QuantScheme::Awq | QuantScheme::Bnb4 | QuantScheme::BnbInt8
    )
}

/// Whether the item is called as a weight of `Conv1D`, and is a matrix.
fn is_conv1d(item: &ResolvedItem<'_>) -> bool {
    let module = base_of(item.name(), "weight").and_then(|base| base.strip_suffix('.'));
    let last = module.and_then(|module| module.rsplit('.').next());
    item.shape().len() == 2 && last.is_some_and(|last| CONV1D_MODULES.contains(&last))
}

/// Whether the rows of the weight are the layer's outputs, for each of which its bias has a value.
/// `None` if nothing tells.
fn has_rows_of_outputs(item: &ResolvedItem<'_>, model: &ParsedModel) -> Option<bool> {
    let base = base_of(item.name(), "weight")?;
    let outputs = model.tensor(&format!("{base}bias"))?.elements();
    match *item.shape() {
        [rows, cols] if rows == cols => None,
        [rows, _] if rows == outputs => Some(true),
        [_, cols] if cols == outputs => Some(false),
        _ => None,
    }
}

/// Transposes the matrix `item`.
pub(crate) fn transpose_item(item: &mut ResolvedItem<'_>) {
    let &[cols, rows] = item.shape() else {
        return;
    };
    change_decoder(item, stored_of(item), |inner| {
        Box::new(TransposedStack {
            inner: Arc::from(inner),
            rows,
            cols,
            // Schemes that have such weights compute in F32 for every output.
            dtype: TargetDtype::F32,
        })
    });
    if let ResolvedItem::Group(group) = item {
        group.shape.reverse();
        group.is_copied = false;
    }
}
