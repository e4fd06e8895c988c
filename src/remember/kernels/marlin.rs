//! Tiles of Marlin, of QQQ, which descends from it, and of marlin-24: codes of four bits in the
//! order in which tensor cores take them. They are unpacked to rows, a byte a code.
//!
//! A tile of 16 inputs × 64 outputs is 128 adjacent words, in the order in which the threads of a
//! warp load them: 32 lanes with four words each. Four lanes have the inputs of the same outputs. A
//! word has eight codes: four inputs of an output, and of another.

mod sparse;

pub(crate) use self::sparse::SparsePlaces;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Flat, InMemory, LANES, Level, Routine, Transpose, copy, perform, zip};

/// Inputs, outputs and bytes of a tile.
pub(crate) const TILE_INPUTS: usize = 16;
pub(crate) const TILE_OUTPUTS: usize = 64;
pub(crate) const TILE_BYTES: usize = TILE_INPUTS * TILE_OUTPUTS / 2;

/// Words of a lane, and lanes that have the inputs of the same outputs.
const WORDS: usize = 4;
const SHARING: usize = 4;

/// Bytes of the lanes that have the same outputs. Two of these are unpacked together.
const LINE: usize = SHARING * WORDS * 4;

/// How the eight codes of a word lie in its nibbles, and which inputs they belong to. Codes 0 to 3
/// belong to one output, codes 4 to 7 to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TileOrder {
    /// Marlin's: two pairs of inputs, eight apart, whose codes become F16.
    Halves,
    /// QQQ's for scales of groups: four adjacent inputs, whose codes become F16 and then bytes.
    HalvesOfBytes,
    /// QQQ's for scales of channels: four adjacent inputs. A code is the upper half of a signed
    /// byte, and all other bits of that are zero.
    UpperHalvesOfBytes,
}

/// The same word of eight lines of four lanes.
type Words = [u32; LANES];

impl TileOrder {
    /// The first four codes of words, a byte each, or the other four. Those of
    /// [`UpperHalvesOfBytes`](Self::UpperHalvesOfBytes) are the upper halves of their bytes.
    #[inline(always)]
    fn codes(self, words: Words, is_second: bool) -> Words {
        let mut codes = words;
        match self {
            // Nibbles 0, 4, 1, 5, and 2, 6, 3, 7.
            Self::Halves | Self::HalvesOfBytes => {
                let shift = if is_second { 8 } else { 0 };
                for code in &mut codes {
                    let word = *code >> shift;
                    let (low, high) = (word & NIBBLES, word >> 4 & NIBBLES);
                    *code = (low | low >> 8) & 0xffff | (high << 16 | high << 8) & 0xffff_0000;
                }
            }
            // Nibbles 1, 3, 5, 7, and 0, 2, 4, 6. They keep their places in their bytes.
            Self::UpperHalvesOfBytes => {
                let shift = if is_second { 4 } else { 0 };
                for code in &mut codes {
                    *code = *code << shift & 0xf0f0_f0f0;
                }
            }
        }
        codes
    }

    /// The codes of outputs for the 16 inputs of a tile, of four lanes' four codes.
    #[inline(always)]
    fn inputs(self, lanes: [Words; SHARING]) -> [Words; SHARING] {
        match self {
            // Each lane has two adjacent inputs, and the two that are eight after them.
            Self::Halves => {
                let [a, b, c, d] = lanes;
                [lower(a, b), lower(c, d), upper(a, b), upper(c, d)]
            }
            Self::HalvesOfBytes | Self::UpperHalvesOfBytes => lanes,
        }
    }
}

/// The lower halves of two words.
#[inline(always)]
fn lower(a: Words, b: Words) -> Words {
    let mut halves = a;
    for (half, b) in zip(&mut halves[..], b) {
        *half = *half & 0xffff | b << 16;
    }
    halves
}

/// The upper halves of the words of `a`, and behind each that of the word of `b`.
#[inline(always)]
fn upper(a: Words, b: Words) -> Words {
    let mut halves = a;
    for (half, b) in zip(&mut halves[..], b) {
        *half = *half >> 16 | b & 0xffff_0000;
    }
    halves
}

/// A nibble of each half of a word.
const NIBBLES: u32 = 0x000f_000f;

/// Which outputs of a tile the codes of a word belong to: the sum of the distances of its line and
/// of itself. The word's second codes have another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputOrder {
    line: usize,
    word: usize,
    second: usize,
}

impl OutputOrder {
    /// Marlin's and QQQ's: word t belongs to the t-th 16 outputs.
    pub(crate) const DENSE: Self = Self { line: 1, word: 16, second: 8 };

    /// Of marlin-24: line l belongs to the l-th 8 outputs.
    pub(crate) const SPARSE: Self = Self { line: 8, word: 1, second: 4 };
}

/// Tiles that are unpacked.
pub(crate) struct MarlinTiles<'a> {
    pub order: TileOrder,
    pub outputs: OutputOrder,
    /// Rows of tiles, one for each 16 inputs, and the bytes of each.
    pub tiles: &'a [u8],
    pub pitch: usize,
    /// Codes, a row for each output, and how many there are in a row.
    pub rows: &'a mut [u8],
    pub width: usize,
    /// The column of the first input.
    pub left: usize,
}

impl MarlinTiles<'_> {
    pub(crate) fn unpack(mut self, level: Level) {
        perform(level, &mut self);
    }
}

impl Routine for MarlinTiles<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.unpack_in_order(InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.unpack_in_order(avx2);
    }
}

impl MarlinTiles<'_> {
    /// Unpacks by the loop of the tiles' order, which is a constant in it.
    #[inline(always)]
    fn unpack_in_order(&mut self, transpose: impl Transpose) {
        match self.order {
            TileOrder::Halves => self.unpack_tiles(transpose, TileOrder::Halves),
            TileOrder::HalvesOfBytes => self.unpack_tiles(transpose, TileOrder::HalvesOfBytes),
            TileOrder::UpperHalvesOfBytes => {
                self.unpack_tiles(transpose, TileOrder::UpperHalvesOfBytes);
            }
        }
    }

    /// Two tiles with adjacent inputs are unpacked side by side, two lines of each: 32 inputs of 16
    /// outputs.
    #[inline(always)]
    fn unpack_tiles(&mut self, transpose: impl Transpose, order: TileOrder) {
        const TWO: usize = 2 * LINE;
        let Self { tiles, pitch, .. } = *self;
        let outputs = self.rows.chunks_exact_mut(TILE_OUTPUTS * self.width.max(1));
        for (at, rows) in zip((0..pitch).step_by(TILE_BYTES), outputs) {
            for line in (0..TILE_BYTES / LINE).step_by(2) {
                let pairs = tiles.chunks(2 * pitch.max(1));
                for (left, pair) in zip((self.left..).step_by(2 * TILE_INPUTS), pairs) {
                    let lines = [0, pitch].map(|tile| {
                        let lines = pair.get(tile + at + line * LINE..).unwrap_or_default();
                        lines.first_chunk::<TWO>().unwrap_or(&[0; TWO])
                    });
                    let count = TILE_INPUTS * (pair.len() / pitch);
                    let codes = unpack_lines(transpose, order, lines);
                    for (i, codes) in codes.flat().iter().enumerate() {
                        let (second, i) = (i / LANES, i % LANES);
                        let output = (line + i / WORDS) * self.outputs.line
                            + i % WORDS * self.outputs.word
                            + second * self.outputs.second;
                        put(codes, &mut rows[output * self.width + left..], count);
                    }
                }
            }
        }
    }
}

/// Unpacks two lines of two tiles: the codes of each word's first output, line by line, and those
/// of each word's second.
#[inline(always)]
fn unpack_lines(
    transpose: impl Transpose,
    order: TileOrder,
    tiles: [&[u8; 2 * LINE]; 2],
) -> [[Words; LANES]; 2] {
    let mut squares = [[[0; LANES]; LANES]; 2];
    for (second, square) in squares.iter_mut().enumerate() {
        for (lines, four) in zip(tiles.iter(), square.as_chunks_mut::<SHARING>().0) {
            let mut lanes = [[0; LANES]; SHARING];
            for (lane, codes) in lanes.iter_mut().enumerate() {
                *codes = order.codes(words_of(lines, lane), second == 1);
            }
            *four = order.inputs(lanes);
        }
        *square = transpose.columns(*square);
    }
    squares
}

/// The words of a lane in two lines.
#[inline(always)]
fn words_of(lines: &[u8; 2 * LINE], lane: usize) -> Words {
    let mut words = [0; LANES];
    let bytes = lines.as_chunks::<4>().0;
    for (i, word) in words.iter_mut().enumerate() {
        *word = u32::from_le_bytes(bytes[i / WORDS * SHARING * WORDS + lane * WORDS + i % WORDS]);
    }
    words
}

/// Writes `count` codes, 32 or those of one tile.
#[inline(always)]
fn put(codes: &Words, row: &mut [u8], count: usize) {
    let mut bytes = [0; 2 * TILE_INPUTS];
    for (bytes, code) in zip(bytes.as_chunks_mut().0, codes) {
        *bytes = code.to_le_bytes();
    }
    match row.first_chunk_mut() {
        Some(row) if count == bytes.len() => *row = bytes,
        _ => copy(&bytes[..count], &mut row[..count]),
    }
}
