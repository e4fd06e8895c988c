//! Two 4-bit codes to a byte, looked up in a table of 16 values.

use crate::element::Element;

/// For each byte, the values of its two codes in the order of the output.
pub(crate) struct Pairs(Box<[[f32; 2]; 256]>);

impl Pairs {
    /// A table for `codebook`. `high_first`: the high nibble holds the even element.
    pub(crate) fn new(codebook: &[f32; 16], high_first: bool) -> Self {
        let mut pairs = Box::new([[0.0; 2]; 256]);
        for (byte, pair) in pairs.iter_mut().enumerate() {
            let (high, low) = (codebook[byte >> 4], codebook[byte & 15]);
            *pair = if high_first { [high, low] } else { [low, high] };
        }
        Self(pairs)
    }

    /// Looks up the codes in `bytes`, multiplies by `scale`, rounds into `out`. An odd `out` ends in the
    /// first code of a byte.
    #[inline(always)]
    pub(crate) fn scaled<E: Element>(&self, bytes: &[u8], scale: f32, out: &mut [E]) {
        const TILE: usize = 32;
        for (bytes, out) in bytes.chunks(TILE / 2).zip(out.chunks_mut(TILE)) {
            let mut values = [0.0; TILE];
            for (pair, &byte) in values.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *pair = self.0[usize::from(byte)];
            }
            for value in &mut values {
                *value *= scale;
            }
            E::store(&values, out);
        }
    }
}
