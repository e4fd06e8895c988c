//! The bias of a layer whose quantized part sees its input with a constant added: `b + c · Σ_k w[n,
//! k] / s[k]`.

use std::ops::Range;

use super::assembled::{decode_values, load_values};
use crate::Result;
use crate::element::Out;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::Level;

/// The decoder of the bias that such a layer has if its input is taken as it is.
pub(crate) struct ShiftedBias<'m> {
    /// w.
    pub quantized: Box<dyn Decode + 'm>,
    /// s, by which the layer divides its input: a row.
    pub divisors: Box<dyn ScaleMatrix + 'm>,
    /// b, as it is stored: a row.
    pub bias: Box<dyn ScaleMatrix + 'm>,
}

/// c of nunchaku's kernels, and of ComfyUI's, which are made from them: with it no value behind a
/// GELU is negative.
const GELU_SHIFT: f64 = 0.171875;

impl ShiftedBias<'_> {
    /// The sums are in F64, and rounded once with the bias.
    fn fill(&self, tile: &Tile, values: &mut [f32], buffers: &mut Buffers) -> Result<()> {
        let cols = self.quantized.grid().cols;
        let (mut divisors, mut bias) = (Vec::new(), Vec::new());
        let staging = &mut buffers.staging;
        self.divisors
            .extend(0..1, 0..cols, staging, &mut divisors)?;
        self.bias
            .extend(0..1, tile.rows.clone(), staging, &mut bias)?;
        let weights = Tile { rows: tile.rows.clone(), cols: 0..cols };
        self.quantized.load(&weights, buffers)?;
        let mut row = vec![0.0; cols];
        for ((n, value), bias) in tile.rows.clone().zip(values).zip(bias) {
            let out = Out::F32(&mut row);
            self.quantized
                .decode(&weights, n..n + 1, buffers, Level::default(), out);
            let terms = row.iter().zip(&divisors);
            let sum: f64 = terms.map(|(&w, &s)| f64::from(w) / f64::from(s)).sum();
            *value = (f64::from(bias) + GELU_SHIFT * sum) as f32;
        }
        Ok(())
    }
}

impl Decode for ShiftedBias<'_> {
    fn grid(&self) -> Grid {
        let weight = self.quantized.grid();
        Grid {
            rows: weight.rows,
            cols: 1,
            row_align: weight.row_align,
            col_align: 1,
            // A row of the weight is loaded for each value.
            load_bits: weight.load_bits * weight.cols as f64 + 32.0,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        load_values(tile, buffers, |values, buffers, _| self.fill(tile, values, buffers))
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        decode_values(tile, rows, buffers, level, out);
    }
}
