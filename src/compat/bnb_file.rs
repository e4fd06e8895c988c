//! Writes a safetensors file of NF4 weights from BF16 tensors in memory: part of the published
//! interface.
//!
//! Each matrix is encoded as a single tensor, and stored under the names of `lethe/bnb/`, which
//! goes through the pipeline and is not compiled with the feature `bnb` alone. Other tensors stay
//! BF16.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::path::Path;

use zerocopy::IntoBytes;

use super::encode::{encode_bnb4_compute_absmax, first_not_finite};
use super::whole::{WholeTensor, to_bytes, to_file};
use crate::error::InTensor;
use crate::lethe::kernels::bnb::NF4_CODEBOOK;
use crate::remember::bnb::Bnb4StateText;
use crate::sort::sort_by_key;
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// Number of values that share a scale: 64, as in transformers.
pub const NF4_BLOCK_SIZE: usize = 64;

/// A tensor for [`write_bnb_nf4_safetensors`].
#[derive(Debug, Clone, Copy)]
pub struct BnbWriteInput<'a> {
    /// Name in the model. A weight that is quantized is stored as `X.weight`, whether it is called
    /// so here or only `X`.
    pub name: &'a str,
    /// Outermost dimension first; none is 0.
    pub shape: &'a [usize],
    /// The values in BF16, little-endian, row by row.
    pub bf16_data: &'a [u8],
}

/// Numbers of tensors that [`write_bnb_nf4_safetensors`] quantizes and keeps.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct BnbNf4WriteStats {
    /// Tensors that become NF4.
    pub quantized: usize,
    /// Tensors that stay BF16.
    pub passthrough: usize,
}

/// Whether [`write_bnb_nf4_safetensors`] quantizes a tensor of this shape: a matrix whose values are
/// a multiple of [`NF4_BLOCK_SIZE`]. [`ForgetScheme::NF4`](crate::ForgetScheme::NF4) goes by the
/// module instead, as bitsandbytes does: weights of linear layers, of any size.
///
/// ```
/// use anamnesis::is_eligible_for_nf4;
/// assert!(is_eligible_for_nf4(&[2, 32]) && !is_eligible_for_nf4(&[64]) && !is_eligible_for_nf4(&[3, 32]));
/// ```
#[must_use]
pub fn is_eligible_for_nf4(shape: &[usize]) -> bool {
    let n = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    shape.len() == 2 && n.is_some_and(|n| n > 0 && n.is_multiple_of(NF4_BLOCK_SIZE))
}

/// Counts the tensors that are quantized to NF4 and those that stay BF16, by their shapes.
///
/// ```
/// let bias = anamnesis::BnbWriteInput { name: "bias", shape: &[64], bf16_data: &[0; 128] };
/// assert_eq!(anamnesis::classify_inputs(&[bias]).passthrough, 1);
/// ```
pub fn classify_inputs(inputs: &[BnbWriteInput<'_>]) -> BnbNf4WriteStats {
    let quantized = inputs
        .iter()
        .filter(|input| is_eligible_for_nf4(input.shape))
        .count();
    BnbNf4WriteStats { quantized, passthrough: inputs.len() - quantized }
}

/// Writes a safetensors file in which matrices are NF4 as bitsandbytes stores it, and other tensors
/// BF16. The file appears at `output` only when it is complete, and replaces an existing one.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// use anamnesis::{BnbWriteInput, write_bnb_nf4_safetensors};
/// let weight = BnbWriteInput { name: "lm_head.weight", shape: &[2, 64], bf16_data: &[0x3f; 256] };
/// write_bnb_nf4_safetensors(&[weight], &path)?;
/// assert_eq!(anamnesis::parse(&path)?.inspect().quantized, 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` for data that do not fit their shape, dimensions of 0, values that are not finite and
/// names that occur twice, before anything is written. `Io` if the file cannot be written.
pub fn write_bnb_nf4_safetensors(
    inputs: &[BnbWriteInput<'_>],
    output: impl AsRef<Path>,
) -> Result<()> {
    let all = encoded(inputs)?;
    to_file(&borrowed(&all, inputs), output.as_ref())
}

/// The bytes of the file that [`write_bnb_nf4_safetensors`] writes.
///
/// # Errors
/// `Parse` for data that do not fit their shape, dimensions of 0, values that are not finite and
/// names that occur twice.
pub fn write_bnb_nf4_safetensors_bytes(inputs: &[BnbWriteInput<'_>]) -> Result<Vec<u8>> {
    let all = encoded(inputs)?;
    to_bytes(&borrowed(&all, inputs))
}

/// A stored tensor of an encoded weight.
struct StoredPart {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

/// The stored tensors of each input, or none if it stays BF16.
type EncodedInputs = Vec<Option<Vec<StoredPart>>>;

fn encoded(inputs: &[BnbWriteInput<'_>]) -> Result<EncodedInputs> {
    let encode = |input: &BnbWriteInput<'_>| {
        check(input)?;
        is_eligible_for_nf4(input.shape)
            .then(|| encode(input))
            .transpose()
    };
    inputs.iter().map(encode).collect()
}

fn wrong(name: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("{}: {what}", InTensor(&name)))
}

/// Checks that the data have the length that the shape asks for, and that there are any.
fn check(input: &BnbWriteInput<'_>) -> Result<()> {
    let &BnbWriteInput { name, shape, bf16_data } = input;
    if shape.contains(&0) {
        return Err(wrong(name, format!("its shape {shape:?} has a zero dimension")));
    }
    let len = bf16_data.len();
    match Dtype::BF16.byte_len(shape) {
        Some(expected) if expected == len => Ok(()),
        Some(expected) => Err(wrong(
            name,
            format!("bf16_data length {len} is not {expected}, the bytes of BF16 {shape:?}"),
        )),
        None => Err(wrong(
            name,
            format!("bf16_data length {len} is not that of BF16 {shape:?}, which overflows"),
        )),
    }
}

/// The name under which bitsandbytes finds the weight of a layer: with `weight` as its last part.
fn weight_name(name: &str) -> Cow<'_, str> {
    match crate::remember::seam::base_of(name, "weight") {
        Some(_) => Cow::Borrowed(name),
        None => Cow::Owned(format!("{name}.weight")),
    }
}

/// The stored tensors of a weight: codes, scales, codebook and `quant_state`.
fn encode(input: &BnbWriteInput<'_>) -> Result<Vec<StoredPart>> {
    let &BnbWriteInput { name, shape, bf16_data } = input;
    if let Some((_, x)) = first_not_finite(bf16_data) {
        return Err(wrong(name, format!("it has a value {x}, which has no code")));
    }
    let map = NF4_CODEBOOK.as_bytes();
    let n = bf16_data.len() / 2;
    let (codes, absmax) = encode_bnb4_compute_absmax(bf16_data, map, n, NF4_BLOCK_SIZE)?;
    let state = Bnb4StateText {
        quant_type: "nf4",
        block: NF4_BLOCK_SIZE,
        dtype: TargetDtype::BF16,
        shape,
        nested_offset: None,
    };
    let name = weight_name(name);
    let part = |suffix: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>| StoredPart {
        name: format!("{name}{suffix}"),
        dtype,
        shape: shape.to_vec(),
        data,
    };
    let (state, suffix) = (state.to_json(), ".quant_state.bitsandbytes__nf4");
    Ok(vec![
        part("", Dtype::U8, &[n / 2, 1], codes),
        part(".absmax", Dtype::F32, &[n / NF4_BLOCK_SIZE], absmax),
        part(".quant_map", Dtype::F32, &[16], map.to_vec()),
        part(suffix, Dtype::U8, &[state.len()], state),
    ])
}

fn borrowed<'a>(all: &'a EncodedInputs, inputs: &'a [BnbWriteInput<'a>]) -> Vec<WholeTensor<'a>> {
    let mut tensors = Vec::new();
    for (stored, input) in all.iter().zip(inputs) {
        let plain = WholeTensor {
            name: input.name,
            shape: input.shape,
            dtype: Dtype::BF16,
            data: input.bf16_data,
        };
        match stored {
            None => tensors.push(plain),
            Some(all) => tensors.extend(all.iter().map(|part| WholeTensor {
                name: &part.name,
                shape: &part.shape,
                dtype: part.dtype,
                data: &part.data,
            })),
        }
    }
    sort_by_key(&mut tensors, |t| t.name);
    tensors
}
