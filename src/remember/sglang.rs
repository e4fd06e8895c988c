//! sglang's integers: `X` I8 with `X_scale_inv`, which multiplies, as that of DeepSeek's FP8.
//!
//! - `blockwise_int8`: codes `[out, in]`, a scale for each block of `weight_block_size`.
//! - `w4afp8`: experts of two codes a byte, `[out, in / 2]`, two's complement, the low nibble
//!   first, with a scale for each 128 inputs of a row. All other layers are FP8. TensorRT-LLM
//!   writes such models, whose `hf_quant_config.json` says `MIXED_PRECISION` and no more; a layer's
//!   own algorithm is `W4A8_AWQ`.
//! - transformers' FP8 models whose config says `expert_dtype: fp4`, but not that scales are
//!   exponents: E2M1, the low nibble first, with a scale for each 32 inputs of a row.
//!
//! Layout: sglang `layers/quantization/blockwise_int8.py`, `w4afp8.py`; nibbles:
//! `test_cutlass_w4a8_moe_mm.py` (`pack_int4_values_to_int8`), which packs what the loaded
//! checkpoint is multiplied as; TensorRT-LLM
//! `examples/quantization/quantize_mixed_precision_moe.py`; transformers
//! `integrations/finegrained_fp8.py` (`FP8Experts`).

use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::{E2M1, Int};
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_layout::{fit, granularity, rows_and_cols};
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, MethodFacts, QuantScheme, Scheme,
    StatedCodes, TensorRole, module_of, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Sglang;

/// Name in listings.
const FAMILY: &str = "sglang";

/// Codes of four bits, and how many inputs share a scale.
struct Nibbles {
    family: &'static str,
    codes: CodeType,
    format: CodeFormat,
    group: usize,
}

/// Those of `w4afp8`, whose kernel knows no other groups.
const W4A8: Nibbles = Nibbles {
    family: FAMILY,
    codes: CodeType::Int(4),
    // Two's complement: half of the range is added to the codes, and subtracted again.
    format: CodeFormat::Int(Int { flip: 8, offset: 8.0 }),
    group: 128,
};

const FP4: Nibbles = Nibbles {
    family: "transformers",
    codes: CodeType::Fp4,
    format: CodeFormat::E2M1(E2M1 { factor: 1.0, plain_zero: false }),
    group: 32,
};

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["INT8"],
    // Models of FP8 may have experts of four bits.
    methods: &[QuantMethod::BlockwiseInt8, QuantMethod::W4aFp8, QuantMethod::Fp8],
    codes: &[],
    companions: &[(Ends("_scale_inv"), TensorRole::Scale)],
    optional: &[],
    activations: &[],
    markers: &[],
    // TensorRT-LLM's list of the layers' algorithms, beside `hf_quant_config.json`.
    sidecars: &[Is("quant_cfg.json")],
    container: None,
};

const METHODS: &[MethodFacts] = &[
    MethodFacts::new(&QuantMethod::BlockwiseInt8, StatedCodes::Int(8)),
    // `W4AFp8Config` has these blocks for all models, and does not write them into the config.
    MethodFacts {
        block: Some(([128, 128], "the config's method `w4afp8`")),
        ..MethodFacts::new(&QuantMethod::W4aFp8, StatedCodes::Int4OrE4M3)
    },
];

impl Scheme for Sglang {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn methods(&self) -> &'static [MethodFacts] {
        METHODS
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if t.dtype() != Dtype::I8 {
            return Ok(None);
        }
        let method = all.config.quant_method();
        let is_its = matches!(method, Some(QuantMethod::BlockwiseInt8 | QuantMethod::W4aFp8));
        let scale = all.at(t.name(), "_scale_inv");
        // Exponents are MXFP4's.
        if scale.is_some_and(|scale| matches!(scale.dtype(), Dtype::U8 | Dtype::F8E8M0)) {
            return Ok(None);
        }
        let Some(scale) = scale else {
            // Under another library's name of the scale the same bytes are other codes: `w4afp8`
            // has nibbles in them.
            return match all.at(t.name(), "_scale").filter(|_| is_its) {
                Some(scale) => Err(wrong(
                    t,
                    format!(
                        "its scale is `{}`, and the config's method has `{}_scale_inv`",
                        scale.name(),
                        t.name()
                    ),
                )),
                None => Ok(None),
            };
        };
        let says_fp4 = || {
            all.config
                .text(&["expert_dtype"])
                .is_some_and(|(dtype, _)| dtype == "fp4")
        };
        let nibbles_of = match method {
            Some(QuantMethod::W4aFp8) => Some(&W4A8),
            Some(QuantMethod::BlockwiseInt8) => None,
            _ if is_mixed(t, all) => Some(&W4A8),
            Some(QuantMethod::Fp8) if says_fp4() => Some(&FP4),
            // Without the method, blocks of several rows prove bytes: nibbles have scales for each
            // row.
            _ => {
                let [rows, scale_rows] = [t, &scale].map(|t| t.shape().iter().nth_back(1));
                if rows == scale_rows {
                    let what = format!(
                        "with the scales `{}` {:?} it can be `blockwise_int8` or `w4afp8`, and no config tells",
                        scale.name(),
                        scale.shape()
                    );
                    return Err(wrong(t, what));
                }
                None
            }
        };
        let (shape, scheme, decoder) = match nibbles_of {
            Some(of) => nibbles(t, &scale, of)?,
            None => bytes(t, &scale, all)?,
        };
        let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scale)];
        let name = t.name();
        Ok(Some(Group::new(name, shape, scheme, parts, Box::new(decoder))))
    }
}

/// Whether the config says that the experts have codes of four bits, by the names of ModelOpt's
/// algorithms.
fn is_mixed(t: &Tensor<'_>, all: &Index<'_>) -> bool {
    let module = all.config.at(module_of(t.name()));
    let algorithm = module.text(&["quant_algo"]);
    algorithm.is_some_and(|(name, _)| matches!(name, "MIXED_PRECISION" | "W4A8_AWQ"))
}

/// Logical shape, scheme and decoder of a weight.
type SglangWeight<'m> = (Vec<usize>, QuantScheme, Grouped<'m>);

/// The weight `t` of a code a byte.
fn bytes<'m>(t: &Tensor<'m>, scale: &Tensor<'m>, all: &Index<'m>) -> Result<SglangWeight<'m>> {
    let grid = fit(t, t.shape(), scale, all)?;
    let (rows, cols) = rows_and_cols(t.shape());
    let codes = Codes::Rows { part: t.part(), row_bytes: cols };
    let scales = Box::new(Matrix { floats: Floats::ieee(scale)?, cols: grid.cols });
    let code_format = CodeFormat::Int(Int::signed(8));
    let decoder = Grouped::scaled(codes, 8, code_format, [rows, cols], grid, scales);
    let scheme = QuantScheme::Grouped {
        family: FAMILY,
        codes: CodeType::Int(8),
        scales: granularity(&grid, cols),
    };
    Ok((t.shape().to_vec(), scheme, decoder))
}

/// The weight `t` of two codes a byte.
fn nibbles<'m>(t: &Tensor<'m>, scale: &Tensor<'m>, of: &Nibbles) -> Result<SglangWeight<'m>> {
    let group = of.group;
    let misfit = || {
        let what = format!(
            "its scale `{}` {:?} is not one for each {group} inputs of a row",
            scale.name(),
            scale.shape()
        );
        wrong(t, what)
    };
    let ([dims @ .., row_bytes], [scale_dims @ .., groups]) = (t.shape(), scale.shape()) else {
        return Err(misfit());
    };
    let cols = row_bytes.checked_mul(2).ok_or_else(misfit)?;
    if dims.is_empty() || dims != scale_dims || groups.checked_mul(group) != Some(cols) {
        return Err(misfit());
    }
    let shape: Vec<usize> = dims.iter().copied().chain([cols]).collect();
    let elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    elements.ok_or_else(|| wrong(t, "its size overflows"))?;
    let (rows, _) = rows_and_cols(t.shape());
    let codes = Codes::Rows { part: t.part(), row_bytes: *row_bytes };
    let scales = Box::new(Matrix { floats: Floats::ieee(scale)?, cols: *groups });
    let grid = row_groups(cols, group);
    let decoder = Grouped::scaled(codes, 4, of.format, [rows, cols], grid, scales);
    let scheme = QuantScheme::Grouped {
        family: of.family,
        codes: of.codes,
        scales: Granularity::Group(group),
    };
    Ok((shape, scheme, decoder))
}
