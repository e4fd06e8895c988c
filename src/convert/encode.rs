//! Encoding a tensor: tile by tile, its values come from the stored floats or from a decoder, and
//! the bytes that an encoder makes of them go to one or several output tensors.
//!
//! Some encoders have to know all values before they encode the first, such as the largest
//! magnitude for a scale of the whole tensor. Those have a survey pass: jobs that decode every tile
//! and keep a few numbers of it. Tiles are decoded twice then, because keeping the values would
//! take the memory of a whole tensor.
//!
//! Tiles are done in any order, on any thread. What is summed over tiles is floating-point, so the
//! sums are made in the order of the tiles ([`InOrder`]), and the output does not depend on the
//! number of threads.

mod bands;
mod counted;
mod in_order;
mod input;
mod relay;
mod siblings;
mod strips;
mod tiles;

use std::ops::AddAssign;
use std::sync::{Arc, OnceLock};

use self::bands::Bands;
pub(super) use self::counted::count_exponents;
use self::in_order::InOrder;
use self::input::EncodeInput;
pub(super) use self::input::dtype_of;
use self::relay::ExponentRange;
pub(super) use self::relay::RelayDecision;
pub(super) use self::siblings::link_siblings;
use super::cut::Cut;
use super::held::Pieces;
use crate::error::InTensor;
use crate::lethe::kernels::distance::{Comparison, DistanceSums};
use crate::lethe::kernels::integer::StepErrors;
use crate::lethe::kernels::mean::Mean;
use crate::lethe::{Encode, EncodeBuffers, Importance, Put, Survey, TileStatistics, TileValues};
use crate::remember::{Buffers, Decode, GroupCodes, Tile};
use crate::simd::Level;
use crate::{Result, TargetDtype};

/// A tensor that is encoded.
pub(super) struct Encoding<'m> {
    input: EncodeInput<'m>,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Name of the scheme that it is encoded to, for messages.
    scheme: String,
    encoder: Box<dyn Encode>,
    /// What errors are weighted with, if scales are searched.
    importance: Option<Importance>,
    /// Tiles that are encoded by one job.
    bands: Bands,
    /// Tensors that inference fuses with this one, so that they share a scale. Their tiles are
    /// surveyed as well. Each of them has its own encoding, which surveys this one: jobs then
    /// depend only on jobs of the same encoding.
    siblings: Vec<EncodeInput<'m>>,
    /// Whether stored codes are moved undecoded.
    pub relay: RelayDecision,
    surveyed: InOrder<SurveyTotal, TileSurvey>,
    distance: InOrder<DistanceSums, DistanceSums>,
}

/// A worker's buffers for encoding.
#[derive(Default)]
pub(super) struct EncodeScratch {
    scratch: Scratch,
    pieces: Pieces,
}

/// Buffers that a worker reuses from tile to tile.
#[derive(Default)]
struct Scratch {
    values: Vec<f32>,
    statistics: TileStatistics,
    /// The largest magnitudes of the blocks that the values are in, if they are known.
    maxima: Vec<f32>,
    /// The values as decoding the codes will give them.
    back: Vec<f32>,
    /// Values of two bytes each, before they are widened to F32.
    rounded: Vec<u32>,
    /// A tile of the decoder's grid that covers a run of values.
    surrounding: Vec<f32>,
    /// The encoder's own.
    encoder: EncodeBuffers,
    /// Codes that are relayed.
    codes: GroupCodes,
}

/// What the survey pass has found of a tile.
#[derive(Debug, Default)]
struct TileSurvey {
    /// Of runs of values, the largest magnitudes.
    maxima: Vec<f32>,
    /// Of groups that are optimised, the errors before each step.
    errors: Option<Box<StepErrors>>,
    /// Of codes that may be relayed, the exponents.
    exponents: Option<ExponentRange>,
}

/// What the survey pass has found of all tiles.
#[derive(Debug, Clone)]
struct SurveyTotal {
    /// The largest magnitude.
    max_abs: f32,
    exponents: ExponentRange,
    /// The errors before each step, if the encoder needs them.
    errors: Option<Box<StepErrors>>,
    /// Over the maxima of the runs, if the encoder needs it. It is large beside the rest of a plan.
    mean: Option<Box<Mean>>,
}

impl AddAssign<TileSurvey> for SurveyTotal {
    fn add_assign(&mut self, tile: TileSurvey) {
        if let Some(exponents) = tile.exponents {
            self.exponents.add(exponents);
        }
        if let Some(errors) = tile.errors {
            **self.errors.get_or_insert_default() += &errors;
        }
        for max in tile.maxima {
            self.max_abs = self.max_abs.max(max);
            if let Some(mean) = &mut self.mean {
                mean.push(max);
            }
        }
    }
}

impl<'m> Encoding<'m> {
    /// Plans the encoding of a tensor whose values are those of `decoder`, rounded to `dtype`. With
    /// their `importance` scales are searched.
    ///
    /// # Errors
    /// The decoder cannot read what decides whether codes are relayed.
    pub(super) fn new(
        name: String,
        shape: Vec<usize>,
        scheme: String,
        (encoder, importance): (Box<dyn Encode>, Option<Importance>),
        decoder: Box<dyn Decode + 'm>,
        dtype: TargetDtype,
    ) -> Result<Self> {
        let (from, to) = (decoder.grid(), encoder.grid());
        let relay = RelayDecision::new(&*decoder, &*encoder, (&from, &to))?;
        let (cut, strips) = tiles::cut_for(&*encoder, &*decoder, dtype, importance.is_some());
        let mean = |run: usize| Box::new(Mean::new((cut.rows * cut.cols).div_ceil(run)));
        let total = SurveyTotal {
            max_abs: 0.0,
            exponents: ExponentRange::default(),
            errors: None,
            mean: run_len(&*encoder).map(mean),
        };
        let known = if encoder.shares_survey() {
            cut.tiles()
        } else {
            0
        };
        let input = EncodeInput {
            name,
            maxima: std::iter::repeat_with(OnceLock::new).take(known).collect(),
            strips,
            decoder: Arc::from(decoder),
            dtype,
            cut,
            relayed: match &relay {
                RelayDecision::AfterSurvey(source) => Some(source.clone()),
                _ => None,
            },
        };
        Ok(Self {
            input,
            shape,
            scheme,
            encoder,
            importance,
            bands: Bands::new(&cut, to.transposed.is_some()),
            siblings: vec![],
            relay,
            surveyed: InOrder::new(total),
            distance: InOrder::new(DistanceSums::default()),
        })
    }

    /// Name of the tensor.
    pub(super) fn name(&self) -> &str {
        &self.input.name
    }

    /// How the tensor is cut into tiles.
    pub(super) fn cut(&self) -> Cut {
        self.input.cut
    }

    /// The error that encoding introduced; `None` unless all tiles are done.
    pub(super) fn distance(&self) -> Option<DistanceSums> {
        self.distance.total_of(self.input.cut.tiles())
    }

    /// The encoder's warning, with the tensor's name.
    pub(super) fn warning(&self) -> Option<String> {
        let warning = self.encoder.warning()?;
        Some(format!("{}: {warning}", InTensor(&self.name())))
    }

    /// Number of all jobs.
    pub(super) fn jobs(&self) -> usize {
        self.survey_jobs() + self.bands.jobs()
    }

    /// Number of jobs of the survey pass. They come before the jobs that encode; 0 if the encoder
    /// needs no survey.
    pub(super) fn survey_jobs(&self) -> usize {
        let inputs = self
            .encoder
            .survey()
            .is_some()
            .then(|| self.surveyed_inputs());
        inputs
            .into_iter()
            .flatten()
            .map(|input| input.cut.tiles())
            .sum()
    }

    fn surveyed_inputs(&self) -> impl Iterator<Item = &EncodeInput<'m>> {
        std::iter::once(&self.input).chain(&self.siblings)
    }

    /// What the encoder has to know of all values; `None` before the last job of the survey pass is
    /// done.
    pub(super) fn survey_result(&self) -> Option<SurveyResult> {
        let Some(survey) = self.encoder.survey() else {
            return Some(SurveyResult::default());
        };
        let total = self.surveyed.total_of(self.survey_jobs())?;
        Some(SurveyResult {
            value: match survey {
                Survey::MaxAbs => f64::from(total.max_abs),
                Survey::MeanOfBlockMaxAbs(_) => total.mean.map_or(0.0, |mean| mean.finish().into()),
                Survey::Steps => total
                    .errors
                    .map_or(0.0, |errors| errors.steps(self.shape.iter().product()) as f64),
            },
            top_exponent: total.exponents.top_of_nvfp4(),
        })
    }

    /// Does job `no` of the survey pass: one tile of this tensor or of a sibling.
    ///
    /// # Errors
    /// Reading fails, or a value is not finite.
    pub(super) fn survey_tile(
        &self,
        no: usize,
        buffers: &mut Buffers,
        EncodeScratch { scratch, .. }: &mut EncodeScratch,
        level: Level,
    ) -> Result<()> {
        if self.encoder.survey() == Some(Survey::Steps) {
            let errors = self.step_errors(no, buffers, scratch, level)?;
            self.surveyed
                .add(no, TileSurvey { errors: Some(errors), ..TileSurvey::default() });
            return Ok(());
        }
        let (mut tile, mut maxima) = (no, Vec::new());
        for input in self.surveyed_inputs() {
            if tile < input.cut.tiles()
                && let (RelayDecision::AfterSurvey(_), Some(source)) = (&self.relay, &input.relayed)
            {
                let tile = input.cut.tile(tile);
                let found = input.survey_codes(&tile, source, buffers, scratch)?;
                if let Some(found) = found {
                    self.surveyed.add(no, found);
                    return Ok(());
                }
            }
            if tile < input.cut.tiles() {
                let shared = input.maxima.get(tile);
                if let Some(&max) = shared.and_then(OnceLock::get) {
                    maxima.push(max);
                    break;
                }
                let tile = input.cut.tile(tile);
                // Runs of a fixed length follow one another in the tensor, so an encoder that wants
                // such has parts of whole runs; `Survey::MeanOfBlockMaxAbs` lets the last be
                // shorter.
                let run = run_len(&*self.encoder);
                maxima =
                    input.largest_of_runs(&tile, run, &self.scheme, buffers, scratch, level)?;
                if let Some(shared) = shared {
                    let max = maxima.iter().copied().fold(0.0, f32::max);
                    // Another tensor's survey may have found the same.
                    let _ = shared.set(max);
                }
                break;
            }
            tile -= input.cut.tiles();
        }
        // A tensor of other codes has no exponents, and forbids that those of its siblings move.
        let exponents =
            matches!(self.relay, RelayDecision::AfterSurvey(_)).then_some(ExponentRange::NONE_FIT);
        self.surveyed
            .add(no, TileSurvey { maxima, exponents, errors: None });
        Ok(())
    }

    /// What the groups of a tile err by before each step of an optimiser.
    ///
    /// # Errors
    /// Reading fails, or a value is not finite.
    fn step_errors(
        &self,
        no: usize,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
    ) -> Result<Box<StepErrors>> {
        let (input, tile) = (&self.input, self.input.cut.tile(no));
        let mut errors = Box::<StepErrors>::default();
        input.for_each_part(
            (&tile, None),
            &self.scheme,
            buffers,
            scratch,
            level,
            |_, _, scratch| {
                *errors += &self.encoder.step_errors(&scratch.values, level);
                Ok(())
            },
        )?;
        Ok(errors)
    }

    /// Encodes the tiles of band `no`, and passes the stored bytes to `put`, merged as far as they
    /// are contiguous. `survey` is the [`survey_result`](Self::survey_result).
    ///
    /// # Errors
    /// Reading or storing fails, or a value is not finite, or has no finite code.
    pub(super) fn encode_band(
        &self,
        no: usize,
        survey: SurveyResult,
        buffers: &mut Buffers,
        EncodeScratch { scratch, pieces }: &mut EncodeScratch,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let tiles = self.bands.tiles(no);
        // A lone tile needs no putting together: neighbours that its bytes could be merged with are
        // in other bands.
        if let (1, Some(tile), false) =
            (tiles.len(), tiles.clone().next(), self.input.strips.is_some())
        {
            return self.encode_tile((tile, None), survey, buffers, scratch, level, put);
        }
        pieces.clear();
        let band = self.input.load_band(tiles.clone(), buffers)?;
        for tile in tiles {
            let mut collect = |part: usize, at, bytes: &[u8]| {
                pieces.add(part, at, bytes);
                Ok(())
            };
            let tile = (tile, band.as_ref());
            self.encode_tile(tile, survey, buffers, scratch, level, &mut collect)?;
        }
        pieces.flush(put)
    }

    /// Encodes tile `no`, which may lie in a `band` that is loaded, or relays its codes, and passes
    /// the stored bytes to `put`. `survey` is the [`survey_result`](Self::survey_result).
    ///
    /// # Errors
    /// Reading or storing fails, or a value is not finite, or has no finite code.
    fn encode_tile(
        &self,
        (no, band): (usize, Option<&Tile>),
        survey: SurveyResult,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let tile = &self.input.cut.tile(no);
        let relayed = match (&self.relay, survey.top_exponent) {
            (RelayDecision::Relay(source), _) => Some((source, 0)),
            (RelayDecision::AfterSurvey(source), Some(top)) => Some((source, top)),
            _ => None,
        };
        if let (Some((source, top)), Some(target)) = (relayed, self.encoder.relay()) {
            let sides = (&**source, &target, top);
            return self.relay_tile((no, tile), sides, buffers, scratch, level, put);
        }
        let (mut sums, mut strip) = (DistanceSums::default(), Comparison::default());
        let encode_part = |part: &Tile, ends_strip: bool, scratch: &mut Scratch| {
            self.encode_part(part, survey.value, scratch, level, put, &mut strip)?;
            if ends_strip {
                sums += std::mem::take(&mut strip).sums();
            }
            Ok(())
        };
        self.input.for_each_part(
            (tile, band),
            &self.scheme,
            buffers,
            scratch,
            level,
            encode_part,
        )?;
        self.distance.add(no, sums);
        Ok(())
    }

    /// Encodes `scratch.values`, which are those of `part`, and passes the stored bytes to `put`.
    /// Adds the distance of what they decode to.
    ///
    /// # Errors
    /// Storing fails, or a value has no finite code.
    fn encode_part(
        &self,
        part: &Tile,
        survey: f64,
        scratch: &mut Scratch,
        level: Level,
        put: &mut Put<'_>,
        distance: &mut Comparison,
    ) -> Result<()> {
        let Scratch { values, statistics, maxima, back, encoder: buffers, .. } = scratch;
        back.resize(values.len(), 0.0);
        statistics.clear();
        if let Some(importance) = &self.importance {
            importance.of_tile(part, self.input.cut.cols, statistics)?;
        }
        let activations = statistics.activations();
        let input = TileValues { tile: part, values, survey, maxima, activations, level };
        self.encoder.encode(&input, buffers, back, put)?;
        distance.add(values, back, level);
        if self
            .importance
            .as_ref()
            .is_some_and(Importance::is_measured)
        {
            distance.add_outputs(activations.outputs(values, back, level));
        }
        // A finite value can be too large for the scheme. Its library would store the infinity
        // without a word.
        if !distance.sums().is_finite()
            && let Some(i) = back.iter().position(|x| !x.is_finite())
        {
            let (x, scheme) = (values[i], &self.scheme);
            let what = format!("{x:e} would be {} in {scheme}", back[i]);
            return Err(self.input.refused(part, i, scheme, &what));
        }
        Ok(())
    }
}

/// What the survey pass has found, for jobs that encode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SurveyResult {
    /// The encoder's [`Survey`]; 0 if it needs none.
    value: f64,
    /// The largest exponent, if codes of MXFP4 move to NVFP4.
    top_exponent: Option<u8>,
}

/// Length of the runs whose maxima are averaged, if the encoder wants that average.
fn run_len(encoder: &dyn Encode) -> Option<usize> {
    match encoder.survey() {
        Some(Survey::MeanOfBlockMaxAbs(n)) => Some(n),
        _ => None,
    }
}
