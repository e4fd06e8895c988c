//! Blocks of ggml in tensors of bytes, in files that are not GGUF.

use crate::model::Tensor;
use crate::remember::seam::Decode;
#[cfg(feature = "gguf")]
use crate::remember::seam::wrong;
use crate::{Dtype, Result};

/// The type of number `id` in ggml, and the decoder of `t`, whose bytes are blocks of that type and
/// of `shape`.
///
/// # Errors
/// `Unsupported` if ggml's types are left out of this build; `Parse` if the bytes do not hold the
/// shape.
#[cfg(feature = "gguf")]
pub(crate) fn ggml_blocks<'m>(
    t: &Tensor<'m>,
    id: u32,
    shape: &[usize],
) -> Result<(Dtype, Box<dyn Decode + 'm>)> {
    let dtype = Dtype::from_ggml(id);
    let holds = dtype.byte_len(shape) == Some(t.elements());
    let decoder = crate::remember::ggml::of_bytes(t, dtype, shape).filter(|_| holds);
    let misfit = || wrong(t, format_args!("it does not hold {dtype} {shape:?}"));
    Ok((dtype, decoder.ok_or_else(misfit)?))
}

#[cfg(not(feature = "gguf"))]
pub(crate) fn ggml_blocks<'m>(
    _: &Tensor<'m>,
    id: u32,
    _: &[usize],
) -> Result<(Dtype, Box<dyn Decode + 'm>)> {
    let what = format!("blocks of ggml's type {id}");
    Err(crate::AnamnesisError::missing_feature(&what, "gguf"))
}
