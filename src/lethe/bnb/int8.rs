//! LLM.int8() of BitsAndBytes: one scale for each row, its largest magnitude.
//!
//! `X.weight` I8 `[out, in]`, `X.SCB` F32 `[out]` and `X.weight_format` U8 `[]`, which is 0: `row`,
//! the layout that `nn.Linear8bitLt` loads without rearranging codes.
//!
//! Layout: bitsandbytes 0.50.2 `nn.Linear8bitLt._save_to_state_dict`.

use zerocopy::IntoBytes;

use super::linear::{base, config, linear_layer_objection};
use crate::element::Out;
use crate::error::InTensor;
use crate::lethe::kernels::int8;
use crate::lethe::{Encode, EncodeBuffers, Method, Put, StoredTensor, TileValues, WeightInfo};
use crate::remember::kernels::bnb::Int8Rows;
use crate::remember::{Grid, QuantScheme};
use crate::simd::dispatch;
use crate::{AnamnesisError, Dtype, Result};

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
        Ok(Box::new(BnbInt8Encoder {
            name: weight.name.to_owned(),
            rows: weight.rows(),
            cols: weight.cols(),
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<serde_json::Value> {
        Some(config(None, skipped))
    }
}

/// Encodes one tensor to LLM.int8().
struct BnbInt8Encoder {
    name: String,
    rows: usize,
    cols: usize,
}

impl BnbInt8Encoder {
    /// Checks the scales of rows from `first` on. The library converts values to F16 before it
    /// quantizes them, so those that F16 cannot hold have an infinite scale.
    fn check_scales(&self, first: usize, scales: &[f32]) -> Result<()> {
        match scales.iter().position(|scale| !scale.is_finite()) {
            None => Ok(()),
            Some(row) => {
                let what = format!(
                    "{}: row {} has values that F16 does not reach",
                    InTensor(&self.name),
                    first + row
                );
                Err(AnamnesisError::unsupported("BitsAndBytes INT8", what))
            }
        }
    }
}

impl Encode for BnbInt8Encoder {
    fn stored(&self) -> Vec<StoredTensor> {
        // `SCB` and `weight_format` lie beside `weight`, not below it: `nn.Linear8bitLt` has them
        // as entries of the module.
        let base = base(&self.name).unwrap_or_default();
        vec![
            StoredTensor {
                name: self.name.clone(),
                dtype: Dtype::I8,
                shape: vec![self.rows, self.cols],
            },
            StoredTensor { name: format!("{base}SCB"), dtype: Dtype::F32, shape: vec![self.rows] },
            StoredTensor { name: format!("{base}weight_format"), dtype: Dtype::U8, shape: vec![] },
        ]
    }

    fn grid(&self) -> Grid {
        // A code, and a scale for each row.
        let load_bits = 8.0 + 32.0 / self.cols.max(1) as f64;
        let (rows, cols) = (self.rows, self.cols);
        Grid {
            rows,
            cols,
            row_align: 1,
            // Whole rows: the scale is the largest magnitude of the row.
            col_align: cols.max(1),
            load_bits,
            transposed: None,
        }
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (cols, first) = (self.cols, values.tile.rows.start);
        let EncodeBuffers { codes, scales, .. } = buffers;
        codes.resize(values.values.len(), 0);
        scales.resize(values.tile.rows.len(), 0.0);
        int8::encode(values.values, cols, values.level, codes, scales);
        self.check_scales(first, scales)?;
        put(0, (first * cols) as u64, codes)?;
        put(1, first as u64 * 4, scales.as_bytes())?;
        dispatch(values.level, &Int8Rows { codes, cols, scb: scales }, Out::F32(back));
        if values.tile.is_first() {
            put(2, 0, &[0])
        } else {
            Ok(())
        }
    }
}
