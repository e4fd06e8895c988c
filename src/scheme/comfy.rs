//! ComfyUI's formats. `X.comfy_quant`, JSON in a tensor of bytes, says how `X.weight` is quantized. Some files have one
//! metadata value `_quantization_metadata` for all layers instead.
//!
//! | format | weight | `X.weight_scale` |
//! |---|---|---|
//! | `float8_e4m3fn`, `float8_e5m2` | FP8 | floats |
//! | `int8_tensorwise` | I8 | floats, one for the tensor or one for each row |
//! | `nvfp4` | U8 `[out, in / 2]`, high nibble first | E4M3, one for 16 values, [tiled](crate::scheme::layout::tiled) |
//! | `mxfp8` | F8_E4M3 | exponents, one for 32 values, tiled |
//!
//! `int8_tensorwise` with `convrot`, `convrot_w4a4` and `asym_w4a8_int8` are in [`rotated`], `awq_w4a16` and
//! `svdquant_w4a4` in [`int4`].
//!
//! `X.weight_scale_2` of `nvfp4` is a factor of the scales, multiplied in F32.
//!
//! Weights of `nvfp4` and `mxfp8` are padded to whole blocks in both dimensions. The file does not say how much of
//! a weight is padding, so it is decoded with its padding.
//!
//! Formulas: comfy-kitchen, `dequantize` of its layouts, eager backend.

mod description;
mod int4;
mod rotated;

use std::collections::HashMap;

use self::description::{ComfyDescription, ComfyLayers, METADATA};
use super::fp8::Fp8;
use super::int8::Int8;
use crate::containers::model::Tensor;
use crate::scheme::layout::tiled::{TILE_COLS, TILE_ROWS, TiledScales};
use crate::scheme::seam::NamePattern::Ends;
use crate::scheme::seam::fit::rows_and_cols;
use crate::scheme::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::scheme::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, Prepared, QuantScheme, Scheme, Sibling,
    TensorRole, refused, wrong,
};
use crate::{Dtype, Result};

/// Name in listings.
const FAMILY: &str = "ComfyUI";

pub(super) struct ComfyUi;

static IDENTITY: Identity = Identity {
    name: "ComfyUI quantization",
    methods: &[],
    codes: &[],
    companions: &[
        (Ends(".comfy_quant"), TensorRole::QuantState),
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends("weight_scale_2"), TensorRole::Scale),
        (Ends(".weight_s_rel"), TensorRole::Scale),
        (Ends(".weight_s_channel"), TensorRole::Scale),
        (Ends(".weight_codebook"), TensorRole::QuantMap),
        (Ends(".weight_correction"), TensorRole::Offset),
        (Ends(".weight_zero"), TensorRole::Offset),
        (Ends(".weight_zeros"), TensorRole::Offset),
        (Ends(".weight_smooth_factor"), TensorRole::Scale),
        (Ends(".weight_proj_down"), TensorRole::LowRank),
        (Ends(".weight_proj_up"), TensorRole::LowRank),
    ],
    optional: &[
        Sibling::OfWeight("_codebook"),
        Sibling::OfWeight("_correction"),
    ],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for ComfyUi {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        ComfyLayers::of(all.model).map(|layers| Box::new(layers) as Prepared)
    }

    fn descriptions(&self, _metadata: &HashMap<String, String>) -> Vec<String> {
        vec![METADATA.to_owned()]
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(layers) = all.prepared::<ComfyLayers>() else {
            return Ok(None);
        };
        let Some(description) = ComfyDescription::find(t, layers, all)? else {
            // Codes that no description covers must not be left to schemes that would guess their layout.
            // Only codes have to be described: a float with a `_scale` beside it can be an ordinary
            // tensor.
            let scaled = !t.dtype().is_floating_point() && all.at(t.name(), "_scale").is_some();
            let what =
                "the file describes how its layers are quantized, and this one is not among them";
            return if scaled {
                Err(refused(t, "ComfyUI quantization", what))
            } else {
                Ok(None)
            };
        };
        let format = description.format.as_str();
        // Nodes for other GPUs (WINT8, TINT4) say so of rotations by a matrix of their own.
        if description.flag("quarot") {
            let what = "its columns are rotated (`quarot`), which is not decoded";
            return Err(refused(t, "ComfyUI quantization", what));
        }
        let is_rotated = description.flag("convrot");
        let dtype = match format {
            "float8_e4m3fn" | "mxfp8" => Dtype::F8E4M3,
            "float8_e5m2" => Dtype::F8E5M2,
            "int8_tensorwise" | "convrot_w4a4" | "asym_w4a8_int8" | "awq_w4a16"
            | "svdquant_w4a4" => Dtype::I8,
            "nvfp4" => Dtype::U8,
            _ => {
                return Err(refused(
                    t,
                    "ComfyUI quantization",
                    format!("its format is `{format}`, which is not decoded"),
                ));
            }
        };
        // The codes are those of the rotated weight. Without the inverse rotation they would decode
        // to another basis.
        if is_rotated
            && !matches!(
                format,
                "int8_tensorwise" | "convrot_w4a4" | "asym_w4a8_int8"
            )
        {
            let what = format!(
                "its columns are rotated (`{format}` with `convrot`), which is not decoded"
            );
            return Err(refused(t, "ComfyUI quantization", what));
        }
        // The format and the dtype are stated in two places. If they contradict each other, either
        // could be meant.
        if t.dtype() != dtype {
            return Err(wrong(
                t,
                format!("its format is said to be `{format}`, and that has {dtype}"),
            ));
        }
        // FP8 and INT8 with plain scales are laid out as other producers do it; the others are
        // ComfyUI's own.
        let scale = || all.need(t, t.name(), "_scale");
        let group = match format {
            "mxfp8" => Some(mxfp8(t, &scale()?)?),
            "nvfp4" => Some(nvfp4(t, &scale()?, all)?),
            "convrot_w4a4" => Some(rotated::w4a4(t, &scale()?, &description)?),
            "asym_w4a8_int8" => Some(rotated::w4a8(t, &description, all)?),
            "awq_w4a16" => Some(int4::awq(t, &scale()?, &description, all)?),
            "svdquant_w4a4" => Some(int4::svdquant(t, &scale()?, &description, all)?),
            _ => {
                let scale = scale()?;
                check_plain_scale(t, &scale)?;
                match format {
                    "int8_tensorwise" if is_rotated => {
                        Some(rotated::int8(t, &scale, &description)?)
                    }
                    "int8_tensorwise" => Int8.claim(t, all)?,
                    _ => Fp8.claim(t, all)?,
                }
            }
        };
        // The other scheme found no scale that it takes, for instance exponents beside
        // `float8_e4m3fn`.
        let Some(mut group) = group else {
            return Err(wrong(
                t,
                format!(
                    "its `{}` is no scale of a weight of format `{format}`",
                    scale()?.name()
                ),
            ));
        };
        // The FP8 schemes have a name of their own without a producer.
        if let QuantScheme::Grouped { family, .. } = &mut group.scheme {
            *family = FAMILY;
        }
        group.parts.extend(
            description
                .marker
                .map(|marker| (TensorRole::QuantState, marker)),
        );
        Ok(Some(group))
    }
}

/// Checks that `scale` is one number, or one for each row, as comfy-kitchen's `float8` and `int8_tensorwise` have it.
///
/// # Errors
/// It has another shape, or the weight has no rows.
fn check_plain_scale(t: &Tensor<'_>, scale: &Tensor<'_>) -> Result<()> {
    let is_one_a_row = match (scale.shape(), t.shape()) {
        (&[n] | &[n, 1], &[rows, ..]) => n == rows,
        _ => false,
    };
    if t.shape().len() >= 2 && (scale.elements() == 1 || is_one_a_row) {
        return Ok(());
    }
    let what = format!(
        "its `{}` {:?} is neither one number nor one for each row",
        scale.name(),
        scale.shape()
    );
    Err(wrong(t, what))
}

fn mxfp8<'m>(t: &Tensor<'m>, scale: &Tensor<'m>) -> Result<Group<'m>> {
    const BLOCK: usize = 32;
    let (rows, cols) = rows_and_stored_cols(t)?;
    let scales = Box::new(tiled(
        t,
        scale,
        Floats::flushed_exponents(scale)?,
        [rows, cols.div_ceil(BLOCK)],
    )?);
    let codes = Codes::Rows {
        part: t.part(),
        row_bytes: cols,
    };
    let decoder = Grouped::scaled(
        codes,
        8,
        CodeFormat::E4M3,
        [rows, cols],
        row_groups(cols, BLOCK),
        scales,
    );
    let scheme = QuantScheme::Grouped {
        family: FAMILY,
        codes: CodeType::Mxfp8,
        scales: Granularity::Group(BLOCK),
    };
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    Ok(Group::new(
        t.name().to_owned(),
        t.shape().to_vec(),
        scheme,
        parts,
        Box::new(decoder),
    ))
}

/// `floats` as the `rows` × `cols` scales of `t`, stored in tiles.
///
/// # Errors
/// The shape of `scale` is not that of whole tiles.
fn tiled<'m>(
    t: &Tensor<'_>,
    scale: &Tensor<'_>,
    floats: Floats<'m>,
    [rows, cols]: [usize; 2],
) -> Result<TiledScales<'m>> {
    // Tiles are stored whole, so the padded shape is the proof that the scales are tiled at all.
    let padded = rows
        .checked_next_multiple_of(TILE_ROWS)
        .zip(cols.checked_next_multiple_of(TILE_COLS));
    if padded.is_none_or(|(rows, cols)| scale.shape() != [rows, cols]) {
        let (name, shape) = (scale.name(), scale.shape());
        let what = format!(
            "its scales `{name}` {shape:?} are not {rows} x {cols} in tiles of {TILE_ROWS} x {TILE_COLS}"
        );
        return Err(wrong(t, what));
    }
    Ok(TiledScales { floats, rows, cols })
}

/// Rows and stored columns of `t`.
fn rows_and_stored_cols(t: &Tensor<'_>) -> Result<(usize, usize)> {
    if t.shape().len() == 2 {
        Ok(rows_and_cols(t.shape()))
    } else {
        Err(wrong(t, "its format has two dimensions"))
    }
}

fn nvfp4<'m>(t: &Tensor<'m>, scale: &Tensor<'m>, all: &Index<'m>) -> Result<Group<'m>> {
    use crate::kernels::remember::grouped::E2M1;
    use crate::kernels::remember::nvfp4::BLOCK;
    use crate::scheme::seam::numbers::{NestedOp, NestedScales};
    let (rows, bytes) = rows_and_stored_cols(t)?;
    let global = all.need(t, t.name(), "_scale_2")?;
    if scale.dtype() != Dtype::F8E4M3 || global.elements() != 1 {
        return Err(wrong(
            t,
            format!(
                "NVFP4 wants F8_E4M3 as `{}`, and one `{}`",
                scale.name(),
                global.name()
            ),
        ));
    }
    let cols = bytes
        .checked_mul(2)
        .ok_or_else(|| wrong(t, "it is too wide"))?;
    let scales = Box::new(NestedScales {
        inner: Box::new(tiled(
            t,
            scale,
            Floats::fp8(scale)?,
            [rows, cols.div_ceil(BLOCK)],
        )?),
        outer: Floats::ieee(&global)?,
        count: 1,
        rows_each: rows.max(1),
        op: NestedOp::Multiply,
        unit: 1.0,
    });
    let codes = Codes::Unpacked(Box::new(high_first::HighNibbleFirst {
        part: t.part(),
        row_bytes: bytes,
    }));
    // comfy-kitchen's table has -0 at code 8, in contrast to ModelOpt's.
    let code_format = CodeFormat::E2M1(E2M1 {
        factor: 1.0,
        plain_zero: false,
    });
    let decoder = Grouped::scaled(
        codes,
        4,
        code_format,
        [rows, cols],
        row_groups(cols, BLOCK),
        scales,
    );
    let scheme = QuantScheme::Grouped {
        family: FAMILY,
        codes: CodeType::Nvfp4,
        scales: Granularity::Group(BLOCK),
    };
    let parts = vec![
        (TensorRole::Quantized, *t),
        (TensorRole::Scale, *scale),
        (TensorRole::Scale, global),
    ];
    Ok(Group::new(
        t.name().to_owned(),
        vec![rows, cols],
        scheme,
        parts,
        Box::new(decoder),
    ))
}

mod high_first {
    use crate::Result;
    use crate::containers::model::Part;
    use crate::scheme::Tile;
    use crate::scheme::seam::grouped::Unpack;
    use crate::scheme::seam::read;

    /// Rows of four-bit codes. The high nibble of a byte has the code of the even column.
    pub(super) struct HighNibbleFirst<'m> {
        pub part: Part<'m>,
        pub row_bytes: usize,
    }

    impl Unpack for HighNibbleFirst<'_> {
        fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
            read(
                &self.part,
                self.row_bytes,
                tile.rows.clone(),
                // Tiles begin and end at even columns, so no byte is split.
                tile.cols.start / 2..tile.cols.end / 2,
                staging,
            )?;
            out.clear();
            out.extend(staging.iter().flat_map(|byte| [byte >> 4, byte & 15]));
            Ok(())
        }

        /// 16 rows at a time: their scales lie in the same tiles of scales, and one read serves them all.
        fn align(&self) -> (usize, usize) {
            (16, 2)
        }
    }
}
