//! MLX: packed codes `X.weight` U32 `[.., cols * bits / 32]` with `X.scales`, for weights of any
//! rank.
//!
//! - Affine mode: integers without zero points; `X.scales` and `X.biases` `[.., groups]` in the
//!   type of the model.
//! - Floating-point modes (`mxfp4`, `mxfp8`, `nvfp4`): `X.scales` U8 `[.., groups]`, exponents or
//!   E4M3.
//!
//! Packing runs along rows, so that all dimensions but the last stay: stacks of experts are encoded
//! like matrices.
//!
//! Layout: MLX 0.32.4 `mx.quantize`; config: mlx-lm 0.32.2 `utils.py` (`quantize_model`).

use serde_json::{Value, json};

use super::{
    Encode, EncodeBuffers, Method, Put, RelayTarget, StoreCodes, StoredTensor, TileValues,
    WeightInfo,
};
use crate::lethe::kernels::groups::GroupBuffers;
use crate::lethe::kernels::integer::{IntegerQuantizer, IntegerRule};
use crate::lethe::kernels::mlx::{self, MlxFloatMode};
use crate::lethe::seam::grouped::{
    Grouped, MatrixForm, StoredMatrix, WordBuffers, WordPacking, group_objection, module_objection,
};
use crate::lethe::seam::rows::put_codes_and_scales;
use crate::remember::{CodeFamily, EncodedAs, Grid, GroupCodes, QuantScheme, Tile, TopExponent};
use crate::simd::Level;
use crate::{Dtype, Result, TargetDtype};

/// The group sizes of MLX's affine mode.
const AFFINE_GROUPS: [usize; 3] = [32, 64, 128];

/// A mode of MLX's `quantize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mlx {
    /// Integers of 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128.
    Affine {
        bits: usize,
        group: usize,
    },
    Floating(MlxFloatMode),
}

impl Mlx {
    fn bits_and_group(self) -> (usize, usize) {
        match self {
            Self::Affine { bits, group } => (bits, group),
            Self::Floating(mode) => (mode.bits(), mode.group()),
        }
    }

    fn mode(self) -> &'static str {
        match self {
            Self::Affine { .. } => "affine",
            Self::Floating(MlxFloatMode::Mxfp4) => "mxfp4",
            Self::Floating(MlxFloatMode::Mxfp8) => "mxfp8",
            Self::Floating(MlxFloatMode::Nvfp4) => "nvfp4",
        }
    }
}

impl Method for Mlx {
    fn makes(&self, scheme: QuantScheme) -> bool {
        matches!(scheme, QuantScheme::Grouped { family: "MLX", .. })
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        if weight.shape.len() < 2 {
            return Some("it has fewer than two dimensions".to_owned());
        }
        // With another group size, which no kernel of MLX takes, rows could end within a word.
        match self {
            Self::Affine { group, .. } if !AFFINE_GROUPS.contains(group) => {
                return Some(format!("MLX has no groups of {group} values"));
            }
            _ => {}
        }
        module_objection(weight).or_else(|| group_objection(weight, self.bits_and_group().1))
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols, (bits, group)) = (weight.rows(), weight.cols(), self.bits_and_group());
        let stored = |end: &str, dtype, width: usize| {
            let mut shape = weight.shape.to_vec();
            // The last dimension alone is packed or grouped; experts and rows stay.
            shape
                .iter_mut()
                .next_back()
                .into_iter()
                .for_each(|last| *last = width);
            StoredTensor { name: format!("{}.{end}", weight.base()), dtype, shape }
        };
        let groups = cols / group;
        let matrix = |part, form, cols| StoredMatrix { part, form, bits, rows, cols };
        let words = stored("weight", Dtype::U32, cols * bits / 32);
        let codes = matrix(0, MatrixForm::Packed(WordPacking::AlongRows), cols);
        if let Self::Floating(mode) = *self {
            let stored = vec![words, stored("scales", Dtype::U8, groups)];
            let scales = matrix(1, MatrixForm::Bytes { flip: 0 }, groups);
            return Ok(Box::new(MlxFloatEncoder {
                mode,
                dtype: weight.dtype,
                stored,
                codes,
                scales,
            }));
        }
        let dtype = weight.dtype.dtype();
        let floats = MatrixForm::Floats { dtype: weight.dtype, is_transposed: false };
        Ok(Box::new(Grouped {
            name: weight.name.to_owned(),
            quantizer: IntegerQuantizer {
                rule: IntegerRule::Mlx,
                bits,
                group,
                dtype: weight.dtype,
            },
            stored: vec![words, stored("scales", dtype, groups), stored("biases", dtype, groups)],
            codes,
            scales: matrix(1, floats, groups),
            // The bias of a group is an offset of the decoded value, not a zero point of the code,
            // and of the model's type.
            offsets: Some(matrix(2, floats, groups)),
            row_align: 1,
            index: None,
            constant: None,
        }))
    }

    /// Skipped modules are `false`. mlx-lm accepts that, but does not write it: it quantizes the
    /// modules that have `scales`.
    fn config(&self, skipped: &[String]) -> Option<Value> {
        let (bits, group) = self.bits_and_group();
        let mut config = json!({ "group_size": group, "bits": bits, "mode": self.mode() });
        skipped
            .iter()
            .for_each(|module| config[module] = json!(false));
        Some(config)
    }

    /// As mlx-lm writes it: what is stored in another mode than the model has an entry. A model of
    /// which some is MXFP4 already is an MXFP4 model, and all else has entries. Modules without
    /// scales have none.
    fn config_of_class(&self, modules: &[(&str, EncodedAs)]) -> Option<Value> {
        let mxfp4 = Self::Floating(MlxFloatMode::Mxfp4);
        let is_mxfp4 = modules.iter().any(|(_, of)| *of == EncodedAs::Mxfp4);
        let own = self.config(&[])?;
        let mut config = match is_mxfp4 {
            true => mxfp4.config(&[])?,
            false => own.clone(),
        };
        for (module, of) in modules {
            match of {
                EncodedAs::Integers { bits, group } => {
                    config[*module] = json!({ "group_size": group, "bits": bits });
                }
                EncodedAs::Bits(bits) => config[*module] = json!({ "bits": bits }),
                EncodedAs::Scheme if is_mxfp4 => config[*module] = own.clone(),
                _ => {}
            }
        }
        Some(config)
    }
}

/// Encodes one tensor in a floating-point mode.
struct MlxFloatEncoder {
    mode: MlxFloatMode,
    dtype: TargetDtype,
    stored: Vec<StoredTensor>,
    codes: StoredMatrix,
    scales: StoredMatrix,
}

impl Encode for MlxFloatEncoder {
    fn stored(&self) -> Vec<StoredTensor> {
        self.stored.clone()
    }

    fn grid(&self) -> Grid {
        let StoredMatrix { rows, cols, bits, .. } = self.codes;
        // A byte for each code and its packed bits, and a byte for the scale of each group.
        let load_bits = (8 + bits) as f64 + 8.0 / self.mode.group() as f64;
        Grid { rows, cols, row_align: 1, col_align: self.mode.group(), load_bits, transposed: None }
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let TileValues { tile, values, activations, level, .. } = *values;
        let (unit, group) = (8 / self.mode.bits(), self.mode.group());
        let (codes, scale_bytes) = buffers.codes_and_scales(values.len(), [unit, group]);
        let groups = GroupBuffers { values, activations, codes, scale_bytes, back, level };
        mlx::encode(self.mode, self.dtype, groups);
        // Words are little-endian and their first code is the lowest, so that they are bytes of two
        // codes, or of one.
        let parts = [(unit, &*codes), (group, &*scale_bytes)];
        put_codes_and_scales(tile, self.codes.cols, parts, put)
    }

    fn relay(&self) -> Option<RelayTarget<'_>> {
        // Only MXFP4 is stored by other layouts with the same codes and exponents.
        (self.mode == MlxFloatMode::Mxfp4).then_some(RelayTarget {
            family: CodeFamily::Mxfp4 { top: TopExponent::Infinity },
            codes: self,
        })
    }
}

impl StoreCodes for MlxFloatEncoder {
    fn store_codes(
        &self,
        tile: &Tile,
        codes: &mut GroupCodes,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (mut codes, mut exponents) =
            (std::mem::take(&mut codes.codes), std::mem::take(&mut codes.exponents));
        let group = self.mode.group();
        let groups =
            Tile { rows: tile.rows.clone(), cols: tile.cols.start / group..tile.cols.end / group };
        let words = &mut WordBuffers::default();
        self.codes.put_codes(tile, &mut codes, level, words, put)?;
        self.scales
            .put_codes(&groups, &mut exponents, level, words, put)
    }
}
