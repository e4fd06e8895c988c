//! Tensors that GGUF has with other dimensions, both ways.

use crate::error::InTensor;
use crate::families::engine::dims::Dims;
use crate::families::engine::table::TensorRule;
use crate::{AnamnesisError, Result};

/// The dimensions of GGUF of a tensor of `shape`, which `rule` states if they are others.
///
/// # Errors
/// `Parse` if they have another number of values.
pub(super) fn reshaped(
    name: &str,
    rule: &TensorRule,
    shape: &[usize],
    dims: &Dims,
) -> Result<Vec<usize>> {
    let Some(wanted) = rule.gguf_shape else {
        return Ok(shape.to_vec());
    };
    if let Some(at) = rule.dim_of_one() {
        let mut made = shape.to_vec();
        made.remove(at);
        return Ok(made);
    }
    let sizes = wanted.iter().map(|dim| dims.size(*dim, None));
    let sizes: Option<Vec<usize>> = sizes.collect();
    let values: usize = shape.iter().product();
    let fits = |sizes: &Vec<usize>| {
        sizes
            .iter()
            .try_fold(1, |all: usize, n| all.checked_mul(*n))
            == Some(values)
    };
    sizes.filter(fits).ok_or_else(|| {
        let all: Vec<_> = wanted.iter().map(|dim| dims.fields_of(*dim)).collect();
        let what = format!("{}: {values} values are not [{}]", InTensor(&name), all.join(", "));
        AnamnesisError::parse(what)
    })
}

/// The dimensions of transformers of a tensor that GGUF has with those of `shape`.
///
/// # Errors
/// `Parse` if the config prescribes another length.
pub(super) fn flattened(
    name: &str,
    rule: &TensorRule,
    shape: Vec<usize>,
    dims: &Dims,
) -> Result<Vec<usize>> {
    if let Some(at) = rule.dim_of_one() {
        let mut made = shape;
        made.insert(at, 1);
        return Ok(made);
    }
    let values: usize = shape.iter().product();
    let sizes = rule.shape.iter().map(|dim| dims.size(*dim, None));
    let sizes = sizes.collect::<Option<Vec<usize>>>();
    let is_same = |sizes: &Vec<usize>| {
        let mut all = sizes.iter();
        all.try_fold(1, |all: usize, n| all.checked_mul(*n)) == Some(values)
    };
    match (rule.gguf_shape, rule.shape, sizes) {
        (Some(_), _, Some(sizes)) if is_same(&sizes) => Ok(sizes),
        (Some(_), [dim], Some(_)) => {
            let what = format!(
                "{}: its shape is {shape:?}, and {} is another size",
                InTensor(&name),
                dims.fields_of(*dim)
            );
            Err(AnamnesisError::parse(what))
        }
        (Some(_), [_], None) => Ok(vec![values]),
        _ => Ok(shape),
    }
}
