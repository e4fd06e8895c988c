//! An output tensor before it has a place: its type, its shape and what its bytes are made from.

use super::bodies::{CopyBody, DecodeBody, GatherBody, StreamBody};
use super::cut::{Cut, GATHER_BYTES};
use super::options::ConvertOptions;
use super::output::Body;
use crate::containers::model::{Part, Tensor};
use crate::scheme::{Group, QuantScheme};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// An output tensor whose place is not known yet.
pub(super) struct Draft<'m> {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Length of its data in bytes.
    pub len: u64,
    pub body: Box<dyn Body<'m> + 'm>,
    pub cut: Cut,
    /// Inputs whose checksum no job computes on the way.
    pub verify: Vec<Part<'m>>,
    /// Number of the model's source that its codes are in.
    pub source: usize,
}

impl<'m> Draft<'m> {
    /// A tensor that goes into the output as it is stored.
    pub(super) fn copy(t: &Tensor<'m>) -> Result<Self> {
        let (dtype, len) = (t.dtype(), t.info().len);
        if t.info().big_endian && !dtype.can_swap() {
            let what = format!(
                "tensor `{}`: no byte order is defined for {dtype}",
                t.name()
            );
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
        // A copy of all stored bytes sums them on the way; every other body has them read for it.
        let verify = match part.exact_check() {
            Some(_) => vec![],
            None => vec![part],
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

    /// A quantized tensor, decoded to `target` unless its scheme keeps another type.
    pub(super) fn decode(group: Group<'m>, target: TargetDtype) -> Result<Self> {
        let Group {
            name,
            shape,
            decoder,
            parts,
            keeps,
            ..
        } = group;
        let target = keeps.unwrap_or(target);
        let dtype = target.dtype();
        Ok(Self {
            len: byte_len(&name, dtype, &shape)?,
            dtype,
            cut: Cut::of_grid(&decoder.grid()),
            body: Box::new(DecodeBody { decoder, target }),
            verify: parts_with_checksum(parts.iter().map(|(_, t)| t)),
            source: parts.first().map_or(0, |(_, t)| t.info().source),
            name,
            shape,
        })
    }
}

/// The number of inner dimensions that are gathered together, and the tiles: as many of the last dimensions as fit
/// into one gathering.
fn cut_for_gather(shape: &[usize], element_size: usize) -> (usize, Cut) {
    let fits = |inner: &usize| {
        let values: usize = shape[shape.len() - inner..].iter().product();
        values * element_size <= GATHER_BYTES
    };
    let inner = (0..=shape.len()).rev().find(fits).unwrap_or(0);
    (inner, Cut::of_strided(shape, element_size, inner))
}

/// Length in bytes of a tensor; an error if it overflows.
pub(super) fn byte_len(name: &str, dtype: Dtype, shape: &[usize]) -> Result<u64> {
    let len = dtype.byte_len(shape).map(|n| n as u64);
    len.ok_or_else(|| AnamnesisError::parse(format!("tensor `{name}`: its size overflows")))
}

/// The parts of `tensors` that have a checksum.
pub(super) fn parts_with_checksum<'a, 'm: 'a>(
    tensors: impl Iterator<Item = &'a Tensor<'m>>,
) -> Vec<Part<'m>> {
    tensors
        .map(Tensor::part)
        .filter(|part| part.check().is_some())
        .collect()
}

/// Whether an FP8 tensor without a scale goes into the output as it is.
pub(super) fn is_carried(group: &Group<'_>, options: &ConvertOptions) -> bool {
    let is_cast = matches!(group.scheme, QuantScheme::CastFp8 { .. });
    is_cast && !options.decode && options.target.holds(group.parts[0].1.dtype())
}
