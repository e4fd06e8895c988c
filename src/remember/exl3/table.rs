//! Tables of embeddings that exllamav3 has quantized row by row (`--embed_bits`).
//!
//! | tensor | contents |
//! |---|---|
//! | `P.trellis` I16 `[rows, groups * (1 + 16 * bits)]` | for each 256 values of a row a scale and a stream |
//! | `P.signs` F16 `[groups, 256]` | factors of the values of a row |
//!
//! Rows are padded to multiples of 256; `hidden_size` of `config.json` tells how long they are.

use std::ops::Range;

use crate::element::Out;
use crate::model::Tensor;
use crate::remember::kernels::exl3::{MAX_BITS, RING, RingRows, ring_bytes};
use crate::remember::seam::{
    Buffers, Decode, Floats, Grid, Group, Index, QuantScheme, TensorRole, Tile, wrong,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

/// The table whose rings are `t`; `None` without signs.
///
/// # Errors
/// The shapes do not fit each other, or the width of the model.
pub(super) fn claim_table<'m>(
    t: &Tensor<'m>,
    base: &str,
    all: &Index<'m>,
) -> Result<Option<Group<'m>>> {
    let (&[rows, words], Some(signs)) = (t.shape(), all.at(base, "signs")) else {
        return Ok(None);
    };
    let &[groups, RING] = signs.shape() else {
        return Err(wrong(&signs, "the signs of a table are [groups, 256]"));
    };
    let bits = words
        .checked_div(groups)
        .filter(|each| each * groups == words && each % 16 == 1)
        .map(|each| each / 16)
        .filter(|bits| (1..=MAX_BITS).contains(bits) && t.dtype() == Dtype::I16);
    let Some(bits) = bits else {
        let what = format!(
            "it is no I16 of {groups} rings a row, as its `{}` {:?} are",
            signs.name(),
            signs.shape()
        );
        return Err(wrong(t, what));
    };
    let padded = signs.elements();
    let cols = all.config.hidden_size().unwrap_or(padded);
    if cols.div_ceil(RING) != groups {
        let what = format!("its rows have {groups} rings of 256, and `hidden_size` is {cols}");
        return Err(wrong(t, what));
    }
    let table =
        Exl3Table { rings: *t, bits, signs: Floats::ieee(&signs)?, padded, shape: [rows, cols] };
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, signs)];
    let scheme = QuantScheme::Exl3 {
        // At most 8.
        bits: bits as u8,
        has_half_bit: false,
    };
    let name = format!("{base}weight");
    let group = Group::new(name, vec![rows, cols], scheme, parts, Box::new(table));
    Ok(Some(group))
}

/// The decoder of a table.
struct Exl3Table<'m> {
    rings: Tensor<'m>,
    bits: usize,
    signs: Floats<'m>,
    /// Values of the rings of a row.
    padded: usize,
    shape: [usize; 2],
}

impl Exl3Table<'_> {
    fn row_bytes(&self) -> usize {
        self.padded / RING * ring_bytes(self.bits)
    }
}

impl Decode for Exl3Table<'_> {
    fn grid(&self) -> Grid {
        let [rows, cols] = self.shape;
        Grid {
            rows,
            cols,
            row_align: 1,
            // Whole rows.
            col_align: cols.max(1),
            load_bits: (self.row_bytes() * 8) as f64 / cols.max(1) as f64,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { bytes, staging, factors, .. } = buffers;
        let row_bytes = self.row_bytes();
        bytes.load(&self.rings.part(), row_bytes, tile.rows.clone(), 0..row_bytes)?;
        factors.clear();
        // One row of all signs.
        self.signs
            .extend(self.padded, 0..1, 0..self.padded, staging, factors)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let kernel = RingRows {
            rings: &buffers.bytes,
            bits: self.bits,
            first: rows.start - tile.rows.start,
            cols: tile.cols.len(),
            signs: &buffers.factors,
        };
        dispatch(level, &kernel, out);
    }
}
