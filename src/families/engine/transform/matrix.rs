//! Matrices that a class stores as `[in, out]`.

use crate::TargetDtype;
use crate::families::engine::source::SourceTensor;

/// The matrix `[rows, cols]` as `[cols, rows]`; a vector stays as it is.
pub(super) fn transposed(mut source: SourceTensor<'_>, dtype: TargetDtype) -> SourceTensor<'_> {
    if source.shape.len() != 2 {
        return source;
    }
    source.shape.insert(0, 1);
    let mut source = source.transposed(dtype);
    if source.shape.len() == 3 {
        source.shape.remove(0);
    }
    source
}
