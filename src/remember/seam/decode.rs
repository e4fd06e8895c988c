//! The seam between schemes and the pipeline. A decoder says how its tensor may be cut into tiles;
//! the pipeline cuts it, and decodes the tiles on any thread, in any order.

use std::ops::Range;
use std::sync::Arc;

use crate::element::Out;
use crate::remember::kernels::exl2::CodeRun;
use crate::remember::kernels::transform::BlockMatrix;
use crate::remember::seam::{CodeBytes, ReadAhead, RelaySource, StoredRectangle, TileTable};
use crate::simd::{KERNELS, Level};
use crate::{Dtype, Result, TargetDtype};

/// How the pipeline may cut a logical tensor. Value (r, c) of the grid is element `r * cols + c` of
/// the tensor in row-major order, whatever the tensor's rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub rows: usize,
    pub cols: usize,
    /// Rows and columns of a tile are ranges that start at multiples of these. They end at such a
    /// multiple or at the end of the grid.
    pub row_align: usize,
    pub col_align: usize,
    /// Bits that a loaded value takes in the buffers, with its share of the scales. It bounds how
    /// many values a tile has.
    pub load_bits: f64,
    /// How stored rows lie in the grid if they run down its columns: then tall tiles read longer
    /// pieces than wide ones.
    pub transposed: Option<StoredRows>,
}

/// Rows of a stored matrix that run down the columns of a grid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredRows {
    /// Bits of a stored row for each row of the grid.
    pub row_bits: usize,
    /// Columns of the grid that a stored row has.
    pub cols: usize,
    /// Rows of the grid that a stored row has values of: those of one matrix of a stack.
    pub matrix_rows: usize,
}

impl StoredRows {
    /// Stored rows each of which has values of all rows of the grid.
    pub(crate) fn of_one(row_bits: usize, cols: usize) -> Self {
        Self { row_bits, cols, matrix_rows: usize::MAX }
    }
}

/// A rectangle of a grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tile {
    pub rows: Range<usize>,
    pub cols: Range<usize>,
}

impl Tile {
    /// Number of values.
    pub(crate) fn values(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    /// Whether the tile holds value (0, 0) of the grid.
    #[cfg(feature = "lethe")]
    pub(crate) fn is_first(&self) -> bool {
        self.rows.start == 0 && self.cols.start == 0
    }

    /// The runs of values that are adjacent in a tensor of `cols` columns. Each run is the index of
    /// its first value in the tensor, and its range among the tile's values.
    pub(crate) fn runs(&self, cols: usize) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (first, width) = (self.rows.start * cols + self.cols.start, self.cols.len());
        // Whole rows follow each other without a gap, so the tile is a single run; otherwise each
        // of its rows is one.
        let (count, len) = if width == cols {
            (1, self.values())
        } else {
            (self.rows.len(), width)
        };
        (0..count).map(move |i| (first + i * cols, i * len..(i + 1) * len))
    }
}

/// The least common multiple of two alignments.
pub(crate) fn lcm(a: usize, b: usize) -> usize {
    let (a, b) = (a.max(1), b.max(1));
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    // An alignment that saturates is beyond every dimension, which is then not cut.
    (a / x).saturating_mul(b)
}

/// A worker's loaded input, reused from tile to tile. Each decoder fills the fields that it needs,
/// in a layout of its choice.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Codes as bytes.
    pub bytes: CodeBytes,
    /// Symbols of a Huffman code, decoded one after another.
    pub symbols: Vec<u8>,
    /// Codes as packed words.
    pub words: Vec<u32>,
    /// Scales.
    pub scales: Vec<f32>,
    /// Zero points.
    pub zeros: Vec<f32>,
    /// Packed zero points of one group.
    pub zero_words: Vec<u32>,
    /// Scales as packed words.
    pub scale_words: Vec<u32>,
    /// Group of each column, or its place among the stored codes of a row.
    pub index: Vec<u32>,
    /// Runs of codes of a row, each of a width of its own.
    pub runs: Vec<CodeRun>,
    /// Scratch: stored bytes before they are widened into another field.
    pub staging: Vec<u8>,
    /// Stored rows that several tiles share.
    pub ahead: Option<Arc<ReadAhead>>,
    /// One row of scales before it is spread over groups, or numbers for all of the tile, such as a
    /// factor for each column.
    pub row: Vec<f32>,
    /// The part of a product of low rank that lies in the tile, in F64: it is added to the values
    /// before they are rounded.
    pub sums: Vec<f64>,
    /// Pieces of that product's factors while it is computed; afterwards a factor for each column,
    /// and the rows of the left factor if the product is computed while the tile is decoded.
    pub factors: Vec<f32>,
    /// The right factor of such a product, in panels.
    pub panels: TileTable,
    /// What an adapter adds to the weight. Its base fills the other fields, and no weight is
    /// adapted twice.
    pub adapter: AdapterFactors,
    /// What columns and rows of the tensor are multiplied with.
    pub matrices: [Option<Arc<BlockMatrix>>; 2],
    /// Codebooks of the tensor.
    pub table: TileTable,
    /// Values of a tile that is put together from those of other decoders.
    pub assembly: Assembly,
}

/// The factors of the products that adapters add to a weight, if these are computed while it is
/// decoded.
#[derive(Debug, Default)]
pub(crate) struct AdapterFactors {
    /// The right factors, one below the other, in panels.
    pub panels: TileTable,
    /// The largest magnitude in them, or a NaN.
    pub largest_right: f32,
    /// For each row of the tile its numbers in all left factors, scaled.
    pub left: Vec<f64>,
    /// Whether F64 holds the products of these with all of the right factors.
    pub is_exact: bool,
}

/// The buffers of a decoder that puts values of other decoders together.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    /// The values of the tile.
    pub values: Vec<f32>,
    /// Scratch: values of another decoder before they are moved.
    pub covering: Vec<f32>,
    /// Scratch: the rows that one of several decoders has in the tile.
    pub piece: Vec<f32>,
    /// Scratch: values of a decoder whose rows are others.
    pub flat: Vec<f32>,
    /// Scratch: such values, rounded to the dtype that is decoded to.
    pub rounded: Vec<u32>,
}

/// Decodes one logical tensor. [`read`](Self::read) does all the reading, and all checks that need
/// data; it brings scales and zero points into the form that kernels take. [`decode`](Self::decode)
/// computes the values and cannot fail.
pub(crate) trait Decode: Send + Sync {
    /// How the tensor may be cut.
    fn grid(&self) -> Grid;

    /// Reads the codes, scales and zero points of `tile` into `buffers`. Others call
    /// [`load`](Self::load).
    ///
    /// # Errors
    /// Reading fails, or what is read contradicts the shapes, such as a group index out of range.
    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()>;

    /// Loads `tile` into `buffers`, from which it is decoded. Nothing is decoded that has not been
    /// loaded: so this is where a build without kernels refuses.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); `Unsupported` without the feature `remember`.
    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        KERNELS.require("decoding")?;
        self.read(tile, buffers)
    }

    /// Decodes rows `rows` of `tile` from `buffers`, into which it has been loaded. `out` has room
    /// for exactly these values, row-major.
    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    );

    /// Rows that are decoded at once, or a multiple of them: a decoder that computes with all
    /// columns for some rows takes less time if they are many.
    fn rows_together(&self) -> usize {
        1
    }

    /// The piece of the stored matrix that has the codes of rows `rows` of the grid, if
    /// [`load`](Self::load) takes from [`Buffers::ahead`] what is there of it. `None` if there is
    /// no such matrix, or the rows lie in several.
    fn stored_codes(&self, _rows: &Range<usize>) -> Option<StoredRectangle<'_>> {
        None
    }

    /// The dtype of the values, if they are stored as they are: then they are decoded to F32, and
    /// to this dtype, without rounding.
    fn stored_dtype(&self) -> Option<TargetDtype> {
        None
    }

    /// The little-endian bytes of the values of `tile`, row-major, of the
    /// [`stored_dtype`](Self::stored_dtype). `buffers` are those into which the tile has been
    /// loaded.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    fn stored_bytes<'b>(&self, tile: &Tile, buffers: &'b Buffers) -> Option<&'b [u8]> {
        let _ = (tile, buffers);
        None
    }

    /// The values, and the type that they are written in, if they are integers that are known
    /// already. Decoded, they are rounded to floats.
    fn integers(&self) -> Option<(Dtype, &[i64])> {
        None
    }

    /// Decides whether the codes can be relayed, and how to get at them. `None` if no other scheme
    /// has such codes.
    ///
    /// The planner asks once for each tensor. The answer may depend on data: GPTQ reads its group
    /// index and all of its zero points for it.
    ///
    /// # Errors
    /// Reading that data fails, or the data is wrong.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    fn find_relay(&self) -> Result<Option<RelaySource>> {
        Ok(None)
    }
}

impl Decode for &dyn Decode {
    fn grid(&self) -> Grid {
        (**self).grid()
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        (**self).load(tile, buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        (**self).decode(tile, rows, buffers, level, out);
    }

    fn rows_together(&self) -> usize {
        (**self).rows_together()
    }

    fn stored_codes(&self, rows: &Range<usize>) -> Option<StoredRectangle<'_>> {
        (**self).stored_codes(rows)
    }

    fn stored_dtype(&self) -> Option<TargetDtype> {
        (**self).stored_dtype()
    }

    fn stored_bytes<'b>(&self, tile: &Tile, buffers: &'b Buffers) -> Option<&'b [u8]> {
        (**self).stored_bytes(tile, buffers)
    }
}

/// The decoder of a matrix in a stack: rows `first..first + rows` of the stack's decoder.
pub(crate) struct Window<'m> {
    pub inner: Arc<dyn Decode + 'm>,
    pub first: usize,
    pub rows: usize,
}

impl Window<'_> {
    fn inner_rows(&self, rows: &Range<usize>) -> Range<usize> {
        rows.start + self.first..rows.end + self.first
    }

    fn inner_tile(&self, tile: &Tile) -> Tile {
        Tile { rows: self.inner_rows(&tile.rows), cols: tile.cols.clone() }
    }
}

impl Decode for Window<'_> {
    fn grid(&self) -> Grid {
        // Only the number of rows differs. The alignments stay the stack's, so `first` has to be a
        // multiple of `row_align`. It is 1 in MLX and ggml, whose stacks are taken apart.
        Grid { rows: self.rows, ..self.inner.grid() }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.inner.load(&self.inner_tile(tile), buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        self.inner
            .decode(&self.inner_tile(tile), self.inner_rows(&rows), buffers, level, out);
    }

    fn stored_dtype(&self) -> Option<TargetDtype> {
        self.inner.stored_dtype()
    }

    fn stored_bytes<'b>(&self, tile: &Tile, buffers: &'b Buffers) -> Option<&'b [u8]> {
        self.inner.stored_bytes(&self.inner_tile(tile), buffers)
    }

    // What is extracted depends on a tile's size alone, so the rows need no translation.
    fn find_relay(&self) -> Result<Option<RelaySource>> {
        self.inner.find_relay()
    }
}
