//! Encoding on the way: values come from a stored tensor or from its decoder, tile by tile, and what is stored of them
//! goes to several output tensors. Some encoders want to have seen all values first: then every tile is done twice.
//! Where both sides have the same codes, those are moved without decoding.

mod bands;
mod body;
mod distance;
mod drafts;
mod in_order;

use std::ops::{AddAssign, Range};
use std::sync::Arc;

use self::bands::{Bands, Pieces};
pub(super) use self::body::{EncodeBody, WrittenWithAnother};
pub(super) use self::distance::{distance, warnings};
pub(super) use self::drafts::{Drafted, Encodings};
use self::in_order::InOrder;
use super::cut::{Cut, SLAB_VALUES, round_down};
use crate::element::Out;
use crate::forget::{Encode, Put, Survey, Values};
use crate::kernels::lethe::distance::{DistanceSums, compare, first_not_finite};
use crate::kernels::lethe::mean::Mean;
use crate::kernels::remember::widen::Widen;
use crate::scheme::{Buffers, Decode, Grid, GroupCodes, Tile, lcm};
use crate::simd::{Level, dispatch};
use crate::{AnamnesisError, Result, TargetDtype};

/// Values of a tile that encoders are given, unless their alignments want more.
const TILE_VALUES: usize = SLAB_VALUES;

/// Columns of a tile where the input runs across rows, so that tall tiles are better than wide ones.
const NARROW: usize = 256;

/// Columns of a tile where the output does: it is written band by band, so that both runs are long.
const LOW: usize = 1024;

/// Where values come from.
#[derive(Clone)]
pub(super) struct Input<'m> {
    pub name: String,
    decoder: Arc<dyn Decode + 'm>,
    /// What values are rounded to.
    dtype: TargetDtype,
    pub cut: Cut,
}

/// A tensor that is encoded.
pub(super) struct Encoding<'m> {
    pub input: Input<'m>,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// What it is encoded to, as people read it.
    pub scheme: String,
    pub encoder: Box<dyn Encode>,
    /// Tiles that are encoded together.
    bands: Bands,
    /// Other tensors, of which the same has to be known as of this one before the first is encoded.
    pub siblings: Vec<Input<'m>>,
    /// Whether codes are moved as they are, or why not, if both sides have such of the same kind.
    pub moved: Option<std::result::Result<(), String>>,
    surveyed: InOrder<Seen, Vec<f32>>,
    distance: InOrder<DistanceSums, DistanceSums>,
}

/// A worker's buffers for encoding.
#[derive(Default)]
pub(super) struct EncodeScratch {
    scratch: Scratch,
    pieces: Pieces,
}

/// What a worker keeps from tile to tile.
#[derive(Default)]
pub(super) struct Scratch {
    values: Vec<f32>,
    back: Vec<f32>,
    /// Values before they are widened.
    words: Vec<u32>,
    /// Values that surround those of a tile.
    around: Vec<f32>,
    /// Codes that are moved.
    codes: GroupCodes,
}

/// What was seen of all values so far: the largest magnitudes of runs of them.
#[derive(Debug, Clone)]
struct Seen {
    largest: f32,
    mean: Mean,
}

impl AddAssign<Vec<f32>> for Seen {
    fn add_assign(&mut self, maxima: Vec<f32>) {
        for max in maxima {
            self.largest = self.largest.max(max);
            self.mean.push(max);
        }
    }
}

impl<'m> Encoding<'m> {
    pub(super) fn new(
        name: String,
        shape: Vec<usize>,
        scheme: String,
        encoder: Box<dyn Encode>,
        decoder: Box<dyn Decode + 'm>,
        dtype: TargetDtype,
    ) -> Self {
        let (from, to) = (decoder.grid(), encoder.grid());
        let cut = cut(&to, &from);
        let decoder: Arc<dyn Decode + 'm> = Arc::from(decoder);
        let run = run_of(&*encoder).unwrap_or(1);
        let seen = Seen {
            largest: 0.0,
            mean: Mean::new((cut.rows * cut.cols).div_ceil(run)),
        };
        let (surveyed, distance) = (InOrder::new(seen), InOrder::new(DistanceSums::default()));
        let families = decoder
            .family()
            .zip(encoder.family())
            .filter(|_| (from.rows, from.cols) == (to.rows, to.cols));
        let moved = families.and_then(|(from, to)| from.fits(to));
        let (input, siblings) = (
            Input {
                name,
                decoder,
                dtype,
                cut,
            },
            vec![],
        );
        let bands = Bands::new(&cut, to.transposed);
        Self {
            input,
            shape,
            scheme,
            encoder,
            bands,
            siblings,
            moved,
            surveyed,
            distance,
        }
    }

    /// Whether codes are moved as they are.
    pub(super) fn is_moved(&self) -> bool {
        matches!(self.moved, Some(Ok(())))
    }

    /// Number of the jobs that come before tiles are encoded.
    pub(super) fn looks(&self) -> usize {
        let inputs = self.encoder.survey().is_some().then(|| self.inputs());
        inputs
            .into_iter()
            .flatten()
            .map(|input| input.cut.tiles())
            .sum()
    }

    /// Everything that the first pass looks at.
    fn inputs(&self) -> impl Iterator<Item = &Input<'m>> {
        std::iter::once(&self.input).chain(&self.siblings)
    }

    /// What the first pass has found, once it is over; at once if there is none.
    pub(super) fn survey(&self) -> Option<f64> {
        let Some(survey) = self.encoder.survey() else {
            return Some(0.0);
        };
        let seen = self.surveyed.of(self.looks())?;
        Some(match survey {
            Survey::Max => f64::from(seen.largest),
            Survey::MeanOfMax(_) => f64::from(seen.mean.finish()),
        })
    }

    /// Does job number `no` of the first pass.
    pub(super) fn look(
        &self,
        no: usize,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
    ) -> Result<()> {
        let mut tile = no;
        for input in self.inputs() {
            if tile < input.cut.tiles() {
                input.values(&input.cut.tile(tile), &self.scheme, buffers, scratch, level)?;
                break;
            }
            tile -= input.cut.tiles();
        }
        let run = run_of(&*self.encoder).unwrap_or(scratch.values.len().max(1));
        let largest = |values: &[f32]| values.iter().fold(0f32, |max, x| max.max(x.abs()));
        self.surveyed
            .add(no, scratch.values.chunks(run).map(largest).collect());
        Ok(())
    }

    /// Encodes tile number `no`.
    pub(super) fn run(
        &self,
        no: usize,
        survey: f64,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let tile = self.input.cut.tile(no);
        if self.is_moved() {
            return self.relay(no, &tile, buffers, scratch, level, put);
        }
        self.input
            .values(&tile, &self.scheme, buffers, scratch, level)?;
        let Scratch { values, back, .. } = scratch;
        back.resize(values.len(), 0.0);
        self.encoder.encode(
            &Values {
                tile: &tile,
                values,
                survey,
                level,
            },
            back,
            put,
        )?;
        if let Some(i) = first_not_finite(back) {
            let (x, scheme) = (values[i], &self.scheme);
            return Err(self.input.wrong(
                &tile,
                i,
                scheme,
                &format!("{x:e} would be {} in {scheme}", back[i]),
            ));
        }
        self.distance.add(no, compare(values, back, level));
        Ok(())
    }

    /// Moves the codes of tile number `no`. Nothing is lost, but values count where errors are set against them.
    fn relay(
        &self,
        no: usize,
        tile: &Tile,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (Scratch { values, codes, .. }, decoder) = (scratch, &*self.input.decoder);
        decoder.load(tile, buffers)?;
        decoder.codes(tile, buffers, codes);
        let families = decoder.family().zip(self.encoder.family());
        if let Some((group, what)) = families.and_then(|(from, to)| from.differs(to, codes)) {
            let row = tile.rows.start + group / (codes.exponents.len() / tile.rows.len()).max(1);
            let what = format!("tensor `{}`, row {row}: {what}", self.input.name);
            return Err(AnamnesisError::unsupported(&self.scheme, what));
        }
        values.resize(tile.values(), 0.0);
        decoder.decode(tile, tile.rows.clone(), buffers, level, Out::F32(values));
        let sums = match first_not_finite(values) {
            // Exponents can be such that a library has no number for them.
            Some(_) => DistanceSums {
                count: values.len() as u64,
                ..DistanceSums::default()
            },
            None => compare(values, values, level),
        };
        self.encoder.pack(tile, codes, level, put)?;
        self.distance.add(no, sums);
        Ok(())
    }
}

impl Input<'_> {
    /// Brings the values of `tile` into `scratch`. Those that `scheme` has no code for are refused.
    fn values(
        &self,
        tile: &Tile,
        scheme: &str,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
    ) -> Result<()> {
        let Scratch {
            values,
            words,
            around,
            ..
        } = scratch;
        values.resize(tile.values(), 0.0);
        if self.decoder.grid().cols == self.cut.cols {
            self.decode(tile, buffers, words, level, values)?;
        } else {
            // The decoder's rows are others, so that values are found by their number in the tensor.
            for (first, run) in tile.runs(self.cut.cols) {
                let (covering, before) =
                    covering(&self.decoder.grid(), &(first..first + run.len()));
                around.resize(covering.values(), 0.0);
                self.decode(&covering, buffers, words, level, around)?;
                let found = &around[before..before + run.len()];
                values[run].copy_from_slice(found);
            }
        }
        match first_not_finite(values) {
            Some(i) => Err(self.wrong(
                tile,
                i,
                scheme,
                &format!("{} cannot be encoded to {scheme}", values[i]),
            )),
            None => Ok(()),
        }
    }

    /// Decodes a tile of the decoder's, rounded as the tensor would be stored without encoding.
    fn decode(
        &self,
        tile: &Tile,
        buffers: &mut Buffers,
        words: &mut Vec<u32>,
        level: Level,
        out: &mut [f32],
    ) -> Result<()> {
        self.decoder.load(tile, buffers)?;
        if self.dtype == TargetDtype::F32 {
            self.decoder
                .decode(tile, tile.rows.clone(), buffers, level, Out::F32(out));
            return Ok(());
        }
        words.resize(out.len().div_ceil(2), 0);
        let rounded = Out::new(self.dtype, words).first(out.len());
        self.decoder
            .decode(tile, tile.rows.clone(), buffers, level, rounded);
        let bytes = &bytemuck::cast_slice(words)[..out.len() * 2];
        dispatch(
            level,
            &Widen {
                dtype: self.dtype.dtype(),
                bytes,
            },
            Out::F32(out),
        );
        Ok(())
    }

    fn wrong(&self, tile: &Tile, i: usize, scheme: &str, what: &str) -> AnamnesisError {
        let (row, col) = (
            tile.rows.start + i / tile.cols.len(),
            tile.cols.start + i % tile.cols.len(),
        );
        AnamnesisError::unsupported(
            scheme,
            format!("tensor `{}`, row {row}, column {col}: {what}", self.name),
        )
    }
}

/// Values of which the largest is wanted, if not of all.
fn run_of(encoder: &dyn Encode) -> Option<usize> {
    match encoder.survey() {
        Some(Survey::MeanOfMax(n)) => Some(n),
        _ => None,
    }
}

/// Tiles that suit both sides.
fn cut(encoder: &Grid, decoder: &Grid) -> Cut {
    let Grid { rows, cols, .. } = *encoder;
    let same = decoder.cols == cols;
    let (row_align, col_align) = match same {
        true => (
            lcm(encoder.row_align, decoder.row_align),
            lcm(encoder.col_align, decoder.col_align).min(cols),
        ),
        false => (encoder.row_align, encoder.col_align.min(cols)),
    };
    let widest = match () {
        () if same && decoder.transposed => NARROW,
        () if encoder.transposed => LOW,
        () => TILE_VALUES / row_align,
    };
    let tile_cols = if cols <= widest {
        cols
    } else {
        round_down(widest, col_align).min(cols)
    };
    let tile_rows = round_down(TILE_VALUES / tile_cols.max(1), row_align).min(rows.max(1));
    Cut {
        rows,
        cols,
        tile_rows,
        tile_cols: tile_cols.max(1),
    }
}

/// The tile of `grid` that has values number `range` of the tensor, and how many come before them there.
fn covering(grid: &Grid, range: &Range<usize>) -> (Tile, usize) {
    let around = |range: Range<usize>, align: usize, end: usize| {
        range.start / align * align..range.end.next_multiple_of(align).min(end)
    };
    if grid.rows == 1 {
        let cols = around(range.clone(), grid.col_align, grid.cols);
        let before = range.start - cols.start;
        return (Tile { rows: 0..1, cols }, before);
    }
    let rows = around(
        range.start / grid.cols..range.end.div_ceil(grid.cols),
        grid.row_align,
        grid.rows,
    );
    let before = range.start - rows.start * grid.cols;
    (
        Tile {
            rows,
            cols: 0..grid.cols,
        },
        before,
    )
}
