//! What Quark's config says about one weight. Dtypes and groups are in the config alone: U8 rows may be fp4 or fp6,
//! and I32 words may be int4 or uint4 in either of two orders.

use super::FAMILY;
use crate::config::Module;
use crate::containers::model::Tensor;
use crate::kernels::remember::grouped::{E2M1, Int};
use crate::scheme::layout::lines::LinePacking;
use crate::scheme::seam::grouped::CodeFormat;
use crate::scheme::seam::{CodeType, Granularity, QuantScheme, refused, wrong};
use crate::{Dtype, Result};

/// How a weight is quantized, by the config.
pub(super) struct QuarkSpec {
    pub kind: QuarkCodeKind,
    /// The codes as listings show them.
    pub codes: CodeType,
    pub bits: usize,
    pub scales: ScaleSharing,
    /// Whether scales in U8 are numbers in E5M3, and no exponents.
    pub has_e5m3_scales: bool,
    /// Whether a weight without a zero point is complete. Quark stores zero points of symmetric weights as well.
    pub is_symmetric: bool,
    /// How integers are packed.
    pub packing: LinePacking,
    /// Whether zero points are plain numbers, whatever the codes are (`zero_point_type: float32`).
    pub has_plain_zeros: bool,
}

/// Which values share a scale.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ScaleSharing {
    Tensor,
    Channel,
    /// This many adjacent input columns of an output row.
    Group(usize),
}

pub(super) enum QuarkCodeKind {
    Float(CodeFormat),
    Int(Int),
}

impl QuarkSpec {
    /// The config `module` of the weight `t`; `has_byte_scales` if its scales are U8.
    pub(super) fn of(t: &Tensor<'_>, module: &Module<'_>, has_byte_scales: bool) -> Result<Self> {
        let plain = E2M1 {
            factor: 1.0,
            plain_zero: false,
        };
        let dtype = module
            .text(&["dtype"])
            .map(|(dtype, _)| dtype)
            .unwrap_or_default();
        let (kind, codes, bits, stored) = match dtype {
            "fp4" => (
                QuarkCodeKind::Float(CodeFormat::E2M1(plain)),
                CodeType::Fp4,
                4,
                Dtype::U8,
            ),
            "fp6_e2m3" => (
                QuarkCodeKind::Float(CodeFormat::E2M3),
                CodeType::Fp6E2M3,
                6,
                Dtype::U8,
            ),
            "fp6_e3m2" => (
                QuarkCodeKind::Float(CodeFormat::E3M2),
                CodeType::Fp6E3M2,
                6,
                Dtype::U8,
            ),
            "int4" => (
                QuarkCodeKind::Int(Int::signed(4)),
                CodeType::Int(4),
                4,
                Dtype::I32,
            ),
            "uint4" => (
                QuarkCodeKind::Int(Int::UNSIGNED),
                CodeType::Uint(4),
                4,
                Dtype::I32,
            ),
            // A word each, whose lowest byte is decoded.
            "int2" => (
                QuarkCodeKind::Int(Int::signed(8)),
                CodeType::Int(2),
                8,
                Dtype::I32,
            ),
            "uint2" => (
                QuarkCodeKind::Int(Int::UNSIGNED),
                CodeType::Uint(2),
                2,
                Dtype::U8,
            ),
            "int3" => (
                QuarkCodeKind::Int(Int::signed(3)),
                CodeType::Int(3),
                3,
                Dtype::U8,
            ),
            "int8" => (
                QuarkCodeKind::Int(Int::signed(8)),
                CodeType::Int(8),
                8,
                Dtype::I8,
            ),
            "uint8" => (
                QuarkCodeKind::Int(Int::UNSIGNED),
                CodeType::Uint(8),
                8,
                Dtype::U8,
            ),
            "" => return Err(wrong(t, "the config of Quark names no dtype for its layer")),
            _ => {
                return Err(refused(
                    t,
                    FAMILY,
                    format!("the config says `{dtype}`, which is not decoded"),
                ));
            }
        };
        // The dtype of the tensor is the only thing in the file that can contradict the config.
        if t.dtype() != stored {
            return Err(wrong(
                t,
                format!("the config says `{dtype}`, and that is stored as {stored}"),
            ));
        }
        let scales = ScaleSharing::of(t, module)?;
        // Quark's own default is `reorder`. The order changes no shape, so nothing else can prove it.
        let method = module
            .text(&["pack_method"])
            .map_or("reorder", |(method, _)| method);
        if !matches!(method, "reorder" | "order") {
            return Err(refused(
                t,
                FAMILY,
                format!("the config says `pack_method: {method}`, which is not decoded"),
            ));
        }
        let packing = match dtype {
            "int2" => LinePacking::Words,
            "uint2" => LinePacking::Crumbs,
            "int3" => LinePacking::Octets,
            "int4" | "uint4" => LinePacking::Nibbles {
                is_reordered: method == "reorder",
            },
            _ => LinePacking::Bytes(1),
        };
        let zeros = module.text(&["zero_point_type"]).map(|(kind, _)| kind);
        let has_e5m3_scales = has_e5m3_scales(t, module, has_byte_scales)?;
        let is_symmetric = module.flag("symmetric") != Some(false);
        Ok(Self {
            kind,
            codes,
            bits,
            scales,
            has_e5m3_scales,
            is_symmetric,
            packing,
            has_plain_zeros: zeros == Some("float32"),
        })
    }

    pub(super) fn scheme(&self, scales: Granularity) -> QuantScheme {
        QuantScheme::Grouped {
            family: FAMILY,
            codes: self.codes,
            scales,
        }
    }
}

/// Whether the config says that scales are numbers in E5M3: under two keys, which must agree.
///
/// # Errors
/// It says so under one key alone, or has another format for scales that are bytes.
fn has_e5m3_scales(t: &Tensor<'_>, module: &Module<'_>, has_byte_scales: bool) -> Result<bool> {
    let format = module.text(&["scale_format"]).map(|(format, _)| format);
    let kind = module.text(&["scale_type"]).map(|(kind, _)| kind);
    match (format, kind) {
        (Some("e5m3"), Some("float8_e5m3") | None) => Ok(true),
        (Some("e5m3"), _) | (_, Some("float8_e5m3")) => {
            let what = "`scale_format` and `scale_type` in the config contradict each other";
            Err(wrong(t, what))
        }
        (Some(format), _) if format != "e8m0" && has_byte_scales => {
            let what = format!("the config says `scale_format: {format}`, and its scales are U8");
            Err(refused(t, FAMILY, what))
        }
        _ => Ok(false),
    }
}

impl ScaleSharing {
    fn of(t: &Tensor<'_>, module: &Module<'_>) -> Result<Self> {
        let scheme = module
            .text(&["qscheme"])
            .map(|(scheme, _)| scheme)
            .unwrap_or_default();
        let axis = module.int(&["ch_axis"]).map(|(axis, _)| axis);
        // The axis says along which dimension scales lie. Groups run along the last one.
        match scheme {
            "per_tensor" => Ok(Self::Tensor),
            // Axis 0 is the output: other axes would need another grid of scales.
            "per_channel" if matches!(axis, None | Some(0)) => Ok(Self::Channel),
            "per_group" if matches!(axis, None | Some(-1 | 1)) => {
                let size = module
                    .int(&["group_size"])
                    .and_then(|(size, _)| usize::try_from(size).ok());
                let size = size.filter(|&n| n > 0).map(Self::Group);
                size.ok_or_else(|| wrong(t, "the config of Quark has no size of its groups"))
            }
            _ => Err(refused(
                t,
                FAMILY,
                format!("scales `{scheme}` along its axis are not decoded"),
            )),
        }
    }
}
