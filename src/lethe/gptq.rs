//! The layout of GPTQ, without its search: codes are rounded to nearest, and groups follow the
//! order of inputs.
//!
//! - `X.qweight` I32 `[in * bits / 32, out]`: the weight `[out, in]` packed along its rows and
//!   transposed.
//! - `X.qzeros` I32 `[groups, out * bits / 32]`: zero points, packed along the outputs of a group;
//!   in version 1 less one.
//! - `X.scales` F16 `[groups, out]`.
//! - `X.g_idx` I32 `[in]`: the group of each input, which loaders expect even if groups are in
//!   order.
//!
//! Layout and config: gptqmodel 7.7.0 `nn_modules/qlinear/__init__.py`
//! (`PackableQuantLinear.pack_original`), `quantization/config.py`.

use serde_json::{Value, json};

use super::{Encode, Method, StoredTensor, WeightInfo};
use crate::config::object;
use crate::lethe::kernels::integer::{IntegerQuantizer, IntegerRule};
use crate::lethe::seam::grouped::{
    Grouped, MatrixForm, StoredMatrix, WordPacking, grouped_matrix_objection, module_objection,
};
use crate::{Dtype, Result, TargetDtype};

/// Integers in the layout of GPTQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gptq {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: usize,
    /// Inputs of a group. None: all inputs.
    pub group: Option<usize>,
    pub symmetric: bool,
    /// Whether zero points are stored as they are (`gptq_v2`), not less one. gptqmodel loads
    /// asymmetric models of other programs in this version only.
    pub version_2: bool,
}

impl Gptq {
    pub(crate) const INT4: Self =
        Self { bits: 4, group: Some(128), symmetric: true, version_2: false };
    pub(crate) const INT8: Self = Self { bits: 8, ..Self::INT4 };

    fn group_of(&self, weight: &WeightInfo<'_>) -> usize {
        self.group.unwrap_or_else(|| weight.cols())
    }

    /// The smallest number of codes that fills whole words: 32 codes of 3 bits fill three words.
    fn codes_in_whole_words(&self) -> usize {
        if 32usize.is_multiple_of(self.bits) {
            32 / self.bits
        } else {
            32
        }
    }
}

impl Method for Gptq {
    fn transposes_conv1d(&self) -> bool {
        true
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        // `qzeros` has whole words only: a remainder of outputs would have no zero points.
        let (rows, cols, unit) = (weight.rows(), weight.cols(), self.codes_in_whole_words());
        let shape = || grouped_matrix_objection(weight, self.group_of(weight));
        module_objection(weight)
            .or_else(shape)
            .or_else(|| match () {
                () if !rows.is_multiple_of(unit) => {
                    Some(format!("its {rows} rows are no multiple of {unit}"))
                }
                () if !cols.is_multiple_of(32) => {
                    Some(format!("its {cols} columns are no multiple of 32"))
                }
                () => None,
            })
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols, bits, group) =
            (weight.rows(), weight.cols(), self.bits, self.group_of(weight));
        let groups = cols / group;
        let stored = |end: &str, dtype, shape: &[usize]| StoredTensor {
            name: format!("{}.{end}", weight.base()),
            dtype,
            shape: shape.to_vec(),
        };
        let zeros = if self.version_2 {
            MatrixForm::Packed(WordPacking::DownColumns)
        } else {
            MatrixForm::PackedMinusOne(WordPacking::DownColumns)
        };
        let matrix = |part, form, cols| StoredMatrix { part, form, bits, rows, cols };
        Ok(Box::new(Grouped {
            name: weight.name.to_owned(),
            quantizer: IntegerQuantizer {
                rule: IntegerRule::Gptq { symmetric: self.symmetric },
                bits,
                group,
                dtype: weight.dtype,
            },
            stored: vec![
                stored("qweight", Dtype::I32, &[cols * bits / 32, rows]),
                stored("qzeros", Dtype::I32, &[groups, rows * bits / 32]),
                stored("scales", Dtype::F16, &[groups, rows]),
                stored("g_idx", Dtype::I32, &[cols]),
            ],
            codes: matrix(0, MatrixForm::Packed(WordPacking::AlongRowsTransposed), cols),
            offsets: Some(matrix(1, zeros, groups)),
            scales: matrix(
                2,
                MatrixForm::Floats { dtype: TargetDtype::F16, is_transposed: true },
                groups,
            ),
            row_align: self.codes_in_whole_words(),
            index: Some(3),
            constant: None,
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let format = if self.version_2 { "gptq_v2" } else { "gptq" };
        let mut config = json!({
            "bits": self.bits,
            // gptqmodel writes -1 for one group over all inputs.
            "group_size": self.group.map_or(-1, |group| group as i64),
            "desc_act": false,
            "lm_head": false,
            // Two keys each for the method and the format, as gptqmodel writes them: loaders read
            // either.
            "method": "gptq",
            "quant_method": "gptq",
            "format": format,
            "checkpoint_format": format,
            "pack_dtype": "int32",
            "meta": { "quantizer": [concat!("anamnesis:", env!("CARGO_PKG_VERSION"))] },
            "sym": self.symmetric,
        });
        // The key `lm_head` says that the output layer is not quantized. Other skipped modules are
        // excluded by a regular expression with a `-:` prefix, as `QuantizeConfig.dynamic` has it.
        let except = |name: &&String| !name.ends_with("lm_head");
        let excluded = skipped.iter().filter(except);
        let dynamic = object(excluded.map(|name| (format!("-:^{}$", escaped(name)), json!({}))));
        if !dynamic.is_empty() {
            config["dynamic"] = Value::Object(dynamic);
        }
        Some(config)
    }
}

/// A regular expression that matches the module name `name`, which has no special characters but
/// dots.
fn escaped(name: &str) -> String {
    name.replace('.', "\\.")
}
