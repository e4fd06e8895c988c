//! The stream of a tile of EXL3: bits of its values, and the states that end with them.

use super::{LANES, RUN, RUNS, TILE};
use crate::simd::zip;

/// Bits of a value at most.
pub(crate) const MAX_BITS: usize = 8;

/// Whole bits of a value at most, if every second value has one bit more.
const MAX_BITS_WITH_HALF: usize = 3;

/// Bits of a value: 1 to 8, or 1.5, 2.5 or 3.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitRate {
    pub bits: usize,
    /// Whether the second of each two values has one bit more.
    pub has_half: bool,
}

impl BitRate {
    /// Bits of the values of tiles of `words` words of 16 bits; `None` if the format has no such
    /// tiles.
    pub(crate) fn of_tile(words: usize) -> Option<Self> {
        let has_half = !words.is_multiple_of(TILE);
        let bits = words / TILE;
        let max = if has_half {
            MAX_BITS_WITH_HALF
        } else {
            MAX_BITS
        };
        let fits = words.is_multiple_of(TILE / 2) && (1..=max).contains(&bits);
        fits.then_some(Self { bits, has_half })
    }

    /// Bits of two values.
    pub(crate) fn of_two(self) -> usize {
        2 * self.bits + usize::from(self.has_half)
    }

    pub(crate) fn tile_bytes(self) -> usize {
        self.of_two() * TILE
    }

    /// Bits of the first `values` values of a stream.
    #[inline(always)]
    fn stream_bits(self, values: usize) -> usize {
        values * self.bits + usize::from(self.has_half) * (values / 2)
    }
}

/// The streams of two tiles: word i of each run, behind the last word before the run.
pub(super) struct Words([[u32; LANES]; 1 + MAX_BITS]);

impl Words {
    pub(super) const EMPTY: Self = Self([[0; LANES]; 1 + MAX_BITS]);

    #[inline(always)]
    pub(super) fn fill(&mut self, tiles: [&[u8]; 2], rate: BitRate) {
        if rate.has_half {
            return self.fill_halves(tiles, rate);
        }
        let (words, bits) = (&mut self.0, rate.bits);
        for (tile, first) in zip(tiles.iter(), [0, RUNS]) {
            let stored = tile.as_chunks::<4>().0;
            for (run, stored) in stored.chunks_exact(bits).enumerate() {
                for (words, stored) in zip(&mut words[1..], stored) {
                    words[first + run] = u32::from_le_bytes(*stored);
                }
            }
            // A stream is circular: the first states have bits of the last values.
            for run in 0..RUNS {
                words[0][first + run] = words[bits][first + (run + RUNS - 1) % RUNS];
            }
        }
    }

    /// Words of runs that have half a word more than whole ones. The last word of a run goes on
    /// with bits of the next.
    fn fill_halves(&mut self, tiles: [&[u8]; 2], rate: BitRate) {
        for (tile, first) in zip(tiles.iter(), [0, RUNS]) {
            let stored = tile.as_chunks::<4>().0;
            let word = |i: usize| u32::from_le_bytes(stored[i % stored.len()]);
            for run in 0..RUNS {
                // The half word at which the run's last word before it begins, one turn of the
                // stream later.
                let start = run * rate.stream_bits(RUN) / 16 + stored.len() * 2 - 2;
                let words = self.0.iter_mut().take(rate.bits + 2).enumerate();
                for (i, words) in words {
                    let at = start + 2 * i;
                    let (high, low) = (word(at / 2), word(at / 2 + 1));
                    words[first + run] = match at % 2 {
                        0 => high,
                        _ => high << 16 | low >> 16,
                    };
                }
            }
        }
    }

    /// The state of value `i` of each run.
    #[inline(always)]
    pub(super) fn states(&self, i: usize, rate: BitRate) -> [u32; LANES] {
        // Streams have the highest bits of a word first.
        let end = rate.stream_bits(i + 1);
        let last = end.div_ceil(32);
        let behind = last * 32 - end;
        let mut states = self.0[last];
        if behind <= 16 {
            for state in &mut states {
                *state = *state >> behind & 0xffff;
            }
        } else {
            for (state, before) in zip(&mut states[..], &self.0[last - 1]) {
                *state = (*state >> behind | before << (32 - behind)) & 0xffff;
            }
        }
        states
    }
}
