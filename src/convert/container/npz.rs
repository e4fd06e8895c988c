//! NPZ outputs: one archive, for NumPy has no convention for several.

use super::{ContainerWriter, LayoutRequest};
use crate::Result;
use crate::containers::write::{OutputLayout, npz};

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
    Ok(vec![npz::layout(&entries)?])
}
