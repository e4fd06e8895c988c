//! Weights whose blocks are vectors of codebooks, or sums of such vectors.

use std::ops::Range;

use crate::Result;
use crate::element::Out;
use crate::remember::kernels::vectors::{MAX_VECTOR, VectorBlocks, VectorNorm};
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Buffers, Decode, Floats, Grid, TableOwner, Tile, lcm};
use crate::simd::{Level, dispatch};

/// Most values of all codebooks of a weight: libraries write a million or two. Each worker has them
/// in F32.
const MAX_TABLE: usize = 1 << 22;

/// Values of a codebook that are read together.
const PIECE: usize = 1 << 14;

/// Where the codes of a weight are stored.
pub(crate) trait VectorCodes: Send + Sync {
    /// Replaces `out` with the numbers of the vectors of the blocks of `tile`, row-major. `staging`
    /// is scratch.
    ///
    /// # Errors
    /// The read fails, or a code is beyond its codebook.
    fn load(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u32>) -> Result<()>;
}

/// Codebooks of a weight, whose vectors are numbered one after another.
pub(crate) struct Codebooks<'m> {
    /// Each with its number of values.
    parts: Vec<(Floats<'m>, usize)>,
    /// Whether a vector of -0, which changes no sum, follows the last.
    has_zero: bool,
    owner: TableOwner,
}

impl<'m> Codebooks<'m> {
    /// Returns `None` if vectors have no or too many values, or if there are too many vectors.
    pub(crate) fn new(
        parts: Vec<(Floats<'m>, usize)>,
        vector: usize,
        has_zero: bool,
    ) -> Option<Self> {
        let all = parts
            .iter()
            .try_fold(0usize, |sum, (_, len)| sum.checked_add(*len))?;
        let fits = all <= MAX_TABLE && (1..=MAX_VECTOR).contains(&vector);
        fits.then(|| Self { parts, has_zero, owner: TableOwner::default() })
    }

    fn read(&self, vector: usize, staging: &mut Vec<u8>, out: &mut Vec<f32>) -> Result<()> {
        for (floats, len) in &self.parts {
            for first in (0..*len).step_by(PIECE) {
                let piece = first..(first + PIECE).min(*len);
                floats.extend(*len, 0..1, piece, staging, out)?;
            }
        }
        if self.has_zero {
            out.resize(out.len() + vector, -0.0);
        }
        Ok(())
    }
}

/// Factors, and sometimes offsets, of values: `v * f + b`.
pub(crate) enum WeightNorm<'m> {
    None,
    /// Of rows: matrices of one column.
    Rows {
        factors: Box<dyn ScaleMatrix + 'm>,
        offsets: Option<Box<dyn ScaleMatrix + 'm>>,
    },
    /// Of columns: matrices of one row.
    Columns {
        factors: Box<dyn ScaleMatrix + 'm>,
        offsets: Box<dyn ScaleMatrix + 'm>,
    },
    /// Of groups of `size` columns of each row. Tiles begin and end with groups.
    Groups {
        factors: Box<dyn ScaleMatrix + 'm>,
        size: usize,
    },
}

/// The decoder of a weight in blocks.
pub(crate) struct VectorWeight<'m> {
    pub rows: usize,
    /// A multiple of the columns of a block.
    pub cols: usize,
    /// Rows and columns of a block.
    pub block: [usize; 2],
    /// Vectors of a block, which are added in this order.
    pub terms: usize,
    pub codebooks: Codebooks<'m>,
    pub codes: Box<dyn VectorCodes + 'm>,
    pub norm: WeightNorm<'m>,
    /// Whether a tile has all columns.
    pub has_whole_rows: bool,
    /// Rows of tiles begin at multiples of this, and of the rows of a block.
    pub row_align: usize,
}

impl VectorWeight<'_> {
    fn vector(&self) -> usize {
        self.block[0] * self.block[1]
    }
}

impl Decode for VectorWeight<'_> {
    fn grid(&self) -> Grid {
        let [height, width] = self.block;
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: lcm(height, self.row_align),
            col_align: if self.has_whole_rows {
                self.cols.max(1)
            } else {
                width
            },
            // A number of 32 bits for each vector.
            load_bits: (32 * self.terms) as f64 / self.vector() as f64,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { table, words, scales, zeros, staging, .. } = buffers;
        let owner = &self.codebooks.owner;
        table.load(owner, |out| self.codebooks.read(self.vector(), staging, out))?;
        self.codes.load(tile, staging, words)?;
        scales.clear();
        zeros.clear();
        match &self.norm {
            WeightNorm::None => {}
            WeightNorm::Rows { factors, offsets } => {
                factors.extend(tile.rows.clone(), 0..1, staging, scales)?;
                if let Some(offsets) = offsets {
                    offsets.extend(tile.rows.clone(), 0..1, staging, zeros)?;
                }
            }
            WeightNorm::Columns { factors, offsets } => {
                factors.extend(0..1, tile.cols.clone(), staging, scales)?;
                offsets.extend(0..1, tile.cols.clone(), staging, zeros)?;
            }
            WeightNorm::Groups { factors, size } => {
                let groups = tile.cols.start / size..tile.cols.end / size;
                factors.extend(tile.rows.clone(), groups, staging, scales)?;
            }
        }
        Ok(())
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let (factors, offsets) = (&buffers.scales[..], &buffers.zeros[..]);
        let kernel = VectorBlocks {
            table: buffers.table.values(),
            vectors: &buffers.words,
            terms: self.terms,
            block: self.block,
            rows: rows.start - tile.rows.start..rows.end - tile.rows.start,
            cols: tile.cols.len(),
            norm: match self.norm {
                WeightNorm::None => VectorNorm::None,
                WeightNorm::Rows { .. } => VectorNorm::Rows { factors, offsets },
                WeightNorm::Columns { .. } => VectorNorm::Columns { factors, offsets },
                WeightNorm::Groups { size, .. } => VectorNorm::Groups { factors, size },
            },
        };
        dispatch(level, &kernel, out);
    }
}
