//! Assertions for tests of encoders: every code must return when its decoded value is encoded. Part
//! of the published interface.

use zerocopy::IntoBytes;

use crate::{AnamnesisError, Result};

/// Checks that each 4-bit code of `codebook` returns under each of `scales`.
///
/// `decode` takes codes, `absmax`, `quant_map`, the number of values and the block size, and
/// returns BF16. `encode` takes BF16 in place of codes, and returns codes.
///
/// # Errors
/// `Parse` if there are no scales or if blocks are no multiple of 32, and the errors of `decode`
/// and `encode`.
///
/// # Panics
/// If a code does not return.
pub fn assert_bnb4_decode_encode_round_trip<D, E>(
    codebook: &[f32; 16],
    scales: &[f32],
    block_size: usize,
    decode: D,
    encode: E,
) -> Result<()>
where
    D: Fn(&[u8], &[u8], &[u8], usize, usize) -> Result<Vec<u8>>,
    E: Fn(&[u8], &[u8], &[u8], usize, usize) -> Result<Vec<u8>>,
{
    if scales.is_empty() || block_size == 0 || !block_size.is_multiple_of(32) {
        let what =
            format!("{} scales for blocks of {block_size} values: a multiple of 32", scales.len());
        return Err(AnamnesisError::parse(what));
    }
    // Both halves of byte i hold code i % 16, so that a block has every code.
    let codes: Vec<u8> = (0..block_size / 2).map(|i| (i % 16) as u8 * 0x11).collect();
    let map: &[u8] = codebook.as_bytes();
    for scale in scales {
        let absmax = scale.to_le_bytes();
        let values = decode(&codes, &absmax, map, block_size, block_size)?;
        let again = encode(&values, &absmax, map, block_size, block_size)?;
        assert_eq!(codes, again, "the codes under scale {scale}, before and after");
    }
    Ok(())
}

/// Checks that each code of LLM.int8() returns under a scale of 127, by which it decodes to itself.
///
/// `decode` takes codes, `SCB`, rows and columns, and returns BF16. `encode` takes BF16 in place of
/// codes, and returns codes.
///
/// # Errors
/// The errors of `decode` and `encode`.
///
/// # Panics
/// If a code does not return.
pub fn assert_bnb_int8_decode_encode_round_trip<D, E>(decode: D, encode: E) -> Result<()>
where
    D: Fn(&[u8], &[u8], usize, usize) -> Result<Vec<u8>>,
    E: Fn(&[u8], &[u8], usize, usize) -> Result<Vec<u8>>,
{
    let codes: Vec<u8> = (0..=255).collect();
    let scale = 127f32.to_le_bytes();
    let again = encode(&decode(&codes, &scale, 1, codes.len())?, &scale, 1, codes.len())?;
    assert_eq!(codes, again, "the codes before and after");
    Ok(())
}
