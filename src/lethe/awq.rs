//! The GEMM layout of AWQ, without its search for scales of columns: four bits, with zero points.
//!
//! `X.qweight` I32 `[in, out / 8]`, `X.qzeros` I32 `[groups, out / 8]`, `X.scales` F16 `[groups,
//! out]`. The weight `[out, in]` is transposed, and a word has the codes of eight outputs in the
//! order 0, 2, 4, 6, 1, 3, 5, 7.
//!
//! Layout and config: AutoAWQ 0.2.9 `modules/linear/gemm.py` (`WQLinear_GEMM.from_linear`),
//! `models/_config.py`.

use serde_json::{Value, json};

use super::{Encode, Method, StoredTensor, WeightInfo};
use crate::lethe::kernels::integer::{IntegerQuantizer, IntegerRule};
use crate::lethe::seam::grouped::{
    Grouped, MatrixForm, StoredMatrix, WordPacking, grouped_matrix_objection, module_objection,
};
use crate::{Dtype, Result, TargetDtype};

const BITS: usize = 4;
const PER_WORD: usize = 32 / BITS;

/// Integers in the layout of AWQ.
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
    fn transposes_conv1d(&self) -> bool {
        true
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        let rows = weight.rows();
        // The library computes the width of packed tensors as `out // 32 * 4` words.
        // Without this, `out // 32 * 4` would leave the last outputs out of `qzeros`, and the
        // loader would read another shape.
        let is_ragged = !rows.is_multiple_of(32);
        module_objection(weight)
            .or_else(|| grouped_matrix_objection(weight, self.group))
            .or_else(|| is_ragged.then(|| format!("its {rows} rows are no multiple of 32")))
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols, bits, group) = (weight.rows(), weight.cols(), BITS, self.group);
        let groups = cols / group;
        let stored = |end: &str, dtype, shape: [usize; 2]| StoredTensor {
            name: format!("{}.{end}", weight.base()),
            dtype,
            shape: shape.to_vec(),
        };
        let matrix = |part, form, cols| StoredMatrix { part, form, bits, rows, cols };
        // The word order and the transposition are one form, because a word spans eight rows of the
        // weight and one of its columns.
        let interleaved = MatrixForm::Packed(WordPacking::AwqInterleaved);
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
                MatrixForm::Floats { dtype: TargetDtype::F16, is_transposed: true },
                groups,
            ),
            // Eight rows fill a word, so that no two tiles write the same one.
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
