//! What the output will hold: every tensor with its type and shape, before its place is known.

#[cfg(feature = "lethe")]
use std::collections::BTreeMap;
use std::collections::HashSet;

#[cfg(feature = "lethe")]
use super::encode::Encoding;
use super::options::ConvertOptions;
use super::plan::{Body, Cut, GATHER_BYTES};
use super::report::Report;
#[cfg(feature = "lethe")]
use super::report::{Encoded, Kept};
use crate::ConvertTarget;
use crate::config::Selection;
use crate::containers::model::{ParsedModel, Part, Tensor};
#[cfg(feature = "lethe")]
use crate::forget::{Choice, Choices, Forget, Method, Stored, Subject, Weight, choose, fused};
use crate::scheme::count;
#[cfg(feature = "lethe")]
use crate::scheme::{Decode, Plain};
use crate::scheme::{Group, Item, QuantScheme, Resolution, TensorRole};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// An output tensor whose place is not known yet.
pub(super) struct Draft<'m> {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes of its data.
    pub len: u64,
    pub body: Body<'m>,
    pub cut: Cut,
    /// Inputs whose stored bytes have to be checked by themselves.
    pub verify: Vec<Part<'m>>,
    /// The source that its codes are in.
    pub source: usize,
}

impl<'m> Draft<'m> {
    fn copy(t: &Tensor<'m>) -> Result<Self> {
        let (dtype, len) = (t.dtype(), t.info().len);
        if t.info().big_endian && !dtype.can_swap() {
            let what = format!(
                "tensor `{}`: no byte order is defined for {dtype}",
                t.name()
            );
            return Err(AnamnesisError::unsupported("big-endian GGUF", what));
        }
        let (part, shape) = (t.part(), t.shape());
        let size = dtype.bits() / 8;
        let (body, cut) = if part.is_strided() {
            let inner = (0..=shape.len()).rev().find(|&inner| {
                shape[shape.len() - inner..].iter().product::<usize>() * size <= GATHER_BYTES
            });
            let inner = inner.unwrap_or(0);
            (
                Body::Gather(part, inner),
                Cut::of_strided(shape, size, inner),
            )
        } else if part.is_deflated() {
            (Body::Stream(part), Cut::whole(len as usize))
        } else {
            (Body::Copy(part), Cut::of_bytes(len as usize, dtype))
        };
        let verify = if part.own_check().is_none() {
            vec![part]
        } else {
            vec![]
        };
        Ok(Self {
            name: t.name().to_owned(),
            dtype,
            shape: shape.to_vec(),
            len,
            body,
            cut,
            verify,
            source: t.info().source,
        })
    }

    /// The stored tensors that an encoded one becomes.
    #[cfg(feature = "lethe")]
    fn encode(
        item: Item<'m>,
        method: &dyn Method,
        label: String,
        to: TargetDtype,
    ) -> Result<Vec<Self>> {
        let (weight_dtype, is_plain) = (dtype_of(&item, to), matches!(item, Item::Plain(_)));
        let (name, shape, parts, decoder): (_, _, Vec<Tensor<'m>>, Box<dyn Decode + 'm>) =
            match item {
                Item::Group(g) => (
                    g.name,
                    g.shape,
                    g.parts.into_iter().map(|(_, t)| t).collect(),
                    g.decoder,
                ),
                Item::Plain(t) => match Plain::of(&t) {
                    Some(plain) => (
                        t.name().to_owned(),
                        t.shape().to_vec(),
                        vec![t],
                        Box::new(plain),
                    ),
                    None => return Self::copy(&t).map(|draft| vec![draft]),
                },
            };
        // What is plain need not be rounded to its own type.
        let rounded_to = if is_plain {
            TargetDtype::F32
        } else {
            weight_dtype
        };
        let encoder = method.encoder(&Weight {
            name: &name,
            shape: &shape,
            dtype: weight_dtype,
        })?;
        let stored = encoder.stored();
        let encoding = Box::new(Encoding::new(
            name, shape, label, encoder, decoder, rounded_to,
        ));
        let source = parts.first().map_or(0, |t| t.info().source);
        let mut verify: Vec<Part<'m>> = parts
            .iter()
            .map(Tensor::part)
            .filter(|part| part.check().is_some())
            .collect();
        let mut body = Some((encoding.input.cut, Body::Encode(encoding)));
        let draft = |Stored { name, dtype, shape }| {
            let len = dtype.byte_len(&shape).map(|n| n as u64);
            let len = len.ok_or_else(|| {
                AnamnesisError::parse(format!("tensor `{name}`: its size overflows"))
            })?;
            let (cut, body) = body.take().unwrap_or((Cut::NONE, Body::Encoded));
            Ok(Self {
                name,
                dtype,
                shape,
                len,
                body,
                cut,
                verify: std::mem::take(&mut verify),
                source,
            })
        };
        stored.into_iter().map(draft).collect()
    }

    /// A tensor in F32, in which llama.cpp wants the vectors that other files have in a narrower type.
    #[cfg(feature = "lethe")]
    fn widened(t: &Tensor<'m>, plain: Plain<'m>) -> Result<Self> {
        let (name, shape, scheme) = (
            t.name().to_owned(),
            t.shape().to_vec(),
            QuantScheme::Unquantized,
        );
        let group = Group::new(
            name,
            shape,
            scheme,
            vec![(TensorRole::Passthrough, *t)],
            Box::new(plain),
        );
        Self::decode(group, TargetDtype::F32)
    }

    fn decode(group: Group<'m>, target: TargetDtype) -> Result<Self> {
        let Group {
            name,
            shape,
            decoder,
            parts,
            keeps,
            ..
        } = group;
        let target = keeps.unwrap_or(target);
        let source = parts.first().map_or(0, |(_, t)| t.info().source);
        let verify = parts
            .iter()
            .map(|(_, t)| t.part())
            .filter(|part| part.check().is_some())
            .collect();
        let dtype = target.dtype();
        let len = dtype.byte_len(&shape).map(|n| n as u64);
        let len = len
            .ok_or_else(|| AnamnesisError::parse(format!("tensor `{name}`: its size overflows")))?;
        let cut = Cut::of_grid(&decoder.grid());
        Ok(Self {
            name,
            dtype,
            shape,
            len,
            body: Body::Decode(decoder),
            cut,
            verify,
            source,
        })
    }
}

/// Every output tensor in the order of the source, and what there is to say of them.
pub(super) struct Drafts<'m> {
    pub drafts: Vec<Draft<'m>>,
    pub report: Report,
    /// What `config.json` says of how the output is quantized: keys and their value.
    pub quantization: Option<(Vec<&'static str>, serde_json::Value)>,
}

/// Drafts the output.
pub(super) fn drafts<'m>(model: &'m ParsedModel, options: &ConvertOptions) -> Result<Drafts<'m>> {
    if options.carries_blocks(model) {
        let drafts = model
            .tensors()
            .map(|t| Draft::copy(&t))
            .collect::<Result<Vec<_>>>()?;
        let mut report = Report::new(options.run.to);
        report.passthrough = drafts.len();
        return Ok(Drafts {
            drafts,
            report,
            quantization: None,
        });
    }
    if let Some(skipped) = model.skipped.first().filter(|_| !options.skip_unsupported) {
        return Err(skipped.error());
    }
    let mut resolution = model.resolve().into_result()?;
    let wanted = Selection::new(&options.include, &options.exclude)?;
    resolution.items.retain(|item| wanted.has(item.name()));
    if resolution.items.is_empty() && !model.tensors.is_empty() {
        return Err(AnamnesisError::parse(
            "no tensor is left: none has a name that is included and not excluded",
        ));
    }
    let mut report = report(model, &resolution, options);
    report.notes.extend_from_slice(&model.notes);
    if let Some(skipped) = model.skipped.first() {
        let n = model.skipped.len();
        report.notes.push(format!(
            "{n} arrays left out that no tensor can hold, e.g. `{}` ({})",
            skipped.name, skipped.what
        ));
    }
    #[cfg_attr(not(feature = "lethe"), allow(unused_mut))]
    let mut quantization = None;
    #[cfg(feature = "lethe")]
    let mut choices = match &options.forget {
        Some(forget) => {
            let choices = choices(model, &mut resolution, forget, options, &mut report)?;
            quantization = described(&choices, &resolution)
                .map(|config| (forget.scheme.config_keys(), config));
            choices.into_iter()
        }
        None => vec![].into_iter(),
    };
    let draft = |item| {
        #[cfg(feature = "lethe")]
        if let Some(Choice::Encode { method, label }) = choices.next() {
            return Draft::encode(item, &*method, label, options.run.to);
        }
        #[cfg(feature = "lethe")]
        if options.forget.is_some() && options.target == ConvertTarget::Gguf {
            match &item {
                Item::Group(group) if model.is_gguf() => {
                    return group.parts.iter().map(|(_, t)| Draft::copy(t)).collect();
                }
                Item::Plain(t) if !model.is_gguf() && t.shape().len() < 2 => {
                    if let Some(plain) = Plain::of(t) {
                        return Draft::widened(t, plain).map(|draft| vec![draft]);
                    }
                }
                _ => {}
            }
        }
        let mut draft = match item {
            Item::Plain(t) => Draft::copy(&t),
            Item::Group(group) if is_carried(&group, options) => Draft::copy(&group.parts[0].1),
            Item::Group(group) => Draft::decode(group, options.run.to),
        }?;
        #[cfg(feature = "gguf")]
        if options.target == ConvertTarget::Safetensors
            && let Some(gguf) = model.gguf()
        {
            gguf.restore_shape(&draft.name, &mut draft.shape)?;
        }
        Ok(vec![draft])
    };
    let drafts = resolution
        .items
        .into_iter()
        .map(draft)
        .collect::<Result<Vec<_>>>()?;
    let mut drafts: Vec<_> = drafts.into_iter().flatten().collect();
    #[cfg(feature = "lethe")]
    {
        share(&mut drafts);
        tell_moved(&drafts, &mut report);
    }
    // What several tensors are made from is checked once.
    let mut seen = HashSet::new();
    for draft in &mut drafts {
        draft.verify.retain(|part| {
            part.check()
                .is_some_and(|check| seen.insert((part.source_index(), check.start)))
        });
    }
    Ok(Drafts {
        drafts,
        report,
        quantization,
    })
}

/// Whether a tensor of eight-bit floats without a scale goes into the output as it is.
fn is_carried(group: &Group<'_>, options: &ConvertOptions) -> bool {
    let is_cast = matches!(group.scheme, QuantScheme::CastFp8 { .. });
    is_cast && !options.decode && options.target.holds(group.parts[0].1.dtype())
}

fn report(model: &ParsedModel, resolution: &Resolution<'_>, options: &ConvertOptions) -> Report {
    let mut report = Report::new(options.run.to);
    report.dropped = resolution
        .dropped
        .iter()
        .map(|t| t.name().to_owned())
        .collect();
    for group in resolution
        .groups()
        .filter(|group| !is_carried(group, options))
    {
        count(&mut report.schemes, group.scheme);
    }
    report.passthrough = resolution.items.len() - report.recovered();
    let is_cast = |scheme: &QuantScheme| matches!(scheme, QuantScheme::CastFp8 { .. });
    let cast: usize = report
        .schemes
        .iter()
        .filter(|s| is_cast(&s.scheme))
        .map(|s| s.tensors)
        .sum();
    if cast > 0 {
        report
            .notes
            .push(format!("{cast} FP8 tensors have no scale, and nothing says that they should: read as plain casts"));
    }
    let gptq = report.schemes.iter().any(|s| s.scheme == QuantScheme::Gptq);
    if gptq
        && model
            .config
            .text(&["checkpoint_format", "format", "packing_format"])
            .is_none()
    {
        report
            .notes
            .push("nothing says the version of GPTQ's zero points: read as version 1".to_owned());
    }
    if !report.dropped.is_empty() {
        let n = report.dropped.len();
        report.notes.push(format!(
            "{n} activation scales and markers left out, e.g. `{}`",
            report.dropped[0]
        ));
    }
    report
}

/// Makes tensors that inference fuses siblings, if their encoders want that.
#[cfg(feature = "lethe")]
fn share(drafts: &mut [Draft<'_>]) {
    let encodings = drafts.iter_mut().filter_map(|draft| match &mut draft.body {
        Body::Encode(encoding) => Some(encoding),
        _ => None,
    });
    let mut encodings: Vec<_> = encodings.collect();
    let mut families: BTreeMap<(String, usize), Vec<usize>> = BTreeMap::new();
    for (i, encoding) in encodings
        .iter()
        .enumerate()
        .filter(|(_, encoding)| encoding.encoder.shares())
    {
        if let Some((parent, number)) = fused(&encoding.input.name) {
            families
                .entry((parent.to_owned(), number))
                .or_default()
                .push(i);
        }
    }
    for members in families.values() {
        let inputs: Vec<_> = members
            .iter()
            .map(|&i| encodings[i].input.clone())
            .collect();
        for (at, &i) in members.iter().enumerate() {
            let others = inputs.iter().enumerate().filter(|(other, _)| *other != at);
            encodings[i].siblings = others.map(|(_, input)| input.clone()).collect();
        }
    }
}

/// Says of which tensors the codes are moved as they are, and why those of others of the same kind are not.
#[cfg(feature = "lethe")]
fn tell_moved(drafts: &[Draft<'_>], report: &mut Report) {
    let mut others: Vec<(&str, usize, &str)> = Vec::new();
    let mut encoded = report.encoded.iter_mut();
    for draft in drafts {
        let Body::Encode(encoding) = &draft.body else {
            continue;
        };
        let entry = encoded.find(|entry| entry.name == encoding.input.name);
        match (&encoding.moved, entry) {
            (Some(Ok(())), Some(entry)) => entry.scheme.push_str(" (codes moved)"),
            (Some(Err(reason)), _) => match others.iter_mut().find(|(other, ..)| other == reason) {
                Some((_, n, _)) => *n += 1,
                None => others.push((reason, 1, &encoding.input.name)),
            },
            _ => {}
        }
    }
    let say = |(reason, n, name)| {
        format!(
            "{n} tensors have codes of the same kind that are not moved as they are: {reason}, e.g. `{name}`"
        )
    };
    report.notes.extend(others.into_iter().map(say));
}

/// What becomes of each item, when tensors are encoded. Parameters are encoded as modules have them, where that can be.
#[cfg(feature = "lethe")]
fn choices(
    model: &ParsedModel,
    resolution: &mut Resolution<'_>,
    forget: &Forget,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<Vec<Choice>> {
    let to = options.run.to;
    let subjects: Vec<_> = resolution
        .items
        .iter()
        .map(|item| subject(item, item.module(), to))
        .collect();
    let Choices {
        all: mut choices,
        notes,
    } = choose(model, &subjects, forget, to)?;
    report.notes.extend(notes);
    let is_refused = |item: &Item<'_>, choice: &Choice| {
        item.module().is_some() && matches!(choice, Choice::Keep(_))
    };
    if resolution
        .items
        .iter()
        .zip(&choices)
        .any(|(item, choice)| is_refused(item, choice))
    {
        let subjects: Vec<_> = resolution
            .items
            .iter()
            .map(|item| subject(item, None, to))
            .collect();
        let others = choose(model, &subjects, forget, to)?.all;
        for ((item, choice), other) in resolution.items.iter_mut().zip(&mut choices).zip(others) {
            if is_refused(item, choice) && matches!(other, Choice::Encode { .. }) {
                *choice = other;
                item.take_module();
            }
        }
    }
    for (item, choice) in resolution.items.iter_mut().zip(&choices) {
        let module = matches!(choice, Choice::Encode { .. })
            .then(|| item.take_module())
            .flatten();
        module
            .into_iter()
            .for_each(|module| *item = Item::Group(module));
    }
    for (choice, item) in choices.iter().zip(&resolution.items) {
        let name = item.name().to_owned();
        match choice {
            Choice::Encode { label, .. } => report.encoded.push(Encoded {
                name,
                scheme: label.clone(),
            }),
            Choice::Keep(reason) => report.kept.push(Kept {
                name,
                reason: reason.clone(),
            }),
        }
    }
    report.passthrough = report.kept.len();
    Ok(choices)
}

/// What the config says of the choices: modules whose weights are matrices and stay as they are are named in it.
#[cfg(feature = "lethe")]
fn described(choices: &[Choice], resolution: &Resolution<'_>) -> Option<serde_json::Value> {
    let kept = |(choice, item): (&Choice, &Item<'_>)| {
        let (name, rank) = match item {
            Item::Group(group) => (group.name.as_str(), group.shape.len()),
            Item::Plain(t) => (t.name(), t.shape().len()),
        };
        let is_kept = matches!(choice, Choice::Keep(_)) && rank == 2;
        name.strip_suffix(".weight")
            .filter(|_| is_kept)
            .map(str::to_owned)
    };
    let skipped: Vec<String> = choices
        .iter()
        .zip(&resolution.items)
        .filter_map(kept)
        .collect();
    choices.iter().find_map(|choice| match choice {
        Choice::Encode { method, .. } => method.config(&skipped),
        Choice::Keep(_) => None,
    })
}

/// The type of an item's values: its own, or that which it is decoded to.
#[cfg(feature = "lethe")]
fn dtype_of(item: &Item<'_>, to: TargetDtype) -> TargetDtype {
    match item {
        Item::Group(group) => group.keeps.unwrap_or(to),
        Item::Plain(t) => TargetDtype::of(t.dtype()).unwrap_or(to),
    }
}

/// What is chosen of: an item, or `module` in its stead.
#[cfg(feature = "lethe")]
fn subject<'a>(item: &'a Item<'_>, module: Option<&'a Group<'_>>, to: TargetDtype) -> Subject<'a> {
    let (name, shape, stored) = match item {
        Item::Group(group) => {
            let group = module.unwrap_or(group);
            (
                group.name.as_str(),
                group.shape.as_slice(),
                group.parts[0].1.dtype(),
            )
        }
        Item::Plain(t) => (t.name(), t.shape(), t.dtype()),
    };
    let weight = Weight {
        name,
        shape,
        dtype: dtype_of(item, to),
    };
    Subject {
        name: item.name(),
        weight,
        stored,
        is_group: matches!(item, Item::Group(_)),
    }
}
