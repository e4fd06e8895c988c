//! Which tensors are encoded, and the output tensors that each of them becomes.

use std::collections::BTreeMap;
use std::vec;

use super::{EncodeBody, Encoding, RelayDecision, WrittenWithAnother};
use crate::ConvertTarget;
use crate::containers::model::{ParsedModel, Tensor};
use crate::convert::cut::Cut;
use crate::convert::draft::{Draft, byte_len, with_checks};
use crate::convert::options::ConvertOptions;
use crate::convert::output::Body;
use crate::convert::report::{Encoded, Kept, Report};
use crate::forget::{
    Candidate, Decision, Decisions, Forget, Method, StoredTensor, WeightInfo, decide, fused,
};
use crate::scheme::{
    Decode, Group, PlainFloats, QuantScheme, Resolution, ResolvedItem, TensorRole,
};
use crate::{Result, TargetDtype};

/// The choices for a model's tensors, in their order.
pub(in crate::convert) struct Encodings {
    choices: vec::IntoIter<Decision>,
    quantization: Option<(Vec<&'static str>, serde_json::Value)>,
    to: TargetDtype,
    target: ConvertTarget,
    is_gguf: bool,
}

/// What encoding makes of an item.
pub(in crate::convert) enum Drafted<'m> {
    Encoded(Vec<Draft<'m>>),
    /// The item stays as it is.
    NotEncoded(ResolvedItem<'m>),
}

impl Encodings {
    /// Chooses what becomes of each item; `None` if the options do not ask for encoding. Parameters whose module is
    /// encoded in their stead are replaced in `resolution`.
    pub(in crate::convert) fn new(
        model: &ParsedModel,
        resolution: &mut Resolution<'_>,
        options: &ConvertOptions,
        report: &mut Report,
    ) -> Result<Option<Self>> {
        let Some(forget) = &options.forget else {
            return Ok(None);
        };
        let choices = choices(model, resolution, forget, options, report)?;
        let quantization =
            described(&choices, resolution).map(|config| (forget.scheme.config_keys(), config));
        Ok(Some(Self {
            choices: choices.into_iter(),
            quantization,
            to: options.run.to,
            target: options.target,
            is_gguf: model.is_gguf(),
        }))
    }

    /// Drafts the next item, if it is encoded.
    pub(in crate::convert) fn draft<'m>(&mut self, item: ResolvedItem<'m>) -> Result<Drafted<'m>> {
        if let Some(Decision::Encode { method, label }) = self.choices.next() {
            return encode(item, &*method, label, self.to).map(Drafted::Encoded);
        }
        if self.target != ConvertTarget::Gguf {
            return Ok(Drafted::NotEncoded(item));
        }
        let drafts = match &item {
            // GGUF blocks that are not encoded anew stay as they are.
            ResolvedItem::Group(group) if self.is_gguf => {
                let parts = group.parts.iter();
                parts.map(|(_, t)| Draft::copy(t)).collect::<Result<_>>()?
            }
            // llama.cpp wants vectors in F32, which other containers have in a narrower type.
            ResolvedItem::Plain(t) if !self.is_gguf && t.shape().len() < 2 => {
                match PlainFloats::of(t) {
                    Some(plain) => vec![widened(t, plain)?],
                    None => return Ok(Drafted::NotEncoded(item)),
                }
            }
            _ => return Ok(Drafted::NotEncoded(item)),
        };
        Ok(Drafted::Encoded(drafts))
    }

    /// Completes the drafts and the report; returns how the output is quantized, for `config.json`.
    pub(in crate::convert) fn finish(
        self,
        drafts: &mut [Draft<'_>],
        report: &mut Report,
    ) -> Option<(Vec<&'static str>, serde_json::Value)> {
        link_siblings(drafts);
        note_relays(drafts, report);
        self.quantization
    }
}

/// The stored tensors that `item` becomes. The first has the jobs; the others are written with it.
fn encode<'m>(
    item: ResolvedItem<'m>,
    method: &dyn Method,
    label: String,
    to: TargetDtype,
) -> Result<Vec<Draft<'m>>> {
    let (weight_dtype, is_plain) = (dtype_of(&item, to), matches!(item, ResolvedItem::Plain(_)));
    let (name, shape, parts, decoder): (_, _, Vec<Tensor<'m>>, Box<dyn Decode + 'm>) = match item {
        ResolvedItem::Group(g) => (
            g.name,
            g.shape,
            g.parts.into_iter().map(|(_, t)| t).collect(),
            g.decoder,
        ),
        ResolvedItem::Plain(t) => match PlainFloats::of(&t) {
            Some(plain) => (
                t.name().to_owned(),
                t.shape().to_vec(),
                vec![t],
                Box::new(plain),
            ),
            None => return Draft::copy(&t).map(|draft| vec![draft]),
        },
    };
    // Stored floats are exact in F32; decoded values are rounded first, as a decoded file would have them.
    let rounded_to = if is_plain {
        TargetDtype::F32
    } else {
        weight_dtype
    };
    let encoder = method.encoder(&WeightInfo {
        name: &name,
        shape: &shape,
        dtype: weight_dtype,
    })?;
    let stored = encoder.stored();
    let encoding = Encoding::new(name, shape, label, encoder, decoder, rounded_to)?;
    let mut verify = with_checks(parts.iter());
    let source = parts.first().map_or(0, |t| t.info().source);
    let cut = encoding.input.cut;
    let mut first: Option<Box<dyn Body<'m> + 'm>> = Some(Box::new(EncodeBody(encoding)));
    let draft = |StoredTensor { name, dtype, shape }| {
        let (cut, body) = match first.take() {
            Some(body) => (cut, body),
            None => (
                Cut::EMPTY,
                Box::new(WrittenWithAnother) as Box<dyn Body<'m> + 'm>,
            ),
        };
        Ok(Draft {
            len: byte_len(&name, dtype, &shape)?,
            name,
            dtype,
            shape,
            body,
            cut,
            verify: std::mem::take(&mut verify),
            source,
        })
    };
    stored.into_iter().map(draft).collect()
}

/// A tensor of ordinary floats, in F32.
fn widened<'m>(t: &Tensor<'m>, plain: PlainFloats<'m>) -> Result<Draft<'m>> {
    let group = Group::new(
        t.name().to_owned(),
        t.shape().to_vec(),
        QuantScheme::Unquantized,
        vec![(TensorRole::Passthrough, *t)],
        Box::new(plain),
    );
    Draft::decode(group, TargetDtype::F32)
}

/// Links tensors that inference fuses into one weight, so that encoders with one scale for the whole survey all of them.
fn link_siblings(drafts: &mut [Draft<'_>]) {
    let mut encodings: Vec<_> = drafts
        .iter_mut()
        .filter_map(|draft| draft.body.encoding_mut())
        .collect();
    let mut families: BTreeMap<(String, usize), Vec<usize>> = BTreeMap::new();
    for (i, encoding) in encodings.iter().enumerate() {
        if encoding.encoder.shares_survey()
            && let Some((parent, number)) = fused(&encoding.input.name)
        {
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

/// Marks in the report which tensors keep their codes, and notes why those of other tensors of a matching kind are not
/// relayed.
fn note_relays(drafts: &[Draft<'_>], report: &mut Report) {
    let mut others: Vec<(&str, usize, &str)> = Vec::new();
    let mut encoded = report.encoded.iter_mut();
    for draft in drafts {
        let Some(encoding) = draft.body.encoding() else {
            continue;
        };
        let entry = encoded.find(|entry| entry.name == encoding.input.name);
        match (&encoding.relay, entry) {
            (RelayDecision::Relay(_), Some(entry)) => entry.scheme.push_str(" (codes moved)"),
            (RelayDecision::Hindered(reason), _) => {
                match others.iter_mut().find(|(other, ..)| other == reason) {
                    Some((_, n, _)) => *n += 1,
                    None => others.push((reason, 1, &encoding.input.name)),
                }
            }
            _ => {}
        }
    }
    let note = |(reason, n, name)| {
        format!(
            "{n} tensors have codes of the same kind that are not moved as they are: {reason}, e.g. `{name}`"
        )
    };
    report.notes.extend(others.into_iter().map(note));
}

/// What becomes of each item, when tensors are encoded. Parameters are encoded as modules have them, where that can be.
fn choices(
    model: &ParsedModel,
    resolution: &mut Resolution<'_>,
    forget: &Forget,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<Vec<Decision>> {
    let to = options.run.to;
    let subjects: Vec<_> = resolution
        .items
        .iter()
        .map(|item| subject(item, item.module(), to))
        .collect();
    let Decisions {
        all: mut choices,
        notes,
    } = decide(model, &subjects, forget, to)?;
    report.notes.extend(notes);
    let is_refused = |item: &ResolvedItem<'_>, choice: &Decision| {
        item.module().is_some() && matches!(choice, Decision::Keep(_))
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
        let others = decide(model, &subjects, forget, to)?.all;
        for ((item, choice), other) in resolution.items.iter_mut().zip(&mut choices).zip(others) {
            if is_refused(item, choice) && matches!(other, Decision::Encode { .. }) {
                *choice = other;
                item.take_module();
            }
        }
    }
    for (item, choice) in resolution.items.iter_mut().zip(&choices) {
        let module = matches!(choice, Decision::Encode { .. })
            .then(|| item.take_module())
            .flatten();
        module
            .into_iter()
            .for_each(|module| *item = ResolvedItem::Group(module));
    }
    for (choice, item) in choices.iter().zip(&resolution.items) {
        let name = item.name().to_owned();
        match choice {
            Decision::Encode { label, .. } => report.encoded.push(Encoded {
                name,
                scheme: label.clone(),
            }),
            Decision::Keep(reason) => report.kept.push(Kept {
                name,
                reason: reason.clone(),
            }),
        }
    }
    report.passthrough = report.kept.len();
    Ok(choices)
}

/// What the config says of the choices: modules whose weights are matrices and stay as they are are named in it.
fn described(choices: &[Decision], resolution: &Resolution<'_>) -> Option<serde_json::Value> {
    let kept = |(choice, item): (&Decision, &ResolvedItem<'_>)| {
        let (name, rank) = match item {
            ResolvedItem::Group(group) => (group.name.as_str(), group.shape.len()),
            ResolvedItem::Plain(t) => (t.name(), t.shape().len()),
        };
        let is_kept = matches!(choice, Decision::Keep(_)) && rank == 2;
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
        Decision::Encode { method, .. } => method.config(&skipped),
        Decision::Keep(_) => None,
    })
}

/// The type of an item's values: its own, or that which it is decoded to.
fn dtype_of(item: &ResolvedItem<'_>, to: TargetDtype) -> TargetDtype {
    match item {
        ResolvedItem::Group(group) => group.keeps.unwrap_or(to),
        ResolvedItem::Plain(t) => TargetDtype::of(t.dtype()).unwrap_or(to),
    }
}

/// What is chosen of: an item, or `module` in its stead.
fn subject<'a>(
    item: &'a ResolvedItem<'_>,
    module: Option<&'a Group<'_>>,
    to: TargetDtype,
) -> Candidate<'a> {
    let (name, shape, stored) = match item {
        ResolvedItem::Group(group) => {
            let group = module.unwrap_or(group);
            (
                group.name.as_str(),
                group.shape.as_slice(),
                group.parts[0].1.dtype(),
            )
        }
        ResolvedItem::Plain(t) => (t.name(), t.shape(), t.dtype()),
    };
    let weight = WeightInfo {
        name,
        shape,
        dtype: dtype_of(item, to),
    };
    Candidate {
        name: item.name(),
        weight,
        stored,
        is_quantized: matches!(item, ResolvedItem::Group(_)),
    }
}
