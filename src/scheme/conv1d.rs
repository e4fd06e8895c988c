//! Layers of GPT-2 and its relatives (`Conv1D`), whose models store weights as `[in, out]`. bitsandbytes and GPTQ have them as weights
//! of any linear layer, `[out, in]`: a decoded model has them in its own order.
//!
//! Source: transformers 5.24 `integrations/bitsandbytes.py`; gptqmodel 7.7 and auto-round 0.16 transpose weights of `Conv1D` when they
//! pack them.

use std::sync::Arc;

use super::transforms::{change_decoder, stored_of};
use crate::scheme::layout::transposed::TransposedStack;
use crate::scheme::seam::{Group, QuantScheme, Resolution, ResolvedItem, base_of};
use crate::{ParsedModel, TargetDtype};

/// Names of the modules that are a `Conv1D` in transformers (GPT-2 and its relatives).
pub(crate) const CONV1D_MODULES: [&str; 4] = ["c_attn", "c_proj", "c_fc", "q_attn"];

/// `model_type` of the models that have such modules.
const MODELS: [&str; 4] = ["gpt2", "openai-gpt", "imagegpt", "decision_transformer"];

/// Transposes the weights of `Conv1D` among the items of `resolution` that are stored `[out, in]`.
pub(super) fn transpose(model: &ParsedModel, resolution: &mut Resolution<'_>) {
    if !MODELS.iter().any(|name| model.config.has_model_type(name)) {
        return;
    }
    // A square weight has the order of the others: a model is quantized by one library.
    let of_model = resolution
        .items
        .iter()
        .filter_map(conv1d)
        .find_map(|group| has_rows_of_outputs(group, model));
    for item in &mut resolution.items {
        let order = conv1d(item).map(|group| has_rows_of_outputs(group, model).or(of_model));
        if order.flatten() == Some(true) {
            transpose_item(item);
        }
    }
}

/// The group of a weight of `Conv1D`, by a scheme whose libraries transpose it.
fn conv1d<'a, 'm>(item: &'a ResolvedItem<'m>) -> Option<&'a Group<'m>> {
    let ResolvedItem::Group(group) = item else {
        return None;
    };
    let is_transposing = matches!(
        group.scheme,
        QuantScheme::Gptq | QuantScheme::Bnb4 | QuantScheme::BnbInt8
    );
    let module = base_of(&group.name, "weight")?.strip_suffix('.')?;
    let last = module.rsplit('.').next()?;
    let is_its = is_transposing && group.shape.len() == 2 && CONV1D_MODULES.contains(&last);
    is_its.then_some(group)
}

/// Whether the rows of the weight are the layer's outputs, for each of which its bias has a value. `None` if nothing tells.
fn has_rows_of_outputs(group: &Group<'_>, model: &ParsedModel) -> Option<bool> {
    let base = base_of(&group.name, "weight")?;
    let outputs = model.tensor(&format!("{base}bias"))?.elements();
    match *group.shape {
        [rows, cols] if rows == cols => None,
        [rows, _] if rows == outputs => Some(true),
        [_, cols] if cols == outputs => Some(false),
        _ => None,
    }
}

fn transpose_item(item: &mut ResolvedItem<'_>) {
    let tensor = stored_of(item);
    let ResolvedItem::Group(group) = item else {
        return;
    };
    let [outputs, inputs] = *group.shape else {
        return;
    };
    group.shape.reverse();
    change_decoder(item, tensor, |inner| {
        Box::new(TransposedStack {
            inner: Arc::from(inner),
            rows: inputs,
            cols: outputs,
            // These schemes compute in F32 for every output.
            dtype: TargetDtype::F32,
        })
    });
}
