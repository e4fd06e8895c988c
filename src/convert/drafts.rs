//! The first step of the plan: decides for every tensor of a model whether it is copied, decoded or
//! encoded.

use std::borrow::Cow;
use std::collections::HashSet;

use super::adapters::{Adapter, Base, ConfigField, merge};
use super::asked::{Asked, note_on};
use super::cast::{cast_of_item, cast_target, widen_parameter, widens_parameters};
use super::draft::is_carried;
use super::encodings::{Drafted, Encodings, encode_as_class};
use super::options::{ConvertOptions, FloatCast, ModelScope};
use super::output::{BoxedOutput, Output};
use super::parts;
use super::report::Report;
use super::summary::summary;
use super::whole::{self, Pruned, WholeModel};
use crate::config::Selection;
use crate::model::{ParsedModel, Tensor};
use crate::records::debug;
use crate::remember::{Assumption, Group, QuantScheme, Resolution, ResolvedItem};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// The drafts of all output tensors, in the order of the model, and the report on them.
pub(super) struct Drafts<'m> {
    pub drafts: Vec<BoxedOutput<'m>>,
    pub report: Report,
    /// The quantization config of the output: the keys under which `config.json` has it, and its
    /// value.
    pub quantization: Option<(Vec<&'static str>, serde_json::Value)>,
    /// What the metadata of a GGUF output says of the encoding.
    #[cfg(feature = "gguf")]
    pub gguf_keys: Vec<(String, crate::GgufMetadataValue)>,
    /// What a whole model has beside its tensors, if the output is one.
    pub whole: Option<WholeModel>,
    /// What adapters change in `config.json`.
    pub config_fields: Vec<ConfigField>,
}

/// Drafts all output tensors.
///
/// # Errors
/// The first tensor that cannot be converted; an invalid pattern; patterns that leave no tensor.
pub(super) fn draft_outputs<'m>(
    model: &'m ParsedModel,
    options: &ConvertOptions,
) -> Result<Drafts<'m>> {
    check_options(model, options)?;
    #[cfg(feature = "gguf")]
    if options.scope == ModelScope::Vocabulary && model.is_gguf() {
        return draft_vocabulary(model, options);
    }
    if options.copies_all || options.carries_blocks(model) {
        return draft_copies(model, options);
    }
    let asked = Asked::new(options)?;
    if let Some(skipped) = model.skipped.iter().find(|array| asked.has(&array.name)) {
        return Err(skipped.error());
    }
    let (mut resolution, undecoded) = model.resolve().of_asked(|name| asked.has(name))?;
    let mut merged = Report::new(options.run.to);
    let merges_first = fit_stored_names(model, options)?;
    let mut config_fields = vec![];
    if merges_first {
        config_fields =
            merge(&Base::new(model), &mut resolution.items, &options.adapters, &mut merged)?;
    }
    let (pruned, left_out) = change_names(model, options, &mut resolution, &undecoded)?;
    let unmatched = select(&mut resolution, model, options)?;
    resolution.keep_assumptions_of_items();
    let mut assumed = resolution.assumptions.iter().filter(|_| options.strict);
    if let Some(error) = assumed.find_map(Assumption::error) {
        return Err(error);
    }
    log_items(&resolution);
    let mut report = summary(model, &resolution, options);
    report.dropped.extend(left_out);
    report.notes.extend(unmatched);
    report.notes.extend(note_on(&undecoded));
    let whole = whole::map(model, &mut resolution, options, &mut report)?;
    if options.scope == ModelScope::Vocabulary {
        report = Report { notes: report.notes, ..Report::new(options.run.to) };
    }
    if options.scope == ModelScope::Prediction {
        report.passthrough = report.passthrough.min(resolution.items.len());
    }
    if !merges_first {
        let base = Base {
            model,
            made_architecture: whole.as_ref().and_then(WholeModel::architecture),
            made_config: whole.as_ref().and_then(WholeModel::config),
        };
        config_fields = merge(&base, &mut resolution.items, &options.adapters, &mut merged)?;
    }
    require_same_config(&config_fields, whole.as_ref(), merges_first)?;
    config_fields.extend(pruned.fields);
    report.notes.extend(merged.notes);
    report.merged = merged.merged;
    // Between the two the tables of the class say which tensors have which type.
    let is_gguf = options.target.container().has_gguf_metadata;
    let is_of_class = whole.is_some() && model.is_gguf() != is_gguf;
    let mut encodings = Encodings::new(model, &mut resolution, options, &mut report)?;
    let widens = whole.is_none() && widens_parameters(&resolution.items, options);
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
        let mut item = match encode_as_class(item, &mut report)? {
            Drafted::Encoded(encoded) => {
                drafts.extend(encoded);
                continue;
            }
            Drafted::NotEncoded(item) => item,
        };
        let mut cast = cast_of_item(&item, is_of_class, options);
        if widens {
            cast = widen_parameter(&mut item, cast, options);
        }
        count_unencoded(&item, cast.is_some(), &mut report);
        let draft = draft_unencoded(item, cast, model, options)?;
        debug!("tensor `{}`: written as {} {:?}", draft.name, draft.dtype, draft.shape);
        drafts.push(Box::new(draft));
    }
    report.passthrough = report.passthrough.saturating_sub(report.cast);
    #[cfg(feature = "gguf")]
    let gguf_keys = {
        let of_encoding = encodings.as_mut().map(Encodings::take_gguf_keys);
        [of_encoding.unwrap_or_default(), pruned.keys].concat()
    };
    // Only now: tensors that inference fuses are known to each other when all of them are drafted.
    let quantization = encodings.and_then(|encodings| encodings.finish(&mut drafts, &mut report));
    verify_once(&mut drafts);
    // A tensor that is encoded becomes several, which nobody has counted.
    drafts.shrink_to_fit();
    Ok(Drafts {
        drafts,
        report,
        quantization,
        #[cfg(feature = "gguf")]
        gguf_keys,
        whole,
        config_fields,
    })
}

/// Takes layers out of `resolution`, numbers the others anew, and then makes the changes of names that
/// the options ask for. Returns what follows for the config and the metadata, and the names of the
/// tensors that are left out.
///
/// # Errors
/// Those of [`Pruned::of`] and of the changes of names.
fn change_names(
    model: &ParsedModel,
    options: &ConvertOptions,
    resolution: &mut Resolution<'_>,
    undecoded: &[String],
) -> Result<(Pruned, Vec<String>)> {
    let mut pruned = Pruned::of(model, options)?;
    let mut left_out = pruned.apply(&mut resolution.items);
    left_out.extend(options.names.apply(resolution, undecoded)?);
    Ok((pruned, left_out))
}

/// Checks that the options can be met together, and with this model.
///
/// # Errors
/// `Usage` if two options exclude each other, or names would no longer fit the metadata.
fn check_options(model: &ParsedModel, options: &ConvertOptions) -> Result<()> {
    if options.run.cast != FloatCast::Keep && options.encodes() {
        let what =
            "a cast: plain floats are cast where nothing is encoded; the options ask for both";
        return Err(AnamnesisError::usage(what));
    }
    if !options.names.is_empty() && model.has_original_shapes() {
        return Err(AnamnesisError::usage(
            "--rename, --drop: metadata of this file has shapes of tensors by their names (`comfy.gguf.orig_shape`)",
        ));
    }
    parts::check(model, options)?;
    let is_gguf = options.target.container().has_gguf_metadata;
    if options.scope == ModelScope::ImageTower && (!is_gguf || model.is_gguf()) {
        let what = "--mmproj: only the image tower of a Hugging Face directory becomes a GGUF file";
        return Err(AnamnesisError::usage(what));
    }
    let makes_model = options.scope == ModelScope::Model && !is_gguf && !options.makes_mlx();
    if model.has_tower() && !makes_model {
        let what = "--mmproj FILE: a model with its tower becomes a Hugging Face directory; name one with -o";
        return Err(AnamnesisError::usage(what));
    }
    Ok(())
}

/// Drafts nothing: the metadata of a GGUF file are its settings and its tokenizer.
///
/// # Errors
/// `Unsupported` if it has no tokenizer.
#[cfg(feature = "gguf")]
fn draft_vocabulary<'m>(model: &'m ParsedModel, options: &ConvertOptions) -> Result<Drafts<'m>> {
    use crate::error::counted;
    use crate::model::gguf_keys::TOKENS;

    let metadata = model.gguf().map(|source| source.metadata());
    if metadata.is_none_or(|metadata| metadata.get(TOKENS).is_none()) {
        let what = format!("the file has no tokenizer (key `{TOKENS}`)");
        return Err(AnamnesisError::unsupported("--vocab-only", what));
    }
    let mut report = Report::new(options.run.to);
    let count = counted(model.tensors().len(), "tensor");
    report
        .notes
        .push(format!("{count} left out: the output has settings and tokenizer alone"));
    Ok(Drafts {
        drafts: vec![],
        report,
        quantization: None,
        gguf_keys: vec![],
        whole: None,
        config_fields: vec![],
    })
}

/// Whether the adapters of `options` name weights as `model` has them, and not as a whole model
/// that is made of it.
///
/// # Errors
/// `Unsupported` if some name them as Hugging Face does and others as llama.cpp.
fn fit_stored_names(model: &ParsedModel, options: &ConvertOptions) -> Result<bool> {
    let mut names = options.adapters.iter().map(Adapter::has_gguf_names);
    let Some(has_gguf_names) = names.next() else {
        return Ok(true);
    };
    if names.any(|other| other != has_gguf_names) {
        let what = "adapters of PEFT and in GGUF are not merged at once; merge one kind first";
        return Err(AnamnesisError::unsupported("several adapters", what));
    }
    let is_whole = options.scope == ModelScope::Model;
    Ok(match has_gguf_names {
        true => model.is_gguf(),
        // A GGUF file with the names of Hugging Face has no others in an output that is not a whole
        // model.
        false => !(model.is_gguf() && is_whole),
    })
}

/// Fails if adapters change `fields` of the config that the whole model `whole` was made of before
/// they were merged into it (`merges_first`), or that is no longer one of transformers.
///
/// # Errors
/// `Unsupported`.
fn require_same_config(
    fields: &[ConfigField],
    whole: Option<&WholeModel>,
    merges_first: bool,
) -> Result<()> {
    let (Some(field), Some(whole)) = (fields.first(), whole) else {
        return Ok(());
    };
    if !merges_first && whole.format() == "pt" {
        return Ok(());
    }
    let what = format!(
        "`{}` of config.json becomes {} with it, which the output would not have; merge it to a directory first, and convert that",
        field.key, field.new
    );
    Err(AnamnesisError::unsupported("an adapter", what))
}

/// Records what becomes of each tensor.
fn log_items(resolution: &Resolution<'_>) {
    for item in &resolution.items {
        match item {
            ResolvedItem::Group(group) => {
                debug!("tensor `{}`: {}", group.name, group.scheme.phrase());
            }
            ResolvedItem::Plain(t) => {
                debug!("tensor `{}`: not quantized, {}", t.name(), t.stored.dtype());
            }
        }
    }
    for t in &resolution.dropped {
        debug!("tensor `{}`: left out", t.name());
    }
}

/// Counts an item that is not encoded.
fn count_unencoded(item: &ResolvedItem<'_>, is_cast: bool, report: &mut Report) {
    match item {
        _ if is_cast => report.cast += 1,
        ResolvedItem::Plain(t) => report.count_kept(t.stored.dtype()),
        // The summary counts it with the tensors that are not quantized, and adapters have changed
        // it.
        ResolvedItem::Group(group)
            if group.is_merged && group.scheme == QuantScheme::Unquantized =>
        {
            report.passthrough = report.passthrough.saturating_sub(1);
        }
        ResolvedItem::Group(_) => {}
    }
}

/// Removes the items that the options do not include. Returns a note for each pattern that matches
/// no tensor.
///
/// # Errors
/// An invalid pattern, or none is left.
fn select(
    resolution: &mut Resolution<'_>,
    model: &ParsedModel,
    options: &ConvertOptions,
) -> Result<Vec<String>> {
    let selection = Selection::new(&options.include, &options.exclude)?;
    let items = std::mem::take(&mut resolution.items);
    let stored = model.tensors().map(|t| t.name());
    let names = items.iter().map(ResolvedItem::name);
    let notes = selection.notes(&names, &stored);
    let is_selected: Vec<bool> = items
        .iter()
        .map(|item| selection.has(item.name()))
        .collect();
    selection.check()?;
    let has_patterns = !(options.include.is_empty() && options.exclude.is_empty());
    let is_lost = has_patterns || !options.skip_unsupported;
    if is_lost && !is_selected.contains(&true) && !model.tensors.is_empty() {
        return Err(selection.has_none(names, stored));
    }
    let selected = items.into_iter().zip(is_selected);
    resolution.items = selected
        .filter_map(|(item, is_selected)| is_selected.then_some(item))
        .collect();
    Ok(notes)
}

/// Drafts copies of all tensors: of a GGUF file whose blocks are not decoded, or of any model that
/// is only moved to another container.
fn draft_copies<'m>(model: &'m ParsedModel, options: &ConvertOptions) -> Result<Drafts<'m>> {
    // Each stored tensor is a tensor of the output, whatever it belongs to. Only for other names
    // the scales that some blocks have beside them must go with their weights.
    let asked = Asked::new(options)?;
    // Experts that are stacked are, too.
    let is_copy = options.names.is_empty() && !whole::stacks_copies(model, options);
    let (mut resolution, undecoded) = match is_copy {
        true => {
            let items = model.tensors().map(|t| ResolvedItem::Plain(t.into()));
            let copies = Resolution { items: items.collect(), ..Resolution::default() };
            (copies, vec![])
        }
        false => model.resolve().of_asked(|name| asked.has(name))?,
    };
    whole::stack_copies(model, &mut resolution, options)?;
    let (pruned, mut left_out) = change_names(model, options, &mut resolution, &undecoded)?;
    left_out.extend(resolution.dropped.iter().map(|t| t.name().to_owned()));
    let mut report = Report::new(options.run.to);
    report.notes = select(&mut resolution, model, options)?;
    report.notes.extend(note_on(&undecoded));
    let mut drafts = Vec::with_capacity(resolution.items.len());
    for item in resolution.items {
        match item {
            ResolvedItem::Plain(t) => {
                let stored = t.stored;
                let cast = cast_target(stored.dtype(), stored.shape().len(), options);
                let cast = cast.filter(|_| !options.copies_all);
                debug!("tensor `{}`: copied, {}", t.name(), stored.dtype());
                let draft = draft_plain(t.into_name(), &stored, cast, options)?;
                drafts.push(Box::new(draft));
                report.cast += usize::from(cast.is_some());
            }
            ResolvedItem::Group(group) => {
                let copies = Output::copies(&group)?;
                let item = ResolvedItem::Group(group);
                let cast = cast_of_item(&item, false, options).filter(|_| !options.copies_all);
                match copies.filter(|_| cast.is_none()) {
                    Some(copies) => drafts.extend(copies),
                    None => drafts.push(Box::new(draft_unencoded(item, cast, model, options)?)),
                }
                report.cast += usize::from(cast.is_some());
            }
        }
    }
    verify_once(&mut drafts);
    report.passthrough = drafts.len() - report.cast;
    report.dropped = left_out;
    Ok(Drafts {
        drafts,
        report,
        quantization: None,
        #[cfg(feature = "gguf")]
        gguf_keys: pruned.keys,
        whole: None,
        config_fields: pruned.fields,
    })
}

/// Drafts a tensor that is stored as it is, under the name `name`: copied, or cast to `cast`.
fn draft_plain<'m>(
    name: Cow<'m, str>,
    t: &Tensor<'m>,
    cast: Option<TargetDtype>,
    options: &ConvertOptions,
) -> Result<Output<'m>> {
    let saturates = options.run.cast == FloatCast::Saturating;
    match cast {
        Some(target) => Output::cast(name, t, target, saturates),
        None => Output::copy_named(name, t),
    }
}

/// Drafts a tensor that is not encoded: it is copied, decoded, or cast to `cast`.
fn draft_unencoded<'m>(
    item: ResolvedItem<'m>,
    cast: Option<TargetDtype>,
    model: &ParsedModel,
    options: &ConvertOptions,
) -> Result<Output<'m>> {
    let item = match item {
        ResolvedItem::Group(group) => match Output::integers(group) {
            Ok(integers) => return Ok(integers),
            Err(group) => ResolvedItem::Group(group),
        },
        plain @ ResolvedItem::Plain(_) => plain,
    };
    let mut draft = match item {
        ResolvedItem::Plain(t) => {
            let stored = t.stored;
            draft_plain(t.into_name(), &stored, cast, options)
        }
        // A sum can be beyond the range that the weight had.
        ResolvedItem::Group(group) if group.is_merged => {
            let target = cast.or(group.keeps).unwrap_or(options.run.to);
            let saturates = options.run.cast == FloatCast::Saturating;
            Output::cast_group(*group, Dtype::F32, target, saturates)
        }
        ResolvedItem::Group(group) if is_carried(&group, options) => {
            draft_plain(group.name, &group.parts[0].1, cast, options)
        }
        ResolvedItem::Group(group) => match (cast, group.keeps) {
            (Some(target), Some(kept)) => {
                let saturates = options.run.cast == FloatCast::Saturating;
                Output::cast_group(*group, kept.dtype(), target, saturates)
            }
            // The tables of a class may give F16 to what is stored in a type of larger range, and
            // it must not become infinite.
            (_, kept) if group.scheme == QuantScheme::Unquantized && has_f32_values(&group) => {
                let target = kept.unwrap_or(options.run.to);
                Output::cast_group(*group, Dtype::F32, target, false)
            }
            _ => Output::decode(*group, options.run.to, options.run.cast),
        },
    }?;
    // Some GGUF writers reshape a tensor to rows of whole blocks, and keep its original shape in
    // the metadata.
    let writer = options.target.container().writer();
    if writer.is_some_and(|writer| writer.restores_shapes) {
        model.restore_shape(&draft.name, &mut draft.shape)?;
    }
    Ok(draft)
}

/// Whether values of `group` can be beyond the range of F16: it is made of BF16 or F32.
fn has_f32_values(group: &Group<'_>) -> bool {
    let mut dtypes = group.parts.iter().map(|(_, t)| t.dtype());
    dtypes.any(|dtype| matches!(dtype, Dtype::BF16 | Dtype::F32))
}

/// Leaves each checksum to the first draft that needs it, because several tensors can be views of
/// one storage and it would be read again for each.
fn verify_once(drafts: &mut [BoxedOutput<'_>]) {
    let mut seen = HashSet::new();
    for draft in drafts {
        draft.checks.leave(|part| seen.insert(part.checksum_key()));
    }
}
