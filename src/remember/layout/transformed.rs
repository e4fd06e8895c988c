//! Weights of layers whose inputs or outputs are multiplied with a matrix: the weights that need no
//! such product.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::assembled::{decode_values, load_values};
use super::strips::{LoadedRows, STRIP};
use crate::element::Out;
use crate::model::Tensor;
use crate::remember::kernels::transform::dense::DenseMatrix;
use crate::remember::kernels::transform::{
    BlockMatrix, BlockProduct, TransformedColumns, TransformedRows,
};
use crate::remember::seam::{
    Buffers, Decode, Floats, Grid, Tile, is_plain_float, lcm, read, refused, wrong,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

/// Values of a stored matrix that are read at once.
const PIECE: usize = 64 << 10;

/// Most rows of a stored matrix without structure. Its products take as many steps for each value.
const MAX_DENSE: usize = 512;

/// A matrix that several layers share.
pub(crate) enum SharedMatrix<'m> {
    /// The Kronecker power of `[[1,1],[1,-1]]`.
    Sylvester,
    Stored(Box<StoredMatrix<'m>>),
}

/// A matrix that is in memory while a worker has it: each layer may have one of its own.
pub(crate) struct StoredMatrix<'m> {
    tensor: Tensor<'m>,
    size: usize,
    /// As it is stored, and transposed.
    read: [Mutex<Weak<BlockMatrix>>; 2],
}

impl<'m> SharedMatrix<'m> {
    /// The matrix of `size` rows that `tensor` has.
    ///
    /// # Errors
    /// It is neither of floats nor of I8.
    pub(crate) fn stored(tensor: Tensor<'m>, size: usize) -> Result<Self> {
        if !is_plain_float(tensor.dtype()) && tensor.dtype() != Dtype::I8 {
            return Err(wrong(&tensor, "a matrix is F64, F32, F16, BF16 or I8"));
        }
        Ok(Self::Stored(Box::new(StoredMatrix { tensor, size, read: Default::default() })))
    }

    /// # Errors
    /// Those of reading it.
    fn of_blocks(&self, is_transposed: bool) -> Result<Arc<BlockMatrix>> {
        match self {
            Self::Sylvester => Ok(Arc::new(BlockMatrix::Sylvester)),
            Self::Stored(stored) => {
                let read = &stored.read[usize::from(is_transposed)];
                let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(matrix) = read.upgrade() {
                    return Ok(matrix);
                }
                let matrix = Arc::new(stored.read_matrix(is_transposed)?);
                *read = Arc::downgrade(&matrix);
                Ok(matrix)
            }
        }
    }
}

impl StoredMatrix<'_> {
    /// Reads the matrix.
    ///
    /// # Errors
    /// A read fails, a number is not finite, or the matrix is large and not a Hadamard matrix of a
    /// known structure.
    fn read_matrix(&self, is_transposed: bool) -> Result<BlockMatrix> {
        let (size, step) = (self.size, (PIECE / self.size.max(1)).max(1));
        let (mut signs, mut is_signed) = (Vec::with_capacity(size), size.is_power_of_two());
        let mut dense: Vec<f64> = Vec::new();
        let (mut rows, mut staging) = (Vec::new(), Vec::new());
        for first in (0..size).step_by(step) {
            let wanted = first..(first + step).min(size);
            self.read_rows(wanted, &mut staging, &mut rows)?;
            for (i, row) in rows.chunks_exact(size).enumerate() {
                // compressed-tensors makes random Hadamard matrices from Sylvester's for most
                // powers of two.
                is_signed &= is_signed_row(row, first + i);
                signs.push(row[0]);
            }
            if size <= MAX_DENSE {
                dense.extend(&rows);
            } else if !is_signed {
                let what = format!("a matrix of {size} rows that is not Sylvester's with signs");
                return Err(refused(&self.tensor, "transform_config", what));
            }
        }
        if is_signed {
            return Ok(match is_transposed {
                true => BlockMatrix::SignedColumns(signs),
                false => BlockMatrix::SignedRows(signs),
            });
        }
        if dense.iter().any(|x| !x.is_finite()) {
            let what = "a number of the matrix is not finite";
            return Err(refused(&self.tensor, "transform_config", what));
        }
        if is_transposed {
            let column = |j| dense.iter().skip(j).step_by(size).copied();
            dense = (0..size).flat_map(column).collect();
        }
        Ok(BlockMatrix::Dense(DenseMatrix::new(dense, size)))
    }

    /// Reads rows to `out`.
    fn read_rows(
        &self,
        rows: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f64>,
    ) -> Result<()> {
        out.clear();
        if self.tensor.dtype() == Dtype::F64 {
            let width = self.size * 8;
            read(&self.tensor.part(), width, rows, 0..width, staging)?;
            out.extend(
                staging
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&bytes| f64::from_le_bytes(bytes)),
            );
            return Ok(());
        }
        if self.tensor.dtype() == Dtype::I8 {
            let width = self.size;
            read(&self.tensor.part(), width, rows, 0..width, staging)?;
            out.extend(staging.iter().map(|&byte| f64::from(byte as i8)));
            return Ok(());
        }
        let mut narrow = Vec::new();
        let floats = Floats::ieee(&self.tensor)?;
        floats.extend(self.size, rows, 0..self.size, staging, &mut narrow)?;
        out.extend(narrow.into_iter().map(f64::from));
        Ok(())
    }
}

/// Whether `row` is row `i` of Sylvester's matrix, times 1 or -1.
fn is_signed_row(row: &[f64], i: usize) -> bool {
    let sign = row[0];
    let is_odd = |j: usize| (i & j).count_ones() % 2 == 1;
    let mut values = row.iter().enumerate();
    sign.abs() == 1.0 && values.all(|(j, &x)| x == if is_odd(j) { -sign } else { sign })
}

/// What one dimension of a weight is multiplied with.
#[derive(Clone)]
pub(crate) struct BlockTransform<'m> {
    pub matrix: Arc<SharedMatrix<'m>>,
    /// Columns, or rows, of a block.
    pub size: usize,
    pub is_transposed: bool,
    /// Whether the matrix is divided by the root of its size.
    pub is_normalized: bool,
}

impl BlockTransform<'_> {
    fn matrix(&self) -> Result<Arc<BlockMatrix>> {
        self.matrix.of_blocks(self.is_transposed)
    }

    /// The product with `matrix`, which is [`matrix`](Self::matrix).
    fn product<'a>(&self, matrix: &'a BlockMatrix) -> BlockProduct<'a> {
        BlockProduct {
            matrix,
            size: self.size,
            factor: match self.is_normalized {
                true => 1.0 / (self.size as f64).sqrt(),
                false => 1.0,
            },
        }
    }
}

/// The decoder of a weight whose columns, or rows, or both are multiplied in blocks. The products
/// are in F64, and rounded once.
pub(crate) struct Transformed<'m> {
    pub stored: Box<dyn Decode + 'm>,
    pub columns: Option<BlockTransform<'m>>,
    pub rows: Option<BlockTransform<'m>>,
}

impl Decode for Transformed<'_> {
    fn grid(&self) -> Grid {
        let grid = self.stored.grid();
        let size = |side: &Option<BlockTransform<'_>>| side.as_ref().map_or(1, |side| side.size);
        let is_sylvester =
            |side: &BlockTransform<'_>| matches!(*side.matrix, SharedMatrix::Sylvester);
        let load_bits = match (&self.columns, &self.rows) {
            // Columns are multiplied while their rows are decoded.
            (_, None) => 0.0,
            // A value in F32: rows are multiplied some columns at a time.
            (None, Some(rows)) if is_sylvester(rows) => 32.0,
            // Another in F64.
            _ => 96.0,
        };
        Grid {
            row_align: lcm(grid.row_align, size(&self.rows)),
            col_align: lcm(grid.col_align, size(&self.columns)),
            load_bits: grid.load_bits + load_bits,
            ..grid
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let read = |side: &Option<BlockTransform<'_>>| match side {
            Some(side) => side.matrix().map(Some),
            None => Ok(None),
        };
        let matrices = [read(&self.columns)?, read(&self.rows)?];
        if self.rows.is_some() {
            self.load_rows(tile, &matrices, buffers)?;
        } else {
            self.stored.load(tile, buffers)?;
        }
        // For `decode`, and for the next tile, which reads them again if nobody has them.
        buffers.matrices = matrices;
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
        let (Some(columns), [Some(matrix), None]) = (&self.columns, &buffers.matrices) else {
            return decode_values(tile, rows, buffers, level, out);
        };
        let columns = columns.product(matrix);
        let loaded = LoadedRows { tile, rows, buffers, level };
        loaded.each_strip(&*self.stored, STRIP, out, |values, _, out| {
            let product = columns.clone();
            dispatch(level, &TransformedColumns { values, product }, out);
        });
    }
}

impl Transformed<'_> {
    /// Loads values whose rows, and columns if they are, are multiplied.
    fn load_rows(
        &self,
        tile: &Tile,
        matrices: &[Option<Arc<BlockMatrix>>; 2],
        buffers: &mut Buffers,
    ) -> Result<()> {
        let sides = [&self.columns, &self.rows].into_iter().zip(matrices);
        let mut products =
            sides.map(|(side, matrix)| Some(side.as_ref()?.product(matrix.as_ref()?)));
        let (columns, rows) = (products.next().flatten(), products.next().flatten());
        let Some(rows) = rows else { return Ok(()) };
        load_values(tile, buffers, |values, buffers, _| {
            self.stored.load(tile, buffers)?;
            let (loaded, out) = (tile.rows.clone(), Out::F32(values));
            self.stored
                .decode(tile, loaded, buffers, Level::default(), out);
            let mut rows = TransformedRows {
                values,
                width: tile.cols.len(),
                columns,
                rows,
                exact: &mut buffers.sums,
            };
            rows.multiply(Level::default());
            Ok(())
        })
    }
}
