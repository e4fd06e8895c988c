//! The encoders of BitsAndBytes on plain bytes, from BF16 values to the bytes of stored tensors: part of the published
//! interface.
//!
//! Functions with given scales reverse decoding: values that were decoded become the codes that they had. Functions
//! that compute scales encode as the library does.

use zerocopy::IntoBytes;

use crate::element::f32_from_bf16;
use crate::kernels::lethe::bnb::codebook_encoder;
use crate::kernels::lethe::int8;
use crate::kernels::remember::bnb::nested_absmax;
use crate::simd::Level;
use crate::{AnamnesisError, Result};

fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("BitsAndBytes: {what}"))
}

/// The F32 values of `bf16`, which must be `n`. None stands for a number that overflows.
fn values(bf16: &[u8], n: Option<usize>) -> Result<Vec<f32>> {
    if n.and_then(|n| n.checked_mul(2)) != Some(bf16.len()) {
        return Err(wrong(format!(
            "{} bytes of BF16 are not the values that there should be",
            bf16.len()
        )));
    }
    Ok(bf16
        .as_chunks()
        .0
        .iter()
        .map(|&b| f32_from_bf16(u16::from_le_bytes(b)))
        .collect())
}

/// The F32 values of `bf16`, which must be `n` and finite, because a scale is computed from them.
fn finite_values(bf16: &[u8], n: Option<usize>) -> Result<Vec<f32>> {
    let values = values(bf16, n)?;
    match values.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(wrong(format!(
            "value {at} is {}, and has no code",
            values[at]
        ))),
        None => Ok(values),
    }
}

/// The F32 values of the tensor `what`, which must be `n`.
fn floats(what: &str, bytes: &[u8], n: usize) -> Result<Vec<f32>> {
    if bytes.len() / 4 != n || !bytes.len().is_multiple_of(4) {
        return Err(wrong(format!(
            "{what} is F32 [{n}], and has {} bytes",
            bytes.len()
        )));
    }
    Ok(bytes
        .as_chunks()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b))
        .collect())
}

fn codebook(bytes: &[u8]) -> Result<[f32; 16]> {
    let mut map = [0.0; 16];
    map.copy_from_slice(&floats("quant_map", bytes, 16)?);
    Ok(map)
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.as_bytes().to_vec()
}

fn check_block(block: usize) -> Result<()> {
    if block == 0 || !block.is_multiple_of(2) {
        return Err(wrong(format!("blocks of {block} values")));
    }
    Ok(())
}

/// Encodes BF16 values to the 4-bit codes of `quant_map` (F32 `[16]`), with given scales `absmax` (F32, one for each
/// block). Decoded values become the codes that they were decoded from, except in blocks whose scale is 0.
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
    encode_with(
        &values(bf16_data, Some(total_elements))?,
        absmax,
        &codebook(quant_map_data)?,
        block_size,
    )
}

fn encode_with(
    values: &[f32],
    mut absmax: Vec<f32>,
    codebook: &[f32; 16],
    block: usize,
) -> Result<Vec<u8>> {
    let mut codes =
        codebook_encoder(codebook).encode_with(values, block, &mut absmax, Level::detect());
    // FP4 has two codes of zero, and code 8 decodes to -0: the sign of a zero tells its code. A negative scale flips
    // it.
    let mut zeros = (0..16u8).filter(|&code| codebook[usize::from(code)] == 0.0);
    let (Some(plus), Some(minus)) = (zeros.next(), zeros.next()) else {
        return Ok(codes);
    };
    for (i, x) in values.iter().enumerate().filter(|(_, x)| **x == 0.0) {
        let negative = x.is_sign_negative() != absmax[i / block].is_sign_negative();
        let (code, shift) = (
            if negative { minus } else { plus },
            if i % 2 == 0 { 4 } else { 0 },
        );
        codes[i / 2] = codes[i / 2] & !(15 << shift) | code << shift;
    }
    Ok(codes)
}

/// Encodes BF16 values to 4-bit codes as bitsandbytes does. Returns the codes, and the largest magnitude of each block
/// as F32.
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
/// `Parse` for lengths that do not fit, block sizes that are odd or 0, and values that are not finite.
pub fn encode_bnb4_compute_absmax(
    bf16_data: &[u8],
    quant_map_data: &[u8],
    total_elements: usize,
    block_size: usize,
) -> Result<(Vec<u8>, Vec<u8>)> {
    check_block(block_size)?;
    let (values, codebook) = (
        finite_values(bf16_data, Some(total_elements))?,
        codebook(quant_map_data)?,
    );
    let (mut codes, mut absmax) = (Vec::new(), Vec::new());
    codebook_encoder(&codebook).encode(
        &values,
        block_size,
        Level::detect(),
        &mut codes,
        &mut absmax,
    );
    Ok((codes, bytes_of(&absmax)))
}

/// Encodes BF16 values to the 4-bit codes of `quant_map`, with given scales that are double-quantized: `absmax` U8, one
/// for each block, with levels `nested_quant_map` (F32 `[256]`), scales `nested_absmax` (F32), and an offset.
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
    let scales = floats(
        "nested_absmax",
        nested_absmax_data,
        blocks.div_ceil(nested_block_size),
    )?;
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
    encode_with(
        &values(bf16_data, Some(total_elements))?,
        absmax,
        &codebook(quant_map_data)?,
        block_size,
    )
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
    let mut scales = floats("SCB", scb_data, out_features)?;
    let values = values(bf16_data, out_features.checked_mul(in_features))?;
    Ok(int8::encode_with(
        &values,
        in_features,
        &mut scales,
        Level::detect(),
    ))
}

/// Encodes BF16 rows to LLM.int8() codes as bitsandbytes does, which converts values to F16 first. Returns the codes,
/// and the largest magnitude of each row as F32.
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
    let values = finite_values(bf16_data, out_features.checked_mul(in_features))?;
    let (mut codes, mut scales) = (vec![0; values.len()], vec![0.0; out_features]);
    int8::encode(
        &values,
        in_features,
        Level::detect(),
        &mut codes,
        &mut scales,
    );
    match scales.iter().position(|scale| !scale.is_finite()) {
        Some(row) => Err(wrong(format!(
            "row {row} has values that F16 does not reach"
        ))),
        None => Ok((codes, bytes_of(&scales))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::round_trip::{
        assert_bnb_int8_decode_encode_round_trip, assert_bnb4_decode_encode_round_trip,
    };
    use crate::element::Element;
    use crate::kernels::lethe::bnb::{FP4_CODEBOOK, NF4_CODEBOOK, dynamic_map};
    use crate::kernels::remember::bnb::Int8Rows;
    use crate::kernels::remember::codebook::{CodebookBlocks, PairTable};
    use crate::{element::Out, simd::dispatch};
    use half::bf16;

    fn bf16(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|&x| <bf16 as Element>::from_f32(x).to_bits().to_le_bytes())
            .collect()
    }

    fn decode(codes: &[u8], absmax: &[u8], map: &[u8], n: usize, block: usize) -> Result<Vec<u8>> {
        let mut map = codebook(map)?;
        map[8] = if map[8] == 0.0 { -0.0 } else { map[8] };
        let scales = floats("absmax", absmax, n.div_ceil(block))?;
        let mut out = vec![0.0; n];
        let kernel = CodebookBlocks {
            pairs: &PairTable::new(&map, true),
            bytes: codes,
            start: 0,
            block,
            scales: &scales,
        };
        dispatch(Level::detect(), &kernel, Out::F32(&mut out));
        Ok(bf16(&out))
    }

    #[test]
    fn every_code_returns() {
        let scales = [1.0, 0.05, 3e-5, 1e30, 127.0, 1e-30];
        for map in [NF4_CODEBOOK, FP4_CODEBOOK, FP4_CODEBOOK.map(|x| x + 0.0)] {
            for block in [32, 64] {
                assert_bnb4_decode_encode_round_trip(&map, &scales, block, decode, encode_bnb4)
                    .unwrap();
            }
        }
        let decode = |codes: &[u8], scb: &[u8], rows: usize, cols: usize| {
            let (scb, mut out) = (floats("SCB", scb, rows)?, vec![0.0; rows * cols]);
            dispatch(
                Level::detect(),
                &Int8Rows {
                    codes,
                    cols,
                    scb: &scb,
                },
                Out::F32(&mut out),
            );
            Ok(bf16(&out))
        };
        assert_bnb_int8_decode_encode_round_trip(decode, encode_bnb_int8).unwrap();
    }

    /// Double-quantized scales give the same codes as the scales that they decode to.
    #[test]
    fn nested_scales() {
        let (inner, outer, offset) = ([200u8, 128, 255], [0.02f32], 0.07f32);
        let scales = inner.map(|q| dynamic_map()[usize::from(q)] * outer[0] + offset);
        let (map, codes) = (
            bytes_of(&NF4_CODEBOOK),
            (0..80u8).map(|i| i.wrapping_mul(37)).collect::<Vec<_>>(),
        );
        let values = decode(&codes, &bytes_of(&scales), &map, 160, 64).unwrap();
        let (outer, levels) = (bytes_of(&outer), bytes_of(dynamic_map()));
        let again =
            encode_bnb4_double_quant(&values, &inner, &map, &outer, &levels, offset, 160, 64, 256)
                .unwrap();
        assert_eq!(again, codes);
    }

    #[test]
    fn lengths_and_values_that_do_not_fit() {
        let (map, values) = (bytes_of(&NF4_CODEBOOK), bf16(&[1.0; 64]));
        assert!(encode_bnb4(&values, &[0; 4], &map, 64, 64).is_ok());
        assert!(encode_bnb4(&values, &[0; 8], &map, 64, 64).is_err());
        assert!(encode_bnb4(&values, &[0; 4], &map[4..], 64, 64).is_err());
        assert!(
            encode_bnb4(&values, &[0; 4], &map, 64, 0).is_err()
                && encode_bnb4(&values, &[0; 4], &map, 64, 63).is_err()
        );
        assert!(encode_bnb4_compute_absmax(&values, &map, usize::MAX, 64).is_err());
        assert!(encode_bnb4_compute_absmax(&bf16(&[f32::NAN, 1.0]), &map, 2, 64).is_err());
        assert!(encode_bnb_int8_compute_scb(&bf16(&[1e5, 1.0]), 1, 2).is_err());
        assert!(encode_bnb_int8(&values, &[0; 4], usize::MAX, 2).is_err());
    }
}
