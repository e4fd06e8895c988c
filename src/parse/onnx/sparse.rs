//! Sparse tensors: values, the places of these in the dense tensor, and its shape.

use super::fields::TensorFields;
use super::place::{ElementPlace, ExternalPlaces};
use crate::limits::Budget;
use crate::source::{Derived, Source, SparseValues};
use crate::{AnamnesisError, Dtype, Result};

/// Where the elements of the dense tensor of `shape` are, whose values and indices `parts` are.
///
/// # Errors
/// `Parse` if these contradict each other; `Unsupported` if values have less than a byte;
/// `LimitExceeded` if the dense tensor is far larger than what is stored.
pub(super) fn place(
    parts: (&TensorFields, &TensorFields),
    dtype: Dtype,
    shape: &[usize],
    source: &Source,
    files: &mut ExternalPlaces<'_>,
    budget: &Budget,
) -> Result<ElementPlace> {
    if dtype.bits() < 8 {
        return Err(AnamnesisError::unsupported("ONNX", format!("a sparse tensor of {dtype}")));
    }
    let (values, indices) = parts;
    let count = shape.iter().product::<usize>() as u64;
    let (_, len) = values.size(dtype)?;
    let width = dtype.byte_size() as u64;
    budget.decompress(len, count.saturating_mul(width), "a sparse tensor")?;
    let places = read_places(indices, len / width, shape, source, files, budget)?;
    let (values, offset) = match values.place(dtype, len, source, files)? {
        ElementPlace::Stored { source, offset } => (files.contents.sources[source].share(), offset),
        ElementPlace::Derived(values) => (Source::Derived(Box::new(values)), 0),
    };
    let sparse = SparseValues::new(values, offset, width as usize, places, count)?;
    Ok(ElementPlace::Derived(Derived::Sparse(sparse)))
}

/// Reads the indices of `count` values: `[count]` of elements in row-major order, or `[count, rank]`
/// of dimensions.
fn read_places(
    indices: &TensorFields,
    count: u64,
    shape: &[usize],
    source: &Source,
    files: &mut ExternalPlaces<'_>,
    budget: &Budget,
) -> Result<Vec<u64>> {
    let rank = shape.len() as u64;
    let is_linear = indices.dims == [count];
    if indices.data_type != 7 || !(is_linear || indices.dims == [count, rank]) {
        return Err(AnamnesisError::parse("its indices have a wrong type or shape"));
    }
    let (_, len) = indices.size(Dtype::I64)?;
    budget.alloc(len, "indices of a sparse tensor")?;
    let place = indices.place(Dtype::I64, len, source, files)?;
    let mut bytes = crate::limits::zeroed(len, "indices of a sparse tensor")?;
    match place {
        ElementPlace::Stored { source, offset } => {
            files.contents.sources[source].read_at(offset, &mut bytes)?;
        }
        ElementPlace::Derived(numbers) => {
            Source::Derived(Box::new(numbers)).read_at(0, &mut bytes)?;
        }
    }
    let numbers = bytes.as_chunks().0.iter().map(|&b| u64::from_le_bytes(b));
    if is_linear {
        return Ok(numbers.collect());
    }
    let numbers: Vec<u64> = numbers.collect();
    let outside = || AnamnesisError::parse("an index is past the end of the tensor");
    let place = |index: &[u64]| {
        let dims = index.iter().zip(shape);
        let mut dims = dims.map(|(&i, &dim)| (i, dim as u64));
        dims.try_fold(0u64, |at, (i, dim)| {
            let i = Some(i).filter(|&i| i < dim)?;
            at.checked_mul(dim)?.checked_add(i)
        })
    };
    let rows = numbers.chunks_exact(shape.len().max(1));
    rows.map(|index| place(index).ok_or_else(outside)).collect()
}
