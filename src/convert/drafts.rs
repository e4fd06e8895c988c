//! The first step of the plan: decides for every tensor of a model whether it is copied, decoded or encoded.

use std::collections::HashSet;

use super::draft::{Draft, is_carried};
use super::encode::{Drafted, Encodings};
use super::options::ConvertOptions;
use super::report::Report;
use super::summary::summary;
use super::whole::{self, WholeModel};
use crate::config::Selection;
use crate::containers::model::ParsedModel;
use crate::scheme::{Resolution, ResolvedItem};
use crate::{AnamnesisError, Result};

/// The drafts of all output tensors, in the order of the model, and the report on them.
pub(super) struct Drafts<'m> {
    pub drafts: Vec<Draft<'m>>,
    pub report: Report,
    /// The quantization config of the output: the keys under which `config.json` has it, and its value.
    pub quantization: Option<(Vec<&'static str>, serde_json::Value)>,
    /// What a whole model has beside its tensors, if the output is one.
    pub whole: Option<WholeModel>,
}

/// Drafts all output tensors.
///
/// # Errors
/// The first tensor that cannot be converted; an invalid pattern; patterns that leave no tensor.
pub(super) fn draft_outputs<'m>(
    model: &'m ParsedModel,
    options: &ConvertOptions,
) -> Result<Drafts<'m>> {
    if !options.names.is_empty() && model.has_original_shapes() {
        return Err(AnamnesisError::unsupported(
            "other names",
            "metadata of this file has shapes of tensors by their names (`comfy.gguf.orig_shape`)",
        ));
    }
    if options.copies_all || options.carries_blocks(model) {
        return draft_copies(model, options);
    }
    if let Some(skipped) = model.skipped.first().filter(|_| !options.skip_unsupported) {
        return Err(skipped.error());
    }
    let mut resolution = model.resolve().into_result()?;
    let left_out = options.names.apply(&mut resolution)?;
    select(&mut resolution, model, options)?;
    let mut report = summary(model, &resolution, options);
    report.dropped.extend(left_out);
    let whole = whole::map(model, &mut resolution, options, &mut report)?;
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
        drafts.push(draft_unencoded(item, model, options)?);
    }
    // Only now: tensors that inference fuses are known to each other when all of them are drafted.
    let quantization = encodings.and_then(|encodings| encodings.finish(&mut drafts, &mut report));
    verify_once(&mut drafts);
    Ok(Drafts {
        drafts,
        report,
        quantization,
        whole,
    })
}

/// Removes the items that the options do not include.
///
/// # Errors
/// An invalid pattern, or none is left.
fn select(
    resolution: &mut Resolution<'_>,
    model: &ParsedModel,
    options: &ConvertOptions,
) -> Result<()> {
    let selection = Selection::new(&options.include, &options.exclude)?;
    resolution.items.retain(|item| selection.has(item.name()));
    selection.check()?;
    if resolution.items.is_empty() && !model.tensors.is_empty() {
        return Err(AnamnesisError::parse(
            "no tensor is left: none has a name that is included and not excluded",
        ));
    }
    Ok(())
}

/// Drafts copies of all tensors: of a GGUF file whose blocks are not decoded, or of any model that is only moved to
/// another container.
fn draft_copies<'m>(model: &'m ParsedModel, options: &ConvertOptions) -> Result<Drafts<'m>> {
    // Each stored tensor is a tensor of the output, whatever it belongs to. Only for other names the scales that some blocks
    // have beside them must go with their weights.
    let mut resolution = match options.names.is_empty() {
        true => Resolution {
            items: model
                .tensors()
                .map(|t| ResolvedItem::Plain(t.into()))
                .collect(),
            ..Resolution::default()
        },
        false => model.resolve().into_result()?,
    };
    let mut left_out = options.names.apply(&mut resolution)?;
    left_out.extend(resolution.dropped.iter().map(|t| t.name().to_owned()));
    select(&mut resolution, model, options)?;
    let mut drafts = Vec::with_capacity(resolution.items.len());
    for item in &resolution.items {
        match item {
            ResolvedItem::Plain(t) => drafts.push(Draft::copy_named(t)?),
            ResolvedItem::Group(group) => drafts.extend(Draft::copies(group)?),
        }
    }
    verify_once(&mut drafts);
    let mut report = Report::new(options.run.to);
    report.passthrough = drafts.len();
    report.dropped = left_out;
    Ok(Drafts {
        drafts,
        report,
        quantization: None,
        whole: None,
    })
}

/// Drafts a tensor that is not encoded: it is copied or decoded.
fn draft_unencoded<'m>(
    item: ResolvedItem<'m>,
    model: &ParsedModel,
    options: &ConvertOptions,
) -> Result<Draft<'m>> {
    let mut draft = match item {
        ResolvedItem::Plain(t) => Draft::copy_named(&t),
        ResolvedItem::Group(group) if is_carried(&group, options) => Draft::carry(group),
        ResolvedItem::Group(group) => Draft::decode(group, options.run.to),
    }?;
    // Some GGUF writers reshape a tensor to rows of whole blocks, and keep its original shape in the metadata.
    let writer = options.target.container().writer();
    if writer.is_some_and(|writer| writer.restores_shapes) {
        model.restore_shape(&draft.name, &mut draft.shape)?;
    }
    Ok(draft)
}

/// Leaves each checksum to the first draft that needs it, because several tensors can be views of one storage and it would
/// be read again for each.
fn verify_once(drafts: &mut [Draft<'_>]) {
    let mut seen = HashSet::new();
    for draft in drafts {
        let parts = std::mem::take(&mut draft.verify).into_iter();
        for part in parts {
            match seen.insert(part.member()) {
                true => draft.verify.push(part),
                false => draft.verified_before.push(part),
            }
        }
    }
}
