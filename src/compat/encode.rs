//! The encoders of BitsAndBytes on plain bytes, from BF16 values to the bytes of stored tensors:
//! part of the published interface.
//!
//! Functions with given scales reverse decoding: values that were decoded become the codes that
//! they had. Functions that compute scales encode as the library does.

#[cfg(all(test, feature = "lethe"))]
mod tests;

use half::f16;
use zerocopy::IntoBytes;

use super::slabs::{for_each_slab, slab_of};
use crate::element::{Element, f32_from_bf16};
use crate::lethe::kernels::bnb::codebook_encoder;
use crate::lethe::kernels::codebook::absmax;
use crate::lethe::kernels::int8;
use crate::limits::zeroed_on_write;
use crate::remember::kernels::bnb::nested_absmax;
use crate::remember::kernels::widen::Widen;
use crate::simd::Level;
use crate::{AnamnesisError, Dtype, Result};

fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("BitsAndBytes: {what}"))
}

/// Checks that `bf16` are `n` values. None stands for a number that overflows.
fn check_values(bf16: &[u8], n: Option<usize>) -> Result<()> {
    if n.and_then(|n| n.checked_mul(2)) != Some(bf16.len()) {
        return Err(wrong(format!(
            "{} bytes of BF16 are not the values that there should be",
            bf16.len()
        )));
    }
    Ok(())
}

/// Checks that `bf16` are `n` values and finite, because a scale is computed from them.
fn check_finite_values(bf16: &[u8], n: Option<usize>) -> Result<()> {
    check_values(bf16, n)?;
    match first_not_finite(bf16) {
        None => Ok(()),
        Some((found, value)) => Err(wrong(format!("value {found} is {value}, and has no code"))),
    }
}

/// The first of the BF16 values that is not finite, and its index.
pub(super) fn first_not_finite(bf16: &[u8]) -> Option<(usize, f32)> {
    let values = bf16.as_chunks().0.iter().map(|&b| i16::from_le_bytes(b));
    let mut magnitudes = values.clone().map(|bits| bits & 0x7fff);
    // Infinity is 0x7f80, and NaN lies above it. LLVM vectorises the maximum, but not a search.
    if magnitudes.clone().fold(0, i16::max) < 0x7f80 {
        return None;
    }
    let found = magnitudes.position(|bits| bits >= 0x7f80).unwrap_or(0);
    let value = values.clone().nth(found).unwrap_or(0);
    Some((found, f32_from_bf16(value as u16)))
}

/// The F32 values of a slab of BF16.
fn widened(bytes: &[u8]) -> Vec<f32> {
    let dtype = Dtype::BF16;
    Widen { dtype, bytes }.to_f32(Level::detect())
}

/// The F32 values of the tensor `what`, which must be `n`.
fn floats(what: &str, bytes: &[u8], n: usize) -> Result<Vec<f32>> {
    if bytes.len() / 4 != n || !bytes.len().is_multiple_of(4) {
        return Err(wrong(format!("{what} is F32 [{n}], and has {} bytes", bytes.len())));
    }
    let dtype = Dtype::F32;
    Ok(Widen { dtype, bytes }.to_f32(Level::detect()))
}

fn codebook(bytes: &[u8]) -> Result<[f32; 16]> {
    let mut map = [0.0; 16];
    map.copy_from_slice(&floats("quant_map", bytes, 16)?);
    Ok(map)
}

#[cfg(all(test, feature = "lethe"))]
fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.as_bytes().to_vec()
}

fn check_block(block: usize) -> Result<()> {
    if block == 0 || !block.is_multiple_of(2) {
        return Err(wrong(format!("blocks of {block} values")));
    }
    Ok(())
}

/// Encodes BF16 values to the 4-bit codes of `quant_map` (F32 `[16]`), with given scales `absmax`
/// (F32, one for each block). Decoded values become the codes that they were decoded from, except
/// in blocks whose scale is 0.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let map: Vec<u8> = anamnesis::NF4_CODEBOOK.iter().flat_map(|x| x.to_le_bytes()).collect();
/// let ones = [0x80, 0x3f].repeat(64);
/// let codes = anamnesis::encode_bnb4(&ones, &1f32.to_le_bytes(), &map, 64, 64)?;
/// assert_eq!(codes, [0xff; 32]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` for lengths that do not fit, and for block sizes that are odd or 0.
pub fn encode_bnb4(
    bf16_data: &[u8],
    absmax_data: &[u8],
    quant_map_data: &[u8],
    total_elements: usize,
    block_size: usize,
) -> Result<Vec<u8>> {
    check_block(block_size)?;
    let absmax = floats("absmax", absmax_data, total_elements.div_ceil(block_size))?;
    check_values(bf16_data, Some(total_elements))?;
    encode_with(bf16_data, absmax, &codebook(quant_map_data)?, block_size)
}

/// Encodes to 4-bit codes with given scales.
fn encode_with(
    bf16: &[u8],
    mut absmax: Vec<f32>,
    codebook: &[f32; 16],
    block: usize,
) -> Result<Vec<u8>> {
    let n = bf16.len() / 2;
    let mut all = zeroed_on_write(n.div_ceil(2) as u64, "codes")?;
    let encoder = codebook_encoder(codebook);
    let mut zeros = (0..16u8).filter(|&code| codebook[usize::from(code)] == 0.0);
    let zeros = zeros.next().zip(zeros.next());
    let slab = slab_of(block, n);
    let slabs = bf16.chunks(slab * 2).zip(all.chunks_mut(slab / 2));
    let slabs = slabs.zip(absmax.chunks_mut(slab.div_ceil(block)));
    for_each_slab(n, slabs, |((bf16, codes), absmax)| {
        let values = widened(bf16);
        codes.copy_from_slice(&encoder.encode_with(&values, block, absmax, Level::detect()));
        if let Some(zeros) = zeros {
            sign_zeros(&values, absmax, block, zeros, codes);
        }
    });
    Ok(all)
}

/// Chooses among the two codes of zero of FP4, of which the second decodes to -0: the sign of a
/// zero tells its code. A negative scale flips it.
fn sign_zeros(
    values: &[f32],
    absmax: &[f32],
    block: usize,
    (plus, minus): (u8, u8),
    codes: &mut [u8],
) {
    for (i, x) in values.iter().enumerate().filter(|(_, x)| **x == 0.0) {
        let negative = x.is_sign_negative() != absmax[i / block].is_sign_negative();
        let (code, shift) = (if negative { minus } else { plus }, if i % 2 == 0 { 4 } else { 0 });
        codes[i / 2] = codes[i / 2] & !(15 << shift) | code << shift;
    }
}

/// Encodes BF16 values to 4-bit codes as bitsandbytes does. Returns the codes, and the largest
/// magnitude of each block as F32.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let map: Vec<u8> = anamnesis::NF4_CODEBOOK.iter().flat_map(|x| x.to_le_bytes()).collect();
/// let twos = [0x00, 0x40].repeat(64);
/// let (codes, absmax) = anamnesis::encode_bnb4_compute_absmax(&twos, &map, 64, 64)?;
/// assert_eq!((codes, absmax), (vec![0xff; 32], 2f32.to_le_bytes().to_vec()));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` for lengths that do not fit, block sizes that are odd or 0, and values that are not
/// finite.
pub fn encode_bnb4_compute_absmax(
    bf16_data: &[u8],
    quant_map_data: &[u8],
    total_elements: usize,
    block_size: usize,
) -> Result<(Vec<u8>, Vec<u8>)> {
    check_block(block_size)?;
    check_finite_values(bf16_data, Some(total_elements))?;
    let encoder = codebook_encoder(&codebook(quant_map_data)?);
    let blocks = total_elements.div_ceil(block_size) as u64;
    let mut all_codes = zeroed_on_write(total_elements.div_ceil(2) as u64, "codes")?;
    let mut all_scales = zeroed_on_write(blocks.saturating_mul(4), "scales")?;
    let slab = slab_of(block_size, total_elements);
    let slabs = bf16_data
        .chunks(slab * 2)
        .zip(all_codes.chunks_mut(slab / 2));
    let slabs = slabs.zip(all_scales.chunks_mut(slab.div_ceil(block_size) * 4));
    for_each_slab(total_elements, slabs, |((bf16, codes), scales)| {
        let (mut made, mut absmax) = (Vec::new(), Vec::new());
        encoder.encode(
            &widened(bf16),
            block_size,
            Level::detect(),
            (&mut made, &mut absmax),
            &mut [],
        );
        codes.copy_from_slice(&made);
        scales.copy_from_slice(absmax.as_bytes());
    });
    Ok((all_codes, all_scales))
}

/// Encodes BF16 values to the 4-bit codes of `quant_map`, with given scales that are
/// double-quantized: `absmax` U8, one for each block, with levels `nested_quant_map` (F32 `[256]`),
/// scales `nested_absmax` (F32), and an offset.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
/// let (map, nested) = (floats(&anamnesis::NF4_CODEBOOK), floats(&[0.5; 256]));
/// let ones = [0x80, 0x3f].repeat(64);
/// // The scale of the block is 0.5 * 1 + 0.5.
/// let codes = anamnesis::encode_bnb4_double_quant(&ones, &[7], &map, &floats(&[1.0]), &nested, 0.5, 64, 64, 256)?;
/// assert_eq!(codes, [0xff; 32]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` for lengths that do not fit, and for block sizes that are odd or 0.
#[allow(clippy::too_many_arguments)] // each is a tensor or a number of the file
pub fn encode_bnb4_double_quant(
    bf16_data: &[u8],
    absmax_data: &[u8],
    quant_map_data: &[u8],
    nested_absmax_data: &[u8],
    nested_quant_map_data: &[u8],
    nested_offset: f32,
    total_elements: usize,
    block_size: usize,
    nested_block_size: usize,
) -> Result<Vec<u8>> {
    check_block(block_size)?;
    let blocks = total_elements.div_ceil(block_size);
    if nested_block_size == 0 || absmax_data.len() != blocks {
        let what = format!(
            "{} scales in blocks of {nested_block_size} where {blocks} are",
            absmax_data.len()
        );
        return Err(wrong(what));
    }
    let map = floats("nested_quant_map", nested_quant_map_data, 256)?;
    let scales = floats("nested_absmax", nested_absmax_data, blocks.div_ceil(nested_block_size))?;
    let mut absmax = Vec::with_capacity(blocks);
    nested_absmax(
        absmax_data,
        0..blocks,
        &map,
        &scales,
        nested_block_size,
        nested_offset,
        &mut absmax,
    );
    check_values(bf16_data, Some(total_elements))?;
    encode_with(bf16_data, absmax, &codebook(quant_map_data)?, block_size)
}

/// Encodes BF16 rows to LLM.int8() codes with given scales `scb` (F32, one for each row).
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let ones = [0x80, 0x3f].repeat(2);
/// assert_eq!(anamnesis::encode_bnb_int8(&ones, &1f32.to_le_bytes(), 1, 2)?, [127, 127]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` for lengths that do not fit.
pub fn encode_bnb_int8(
    bf16_data: &[u8],
    scb_data: &[u8],
    out_features: usize,
    in_features: usize,
) -> Result<Vec<u8>> {
    let scales = floats("SCB", scb_data, out_features)?;
    check_values(bf16_data, out_features.checked_mul(in_features))?;
    let mut all = zeroed_on_write(bf16_data.len() as u64 / 2, "codes")?;
    let slab = slab_of(in_features, all.len());
    let slabs = bf16_data.chunks(slab * 2).zip(all.chunks_mut(slab));
    let slabs = slabs.zip(scales.chunks((slab / in_features.max(1)).max(1)));
    for_each_slab(bf16_data.len() / 2, slabs, |((bf16, codes), scales)| {
        let made = int8::encode_with(&widened(bf16), in_features, scales, Level::detect());
        codes.copy_from_slice(&made);
    });
    Ok(all)
}

/// Encodes BF16 rows to LLM.int8() codes as bitsandbytes does, which converts values to F16 first.
/// Returns the codes, and the largest magnitude of each row as F32.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let twos = [0x00, 0x40].repeat(2);
/// let (codes, scb) = anamnesis::encode_bnb_int8_compute_scb(&twos, 1, 2)?;
/// assert_eq!((codes, scb), (vec![127, 127], 2f32.to_le_bytes().to_vec()));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` for lengths that do not fit, and for values that are not finite or too large for F16.
pub fn encode_bnb_int8_compute_scb(
    bf16_data: &[u8],
    out_features: usize,
    in_features: usize,
) -> Result<(Vec<u8>, Vec<u8>)> {
    check_finite_values(bf16_data, out_features.checked_mul(in_features))?;
    let mut all_codes = zeroed_on_write(bf16_data.len() as u64 / 2, "codes")?;
    let mut all_scales = zeroed_on_write((out_features as u64).saturating_mul(4), "scales")?;
    let slab = slab_of(in_features, all_codes.len());
    let rows = (slab / in_features.max(1)).max(1);
    let slabs = bf16_data.chunks(slab * 2).zip(all_codes.chunks_mut(slab));
    let slabs = slabs.zip(all_scales.chunks_mut(rows * 4));
    for_each_slab(bf16_data.len() / 2, slabs, |((bf16, codes), scales)| {
        let halves: Vec<f32> = widened(bf16).into_iter().map(f16::rounded).collect();
        let scb: Vec<f32> = halves.chunks(in_features.max(1)).map(absmax).collect();
        codes.copy_from_slice(&int8::encode_with(&halves, in_features, &scb, Level::detect()));
        scales.copy_from_slice(scb.as_bytes());
    });
    let scales = all_scales.as_chunks().0;
    match scales
        .iter()
        .position(|&scale| !f32::from_le_bytes(scale).is_finite())
    {
        Some(row) => Err(wrong(format!("row {row} has values that F16 does not reach"))),
        None => Ok((all_codes, all_scales)),
    }
}
