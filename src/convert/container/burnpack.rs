//! Burnpack outputs: one file, as Burn writes it.

use super::{ContainerWriter, LayoutRequest};
use crate::Result;
use crate::write::{OutputLayout, burnpack};

pub(super) const WRITER: ContainerWriter = ContainerWriter {
    holds: burnpack::holds,
    copies_blocks_of: |_| false,
    widens_vectors: false,
    restores_shapes: true,
    layout,
    sharding: None,
};

fn layout(request: &mut LayoutRequest<'_, '_>) -> Result<Vec<OutputLayout>> {
    let entries: Vec<_> = request.drafts.iter().map(super::entry).collect();
    Ok(vec![burnpack::layout(&entries)?])
}
