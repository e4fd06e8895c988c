//! Tensors of an adapter.

use std::sync::Arc;

use crate::model::Tensor;
use crate::{ParsedModel, Result, TargetDtype};

/// A tensor of an adapter, which it keeps alive.
#[derive(Clone)]
pub(super) struct AdapterTensor {
    pub model: Arc<ParsedModel>,
    pub index: usize,
}

impl AdapterTensor {
    pub(super) fn get(&self) -> Tensor<'_> {
        Tensor { model: &self.model, index: self.index }
    }
}

/// Whether `a` and `b` are floats of one type and shape with the same bytes.
///
/// # Errors
/// A file cannot be read.
pub(super) fn are_same(a: &Tensor<'_>, b: &Tensor<'_>) -> Result<bool> {
    const PIECE: usize = 256 << 10;
    let is_alike = (a.dtype(), a.shape()) == (b.dtype(), b.shape());
    let are_floats = TargetDtype::of(a.dtype()).is_some();
    let (a, b) = (a.part(), b.part());
    let is_readable = !(a.is_deflated() || b.is_deflated());
    if !(is_alike && are_floats && is_readable) || a.len() != b.len() {
        return Ok(false);
    }
    let mut buffers = [vec![], vec![]];
    for at in (0..a.len()).step_by(PIECE) {
        let len = (a.len() - at).min(PIECE as u64) as usize;
        for (part, buffer) in [a, b].iter().zip(&mut buffers) {
            buffer.resize(len, 0);
            part.read_at(at, buffer)?;
        }
        if buffers[0] != buffers[1] {
            return Ok(false);
        }
    }
    Ok(true)
}
