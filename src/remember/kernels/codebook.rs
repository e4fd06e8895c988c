//! Two 4-bit codes to a byte, looked up in a table of 16 values, in blocks that share a scale.

#[cfg(target_arch = "x86_64")]
use std::{marker::PhantomData, slice};

use half::bf16;
use zerocopy::IntoBytes;

use crate::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, NibbleTable, copy};
use crate::simd::{Kernel, Level, Routine, zip};

/// For each byte, the values of its two codes in the order of the output: one load of eight bytes
/// in place of two look-ups. The table has 2 KiB and stays in the first-level cache.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct PairTable {
    pairs: Box<[[f32; 2]; 256]>,
    codebook: [f32; 16],
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
        Self { pairs, codebook: *codebook, high_first }
    }
}

/// Values that are looked up before any is scaled: far more than a store buffer holds, for a vector
/// load of what several narrow stores have just written has to wait for them.
const BUFFER_VALUES: usize = 512;

/// Values that are scaled together, in a loop of known length. Block sizes are multiples of it but
/// for odd ones, which are scaled value by value.
const UNIT: usize = 16;

/// A run of values of a flattened tensor, `codebook[code] * scale`, in blocks that share a scale
/// and may begin before it.
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
    const ROUNDS_ON_THE_WAY: bool = true;

    fn is_rounded_last(&self) -> bool {
        !(cfg!(target_arch = "x86_64") && self.are_looked_up(Level::Avx2))
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let mut scales = self.scales.iter().copied();
        let mut scale = scales.next().unwrap_or(0.0);
        let mut left = self.block - self.start;
        // A unit must not cross the end of a block, so both block and start have to be whole units.
        let whole = self.block.is_multiple_of(UNIT) && self.start.is_multiple_of(UNIT);
        let mut values = [0.0; BUFFER_VALUES];
        for (bytes, out) in zip(self.bytes.chunks(BUFFER_VALUES / 2), out.chunks_mut(BUFFER_VALUES))
        {
            for (pair, &byte) in zip(values.as_chunks_mut::<2>().0, bytes) {
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

    /// A block has only sixteen values, whatever its length. For outputs of two bytes they are
    /// rounded once, and the codes look up the results in registers: twice as fast as rounding each
    /// value, at least.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        if size_of::<E>() != 2 || !self.are_looked_up(Level::Avx2) {
            return self.run(out);
        }
        let (units, rest) = out.as_chunks_mut::<VALUES_PER_LOOK_UP>();
        let mut looked_up = self.look_up::<E>(avx2);
        for unit in &mut *units {
            let Some(values) = looked_up.next() else {
                break;
            };
            copy(values.as_bytes(), unit.as_mut_bytes());
        }
        self.behind(units.len()).run(rest);
    }
}

impl CodebookBlocks<'_> {
    /// What is left behind the first `units` units of [`VALUES_PER_LOOK_UP`] values.
    #[inline(always)]
    fn behind(&self, units: usize) -> Self {
        let end = self.start + units * VALUES_PER_LOOK_UP;
        Self {
            bytes: self
                .bytes
                .get(units * (VALUES_PER_LOOK_UP / 2)..)
                .unwrap_or_default(),
            start: end % self.block,
            scales: self.scales.get(end / self.block..).unwrap_or_default(),
            ..*self
        }
    }

    /// Whether values of two bytes are looked up in registers: at AVX2, if no unit of
    /// [`VALUES_PER_LOOK_UP`] values crosses the end of a block.
    #[inline(always)]
    pub(crate) fn are_looked_up(&self, level: Level) -> bool {
        level >= Level::Avx2
            && self.block.is_multiple_of(VALUES_PER_LOOK_UP)
            && self.start.is_multiple_of(VALUES_PER_LOOK_UP)
    }

    /// The values of whole units in the output type `E`, which has two bytes. The last bytes may
    /// fill a unit and still have fewer values, so the caller takes as many units as it has values
    /// for.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn look_up<E: Element>(&self, avx2: Avx2) -> LookedUp<'_, E> {
        let mut scales = self.scales.iter();
        let scale = scales.next().copied().unwrap_or(0.0);
        LookedUp {
            codebook: self.pairs.codebook,
            table: rounded_table::<E>(&self.pairs.codebook, scale, avx2),
            codes: self.bytes.as_chunks().0.iter(),
            scales,
            left: self.block - self.start,
            block: self.block,
            high_first: self.pairs.high_first,
            avx2,
            element: PhantomData,
        }
    }
}

/// Values that are looked up together: the codes of one vector of AVX2.
const VALUES_PER_LOOK_UP: usize = 64;

/// The units of a run of blocks, each looked up when it is asked for.
#[cfg(target_arch = "x86_64")]
struct LookedUp<'a, E> {
    codebook: [f32; 16],
    /// The values of the current block.
    table: NibbleTable,
    codes: slice::Iter<'a, [u8; VALUES_PER_LOOK_UP / 2]>,
    scales: slice::Iter<'a, f32>,
    /// Values that are left of the current block.
    left: usize,
    block: usize,
    high_first: bool,
    avx2: Avx2,
    element: PhantomData<E>,
}

#[cfg(target_arch = "x86_64")]
impl<E: Element> Iterator for LookedUp<'_, E> {
    type Item = [u16; VALUES_PER_LOOK_UP];

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let codes = self.codes.next()?;
        if self.left == 0 {
            let scale = self.scales.next().copied().unwrap_or(0.0);
            self.table = rounded_table::<E>(&self.codebook, scale, self.avx2);
            self.left = self.block;
        }
        self.left -= VALUES_PER_LOOK_UP;
        Some(self.table.look_up(*codes, self.high_first))
    }
}

/// The sixteen values of a block in an output type of two bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn rounded_table<E: Element>(codebook: &[f32; 16], scale: f32, avx2: Avx2) -> NibbleTable {
    let mut values = *codebook;
    for value in &mut values {
        *value *= scale;
    }
    let mut rounded = [E::from_f32(0.0); 16];
    E::store(&values, &mut rounded);
    let mut entries = [0u16; 16];
    copy(rounded.as_bytes(), entries.as_mut_bytes());
    avx2.table(entries)
}

/// [`CodebookBlocks`] whose values are appended in BF16. A buffer that an allocator hands out again
/// would have to be zeroed first to be written to as a slice, and that takes a third as long as
/// looking up all of its values.
pub(crate) struct AppendCodebookBlocks<'a> {
    pub blocks: CodebookBlocks<'a>,
    /// The number of values.
    pub values: usize,
    /// Has room for two bytes of each value.
    pub out: &'a mut Vec<u8>,
}

impl AppendCodebookBlocks<'_> {
    /// Appends what is behind the first `units` units of [`VALUES_PER_LOOK_UP`] values, by way of a
    /// buffer.
    #[inline(always)]
    fn append_behind(&mut self, mut units: usize) {
        while units * VALUES_PER_LOOK_UP < self.values {
            let mut buffer = [bf16::ZERO; BUFFER_VALUES];
            let n = BUFFER_VALUES.min(self.values - units * VALUES_PER_LOOK_UP);
            self.blocks.behind(units).run(&mut buffer[..n]);
            self.out.extend_from_slice(buffer[..n].as_bytes());
            units += BUFFER_VALUES / VALUES_PER_LOOK_UP;
        }
    }
}

impl Routine for AppendCodebookBlocks<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.append_behind(0);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        if !self.blocks.are_looked_up(Level::Avx2) {
            return self.run();
        }
        let units = self.values / VALUES_PER_LOOK_UP;
        for values in self.blocks.look_up::<bf16>(avx2).take(units) {
            self.out.extend_from_slice(values.as_bytes());
        }
        self.append_behind(units);
    }
}
