//! Two 4-bit codes to a byte, looked up in a table of 16 values, in blocks that share a scale.

#[cfg(target_arch = "x86_64")]
use zerocopy::IntoBytes;

use crate::element::Element;
use crate::simd::Kernel;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, NibbleTable};

/// For each byte, the values of its two codes in the order of the output: one load of eight bytes in place of two
/// look-ups. The table has 2 KiB and stays in the first-level cache.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct PairTable {
    pairs: Box<[[f32; 2]; 256]>,
    /// The codebook itself.
    levels: [f32; 16],
    high_first: bool,
}

impl PairTable {
    /// A table for `codebook`. `high_first`: the high nibble holds the even element.
    pub(crate) fn new(codebook: &[f32; 16], high_first: bool) -> Self {
        let mut pairs = Box::new([[0.0; 2]; 256]);
        for (byte, pair) in pairs.iter_mut().enumerate() {
            let (high, low) = (codebook[byte >> 4], codebook[byte & 15]);
            *pair = if high_first { [high, low] } else { [low, high] };
        }
        Self {
            pairs,
            levels: *codebook,
            high_first,
        }
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
                *pair = self.pairs.pairs[usize::from(byte)];
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

    /// A block has only sixteen values, whatever its length. For outputs of two bytes they are rounded once, and the codes
    /// look up the low and the high bytes of the results in registers: twice as fast as rounding each value, at least.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        // A unit must not cross the end of a block.
        let whole = self.block.is_multiple_of(LOOKED_UP) && self.start.is_multiple_of(LOOKED_UP);
        if size_of::<E>() != 2 || !whole {
            return self.run(out);
        }
        let mut scales = self.scales.iter().copied();
        let mut left = self.block - self.start;
        let mut table = rounded::<E>(&self.pairs.levels, scales.next().unwrap_or(0.0), avx2);
        let (units, rest) = out.as_chunks_mut::<LOOKED_UP>();
        // As many bytes as units: those of 63 values more would fill one, too.
        let codes = units.len() * (LOOKED_UP / 2);
        let (codes, last_codes) = self.bytes.split_at(codes.min(self.bytes.len()));
        let codes = codes.as_chunks::<{ LOOKED_UP / 2 }>().0;
        for (codes, unit) in codes.iter().zip(&mut *units) {
            if left == 0 {
                table = rounded::<E>(&self.pairs.levels, scales.next().unwrap_or(0.0), avx2);
                left = self.block;
            }
            left -= LOOKED_UP;
            let values = table.look_up(*codes, self.pairs.high_first);
            unit.as_mut_bytes().copy_from_slice(values.as_bytes());
        }
        let done = self.start + units.len() * LOOKED_UP;
        let last = CodebookBlocks {
            bytes: last_codes,
            start: done % self.block,
            scales: self.scales.get(done / self.block..).unwrap_or_default(),
            ..*self
        };
        last.run(rest);
    }
}

/// Values that are looked up together: the codes of one vector of AVX2.
#[cfg(target_arch = "x86_64")]
const LOOKED_UP: usize = 64;

/// The sixteen values of a block in an output type of two bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn rounded<E: Element>(levels: &[f32; 16], scale: f32, avx2: Avx2) -> NibbleTable {
    let mut values = *levels;
    for value in &mut values {
        *value *= scale;
    }
    let mut rounded = [E::from_f32(0.0); 16];
    E::store(&values, &mut rounded);
    let mut entries = [0u16; 16];
    entries.as_mut_bytes().copy_from_slice(rounded.as_bytes());
    avx2.table(entries)
}
