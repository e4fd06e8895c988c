//! LLM.int8() of BitsAndBytes: one scale for each row, its largest magnitude.
//!
//! `X.weight` I8 `[out, in]`, `X.SCB` F32 `[out]` and `X.weight_format` U8 `[]`, which is 0: `row`,
//! the layout that `nn.Linear8bitLt` loads without rearranging codes.
//!
//! Layout: bitsandbytes 0.50.2 `nn.Linear8bitLt._save_to_state_dict`.

use super::linear::{base, config, linear_layer_objection};
use crate::lethe::kernels::integer::{IntegerQuantizer, IntegerRule};
use crate::lethe::seam::grouped::{Grouped, MatrixForm, StoredMatrix};
use crate::lethe::seam::rows::stored_tensor;
use crate::lethe::{Encode, Method, WeightInfo};
use crate::remember::QuantScheme;
use crate::{Dtype, Result, TargetDtype};

/// LLM.int8().
#[derive(Debug, Clone, Copy)]
pub(crate) struct BnbInt8;

impl Method for BnbInt8 {
    fn makes(&self, scheme: QuantScheme) -> bool {
        scheme == QuantScheme::BnbInt8
    }

    fn transposes_conv1d(&self) -> bool {
        true
    }

    fn is_skipped_by_last_part(&self) -> bool {
        true
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        linear_layer_objection(weight)
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols, bits) = (weight.rows(), weight.cols(), 8);
        let matrix = |part, form, cols| StoredMatrix { part, form, bits, rows, cols };
        let floats = MatrixForm::Floats { dtype: TargetDtype::F32, is_transposed: false };
        // `SCB` and `weight_format` lie beside `weight`, not below it: `nn.Linear8bitLt` has them
        // as entries of the module.
        let base = base(weight.name).unwrap_or_default();
        Ok(Box::new(Grouped {
            name: weight.name.to_owned(),
            quantizer: IntegerQuantizer {
                rule: IntegerRule::LlmInt8,
                bits,
                group: cols,
                dtype: weight.dtype,
            },
            stored: vec![
                stored_tensor(weight.name.to_owned(), Dtype::I8, &[rows, cols]),
                stored_tensor(format!("{base}SCB"), Dtype::F32, &[rows]),
                stored_tensor(format!("{base}weight_format"), Dtype::U8, &[]),
            ],
            codes: matrix(0, MatrixForm::Bytes { flip: 0x80 }, cols),
            scales: matrix(1, floats, 1),
            offsets: None,
            row_align: 1,
            index: None,
            constant: Some((2, vec![0])),
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<serde_json::Value> {
        Some(config(None, skipped))
    }
}
