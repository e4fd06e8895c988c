//! What bodies that are generic over levels do in registers where the CPU can, and in memory
//! elsewhere: look-ups and transpositions.

use super::{Flat, zip};
use zerocopy::{FromBytes, IntoBytes};

use super::LANES;
use crate::element::Element;

/// How a body that is generic over levels looks up entries of small tables. A value of it is proof
/// that the CPU can.
///
/// A table of terms has one for each of up to eight codes. Without tables, searches of ggml's IQ
/// types take three to five times as long as with the instruction for look-ups, and twice as long
/// as with look-ups in memory. It is the whole loop that has a body of its own: LLVM takes apart
/// the lanes of sums between single look-ups.
#[cfg_attr(not(feature = "lethe"), allow(dead_code))]
pub(crate) trait LookUp: Transpose {
    /// Each of the packed codes picks a term of every table, by its `BITS` bits that belong to the
    /// table, the first lowest. Returns the first of those with the least sum of terms, which are
    /// added in the order of the tables. A table of fewer than eight terms repeats them. A sum that
    /// is NaN is passed over.
    fn first_least<const BITS: usize, const N: usize>(
        self,
        tables: &[[f32; 8]; N],
        codes: PackedCodes<'_>,
    ) -> u16;

    /// The entry of `table` at each of `codes`, which are below 16.
    fn pick<E: Element>(self, table: &[E; 16], codes: &[u8], out: &mut [E]);
}

/// Codes whose sums are computed together at most.
pub(crate) const CODES_PER_SUM: usize = 16;

/// Packed codes, the last chunk filled with the last of them, which changes nothing: of equal sums
/// the first is taken.
#[derive(Clone, Copy)]
pub(crate) struct PackedCodes<'a> {
    pub(crate) chunks: &'a [[u16; CODES_PER_SUM]],
    /// Their number without those that fill the last chunk.
    pub(crate) len: usize,
}

impl<'a> PackedCodes<'a> {
    /// The chunks of one code for each lane that are not filled alone.
    #[inline(always)]
    pub(super) fn by_lanes(self) -> &'a [[u16; LANES]] {
        &self.chunks.flat().as_chunks().0[..self.len.div_ceil(LANES)]
    }
}

/// In each lane the least of some sums, and where it is first.
pub(super) struct LeastOfLanes {
    pub(super) least: [f32; LANES],
    pub(super) at: [u32; LANES],
}

impl LeastOfLanes {
    /// The position of the first of all sums that is the least.
    #[inline(always)]
    pub(super) fn first(&self) -> usize {
        let least = smallest(self.least);
        let mut positions = [u32::MAX; LANES];
        for (l, position) in positions.iter_mut().enumerate() {
            if self.least[l] == least {
                *position = self.at[l] * LANES as u32 + l as u32;
            }
        }
        smallest(positions) as usize
    }
}

/// The smallest of all lanes.
#[inline(always)]
fn smallest<T: Copy + PartialOrd>(mut lanes: [T; LANES]) -> T {
    for half in [4, 2, 1] {
        for l in 0..half {
            lanes[l] = if lanes[l + half] < lanes[l] {
                lanes[l + half]
            } else {
                lanes[l]
            };
        }
    }
    lanes[0]
}

/// A number of four bytes.
pub(crate) trait Word: Copy + FromBytes + IntoBytes {}

impl Word for f32 {}

impl Word for i32 {}

impl Word for u32 {}

/// Bytes of a line that are transposed together.
pub(crate) const LINE: usize = 32;

/// How a body that is generic over levels transposes. LLVM keeps every number of eight bytes in a
/// register of its own, and loads the columns of a square value by value.
pub(crate) trait Transpose: Copy {
    /// The bytes of each column of eight lines, those of the first line lowest.
    fn transpose(self, lines: [&[u8; LINE]; 8]) -> [u64; LINE];

    /// The columns of a square.
    fn columns<T: Word>(self, rows: [[T; LANES]; LANES]) -> [[T; LANES]; LANES];
}

impl Transpose for InMemory {
    /// Eight bytes of eight lines at a time: each is a number of 64 bits, and halves, quarters and
    /// eighths of two numbers change places.
    #[inline(always)]
    fn transpose(self, lines: [&[u8; LINE]; 8]) -> [u64; LINE] {
        let mut columns = [0; LINE];
        for (left, columns) in columns.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            for (number, line) in zip(&mut columns[..], lines) {
                *number = u64::from_le_bytes(line.as_chunks().0[left]);
            }
            for (distance, mask) in [(4, !0 >> 32), (2, 0xffff_0000_ffff), (1, 0xff_00ff_00ff_00ff)]
            {
                for r in (0..8).filter(|r| r & distance == 0) {
                    let (upper, lower) = (columns[r], columns[r + distance]);
                    let swapped = (upper >> (distance * 8) ^ lower) & mask;
                    columns[r] = upper ^ swapped << (distance * 8);
                    columns[r + distance] = lower ^ swapped;
                }
            }
        }
        columns
    }

    #[inline(always)]
    fn columns<T: Word>(self, rows: [[T; LANES]; LANES]) -> [[T; LANES]; LANES] {
        let mut columns = rows;
        for (c, column) in columns.iter_mut().enumerate() {
            for (value, row) in zip(&mut column[..], &rows) {
                *value = row[c];
            }
        }
        columns
    }
}

/// Codes that are looked up together: those of a vector of AVX2.
pub(crate) const CODES_PER_LOOK_UP: usize = 32;

/// Look-ups in memory, at every level.
#[cfg_attr(not(feature = "lethe"), allow(dead_code))]
#[derive(Clone, Copy)]
pub(crate) struct InMemory;

impl LookUp for InMemory {
    #[inline(always)]
    fn first_least<const BITS: usize, const N: usize>(
        self,
        tables: &[[f32; 8]; N],
        codes: PackedCodes<'_>,
    ) -> u16 {
        let mut lanes = LeastOfLanes { least: [f32::MAX; LANES], at: [0; LANES] };
        for (number, codes) in codes.by_lanes().iter().enumerate() {
            // Table by table: the sums of the lanes do not wait for each other.
            let mut sums = [0.0; LANES];
            for (i, table) in tables.iter().enumerate() {
                for (sum, &code) in zip(&mut sums[..], codes) {
                    *sum += table[usize::from(code >> (BITS * i)) & 7];
                }
            }
            for ((least, at), sum) in zip(zip(&mut lanes.least[..], &mut lanes.at), sums) {
                let better = sum < *least;
                *least = if better { sum } else { *least };
                *at = if better { number as u32 } else { *at };
            }
        }
        codes.chunks.flat()[lanes.first()]
    }

    #[inline(always)]
    fn pick<E: Element>(self, table: &[E; 16], codes: &[u8], out: &mut [E]) {
        for (out, &code) in zip(&mut out[..], codes) {
            *out = table[usize::from(code) & 15];
        }
    }
}
