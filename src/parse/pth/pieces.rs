//! Tensors in several pieces, which the files of several processes have.

use std::sync::Arc;

use crate::model::TensorInfo;
use crate::source::{Pieced, Source, StorageCheck, TensorPiece};
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// A rectangle of a tensor, in elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Rectangle {
    pub start: Vec<usize>,
    pub sizes: Vec<usize>,
}

/// The tensor that consists of `pieces` of the sources `files`, with a source of its own. An empty
/// one has no pieces, and refers to the first file.
///
/// # Errors
/// `Parse` if a size overflows, there are no files, or pieces overlap or are missing; `Unsupported`
/// if a piece is big-endian or not in the order of rows.
pub(super) fn assemble(
    (name, dtype, size): (&str, Dtype, &[usize]),
    pieces: &[(&Rectangle, TensorInfo)],
    files: &Arc<[Source]>,
    model: &mut ParsedModel,
) -> Result<TensorInfo> {
    let overflow = || AnamnesisError::parse("its size overflows");
    let shape = stored_shape(dtype, size).ok_or_else(overflow)?;
    dtype.byte_len(&shape).ok_or_else(overflow)?;
    let bytes = in_bytes(size, dtype).ok_or_else(overflow)?;
    let len = bytes.iter().try_fold(1u64, |n, &len| n.checked_mul(len));
    let len = len.ok_or_else(overflow)?;
    if files.is_empty() {
        return Err(AnamnesisError::parse("no file has a piece of it"));
    }
    let mut source = 0;
    if len > 0 {
        let piece = |(rectangle, info): &(&Rectangle, TensorInfo)| {
            if info.strides.is_some() || info.big_endian {
                let what = "a piece that is big-endian, or not in the order of rows";
                return Err(AnamnesisError::unsupported("pieces of a tensor", what));
            }
            let check = info.check.as_ref().map(|check| StorageCheck {
                crc: check.crc,
                offset: check.start,
                len: check.len,
            });
            Ok(TensorPiece {
                start: in_bytes(&rectangle.start, dtype).ok_or_else(overflow)?,
                sizes: in_bytes(&rectangle.sizes, dtype).ok_or_else(overflow)?,
                source: info.source,
                offset: info.offset,
                check,
            })
        };
        let pieces = pieces.iter().map(piece).collect::<Result<_>>()?;
        let pieced = Pieced::new(files.clone(), bytes, pieces)?;
        source = model.sources.len();
        model.sources.push(Source::Pieced(Box::new(pieced)));
    }
    Ok(TensorInfo::plain(name, (dtype, shape), (source, 0, len)))
}

/// The shape as this crate counts it: to torch, two packed four-bit floats are one element.
pub(super) fn stored_shape(dtype: Dtype, size: &[usize]) -> Option<Vec<usize>> {
    let mut shape = size.to_vec();
    if dtype == Dtype::F4 {
        let last = shape.last_mut()?;
        *last = last.checked_mul(2)?;
    }
    Some(shape)
}

/// Positions or lengths in elements, of which the last is to count bytes; of a scalar, its only
/// element.
fn in_bytes(elements: &[usize], dtype: Dtype) -> Option<Vec<u64>> {
    let size = dtype.bits().div_ceil(8) as u64;
    let mut bytes: Vec<u64> = elements.iter().map(|&n| n as u64).collect();
    match bytes.last_mut() {
        Some(last) => *last = last.checked_mul(size)?,
        None => bytes.push(size),
    }
    Some(bytes)
}
