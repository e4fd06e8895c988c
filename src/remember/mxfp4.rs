//! MXFP4: FP4 codes, low nibble first, with a power of two for each 32 values of a row.
//!
//! gpt-oss: `W_blocks` U8 `[experts, out, in / 32, 16]`, `W_scales` U8 `[experts, out, in / 32]`;
//! the weight is `W` `[experts, in, out]`. DeepSeek-V4: `P.weight` I8 `[out, in / 2]`, `P.scale`
//! F8_E8M0 `[out, in / 32]`. Experts of models that are FP8 elsewhere (Ling, MiMo), or of `mxfp4`
//! by vLLM: `X` U8 or I8 `[…, out, in / 2]`, `X_scale` or `X_scale_inv` `[…, out, in / 32]`,
//! F8_E8M0, or U8 if the config says so. Codes may also be F4 `[…, in]`, as torch stores
//! `float4_e2m1fn_x2`.
//!
//! Formulas: transformers `integrations/mxfp4.py` (`_convert_moe_packed_tensors`), gptqmodel
//! `dequantize_deepseek_v4_fp4_expert`.

mod expert_stack;

use self::expert_stack::ExpertStack;
use crate::config::QuantMethod;
use crate::model::Tensor;
pub(super) use crate::remember::kernels::fp4_pairs::BLOCK;
use crate::remember::kernels::grouped::E2M1;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    CodeFamily, CodeType, Decode, Floats, Granularity, Group, Identity, Index, MethodFacts,
    QuantScheme, Scheme, StatedCodes, TensorRole, TopExponent, base_of, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Mxfp4;

static IDENTITY: Identity = Identity {
    name: "MXFP4",
    over: &["not decoded"],
    // DeepSeek-V4 and others have experts of four bits in models of FP8.
    methods: &[QuantMethod::Mxfp4, QuantMethod::Fp8],
    codes: &["_blocks"],
    companions: &[(Ends("_proj_scales"), TensorRole::Scale)],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

const METHODS: &[MethodFacts] = &[MethodFacts {
    fixed: Some("the config says `mxfp4`"),
    ..MethodFacts::new(&QuantMethod::Mxfp4, StatedCodes::FLOAT4)
}];

impl Scheme for Mxfp4 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        scheme(
            if t.dtype() == Dtype::I8 {
                "DeepSeek"
            } else {
                "MXFP4"
            },
            CodeType::Fp4,
        )
    }

    fn methods(&self) -> &'static [MethodFacts] {
        METHODS
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        // Other weights are called `_blocks` as well, hence the dtype, and the scales decide.
        if let Some(name) = t
            .name()
            .strip_suffix("_blocks")
            .filter(|_| t.dtype() == Dtype::U8)
        {
            return match all.at(name, "_scales") {
                Some(scales) => gpt_oss(t, name, &scales).map(Some),
                // No other weight has this name, dtype and shape.
                None if matches!(t.shape(), [_, _, _, 16]) => {
                    Err(wrong(t, format!("its scales `{name}_scales` are missing")))
                }
                None => Ok(None),
            };
        }
        if let Some(scale) = exponents(t, all) {
            return mx_rows(t, t.name(), &scale, "MXFP4").map(Some);
        }
        // I8 alone would be INT8; only an exponent scale under this name makes it DeepSeek's FP4.
        let is_bytes = matches!(t.dtype(), Dtype::I8 | Dtype::F4);
        let base = base_of(t.name(), "weight").filter(|_| is_bytes);
        let scale = base
            .and_then(|base| all.at(base, "scale"))
            .filter(|scale| scale.dtype() == Dtype::F8E8M0);
        scale
            .map(|scale| mx_rows(t, t.name(), &scale, "DeepSeek"))
            .transpose()
    }
}

/// Keys under which the config of an FP8 model says that its experts are MXFP4 (vLLM and sglang).
const EXPERTS_KEYS: &[&str] = &["routed_experts_quant_method", "store_dtype"];

/// The exponents of the bytes `t`, of which each belongs to 16 bytes.
fn exponents<'m>(t: &Tensor<'m>, all: &Index<'m>) -> Option<Tensor<'m>> {
    if !matches!(t.dtype(), Dtype::U8 | Dtype::I8 | Dtype::F4) {
        return None;
    }
    let config = all.config;
    let is_stated = || {
        let experts = config.text(EXPERTS_KEYS);
        config.quant_method() == Some(&QuantMethod::Mxfp4)
            || experts.is_some_and(|(name, _)| name.eq_ignore_ascii_case("mxfp4"))
    };
    let is_exponents = |scale: &Tensor<'_>| match scale.dtype() {
        Dtype::F8E8M0 => config.is_quantized(),
        Dtype::U8 => is_stated(),
        _ => false,
    };
    let mut scales = ["_scale", "_scale_inv"]
        .into_iter()
        .filter_map(|end| all.at(t.name(), end));
    scales.find(is_exponents)
}

fn scheme(family: &'static str, codes: CodeType) -> QuantScheme {
    QuantScheme::Grouped { family, codes, scales: Granularity::Group(BLOCK) }
}

/// Format of four-bit codes, and how listings show it.
type NibbleFormat = (CodeFormat, CodeType);

const FP4: NibbleFormat =
    (CodeFormat::E2M1(E2M1 { factor: 1.0, plain_zero: false }), CodeType::Fp4);

/// MXINT4: sign and magnitude.
pub(super) const INT4: NibbleFormat = (CodeFormat::SignMagnitude, CodeType::Int(4));

/// Claims codes in rows with an exponent for each 32: FP4, two in a byte, or FP6, four in three
/// bytes.
///
/// The number of exponents proves the columns, and the number of bytes then proves the bits.
///
/// # Errors
/// The shapes fit neither.
pub(super) fn mx_rows<'m>(
    t: &Tensor<'m>,
    name: &str,
    scale: &Tensor<'m>,
    family: &'static str,
) -> Result<Group<'m>> {
    mx_rows_of(t, name, scale, family, FP4)
}

/// Claims codes like [`mx_rows`], with the format `nibble` for codes of four bits. FP6 is accepted
/// only beside FP4.
pub(super) fn mx_rows_of<'m>(
    t: &Tensor<'m>,
    name: &str,
    scale: &Tensor<'m>,
    family: &'static str,
    nibble: NibbleFormat,
) -> Result<Group<'m>> {
    let (bytes, blocks) = (bytes_of_row(t), scale.shape().last().copied());
    let leading = |t: &Tensor<'m>| t.shape().split_last().map(|(_, leading)| leading);
    let cols = blocks
        .and_then(|blocks| blocks.checked_mul(BLOCK))
        .filter(|_| leading(t) == leading(scale));
    // With 32 values to an exponent, 4 bits take half as many bytes as columns, 6 bits three
    // quarters.
    let (cols, bits, code_format, codes) = match (bytes, cols) {
        (Some(bytes), Some(cols)) if bytes.checked_mul(2) == Some(cols) => {
            (cols, 4, nibble.0, nibble.1)
        }
        (Some(bytes), Some(cols))
            if cols % 4 == 0 && bytes == cols / 4 * 3 && nibble.1 == FP4.1 =>
        {
            (cols, 6, CodeFormat::E2M3, CodeType::Fp6)
        }
        _ => {
            let what = format!(
                "its scales `{}` {:?} are not one for 32 values of a row",
                scale.name(),
                scale.shape()
            );
            return Err(wrong(t, what));
        }
    };
    let shape: Vec<usize> = leading(t)
        .unwrap_or_default()
        .iter()
        .copied()
        .chain([cols])
        .collect();
    let size = rows_and_cols(&shape);
    let stored = Codes::Rows { part: t.part(), row_bytes: cols * bits / 8 };
    let scales = Box::new(Matrix { floats: Floats::new(scale)?, cols: cols / BLOCK });
    let mut decoder =
        Grouped::scaled(stored, bits, code_format, size.into(), row_groups(cols, BLOCK), scales);
    // No encoder takes codes of FP6 and MXINT4 from other layouts.
    let top = match scale.dtype() {
        Dtype::F8E8M0 => Some(TopExponent::Nan),
        Dtype::U8 => Some(TopExponent::Infinity),
        _ => None,
    };
    let top = top.filter(|_| matches!(code_format, CodeFormat::E2M1(_)));
    decoder.family = top.map(|top| CodeFamily::Mxfp4 { top });
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    Ok(Group::new(name.to_owned(), shape, scheme(family, codes), parts, Box::new(decoder)))
}

/// Bytes of the last dimension of packed codes, of which a tensor of F4 counts the codes. `None` if
/// these are no whole bytes.
pub(super) fn bytes_of_row(t: &Tensor<'_>) -> Option<usize> {
    let last = t.shape().last().copied()?;
    match t.dtype() {
        Dtype::F4 => last.is_multiple_of(2).then_some(last / 2),
        _ => Some(last),
    }
}

fn gpt_oss<'m>(t: &Tensor<'m>, name: &str, scale: &Tensor<'m>) -> Result<Group<'m>> {
    let (&[experts, outputs, blocks, 16], true) = (t.shape(), scale.dtype() == Dtype::U8) else {
        return Err(wrong(t, "blocks are [experts, out, in / 32, 16], and their scales U8"));
    };
    if scale.shape() != [experts, outputs, blocks] {
        return Err(wrong(
            t,
            format!("its scales `{}` {:?} are not one for each block", scale.name(), scale.shape()),
        ));
    }
    let Some(inputs) = blocks.checked_mul(BLOCK) else {
        return Err(wrong(t, "a row has more blocks than any memory"));
    };
    let transposed =
        ExpertStack { codes: t.part(), exponents: scale.part(), experts, inputs, outputs };
    // Doubled values and halved scales, as in `fp4_pairs`: exponent 255 is finite in the library.
    let code_format = CodeFormat::E2M1(E2M1 { factor: 2.0, plain_zero: false });
    // The same parts for both views: only one of them is ever written.
    let group = |name: String, shape: [usize; 3], decoder: Box<dyn Decode + 'm>| {
        let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
        Group::new(name, shape.to_vec(), scheme("MXFP4", CodeType::Fp4), parts, decoder)
    };
    // The weight of a linear module, `[experts, out, in]`, is what is stored. Encoders take groups
    // along `in`.
    let codes = Codes::Rows { part: t.part(), row_bytes: inputs / 2 };
    let scales = Box::new(Matrix { floats: Floats::half_exponents(scale), cols: blocks });
    let size = [experts.saturating_mul(outputs), inputs];
    let mut plain = Grouped::scaled(codes, 4, code_format, size, row_groups(inputs, BLOCK), scales);
    plain.family = Some(CodeFamily::Mxfp4 { top: TopExponent::Power });
    let shape = [experts, inputs, outputs];
    let mut stack = group(name.to_owned(), shape, Box::new(transposed));
    stack.module = Some(Box::new(group(
        format!("{name}.weight"),
        [experts, outputs, inputs],
        Box::new(plain),
    )));
    Ok(stack)
}
