//! What becomes of every tensor of a model: copied, decoded or encoded.

use std::collections::HashSet;

use super::draft::{Draft, is_carried};
use super::encode::{Drafted, Encodings};
use super::options::ConvertOptions;
use super::report::Report;
use super::summary::summary;
use crate::ConvertTarget;
use crate::config::Selection;
use crate::containers::model::ParsedModel;
use crate::scheme::ResolvedItem;
use crate::{AnamnesisError, Result};

/// Every output tensor in the order of the source, and what the report says of them.
pub(super) struct Drafts<'m> {
    pub drafts: Vec<Draft<'m>>,
    pub report: Report,
    /// How the output is quantized, for `config.json`: the keys to set, and their value.
    pub quantization: Option<(Vec<&'static str>, serde_json::Value)>,
}

/// Drafts the output, or returns the first problem of the model.
pub(super) fn drafts<'m>(model: &'m ParsedModel, options: &ConvertOptions) -> Result<Drafts<'m>> {
    if options.carries_blocks(model) {
        return copies(model, options);
    }
    if let Some(skipped) = model.skipped.first().filter(|_| !options.skip_unsupported) {
        return Err(skipped.error());
    }
    let mut resolution = model.resolve().into_result()?;
    let selection = Selection::new(&options.include, &options.exclude)?;
    resolution.items.retain(|item| selection.has(item.name()));
    if resolution.items.is_empty() && !model.tensors.is_empty() {
        return Err(AnamnesisError::parse(
            "no tensor is left: none has a name that is included and not excluded",
        ));
    }
    let mut report = summary(model, &resolution, options);
    let mut encodings = Encodings::new(model, &mut resolution, options, &mut report)?;
    let mut drafts = Vec::with_capacity(resolution.items.len());
    for item in resolution.items {
        let item = match &mut encodings {
            None => item,
            Some(encodings) => match encodings.draft(item)? {
                Drafted::Encoded(encoded) => {
                    drafts.extend(encoded);
                    continue;
                }
                Drafted::NotEncoded(item) => item,
            },
        };
        drafts.push(unencoded(item, model, options)?);
    }
    let quantization = encodings.and_then(|encodings| encodings.finish(&mut drafts, &mut report));
    verify_once(&mut drafts);
    Ok(Drafts {
        drafts,
        report,
        quantization,
    })
}

/// Copies of all tensors, for GGUF blocks that stay as they are.
fn copies<'m>(model: &'m ParsedModel, options: &ConvertOptions) -> Result<Drafts<'m>> {
    let drafts: Vec<_> = model
        .tensors()
        .map(|t| Draft::copy(&t))
        .collect::<Result<_>>()?;
    let mut report = Report::new(options.run.to);
    report.passthrough = drafts.len();
    Ok(Drafts {
        drafts,
        report,
        quantization: None,
    })
}

/// A tensor that is copied or decoded.
fn unencoded<'m>(
    item: ResolvedItem<'m>,
    model: &ParsedModel,
    options: &ConvertOptions,
) -> Result<Draft<'m>> {
    let mut draft = match item {
        ResolvedItem::Plain(t) => Draft::copy(&t),
        ResolvedItem::Group(group) if is_carried(&group, options) => Draft::copy(&group.parts[0].1),
        ResolvedItem::Group(group) => Draft::decode(group, options.run.to),
    }?;
    if options.target == ConvertTarget::Safetensors {
        model.restore_shape(&draft.name, &mut draft.shape)?;
    }
    Ok(draft)
}

/// Leaves each checksum to the first draft that needs it: several tensors may be made from the same storage.
fn verify_once(drafts: &mut [Draft<'_>]) {
    let mut seen = HashSet::new();
    for draft in drafts {
        draft.verify.retain(|part| {
            part.check()
                .is_some_and(|check| seen.insert((part.source_index(), check.start)))
        });
    }
}
