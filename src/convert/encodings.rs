//! Decides which tensors are encoded, and drafts the output tensors that each of them becomes.

mod body;
#[cfg(feature = "models")]
mod budget;
mod candidates;
mod config;
mod decisions;
mod distance;
#[cfg(feature = "models")]
mod input_scales;
mod layouts;
mod requested;

use std::sync::Arc;
use std::vec;

use self::body::{EncodeBody, WrittenWithAnother};
use self::config::quantization_config;
use self::decisions::decide_all;
pub(super) use self::distance::{distance, warnings};
use self::layouts::MetadataKeys;
use super::cast::is_widened;
use super::cut::Cut;
use super::draft::{byte_len, sources_of};
use super::encode::{Encoding, RelayDecision, dtype_of, link_siblings};
use super::options::{ConvertOptions, FloatCast};
use super::output::{Body, BoxedOutput, Checks, Output, PlannedPlace};
use super::report::{Encoded, Report};
use crate::error::counted;
use crate::lethe::{Decision, Ggml, Importance, Method, StoredTensor, WeightInfo};
#[cfg(feature = "gguf")]
use crate::model::gguf::Gguf;
use crate::model::{ParsedModel, Tensor};
#[cfg(feature = "models")]
use crate::remember::layout::column_factors::{ColumnFactors, MultipliedColumns};
use crate::remember::{
    Decode, EncodedAs, Group, PlainFloats, QuantScheme, Resolution, ResolvedItem, TensorRole,
};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// The decisions for the tensors of a model, which are drafted one after another.
pub(super) struct Encodings {
    choices: vec::IntoIter<Decision>,
    quantization: Option<(Vec<&'static str>, serde_json::Value)>,
    /// What the metadata of a GGUF file says of the encoding.
    gguf_keys: MetadataKeys,
    to: TargetDtype,
    /// Whether that is the scheme's own choice.
    is_usual_type: bool,
    /// Whether blocks that are not encoded again are copied.
    copies_blocks: bool,
    /// Whether vectors are stored in F32.
    widens_vectors: bool,
    /// Names of the tensors that are quantized already and encoded again.
    quantized_twice: Vec<String>,
    /// Names of the tensors that are copied, for they are stored as they would be encoded.
    copied: Vec<String>,
}

/// The result of [`Encodings::draft`].
pub(super) enum Drafted<'m> {
    /// The output tensors that replace the item.
    Encoded(Vec<BoxedOutput<'m>>),
    /// The item is not encoded: the caller drafts a copy or a decoded tensor.
    NotEncoded(ResolvedItem<'m>),
}

impl Encodings {
    /// Decides for each item of `resolution` whether it is encoded. Returns `None` if the options
    /// do not ask for encoding. An item whose module form is encoded is replaced by it in
    /// `resolution`.
    ///
    /// # Errors
    /// The options contradict each other or the model, or a file that they name cannot be read.
    pub(super) fn new(
        model: &ParsedModel,
        resolution: &mut Resolution<'_>,
        options: &ConvertOptions,
        report: &mut Report,
    ) -> Result<Option<Self>> {
        let Some(forget) = &options.forget else {
            return Ok(None);
        };
        let (choices, gguf_keys) = decide_all(model, resolution, forget, options, report)?;
        let ways = (&forget.scheme, options.run.to);
        let quantization = quantization_config(model, ways, &choices, resolution)
            .map(|config| (forget.scheme.config_keys(), config));
        let writer = options.target.container().writer();
        // Rotated blocks are no blocks of a file whose metadata does not say so.
        let copies_blocks =
            writer.is_some_and(|writer| (writer.copies_blocks_of)(model)) && !is_rotated(model);
        let is_again = |(choice, item): &(&Decision, &ResolvedItem<'_>)| {
            let is_quantized = matches!(item, ResolvedItem::Group(group) if group.scheme != QuantScheme::Unquantized);
            is_quantized && matches!(choice, Decision::Encode { .. })
        };
        let again = choices.iter().zip(&resolution.items).filter(is_again);
        let quantized_twice = again.map(|(_, item)| item.name().to_owned()).collect();
        Ok(Some(Self {
            quantized_twice,
            copied: vec![],
            choices: choices.into_iter(),
            quantization,
            gguf_keys,
            to: options.run.to,
            is_usual_type: options.run.to == forget.scheme.dtype(),
            copies_blocks,
            // Of a model whose blocks are copied, vectors are copied, too.
            widens_vectors: !copies_blocks && writer.is_some_and(|writer| writer.widens_vectors),
        }))
    }

    /// Drafts `item`. Items must be passed in the order of the resolution that [`new`](Self::new)
    /// has seen.
    ///
    /// # Errors
    /// The tensor cannot be encoded, or cannot be read.
    pub(super) fn draft<'m>(&mut self, item: ResolvedItem<'m>) -> Result<Drafted<'m>> {
        if let Some(Decision::Encode { method, label, importance, columns }) = self.choices.next() {
            if columns.is_none()
                && let Some(copies) = copies_of(&item, &*method, (self.to, self.is_usual_type))?
            {
                self.copied.push(item.name().to_owned());
                return Ok(Drafted::Encoded(copies));
            }
            let item = EncodedItem { item, columns };
            return encode(item, &*method, (label, importance), self.to).map(Drafted::Encoded);
        }
        let drafts = match &item {
            // Blocks that are not encoded again are copied, because decoding them would make the
            // file larger for nothing.
            ResolvedItem::Group(group) if self.copies_blocks && !group.is_merged => {
                match Output::copies(group)? {
                    Some(copies) => copies,
                    None => return Ok(Drafted::NotEncoded(item)),
                }
            }
            ResolvedItem::Plain(t)
                if self.widens_vectors
                    && is_widened(t.name(), t.stored.dtype(), t.stored.shape().len()) =>
            {
                match PlainFloats::of(&t.stored) {
                    Some(plain) => vec![Box::new(widened(t.name().to_owned(), &t.stored, plain)?)],
                    None => return Ok(Drafted::NotEncoded(item)),
                }
            }
            _ => return Ok(Drafted::NotEncoded(item)),
        };
        Ok(Drafted::Encoded(drafts))
    }

    /// Takes what the metadata of a GGUF file says of the encoding.
    pub(super) fn take_gguf_keys(&mut self) -> MetadataKeys {
        std::mem::take(&mut self.gguf_keys)
    }

    /// Completes the drafts and the report after the last item. Returns the quantization config of
    /// the output.
    pub(super) fn finish(
        self,
        drafts: &mut [BoxedOutput<'_>],
        report: &mut Report,
    ) -> Option<(Vec<&'static str>, serde_json::Value)> {
        link_siblings(
            drafts
                .iter_mut()
                .filter_map(|draft| draft.body.encoding_mut()),
        );
        note_relays(drafts, report);
        let mut encoded = report.encoded.iter_mut();
        for name in &self.copied {
            if let Some(entry) = encoded.find(|entry| entry.name == *name) {
                entry.scheme.push_str(" (copied)");
            }
        }
        note_twice((&self.quantized_twice, self.copied.len()), drafts, report);
        self.quantization
    }
}

/// Drafts an item that its class has as Q8_0 whatever becomes of the others.
///
/// # Errors
/// The tensor cannot be encoded.
pub(super) fn encode_as_class<'m>(
    item: ResolvedItem<'m>,
    report: &mut Report,
) -> Result<Drafted<'m>> {
    if item.encoded_as() != Some(EncodedAs::Q8_0) {
        return Ok(Drafted::NotEncoded(item));
    }
    let method = Ggml { dtype: Dtype::Q8_0, imatrix: None };
    let weight = WeightInfo { name: item.name(), shape: item.shape(), dtype: TargetDtype::F32 };
    if let Some(what) = method.objection(&weight) {
        return Err(AnamnesisError::unsupported("Q8_0", what).in_tensor(item.name()));
    }
    let scheme = method.dtype.to_string();
    report
        .encoded
        .push(Encoded { name: item.name().to_owned(), scheme: scheme.clone() });
    let item = EncodedItem { item, columns: None };
    encode(item, &method, (scheme, None), TargetDtype::F32).map(Drafted::Encoded)
}

/// Whether the metadata says that blocks of `model` are rotated.
fn is_rotated(model: &ParsedModel) -> bool {
    #[cfg(feature = "gguf")]
    return model.gguf().is_some_and(Gguf::has_rotations);
    #[cfg(not(feature = "gguf"))]
    {
        let _ = model;
        false
    }
}

/// An item that is encoded.
struct EncodedItem<'m> {
    item: ResolvedItem<'m>,
    /// What its columns are multiplied with before.
    columns: Option<Arc<[f32]>>,
}

/// Drafts the stored tensors that an item is encoded to. The jobs of the first one write all of
/// them.
///
/// # Errors
/// The encoder refuses the tensor, or its size overflows.
fn encode<'m>(
    EncodedItem { item, columns }: EncodedItem<'m>,
    method: &dyn Method,
    (label, importance): (String, Option<Importance>),
    to: TargetDtype,
) -> Result<Vec<BoxedOutput<'m>>> {
    let (weight_dtype, is_plain) = (dtype_of(&item, to), matches!(item, ResolvedItem::Plain(_)));
    let (name, shape, parts, decoder): (_, _, Vec<Tensor<'m>>, Box<dyn Decode + 'm>) = match item {
        ResolvedItem::Group(g) => {
            (g.name, g.shape, g.parts.into_iter().map(|(_, t)| t).collect(), g.decoder)
        }
        ResolvedItem::Plain(t) => match PlainFloats::of(&t.stored) {
            Some(plain) => (
                t.name().to_owned().into(),
                t.stored.shape().into(),
                vec![t.stored],
                Box::new(plain),
            ),
            None => {
                let draft = Output::copy_named(t.name().to_owned(), &t.stored)?;
                return Ok(vec![Box::new(draft)]);
            }
        },
    };
    // Stored floats are exact in F32; decoded values are rounded first, as a decoded file would
    // have them. Products are not: what the norm is divided by is exact.
    let rounded_to = match is_plain || columns.is_some() {
        true => TargetDtype::F32,
        false => weight_dtype,
    };
    let decoder = multiplied(decoder, columns);
    let encoder =
        method.encoder(&WeightInfo { name: &name, shape: &shape, dtype: weight_dtype })?;
    let stored = encoder.stored();
    let (name, shape, encoder) = (name.into(), shape.into(), (encoder, importance));
    let encoding = Encoding::new(name, shape, label, encoder, decoder, rounded_to)?;
    let mut checks = Checks::of(parts.iter());
    let sources = sources_of(parts.iter());
    let cut = encoding.cut();
    let mut first: Option<Box<dyn Body<'m> + 'm>> = Some(Box::new(EncodeBody(encoding)));
    let draft = |StoredTensor { name, dtype, shape }| {
        let (cut, body) = match first.take() {
            Some(body) => (cut, body),
            None => (Cut::EMPTY, Box::new(WrittenWithAnother) as Box<dyn Body<'m> + 'm>),
        };
        Ok(Box::new(Output {
            len: byte_len(&name, dtype, &shape)?,
            name: name.into(),
            dtype,
            shape: shape.into(),
            body,
            cut,
            checks: std::mem::take(&mut checks),
            sources: sources.clone(),
            place: PlannedPlace::default(),
        }))
    };
    stored.into_iter().map(draft).collect()
}

/// Copies of the stored tensors of `item`, if they are those that `method` would make of it: their
/// values have been rounded once, and are not again.
///
/// # Errors
/// The encoder refuses the tensor, or its size overflows.
fn copies_of<'m>(
    item: &ResolvedItem<'m>,
    method: &dyn Method,
    (to, is_usual_type): (TargetDtype, bool),
) -> Result<Option<Vec<BoxedOutput<'m>>>> {
    let ResolvedItem::Group(group) = item else {
        return Ok(None);
    };
    let is_changed = group.is_merged || group.is_rotated;
    if is_changed || group.rest.is_some() || !method.makes(group.scheme) {
        return Ok(None);
    }
    let weight = WeightInfo { name: &group.name, shape: &group.shape, dtype: dtype_of(item, to) };
    let stored = method.encoder(&weight)?.stored();
    let is_stored = |wanted: &StoredTensor| {
        let mut parts = group.parts.iter().map(|(_, t)| t);
        parts.any(|t| {
            // Scales may be of any float type, unless the caller has asked for one.
            let [found, asked] = [t.dtype(), wanted.dtype].map(TargetDtype::of);
            let is_same =
                t.dtype() == wanted.dtype || is_usual_type && found.is_some() && asked.is_some();
            is_same && (t.name(), t.shape()) == (&*wanted.name, &*wanted.shape)
        })
    };
    if stored.len() != group.parts.len() || !stored.iter().all(is_stored) {
        return Ok(None);
    }
    let mut copies: Vec<BoxedOutput<'m>> = Vec::with_capacity(stored.len());
    for (_, t) in &group.parts {
        copies.push(Box::new(Output::copy(t)?));
    }
    Ok(Some(copies))
}

/// The decoder of the values of `decoder` with its columns multiplied.
fn multiplied<'m>(
    decoder: Box<dyn Decode + 'm>,
    columns: Option<Arc<[f32]>>,
) -> Box<dyn Decode + 'm> {
    match columns {
        #[cfg(feature = "models")]
        Some(factors) => {
            let columns = ColumnFactors { factors: Some(factors), heads: None };
            Box::new(MultipliedColumns { stored: decoder, columns })
        }
        _ => decoder,
    }
}

/// Drafts a tensor of plain floats, converted to F32.
fn widened<'m>(name: String, t: &Tensor<'m>, plain: PlainFloats<'m>) -> Result<Output<'m>> {
    let group = Group::new(
        name,
        t.shape().to_vec(),
        QuantScheme::Unquantized,
        vec![(TensorRole::Passthrough, *t)],
        Box::new(plain),
    );
    Output::decode(group, TargetDtype::F32, FloatCast::Keep)
}

/// Marks in the report the tensors whose codes are relayed. Adds a note for each reason why tensors
/// with codes of the same kind are not relayed.
fn note_relays(drafts: &[BoxedOutput<'_>], report: &mut Report) {
    let mut hindered: Vec<(&str, usize, &str)> = Vec::new();
    let mut encoded = report.encoded.iter_mut();
    for draft in drafts {
        let Some(encoding) = draft.body.encoding() else {
            continue;
        };
        let entry = encoded.find(|entry| entry.name == encoding.name());
        match (&encoding.relay, entry) {
            (RelayDecision::Relay(_), Some(entry)) => entry.scheme.push_str(" (codes moved)"),
            (RelayDecision::Hindered(reason), _) => {
                match hindered.iter_mut().find(|(other, ..)| other == reason) {
                    Some((_, n, _)) => *n += 1,
                    None => hindered.push((reason, 1, encoding.name())),
                }
            }
            _ => {}
        }
    }
    let note = |(reason, n, name)| {
        format!(
            "{} with codes of the same kind that are not moved as they are: {reason}, e.g. `{name}`",
            counted(n, "tensor")
        )
    };
    report.notes.extend(hindered.into_iter().map(note));
}

/// Adds a note if values are rounded that an earlier encoding has rounded; not of codes that are
/// moved, nor of tensors that are `copied`.
fn note_twice(
    (names, copied): (&[String], usize),
    drafts: &[BoxedOutput<'_>],
    report: &mut Report,
) {
    let is_moved = |draft: &&BoxedOutput<'_>| {
        let encoding = draft.body.encoding();
        encoding.is_some_and(|encoding| {
            matches!(encoding.relay, RelayDecision::Relay(_) | RelayDecision::AfterSurvey(_))
        })
    };
    let moved = drafts.iter().filter(is_moved).count();
    let rounded = names.len().saturating_sub(moved + copied);
    if let Some(name) = names.first().filter(|_| rounded > 0) {
        report.notes.push(format!(
            "{} quantized already, e.g. `{name}`; what that has lost stays lost",
            counted(rounded, "tensor")
        ));
    }
}
