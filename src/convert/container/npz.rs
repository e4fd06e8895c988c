//! NPZ outputs: one archive, for NumPy has no convention for several.

use super::{ContainerWriter, LayoutRequest};
use crate::write::{OutputEntry, OutputLayout, npz};
use crate::{Dtype, Result};

pub(super) const WRITER: ContainerWriter = ContainerWriter {
    holds: |dtype| npz::descr(dtype).is_some(),
    copies_blocks_of: |_| false,
    widens_vectors: false,
    restores_shapes: false,
    layout,
    sharding: None,
};

fn layout(request: &mut LayoutRequest<'_, '_>) -> Result<Vec<OutputLayout>> {
    let entries: Vec<_> = request.drafts.iter().map(super::entry).collect();
    request.report.notes.extend(foreign_note(&entries));
    Ok(vec![npz::layout(&entries)?])
}

/// The note that NumPy has no type for some arrays; `None` if it has one for all.
fn foreign_note(entries: &[OutputEntry<'_>]) -> Option<String> {
    let foreign = [
        (Dtype::BF16, "read as `V2`, `.view(ml_dtypes.bfloat16)` gives the values"),
        (Dtype::F8E4M3, "read as `V1`, `.view(ml_dtypes.float8_e4m3fn)` gives the values"),
        (Dtype::F8E5M2, "`f1`, which it does not read"),
    ];
    let each = foreign.iter().filter_map(|&(dtype, how)| {
        let n = entries.iter().filter(|entry| entry.dtype == dtype).count();
        (n > 0).then(|| format!("{n} {dtype}: {how}"))
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| {
        let each = each.join("; ");
        format!(
            "NumPy has no type for some arrays ({each}); `--out-dtype f32 --cast` writes types that it has"
        )
    })
}
