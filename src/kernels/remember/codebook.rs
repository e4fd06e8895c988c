//! Two 4-bit codes to a byte, looked up in a table of 16 values, in blocks that share a scale.

use crate::element::Element;
use crate::simd::Kernel;

/// For each byte, the values of its two codes in the order of the output: one load of eight bytes in place of two
/// look-ups. The table has 2 KiB and stays in the first-level cache.
pub(crate) struct PairTable(Box<[[f32; 2]; 256]>);

impl PairTable {
    /// A table for `codebook`. `high_first`: the high nibble holds the even element.
    pub(crate) fn new(codebook: &[f32; 16], high_first: bool) -> Self {
        let mut pairs = Box::new([[0.0; 2]; 256]);
        for (byte, pair) in pairs.iter_mut().enumerate() {
            let (high, low) = (codebook[byte >> 4], codebook[byte & 15]);
            *pair = if high_first { [high, low] } else { [low, high] };
        }
        Self(pairs)
    }
}

/// Values that are looked up before any is scaled: far more than a store buffer holds, for a vector load of
/// what several narrow stores have just written has to wait for them.
const TILE: usize = 512;

/// Values that are scaled together, in a loop of known length. Block sizes are multiples of it but for odd ones, which
/// are scaled value by value.
const UNIT: usize = 16;

/// A run of values of a flattened tensor, `codebook[code] * scale`, in blocks that share a scale and may begin before it.
pub(crate) struct CodebookBlocks<'a> {
    pub pairs: &'a PairTable,
    pub bytes: &'a [u8],
    /// Place of the first value in its block; even.
    pub start: usize,
    /// Values in a block.
    pub block: usize,
    /// Scales, from the block of the first value on.
    pub scales: &'a [f32],
}

impl Kernel for CodebookBlocks<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let mut scales = self.scales.iter().copied();
        let mut scale = scales.next().unwrap_or(0.0);
        let mut left = self.block - self.start;
        // A unit must not cross the end of a block, so both block and start have to be whole units.
        let whole = self.block.is_multiple_of(UNIT) && self.start.is_multiple_of(UNIT);
        let mut values = [0.0; TILE];
        for (bytes, out) in self.bytes.chunks(TILE / 2).zip(out.chunks_mut(TILE)) {
            for (pair, &byte) in values.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *pair = self.pairs.0[usize::from(byte)];
            }
            let mut advance = |n: usize| {
                let now = scale;
                left -= n;
                if left == 0 {
                    (scale, left) = (scales.next().unwrap_or(0.0), self.block);
                }
                now
            };
            if whole {
                let units = out.len().div_ceil(UNIT);
                for unit in &mut values.as_chunks_mut::<UNIT>().0[..units] {
                    let scale = advance(UNIT);
                    unit.iter_mut().for_each(|value| *value *= scale);
                }
            } else {
                values[..out.len()]
                    .iter_mut()
                    .for_each(|value| *value *= advance(1));
            }
            E::store(&values, out);
        }
    }
}
