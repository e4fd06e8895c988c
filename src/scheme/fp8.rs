//! FP8 weights: `X.weight` (F8_E4M3, F8_E5M2 or FNUZ) with a multiplier under one of several names, per
//! tensor, row, column or block. Stacked experts `X` have `X_scale_inv`, `X_scale` or `X_weight_scale` beside them.
//! ModelOpt's weights may have been divided by [`pre_quant_scale`], column by column.

use std::marker::PhantomData;
use std::ops::Range;

use super::modelopt::pre_quant_scale;
use crate::Result;
use crate::config::QuantMethod;
use crate::containers::model::{Part, Tensor};
use crate::element::Out;
use crate::kernels::remember::fp8::{Code, E4M3, E4M3Fnuz, E5M2, E5M2Fnuz, ScaleGrid, Scaled};
use crate::scheme::seam::NamePattern::{Ends, Is};
use crate::scheme::seam::fit::{granularity, per_tensor, rows_and_cols};
use crate::scheme::seam::grouped::{CodeFormat, Codes, Grouped};
use crate::scheme::seam::numbers::Matrix;
use crate::scheme::seam::{
    Buffers, Decode, Floats, Fp8Format, Grid, Group, Identity, Index, Prepared, QuantScheme,
    Scheme, Sibling, TensorRole, Tile,
};
use crate::scheme::seam::{Granularity, base_of, module_of, read, wrong};
use crate::simd::{Level, dispatch};

pub(super) struct Fp8;

/// Names of the scale of `X.weight`, after `X.`.
const SCALE_OF_MODULE: &[&str] = &["scale", "scale_weight", "qscale_weight"];

/// Names of the scale of any tensor, after its own name.
const SCALE_OF_TENSOR: &[&str] = &["_scale_inv", "_scale", "_weight_scale", "_weight_scale_inv"];

/// Whether `name` says that the file holds scales of FP8 weights, even before a weight is found for it.
fn is_scale_name(name: &str) -> bool {
    ["weight_scale", "_scale_inv", "scale_weight", "scaled_fp8"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Every name that the scale of a weight can have.
fn scale_names(weight: &str) -> Vec<String> {
    let own = SCALE_OF_TENSOR.iter().map(|end| format!("{weight}{end}"));
    let base = base_of(weight, "weight");
    let module = base.into_iter().flat_map(|base| {
        SCALE_OF_MODULE
            .iter()
            .map(move |end| format!("{base}{end}"))
    });
    own.chain(module).collect()
}

/// The scales of weight `t`; more than one is left to the caller to refuse.
fn scales_of<'m>(t: &Tensor<'m>, all: &Index<'m>) -> Vec<Tensor<'m>> {
    scale_names(t.name())
        .iter()
        .filter_map(|name| all.get(name))
        .collect()
}

/// Prepared if some tensor of the model is a scale of an FP8 weight, or a marker that there are such.
struct HasScales;

static IDENTITY: Identity = Identity {
    name: "FP8",
    methods: &[
        QuantMethod::Fp8,
        QuantMethod::FbgemmFp8,
        QuantMethod::Mxfp8,
        QuantMethod::W8a8Fp8,
        QuantMethod::CompressedTensors,
        QuantMethod::ModelOpt,
        QuantMethod::Quark,
    ],
    codes: &[],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends("_scale_inv"), TensorRole::Scale),
        (Ends(".scale_weight"), TensorRole::Scale),
        (Ends(".qscale_weight"), TensorRole::Scale),
        (Ends("pre_quant_scale"), TensorRole::Scale),
    ],
    optional: &[Sibling::OfModule("pre_quant_scale")],
    activations: &["input_scale_ub", "scale_input", "qscale_act"],
    markers: &[Is("scaled_fp8"), Ends(".scaled_fp8")],
    sidecars: &[],
    container: None,
};

impl Scheme for Fp8 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::CastFp8 {
            format: Fp8Format::of(t.dtype()).unwrap_or(Fp8Format::E4M3),
        }
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        let is_scaled = |t: &Tensor<'_>| {
            is_scale_name(t.name())
                || Fp8Format::of(t.dtype()).is_some()
                    && scale_names(t.name())
                        .iter()
                        .any(|name| all.get(name).is_some())
        };
        let mut tensors = all.model.tensors();
        tensors
            .any(|t| is_scaled(&t))
            .then(|| Box::new(HasScales) as Prepared)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(format) = Fp8Format::of(t.dtype()) else {
            return Ok(None);
        };
        let scales_another = t
            .name()
            .strip_suffix("_scale")
            .is_some_and(|base| all.get(base).is_some() || all.at(base, "_qdata").is_some());
        if scales_another || is_scale_name(t.name()) {
            return Ok(None);
        }
        let scales = scales_of(t, all);
        let (scheme, grid, scale) = match scales.as_slice() {
            [] => {
                if let Some(says) = wants_scale(t, all)? {
                    let name = t.name();
                    let what = format!(
                        "{says} says that it has a scale, and `{name}_scale` or `{name}_scale_inv` is missing"
                    );
                    return Err(wrong(t, what));
                }
                (QuantScheme::CastFp8 { format }, per_tensor(t.shape()), None)
            }
            [scale] => {
                let (scheme, grid) = fit(t, scale, format, all)?;
                (scheme, grid, Some(Floats::new(scale)?))
            }
            [a, b, ..] => {
                return Err(wrong(
                    t,
                    format!("it has two scales, `{}` and `{}`", a.name(), b.name()),
                ));
            }
        };
        let mut parts = vec![(TensorRole::Quantized, *t)];
        parts.extend(scales.iter().map(|&s| (TensorRole::Scale, s)));
        let (rows, cols) = rows_and_cols(t.shape());
        let weight = Weight {
            codes: t.part(),
            scale,
            format,
            rows,
            cols,
            grid,
        };
        let decoder: Box<dyn Decode + 'm> = match pre_quant_scale(t, cols, all)? {
            Some(columns) => {
                parts.push((TensorRole::Scale, columns));
                Box::new(smoothed(t, &weight, &columns)?)
            }
            None => Box::new(weight),
        };
        Ok(Some(Group::new(
            t.name().to_owned(),
            t.shape().to_vec(),
            scheme,
            parts,
            decoder,
        )))
    }
}

/// Who says that `t`, which has no scale in this file, should have one.
fn wants_scale(t: &Tensor<'_>, all: &Index<'_>) -> Result<Option<&'static str>> {
    if all.config.is_quantized() && !all.config.skips(module_of(t.name())) {
        return Ok(Some("the config"));
    }
    if all.prepared::<HasScales>().is_some() {
        return Ok(Some("the rest of the file"));
    }
    let listed = all.config.is_indexed(&scale_names(t.name()))?;
    Ok(listed.then_some("model.safetensors.index.json"))
}

/// How the scales lie, and what that is called.
fn fit(
    t: &Tensor<'_>,
    scale: &Tensor<'_>,
    format: Fp8Format,
    all: &Index<'_>,
) -> Result<(QuantScheme, ScaleGrid)> {
    let grid = crate::scheme::seam::fit::fit(t, t.shape(), scale, all)?;
    let scheme = match granularity(&grid, rows_and_cols(t.shape()).1) {
        _ if scale.elements() == 1 => QuantScheme::PerTensorFp8 { format },
        Granularity::Tensor => QuantScheme::PerTensorFp8 { format },
        Granularity::Channel => QuantScheme::PerChannelFp8 { format },
        Granularity::Group(cols) => QuantScheme::FineGrainedFp8 {
            format,
            rows: 1,
            cols,
        },
        Granularity::Block { rows, cols } => QuantScheme::FineGrainedFp8 { format, rows, cols },
    };
    Ok((scheme, grid))
}

/// `weight` with a factor for each column, by the shared decoder.
fn smoothed<'m>(t: &Tensor<'m>, weight: &Weight<'m>, columns: &Tensor<'m>) -> Result<Grouped<'m>> {
    let &Weight {
        codes: part,
        scale,
        format,
        rows,
        cols,
        grid,
    } = weight;
    let (Some(floats), Some(code_format)) = (scale, CodeFormat::of_fp8(format)) else {
        return Err(wrong(
            t,
            format!("`{}` goes with E4M3 or E5M2 and a scale", columns.name()),
        ));
    };
    let codes = Codes::Rows {
        part,
        row_bytes: cols,
    };
    let scales = Box::new(Matrix {
        floats,
        cols: grid.cols,
    });
    let mut decoder = Grouped::scaled(codes, 8, code_format, [rows, cols], grid, scales);
    decoder.columns = Some(Floats::ieee(columns)?);
    Ok(decoder)
}

/// An FP8 weight with its scales.
struct Weight<'m> {
    codes: Part<'m>,
    scale: Option<Floats<'m>>,
    format: Fp8Format,
    rows: usize,
    cols: usize,
    grid: ScaleGrid,
}

impl Weight<'_> {
    /// The scales that `tile` uses, as rows and columns of the grid.
    fn scale_range(&self, tile: &Tile) -> (Range<usize>, Range<usize>) {
        let cols =
            tile.cols.start / self.grid.block_cols..tile.cols.end.div_ceil(self.grid.block_cols);
        (self.grid.rows(&tile.rows), cols)
    }

    fn run<C: Code>(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let width = tile.cols.len();
        let (scale_rows, scale_cols) = self.scale_range(tile);
        let first = (rows.start - tile.rows.start) * width;
        let kernel = Scaled::<C> {
            codes: &buffers.bytes[first..first + rows.len() * width],
            rows,
            cols: tile.cols.clone(),
            grid: self.grid,
            scales: &buffers.scales,
            scale_rows,
            scale_cols,
            format: PhantomData,
        };
        dispatch(level, &kernel, out);
    }
}

impl Decode for Weight<'_> {
    fn grid(&self) -> Grid {
        let load_bits = 8.0 + 64.0 / self.grid.block_cols as f64;
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: 1,
            col_align: 1,
            load_bits,
            transposed: false,
        }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        read(
            &self.codes,
            self.cols,
            tile.rows.clone(),
            tile.cols.clone(),
            &mut buffers.bytes,
        )?;
        buffers.scales.clear();
        let (rows, cols) = self.scale_range(tile);
        match &self.scale {
            Some(scale) => scale.extend(
                self.grid.cols,
                rows,
                cols,
                &mut buffers.staging,
                &mut buffers.scales,
            ),
            None => {
                buffers.scales.push(1.0);
                Ok(())
            }
        }
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        match self.format {
            Fp8Format::E4M3 => self.run::<E4M3>(tile, rows, buffers, level, out),
            Fp8Format::E5M2 => self.run::<E5M2>(tile, rows, buffers, level, out),
            Fp8Format::E4M3Fnuz => self.run::<E4M3Fnuz>(tile, rows, buffers, level, out),
            Fp8Format::E5M2Fnuz => self.run::<E5M2Fnuz>(tile, rows, buffers, level, out),
        }
    }
}
