//! Scales of one byte in the order in which matrix units want them: tiles of 128 rows and four columns, 512 bytes each,
//! row of tiles by row of tiles. In a tile, row `r` and column `c` are byte `r % 32 * 16 + r / 32 * 4 + c`. Both
//! dimensions are padded to whole tiles.
//!
//! Layout: cuBLAS, "1D block scaling factors layout"; comfy-kitchen `float_utils.py` (`to_blocked`, `from_blocked`).

use std::ops::Range;

use super::numbers::Numbers;
use super::{read, wrong};
use crate::model::{Part, Tensor};
use crate::remember::fp8::{Code, E4M3, f32_from_exponent};
use crate::{Dtype, Result};

const ROWS: usize = 128;
const COLS: usize = 4;

/// A matrix of such scales.
pub(super) struct Tiled<'m> {
    part: Part<'m>,
    /// Tiles in a row of tiles.
    tiles: usize,
    widen: fn(u8) -> f32,
}

impl<'m> Tiled<'m> {
    /// `scale`, E4M3 or exponents, as the scales of `t`: `rows` × `cols` without the padding.
    pub(super) fn new(t: &Tensor<'_>, scale: &Tensor<'m>, rows: usize, cols: usize) -> Result<Self> {
        let padded = rows.checked_next_multiple_of(ROWS).zip(cols.checked_next_multiple_of(COLS));
        if padded.is_none_or(|(rows, cols)| scale.shape() != [rows, cols]) {
            let (name, shape) = (scale.name(), scale.shape());
            let what = format!("its scales `{name}` {shape:?} are not {rows} x {cols} in tiles of {ROWS} x {COLS}");
            return Err(wrong(t, what));
        }
        let widen = match scale.dtype() {
            Dtype::F8E4M3 => E4M3::widen,
            Dtype::F8E8M0 | Dtype::U8 => f32_or_zero,
            _ => return Err(wrong(scale, "scales in tiles are F8_E4M3 or F8_E8M0")),
        };
        Ok(Self { part: scale.part(), tiles: cols.div_ceil(COLS), widen })
    }
}

/// The power of two of an exponent byte, of which the smallest is zero (comfy-kitchen `e8m0_to_f32`).
fn f32_or_zero(code: u8) -> f32 {
    if code == 0 { 0.0 } else { f32_from_exponent(code) }
}

impl Numbers for Tiled<'_> {
    fn extend(&self, rows: Range<usize>, cols: Range<usize>, staging: &mut Vec<u8>, out: &mut Vec<f32>) -> Result<()> {
        let tiles = cols.start / COLS..cols.end.div_ceil(COLS);
        let bytes = tiles.start * ROWS * COLS..tiles.end * ROWS * COLS;
        let mut row = rows.start;
        while row < rows.end {
            let (line, first) = (row / ROWS, row % ROWS);
            read(&self.part, self.tiles * ROWS * COLS, line..line + 1, bytes.clone(), staging)?;
            let last = ROWS.min(first + rows.end - row);
            for r in first..last {
                let in_tile = r % 32 * 16 + r / 32 * COLS;
                let byte = |c: usize| staging[(c / COLS - tiles.start) * ROWS * COLS + in_tile + c % COLS];
                out.extend(cols.clone().map(|c| (self.widen)(byte(c))));
            }
            row += last - first;
        }
        Ok(())
    }
}
