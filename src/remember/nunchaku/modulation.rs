//! The order of outputs of a modulation: nunchaku stores the first values of all vectors, then the
//! second ones, …; a linear layer of diffusers has one vector after the other.
//!
//! Source: nunchaku `models/normalization.py`, which views the outputs as `[-1, 6]`, and has the 1
//! of `1 + scale` in the bias.

use std::ops::Range;

use crate::Result;
use crate::remember::awq::Quads;
use crate::remember::seam::grouped::Unpack;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Floats, Tile};

/// Where the outputs of a modulation are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModulationOrder {
    pub vectors: usize,
    /// Values of a vector.
    pub len: usize,
}

impl ModulationOrder {
    fn stored(self, output: usize) -> usize {
        output % self.len * self.vectors + output / self.len
    }

    /// Calls `see` for each vector that `outputs` touch, with its number and the stored places from
    /// its first output to its last. Every `vectors`-th of these belongs to it.
    fn each_vector(
        self,
        outputs: Range<usize>,
        mut see: impl FnMut(usize, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut output = outputs.start;
        while output < outputs.end {
            let vector = output / self.len;
            let end = outputs.end.min((vector + 1) * self.len);
            see(vector, self.stored(output)..self.stored(end - 1) + 1)?;
            output = end;
        }
        Ok(())
    }

    /// What is added to the biases of a vector: 1 if it is one of scales, which are the second and
    /// the last but one.
    fn addend(self, vector: usize) -> f32 {
        let is_scale = vector == 1 || vector + 2 == self.vectors;
        f32::from(u8::from(is_scale))
    }
}

/// Codes of a modulation, a vector after the other.
pub(super) struct ModulationCodes<'m> {
    pub stored: Quads<'m>,
    pub order: ModulationOrder,
}

impl Unpack for ModulationCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let width = tile.cols.len();
        out.resize(tile.values(), 0);
        let outputs = tile.rows.clone().map(|output| self.order.stored(output));
        for (row, codes) in outputs.zip(out.chunks_exact_mut(width.max(1))) {
            self.stored.unpack_row(row, &tile.cols, staging, codes)?;
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (1, self.stored.align().1)
    }
}

/// Scales of a modulation, a vector after the other. `stored` has a row for each output.
pub(super) struct ModulationScales<'m> {
    pub stored: Box<dyn ScaleMatrix + 'm>,
    pub order: ModulationOrder,
}

impl ScaleMatrix for ModulationScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut all = Vec::new();
        self.order.each_vector(rows, |_, places| {
            all.clear();
            self.stored
                .extend(places, cols.clone(), staging, &mut all)?;
            let rows = all.chunks(cols.len().max(1)).step_by(self.order.vectors);
            rows.for_each(|row| out.extend(row));
            Ok(())
        })
    }
}

/// The bias of a modulation as diffusers has it, as a row.
pub(super) struct ModulationBias<'m> {
    pub stored: Floats<'m>,
    pub order: ModulationOrder,
}

impl ScaleMatrix for ModulationBias<'_> {
    fn extend(
        &self,
        _rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut all = Vec::new();
        self.order.each_vector(cols, |vector, places| {
            all.clear();
            self.stored.extend(1, places, 0..1, staging, &mut all)?;
            let addend = self.order.addend(vector);
            let values = all.iter().step_by(self.order.vectors);
            out.extend(values.map(|x| x - addend));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every output is stored once, and pieces of all outputs touch the places of theirs.
    #[test]
    fn order_of_outputs() {
        let order = ModulationOrder { vectors: 6, len: 5 };
        let mut places: Vec<usize> = (0..30).map(|output| order.stored(output)).collect();
        assert_eq!(places[..7], [0, 6, 12, 18, 24, 1, 7]);
        for range in [0..30, 3..4, 4..11, 29..30, 7..7] {
            let mut found = Vec::new();
            let see = |vector: usize, places: Range<usize>| {
                found.extend(places.step_by(6).map(|place| (vector, place)));
                Ok(())
            };
            order.each_vector(range.clone(), see).unwrap();
            let want: Vec<_> = range.map(|output| (output / 5, places[output])).collect();
            assert_eq!(found, want);
        }
        places.sort_unstable();
        assert!(places.into_iter().eq(0..30));
        let addends: Vec<f32> = (0..6).map(|vector| order.addend(vector)).collect();
        assert_eq!(addends, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
        let addends = [0, 1, 2].map(|n| ModulationOrder { vectors: 3, len: 1 }.addend(n));
        assert_eq!(addends, [0.0, 1.0, 0.0]);
    }
}
