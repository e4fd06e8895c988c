//! Bits of packed words that no code has. compressed-tensors leaves them zero, so that codes of
//! another width or of longer rows, which set some of them, are told apart even where the shapes
//! fit.

use super::words::{first_words, row_words};
use crate::Result;
use crate::model::Tensor;
use crate::remember::seam::wrong;

/// Checks that the first words of `t` can hold rows of `cols` codes of `bits` bits, `per_word` of
/// them in a word or, if `None`, as a bit stream.
///
/// # Errors
/// The bits that no code has are set, or those are zero that no code of another packing has.
pub(super) fn check_unused_bits(
    t: &Tensor<'_>,
    cols: usize,
    bits: usize,
    per_word: Option<usize>,
) -> Result<()> {
    // A header alone has no data to look at. Every bit of full words belongs to a code, but those
    // of 8 bits may hold codes of 7.
    let are_full = per_word.is_none() && cols * bits == row_words(t) * 32;
    if !t.part().is_readable() || are_full && matches!(bits, 1 | 2 | 4) {
        return Ok(());
    }
    let words = first_words(t)?;
    // Four codes of 7 bits lie in a word as four of 8 do, and leave its top clear.
    if bits == 8 && are_whole_codes(&words, 7) {
        return Err(wrong(t, "its words hold codes of 7 bits, and not of 8"));
    }
    // Whole codes in each word, of a row that was cut, pass for a bit stream.
    let is_stream = per_word.is_none() && !32usize.is_multiple_of(bits) && cols > 32 / bits;
    if is_stream && are_whole_codes(&words, bits) {
        let what = format!("its words hold whole codes of {bits} bits, which need more words");
        return Err(wrong(t, what));
    }
    let in_row = (0..row_words(t)).cycle();
    let is_zero = |(&word, i): (&u32, usize)| {
        let used = match per_word {
            Some(n) => cols.saturating_sub(i * n).min(n) * bits,
            None => (cols * bits).saturating_sub(i * 32).min(32),
        };
        word.checked_shr(used as u32).unwrap_or(0) == 0
    };
    if words.iter().zip(in_row).all(is_zero) {
        return Ok(());
    }
    let what = format!(
        "its words do not hold {cols} codes of {bits} bits a row: bits that no code has are set"
    );
    Err(wrong(t, what))
}

/// Bits that have to be clear before their zeros are no accident.
const PROOF: usize = 64;

/// Whether `words` are whole codes of `bits` bits each, by the bits above them, which are clear in
/// every word.
fn are_whole_codes(words: &[u32], bits: usize) -> bool {
    let used = 32 / bits * bits;
    let are_clear =
        words.len() * (32 - used) >= PROOF && words.iter().all(|word| word >> used == 0);
    are_clear && {
        // A constant weight, or one of a few values over and over, has few words, which prove
        // nothing.
        let mut distinct = words.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        distinct.len() * 4 >= words.len()
    }
}
