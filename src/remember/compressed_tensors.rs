//! compressed-tensors, packed. Integers: `W_packed` I32 with `W_scale` and, in most files,
//! `W_shape`. Asymmetric weights have `W_zero_point` I32, packed along the rows. `W_g_idx` has the
//! group of each column if groups are not in order. MXFP4: `W_packed` U8 with exponents as
//! `W_scale`. MXFP6: `W_packed` U8, six bits a code. AutoRound stores MXINT4 like MXFP4, and has
//! FP4 with scales in E5M3 ([`e5m3_blocks`]).
//!
//! Layouts: compressed-tensors `compressors/pack_quantized`, `compressors/mx_quantized`.

mod e5m3_blocks;
mod packing;
mod uncompressed;
mod unused_bits;
mod words;
mod zero_points;

pub(super) use self::packing::read_shape;
use self::packing::{PackQuantized, WordAlignedCodes, packing};
use self::uncompressed::check_uncompressed;
use self::words::{SAMPLE, row_words};
use self::zero_points::{RowPacking, zero_points};
use super::mxfp4::{INT4, mx_rows, mx_rows_of};
use crate::config::QuantMethod;
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::remember::seam::scale_layout::{fit, granularity, rows_and_cols};
use crate::remember::seam::scale_matrix::{GroupIndexed, Matrix, ScaleMatrix};
use crate::remember::seam::{
    CodeFamily, CodeType, Dialect, Floats, Granularity, Group, Identity, Index, QuantScheme,
    Scheme, Sibling, StatedCodes, TensorRole, module_of, wrong,
};
use crate::{Dtype, Result};

/// Name in listings.
const FAMILY: &str = "compressed-tensors";
const AUTO_ROUND: &str = "AutoRound";

pub(super) struct CompressedTensors;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["not decoded"],
    methods: &[QuantMethod::CompressedTensors, QuantMethod::AutoRound],
    codes: &["_packed"],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends(".weight_zero_point"), TensorRole::ZeroPoint),
        (Ends(".weight_shape"), TensorRole::QuantState),
        (Ends(".weight_g_idx"), TensorRole::GroupIndex),
    ],
    optional: &[Sibling::OfWeight("_zero_point"), Sibling::OfWeight("_g_idx")],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

/// `data_type` of AutoRound, which writes these weights in the same layout.
static DIALECT: Dialect = Dialect {
    words: &[
        ("mx_fp8e4m3", StatedCodes::E4M3),
        ("mx_fp8e5m2", StatedCodes::E5M2),
        ("mx_fp4", StatedCodes::FLOAT4),
    ],
    algorithms: &[],
};

impl Scheme for CompressedTensors {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(name) = t.name().strip_suffix("_packed") else {
            return check_uncompressed(t, all).map(|()| None);
        };
        // Packed codes of other libraries have other scales; `foreign` refuses them by name.
        let Some(scale) = all.at(name, "_scale") else {
            return Ok(None);
        };
        match t.dtype() {
            Dtype::I32 | Dtype::U32 => packed_ints_by_entry(t, name, &scale, all).map(Some),
            Dtype::U8 if scale.dtype() == Dtype::U8 && e5m3_blocks::is_stated(name, all) => {
                e5m3_blocks::claim(t, name, &scale).map(Some)
            }
            // U8 with E4M3 scales is NVFP4, which comes before this scheme. Exponents are what
            // tells MX codes.
            Dtype::U8 if matches!(scale.dtype(), Dtype::U8 | Dtype::F8E8M0) => {
                // MXINT4 and MXFP4 differ only in AutoRound's config
                // (`experimental/qmodules/mxint4_utils.py`). No other library writes its key, so
                // the method need not be asked.
                let module = all.config.at(module_of(name));
                match module.text(&["data_type"]) {
                    Some((data_type, _)) if data_type.starts_with("mx_int") => {
                        mx_rows_of(t, name, &scale, AUTO_ROUND, INT4).map(Some)
                    }
                    Some((data_type, _)) if data_type.starts_with("mx_fp") => {
                        mx_codes(t, name, &scale, AUTO_ROUND, all).map(Some)
                    }
                    Some((data_type, place)) => Err(wrong(
                        t,
                        format!("{place} says `{data_type}`, and its scales are exponents"),
                    )),
                    None => mx_codes(t, name, &scale, FAMILY, all).map(Some),
                }
            }
            _ => Ok(None),
        }
    }

    fn assumption(&self, group: &Group<'_>, all: &Index<'_>) -> Option<&'static str> {
        let is_mxfp4 = matches!(
            group.scheme,
            QuantScheme::Grouped { codes: CodeType::Fp4, scales: Granularity::Group(_), .. }
        );
        let is_open = is_mxfp4 && !all.config.is_quantized();
        is_open.then_some("nothing says whose four bits with exponents these are: read as MXFP4, while AutoRound's MXINT4 has the same names and shapes")
    }
}

/// Claims codes of MXFP4 or MXFP6.
///
/// # Errors
/// The shapes tell other bits than the config.
fn mx_codes<'m>(
    t: &Tensor<'m>,
    name: &str,
    scale: &Tensor<'m>,
    family: &'static str,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let group = mx_rows(t, name, scale, family)?;
    let is_fp6 = matches!(group.scheme, QuantScheme::Grouped { codes: CodeType::Fp6, .. });
    let stated = all.config.at(module_of(name)).int(&["bits", "num_bits"]);
    if let Some((bits, place)) = stated.filter(|&(bits, _)| is_fp6 && bits != 6) {
        let what = format!(
            "{place} says {bits} bits, and its scales `{}` {:?} fit six",
            scale.name(),
            scale.shape()
        );
        return Err(wrong(t, what));
    }
    Ok(group)
}

/// Claims integers of one to eight bits by the entry of the config that fits them: several groups
/// may have the same targets.
///
/// # Errors
/// None fits, or two do that mean different weights.
fn packed_ints_by_entry<'m>(
    t: &Tensor<'m>,
    name: &str,
    scale: &Tensor<'m>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let module = all.config.at(module_of(name));
    let mut claims = module
        .candidates()
        .map(|entry| packed_ints(t, name, scale, &entry, all));
    // Without an entry the module is a candidate by itself.
    let first = claims
        .next()
        .unwrap_or_else(|| packed_ints(t, name, scale, &module, all));
    claims.fold(first, |best, other| match (best, other) {
        (Err(_), Ok(other)) => Ok(other),
        (Ok(a), Ok(b)) if a.scheme != b.scheme || a.shape != b.shape => {
            let what = format!(
                "two groups of the config are for it, {} and {}, and it fits both",
                a.scheme, b.scheme
            );
            Err(wrong(t, what))
        }
        (best, _) => best,
    })
}

/// Claims integers of one to eight bits by the config's entry `module`.
fn packed_ints<'m>(
    t: &Tensor<'m>,
    name: &str,
    scale: &Tensor<'m>,
    module: &crate::config::Module<'_>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let bits = module
        .int(&["num_bits"])
        .and_then(|(bits, _)| usize::try_from(bits).ok());
    let declared = all
        .at(name, "_shape")
        .map(|shape| read_shape(&shape).map(|dims| (shape, dims)))
        .transpose()?;
    let PackQuantized { bits, per_word, shape } =
        packing(t, declared.as_ref().map(|(_, dims)| dims.as_slice()), bits)?;
    let (rows, cols) = rows_and_cols(&shape);
    if declared.is_none() {
        check_full_words(t, name, scale, cols, module)?;
    }
    let row_packing = RowPacking {
        bits,
        per_word,
        // Of widths that divide 32, and of rows in one word, both packings are the same.
        is_certain: !32usize.is_multiple_of(bits) && cols > 32 / bits,
    };
    let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    parts.extend(declared.map(|(shape, _)| (TensorRole::QuantState, shape)));
    let index = all.at(name, "_g_idx");
    parts.extend(index.map(|index| (TensorRole::GroupIndex, index)));
    let index = index
        .map(|index| group_index(&index, cols))
        .transpose()?
        .flatten();
    let has_index = index.is_some();
    check_companions(t, name, scale, module, all)?;
    let grid = match &index {
        Some(_) => by_index(t, scale, rows, cols)?,
        None => grouped_rows(t, &shape, scale, module, all)?,
    };
    // With an index, a column of scales is a group. Without one, the grid knows how many there are.
    let groups = if index.is_some() {
        scale.elements() / rows.max(1)
    } else {
        grid.cols
    };
    let indexed = |numbers: Box<dyn ScaleMatrix + 'm>| match index {
        Some(index) => Box::new(GroupIndexed { inner: numbers, groups, index, is_float: false })
            as Box<dyn ScaleMatrix + 'm>,
        None => numbers,
    };
    let scales = indexed(Box::new(Matrix { floats: Floats::ieee(scale)?, cols: groups }));
    let codes = match per_word {
        None => Codes::Rows { part: t.part(), row_bytes: row_words(t) * 4 },
        Some(per_word) => Codes::Unpacked(Box::new(WordAlignedCodes {
            part: t.part(),
            row_words: row_words(t),
            bits,
            per_word,
        })),
    };
    let code_format = CodeFormat::Int(Int::offset_binary(bits));
    let mut decoder = Grouped::scaled(codes, bits, code_format, [rows, cols], grid, scales);
    let zero = all.at(name, "_zero_point");
    if let Some(zero) = zero {
        // Stored zero points count whatever the config says: `_dequantize` subtracts them if they
        // are there.
        parts.push((TensorRole::ZeroPoint, zero));
        let numbers = zero_points(&zero, &shape, scale.elements(), groups, row_packing)?;
        let zero_points = GroupOffsets::new(indexed(numbers));
        decoder.formula = GroupFormula::ShiftScale(zero_points);
    }
    // Relayed codes need groups in order along a row, and zero points in the range of the codes,
    // which those of a byte each need not be.
    if grid.block_rows == 1 && !has_index && zero.is_none_or(|zero| zero.dtype() != Dtype::I8) {
        decoder.family =
            CodeFamily::int(bits, grid.block_cols, cols, scale.dtype(), zero.is_none());
    }
    // With an index each column is a block of its own; listings show the group size that the counts
    // imply.
    let scales = if decoder.grid.block_cols == 1 {
        Granularity::Group(cols / groups.max(1))
    } else {
        granularity(&grid, cols)
    };
    let scheme = QuantScheme::Grouped { family: FAMILY, codes: CodeType::Int(bits as u8), scales };
    Ok(Group::new(logical_name(name, &shape), shape, scheme, parts, Box::new(decoder)))
}

/// Checks that the config does not ask for a tensor that is missing, without which all of the
/// weight would be decoded wrongly.
///
/// # Errors
/// Columns of a group lie apart, and no index says where; or there are zero points, and they are
/// missing.
fn check_companions(
    t: &Tensor<'_>,
    name: &str,
    scale: &Tensor<'_>,
    module: &crate::config::Module<'_>,
    all: &Index<'_>,
) -> Result<()> {
    // Taken as runs, the columns would get the scales of other groups.
    let several = scale.shape().last().is_some_and(|&groups| groups > 1);
    if all.at(name, "_g_idx").is_none()
        && several
        && let Some(place) = module.reorders_groups()
    {
        let what = format!("{place} says `actorder: group`, and `{name}_g_idx` is missing");
        return Err(wrong(t, what));
    }
    if all.at(name, "_zero_point").is_none() && module.flag("symmetric") == Some(false) {
        let what =
            format!("the config says that it is asymmetric, and `{name}_zero_point` is missing");
        return Err(wrong(t, what));
    }
    Ok(())
}

/// Name of the weight in outputs. A stack of experts is a parameter itself, not the weight of a
/// module: it has no `.weight`.
fn logical_name(name: &str, shape: &[usize]) -> String {
    let stacked = name
        .strip_suffix(".weight")
        .filter(|name| shape.len() == 3 && name.contains(".experts."));
    stacked.unwrap_or(name).to_owned()
}

/// Checks that the words of a weight without a stored shape are full: then the groups fill the
/// columns that the words have.
///
/// # Errors
/// There is one scale for a row, which fits every number of columns, or the groups do not fill the
/// words.
fn check_full_words(
    t: &Tensor<'_>,
    name: &str,
    scale: &Tensor<'_>,
    cols: usize,
    module: &crate::config::Module<'_>,
) -> Result<()> {
    let (groups, leading) = match scale.shape() {
        [leading @ .., groups] => (*groups, leading),
        [] => (0, &[][..]),
    };
    let is_same_rows = t
        .shape()
        .split_last()
        .is_some_and(|(_, rows)| rows == leading);
    let size = module
        .int(&["group_size"])
        .and_then(|(size, _)| usize::try_from(size).ok());
    if is_same_rows && size.is_some_and(|size| size > 0 && groups.checked_mul(size) == Some(cols)) {
        return Ok(());
    }
    let what = format!(
        "without `{name}_shape` only groups that fill its words prove its columns, and the scales are {:?}",
        scale.shape()
    );
    Err(wrong(t, what))
}

/// The grid of scales of a weight without an index: by the config's `group_size`, or else by the
/// shapes.
///
/// # Errors
/// The scales do not fit the group size. Shapes alone do not prove it, because the last group of a
/// row may be smaller.
fn grouped_rows<'m>(
    t: &Tensor<'m>,
    shape: &[usize],
    scale: &Tensor<'m>,
    module: &crate::config::Module<'_>,
    all: &Index<'m>,
) -> Result<ScaleGrid> {
    let (rows, cols) = rows_and_cols(shape);
    if let Some((size, place)) = module.int(&["group_size"]).filter(|(size, _)| *size > 0) {
        let size = size as usize;
        let groups = cols.div_ceil(size);
        // One group for a row may be stored as `[N, 1]` or `[N]`, so its last dimension proves
        // nothing.
        let along = scale.shape().last().copied().unwrap_or(1);
        // compressed-tensors has no short last group (`quantization/utils/helpers.py`).
        let fits = scale.elements() == rows.saturating_mul(groups)
            && (cols.is_multiple_of(size) || cols < size);
        if !fits || along != groups && groups != 1 {
            let what = format!(
                "its scale `{}` {:?} does not fit: {place} says groups of {size}",
                scale.name(),
                scale.shape()
            );
            return Err(wrong(t, what));
        }
        return Ok(row_groups(cols, size));
    }
    fit(t, shape, scale, all)
}

/// The index, or `None` if it was never set: compressed-tensors initializes it to -1.
fn group_index<'m>(index: &Tensor<'m>, cols: usize) -> Result<Option<Part<'m>>> {
    if index.dtype() != Dtype::I32 || index.elements() != cols {
        return Err(wrong(
            index,
            format!("an index is I32 and has a group for each of {cols} columns"),
        ));
    }
    let (part, mut piece) = (index.part(), Vec::new());
    // Read in pieces: the index is as long as a row of the weight, which has no bound.
    for first in (0..cols).step_by(SAMPLE) {
        piece.resize(SAMPLE.min(cols - first) * 4, 0);
        part.read_at(first as u64 * 4, &mut piece)?;
        if piece
            .as_chunks()
            .0
            .iter()
            // One -1 is enough for compressed-tensors, too: it tests `-1 in g_idx`.
            .any(|&group| i32::from_le_bytes(group) == -1)
        {
            return Ok(None);
        }
    }
    Ok(Some(part))
}

/// The grid of a weight with an index: each column has its own scale, which the index looks up.
fn by_index(t: &Tensor<'_>, scale: &Tensor<'_>, rows: usize, cols: usize) -> Result<ScaleGrid> {
    // More groups than columns cannot be referred to, and would make every tile load them in vain.
    if rows == 0 || !scale.elements().is_multiple_of(rows) || scale.elements() / rows > cols {
        return Err(wrong(
            t,
            format!("its scale `{}` {:?} does not fit its rows", scale.name(), scale.shape()),
        ));
    }
    Ok(row_groups(cols, 1))
}
