//! Compares the copies that processes have of a tensor or a part.

use crate::model::TensorInfo;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Bytes that are compared at a time.
const STEP: u64 = 256 << 10;

/// Checks that two tensors of one shape and type have the same values. `names` are their files.
/// Checksums of their storages tell in most cases; otherwise the values are read.
///
/// # Errors
/// `Parse` if they differ, or cannot be compared; `Io`.
pub(super) fn require_same(
    [a, b]: [&TensorInfo; 2],
    opened: &[Source],
    [first, second]: [&str; 2],
) -> Result<()> {
    let is_same = match same_by_checksums(a, b) {
        Some(is_same) => is_same,
        None => a.strides.is_none() && b.strides.is_none() && same_bytes(a, b, opened)?,
    };
    match is_same {
        true => Ok(()),
        false => Err(AnamnesisError::parse(format!(
            "`{first}` and `{second}` have different values of what must be the same"
        ))),
    }
}

/// Whether two tensors are the same, if the checksums of their storages tell.
fn same_by_checksums(a: &TensorInfo, b: &TensorInfo) -> Option<bool> {
    let (left, right) = (a.check.as_ref()?, b.check.as_ref()?);
    if left.len != right.len || a.big_endian != b.big_endian {
        return None;
    }
    let is_like = a.offset - left.start == b.offset - right.start && a.strides == b.strides;
    let is_all = a.len == left.len && a.strides.is_none() && b.strides.is_none();
    match left.crc == right.crc {
        true => is_like.then_some(true),
        false => is_all.then_some(false),
    }
}

fn same_bytes(a: &TensorInfo, b: &TensorInfo, opened: &[Source]) -> Result<bool> {
    if a.big_endian != b.big_endian {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![], vec![]);
    let mut at = 0;
    while at < a.len {
        let n = (a.len - at).min(STEP);
        for (tensor, bytes) in [(a, &mut left), (b, &mut right)] {
            bytes.resize(n as usize, 0);
            opened[tensor.source].read_at(tensor.offset + at, bytes)?;
        }
        if left != right {
            return Ok(false);
        }
        at += n;
    }
    Ok(true)
}
