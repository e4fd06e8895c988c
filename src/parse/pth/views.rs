//! Views of storages: checks them against the storages, and makes tensors of them.

use super::storage::StoragePlace;
use super::value::TensorView;
use crate::error::InTensor;
use crate::model::strided::{row_major_strides, span};
use crate::model::{Check, TensorInfo};
use crate::{AnamnesisError, Dtype, Result};

/// Most bytes of tensors for each byte of the storages that they are views of. Views may overlap
/// and repeat elements (stride 0), so that a small file could describe tensors of any size.
const MAX_RATIO: u64 = 16;

/// Bytes of tensors that are allowed in any case.
const FREE_BYTES: u64 = 64 << 20;

/// The tensor that is a view of the storage at `place`. The view's offset counts from `before`
/// elements into the storage.
///
/// The view is checked against the storage here, before any data is read: offset, shape and strides
/// come from the pickle, and without the check a tensor could show bytes of other storages, of the
/// pickle, or past the end of the file.
///
/// # Errors
/// `Parse` if the view leads out of its storage or a size overflows; `Unsupported` for strided
/// four-bit floats.
pub(super) fn tensor_of(
    name: &str,
    dtype: Dtype,
    view: &TensorView,
    before: usize,
    place: StoragePlace,
    big_endian: bool,
) -> Result<TensorInfo> {
    // To torch, two packed four-bit floats are one element (`float4_e2m1fn_x2`).
    let is_packed = dtype == Dtype::F4;
    let size = dtype.bits().div_ceil(8);
    let (shape, strides) = (&view.shape, &view.strides);
    let wrong = |what: String| {
        AnamnesisError::parse(format!("{} ({dtype} {shape:?}): {what}", InTensor(&name)))
    };
    let overflow = || wrong("its size overflows".to_owned());
    let len = shape
        .iter()
        .try_fold(size, |n, &d| n.checked_mul(d))
        .ok_or_else(overflow)? as u64;
    let end = span(shape, strides)
        .and_then(|n| view.offset.checked_add(before)?.checked_add(n))
        .and_then(|n| n.checked_mul(size));
    if len > 0 && end.is_none_or(|end| end as u64 > place.len) {
        let (offset, bytes) = (view.offset, place.len);
        let what = format!(
            "offset {offset} and strides {strides:?} lead out of its storage of {bytes} bytes"
        );
        return Err(wrong(what));
    }
    // The stride of a dimension of one element is arbitrary, and so are all strides of an empty
    // tensor.
    let row_major = row_major_strides(shape);
    let is_row_major = len == 0
        || shape
            .iter()
            .zip(strides)
            .zip(&row_major)
            .all(|((&n, s), p)| n == 1 || s == p);
    // The offset of an empty tensor is unchecked and not used. Any other was checked above, so that
    // this cannot overflow.
    let start = if len == 0 {
        0
    } else {
        (view.offset + before) as u64 * size as u64
    };
    let mut shape = shape.clone();
    if is_packed {
        let last = shape.last_mut().filter(|_| is_row_major);
        let what = "packed four-bit floats that do not lie in order";
        let last =
            last.ok_or_else(|| AnamnesisError::unsupported(what, format!("{}", InTensor(&name))))?;
        *last = last.checked_mul(2).ok_or_else(overflow)?;
    }
    // What overflows besides a dimension of 0 is an error, too.
    dtype.byte_len(&shape).ok_or_else(overflow)?;
    Ok(TensorInfo {
        name: name.into(),
        dtype,
        shape: shape.into(),
        source: place.source,
        offset: place.offset + start,
        len,
        strides: (!is_row_major).then(|| Box::new(strides.as_slice().into())),
        big_endian: big_endian && dtype.bits() > 8,
        check: place.crc.map(|crc| {
            Box::new(Check { crc, start: place.offset, len: place.len, before: (0, 0) })
        }),
    })
}

/// Checks that the tensors take at most [`MAX_RATIO`] times the bytes of the storages at `places`,
/// or [`FREE_BYTES`].
///
/// # Errors
/// `LimitExceeded` (`PTH_MAX_MATERIALISE_RATIO`).
pub(super) fn check_ratio<'a>(
    tensors: &[TensorInfo],
    places: impl Iterator<Item = &'a StoragePlace>,
) -> Result<()> {
    let stored = places.fold(0u64, |n, place| n.saturating_add(place.len));
    let wanted = tensors.iter().fold(0u64, |n, t| n.saturating_add(t.len));
    if wanted > stored.saturating_mul(MAX_RATIO).saturating_add(FREE_BYTES) {
        let message = format!("tensors of {wanted} bytes in all, made of {stored} stored ones");
        return Err(AnamnesisError::LimitExceeded { limit: "PTH_MAX_MATERIALISE_RATIO", message });
    }
    Ok(())
}
