//! FP8 weights: `X.weight` (F8_E4M3, F8_E5M2 or FNUZ) with a multiplier under one of several names,
//! per tensor, row, column or block. Stacked experts `X` have `X_scale_inv`, `X_scale` or
//! `X_weight_scale` beside them; `X.shard_N.weight` have the one of `X`. ModelOpt's weights may have been divided by `pre_quant_scale`,
//! column by column.

use std::collections::HashMap;

use super::modelopt::pre_quant_scale;
use super::mxfp4::BLOCK as MX_BLOCK;
pub use crate::compat::dequantize::{
    dequantize_fp8_to_bf16, dequantize_per_channel_fp8_to_bf16, dequantize_per_tensor_fp8_to_bf16,
};
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::layout::tiled::fills_tiles;
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::grouped::{CodeFormat, Codes, GroupFormula, Grouped};
use crate::remember::seam::scale_layout::{granularity, per_tensor, rows_and_cols};
use crate::remember::seam::scale_matrix::{Matrix, Ones, ScaleMatrix};
use crate::remember::seam::{
    Dialect, Floats, Fp8Format, Granularity, Group, Identity, Index, MethodFacts, Prepared,
    QuantScheme, Scheme, Sibling, StatedCodes, TensorRole,
};
use crate::remember::seam::{base_of, module_of, refused, wrong};
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

pub(super) struct Fp8;

/// Rows of the smallest block that shares an exponent. DeepSeek's has 128; transformers tests
/// with 16.
const LEAST_BLOCK: usize = 16;

/// Names of the scale of `X.weight` without `X.`.
const SCALE_OF_MODULE: &[&str] = &["scale", "scale_weight", "qscale_weight"];

/// Suffixes that make a tensor's name that of its scale.
const SCALE_OF_TENSOR: &[&str] = &["_scale_inv", "_scale", "_weight_scale", "_weight_scale_inv"];

/// Whether `name` says that the file holds scales of FP8 weights, even before a weight is found for
/// it.
fn is_scale_name(name: &str) -> bool {
    // Only endings that say by themselves that codes are scaled. A bare `.scale` can be a parameter
    // of any model.
    ["weight_scale", "_scale_inv", "scale_weight", "scaled_fp8"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Every name that the scale of a weight can have, in two parts.
fn scale_names(weight: &str) -> impl Iterator<Item = (&str, &'static str)> {
    let of_tensor = SCALE_OF_TENSOR.iter().map(move |&end| (weight, end));
    let base = base_of(weight, "weight");
    let of_module = base
        .into_iter()
        .flat_map(|base| SCALE_OF_MODULE.iter().map(move |&end| (base, end)));
    of_tensor.chain(of_module)
}

/// The tensors that are named as scales of weight `t`. A weight has at most one; the caller refuses
/// more.
fn scales_of<'m>(t: &Tensor<'m>, all: &Index<'m>) -> Vec<Tensor<'m>> {
    let of = |weight: &str| {
        let found = scale_names(weight).filter_map(|(base, end)| all.at(base, end));
        found.collect::<Vec<_>>()
    };
    let own = of(t.name());
    match whole_of_shard(t.name()).filter(|_| own.is_empty()) {
        Some(whole) => of(&whole),
        None => own,
    }
}

/// The name of the weight whose rows are stored in several modules, one of which has the tensor
/// `name`: `X.weight` for `X.shard_0.weight`, as of the n-gram embeddings of Qwen 4. They share the
/// scale of the whole (sglang `qwen4_exp.py`, `load_qwen4_exp_ple_shard`).
fn whole_of_shard(name: &str) -> Option<String> {
    let (whole, number) = name.strip_suffix(".weight")?.rsplit_once(".shard_")?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| format!("{whole}.weight"))
}

/// Prepared if some tensor of the model is a scale of an FP8 weight, or a marker that there are
/// such.
struct HasScales {
    /// ComfyUI's markers: the prefix of the names that each is about, and the dtype of the weights
    /// there.
    markers: Vec<(String, Dtype)>,
    /// Whether exponents of some weight fill no tiles, and so lie in rows.
    has_row_exponents: bool,
    /// For each weight that is stored in several modules, the number of the first one's codes: a
    /// tensor belongs to one weight, and the scale of all to the first of them.
    first_shards: HashMap<String, usize>,
}

/// Most markers that are compared with each weight. A file has one for each of its few models.
const MAX_MARKERS: usize = 16;

impl HasScales {
    /// The markers of `model`. An F32 marker stands for E4M3 (ComfyUI `model_detection`).
    fn of(model: &ParsedModel) -> Self {
        let marker = |t: Tensor<'_>| {
            let prefix = base_of(t.name(), "scaled_fp8")?.to_owned();
            let dtype = if t.dtype() == Dtype::F32 {
                Dtype::F8E4M3
            } else {
                t.dtype()
            };
            Some((prefix, dtype))
        };
        let markers = model.tensors().filter_map(marker).take(MAX_MARKERS);
        let mut first_shards = HashMap::new();
        for t in model
            .tensors()
            .filter(|t| Fp8Format::of(t.dtype()).is_some())
        {
            if let Some(whole) = whole_of_shard(t.name()) {
                first_shards.entry(whole).or_insert(t.index);
            }
        }
        Self {
            markers: markers.collect(),
            has_row_exponents: model.tensors().any(|t| {
                matches!(t.dtype(), Dtype::U8 | Dtype::F8E8M0)
                    && t.name().ends_with(".weight_scale")
                    && !fills_tiles(t.shape())
            }),
            first_shards,
        }
    }

    /// Whether `scale` is listed with the weight `t`.
    fn is_owner(&self, t: &Tensor<'_>, scale: &Tensor<'_>) -> bool {
        let whole = whole_of_shard(t.name());
        let first = whole.and_then(|whole| {
            let is_of_whole =
                scale_names(&whole).any(|(base, end)| scale.name().strip_suffix(end) == Some(base));
            is_of_whole.then(|| self.first_shards.get(&whole)).flatten()
        });
        first.is_none_or(|&first| first == t.index)
    }

    /// Checks the dtype of the scaled weight `t` against the marker of its model.
    fn check(&self, t: &Tensor<'_>) -> Result<()> {
        let about = |(prefix, dtype): &&(String, Dtype)| {
            t.name().starts_with(prefix.as_str()) && Fp8Format::of(*dtype).is_some()
        };
        match self
            .markers
            .iter()
            .filter(about)
            .max_by_key(|(prefix, _)| prefix.len())
        {
            Some((prefix, dtype)) if *dtype != t.dtype() => {
                Err(wrong(t, format!("`{prefix}scaled_fp8` says that weights are {dtype}")))
            }
            _ => Ok(()),
        }
    }
}

static IDENTITY: Identity = Identity {
    name: "FP8",
    over: &[],
    methods: &[
        QuantMethod::Fp8,
        QuantMethod::FbgemmFp8,
        QuantMethod::MiniMaxM3Nvfp4,
        QuantMethod::Mxfp8,
        QuantMethod::W4aFp8,
        QuantMethod::W8a8Fp8,
        QuantMethod::AutoRound,
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
        (Ends(".gate_up_proj_scale"), TensorRole::Scale),
        (Ends(".down_proj_scale"), TensorRole::Scale),
        (Ends("pre_quant_scale"), TensorRole::Scale),
    ],
    optional: &[Sibling::OfModule("pre_quant_scale")],
    activations: &["input_scale_ub", "scale_input", "qscale_act"],
    markers: &[Is("scaled_fp8"), Ends(".scaled_fp8")],
    sidecars: &[],
    container: None,
};

const METHODS: &[MethodFacts] = &[
    // transformers `finegrained_fp8`.
    MethodFacts {
        no_blocks: [None, Some("the config says `weight_block_size: null`, which is")],
        ..MethodFacts::new(&QuantMethod::Fp8, StatedCodes::E4M3)
    },
    // fbgemm `quantize_fp8_per_row`.
    MethodFacts {
        scales: Some((Granularity::Channel, "the config says FBGEMM, which has one a row")),
        no_blocks: [Some("the config says FBGEMM, which quantizes"), None],
        keeps_reduced: true,
        ..MethodFacts::new(&QuantMethod::FbgemmFp8, StatedCodes::E4M3)
    },
    MethodFacts::new(&QuantMethod::Mxfp8, StatedCodes::E4M3),
    MethodFacts::new(&QuantMethod::MiniMaxM3Nvfp4, StatedCodes::E4M3),
];

/// `fmt` of transformers, `format` of GPTQModel.
static DIALECT: Dialect = Dialect {
    words: &[
        ("e4m3", StatedCodes::E4M3),
        ("e5m2", StatedCodes::E5M2),
        ("float8_e4m3fn", StatedCodes::E4M3),
        ("float8_e5m2", StatedCodes::E5M2),
        ("float8_e4m3fnuz", StatedCodes::Float(8, Some(Fp8Format::E4M3Fnuz))),
        ("float8_e5m2fnuz", StatedCodes::Float(8, Some(Fp8Format::E5M2Fnuz))),
    ],
    algorithms: &[],
};

impl Scheme for Fp8 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn kind(&self, t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::CastFp8 { format: Fp8Format::of(t.dtype()).unwrap_or(Fp8Format::E4M3) }
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        // The weight's own FP8 dtype has to be seen for the short names, such as `X.scale` of
        // DeepSeek-V4.
        let is_scaled = |t: &Tensor<'_>| {
            is_scale_name(t.name())
                || Fp8Format::of(t.dtype()).is_some()
                    && scale_names(t.name()).any(|(base, end)| all.at(base, end).is_some())
        };
        let mut tensors = all.model.tensors();
        tensors
            .any(|t| is_scaled(&t))
            .then(|| Box::new(HasScales::of(all.model)) as Prepared)
    }

    fn methods(&self) -> &'static [MethodFacts] {
        METHODS
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(format) = Fp8Format::of(t.dtype()) else {
            return Ok(None);
        };
        let scales = scales_of(t, all);
        let (scheme, grid, floats) = match scales.as_slice() {
            [] => return Ok(None),
            [scale] => {
                if let Some(has_scales) = all.prepared::<HasScales>() {
                    has_scales.check(t)?;
                }
                let (scheme, grid) = fit(t, scale, format, all)?;
                (scheme, grid, Floats::new(scale)?)
            }
            // Both would fit, and their product or either of them could be meant.
            [a, b, ..] => {
                return Err(wrong(
                    t,
                    format!("it has two scales, `{}` and `{}`", a.name(), b.name()),
                ));
            }
        };
        let mut parts = vec![(TensorRole::Quantized, *t)];
        let is_owned = |scale: &Tensor<'_>| {
            let prepared = all.prepared::<HasScales>();
            prepared.is_none_or(|has_scales| has_scales.is_owner(t, scale))
        };
        let owned = scales.iter().filter(|scale| is_owned(scale));
        parts.extend(owned.map(|&s| (TensorRole::Scale, s)));
        let scales = Matrix { floats, cols: grid.cols };
        let mut decoder = decoder(t, format, grid, Box::new(scales));
        if is_divided(t, all)? {
            decoder.formula = GroupFormula::Divide;
        }
        let (_, cols) = rows_and_cols(t.shape());
        if let Some(columns) = pre_quant_scale(t, cols, all)? {
            // ModelOpt writes the factors beside OCP formats only. With anything else it is another
            // tensor of that name.
            if !matches!(format, Fp8Format::E4M3 | Fp8Format::E5M2) {
                return Err(only_scaled(t, &columns));
            }
            decoder.columns = Some(Matrix::of_columns(&columns)?);
            parts.push((TensorRole::Scale, columns));
        }
        Ok(Some(Group::new(t.name(), t.shape(), scheme, parts, Box::new(decoder))))
    }

    fn assumption(&self, group: &Group<'_>, all: &Index<'_>) -> Option<&'static str> {
        let (_, scale) = group.parts.get(1)?;
        let is_in_rows = || {
            all.prepared::<HasScales>()
                .is_some_and(|prepared| prepared.has_row_exponents)
        };
        match group.scheme {
            _ if all.config.is_quantized() => None,
            QuantScheme::FineGrainedFp8 { rows: 1, cols: MX_BLOCK, .. }
                if scale.name().ends_with(".weight_scale") && !is_in_rows() =>
            {
                Some(
                    "nothing says whose MXFP8 it is: read as ModelOpt's, while ComfyUI's without its description `comfy_quant` has the same names and shapes, and exponents in another order",
                )
            }
            _ if scale.name().ends_with("weight_scale_inv") => Some(
                "nothing says whose FP8 it is: read as DeepSeek's, which `weight_scale_inv` multiplies, while it divides GPTQModel's",
            ),
            _ => None,
        }
    }
}

/// Weights that were cast to FP8, and have no scale.
pub(super) struct CastFp8;

static CAST: Identity = Identity { name: "FP8 without scales", companions: &[], ..IDENTITY };

impl Scheme for CastFp8 {
    fn identity(&self) -> &'static Identity {
        &CAST
    }

    fn is_asked_last(&self) -> bool {
        true
    }

    fn kind(&self, t: &Tensor<'_>, all: &Index<'_>) -> QuantScheme {
        Fp8.kind(t, all)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(format) = Fp8Format::of(t.dtype()).filter(|_| !is_scale_name(t.name())) else {
            return Ok(None);
        };
        check_cast(t, all)?;
        let (_, cols) = rows_and_cols(t.shape());
        if let Some(columns) = pre_quant_scale(t, cols, all)? {
            return Err(only_scaled(t, &columns));
        }
        // A product with 1 is exact.
        let decoder = decoder(t, format, per_tensor(t.shape()), Box::new(Ones));
        let parts = vec![(TensorRole::Quantized, *t)];
        let scheme = QuantScheme::CastFp8 { format };
        Ok(Some(Group::new(t.name(), t.shape(), scheme, parts, Box::new(decoder))))
    }
}

/// The decoder of the codes `t`, whose scales are `matrix`.
fn decoder<'m>(
    t: &Tensor<'m>,
    format: Fp8Format,
    grid: ScaleGrid,
    matrix: Box<dyn ScaleMatrix + 'm>,
) -> Grouped<'m> {
    let (rows, cols) = rows_and_cols(t.shape());
    let codes = Codes::Rows { part: t.part(), row_bytes: cols };
    Grouped::scaled(codes, 8, CodeFormat::of_fp8(format), [rows, cols], grid, matrix)
}

/// The error of `t` that has the factors `columns` of scaled codes.
fn only_scaled(t: &Tensor<'_>, columns: &Tensor<'_>) -> AnamnesisError {
    wrong(t, format!("`{}` goes with E4M3 or E5M2 and a scale", columns.name()))
}

/// Whether the scale of `t` divides its codes: GPTQModel stores what it has multiplied weights by,
/// under the name of a scale that multiplies (`TorchFP8Linear.dequantize_weight`).
///
/// # Errors
/// `weight_scale_semantics` is not known.
fn is_divided(t: &Tensor<'_>, all: &Index<'_>) -> Result<bool> {
    let module = all.config.at(module_of(t.name()));
    match module.text(&["weight_scale_semantics"]) {
        None => Ok(false),
        Some(("inverse", _)) => Ok(true),
        Some((other, place)) => {
            let what = format!("{place} says `weight_scale_semantics: {other}`");
            Err(refused(t, IDENTITY.name, what))
        }
    }
}

/// Checks that `t`, which has no scale, is a plain cast: the only case in which codes are values, so
/// everything that could speak for a scale is asked.
///
/// # Errors
/// The config, the rest of the file, the index, or the name of the file says that `t` has a scale.
fn check_cast(t: &Tensor<'_>, all: &Index<'_>) -> Result<()> {
    let lacks = |says: &str| {
        let name = t.name();
        let what = format!(
            "{says} says that it has a scale, and `{name}_scale` or `{name}_scale_inv` is missing"
        );
        Err(wrong(t, what))
    };
    // In this order: the config and the tensors are in memory, while the index has to be read from
    // disk.
    if all.config.is_quantized() && !all.config.skips(module_of(t.name())) {
        return lacks("the config");
    }
    if all.prepared::<HasScales>().is_some() {
        return lacks("the rest of the file");
    }
    let elsewhere = all.elsewhere()?;
    if elsewhere.any(is_scale_name) {
        let what = "the index has scales of weights in other shards; give the directory instead";
        return Err(wrong(t, what));
    }
    if elsewhere.is_unlisted_shard {
        let what = "the file is one of several shards by its name, and its scale may be in another; give the directory instead";
        return Err(wrong(t, what));
    }
    Ok(())
}

/// The grid that `scale` makes over `t`, and the scheme that has such a grid.
fn fit(
    t: &Tensor<'_>,
    scale: &Tensor<'_>,
    format: Fp8Format,
    all: &Index<'_>,
) -> Result<(QuantScheme, ScaleGrid)> {
    // The scale of a weight that lies in several modules is that of the whole.
    let mut names = scale_names(t.name());
    let is_own = |(base, end): (&str, &str)| scale.name().strip_suffix(end) == Some(base);
    let is_of_whole = whole_of_shard(t.name()).is_some() && !names.any(is_own);
    if is_of_whole && scale.elements() != 1 {
        let (name, shape) = (scale.name(), scale.shape());
        let what = format!("`{name}` {shape:?} is not one scale for all shards");
        return Err(wrong(t, what));
    }
    let grid = match is_of_whole {
        true => per_tensor(t.shape()),
        false => crate::remember::seam::scale_layout::fit(t, t.shape(), scale, all)?,
    };
    let (_, cols) = rows_and_cols(t.shape());
    // The microscaling formats of OCP have 32 values to an exponent. Exponents of blocks are
    // DeepSeek's.
    let is_mx = grid.block_rows == 1 && grid.block_cols == cols.min(MX_BLOCK);
    let is_block = grid.block_rows > 1 && grid.block_rows >= LEAST_BLOCK.min(grid.matrix_rows);
    if matches!(scale.dtype(), Dtype::U8 | Dtype::F8E8M0) && !is_mx && !is_block {
        let what = format!(
            "its exponents `{}` {:?} are neither one for {MX_BLOCK} values of a row nor one for a block",
            scale.name(),
            scale.shape()
        );
        return Err(wrong(t, what));
    }
    let scheme = match granularity(&grid, cols) {
        // Asked before the shapes: for a weight of one row, one scale is also one a row.
        _ if scale.elements() == 1 => QuantScheme::PerTensorFp8 { format },
        Granularity::Tensor => QuantScheme::PerTensorFp8 { format },
        Granularity::Channel => QuantScheme::PerChannelFp8 { format },
        Granularity::Group(cols) => QuantScheme::FineGrainedFp8 { format, rows: 1, cols },
        Granularity::Block { rows, cols } => QuantScheme::FineGrainedFp8 { format, rows, cols },
    };
    Ok((scheme, grid))
}
