//! What Quark's config says about one weight. Dtypes and groups are in the config alone: U8 rows
//! may be fp4 or fp6, and I32 words may be int4 or uint4 in either of two orders.

use super::FAMILY;
use crate::config::Module;
use crate::model::Tensor;
use crate::remember::kernels::grouped::{E2M1, Int};
use crate::remember::layout::lines::LinePacking;
use crate::remember::seam::grouped::CodeFormat;
use crate::remember::seam::{CodeType, Granularity, QuantScheme, refused, wrong};
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
    /// Whether a weight without a zero point is complete. Quark stores zero points of symmetric
    /// weights as well.
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
        let dtype = module
            .text(&["dtype"])
            .map(|(dtype, _)| dtype)
            .unwrap_or_default();
        // Quark's own default is `reorder`. The order changes no shape, so nothing else can prove
        // it.
        let method = module
            .text(&["pack_method"])
            .map_or("reorder", |(method, _)| method);
        let Some(layout) = CodeLayout::of(dtype, method == "reorder") else {
            return Err(match dtype {
                "" => wrong(t, "the config of Quark names no dtype for its layer"),
                _ => {
                    let what = format!("the config says `{dtype}`, which is not decoded");
                    refused(t, FAMILY, what)
                }
            });
        };
        let CodeLayout(kind, codes, bits, stored, packing) = layout;
        // The dtype of the tensor is the only thing in the file that can contradict the config.
        if t.dtype() != stored {
            return Err(wrong(
                t,
                format!("the config says `{dtype}`, and that is stored as {stored}"),
            ));
        }
        let scales = ScaleSharing::of(t, module)?;
        if !matches!(method, "reorder" | "order") {
            return Err(refused(
                t,
                FAMILY,
                format!("the config says `pack_method: {method}`, which is not decoded"),
            ));
        }
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
        QuantScheme::Grouped { family: FAMILY, codes: self.codes, scales }
    }
}

/// How codes are laid out: what they stand for, as listings show them, bits of one, the stored
/// dtype, and the packing.
struct CodeLayout(QuarkCodeKind, CodeType, usize, Dtype, LinePacking);

impl CodeLayout {
    /// The layout of what Quark calls `dtype`; `None` if it is not decoded.
    fn of(dtype: &str, is_reordered: bool) -> Option<Self> {
        let float = QuarkCodeKind::Float;
        let signed = |bits| QuarkCodeKind::Int(Int::signed(bits));
        let unsigned = QuarkCodeKind::Int(Int::UNSIGNED);
        let plain = E2M1 { factor: 1.0, plain_zero: false };
        let fp4 = float(CodeFormat::E2M1(plain));
        let (e2m3, e3m2) = (float(CodeFormat::E2M3), float(CodeFormat::E3M2));
        let (byte, nibbles) = (LinePacking::Bytes(1), LinePacking::Nibbles { is_reordered });
        let (crumbs, octets, words) =
            (LinePacking::Crumbs, LinePacking::Octets, LinePacking::Words);
        Some(match dtype {
            "fp4" => Self(fp4, CodeType::Fp4, 4, Dtype::U8, byte),
            "fp6_e2m3" => Self(e2m3, CodeType::Fp6E2M3, 6, Dtype::U8, byte),
            "fp6_e3m2" => Self(e3m2, CodeType::Fp6E3M2, 6, Dtype::U8, byte),
            "int4" => Self(signed(4), CodeType::Int(4), 4, Dtype::I32, nibbles),
            "uint4" => Self(unsigned, CodeType::Uint(4), 4, Dtype::I32, nibbles),
            // A word each, whose lowest byte is decoded.
            "int2" => Self(signed(8), CodeType::Int(2), 8, Dtype::I32, words),
            "uint2" => Self(unsigned, CodeType::Uint(2), 2, Dtype::U8, crumbs),
            "int3" => Self(signed(3), CodeType::Int(3), 3, Dtype::U8, octets),
            "int8" => Self(signed(8), CodeType::Int(8), 8, Dtype::I8, byte),
            "uint8" => Self(unsigned, CodeType::Uint(8), 8, Dtype::U8, byte),
            _ => return None,
        })
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
            _ => {
                Err(refused(t, FAMILY, format!("scales `{scheme}` along its axis are not decoded")))
            }
        }
    }
}
