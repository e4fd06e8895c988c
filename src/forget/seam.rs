//! The seam between the pipeline and the schemes that models are encoded to.

pub(crate) mod grouped;
pub(crate) mod names;
pub(crate) mod rows;

use crate::scheme::{Family, Grid, GroupCodes, Tile};
use crate::simd::Level;
use crate::{Dtype, Result, TargetDtype};

/// A tensor that is to be encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weight<'a> {
    /// Name in the model, `….weight` as a rule.
    pub name: &'a str,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// Type of its values, and of the scales where a scheme stores those in the type of the model.
    pub dtype: TargetDtype,
}

impl Weight<'_> {
    /// Number of rows, all dimensions but the last together.
    pub(crate) fn rows(&self) -> usize {
        self.shape
            .split_last()
            .map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Length of a row.
    pub(crate) fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Name of the module: without `.weight`.
    pub(crate) fn base(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(self.name)
    }
}

/// One of the stored tensors that an encoded one becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
}

/// What has to be known of all values before the first of them is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survey {
    /// The largest magnitude.
    Max,
    /// The mean of the largest magnitudes of so many values each, in their order; the last may be fewer.
    MeanOfMax(usize),
}

/// Values to be encoded: a tile of the tensor, row by row. All are finite.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    pub tile: &'a Tile,
    pub values: &'a [f32],
    /// What was surveyed.
    pub survey: f64,
    pub level: Level,
}

/// Where codes go: the number of a stored tensor, a byte in it, the bytes.
pub(crate) type Put<'a> = dyn FnMut(usize, u64, &[u8]) -> Result<()> + 'a;

/// Encodes one logical tensor, tile by tile, on any thread, in any order.
pub(crate) trait Encode: Send + Sync {
    /// What is stored, in the order of the output.
    fn stored(&self) -> Vec<Stored>;

    /// How the values may be cut. `load_bits` is what the encoder needs beside values, for each of them.
    fn grid(&self) -> Grid;

    /// What `encode` has to know of all values.
    fn survey(&self) -> Option<Survey> {
        None
    }

    /// Whether weights that inference fuses into one are surveyed together.
    fn shares(&self) -> bool {
        false
    }

    /// What a user should know, once all tiles are encoded.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Encodes a tile: passes what is stored of it to `put`, and makes `back` the values that decoding will give, row
    /// by row. The tile at (0, 0) also passes what belongs to no tile.
    fn encode(&self, values: &Values<'_>, back: &mut [f32], put: &mut Put<'_>) -> Result<()>;

    /// What the codes are, if other schemes can have the same.
    fn family(&self) -> Option<Family> {
        None
    }

    /// Stores codes of its family that another scheme had, as [`encode`](Self::encode) does those that it makes.
    fn pack(
        &self,
        tile: &Tile,
        codes: &mut GroupCodes,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let _ = (tile, codes, level, put);
        Ok(())
    }
}

/// Which tensors a method is for, as a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Weights of linear layers.
    Linear,
    /// Those, embeddings and the last layer.
    LinearAndEmbeddings,
    /// Every tensor.
    All,
}

/// A way to encode tensors, with all its parameters.
pub(crate) trait Method: Send + Sync {
    /// Whether tensors without values are encoded, too.
    fn takes_empty(&self) -> bool {
        false
    }

    /// Why a tensor like this cannot be encoded: `its 100 columns are no multiple of 64`.
    fn objection(&self, weight: &Weight<'_>) -> Option<String>;

    /// The encoder of a tensor without objection.
    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>>;

    /// What `config.json` says of it; `skipped` are the modules that stay as they are.
    fn config(&self, skipped: &[String]) -> Option<serde_json::Value> {
        let _ = skipped;
        None
    }
}
