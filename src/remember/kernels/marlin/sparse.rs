//! Codes of marlin-24 at their places: of each four inputs two have codes, and a nibble says which.

use crate::simd::{LANES, Level, Routine, perform, zip};

use super::TILE_OUTPUTS;

/// Inputs of a tile that are stored, and all of them.
const STORED: usize = 16;
const INPUTS: usize = 2 * STORED;

/// Bytes of the places of a tile: a number of 16 bits for each 16 inputs of an output.
const TILE_BYTES: usize = 2 * TILE_OUTPUTS * 2;

/// Codes that are put at their places.
pub(crate) struct SparsePlaces<'a> {
    /// Stored codes, a byte each, a row for each output, and how many there are in a row: 16 for
    /// each row of tiles.
    pub codes: &'a [u8],
    pub stored: usize,
    /// Places, for each row of tiles.
    pub places: &'a [u8],
    /// The code of inputs that have none.
    pub zero: u8,
    /// A row for each output, and how many codes there are in a row.
    pub rows: &'a mut [u8],
    pub width: usize,
    /// The column of the first input.
    pub left: usize,
    /// Whether all places are two different ones in order.
    pub are_ordered: bool,
}

impl SparsePlaces<'_> {
    /// Writes the rows. False if places are no two different ones in order.
    pub(crate) fn put(mut self, level: Level) -> bool {
        perform(level, &mut self);
        self.are_ordered
    }
}

impl Routine for SparsePlaces<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        let (width, stored) = (self.width.max(1), self.stored.max(1));
        let outputs = self.rows.len() / width;
        let pitch = (outputs * TILE_BYTES / TILE_OUTPUTS).max(1);
        let mut is_wrong = [0; LANES];
        let rows = self.rows.chunks_exact_mut(width);
        for (output, (row, codes)) in zip(rows, self.codes.chunks_exact(stored)).enumerate() {
            let tile = output / TILE_OUTPUTS * TILE_BYTES;
            let [low, high] = INDEXES[output % TILE_OUTPUTS].map(|index| tile + 2 * index);
            let inputs = row[self.left..].as_chunks_mut::<INPUTS>().0;
            let codes = codes.as_chunks::<STORED>().0.iter();
            for ((inputs, codes), places) in
                zip(zip(inputs, codes), self.places.chunks_exact(pitch))
            {
                let nibbles = [places[low], places[low + 1], places[high], places[high + 1]];
                put_tile(codes, u32::from_le_bytes(nibbles), self.zero, inputs, &mut is_wrong);
            }
        }
        self.are_ordered = is_wrong == [0; LANES];
    }
}

/// Puts the codes of an output in one tile at the places that eight nibbles say.
#[inline(always)]
fn put_tile(
    codes: &[u8; STORED],
    nibbles: u32,
    zero: u8,
    inputs: &mut [u8; INPUTS],
    is_wrong: &mut [u32; LANES],
) {
    let zeros = u32::from_le_bytes([zero; 4]);
    let mut fours = [0u32; LANES];
    let pairs = codes.as_chunks::<2>().0;
    for i in 0..LANES {
        let nibble = nibbles >> (4 * i);
        let (a, b) = (nibble & 3, nibble >> 2 & 3);
        let [first, second] = pairs[i];
        let (first, second) = (u32::from(first ^ zero), u32::from(second ^ zero));
        fours[i] = zeros ^ first.wrapping_shl(8 * a) ^ second.wrapping_shl(8 * b);
        is_wrong[i] |= u32::from(a >= b);
    }
    for (bytes, four) in zip(inputs.as_chunks_mut().0, fours) {
        *bytes = four.to_le_bytes();
    }
}

/// Indexes among the numbers of a tile of those for the two halves of the inputs of each output.
const INDEXES: [[usize; 2]; TILE_OUTPUTS] = {
    let mut indexes = [[0; 2]; TILE_OUTPUTS];
    let mut output = 0;
    while output < TILE_OUTPUTS {
        let row = output % 2 * 2 + output % 8 / 4 + output % 4 / 2 * 32 + output / 8 * 4;
        // In each two rows the number at the upper right and that at the lower left change places.
        indexes[output] = match row % 2 {
            0 => [row * 2, (row + 1) * 2],
            _ => [(row - 1) * 2 + 1, row * 2 + 1],
        };
        output += 1;
    }
    indexes
};
