//! Drafts: output tensors before the container has given them a place.

use std::borrow::Cow;

use super::bodies::{BytesBody, CopyBody, DecodeBody, GatherBody, StackBody, StreamBody};
use super::cast::{CastBody, can_overflow};
use super::cut::{Cut, GATHER_BYTES};
use super::options::{ConvertOptions, FloatCast};
use super::output::{Body, BoxedOutput, Checks, Output, PlannedPlace};
use super::overflow::Overflow;
use crate::error::InTensor;
use crate::model::{Part, ShortList, Tensor, TensorRole};
use crate::remember::{Decode, Group, PlainFloats, QuantScheme};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

impl<'m> Output<'m> {
    /// Drafts a tensor that is copied as it is stored, with its bytes in little-endian order.
    ///
    /// # Errors
    /// `Unsupported` if the tensor is big-endian and its type has no byte order.
    pub(super) fn copy(t: &Tensor<'m>) -> Result<Self> {
        let (dtype, len) = (t.dtype(), t.info().len);
        if t.info().has_unknown_order() {
            let what = format!("{}: no byte order is defined for {dtype}", InTensor(&t.name()));
            return Err(AnamnesisError::unsupported("big-endian GGUF", what));
        }
        let (part, shape) = (t.part(), t.shape());
        let (body, cut): (Box<dyn Body<'m> + 'm>, Cut) = if part.is_strided() {
            let (inner, cut) = cut_for_gather(shape, dtype.bits() / 8);
            (Box::new(GatherBody { part, inner }), cut)
        } else if part.is_deflated() {
            (Box::new(StreamBody(part)), Cut::single(len as usize))
        } else {
            (Box::new(CopyBody(part)), Cut::of_bytes(len as usize, dtype))
        };
        // A body that copies exactly the bytes of the checksum computes it on the way, and a
        // compressed member is a stream that verifies itself. For any other, and for a stream of
        // which nothing is copied, the tensor is read once more.
        let is_read_once_more = match part.is_deflated() {
            true => len == 0,
            false => part.has_checksum() && part.exact_check().is_none(),
        };
        let checks = Checks::of_parts(Vec::from_iter(is_read_once_more.then_some(part)));
        Ok(Self {
            name: t.name().into(),
            dtype,
            shape: shape.into(),
            len,
            body,
            cut,
            checks,
            sources: [t.info().source].into(),
            place: PlannedPlace::default(),
        })
    }

    /// As [`copy`](Self::copy), under the name `name`.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(super) fn copy_named(name: impl Into<Cow<'m, str>>, t: &Tensor<'m>) -> Result<Self> {
        let mut draft = Self::copy(t)?;
        draft.name = name.into();
        Ok(draft)
    }

    /// Drafts copies of all parts of a group of GGUF: one tensor, or one with a scale beside it,
    /// `blk.0.ffn_up.weight` and `blk.0.ffn_up.scale`. If the group has another name than its
    /// codes, so has the module that both belong to. Tensors that were put together to one are copied
    /// as one; `None`: their types differ.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(super) fn copies(group: &Group<'m>) -> Result<Option<Vec<BoxedOutput<'m>>>> {
        if is_put_together(group) {
            return Ok(Self::stack(group)?.map(|stack| vec![Box::new(stack)]));
        }
        let stored = group.parts.first().map_or("", |(_, t)| t.name());
        let module = |name: &str| name.rsplit_once('.').map_or(0, |(module, _)| module.len());
        let (old, new) = (&stored[..module(stored)], &group.name[..module(&group.name)]);
        let copy = |(_, t): &(_, Tensor<'m>)| {
            let mut draft = Self::copy(t)?;
            if draft.name == stored {
                draft.name.clone_from(&group.name);
            } else if let Some(ending) = draft.name.strip_prefix(old) {
                draft.name = format!("{new}{ending}").into();
            }
            Ok(Box::new(draft))
        };
        let copies: Result<Vec<_>> = group.parts.iter().map(copy).collect();
        copies.map(Some)
    }

    /// Drafts a copy of the tensors of a group, one behind the other; `None`: their types differ, or
    /// something belongs to them.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    fn stack(group: &Group<'m>) -> Result<Option<Self>> {
        let drafts = group.parts.iter().map(|(_, t)| Self::copy(t));
        let drafts = drafts.collect::<Result<Vec<_>>>()?;
        let [first, ..] = &drafts[..] else {
            return Ok(None);
        };
        let is_same = |draft: &Self| (draft.dtype, draft.len) == (first.dtype, first.len);
        let parts: Vec<_> = group.parts.iter().map(|(_, t)| t.part()).collect();
        let is_whole = |part: &Part<'m>| !part.is_strided() && !part.is_deflated();
        let values = first.shape.iter().product::<usize>() as u128 * drafts.len() as u128;
        let is_all = values == group.shape.iter().product::<usize>() as u128;
        if !is_all || !drafts.iter().all(is_same) || !parts.iter().all(is_whole) {
            return Ok(None);
        }
        let (dtype, len) = (first.dtype, first.len * drafts.len() as u64);
        Ok(Some(Self {
            name: group.name.clone(),
            dtype,
            shape: group.shape.clone(),
            len,
            cut: Cut::of_bytes(len as usize, dtype),
            checks: Checks::of(group.parts.iter().map(|(_, t)| t)),
            sources: sources_of(group.parts.iter().map(|(_, t)| t)),
            body: Box::new(StackBody(parts)),
            place: PlannedPlace::default(),
        }))
    }

    /// Drafts a tensor of plain floats that is cast to `target`, under the name `name`.
    ///
    /// # Errors
    /// `Parse` if the size of the output tensor overflows.
    pub(super) fn cast(
        name: impl Into<Cow<'m, str>>,
        t: &Tensor<'m>,
        target: TargetDtype,
        saturates: bool,
    ) -> Result<Self> {
        let Some(plain) = PlainFloats::for_cast(t) else {
            return Self::copy(t);
        };
        let part = (TensorRole::Passthrough, *t);
        let scheme = QuantScheme::Unquantized;
        let shape = t.shape();
        let group = Group::new(name, shape, scheme, vec![part], Box::new(plain));
        Self::cast_group(group, t.dtype(), target, saturates)
    }

    /// Drafts a group whose values are those of `stored`, a type of plain floats, cast to `target`.
    ///
    /// # Errors
    /// As [`cast`](Self::cast).
    pub(super) fn cast_group(
        group: Group<'m>,
        stored: Dtype,
        target: TargetDtype,
        saturates: bool,
    ) -> Result<Self> {
        Self::of_group(group, target, |decoder| match can_overflow(stored, target) {
            true => Box::new(CastBody { decoder, is_f64: stored == Dtype::F64, target, saturates }),
            false => Box::new(DecodeBody { decoder, target, overflow: Overflow::default() }),
        })
    }

    /// Drafts a quantized tensor that is decoded to `target`, or to the type that its scheme
    /// prescribes. `cast` says what becomes of values beyond the range of F16.
    ///
    /// # Errors
    /// `Parse` if the size of the output tensor overflows.
    pub(super) fn decode(group: Group<'m>, target: TargetDtype, cast: FloatCast) -> Result<Self> {
        let target = group.keeps.unwrap_or(target);
        Self::of_group(group, target, |decoder| {
            Box::new(DecodeBody { decoder, target, overflow: Overflow::new(cast) })
        })
    }

    /// Drafts a group of integers that are known already; any other group comes back.
    pub(super) fn integers(group: Box<Group<'m>>) -> std::result::Result<Self, Box<Group<'m>>> {
        let Some((dtype, values)) = group.decoder.integers() else {
            return Err(group);
        };
        let bytes: Vec<u8> = match dtype {
            Dtype::Bool => values.iter().map(|n| u8::from(*n != 0)).collect(),
            Dtype::I32 => values
                .iter()
                .flat_map(|n| (*n as i32).to_le_bytes())
                .collect(),
            _ => values.iter().flat_map(|n| n.to_le_bytes()).collect(),
        };
        Ok(Self {
            name: group.name,
            dtype,
            shape: group.shape,
            len: bytes.len() as u64,
            cut: Cut::single(bytes.len()),
            checks: Checks::of(group.parts.iter().map(|(_, t)| t)),
            sources: sources_of(group.parts.iter().map(|(_, t)| t)),
            place: PlannedPlace::default(),
            body: Box::new(BytesBody(bytes)),
        })
    }

    /// Drafts a group whose decoder gives values for `body`, which makes `target` of them.
    fn of_group(
        group: Group<'m>,
        target: TargetDtype,
        body: impl FnOnce(Box<dyn Decode + 'm>) -> Box<dyn Body<'m> + 'm>,
    ) -> Result<Self> {
        let Group { name, shape, decoder, parts, .. } = group;
        let dtype = target.dtype();
        Ok(Self {
            len: byte_len(&name, dtype, &shape)?,
            dtype,
            cut: Cut::of_decoder(&*decoder),
            body: body(decoder),
            checks: Checks::of(parts.iter().map(|(_, t)| t)),
            sources: sources_of(parts.iter().map(|(_, t)| t)),
            place: PlannedPlace::default(),
            name,
            shape,
        })
    }
}

/// Cuts a strided tensor into tiles. Returns how many of the last dimensions form the columns,
/// which is as many as fit into [`GATHER_BYTES`], and the cut.
fn cut_for_gather(shape: &[usize], element_size: usize) -> (usize, Cut) {
    let fits = |inner: &usize| {
        let values: usize = shape[shape.len() - inner..].iter().product();
        values * element_size <= GATHER_BYTES
    };
    let inner = (0..=shape.len()).rev().find(fits).unwrap_or(0);
    (inner, Cut::of_strided(shape, element_size, inner))
}

/// Length in bytes of a tensor of `dtype` and `shape`.
///
/// # Errors
/// `Parse` if the length overflows.
pub(super) fn byte_len(name: &str, dtype: Dtype, shape: &[usize]) -> Result<u64> {
    let len = dtype.byte_len(shape).map(|n| n as u64);
    len.ok_or_else(|| AnamnesisError::parse(format!("{}: its size overflows", InTensor(&name))))
}

/// Numbers of the input files that `tensors` are in, each once, that of the first tensor first.
pub(super) fn sources_of<'a, 'm: 'a>(tensors: impl Iterator<Item = &'a Tensor<'m>>) -> ShortList {
    let mut sources = Vec::new();
    for source in tensors.map(|t| t.info().source) {
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    sources.into()
}

/// Whether `group` is made of several tensors that are each a weight, as a stack of experts is.
fn is_put_together(group: &Group<'_>) -> bool {
    let mut roles = group.parts.iter().map(|(role, _)| role);
    let first = roles.next();
    roles.any(|role| Some(role) == first)
}

/// Whether `group` is copied unchanged: it is plain and has another name only, or it is an FP8
/// tensor without a scale. Then its values need none, and it is copied if the container holds FP8
/// and the options ask neither for decoding nor for casts.
pub(super) fn is_carried(group: &Group<'_>, options: &ConvertOptions) -> bool {
    let is_cast = matches!(group.scheme, QuantScheme::CastFp8 { .. });
    let writer = options.target.container().writer();
    let is_held = || writer.is_some_and(|writer| (writer.holds)(group.parts[0].1.dtype()));
    let stays = !options.decode && options.run.cast == FloatCast::Keep;
    !group.is_merged && (group.is_copied || is_cast && stays && is_held())
}
