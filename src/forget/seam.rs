//! The seam between the pipeline and the schemes that models are encoded to. An encoder says which tensors it stores and how
//! its input may be cut into tiles; the pipeline makes the values of each tile, and writes what the encoder makes of them.

pub(crate) mod grouped;
pub(crate) mod names;
pub(crate) mod rows;

use crate::scheme::{CodeFamily, Grid, GroupCodes, Tile};
use crate::simd::Level;
use crate::{Dtype, Result, TargetDtype};

/// A tensor that may be encoded, as a method sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weight<'a> {
    /// Name in the model, `….weight` as a rule.
    pub name: &'a str,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// Dtype of its values. Some schemes store scales in it too.
    pub dtype: TargetDtype,
}

impl Weight<'_> {
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

    /// Name of the module that the weight belongs to: its own name without `.weight`.
    pub(crate) fn base(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(self.name)
    }
}

/// One of the tensors that an encoded tensor is stored as: its codes, its scales, and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
}

/// A number that an encoder has to know of all values before it encodes the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survey {
    /// The largest magnitude.
    Max,
    /// The mean over runs of this many values, in row-major order, of the largest magnitude of each run. The last run may
    /// be shorter.
    MeanOfMax(usize),
}

/// Values to be encoded: a tile of the tensor, row by row. All are finite.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    pub tile: &'a Tile,
    pub values: &'a [f32],
    /// The number that the encoder's [`Survey`] asks for; 0 if it asks for none.
    pub survey: f64,
    pub level: Level,
}

/// Writes a stored tensor: takes its index in [`Encode::stored`], a byte offset in it, and the bytes.
pub(crate) type Put<'a> = dyn FnMut(usize, u64, &[u8]) -> Result<()> + 'a;

/// Encodes one logical tensor, tile by tile, on any thread, in any order. What is stored does not depend on either.
pub(crate) trait Encode: Send + Sync {
    /// The tensors that are stored, in the order of the output.
    fn stored(&self) -> Vec<Stored>;

    /// How the values may be cut. `load_bits` is what the encoder needs for each value, beside the value itself.
    fn grid(&self) -> Grid;

    /// What [`encode`](Self::encode) has to know of all values.
    fn survey(&self) -> Option<Survey> {
        None
    }

    /// Whether weights that inference fuses into one matrix, such as Q, K and V, are surveyed together, because the
    /// fused matrix has one scale.
    fn shares(&self) -> bool {
        false
    }

    /// A warning for the user, once all tiles are encoded.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Encodes a tile. Passes the bytes that are stored of it to `put`, and with the tile at (0, 0) those that belong to no
    /// tile. Fills `back` with the values that decoding the tile will give, row by row.
    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()>;

    /// The encoder's offer to store relayed codes: those of another scheme of the same family, undecoded. `None` if no
    /// other scheme has such codes.
    fn relay(&self) -> Option<RelayTarget<'_>> {
        None
    }
}

/// An encoder's offer to store relayed codes.
pub(crate) struct RelayTarget<'a> {
    pub family: CodeFamily,
    pub codes: &'a dyn StoreCodes,
}

/// Storing codes that another scheme made. No method has a default body, so that no encoder can offer to relay codes and
/// then write none.
pub(crate) trait StoreCodes {
    /// Stores the codes of `tile` as [`Encode::encode`] stores those that it makes: passes the bytes to `put`, and with
    /// the tile at (0, 0) what belongs to no tile. The vectors of `codes` may be taken.
    fn store_codes(
        &self,
        tile: &Tile,
        codes: &mut GroupCodes,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()>;
}

/// Which tensors a method encodes, by their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Weights of linear layers.
    Linear,
    /// Weights of linear layers, embeddings and the last layer.
    LinearAndEmbeddings,
    /// Every tensor.
    All,
}

/// A way to encode tensors, with all its parameters.
pub(crate) trait Method: Send + Sync {
    /// Whether tensors without values are encoded.
    fn takes_empty(&self) -> bool {
        false
    }

    /// Why a tensor like this cannot be encoded: `its 100 columns are no multiple of 64`.
    fn objection(&self, weight: &Weight<'_>) -> Option<String>;

    /// The encoder of a tensor without objection.
    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>>;

    /// What `config.json` says of the quantization, if the scheme has anything there. `skipped` are the modules that are not
    /// encoded.
    fn config(&self, skipped: &[String]) -> Option<serde_json::Value> {
        let _ = skipped;
        None
    }
}
