//! The quantization config of a model that is encoded.

use serde_json::Value;

use crate::TargetDtype;
use crate::lethe::{
    Decision, ForgetScheme, Method, config_of_mixture, is_embedding, unstored_head,
};
use crate::model::ParsedModel;
use crate::remember::{EncodedAs, Resolution, ResolvedItem};

/// The quantization config of the output; `None` if nothing is encoded or the scheme has none.
pub(super) fn quantization_config(
    model: &ParsedModel,
    (scheme, to): (&ForgetScheme, TargetDtype),
    choices: &[Decision],
    resolution: &Resolution<'_>,
) -> Option<Value> {
    config_of_class((scheme, to), choices, resolution)
        .or_else(|| config_of_model(model, scheme, choices, resolution))
}

/// The config of a model whose tensors are encoded by their names. It lists the modules whose matrices
/// are not encoded, so that loaders do not look for their scales, among them a head that has the matrix
/// of the embedding.
fn config_of_model(
    model: &ParsedModel,
    scheme: &ForgetScheme,
    choices: &[Decision],
    resolution: &Resolution<'_>,
) -> Option<Value> {
    let kept = |(choice, item): (&Decision, &ResolvedItem<'_>)| {
        let (name, rank) = match item {
            ResolvedItem::Group(group) => (&*group.name, group.shape.len()),
            ResolvedItem::Plain(t) => (t.name(), t.stored.shape().len()),
        };
        let is_kept = matches!(choice, Decision::Keep(_)) && rank == 2;
        name.strip_suffix(".weight")
            .filter(|_| is_kept)
            .map(str::to_owned)
    };
    let mut skipped: Vec<String> = choices
        .iter()
        .zip(&resolution.items)
        .filter_map(kept)
        .collect();
    if skipped.iter().any(|module| is_embedding(module)) {
        let names = resolution.items.iter().map(ResolvedItem::name);
        skipped.extend(unstored_head(&model.config, names).map(str::to_owned));
    }
    let items = choices.iter().zip(&resolution.items);
    let encoded = items.filter_map(|(choice, item)| match choice {
        Decision::Encode { method, .. } => Some((module_of(item), &**method)),
        Decision::Keep(_) => None,
    });
    let encoded: Vec<(&str, &dyn Method)> = encoded.collect();
    let (_, first) = encoded.first()?;
    match first.config(&skipped) {
        Some(config) => Some(config_of_mixture(scheme, config, &encoded)),
        None => {
            let items = choices.iter().zip(&resolution.items);
            let encoded = items.filter(|(choice, _)| matches!(choice, Decision::Encode { .. }));
            let modules = encoded.filter_map(|(_, item)| item.name().strip_suffix(".weight"));
            first.config_of_encoded(&modules.collect::<Vec<_>>())
        }
    }
}

fn module_of<'a>(item: &'a ResolvedItem<'_>) -> &'a str {
    let name = item.name();
    name.strip_suffix(".weight").unwrap_or(name)
}

/// The config of a model whose class says what its tensors are encoded as; `None`: it does not.
fn config_of_class(
    (scheme, to): (&ForgetScheme, TargetDtype),
    choices: &[Decision],
    resolution: &Resolution<'_>,
) -> Option<Value> {
    let (mut modules, mut of_scheme) = (Vec::new(), Vec::new());
    for (choice, item) in choices.iter().zip(&resolution.items) {
        let (Decision::Encode { method, .. }, Some(of)) = (choice, item.encoded_as()) else {
            continue;
        };
        let module = module_of(item);
        match of {
            EncodedAs::Integers { .. } | EncodedAs::Bits(_) if !scheme.has_recipe() => {}
            EncodedAs::Mxfp4 => {}
            _ => of_scheme.push((module, &**method)),
        }
        modules.push((module, of));
    }
    if modules.is_empty() {
        return None;
    }
    let config = scheme.method(to)?.0.config_of_class(&modules)?;
    Some(config_of_mixture(scheme, config, &of_scheme))
}
