//! How compressed-tensors packs integers into the words of a row: as a bit stream or, in older
//! files and for widths that do not divide 32, as many whole codes in a word as fit. The dtypes are
//! the same, and often the shapes are, too.

use super::unused_bits::check_unused_bits;
use super::words::{first_words, row_words};
use crate::model::{Part, Tensor};
use crate::remember::seam::grouped::Unpack;
use crate::remember::seam::{Tile, read, wrong};
use crate::{Dtype, Result};

/// The packing of a weight, and its logical shape.
pub(super) struct PackQuantized {
    pub bits: usize,
    /// Codes in a word if no code crosses into the next word; `None`: a row is a bit stream. The
    /// two differ only for widths that do not divide 32.
    pub per_word: Option<usize>,
    pub shape: Vec<usize>,
}

/// The packing of `t`, by the `shape` stored beside it and the `bits` of the config, of which
/// either may be missing.
///
/// # Errors
/// The words do not hold `shape`, or they allow several packings and the data do not tell which.
pub(super) fn packing(
    t: &Tensor<'_>,
    shape: Option<&[usize]>,
    bits: Option<usize>,
) -> Result<PackQuantized> {
    let words = row_words(t);
    let Some((_, leading)) = t
        .shape()
        .split_last()
        .filter(|(_, leading)| !leading.is_empty())
    else {
        return Err(wrong(t, "packed weights have two dimensions or three"));
    };
    let Some(shape) = shape else {
        // Words prove the columns only if they are full.
        let bits = bits.filter(|bits| matches!(bits, 1 | 2 | 4 | 8));
        let Some((bits, cols)) = bits.and_then(|bits| Some((bits, words.checked_mul(32 / bits)?)))
        else {
            return Err(wrong(t, "neither its shape nor the config tells how many columns it has"));
        };
        let shape = leading.iter().copied().chain([cols]).collect();
        return Ok(PackQuantized { bits, per_word: None, shape });
    };
    let Some((&cols, rows)) = shape.split_last() else {
        return Err(wrong(t, "its shape has no dimensions"));
    };
    // The shape stored with a stack of experts may be that of one expert. Of another weight it is
    // the whole shape.
    let stack = &leading[..leading.len().saturating_sub(rows.len())];
    let is_stack = leading.len() == 2 && names_experts(t.name());
    if leading[stack.len()..] != *rows || !stack.is_empty() && !is_stack {
        return Err(wrong(t, format!("its rows are not those of its shape, {shape:?}")));
    }
    let fits = |&bits: &usize| {
        let dense = cols
            .checked_mul(bits)
            .is_some_and(|n| n.div_ceil(32) == words);
        let word_aligned = !32usize.is_multiple_of(bits) && cols.div_ceil(32 / bits) == words;
        dense || word_aligned
    };
    let found: Vec<usize> = match bits {
        // The range is checked before `fits`, which divides by the width.
        Some(bits) => Some(bits)
            .filter(|bits| (1..=8).contains(bits) && fits(bits))
            .into_iter()
            .collect(),
        None => (1..=8).filter(fits).collect(),
    };
    let [bits] = *found.as_slice() else {
        let tried = bits.map_or_else(|| format!("{found:?}"), |bits| bits.to_string());
        return Err(wrong(
            t,
            format!("{words} words a row do not hold {cols} codes of {tried} bits"),
        ));
    };
    // No overflow: `read_shape` bounds the product of the dimensions by 2^60, and a width is at
    // most 8.
    let dense = (cols * bits).div_ceil(32) == words;
    let word_aligned = (!32usize.is_multiple_of(bits))
        .then(|| 32 / bits)
        .filter(|n| cols.div_ceil(*n) == words);
    let per_word = match word_aligned {
        // A row of at most n codes lies in one word, in which both packings agree. Longer ones are
        // told apart by their data.
        Some(n) if dense && cols > n => is_word_aligned(t, bits, n)?.then_some(n),
        word_aligned => word_aligned.filter(|_| !dense),
    };
    check_unused_bits(t, cols, bits, per_word)?;
    let shape = stack.iter().chain(shape).copied().collect();
    Ok(PackQuantized { bits, per_word, shape })
}

/// Whether a tensor of this name may hold all experts of a layer: `experts.down_proj_packed`, and
/// not `experts.3.down_proj`.
fn names_experts(name: &str) -> bool {
    let (_, rest) = name.split_once("experts.").unwrap_or_default();
    rest.starts_with(|c: char| !c.is_ascii_digit())
}

/// Whether the bits that word-aligned packing leaves unused are zero in all of the first words. In
/// a bit stream they belong to codes.
///
/// # Errors
/// They are zero in a tensor of fewer than 64 words, which could be by chance.
fn is_word_aligned(t: &Tensor<'_>, bits: usize, per_word: usize) -> Result<bool> {
    // Each word of random codes at least halves the chance that all unused bits are clear.
    let words = first_words(t)?;
    // For widths that do not divide 32 there is at least one unused bit, so the shift is below 32.
    let word_aligned = words.iter().all(|word| word >> (bits * per_word) == 0);
    if word_aligned && words.len() < 64 {
        return Err(wrong(
            t,
            format!(
                "its rows hold codes of {bits} bits in two ways, and its data does not tell which"
            ),
        ));
    }
    Ok(word_aligned)
}

/// The dimensions that a small integer tensor holds.
///
/// # Errors
/// The dtype is not an integer, there is not one to four dimensions, or their product is 2^60 or
/// more.
pub(in crate::remember) fn read_shape(t: &Tensor<'_>) -> Result<Vec<usize>> {
    let size = match t.dtype() {
        Dtype::I64 | Dtype::U64 => 8,
        Dtype::I32 | Dtype::U32 => 4,
        _ => return Err(wrong(t, "a shape is I64 or I32")),
    };
    // Bounded before the allocation. Weights have two dimensions, stacks three.
    if t.elements() == 0 || t.elements() > 4 {
        return Err(wrong(t, "a shape has a few dimensions"));
    }
    let mut bytes = vec![0; t.elements() * size];
    t.part().read_at(0, &mut bytes)?;
    let dim = |bytes: &[u8]| {
        let mut padded = [0; 8];
        padded[..size].copy_from_slice(bytes);
        // A negative size becomes a huge one, which no tensor has.
        usize::try_from(u64::from_le_bytes(padded)).ok()
    };
    let dims: Option<Vec<usize>> = bytes.chunks_exact(size).map(dim).collect();
    let fits = |dims: &Vec<usize>| {
        dims.iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .is_some_and(|n| n <= usize::MAX >> 4)
    };
    dims.filter(fits)
        .ok_or_else(|| wrong(t, "its dimensions are no sizes"))
}

/// Codes of a row, `per_word` in the low bits of each word of four bytes.
pub(super) struct WordAlignedCodes<'m> {
    pub part: Part<'m>,
    pub row_words: usize,
    pub bits: usize,
    pub per_word: usize,
}

impl Unpack for WordAlignedCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let words = tile.cols.start / self.per_word..tile.cols.end.div_ceil(self.per_word);
        read(
            &self.part,
            self.row_words * 4,
            tile.rows.clone(),
            words.start * 4..words.end * 4,
            staging,
        )?;
        out.clear();
        let mask = (1u32 << self.bits) - 1;
        for row in staging.chunks_exact(words.len().max(1) * 4) {
            // Low bits first. The bits above `per_word * bits` are unused and not looked at.
            let codes = row.as_chunks().0.iter().flat_map(|&word| {
                let word = u32::from_le_bytes(word);
                (0..self.per_word).map(move |i| (word >> (i * self.bits) & mask) as u8)
            });
            out.extend(codes.take(tile.cols.len()));
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (1, self.per_word)
    }
}
