//! Words of packed codes.

use crate::Result;
use crate::model::Tensor;

/// Words in a row of `t`.
pub(super) fn row_words(t: &Tensor<'_>) -> usize {
    t.shape().last().copied().unwrap_or(0)
}

/// Words that are read at most to tell the packings apart, and indices in one read of an index.
pub(super) const SAMPLE: usize = 4096;

/// The first words of `t`, at most 16 KiB.
pub(super) fn first_words(t: &Tensor<'_>) -> Result<Vec<u32>> {
    let mut bytes = vec![0; t.elements().min(SAMPLE) * 4];
    t.part().read_at(0, &mut bytes)?;
    let words = bytes.as_chunks().0.iter();
    Ok(words.map(|&word| u32::from_le_bytes(word)).collect())
}
