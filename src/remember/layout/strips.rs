//! Values of one decoder that are changed by a kernel before they are rounded and written.

use std::cell::Cell;
use std::ops::Range;

use crate::element::Out;
use crate::remember::seam::{Buffers, Decode, Tile};
use crate::simd::Level;

/// Values of a strip that is changed value by value: 64 KiB, so that they stay in the second-level
/// cache until they are read again.
pub(super) const STRIP: usize = 16 << 10;

thread_local! {
    /// The values of a strip. A new buffer for each slab of output would be filled with zeros each
    /// time.
    static VALUES: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// A tile that is loaded, and some of its rows.
pub(super) struct LoadedRows<'a> {
    pub tile: &'a Tile,
    pub rows: Range<usize>,
    pub buffers: &'a Buffers,
    pub level: Level,
}

impl LoadedRows<'_> {
    /// Decodes the rows with `decoder` to F32, in strips of `strip` values, or of a row if that is
    /// longer. `finish` gets a strip's values, the place of the first of them in the tile, and
    /// where they go.
    pub(super) fn each_strip(
        self,
        decoder: &dyn Decode,
        strip: usize,
        mut out: Out<'_>,
        finish: impl Fn(&[f32], usize, Out<'_>),
    ) {
        let Self { tile, rows, buffers, level } = self;
        let width = tile.cols.len();
        let height = (strip / width.max(1)).clamp(1, rows.len().max(1));
        // Taken, since `decoder` may have strips of its own.
        let mut buffer = VALUES.try_with(Cell::take).unwrap_or_default();
        if buffer.len() < height * width {
            buffer.resize(height * width, 0.0);
        }
        for first in rows.clone().step_by(height) {
            let strip = first..(first + height).min(rows.end);
            let values = &mut buffer[..strip.len() * width];
            decoder.decode(tile, strip, buffers, level, Out::F32(values));
            let (now, rest) = out.split_at(values.len());
            finish(values, (first - tile.rows.start) * width, now);
            out = rest;
        }
        // Where the thread ends, no buffer is kept.
        let _ = VALUES.try_with(|kept| kept.set(buffer));
    }
}
