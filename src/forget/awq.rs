//! AWQ's files without its search, GEMM layout: `X.qweight` I32 `[in, out / 8]`, `X.qzeros` I32 `[groups, out / 8]`,
//! `X.scales` F16 `[groups, out]`. Four bits, with zero points.
//!
//! Layout and config: AutoAWQ 0.2.9 `modules/linear/gemm.py` (`WQLinear_GEMM.from_linear`), `models/_config.py`.

use serde_json::{Value, json};

use super::{Encode, Method, Stored, Weight};
use crate::forget::seam::grouped::{Form, Grouped, Packing, Place, objection_to_matrix};
use crate::kernels::lethe::integer::{IntegerQuantizer, IntegerRule};
use crate::{Dtype, Result, TargetDtype};

const BITS: usize = 4;
const PER_WORD: usize = 32 / BITS;

/// Integers in AWQ's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Awq {
    /// Inputs of a group.
    pub group: usize,
}

impl Default for Awq {
    fn default() -> Self {
        Self { group: 128 }
    }
}

impl Method for Awq {
    fn objection(&self, weight: &Weight<'_>) -> Option<String> {
        let rows = weight.rows();
        // The library counts words as 4 for each 32 columns.
        let ragged = !rows.is_multiple_of(32);
        objection_to_matrix(weight, self.group)
            .or_else(|| ragged.then(|| format!("its {rows} rows are no multiple of 32")))
    }

    fn encoder(&self, weight: &Weight<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols, bits, group) = (weight.rows(), weight.cols(), BITS, self.group);
        let groups = cols / group;
        let stored = |end: &str, dtype, shape: [usize; 2]| Stored {
            name: format!("{}.{end}", weight.base()),
            dtype,
            shape: shape.to_vec(),
        };
        let matrix = |part, form, cols| Place {
            part,
            form,
            bits,
            rows,
            cols,
        };
        let interleaved = Form::Packed(Packing::Interleaved);
        Ok(Box::new(Grouped {
            name: weight.name.to_owned(),
            quantizer: IntegerQuantizer {
                rule: IntegerRule::Awq,
                bits,
                group,
                dtype: weight.dtype,
            },
            stored: vec![
                stored("qweight", Dtype::I32, [cols, rows / PER_WORD]),
                stored("qzeros", Dtype::I32, [groups, rows / PER_WORD]),
                stored("scales", Dtype::F16, [groups, rows]),
            ],
            codes: matrix(0, interleaved, cols),
            offsets: Some(matrix(1, interleaved, groups)),
            scales: matrix(
                2,
                Form::Floats {
                    dtype: TargetDtype::F16,
                    turned: true,
                },
                groups,
            ),
            row_align: PER_WORD,
            index: None,
            constant: None,
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let skipped = if skipped.is_empty() {
            Value::Null
        } else {
            json!(skipped)
        };
        Some(json!({
            "quant_method": "awq",
            "zero_point": true,
            "group_size": self.group,
            "bits": BITS,
            "version": "gemm",
            "modules_to_not_convert": skipped,
        }))
    }
}
