//! NPY outputs: a directory with an array for each tensor.

use super::{ContainerWriter, LayoutRequest, OutputDirectory, Sharding};
use crate::Result;
use crate::model::array_file;
use crate::write::{OutputLayout, npy};

pub(super) const WRITER: ContainerWriter = ContainerWriter {
    holds: npy::holds,
    copies_blocks_of: |_| false,
    widens_vectors: false,
    restores_shapes: true,
    layout,
    sharding: Some(Sharding {
        file_names: |_, files| {
            let tensors = files.iter().filter_map(|file| file.first());
            tensors.map(|tensor| array_file(&tensor.name)).collect()
        },
        directory: Some(OutputDirectory {
            is_made: |_, _| true,
            index_name: |_| None,
            is_weights: |name| name.ends_with(".npy"),
        }),
    }),
};

fn layout(request: &mut LayoutRequest<'_, '_>) -> Result<Vec<OutputLayout>> {
    let entries: Vec<_> = request.drafts.iter().map(super::entry).collect();
    npy::layout(&entries)
}
