//! Number and bytes of tensors by dtype, as stored and after recovery.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::model::Tensor;
use crate::remember::{Resolution, ResolvedItem};
use crate::sort::sort_by_key;
use crate::{Dtype, ParsedModel, TargetDtype};

/// Number and bytes of the tensors of one dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DtypeCount {
    /// Element type of the tensors.
    pub dtype: Dtype,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of their data.
    pub bytes: u64,
}

/// The stored tensors of `model` by dtype, sorted by dtype.
pub(super) fn stored(model: &ParsedModel) -> Vec<DtypeCount> {
    count(model.tensors().map(|t| stored_size(&t)))
}

/// The tensors after recovery to `to` by dtype, the dtype with the most bytes first. A tensor that
/// cannot be recovered counts as it is stored.
pub(super) fn recovered(resolution: &Resolution<'_>, to: TargetDtype) -> Vec<DtypeCount> {
    let items = resolution.items.iter().map(|item| match item {
        ResolvedItem::Plain(t) => stored_size(&t.stored),
        ResolvedItem::Group(group) => {
            let to = group.keeps.unwrap_or(to);
            // Saturating, because a malformed file can claim any shape.
            let bytes = group
                .shape
                .iter()
                .fold(to.byte_size() as u64, |n, &d| n.saturating_mul(d as u64));
            (to.dtype(), bytes)
        }
    });
    let failed = resolution.problems.iter().map(|p| stored_size(&p.tensor));
    let mut counts = count(items.chain(failed));
    sort_by_key(&mut counts, |c| Reverse(c.bytes));
    counts
}

/// Bytes of all tensors that `counts` covers.
pub(super) fn total(counts: &[DtypeCount]) -> u64 {
    counts
        .iter()
        .fold(0, |total, c| total.saturating_add(c.bytes))
}

fn stored_size(t: &Tensor<'_>) -> (Dtype, u64) {
    (t.dtype(), t.info().len)
}

fn count(tensors: impl Iterator<Item = (Dtype, u64)>) -> Vec<DtypeCount> {
    let mut counts: BTreeMap<Dtype, DtypeCount> = BTreeMap::new();
    for (dtype, len) in tensors {
        let entry = counts
            .entry(dtype)
            .or_insert(DtypeCount { dtype, tensors: 0, bytes: 0 });
        entry.tensors += 1;
        entry.bytes = entry.bytes.saturating_add(len);
    }
    counts.into_values().collect()
}
