//! [`TensorPair`]: an output tensor of each of two plans, whose values are read side by side, or
//! one alone.
//!
//! Values are read in pieces of at most some hundred KiB, which one thread keeps in its cache while
//! it compares them. Where a side is decoded, both sides are cut into the tiles that suit both
//! decoders: a tile is loaded once, within the bound that a conversion has for one tile, and
//! decoded slab by slab.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::Conversion;
use super::cut::{Cut, SLAB_VALUES};
use super::options::{ConvertOptions, ModelScope, RememberOptions};
use super::output::{Output, ValueSource, Worker};
use super::progress::ProgressSum;
use super::run::Run;
use super::window::OutputWindow;
use crate::element::Out;
use crate::model::Part;
use crate::remember::{Buffers, Decode, Grid, Tile, lcm};
use crate::simd::Level;
use crate::{Dtype, Result};

/// Bytes of each side that are read at once where nothing is decoded. Both sides stay in the L2
/// cache while they are compared.
const PIECE_BYTES: usize = 128 << 10;

/// Values of each side that are decoded at once: half of what a conversion decodes, because two
/// sides are in memory.
const PAIR_SLAB_VALUES: usize = SLAB_VALUES / 2;

/// How much less two decoders load at once than one: each has some buffers that do not shrink with
/// the tile.
const SHARED_LOAD: f64 = 1.5;

/// Bytes of each side that one job reads in pieces.
const JOB_BYTES: usize = 4 << 20;

/// Two output tensors of the same shape, or one.
pub(crate) struct TensorPair<'a, 'm, 'n> {
    a: PairSide<'a, 'm>,
    b: Option<PairSide<'a, 'n>>,
    walk: Walk,
}

/// How the jobs of a pair go over its values.
enum Walk {
    /// Nothing is decoded: tiles of consecutive values, read in pieces of so many values.
    Pieces(Cut, usize),
    /// Tiles of the decoders.
    Tiles(Cut),
    /// Tiles of whole rows that are made by the jobs of the plans.
    Rows(Cut),
}

impl Walk {
    /// Over `values` values of at most `step` bytes, which nothing decodes.
    fn pieces(values: usize, step: usize) -> Self {
        let cut = Cut { tile_cols: JOB_BYTES / step, ..Cut::single(values) };
        Self::Pieces(cut, PIECE_BYTES / step)
    }

    /// Over `values` values, of which the jobs of a plan make `granule` together.
    fn rows(values: usize, granule: usize) -> Self {
        Self::Rows(Cut { tile_cols: granule, ..Cut::single(values) })
    }
}

/// One side of a pair.
struct PairSide<'a, 'm> {
    conversion: &'a Conversion<'m>,
    /// Index of the output tensor.
    index: usize,
    /// Bytes of a value or block; 1 if values are not whole bytes, or rows not whole blocks.
    step: usize,
}

/// Buffers of one thread, reused from job to job.
#[derive(Default)]
pub(crate) struct PairScratch {
    loaded: [Buffers; 2],
    /// Values of each side. The elements are `u32`, because its alignment suits every output
    /// element type.
    values: [Vec<u32>; 2],
    worker: Worker,
}

impl<'a, 'm> PairSide<'a, 'm> {
    fn new(conversion: &'a Conversion<'m>, index: usize) -> Self {
        let dtype = conversion.plan.outputs[index].dtype;
        // Rows that begin with a header are not a number of blocks.
        let step = match dtype.row_header() {
            0 => dtype.type_size().unwrap_or(1),
            _ => 1,
        };
        Self { conversion, index, step }
    }

    fn output(&self) -> &'a Output<'m> {
        &self.conversion.plan.outputs[self.index]
    }

    fn source(&self) -> ValueSource<'a, 'm> {
        self.output().body.values()
    }

    fn decoder(&self) -> Option<&'a (dyn Decode + 'm)> {
        match self.source() {
            ValueSource::Decoded(decoder, _) => Some(decoder),
            _ => None,
        }
    }

    /// Number of values.
    fn values(&self) -> usize {
        self.output().len as usize / self.step
    }

    /// Values that the jobs of the plan make together: those of a row of tiles.
    fn granule(&self) -> usize {
        let output = self.output();
        match self.source() {
            ValueSource::Stored(_) => 1,
            _ => (output.tile_offset(output.tiles_of_rows()) as usize / self.step).max(1),
        }
    }

    /// Loads `tile` into `buffers` if the side is decoded.
    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.decoder()
            .map_or(Ok(()), |decoder| decoder.load(tile, buffers))
    }

    /// Makes the values of rows `rows` of `tile`, which is loaded, of a grid of `cols` columns.
    fn slab(
        &self,
        tile: &Tile,
        rows: &Range<usize>,
        cols: usize,
        (buffers, level): (&Buffers, Level),
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let count = rows.len() * tile.cols.len();
        out.resize((count * self.step).div_ceil(4), 0);
        match self.source() {
            ValueSource::Decoded(decoder, target) => {
                let out = Out::new(target, out).first(count);
                decoder.decode(tile, rows.clone(), buffers, level, out);
                Ok(())
            }
            ValueSource::Stored(part) => {
                let slab = Tile { rows: rows.clone(), cols: tile.cols.clone() };
                let bytes = out.as_mut_bytes();
                slab.runs(cols).try_for_each(|(first, run)| {
                    let run = run.start * self.step..run.end * self.step;
                    part.read_at((first * self.step) as u64, &mut bytes[run])
                })
            }
            // Such a side is read with `read`.
            ValueSource::Jobs => Ok(()),
        }
    }

    /// Makes the values `values`, which begin and end where the plan's jobs do, or anywhere in a
    /// stored tensor.
    fn read(&self, values: &Range<usize>, worker: &mut Worker, out: &mut Vec<u32>) -> Result<()> {
        let Conversion { plan, options, .. } = self.conversion;
        let bytes = (values.start * self.step) as u64..(values.end * self.step) as u64;
        let len = (bytes.end - bytes.start) as usize;
        out.resize(len.div_ceil(4), 0);
        let out = &mut out.as_mut_bytes()[..len];
        if let ValueSource::Stored(part) = self.source() {
            return part.read_at(bytes.start, out);
        }
        let output = self.output();
        let (done, first) = (ProgressSum::silent(), plan.first_job[self.index]);
        let run =
            Run::new(plan, self.index..self.index + 1, &options.run, &done).without_verifying();
        let tiles = output.tiles_of(&bytes);
        let window = OutputWindow::new(output.place.offset + bytes.start, out);
        run.run_here(first + tiles.start..first + tiles.end, &window, worker)
    }
}

impl<'a, 'm, 'n> TensorPair<'a, 'm, 'n> {
    /// Pairs output tensor `a.1` of `a.0` with `b.1` of `b.0`. `None` if they do not have the same
    /// number of values.
    pub(crate) fn new(
        a: (&'a Conversion<'m>, usize),
        b: (&'a Conversion<'n>, usize),
    ) -> Option<Self> {
        let (a, b) = (PairSide::new(a.0, a.1), PairSide::new(b.0, b.1));
        let values = a.values();
        if values != b.values() {
            return None;
        }
        let walk = match (a.source(), b.source()) {
            (ValueSource::Stored(_), ValueSource::Stored(_)) => {
                Walk::pieces(values, a.step.max(b.step))
            }
            _ => match Self::common_grid(&a, &b) {
                Some(grid) => Walk::Tiles(Cut::of_grid(&grid)),
                None => Walk::rows(values, a.granule().max(b.granule())),
            },
        };
        Some(Self { a, b: Some(b), walk })
    }

    /// Output tensor `index` of `conversion` alone: there are no bytes of a second side.
    #[cfg_attr(not(feature = "check"), expect(dead_code, reason = "only a check reads one model"))]
    pub(crate) fn single(conversion: &'a Conversion<'m>, index: usize) -> Self {
        let a = PairSide::new(conversion, index);
        let values = a.values();
        let walk = match a.source() {
            ValueSource::Stored(_) => Walk::pieces(values, a.step),
            ValueSource::Decoded(decoder, _) => Walk::Tiles(Cut::of_grid(&decoder.grid())),
            ValueSource::Jobs => Walk::rows(values, a.granule()),
        };
        Self { a, b: None, walk }
    }

    /// A grid whose tiles suit both sides; `None` if a side is neither stored nor decoded, or if
    /// the sides differ in rows.
    fn common_grid(a: &PairSide<'_, '_>, b: &PairSide<'_, '_>) -> Option<Grid> {
        match (a.source(), b.source()) {
            (ValueSource::Decoded(a, _), ValueSource::Decoded(b, _)) => {
                let (a, b) = (a.grid(), b.grid());
                let is_same = (a.rows, a.cols) == (b.rows, b.cols);
                is_same.then(|| Grid {
                    row_align: lcm(a.row_align, b.row_align),
                    col_align: lcm(a.col_align, b.col_align),
                    load_bits: (a.load_bits + b.load_bits) * SHARED_LOAD,
                    transposed: a.transposed.or(b.transposed),
                    ..a
                })
            }
            (ValueSource::Decoded(decoder, _), ValueSource::Stored(_))
            | (ValueSource::Stored(_), ValueSource::Decoded(decoder, _)) => Some(decoder.grid()),
            _ => None,
        }
    }

    fn cut(&self) -> &Cut {
        match &self.walk {
            Walk::Pieces(cut, _) | Walk::Tiles(cut) | Walk::Rows(cut) => cut,
        }
    }

    /// Number of jobs. They can be done in any order.
    pub(crate) fn jobs(&self) -> usize {
        self.cut().tiles()
    }

    /// Element types of the two sides; of one alone, its own twice.
    pub(crate) fn dtypes(&self) -> (Dtype, Dtype) {
        let a = self.a.output().dtype;
        (a, self.b.as_ref().map_or(a, |b| b.output().dtype))
    }

    /// Bytes of all sides.
    pub(crate) fn byte_len(&self) -> u64 {
        let b = self.b.as_ref().map_or(0, |b| b.output().len);
        self.a.output().len + b
    }

    /// Bytes that a job stands for in the progress, of which `later` jobs are left: about as many
    /// for each, and all together.
    pub(crate) fn bytes_of_job(&self, later: usize) -> u64 {
        let (bytes, jobs) = (self.byte_len(), self.jobs().max(1) as u64);
        match later {
            0 => bytes - bytes / jobs * (jobs - 1),
            _ => bytes / jobs,
        }
    }

    /// Does job `job`: passes the index of a first value and the bytes of consecutive values of all
    /// sides to `take`, again and again, always in the same order. Values that are not whole bytes
    /// are counted as bytes.
    ///
    /// The first job compares the checksums that containers store.
    ///
    /// # Errors
    /// A side cannot be read or decoded; the options of the first plan are cancelled.
    pub(crate) fn run(
        &self,
        job: usize,
        scratch: &mut PairScratch,
        mut take: impl FnMut(u64, &[u8], &[u8]),
    ) -> Result<()> {
        let (a, b, run) = (&self.a, self.b.as_ref(), &self.a.conversion.options.run);
        if job == 0 {
            a.conversion.verify_inputs(a.index)?;
            b.map_or(Ok(()), |b| b.conversion.verify_inputs(b.index))?;
        }
        let PairScratch { loaded: [loaded_a, loaded_b], values: [values_a, values_b], worker } =
            scratch;
        let step_b = b.map_or(0, |b| b.step);
        run.cancel.check()?;
        let tile = self.cut().tile(job);
        let piece = match &self.walk {
            Walk::Pieces(_, piece) => *piece,
            Walk::Rows(_) => tile.cols.len(),
            Walk::Tiles(cut) => {
                a.load(&tile, loaded_a)?;
                b.map_or(Ok(()), |b| b.load(&tile, loaded_b))?;
                let slab_rows = (PAIR_SLAB_VALUES / tile.cols.len().max(1)).max(1);
                for first in tile.rows.clone().step_by(slab_rows) {
                    let rows = first..(first + slab_rows).min(tile.rows.end);
                    a.slab(&tile, &rows, cut.cols, (loaded_a, run.level), values_a)?;
                    b.map_or(Ok(()), |b| {
                        b.slab(&tile, &rows, cut.cols, (loaded_b, run.level), values_b)
                    })?;
                    let slab = Tile { rows, cols: tile.cols.clone() };
                    for (index, values) in slab.runs(cut.cols) {
                        let range = |step: usize| values.start * step..values.end * step;
                        let a = &values_a.as_bytes()[range(a.step)];
                        take(index as u64, a, &values_b.as_bytes()[range(step_b)]);
                    }
                }
                return Ok(());
            }
        };
        for start in tile.cols.clone().step_by(piece.max(1)) {
            let values = start..(start + piece).min(tile.cols.end);
            a.read(&values, worker, values_a)?;
            b.map_or(Ok(()), |b| b.read(&values, worker, values_b))?;
            let a = &values_a.as_bytes()[..values.len() * a.step];
            take(start as u64, a, &values_b.as_bytes()[..values.len() * step_b]);
        }
        Ok(())
    }
}

impl ConvertOptions {
    /// The options of a plan whose outputs are read as values and written nowhere: tensors under
    /// the names that they have, without arrays that no tensor can hold. Whoever reads the values
    /// reports the progress.
    pub(crate) fn for_values(run: &RememberOptions) -> Self {
        let mut options = Self::from(RememberOptions { progress: None, ..run.clone() });
        options.single_file = true;
        options.skip_unsupported = true;
        options.scope = ModelScope::Tensors;
        options
    }
}

impl Conversion<'_> {
    /// Compares the stored checksums of what output tensor `i` is made from, each once.
    ///
    /// # Errors
    /// `Parse` if one differs; `Io`.
    fn verify_inputs(&self, i: usize) -> Result<()> {
        let output = &self.plan.outputs[i];
        let inputs = output.checks.all();
        let copied = match output.body.values() {
            ValueSource::Stored(part) => Some(part),
            _ => None,
        };
        inputs
            .chain(copied.filter(|part| part.has_checksum() || part.is_deflated()))
            .try_for_each(|part: &Part<'_>| self.verified.verify(part))
    }
}
