//! SDNQ: codes `X.weight` with a scale F32 `X.scale` for each group of a row, and, of unsigned
//! integers, the smallest value F32 `X.zero_point`. Which dtype codes have is in the config alone.
//!
//! Codes of eight bits keep the shape of the weight, `[rows, groups, group]` if a row has several
//! groups. Others are packed in units without regard to rows.
//!
//! Layout: sdnq 0.2.8 `quantizer.py` (`sdnq_quantize_layer_weight`, for `nn.Linear`), config:
//! `SDNQConfig`. What has more dimensions, or is an embedding, its loader takes for plain.

use serde_json::{Value, json};

use super::fp8::Fp8Encoder;
use super::{Encode, Method, StoredTensor, WeightInfo};
use crate::lethe::kernels::fp8::Fp8Arithmetic;
use crate::lethe::kernels::integer::{IntegerQuantizer, IntegerRule};
use crate::lethe::seam::grouped::{
    Grouped, MatrixForm, StoredMatrix, grouped_matrix_objection, module_objection,
};
use crate::lethe::seam::rows::stored_tensor;
use crate::remember::{CodeType, QuantScheme, lcm};
use crate::{Dtype, Result, TargetDtype};

/// Codes in a unit.
const UNIT: usize = 8;

/// What codes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SdnqCodes {
    /// Integers of two to eight bits.
    Int(usize),
    Uint(usize),
    /// E4M3.
    Fp8,
}

impl SdnqCodes {
    fn bits(self) -> usize {
        match self {
            Self::Int(bits) | Self::Uint(bits) => bits,
            Self::Fp8 => 8,
        }
    }

    fn is_unsigned(self) -> bool {
        matches!(self, Self::Uint(_))
    }

    /// The library's name.
    fn name(self) -> String {
        match self {
            Self::Int(bits) => format!("int{bits}"),
            Self::Uint(bits) => format!("uint{bits}"),
            Self::Fp8 => "float8_e4m3fn".to_owned(),
        }
    }

    /// As few codes as fill whole bytes, and their bytes.
    fn together(self) -> (usize, usize) {
        let codes = UNIT >> self.bits().trailing_zeros().min(3);
        (codes, codes * self.bits() / 8)
    }
}

/// SDNQ with codes of one dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sdnq {
    pub codes: SdnqCodes,
    /// Most columns of a group; `None`: by the bits of a code.
    pub group: Option<usize>,
}

impl Sdnq {
    /// Columns of a group of rows of `cols`. Where the size that is asked for does not divide a
    /// row, the library takes the largest number of groups that does, below that of whole such
    /// groups.
    fn group_of(self, cols: usize) -> usize {
        let most = self.group.unwrap_or(4 << self.codes.bits()).max(1);
        if cols.is_multiple_of(most) {
            return most.min(cols);
        }
        // Divisors are found in pairs, so that a long row of a hostile file takes no long search.
        let pairs = (1..=cols.isqrt()).filter(|&n| cols.is_multiple_of(n));
        let divisors = pairs.flat_map(|n| [n, cols / n]);
        let groups = divisors.filter(|n| (2..cols / most).contains(n)).max();
        groups.map_or(cols, |n| cols / n)
    }
}

impl Method for Sdnq {
    fn makes(&self, scheme: QuantScheme) -> bool {
        let wanted = match self.codes {
            SdnqCodes::Int(bits) => CodeType::Int(bits as u8),
            SdnqCodes::Uint(bits) => CodeType::Uint(bits as u8),
            SdnqCodes::Fp8 => CodeType::Fp8,
        };
        matches!(scheme, QuantScheme::Grouped { family: "SDNQ", codes, .. } if codes == wanted)
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        let (together, _) = self.codes.together();
        let (values, group) = (weight.rows() * weight.cols(), self.group_of(weight.cols()));
        if self.group == Some(0) {
            return Some("there are no groups of 0 values".to_owned());
        }
        let of_shape = grouped_matrix_objection(weight, group);
        of_shape.or_else(|| module_objection(weight)).or_else(|| {
            let is_cut = !values.is_multiple_of(together);
            is_cut.then(|| format!("its {values} values are no multiple of {together}"))
        })
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols, bits) = (weight.rows(), weight.cols(), self.codes.bits());
        let group = self.group_of(cols);
        let groups = cols / group.max(1);
        let named = |end: &str, dtype, shape: &[usize]| {
            stored_tensor(format!("{}.{end}", weight.base()), dtype, shape)
        };
        // The dimension of groups is there if there are several.
        let in_groups = |last: usize| match groups {
            1 => vec![rows, last],
            _ => vec![rows, groups, last],
        };
        let (together, bytes) = self.codes.together();
        let dtype = match self.codes {
            SdnqCodes::Int(8) => Dtype::I8,
            SdnqCodes::Int(_) | SdnqCodes::Uint(_) => Dtype::U8,
            SdnqCodes::Fp8 => Dtype::F8E4M3,
        };
        let shape = match bytes {
            _ if bits == 8 => in_groups(group),
            1 => vec![rows * cols / together],
            _ => vec![rows * cols / together, bytes],
        };
        let mut stored =
            vec![named("weight", dtype, &shape), named("scale", Dtype::F32, &in_groups(1))];
        let is_unsigned = self.codes.is_unsigned();
        stored.extend(is_unsigned.then(|| named("zero_point", Dtype::F32, &in_groups(1))));
        match self.codes {
            SdnqCodes::Fp8 => Ok(Box::new(Fp8Encoder {
                stored,
                description: None,
                arithmetic: Fp8Arithmetic::Sdnq,
                rows,
                cols,
                block: [1, group],
                has_one_scale: false,
            })),
            _ => Ok(Box::new(self.integers(weight, group, stored))),
        }
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let parameters: Vec<String> = skipped.iter().map(|m| format!("{m}.weight")).collect();
        Some(json!({
            "add_skip_keys": true,
            "codebook_steps": 24,
            "dequantize_fp32": true,
            "dynamic_loss_threshold": null,
            // 0: by the bits of a code.
            "group_size": self.group.unwrap_or(0),
            "hadamard_group_size": 256,
            "is_integer": self.codes != SdnqCodes::Fp8,
            "is_training": false,
            "is_unsigned": self.codes.is_unsigned(),
            "minimum_allowed_channel_size": 32,
            "minimum_allowed_numel": 16384,
            "modules_dtype_dict": {},
            "modules_quant_config": {},
            "modules_to_not_convert": parameters,
            "modules_to_not_use_matmul": [],
            "non_blocking": false,
            "quant_conv": false,
            "quant_embedding": false,
            "quant_method": "sdnq",
            "quantization_device": null,
            "quantized_matmul_dtype": null,
            "return_device": null,
            "scale_dtype": null,
            "sdnq_version": "0.2.8",
            "svd_rank": 32,
            "svd_steps": 8,
            "use_codebook": false,
            "use_codebook_scale": false,
            "use_dynamic_quantization": false,
            "use_grad_ckpt": true,
            "use_hadamard": false,
            "use_quantized_matmul": false,
            "use_quantized_matmul_conv": false,
            "use_static_quantization": true,
            "use_stochastic_rounding": false,
            "use_svd": false,
            "weights_dtype": self.codes.name(),
            "zero_point_dtype": null,
        }))
    }
}

impl Sdnq {
    fn integers(self, weight: &WeightInfo<'_>, group: usize, stored: Vec<StoredTensor>) -> Grouped {
        let (rows, cols, bits) = (weight.rows(), weight.cols(), self.codes.bits());
        let matrix = |part, form, cols| StoredMatrix { part, form, bits, rows, cols };
        let floats = MatrixForm::Floats { dtype: TargetDtype::F32, is_transposed: false };
        let codes = match self.codes {
            SdnqCodes::Int(8) => MatrixForm::Bytes { flip: 0x80 },
            SdnqCodes::Uint(8) => MatrixForm::Bytes { flip: 0 },
            _ => MatrixForm::Units,
        };
        let is_unsigned = self.codes.is_unsigned();
        let groups = cols / group.max(1);
        // Tiles begin with whole units.
        let row_align = match bits {
            8 => 1,
            _ => lcm(UNIT, cols) / cols.max(1),
        };
        Grouped {
            name: weight.name.to_owned(),
            quantizer: IntegerQuantizer {
                rule: IntegerRule::Sdnq { is_signed: !is_unsigned },
                bits,
                group,
                dtype: weight.dtype,
            },
            stored,
            codes: matrix(0, codes, cols),
            scales: matrix(1, floats, groups),
            offsets: is_unsigned.then(|| matrix(2, floats, groups)),
            row_align,
            index: None,
            constant: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the library's loop.
    #[test]
    fn groups_divide_rows() {
        for codes in [SdnqCodes::Uint(2), SdnqCodes::Uint(4), SdnqCodes::Int(8)] {
            for group in [None, Some(1), Some(18), Some(32), Some(1000)] {
                for cols in (1..200).chain([256, 1000, 4096, 4099]) {
                    let mut size = group.unwrap_or(4 << codes.bits());
                    let mut count = if size >= cols { 1 } else { cols / size };
                    while count > 1 && count * size != cols {
                        count -= 1;
                        size = cols / count;
                    }
                    let want = if count > 1 { size } else { cols };
                    let scheme = Sdnq { codes, group };
                    assert_eq!(scheme.group_of(cols), want, "{scheme:?}, {cols} columns");
                }
            }
        }
    }
}
