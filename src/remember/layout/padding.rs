//! Weights that are stored with more rows or columns than they have, up to a multiple of some
//! number. What is padding is not stored: a bias that is not padded tells it, and the sizes in
//! `config.json`.

use crate::model::Tensor;
use crate::remember::seam::{Group, PlainFloats, QuantScheme, TensorRole, wrong};
use crate::{Result, TargetDtype};

/// `known` if it is a size that is padded to `stored`, a multiple of `align`; or else `stored`.
pub(crate) fn unpadded(stored: usize, known: Option<usize>, align: usize) -> usize {
    known
        .filter(|n| n.checked_next_multiple_of(align) == Some(stored))
        .unwrap_or(stored)
}

/// The number of outputs of a layer that is stored with `stored`, a multiple of `align`. A bias
/// that is padded as well tells nothing.
pub(crate) fn unpadded_outputs(
    stored: usize,
    bias: Option<&Tensor<'_>>,
    known: Option<usize>,
    align: usize,
) -> usize {
    let of_bias = bias.map(Tensor::elements).filter(|&n| n != stored);
    unpadded(stored, of_bias.or(known), align)
}

/// The bias of a layer of `outputs`, as a tensor of its own, if it is stored with `stored` values.
/// It becomes one of the layer's `parts`.
///
/// # Errors
/// It is not of floats.
pub(crate) fn take_padded_bias<'m>(
    bias: Option<Tensor<'m>>,
    [stored, outputs]: [usize; 2],
    parts: &mut Vec<(TensorRole, Tensor<'m>)>,
) -> Result<Vec<Group<'m>>> {
    let is_padded = |bias: &Tensor<'_>| bias.elements() == stored && outputs < stored;
    let Some(bias) = bias.filter(is_padded) else {
        return Ok(vec![]);
    };
    parts.push((TensorRole::Passthrough, bias));
    Ok(vec![unpadded_bias(&bias, outputs)?])
}

/// A bias without what lies behind its first `n` values.
///
/// # Errors
/// It is not of floats.
fn unpadded_bias<'m>(bias: &Tensor<'m>, n: usize) -> Result<Group<'m>> {
    let decoder =
        PlainFloats::first_of(bias, n).ok_or_else(|| wrong(bias, "a bias is F32, F16 or BF16"))?;
    let parts = vec![(TensorRole::Passthrough, *bias)];
    let name = bias.name();
    let scheme = QuantScheme::Unquantized;
    Ok(Group {
        keeps: TargetDtype::of(bias.dtype()),
        ..Group::new(name, vec![n], scheme, parts, Box::new(decoder))
    })
}
