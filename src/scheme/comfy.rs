//! ComfyUI's own formats. `X.comfy_quant` is JSON in a tensor of bytes and says how `X.weight` is quantized; or the
//! file's metadata say it of all layers, as `_quantization_metadata`.
//!
//! | format | weight | `X.weight_scale` |
//! |---|---|---|
//! | `float8_e4m3fn`, `float8_e5m2` | FP8 | floats |
//! | `int8_tensorwise` | I8 | floats, one or one a row |
//! | `nvfp4` | U8 `[out, in / 2]`, high nibble first | E4M3, one for 16 values, [tiled](super::tiled) |
//! | `mxfp8` | F8_E4M3 | exponents, one for 32 values, tiled |
//!
//! `X.weight_scale_2` of `nvfp4` multiplies the scales, in F32.
//!
//! Weights in blocks are padded to whole blocks in both dimensions. The file does not say what is padding.
//!
//! Formulas: comfy-kitchen, `dequantize` of its layouts, eager backend.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::fp8::Fp8;
use super::int8::Int8;
use crate::containers::model::Tensor;
use crate::scheme::layout::tiled::{TILE_COLS, TILE_ROWS, TiledScales};
use crate::scheme::seam::NamePattern::Ends;
use crate::scheme::seam::fit::rows_and_cols;
use crate::scheme::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::scheme::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, Prepared, QuantScheme, Scheme,
    TensorRole, base_of, refused, wrong,
};
use crate::{Dtype, ParsedModel, Result};

/// What listings call it.
const FAMILY: &str = "ComfyUI";

/// Largest description of a layer; real ones have some dozen bytes.
const MAX_JSON: u64 = 64 << 10;

/// Key of the metadata that describe all layers.
const METADATA: &str = "_quantization_metadata";

pub(super) struct ComfyUi;

/// What a file's metadata say of its layers.
struct ComfyLayers {
    by_name: Option<HashMap<String, Value>>,
}

impl ComfyLayers {
    /// `None` if nothing in the file says that ComfyUI's formats are in it.
    fn of(model: &ParsedModel) -> Option<Self> {
        let Some(text) = model.metadata.get(METADATA) else {
            let described = model
                .tensors()
                .any(|t| base_of(t.name(), "comfy_quant").is_some());
            return described.then(|| Self {
                by_name: Some(HashMap::new()),
            });
        };
        let json: Option<Value> = serde_json::from_str(text).ok();
        let layers = json
            .as_ref()
            .and_then(|json| json.get("layers")?.as_object());
        Some(Self {
            by_name: layers.map(|l| {
                l.iter()
                    .map(|(name, v)| (name.clone(), v.clone()))
                    .collect()
            }),
        })
    }
}

/// What is said of one weight.
struct ComfyDescription<'m> {
    format: String,
    /// Whether its columns are mixed by a Hadamard matrix.
    is_rotated: bool,
    /// The tensor that says it.
    marker: Option<Tensor<'m>>,
}

impl<'m> ComfyDescription<'m> {
    /// Of weight `t`, if there is one.
    fn find(t: &Tensor<'m>, layers: &ComfyLayers, all: &Index<'m>) -> Result<Option<Self>> {
        let Some(base) = base_of(t.name(), "weight") else {
            return Ok(None);
        };
        if let Some(marker) = all.at(base, "comfy_quant") {
            if !marker.part().is_readable() {
                let (format, is_rotated) = (guess_format(t, all).to_owned(), false);
                return Ok(Some(Self {
                    format,
                    is_rotated,
                    marker: Some(marker),
                }));
            }
            let json = serde_json::from_slice(&marker.part().read_small(MAX_JSON)?).ok();
            let found = json
                .as_ref()
                .and_then(Value::as_object)
                .and_then(|says| Self::read(says, Some(marker)));
            let what = "it is to say in JSON which format its layer has, and does not";
            return found.map(Some).ok_or_else(|| wrong(&marker, what));
        }
        let Some(by_name) = &layers.by_name else {
            return Err(wrong(
                t,
                format!("`{METADATA}` of the file is not the JSON that it should be"),
            ));
        };
        let Some(says) = by_name.get(base.trim_end_matches('.')) else {
            return Ok(None);
        };
        let found = says.as_object().and_then(|says| Self::read(says, None));
        found
            .map(Some)
            .ok_or_else(|| wrong(t, format!("`{METADATA}` has no format for it")))
    }

    fn read(says: &Map<String, Value>, marker: Option<Tensor<'m>>) -> Option<Self> {
        let is_rotated = says
            .get("convrot")
            .is_some_and(|v| !matches!(v, Value::Null | Value::Bool(false)));
        Some(Self {
            format: says.get("format")?.as_str()?.to_owned(),
            is_rotated,
            marker,
        })
    }
}

/// The format of `t` by its dtypes, for listings of files of which only the header is at hand.
fn guess_format<'m>(t: &Tensor<'m>, all: &Index<'m>) -> &'static str {
    let exponents = all
        .at(t.name(), "_scale")
        .is_some_and(|scale| scale.dtype() == Dtype::F8E8M0);
    match t.dtype() {
        Dtype::F8E4M3 if exponents => "mxfp8",
        Dtype::F8E4M3 => "float8_e4m3fn",
        Dtype::F8E5M2 => "float8_e5m2",
        Dtype::U8 => "nvfp4",
        _ => "int8_tensorwise",
    }
}

static IDENTITY: Identity = Identity {
    name: "ComfyUI quantization",
    methods: &[],
    codes: &[],
    companions: &[
        (Ends(".comfy_quant"), TensorRole::QuantState),
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends("weight_scale_2"), TensorRole::Scale),
    ],
    optional: &[],
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
        let Some(says) = ComfyDescription::find(t, layers, all)? else {
            let scaled = !t.dtype().is_floating_point() && all.at(t.name(), "_scale").is_some();
            let what =
                "the file describes how its layers are quantized, and this one is not among them";
            return if scaled {
                Err(refused(t, "ComfyUI quantization", what))
            } else {
                Ok(None)
            };
        };
        let format = says.format.as_str();
        if says.is_rotated {
            let what = format!(
                "its columns are rotated (`{format}` with `convrot`), which is not decoded"
            );
            return Err(refused(t, "ComfyUI quantization", what));
        }
        let dtype = match format {
            "float8_e4m3fn" | "mxfp8" => Dtype::F8E4M3,
            "float8_e5m2" => Dtype::F8E5M2,
            "int8_tensorwise" => Dtype::I8,
            "nvfp4" => Dtype::U8,
            _ => {
                return Err(refused(
                    t,
                    "ComfyUI quantization",
                    format!("its format is `{format}`, which is not decoded"),
                ));
            }
        };
        if t.dtype() != dtype {
            return Err(wrong(
                t,
                format!("its format is said to be `{format}`, and that has {dtype}"),
            ));
        }
        let scale = all.need(t, t.name(), "_scale")?;
        let group = match format {
            "mxfp8" => Some(mxfp8(t, &scale)?),
            "nvfp4" => Some(nvfp4(t, &scale, all)?),
            "int8_tensorwise" => Int8.claim(t, all)?,
            _ => Fp8.claim(t, all)?,
        };
        let Some(mut group) = group else {
            return Err(wrong(
                t,
                format!(
                    "its `{}` is no scale of a weight of format `{format}`",
                    scale.name()
                ),
            ));
        };
        if let QuantScheme::Grouped { family, .. } = &mut group.scheme {
            *family = FAMILY;
        }
        group
            .parts
            .extend(says.marker.map(|marker| (TensorRole::QuantState, marker)));
        Ok(Some(group))
    }
}

fn mxfp8<'m>(t: &Tensor<'m>, scale: &Tensor<'m>) -> Result<Group<'m>> {
    const BLOCK: usize = 32;
    let (rows, cols) = matrix(t)?;
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

/// `floats` as the scales of `t`: `rows` × `cols`, and padding up to whole tiles.
fn tiled<'m>(
    t: &Tensor<'_>,
    scale: &Tensor<'_>,
    floats: Floats<'m>,
    [rows, cols]: [usize; 2],
) -> Result<TiledScales<'m>> {
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

fn matrix(t: &Tensor<'_>) -> Result<(usize, usize)> {
    if t.shape().len() == 2 {
        Ok(rows_and_cols(t.shape()))
    } else {
        Err(wrong(t, "its format has two dimensions"))
    }
}

#[cfg(not(feature = "nvfp4"))]
fn nvfp4<'m>(t: &Tensor<'m>, _scale: &Tensor<'m>, _all: &Index<'m>) -> Result<Group<'m>> {
    Err(refused(
        t,
        "NVFP4",
        "needs the feature `nvfp4`, which this build leaves out",
    ))
}

#[cfg(feature = "nvfp4")]
fn nvfp4<'m>(t: &Tensor<'m>, scale: &Tensor<'m>, all: &Index<'m>) -> Result<Group<'m>> {
    use crate::kernels::remember::grouped::E2M1;
    use crate::kernels::remember::nvfp4::BLOCK;
    use crate::scheme::seam::numbers::{NestedOp, NestedScales};
    let (rows, bytes) = matrix(t)?;
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

#[cfg(feature = "nvfp4")]
mod high_first {
    use crate::Result;
    use crate::containers::model::Part;
    use crate::scheme::seam::grouped::Unpack;
    use crate::scheme::{Tile, read};

    /// Rows of four-bit codes, the even one of a byte in its high nibble.
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
                tile.cols.start / 2..tile.cols.end / 2,
                staging,
            )?;
            out.clear();
            out.extend(staging.iter().flat_map(|byte| [byte >> 4, byte & 15]));
            Ok(())
        }

        /// Rows so that tiles of scales are not read once for each of theirs.
        fn align(&self) -> (usize, usize) {
            (16, 2)
        }
    }
}
