//! Big-endian files whose numbers lie in little-endian order.
//!
//! gguf-py swaps F32 and F16 alone where it writes a file of the other byte order, and so does
//! `convert_hf_to_gguf.py --bigendian`. BF16 and blocks stay as the machine has them, and llama.cpp
//! reads them wrong. Nothing in such a file says so but its numbers: weights and scales of one
//! tensor have exponents near each other, and in the wrong order they have any.
//!
//! Source: `GGUFWriter.add_tensor` in `gguf/gguf_writer.py` of gguf-py.

use crate::model::Tensor;
use crate::remember::kernels::ggml::decoder;
use crate::remember::seam::refused;
use crate::{Dtype, Result};

/// Bytes that are looked at.
const SAMPLE: usize = 4096;

/// The least number of numbers other than zero that tell anything.
const LEAST: usize = 16;

/// Fails if the numbers of `t`, a tensor of a big-endian file, lie in little-endian order.
///
/// # Errors
/// `Unsupported` that names the tensor; `Io` if it cannot be read.
pub(super) fn check(t: &Tensor<'_>) -> Result<()> {
    let (info, dtype) = (t.info(), t.dtype());
    let Some(size) = dtype.type_size().filter(|_| info.big_endian) else {
        return Ok(());
    };
    // gguf-py swaps all other plain types.
    let is_left = dtype == Dtype::BF16 || decoder(dtype).is_some() && dtype.can_swap();
    if !is_left || !t.part().is_readable() {
        return Ok(());
    }
    let length = t.part().len().min((SAMPLE / size * size) as u64) as usize;
    let mut native = vec![0; length];
    t.part().read_at(0, &mut native)?;
    let mut swapped = native.clone();
    dtype.swap_bytes(&mut swapped);
    if !is_swapped(dtype, &native, &swapped) {
        return Ok(());
    }
    let what = "its numbers lie in little-endian order, as convert_hf_to_gguf.py --bigendian leaves them; llama.cpp reads them wrong as well. \
                Convert the model without --bigendian; gguf_convert_endian.py makes a big-endian file of that";
    Err(refused(t, "big-endian GGUF", what))
}

/// Whether the numbers in `swapped`, which are those of `native` in the other byte order, are
/// weights or scales, and those in `native` are none.
fn is_swapped(dtype: Dtype, native: &[u8], swapped: &[u8]) -> bool {
    let (Some(native), Some(swapped)) = (spread(dtype, native), spread(dtype, swapped)) else {
        return false;
    };
    // Exponents by chance are a quarter of their range from the middle: 64 of BF16, 8 of F16. Those
    // of weights and scales are 1 or 2.
    let by_chance = if dtype == Dtype::BF16 { 16.0 } else { 4.0 };
    native >= by_chance && swapped * 4.0 < native
}

/// How far exponents of the 16-bit numbers in `bytes` are from their median, on average; `None`:
/// there are too few numbers, or none of 16 bits.
fn spread(dtype: Dtype, bytes: &[u8]) -> Option<f64> {
    let (words, size) = (dtype.swapped_words()?, dtype.type_size()?);
    let mantissa = if dtype == Dtype::BF16 { 7 } else { 10 };
    let numbers = bytes.chunks_exact(size).flat_map(|block| {
        let words = words.iter().filter(|(_, width)| *width == 2);
        words.map(|&(at, _)| u16::from_le_bytes([block[at], block[at + 1]]) & 0x7fff)
    });
    let numbers = numbers.filter(|bits| *bits != 0);
    let mut exponents: Vec<_> = numbers.map(|bits| i32::from(bits >> mantissa)).collect();
    if exponents.len() < LEAST {
        return None;
    }
    exponents.sort_unstable();
    let median = exponents[exponents.len() / 2];
    let distances = exponents.iter().map(|e| (e - median).abs());
    Some(f64::from(distances.sum::<i32>()) / exponents.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of `count` numbers, of which `bits` makes one.
    fn bytes(count: u32, bits: impl Fn(u32) -> u16) -> [Vec<u8>; 2] {
        let all = (0..count).map(bits);
        let (native, swapped): (Vec<_>, Vec<_>) =
            all.map(|x| (x.to_le_bytes(), x.to_be_bytes())).unzip();
        [native.concat(), swapped.concat()]
    }

    #[test]
    fn numbers_tell_their_order() {
        // Weights from 2^-7 to 2^-5 with any mantissa; powers of two; the same number; too few
        // numbers.
        let weight =
            |i: u32| (120 + (i % 3) as u16) << 7 | (i.wrapping_mul(2_654_435_761) >> 25) as u16;
        let power = |i: u32| (100 + (i % 50) as u16) << 7;
        for (count, bits, is_told) in [
            (64, &weight as &dyn Fn(u32) -> u16, true),
            (64, &power, false),
            (64, &|_| 0x3f80, false),
            (LEAST as u32 - 1, &weight, false),
        ] {
            let [right, wrong] = bytes(count, bits);
            assert!(!is_swapped(Dtype::BF16, &right, &wrong));
            assert_eq!(is_swapped(Dtype::BF16, &wrong, &right), is_told);
        }
    }
}
