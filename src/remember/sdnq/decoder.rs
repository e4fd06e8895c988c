//! Decoders of SDNQ's codes.

use super::codebook::CodebookWeight;
use super::codes::StoredCodes;
use super::scales::KernelScales;
use super::shape::SdnqShape;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::seam::Decode;
use crate::remember::seam::grouped::{Codes, GroupFormula, GroupOffsets, Grouped, row_groups};
use crate::remember::seam::scale_layout::per_tensor;
use crate::remember::seam::scale_matrix::ScaleMatrix;

/// The decoder of `codes` with scales, and with zero points if they have any.
pub(super) fn grouped<'m>(
    codes: Codes<'m>,
    stored: &StoredCodes<'m>,
    size: [usize; 2],
    grid: ScaleGrid,
    scales: Box<dyn ScaleMatrix + 'm>,
    zero_points: Option<Box<dyn ScaleMatrix + 'm>>,
) -> Box<dyn Decode + 'm> {
    let bits = usize::from(stored.dtype.bits());
    let mut decoder = Grouped::scaled(codes, bits, stored.format(), size, grid, scales);
    if let Some(zero_points) = zero_points {
        decoder.formula = GroupFormula::FusedScaleShift(GroupOffsets::new(zero_points));
    }
    Box::new(decoder)
}

/// The decoder of a weight with a scale, and often a zero point, for each group.
pub(super) fn of_groups<'m>(
    codes: &StoredCodes<'m>,
    shape: &SdnqShape,
    scales: Box<dyn ScaleMatrix + 'm>,
    zero_points: Option<Box<dyn ScaleMatrix + 'm>>,
) -> Box<dyn Decode + 'm> {
    let (size, places) = ([shape.rows, shape.cols()], shape.kernel_size());
    let stored = match shape.is_transposed {
        true => codes.transposed(shape.rows),
        false => codes.rows(shape.cols()),
    };
    if shape.groups == 0 {
        let grid = per_tensor(&size);
        return grouped(stored, codes, size, grid, scales, zero_points);
    }
    let channels = shape.inputs / shape.groups;
    if places == 1 {
        let grid = row_groups(shape.cols(), channels);
        return grouped(stored, codes, size, grid, scales, zero_points);
    }
    let spread = |stored| -> Box<dyn ScaleMatrix + 'm> {
        Box::new(KernelScales { stored, places: places.max(1), channels: channels.max(1) })
    };
    let grid = row_groups(shape.cols(), 1);
    let zero_points = zero_points.map(spread);
    grouped(stored, codes, size, grid, spread(scales), zero_points)
}

/// The decoder of a weight with a codebook for each group.
pub(super) fn of_codebooks<'m>(
    codes: &StoredCodes<'m>,
    shape: &SdnqShape,
    codebooks: Box<dyn ScaleMatrix + 'm>,
) -> Box<dyn Decode + 'm> {
    let cols = shape.cols();
    Box::new(CodebookWeight {
        codes: codes.unpacked(cols),
        rows: shape.rows,
        cols,
        group: (cols / shape.groups.max(1)).max(1),
        entries: 1 << codes.dtype.bits(),
        codebooks,
        has_row_codebooks: shape.groups > 0,
    })
}
