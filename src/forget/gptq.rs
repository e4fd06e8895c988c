//! GPTQ's files without its search: `X.qweight` I32 `[in * bits / 32, out]`, `X.qzeros` I32 `[groups, out * bits / 32]`,
//! `X.scales` F16 `[groups, out]` and `X.g_idx` I32 `[in]`. Codes are rounded to nearest, groups lie in their order.
//!
//! Layout and config: gptqmodel 7.7.0 `nn_modules/qlinear/__init__.py` (`PackableQuantLinear.pack_original`),
//! `quantization/config.py`.

use serde_json::{Map, Value, json};

use super::{Encode, Method, Stored, Weight};
use crate::forget::seam::grouped::{Form, Grouped, Packing, Place, objection_to_matrix};
use crate::kernels::lethe::integer::{IntegerQuantizer, IntegerRule};
use crate::{Dtype, Result, TargetDtype};

/// Integers in GPTQ's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gptq {
    /// 2, 3, 4 or 8.
    pub bits: usize,
    /// Inputs of a group; none are all of them.
    pub group: Option<usize>,
    pub symmetric: bool,
    /// Whether zero points are stored as they are, `gptq_v2`, and not one too low. gptqmodel loads asymmetric models of
    /// other programs in this version only.
    pub version_2: bool,
}

impl Gptq {
    pub(crate) const INT4: Self = Self {
        bits: 4,
        group: Some(128),
        symmetric: true,
        version_2: false,
    };
    pub(crate) const INT8: Self = Self {
        bits: 8,
        ..Self::INT4
    };

    fn group_of(&self, weight: &Weight<'_>) -> usize {
        self.group.unwrap_or_else(|| weight.cols())
    }

    /// Codes that fill whole words.
    fn per_words(&self) -> usize {
        if 32usize.is_multiple_of(self.bits) {
            32 / self.bits
        } else {
            32
        }
    }
}

impl Method for Gptq {
    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        let (rows, cols, per_words) = (weight.rows(), weight.cols(), self.per_words());
        objection_to_matrix(weight, self.group_of(weight)).or_else(|| match () {
            () if !rows.is_multiple_of(per_words) => {
                Some(format!("its {rows} rows are no multiple of {per_words}"))
            }
            () if !cols.is_multiple_of(32) => {
                Some(format!("its {cols} columns are no multiple of 32"))
            }
            () => None,
        })
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols, bits, group) = (
            weight.rows(),
            weight.cols(),
            self.bits,
            self.group_of(weight),
        );
        let groups = cols / group;
        let stored = |end: &str, dtype, shape: &[usize]| Stored {
            name: format!("{}.{end}", weight.base()),
            dtype,
            shape: shape.to_vec(),
        };
        let zeros = if self.version_2 {
            Form::Packed(Packing::Down)
        } else {
            Form::Lowered(Packing::Down)
        };
        let matrix = |part, form, cols| Place {
            part,
            form,
            bits,
            rows,
            cols,
        };
        Ok(Box::new(Grouped {
            name: weight.name.to_owned(),
            quantizer: IntegerQuantizer {
                rule: IntegerRule::Gptq {
                    symmetric: self.symmetric,
                },
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
            codes: matrix(0, Form::Packed(Packing::AlongTurned), cols),
            offsets: Some(matrix(1, zeros, groups)),
            scales: matrix(
                2,
                Form::Floats {
                    dtype: TargetDtype::F16,
                    turned: true,
                },
                groups,
            ),
            row_align: self.per_words(),
            index: Some(3),
            constant: None,
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let format = if self.version_2 { "gptq_v2" } else { "gptq" };
        let mut config = json!({
            "bits": self.bits,
            "group_size": self.group.map_or(-1, |group| group as i64),
            "desc_act": false,
            "lm_head": false,
            "method": "gptq",
            "quant_method": "gptq",
            "format": format,
            "checkpoint_format": format,
            "pack_dtype": "int32",
            "meta": { "quantizer": [concat!("anamnesis:", env!("CARGO_PKG_VERSION"))] },
            "sym": self.symmetric,
        });
        // `lm_head` says that of itself.
        let except = |name: &&String| !name.ends_with("lm_head");
        let dynamic: Map<String, Value> = skipped
            .iter()
            .filter(except)
            .map(|name| (format!("-:^{}$", escaped(name)), json!({})))
            .collect();
        if !dynamic.is_empty() {
            config["dynamic"] = Value::Object(dynamic);
        }
        Some(config)
    }
}

/// `name` as a regular expression for itself.
fn escaped(name: &str) -> String {
    name.replace('.', "\\.")
}
