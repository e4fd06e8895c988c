//! 4-bit weights of BitsAndBytes: NF4 and FP4, with scales in F32 or double-quantized.
//!
//! The tensor is a flat sequence in blocks of 64 values, regardless of its rows, so the stored
//! codes have the shape `[⌈n/2⌉, 1]` and the original shape is in `quant_state`. The first code of
//! a byte is in its high bits. Double quantization subtracts the mean of all scales from each,
//! which takes a survey pass, and quantizes the differences in blocks of 256 to an 8-bit map; tiles
//! then hold whole blocks of 256 scales.
//!
//! Layout: bitsandbytes 0.50.2 `functional.QuantState.as_dict`, `utils.pack_dict_to_tensor`.

use std::sync::OnceLock;

use zerocopy::IntoBytes;

use super::linear::{config, linear_layer_objection};
use crate::element::Out;
use crate::lethe::kernels::bnb::nested::{NESTED_BLOCK, dynamic_map, encode_nested};
use crate::lethe::kernels::bnb::{FP4_CODEBOOK, NF4_CODEBOOK, codebook_encoder};
use crate::lethe::kernels::codebook::CodebookEncoder;
use crate::lethe::seam::rows::flat_block_grid;
use crate::lethe::{
    Encode, EncodeBuffers, Method, Put, StoredTensor, Survey, TileValues, WeightInfo,
};
use crate::remember::bnb::Bnb4StateText;
use crate::remember::kernels::bnb::nested_absmax;
use crate::remember::kernels::codebook::{CodebookBlocks, PairTable};
use crate::remember::{Grid, QuantScheme};
use crate::simd::dispatch;
use crate::{Dtype, Result, TargetDtype};

/// The library's `quant_type`: the codebook of 4-bit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bnb4QuantType {
    Nf4,
    Fp4,
}

/// Tables that depend on the codebook only: thresholds for encoding, and pairs of values for
/// decoding a byte at once.
struct Bnb4Tables {
    encoder: CodebookEncoder,
    pairs: PairTable,
}

impl Bnb4QuantType {
    /// Name in `quant_state` and in the config.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
        }
    }

    fn codebook(self) -> &'static [f32; 16] {
        match self {
            Self::Nf4 => &NF4_CODEBOOK,
            Self::Fp4 => &FP4_CODEBOOK,
        }
    }

    fn tables(self) -> &'static Bnb4Tables {
        // One set of tables for each codebook, made when it is first needed: a table of 256 pairs
        // is too large to make for each tile.
        static TABLES: [OnceLock<Bnb4Tables>; 2] = [const { OnceLock::new() }; 2];
        let codebook = self.codebook();
        TABLES[self as usize].get_or_init(|| Bnb4Tables {
            encoder: codebook_encoder(codebook),
            pairs: PairTable::new(codebook, true),
        })
    }
}

/// The block sizes that bitsandbytes accepts.
const BLOCKS: [usize; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];

/// NF4 or FP4.
#[derive(Debug, Clone)]
pub(crate) struct Bnb4 {
    pub quant_type: Bnb4QuantType,
    /// Values that share a scale: a power of two from 32 to 4096. transformers uses 64.
    pub block: usize,
    /// Whether the scales are quantized, too (`compress_statistics`).
    pub double_quant: bool,
    /// Type in which layers compute, for the config.
    pub compute_dtype: TargetDtype,
}

impl Method for Bnb4 {
    fn makes(&self, scheme: QuantScheme) -> bool {
        scheme == QuantScheme::Bnb4
    }

    fn transposes_conv1d(&self) -> bool {
        true
    }

    fn is_skipped_by_last_part(&self) -> bool {
        true
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        if !BLOCKS.contains(&self.block) {
            return Some(format!("bitsandbytes has no blocks of {} values", self.block));
        }
        linear_layer_objection(weight)
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        Ok(Box::new(Bnb4Encoder {
            name: weight.name.to_owned(),
            shape: weight.shape.to_vec(),
            rows: weight.rows(),
            cols: weight.cols(),
            dtype: weight.dtype,
            method: self.clone(),
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<serde_json::Value> {
        Some(config(Some(self), skipped))
    }
}

/// Encodes one tensor to NF4 or FP4.
struct Bnb4Encoder {
    name: String,
    shape: Vec<usize>,
    rows: usize,
    cols: usize,
    dtype: TargetDtype,
    method: Bnb4,
}

// Indices of the stored tensors. The last two exist in double quantization only.
const WEIGHT: usize = 0;
const ABSMAX: usize = 1;
const QUANT_MAP: usize = 2;
const QUANT_STATE: usize = 3;
const NESTED_ABSMAX: usize = 4;
const NESTED_QUANT_MAP: usize = 5;

impl Bnb4Encoder {
    /// The JSON of `quant_state`. The text of double quantization has its full length without an
    /// offset as well.
    fn state(&self, offset: Option<f32>) -> Vec<u8> {
        Bnb4StateText {
            quant_type: self.method.quant_type.name(),
            block: self.method.block,
            dtype: self.dtype,
            shape: &self.shape,
            nested_offset: self.method.double_quant.then_some(offset.unwrap_or(0.0)),
        }
        .to_json()
    }

    /// Passes the stored tensors that belong to no tile to `put`: codebooks and `quant_state`.
    fn put_tables(&self, offset: f32, put: &mut Put<'_>) -> Result<()> {
        // `x + 0.0` turns -0 into +0 and leaves every other value as it is. The map in the
        // library's files has +0 at code 8 of FP4, although the kernels decode it as -0.
        let map = self.method.quant_type.codebook().map(|level| level + 0.0);
        put(QUANT_MAP, 0, map.as_bytes())?;
        if self.method.double_quant {
            put(NESTED_QUANT_MAP, 0, dynamic_map().as_bytes())?;
        }
        put(QUANT_STATE, 0, &self.state(Some(offset)))
    }
}

impl Encode for Bnb4Encoder {
    fn stored(&self) -> Vec<StoredTensor> {
        let n = self.rows * self.cols;
        let blocks = n.div_ceil(self.method.block);
        let state = format!(".quant_state.bitsandbytes__{}", self.method.quant_type.name());
        let stored = |suffix: &str, dtype, shape| StoredTensor {
            name: format!("{}{suffix}", self.name),
            dtype,
            shape,
        };
        // A quantized scale is an index into the map of 256 levels.
        let scales = if self.method.double_quant {
            Dtype::U8
        } else {
            Dtype::F32
        };
        let mut all = vec![
            stored("", Dtype::U8, vec![n.div_ceil(2), 1]),
            stored(".absmax", scales, vec![blocks]),
            stored(".quant_map", Dtype::F32, vec![16]),
            stored(&state, Dtype::U8, vec![self.state(None).len()]),
        ];
        if self.method.double_quant {
            all.push(stored(".nested_absmax", Dtype::F32, vec![blocks.div_ceil(NESTED_BLOCK)]));
            all.push(stored(".nested_quant_map", Dtype::F32, vec![256]));
        }
        all
    }

    fn grid(&self) -> Grid {
        let &Bnb4 { block, double_quant, .. } = &self.method;
        // A tile must hold whole blocks of scales, too, if those are quantized in blocks.
        let unit = if double_quant {
            // The inner codes of a block of 256 scales depend on the largest of them, so one tile
            // needs them all.
            block * NESTED_BLOCK
        } else {
            block
        };
        flat_block_grid(self.rows, self.cols, unit, 4.0 + 64.0 / block as f64)
    }

    fn survey(&self) -> Option<Survey> {
        self.method
            .double_quant
            .then_some(Survey::MeanOfBlockMaxAbs(self.method.block))
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let &Bnb4 { quant_type: kind, block, double_quant, .. } = &self.method;
        let (tables, offset) = (kind.tables(), values.survey as f32);
        let (codes, mut scales) = (&mut buffers.codes, Vec::new());
        let (mut inner, mut outer) = (Vec::new(), Vec::new());
        // Every run begins with a block (`flat_block_grid`), and blocks have an even size, so that
        // no byte is shared.
        for (start, run) in values.tile.runs(self.cols) {
            codes.clear();
            scales.clear();
            // Decoding has these scales, or those that the quantized ones stand for.
            let back = &mut back[run.clone()];
            let activations = values.activations.of_run(run.clone());
            let (decoded_now, decoded_later) = match double_quant {
                true => (&mut [][..], back),
                false => (back, &mut [][..]),
            };
            let (run, level) = (&values.values[run], values.level);
            let (encoder, out) = (&tables.encoder, (&mut *codes, &mut scales));
            match activations.is_empty() {
                true => encoder.encode(run, block, level, out, decoded_now),
                false => {
                    encoder.encode_searched((run, activations), block, level, out, decoded_now);
                }
            }
            put(WEIGHT, start as u64 / 2, codes)?;
            let first = start / block;
            if double_quant {
                inner.clear();
                outer.clear();
                encode_nested(&scales, offset, &mut inner, &mut outer);
                put(ABSMAX, first as u64, &inner)?;
                put(
                    NESTED_ABSMAX,
                    // A scale of the second level has four bytes, for 256 scales of one byte each.
                    (first / NESTED_BLOCK * 4) as u64,
                    outer.as_bytes(),
                )?;
                scales.clear();
                nested_absmax(
                    &inner,
                    0..inner.len(),
                    dynamic_map(),
                    &outer,
                    NESTED_BLOCK,
                    offset,
                    &mut scales,
                );
                let decoded = CodebookBlocks {
                    pairs: &tables.pairs,
                    bytes: codes,
                    start: 0,
                    block,
                    scales: &scales,
                };
                dispatch(values.level, &decoded, Out::F32(decoded_later));
            } else {
                put(ABSMAX, first as u64 * 4, scales.as_bytes())?;
            }
        }
        // These tensors belong to no tile; the first one writes them, so that they are written
        // once.
        if values.tile.is_first() {
            self.put_tables(offset, put)
        } else {
            Ok(())
        }
    }
}
