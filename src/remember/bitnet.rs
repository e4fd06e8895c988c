//! BitNet: `X.weight` U8 `[out / 4, in]` with `X.weight_scale` `[1]`. Two bits of a byte have a
//! code plus one; the first quarter of the rows is in the lowest bits (`layout/strided.rs`). With
//! `linear_class` `bitlinear` the scale divides, with `autobitlinear` it multiplies. A scale that
//! multiplies may also belong to an unquantized weight.
//!
//! Layout and formulas: transformers `integrations/bitnet.py` (`unpack_weights`, `BitLinear`,
//! `AutoBitLinear`).

use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::layout::strided::StridedRows;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, Grouped, Unpack, row_groups,
};
use crate::remember::seam::scale_layout::{per_tensor, rows_and_cols};
use crate::remember::seam::scale_matrix::{Matrix, NestedOp, NestedScales, ScaleMatrix};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole, Tile,
    base_of, refused, wrong,
};
use crate::{Dtype, Result};

pub(super) struct BitNet;

/// Where mlx-lm has its config.
const MLX_CONFIG: &str = "config.json: quantization";

/// Name in listings.
const FAMILY: &str = "BitNet";

const CODES_PER_BYTE: usize = 4;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["not decoded"],
    methods: &[QuantMethod::BitNet],
    codes: &[],
    companions: &[(Ends("weight_scale"), TensorRole::Scale)],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for BitNet {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        // The names are those of other libraries, so that only the config tells BitNet.
        let is_bitnet =
            all.config.quant_method() == Some(&QuantMethod::BitNet) || is_of_mlx_lm(all);
        let base = base_of(t.name(), "weight").filter(|_| is_bitnet);
        let Some(base) = base else { return Ok(None) };
        let Some(scale) = all.at(base, "weight_scale") else {
            return check_unscaled(t, base, all).map(|()| None);
        };
        let formula = formula(t, all)?;
        if scale.elements() != 1 {
            return Err(wrong(
                t,
                format!("its scale `{}` {:?} is not one number", scale.name(), scale.shape()),
            ));
        }
        let scales = Box::new(Matrix { floats: Floats::ieee(&scale)?, cols: 1 });
        let (shape, decoder) = match t.dtype() {
            Dtype::U8 => packed(t, scales, formula)?,
            // `AutoBitLinear` multiplies an unpacked weight by its scale, too.
            dtype if dtype.is_floating_point() && matches!(formula, GroupFormula::Scale) => {
                float_weight(t, &scale)?
            }
            _ => return Err(wrong(t, "a weight with this scale is packed into bytes")),
        };
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes: CodeType::Ternary,
            scales: Granularity::Tensor,
        };
        let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scale)];
        Ok(Some(Group::new(t.name(), shape, scheme, parts, Box::new(decoder))))
    }
}

/// Whether the model is one of BitNet whose other layers mlx-lm has quantized, which replaces the
/// config of BitNet. Its `BitLinear` multiplies.
fn is_of_mlx_lm(all: &Index<'_>) -> bool {
    all.config.quant_method().is_none()
        && all.config.has_model_type("bitnet")
        && all.config.has_file(MLX_CONFIG)
}

/// Whether the scale divides or multiplies, by the config. `bitlinear` is the default of
/// transformers.
///
/// # Errors
/// The config names another layer, or one that quantizes while it runs and thus has no scale.
fn formula<'m>(t: &Tensor<'m>, all: &Index<'m>) -> Result<GroupFormula<'m>> {
    if is_of_mlx_lm(all) {
        return Ok(GroupFormula::Scale);
    }
    let text = |key| all.config.text(&[key]).map(|(text, _)| text);
    match (text("linear_class"), text("quantization_mode")) {
        // `BitLinear.post_quant_process` divides the product of the layer by the scale.
        (None | Some("bitlinear"), _) => Ok(GroupFormula::Divide),
        (Some("autobitlinear"), None | Some("offline")) => Ok(GroupFormula::Scale),
        (Some("autobitlinear"), Some("online")) => Err(wrong(
            t,
            "it has a scale, and the config says that its layer is quantized while it runs",
        )),
        (class, mode) => {
            Err(refused(t, FAMILY, format!("linear_class {class:?}, quantization_mode {mode:?}")))
        }
    }
}

/// Checks a weight without a scale.
///
/// # Errors
/// It is a projection of a model whose config says that the scales are stored (`offline`), and does
/// not except it.
fn check_unscaled(t: &Tensor<'_>, base: &str, all: &Index<'_>) -> Result<()> {
    let module = base.trim_end_matches('.');
    let text = |key| all.config.text(&[key]).map(|(text, _)| text);
    let is_offline = text("linear_class") == Some("autobitlinear")
        && matches!(text("quantization_mode"), None | Some("offline"));
    if is_offline && module.ends_with("_proj") && t.shape().len() == 2 && !all.config.skips(module)
    {
        return Err(wrong(
            t,
            format!("the config says that it has a scale, and `{base}weight_scale` is missing"),
        ));
    }
    Ok(())
}

fn packed<'m>(
    t: &Tensor<'m>,
    scales: Box<dyn ScaleMatrix + 'm>,
    formula: GroupFormula<'m>,
) -> Result<(Vec<usize>, Grouped<'m>)> {
    let &[bytes, cols] = t.shape() else {
        return Err(wrong(t, "packed weights have two dimensions"));
    };
    let rows = bytes
        .checked_mul(CODES_PER_BYTE)
        .ok_or_else(|| wrong(t, "its size overflows"))?;
    let shape = vec![rows, cols];
    let codes = Codes::Unpacked(Box::new(StridedRows::low_first(t.part(), bytes, cols, 2)));
    // The stored code is the ternary value plus 1. Code 3, which no packer writes, becomes 2 as in
    // `unpack_weights`.
    let code_format = CodeFormat::Int(Int { flip: 0, offset: 1.0 });
    let mut decoder =
        Grouped::scaled(codes, 2, code_format, [rows, cols], per_tensor(&shape), scales);
    decoder.formula = formula;
    Ok((shape, decoder))
}

/// Decoder of an unquantized weight times its scale. The decoder has no factor for plain floats, so
/// the floats become the scales of codes that are all 1.
fn float_weight<'m>(t: &Tensor<'m>, scale: &Tensor<'m>) -> Result<(Vec<usize>, Grouped<'m>)> {
    let (rows, cols) = rows_and_cols(t.shape());
    let inner = Box::new(Matrix { floats: Floats::ieee(t)?, cols });
    // Only one scale is left of two levels: each value is a group of its own, and `1 * (value *
    // scale)` is the product.
    let outer = Floats::ieee(scale)?;
    let scaled =
        NestedScales { inner, outer, count: 1, rows_each: rows, op: NestedOp::Multiply, unit: 1.0 };
    let code_format = CodeFormat::Int(Int::UNSIGNED);
    let decoder = Grouped::scaled(
        Codes::Unpacked(Box::new(AllOnes)),
        8,
        code_format,
        [rows, cols],
        row_groups(cols, 1),
        Box::new(scaled),
    );
    Ok((t.shape().to_vec(), decoder))
}

struct AllOnes;

impl Unpack for AllOnes {
    fn unpack(&self, tile: &Tile, _staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        out.resize(tile.values(), 1);
        Ok(())
    }
}
