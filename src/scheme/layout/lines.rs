//! Codes of a byte each, and Quark's of four bits, eight in a word, in order or interleaved. The stored tensor is read by its
//! rows, called lines here. A line is a row of the weight, or a column if the weight is stored transposed.

use std::ops::Range;

use crate::Result;
use crate::containers::model::{Part, Tensor};
use crate::kernels::remember::grouped::{CodeValue, Int};
use crate::scheme::seam::grouped::Unpack;
use crate::scheme::seam::numbers::ScaleMatrix;
use crate::scheme::seam::{StoredRows, Tile, read};

/// Codes in a word of four-bit codes.
const PER_WORD: usize = 8;

/// Nibble of each code of a word with `pack_method: reorder`, where nibbles 0 to 7 hold codes 0, 2, 4, 6, 1, 3, 5, 7.
const REORDERED: [usize; PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Lines that are read and transposed at once: the rows of a tile then get pieces of 32 codes, half a cache line.
const STRIP: usize = 32;

/// A stored tensor of codes, read line by line.
#[derive(Clone, Copy)]
pub(crate) struct CodeLines<'m> {
    part: Part<'m>,
    /// Nibble of each code of a word; `None`: a code is whole bytes.
    nibbles: Option<[usize; PER_WORD]>,
    /// Bytes of a code that is read.
    code_bytes: usize,
    /// Codes in a line.
    width: usize,
}

impl<'m> CodeLines<'m> {
    /// Codes of `bits` (four, eight or sixteen) bits, `width` of them in a line of `t`. For four bits `width` is a multiple of
    /// eight.
    pub(crate) fn new(t: &Tensor<'m>, bits: usize, is_reordered: bool, width: usize) -> Self {
        let order = if is_reordered {
            REORDERED
        } else {
            [0, 1, 2, 3, 4, 5, 6, 7]
        };
        Self {
            part: t.part(),
            nibbles: (bits == 4).then_some(order),
            code_bytes: bits.div_ceil(8),
            width,
        }
    }

    pub(crate) fn line_bytes(&self) -> usize {
        if self.nibbles.is_some() {
            self.width / 2
        } else {
            self.width * self.code_bytes
        }
    }

    /// Replaces `codes` with the codes at positions `at` of each of `lines`.
    fn read_codes(
        &self,
        lines: Range<usize>,
        at: Range<usize>,
        staging: &mut Vec<u8>,
        codes: &mut Vec<u8>,
    ) -> Result<()> {
        let Some(nibbles) = self.nibbles else {
            let at = at.start * self.code_bytes..at.end * self.code_bytes;
            return read(&self.part, self.line_bytes(), lines, at, codes);
        };
        let words = at.start / PER_WORD..at.end.div_ceil(PER_WORD);
        read(
            &self.part,
            self.width / 2,
            lines,
            words.start * 4..words.end * 4,
            staging,
        )?;
        codes.clear();
        // Tiles start at multiples of PER_WORD, but rectangles of zero points need not.
        let skipped = at.start % PER_WORD;
        for line in staging.chunks_exact(words.len().max(1) * 4) {
            let words = line
                .as_chunks()
                .0
                .iter()
                .map(|&word| u32::from_le_bytes(word));
            let all = words.flat_map(|word| {
                nibbles
                    .into_iter()
                    .map(move |nibble| (word >> (nibble * 4) & 15) as u8)
            });
            codes.extend(all.skip(skipped).take(at.len()));
        }
        Ok(())
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
        (1, PER_WORD)
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
        // Eight rows lie in a word, so tiles take whole words.
        (PER_WORD, 1)
    }

    fn transposed(&self) -> Option<StoredRows> {
        let bits = match self.0.nibbles {
            Some(_) => 4,
            None => 8 * self.0.code_bytes,
        };
        Some(StoredRows::of_one(bits, 1))
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
