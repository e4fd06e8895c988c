//! Codes of whole bytes, and Quark's and MLC's, of which several lie in a word or in bytes, in order or not.
//! The stored tensor is read by its rows, called lines here. A line is a row of the weight, or a
//! column if the weight is stored transposed.

use std::ops::Range;

use crate::Result;
use crate::error::InTensor;
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::{CodeValue, Int};
use crate::remember::seam::grouped::Unpack;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{StoredRows, Tile, read};

/// Most codes of a unit.
const MAX_CODES: usize = 10;

/// How the codes of a line are packed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LinePacking {
    /// A code is so many bytes.
    Bytes(usize),
    /// Eight codes of four bits in a word, in order or interleaved.
    Nibbles { is_reordered: bool },
    /// Four codes of two bits in a byte, the first one in the highest bits.
    Crumbs,
    /// Eight codes of three bits in three bytes, the first one in the lowest bits.
    Octets,
    /// Ten codes of three bits in a word, the first one in the lowest bits.
    Tens,
    /// A code in a word, which it is as an integer.
    Words,
}

/// The bytes whose codes are taken out together.
#[derive(Clone, Copy)]
struct Unit {
    bytes: usize,
    bits: u32,
    codes: usize,
    /// The place of each code, in codes from the lowest bits.
    places: [u32; MAX_CODES],
}

const IN_ORDER: [u32; MAX_CODES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

/// Nibble of each code of a word with `pack_method: reorder`, where nibbles 0 to 7 hold codes 0, 2,
/// 4, 6, 1, 3, 5, 7.
const REORDERED: [u32; MAX_CODES] = [0, 4, 1, 5, 2, 6, 3, 7, 0, 0];

const FIRST_HIGHEST: [u32; MAX_CODES] = [3, 2, 1, 0, 0, 0, 0, 0, 0, 0];

impl LinePacking {
    fn unit(self) -> Option<Unit> {
        let (bytes, bits, codes, places) = match self {
            Self::Bytes(_) => return None,
            Self::Nibbles { is_reordered } => {
                let places = if is_reordered { REORDERED } else { IN_ORDER };
                (4, 4, 8, places)
            }
            Self::Crumbs => (1, 2, 4, FIRST_HIGHEST),
            Self::Octets => (3, 3, 8, IN_ORDER),
            Self::Tens => (4, 3, 10, IN_ORDER),
            Self::Words => (4, 8, 1, IN_ORDER),
        };
        Some(Unit { bytes, bits, codes, places })
    }

    /// Bytes and codes of the smallest piece of a line.
    fn piece(self) -> [usize; 2] {
        match (self, self.unit()) {
            (_, Some(unit)) => [unit.bytes, unit.codes],
            (Self::Bytes(n), None) => [n, 1],
            _ => [1, 1],
        }
    }

    /// The codes in `bytes` bytes; `None` if that is a part of a unit, or too many.
    pub(crate) fn codes_in(self, bytes: usize) -> Option<usize> {
        let [size, codes] = self.piece();
        bytes
            .is_multiple_of(size)
            .then(|| (bytes / size).checked_mul(codes))
            .flatten()
    }

    /// The bytes of `codes` codes; `None` if that is a part of a unit, or too many.
    pub(crate) fn bytes_of(self, codes: usize) -> Option<usize> {
        let [size, each] = self.piece();
        codes
            .is_multiple_of(each)
            .then(|| (codes / each).checked_mul(size))
            .flatten()
    }

    /// Bits that a code takes where it is stored.
    fn stored_bits(self) -> usize {
        let [bytes, codes] = self.piece();
        bytes * 8 / codes
    }
}

/// Lines that are read and transposed at once: the rows of a tile then get pieces of 32 codes, half
/// a cache line.
const STRIP: usize = 32;

/// A stored tensor of codes, read line by line.
#[derive(Clone, Copy)]
pub(crate) struct CodeLines<'m> {
    part: Part<'m>,
    packing: LinePacking,
    /// Bytes of a code that is read.
    code_bytes: usize,
    /// Codes in a line.
    width: usize,
}

impl<'m> CodeLines<'m> {
    /// Codes of `t`, `width` of them in a line, which are whole units.
    pub(crate) fn new(t: &Tensor<'m>, packing: LinePacking, width: usize) -> Self {
        let code_bytes = match packing {
            LinePacking::Bytes(n) => n,
            _ => 1,
        };
        Self { part: t.part(), packing, code_bytes, width }
    }

    pub(crate) fn line_bytes(&self) -> usize {
        let [bytes, codes] = self.packing.piece();
        self.width / codes * bytes
    }

    /// Replaces `codes` with the codes at positions `at` of each of `lines`.
    ///
    /// # Errors
    /// A read fails, or a word is no code.
    fn read_codes(
        &self,
        lines: Range<usize>,
        at: Range<usize>,
        staging: &mut Vec<u8>,
        codes: &mut Vec<u8>,
    ) -> Result<()> {
        let Some(unit) = self.packing.unit() else {
            let at = at.start * self.code_bytes..at.end * self.code_bytes;
            return read(&self.part, self.line_bytes(), lines, at, codes);
        };
        let units = at.start / unit.codes..at.end.div_ceil(unit.codes);
        let bytes = units.start * unit.bytes..units.end * unit.bytes;
        read(&self.part, self.line_bytes(), lines, bytes, staging)?;
        codes.clear();
        // Tiles start at multiples of the unit's codes, but rectangles of zero points need not.
        let skipped = at.start % unit.codes;
        let mask = (1u32 << unit.bits) - 1;
        for line in staging.chunks_exact(units.len().max(1) * unit.bytes) {
            let words = line.chunks_exact(unit.bytes).map(|bytes| {
                let mut word = [0; 4];
                word[..unit.bytes].copy_from_slice(bytes);
                u32::from_le_bytes(word)
            });
            let is_code = |word: u32| i32::from(word as i8) == word as i32;
            if self.packing == LinePacking::Words && !words.clone().all(is_code) {
                let what = format!("{}: a code is no small integer", InTensor(&self.part.name()));
                return Err(crate::AnamnesisError::parse(what));
            }
            let places = unit.places[..unit.codes].iter();
            let all = words.flat_map(|word| {
                let places = places.clone();
                places.map(move |place| (word >> (place * unit.bits) & mask) as u8)
            });
            codes.extend(all.skip(skipped).take(at.len()));
        }
        Ok(())
    }

    /// Multiple of positions at which tiles start.
    fn align(&self) -> usize {
        self.packing.unit().map_or(8, |unit| unit.codes)
    }
}

/// Codes of a weight whose rows are the lines.
pub(crate) struct CodeRows<'m>(pub CodeLines<'m>);

impl Unpack for CodeRows<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        self.0
            .read_codes(tile.rows.clone(), tile.cols.clone(), staging, out)
    }

    fn align(&self) -> (usize, usize) {
        (1, self.0.align())
    }
}

/// Codes of a weight whose columns are the lines.
pub(crate) struct TransposedCodes<'m>(pub CodeLines<'m>);

impl Unpack for TransposedCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        out.resize(tile.values() * self.0.code_bytes, 0);
        match self.0.code_bytes {
            2 => self.transpose::<2>(tile, staging, out.as_chunks_mut().0),
            _ => self.transpose::<1>(tile, staging, out.as_chunks_mut().0),
        }
    }

    fn align(&self) -> (usize, usize) {
        // Several rows lie in a unit, so tiles take whole units.
        (self.0.align(), 1)
    }

    fn transposed(&self) -> Option<StoredRows> {
        Some(StoredRows::of_one(self.0.packing.stored_bits(), 1))
    }
}

impl TransposedCodes<'_> {
    /// Fills `out` with the codes of `tile`, `BYTES` bytes each.
    fn transpose<const BYTES: usize>(
        &self,
        tile: &Tile,
        staging: &mut Vec<u8>,
        out: &mut [[u8; BYTES]],
    ) -> Result<()> {
        let (height, width) = (tile.rows.len(), tile.cols.len());
        let mut codes = Vec::new();
        for first in (0..width).step_by(STRIP) {
            let columns = first..(first + STRIP).min(width);
            let lines = tile.cols.start + columns.start..tile.cols.start + columns.end;
            self.0
                .read_codes(lines, tile.rows.clone(), staging, &mut codes)?;
            let codes = codes.as_chunks::<BYTES>().0;
            // `codes` is `[columns, height]`; every `height`-th code from r on is row r of the
            // strip.
            for (r, row) in out.chunks_exact_mut(width).enumerate() {
                let column = codes[r..].iter().step_by(height);
                row[columns.clone()]
                    .iter_mut()
                    .zip(column)
                    .for_each(|(out, &code)| *out = code);
            }
        }
        Ok(())
    }
}

/// Zero points that are stored transposed: a line has the zero points of one column of the grid.
pub(crate) struct LineZeroPoints<'m> {
    pub stored: CodeLines<'m>,
    pub int: Int,
}

impl ScaleMatrix for LineZeroPoints<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut codes = Vec::new();
        let height = rows.len();
        self.stored.read_codes(cols, rows, staging, &mut codes)?;
        for r in 0..height {
            out.extend(
                codes
                    .iter()
                    .skip(r)
                    .step_by(height)
                    .map(|&code| self.int.value(code)),
            );
        }
        Ok(())
    }
}
