//! The seam between the pipeline and the schemes that models are encoded to.
//!
//! A [`Method`] is a scheme with its parameters. For each tensor it makes an [`Encode`], which
//! names the stored tensors and encodes values tile by tile, on any thread and in any order. Every
//! tile writes its bytes at positions that depend on nothing but the tile, so that the output does
//! not depend on the number of threads.
//!
//! - `grouped`: the encoder of integers in groups, which most schemes use.
//! - `rows`: helpers for stored tensors, alignments and objections.
//! - `names`: which tensors are not encoded by default.

pub(crate) mod grouped;
pub(crate) mod names;
pub(crate) mod rows;

use std::sync::Arc;

use self::grouped::WordBuffers;
use crate::lethe::activation_scales::ActivationScales;
use crate::lethe::kernels::activations::Activations;
use crate::lethe::kernels::dfloat11::EncodedRun;
use crate::lethe::kernels::integer::{IntegerGroups, StepErrors};
use crate::remember::{CodeFamily, EncodedAs, Grid, GroupCodes, QuantScheme, Tile};
use crate::simd::{Level, zip};
use crate::{Dtype, Result, TargetDtype};

/// Name, shape and type of a tensor that is to be encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WeightInfo<'a> {
    /// Full name, which ends in `.weight` for the weights of layers.
    pub name: &'a str,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// Type of the values. Some schemes compute in it, and store scales in it.
    pub dtype: TargetDtype,
}

impl WeightInfo<'_> {
    /// Number of rows: the product of all dimensions but the last.
    pub(crate) fn rows(&self) -> usize {
        self.shape
            .split_last()
            .map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Length of a row: the last dimension.
    pub(crate) fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Name of the module: the tensor's name without `.weight`.
    pub(crate) fn base(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(self.name)
    }
}

/// Name, type and shape of one of the stored tensors that an encoded tensor becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredTensor {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
}

/// What the survey pass computes of all values before the first tile is encoded. A scheme whose
/// scale depends on the whole tensor needs it, for tiles are encoded independently of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survey {
    /// The largest magnitude of all values.
    MaxAbs,
    /// The mean of the largest magnitudes of blocks of this many consecutive values. The last block
    /// may be shorter.
    MeanOfBlockMaxAbs(usize),
    /// The number of steps that HQQ's optimiser takes, by [`Encode::step_errors`] of all values.
    Steps,
}

/// Values of one tile, which are to be encoded.
#[derive(Debug)]
pub(crate) struct TileValues<'a> {
    pub tile: &'a Tile,
    /// The values, row by row. All are finite: the pipeline refuses others. If the grid has more values
    /// than the tensor, those behind the tensor's end are not there.
    pub values: &'a [f32],
    /// Result of the survey pass; 0 if the encoder has none.
    pub survey: f64,
    /// The largest magnitudes of the encoder's [`blocks`](Encode::blocks) that the tile is in, from
    /// left to right, if they are known; else empty, and the tile has whole blocks. If they are
    /// known, the tile is as wide as all of them or lies in one.
    pub maxima: &'a [f32],
    /// What errors of the values cost, if scales are searched.
    pub activations: Activations<'a>,
    pub level: Level,
}

/// Buffers that an encoder may use as it likes, and finds again for the next tile. What it has for
/// each value goes here: a buffer of some hundred KiB that is made anew for each tile is memory
/// that the system hands out and takes back each time.
#[derive(Debug, Default)]
pub(crate) struct EncodeBuffers {
    pub groups: IntegerGroups,
    pub codes: Vec<u8>,
    pub scales: Vec<f32>,
    pub scale_bytes: Vec<u8>,
    pub words: WordBuffers,
    pub stream: EncodedRun,
}

impl EncodeBuffers {
    /// Buffers for the bytes of codes and of scales of `values` values, with the number of values
    /// that a byte of each stands for. What they hold does not matter.
    pub(crate) fn codes_and_scales(
        &mut self,
        values: usize,
        [codes, scales]: [usize; 2],
    ) -> (&mut [u8], &mut [u8]) {
        self.codes.resize(values / codes, 0);
        self.scale_bytes.resize(values / scales, 0);
        (&mut self.codes, &mut self.scale_bytes)
    }
}

/// The exponents of a tile's values as BF16 or F32, counted while planning.
#[derive(Debug)]
pub(crate) struct ExponentTile {
    /// How often each occurs.
    pub counts: Box<[u32; 256]>,
    /// That of the last value.
    pub last: u8,
}

impl ExponentTile {
    /// The exponents of `values`.
    pub(crate) fn of(values: &[f32]) -> Self {
        let exponent = |x: &f32| (x.to_bits() >> 23 & 255) as u8;
        // Neighbouring values often have one exponent. Counts of their own need not wait for each
        // other.
        let mut counts = [[0u32; 256]; 4];
        let (whole, rest) = values.as_chunks::<4>();
        for four in whole {
            for (counts, x) in zip(&mut counts[..], four) {
                counts[usize::from(exponent(x))] += 1;
            }
        }
        for x in rest {
            counts[0][usize::from(exponent(x))] += 1;
        }
        let [mut sum, others @ ..] = counts;
        for other in others {
            for (sum, n) in zip(&mut sum[..], other) {
                *sum += n;
            }
        }
        Self { counts: Box::new(sum), last: values.last().map_or(0, exponent) }
    }
}

/// Takes encoded bytes: index of the stored tensor, offset of the first byte in it, bytes.
pub(crate) type Put<'a> = dyn FnMut(usize, u64, &[u8]) -> Result<()> + 'a;

/// Encodes one logical tensor, tile by tile, on any thread and in any order.
pub(crate) trait Encode: Send + Sync {
    /// The stored tensors, in the order in which they are written. `Put` refers to them by their
    /// index here.
    fn stored(&self) -> Vec<StoredTensor>;

    /// How the tensor may be cut into tiles: a tile boundary must never divide a group of values
    /// that share a scale, or a stored byte. `load_bits` is the memory that the encoder needs for
    /// each value, beside the value itself.
    fn grid(&self) -> Grid;

    /// The quantity over all values that `encode` needs, such as the largest magnitude; `None` if
    /// it needs none.
    fn survey(&self) -> Option<Survey> {
        None
    }

    /// What [`Survey::Steps`] needs of whole groups.
    fn step_errors(&self, values: &[f32], level: Level) -> StepErrors {
        let _ = (values, level);
        StepErrors::default()
    }

    /// Whether weights that inference engines fuse into one matrix are surveyed together, so that
    /// they get the same scale (see [`names::fused`]).
    fn shares_survey(&self) -> bool {
        false
    }

    /// Neighbouring values of a row whose codes share a line of the output, if the output is
    /// transposed: those that fill a word, or only one. The more they are, the fewer lines a wide
    /// tile has to write to.
    fn values_per_line(&self) -> usize {
        1
    }

    /// Whether tiles may be cut once more along their rows, and the parts encoded one after the
    /// other. Not if an encoder knows tiles by where they begin.
    fn takes_any_rows(&self) -> bool {
        true
    }

    /// Rows and columns of the blocks that share a scale, if a part of a block can be encoded as
    /// soon as its largest magnitude is known.
    fn blocks(&self) -> Option<[usize; 2]> {
        None
    }

    /// A warning for the user, asked for once all tiles are encoded.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Encodes a tile: passes its bytes to `put`, and fills `back` with the values that decoding
    /// will give, row by row. The report computes errors from them, so that nothing is read again.
    /// The tile at (0, 0) also writes the bytes that belong to no tile, such as the scale of the
    /// whole tensor. What `buffers` hold before does not matter.
    ///
    /// # Errors
    /// `Unsupported` if the scheme cannot hold a value or a scale, and the errors of `put`.
    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()>;

    /// The encoder's offer to store relayed codes: those of another scheme of the same family,
    /// undecoded. `None` if no other scheme has such codes.
    fn relay(&self) -> Option<RelayTarget<'_>> {
        None
    }
}

/// An encoder's offer to store relayed codes.
pub(crate) struct RelayTarget<'a> {
    pub family: CodeFamily,
    pub codes: &'a dyn StoreCodes,
}

/// Storing codes that another scheme made. No method has a default body, so that no encoder can
/// offer to relay codes and then write none.
pub(crate) trait StoreCodes {
    /// Stores the codes of `tile` as [`Encode::encode`] stores those that it makes: passes the
    /// bytes to `put`, and with the tile at (0, 0) what belongs to no tile. The vectors of `codes`
    /// may be taken.
    fn store_codes(
        &self,
        tile: &Tile,
        codes: &mut GroupCodes,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()>;
}

/// Which tensors a scheme encodes by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Weights of linear layers.
    Linear,
    /// Weights of linear layers, embeddings and the output layer.
    LinearAndEmbeddings,
    /// Weights of linear layers and the output layer, and embeddings if the model stores an output
    /// layer. Tied embeddings are both: libraries that decode a module when it is called would
    /// leave one of the two with codes.
    LinearAndUntiedEmbeddings,
    /// Every tensor.
    All,
}

/// A scheme with its parameters.
pub(crate) trait Method: Send + Sync {
    /// Whether tensors without values are encoded. Only containers that hold nothing but encoded
    /// tensors need that.
    fn takes_empty(&self) -> bool {
        false
    }

    /// The reason why a tensor of this name and shape cannot be encoded, such as `its 100 columns
    /// are no multiple of 64`.
    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String>;

    /// The encoder of a tensor that has no [`objection`](Self::objection).
    ///
    /// # Errors
    /// `Unsupported` if there is no encoder for the type, `Parse` if the importance matrix does not
    /// fit the tensor.
    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>>;

    /// Whether tensors of `scheme` are what an encoder makes, if they have its names, types and shapes:
    /// they are copied.
    fn makes(&self, scheme: QuantScheme) -> bool {
        let _ = scheme;
        false
    }

    /// Whether the inputs of a layer with this weight are its rows, as of a stack `[experts, in, out]`.
    fn inputs_are_rows(&self, weight: &WeightInfo<'_>) -> bool {
        let _ = weight;
        false
    }

    /// The method that stores the scales of activations as well, if the scheme's layout has them.
    fn with_activation_scales(&self, scales: &Arc<ActivationScales>) -> Option<Arc<dyn Method>> {
        let _ = scales;
        None
    }

    /// Whether the scheme's libraries store weights of `Conv1D` (GPT-2) as those of any linear
    /// layer.
    fn transposes_conv1d(&self) -> bool {
        false
    }

    /// Whether diffusers takes a module that is not to be quantized for every one whose name ends
    /// in that name.
    fn is_skipped_by_last_part(&self) -> bool {
        false
    }

    /// If the size of an encoded tensor depends on its values: how it may be cut into tiles, whose
    /// exponents are counted while planning. [`with_exponents`](Self::with_exponents) then makes
    /// the method that encodes it.
    fn counting_grid(&self, weight: &WeightInfo<'_>) -> Option<Grid> {
        let _ = weight;
        None
    }

    /// The method for a tensor with the exponents `tiles`, in the order of the tiles, or the reason
    /// why the tensor cannot be encoded. `None` if nothing need be counted.
    fn with_exponents(
        &self,
        tiles: &[ExponentTile],
    ) -> Option<std::result::Result<Arc<dyn Method>, String>> {
        let _ = tiles;
        None
    }

    /// The scheme's description in `config.json`, if it has one. `skipped` are the modules with a
    /// matrix that stays as it is: loaders would otherwise look for their scales.
    fn config(&self, skipped: &[String]) -> Option<serde_json::Value> {
        let _ = skipped;
        None
    }

    /// The description in `config.json` of a scheme that names the encoded modules there, and not
    /// those that are not.
    fn config_of_encoded(&self, modules: &[&str]) -> Option<serde_json::Value> {
        let _ = modules;
        None
    }

    /// The description in `config.json` of a model whose class says how its tensors are encoded.
    /// `modules` are those that are encoded, each with what the class says of it.
    fn config_of_class(&self, modules: &[(&str, EncodedAs)]) -> Option<serde_json::Value> {
        let _ = modules;
        self.config(&[])
    }
}
