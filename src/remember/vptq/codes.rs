//! Packed codes, in the order of the stored columns, as vectors of the blocks of the weight.

use std::ops::Range;

use crate::model::Tensor;
use crate::remember::layout::vectors::VectorCodes;
use crate::remember::seam::{Tile, read, wrong};
use crate::simd::zip;
use crate::{Dtype, Result};

/// How codes are packed.
#[derive(Debug, Clone, Copy)]
pub(super) struct VptqPacking {
    pub groups: usize,
    /// Inputs of a group.
    pub inputs: usize,
    /// Vectors of a codebook, and of a second one: powers of two.
    pub entries: usize,
    pub residual: Option<usize>,
}

impl VptqPacking {
    /// Bits of a code with that of the second codebook.
    pub(super) fn bits(&self) -> usize {
        (self.entries.ilog2() + self.residual.map_or(0, usize::ilog2)) as usize
    }

    /// Vectors of a block.
    pub(super) fn terms(&self) -> usize {
        1 + usize::from(self.residual.is_some())
    }

    /// Vectors of all codebooks.
    fn vectors(&self) -> usize {
        self.groups * (self.entries + self.residual.unwrap_or(0))
    }
}

/// Inputs with a codebook of their own, which lie before the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct VptqOutliers<'m> {
    pub codes: Tensor<'m>,
    pub inputs: usize,
    /// Vectors of the codebook.
    pub entries: usize,
}

/// The codes of a layer.
pub(super) struct VptqCodes<'m> {
    pub tensor: Tensor<'m>,
    pub packing: VptqPacking,
    /// Values of a vector.
    pub vector: usize,
    /// Vectors of a column.
    pub blocks: usize,
    /// Inputs of the layer.
    pub cols: usize,
    pub outliers: Option<VptqOutliers<'m>>,
    /// The input of each stored column.
    pub order: Option<Tensor<'m>>,
}

impl VectorCodes for VptqCodes<'_> {
    fn load(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u32>) -> Result<()> {
        let rows = tile.rows.start / self.vector..tile.rows.end.div_ceil(self.vector);
        let (outliers, packing) = (self.outliers.as_ref(), self.packing);
        let terms = packing.terms();
        let first = outliers.map_or(0, |outliers| outliers.inputs);
        let places = self.places(staging)?;
        out.clear();
        out.resize(rows.len() * self.cols * terms, 0);
        if let Some(outliers) = outliers {
            let stored = integers(&outliers.codes, outliers.inputs, rows.clone(), staging)?;
            let beyond = stored.iter().find(|&&code| code >= outliers.entries as u64);
            if let Some(code) = beyond {
                let what = format!("code {} of {} vectors", *code as i64, outliers.entries);
                return Err(wrong(&outliers.codes, what));
            }
            for (row, stored) in
                zip(out.chunks_exact_mut(self.cols * terms), stored.chunks_exact(first.max(1)))
            {
                for (&code, &place) in zip(stored.iter(), &places) {
                    let target = &mut row[place as usize * terms..][..terms];
                    target[0] = (packing.vectors() as u64 + code) as u32;
                    // The vector behind the last is zero.
                    if let Some(second) = target.get_mut(1) {
                        *second = (packing.vectors() + outliers.entries) as u32;
                    }
                }
            }
        }
        for group in 0..packing.groups {
            // The last group may have codes beyond the last input.
            let places = &places[(first + group * packing.inputs).min(self.cols)..];
            let bytes = (packing.inputs * packing.bits()).div_ceil(32) * 4;
            let stored = group * self.blocks + rows.start..group * self.blocks + rows.end;
            read(&self.tensor.part(), bytes, stored, 0..bytes, staging)?;
            for (row, stream) in
                zip(out.chunks_exact_mut(self.cols * terms), staging.chunks_exact(bytes.max(1)))
            {
                let places = &places[..packing.inputs.min(places.len())];
                match terms {
                    1 => self.unpack::<1>(group, stream, places, row),
                    _ => self.unpack::<2>(group, stream, places, row),
                }
            }
        }
        Ok(())
    }
}

impl VptqCodes<'_> {
    /// Unpacks a row of codes of `group` to `places` of a row of `TERMS` vectors for each input.
    fn unpack<const TERMS: usize>(
        &self,
        group: usize,
        stream: &[u8],
        places: &[u32],
        row: &mut [u32],
    ) {
        let (packing, bits) = (self.packing, self.packing.bits());
        let low = packing.entries.ilog2();
        let mask = (1u64 << bits) - 1;
        let first = (group * packing.entries) as u32;
        let residual = packing.groups * packing.entries + group * packing.residual.unwrap_or(0);
        let row = row.as_chunks_mut::<TERMS>().0;
        for (i, &place) in places.iter().enumerate() {
            let at = i * bits;
            // A code lies in at most five bytes. The last ones of a row have fewer than eight
            // behind them.
            let bytes = &stream[at / 8..];
            let window = match bytes.first_chunk() {
                Some(bytes) => u64::from_le_bytes(*bytes),
                None => {
                    let mut last = [0; 8];
                    last[..bytes.len()].copy_from_slice(bytes);
                    u64::from_le_bytes(last)
                }
            };
            let code = window >> (at % 8) & mask;
            let vectors = &mut row[place as usize];
            vectors[0] = first + (code & ((1 << low) - 1)) as u32;
            if TERMS > 1 {
                vectors[1] = residual as u32 + (code >> low) as u32;
            }
        }
    }

    /// The input of each stored column.
    ///
    /// # Errors
    /// An input has no column, or two.
    fn places(&self, staging: &mut Vec<u8>) -> Result<Vec<u32>> {
        let Some(tensor) = &self.order else {
            return Ok((0..self.cols as u32).collect());
        };
        let order = integers(tensor, self.cols, 0..1, staging)?;
        let mut is_there = vec![false; self.cols];
        for &input in &order {
            let seen = usize::try_from(input)
                .ok()
                .and_then(|i| is_there.get_mut(i));
            match seen {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    let what =
                        format!("input {} of {}, or it is there twice", input as i64, self.cols);
                    return Err(wrong(tensor, what));
                }
            }
        }
        Ok(order.iter().map(|&input| input as u32).collect())
    }
}

/// Rows `rows` of integers, `cols` in a row. Those of 16 bits are unsigned; a negative one of more
/// bits becomes too large.
fn integers(
    tensor: &Tensor<'_>,
    cols: usize,
    rows: Range<usize>,
    staging: &mut Vec<u8>,
) -> Result<Vec<u64>> {
    let bytes = cols * (tensor.dtype().bits() / 8);
    read(&tensor.part(), bytes, rows, 0..bytes, staging)?;
    Ok(match tensor.dtype() {
        Dtype::I64 => {
            let words = staging.as_chunks().0.iter();
            words.map(|&b| u64::from_le_bytes(b)).collect()
        }
        Dtype::I32 => {
            let words = staging.as_chunks().0.iter();
            words
                .map(|&b| i64::from(i32::from_le_bytes(b)) as u64)
                .collect()
        }
        _ => {
            let words = staging.as_chunks().0.iter();
            words.map(|&b| u64::from(u16::from_le_bytes(b))).collect()
        }
    })
}
