//! compressed-tensors, packed: `W_packed` I32 with `W_scale`, and mostly `W_shape`; `W_zero_point` I32, packed down
//! the rows, if it is asymmetric; `W_g_idx` if columns lie in groups out of order. MXFP4: `W_packed` U8 with
//! exponents as `W_scale`. MXFP6: `W_packed` U8, six bits a code. AutoRound's MXINT4 lies as MXFP4.
//!
//! Layouts: compressed-tensors `compressors/pack_quantized`, `compressors/mx_quantized`.

use super::mxfp4::{INT4, mx_rows, mx_rows_of};
use crate::config::QuantMethod;
use crate::containers::model::{Part, Tensor};
use crate::kernels::remember::fp8::ScaleGrid;
use crate::kernels::remember::grouped::Int;
use crate::scheme::seam::NamePattern::Ends;
use crate::scheme::seam::fit::{fit, granularity, rows_and_cols};
use crate::scheme::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, Unpack, row_groups,
};
use crate::scheme::seam::numbers::{Indexed, Integers, Matrix, PackedDown, ScaleMatrix};
use crate::scheme::seam::{
    CodeFamily, CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme,
    Sibling, TensorRole, Tile, module_of, read, wrong,
};
use crate::{Dtype, Result};

/// What listings call it.
const FAMILY: &str = "compressed-tensors";
const AUTO_ROUND: &str = "AutoRound";

pub(super) struct CompressedTensors;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    methods: &[QuantMethod::CompressedTensors, QuantMethod::AutoRound],
    codes: &["_packed"],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends(".weight_zero_point"), TensorRole::ZeroPoint),
        (Ends(".weight_shape"), TensorRole::QuantState),
        (Ends(".weight_g_idx"), TensorRole::GroupIndex),
    ],
    optional: &[
        Sibling::OfWeight("_zero_point"),
        Sibling::OfWeight("_g_idx"),
    ],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for CompressedTensors {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(name) = t.name().strip_suffix("_packed") else {
            return Ok(None);
        };
        let Some(scale) = all.at(name, "_scale") else {
            return Ok(None);
        };
        match t.dtype() {
            Dtype::I32 | Dtype::U32 => packed(t, name, &scale, all).map(Some),
            Dtype::U8 if matches!(scale.dtype(), Dtype::U8 | Dtype::F8E8M0) => {
                // Nothing but AutoRound's config says that nibbles are integers (`experimental/qmodules/mxint4_utils.py`).
                let auto_round = all.config.quant_method() == Some(&QuantMethod::AutoRound);
                let module = all.config.at(module_of(name));
                let data_type = module
                    .text(&["data_type"])
                    .map(|(data_type, _)| data_type)
                    .filter(|_| auto_round);
                match data_type {
                    Some(data_type) if data_type.starts_with("mx_int") => {
                        mx_rows_of(t, name, &scale, AUTO_ROUND, INT4).map(Some)
                    }
                    Some(_) => mx_rows(t, name, &scale, AUTO_ROUND).map(Some),
                    None => mx_rows(t, name, &scale, FAMILY).map(Some),
                }
            }
            _ => Ok(None),
        }
    }
}

/// Integers of one to eight bits.
fn packed<'m>(
    t: &Tensor<'m>,
    name: &str,
    scale: &Tensor<'m>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let module = all.config.at(module_of(name));
    let bits = module
        .int(&["num_bits"])
        .and_then(|(bits, _)| usize::try_from(bits).ok());
    let declared = all
        .at(name, "_shape")
        .map(|shape| read_shape(&shape).map(|dims| (shape, dims)))
        .transpose()?;
    let PackQuantized {
        bits,
        per_word,
        shape,
    } = packing(t, declared.as_ref().map(|(_, dims)| dims.as_slice()), bits)?;
    let (rows, cols) = rows_and_cols(&shape);
    let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    parts.extend(declared.map(|(shape, _)| (TensorRole::QuantState, shape)));
    let index = all.at(name, "_g_idx");
    parts.extend(index.map(|index| (TensorRole::GroupIndex, index)));
    let index = index
        .map(|index| group_index(&index, cols))
        .transpose()?
        .flatten();
    let has_index = index.is_some();
    let grid = match &index {
        Some(_) => by_index(t, scale, rows, cols)?,
        None => grouped_rows(t, &shape, scale, &module, all)?,
    };
    let groups = if index.is_some() {
        scale.elements() / rows.max(1)
    } else {
        grid.cols
    };
    let behind_index = |numbers: Box<dyn ScaleMatrix + 'm>| match index {
        Some(index) => Box::new(Indexed {
            inner: numbers,
            groups,
            index,
        }) as Box<dyn ScaleMatrix + 'm>,
        None => numbers,
    };
    let scales = behind_index(Box::new(Matrix {
        floats: Floats::ieee(scale)?,
        cols: groups,
    }));
    let codes = match per_word {
        None => Codes::Rows {
            part: t.part(),
            row_bytes: row_words(t) * 4,
        },
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
    match zero {
        Some(zero) => {
            parts.push((TensorRole::ZeroPoint, zero));
            let numbers = zero_points(&zero, &shape, scale.elements(), groups, (bits, per_word))?;
            let zero_points = GroupOffsets::new(behind_index(numbers));
            decoder.formula = GroupFormula::ShiftScale(zero_points);
        }
        None if module.flag("symmetric") == Some(false) => {
            return Err(wrong(
                t,
                format!(
                    "the config says that it is asymmetric, and `{name}_zero_point` is missing"
                ),
            ));
        }
        None => {}
    }
    // Zero points of a byte each could be beyond what so many bits hold.
    if grid.block_rows == 1 && !has_index && zero.is_none_or(|zero| zero.dtype() != Dtype::I8) {
        decoder.family =
            CodeFamily::int(bits, grid.block_cols, cols, scale.dtype(), zero.is_none());
    }
    let scales = if decoder.grid.block_cols == 1 {
        Granularity::Group(cols / groups.max(1))
    } else {
        granularity(&grid, cols)
    };
    let scheme = QuantScheme::Grouped {
        family: FAMILY,
        codes: CodeType::Int(bits as u8),
        scales,
    };
    Ok(Group::new(
        logical_name(name, &shape),
        shape,
        scheme,
        parts,
        Box::new(decoder),
    ))
}

/// Stacks of experts are parameters themselves, and not the weight of a module.
fn logical_name(name: &str, shape: &[usize]) -> String {
    let stacked = name
        .strip_suffix(".weight")
        .filter(|name| shape.len() == 3 && name.contains(".experts."));
    stacked.unwrap_or(name).to_owned()
}

/// How codes lie in words, and what shape they make.
struct PackQuantized {
    bits: usize,
    /// Codes in a word, if none goes across words: so it was where a width does not divide 32.
    per_word: Option<usize>,
    shape: Vec<usize>,
}

fn row_words(t: &Tensor<'_>) -> usize {
    t.shape().last().copied().unwrap_or(0)
}

fn packing(t: &Tensor<'_>, shape: Option<&[usize]>, bits: Option<usize>) -> Result<PackQuantized> {
    let words = row_words(t);
    let Some((_, leading)) = t
        .shape()
        .split_last()
        .filter(|(_, leading)| !leading.is_empty())
    else {
        return Err(wrong(t, "packed weights have two dimensions or three"));
    };
    let Some(shape) = shape else {
        let bits = bits.filter(|bits| matches!(bits, 1 | 2 | 4 | 8));
        let Some((bits, cols)) = bits.and_then(|bits| Some((bits, words.checked_mul(32 / bits)?)))
        else {
            return Err(wrong(
                t,
                "neither its shape nor the config tells how many columns it has",
            ));
        };
        let shape = leading.iter().copied().chain([cols]).collect();
        return Ok(PackQuantized {
            bits,
            per_word: None,
            shape,
        });
    };
    let Some((&cols, rows)) = shape.split_last() else {
        return Err(wrong(t, "its shape has no dimensions"));
    };
    // Stacks of experts may keep the shape of one.
    let stack = &leading[..leading.len().saturating_sub(rows.len())];
    if leading[stack.len()..] != *rows {
        return Err(wrong(
            t,
            format!("its rows are not those of its shape, {shape:?}"),
        ));
    }
    let fits = |&bits: &usize| {
        let dense = cols
            .checked_mul(bits)
            .is_some_and(|n| n.div_ceil(32) == words);
        let loose = !32usize.is_multiple_of(bits) && cols.div_ceil(32 / bits) == words;
        dense || loose
    };
    let found: Vec<usize> = match bits {
        Some(bits) => Some(bits)
            .filter(|bits| (1..=8).contains(bits) && fits(bits))
            .into_iter()
            .collect(),
        None => (1..=8).filter(fits).collect(),
    };
    let [bits] = *found.as_slice() else {
        let says = bits.map_or_else(|| format!("{found:?}"), |bits| bits.to_string());
        return Err(wrong(
            t,
            format!("{words} words a row do not hold {cols} codes of {says} bits"),
        ));
    };
    let dense = (cols * bits).div_ceil(32) == words;
    let loose = (!32usize.is_multiple_of(bits))
        .then(|| 32 / bits)
        .filter(|n| cols.div_ceil(*n) == words);
    let per_word = match loose {
        Some(n) if dense && cols > n => is_word_aligned(t, bits, n)?.then_some(n),
        loose => loose.filter(|_| !dense),
    };
    let shape = stack.iter().chain(shape).copied().collect();
    Ok(PackQuantized {
        bits,
        per_word,
        shape,
    })
}

/// Words that tell a packing.
const SAMPLE: usize = 4096;

/// Whether the bits that loose packing leaves over are zero in all of the first words.
fn is_word_aligned(t: &Tensor<'_>, bits: usize, per_word: usize) -> Result<bool> {
    let mut bytes = vec![0; t.elements().min(SAMPLE) * 4];
    t.part().read_at(0, &mut bytes)?;
    let mut words = bytes
        .as_chunks()
        .0
        .iter()
        .map(|&word| u32::from_le_bytes(word));
    let loose = words.all(|word| word >> (bits * per_word) == 0);
    // A few words could be like this by chance.
    if loose && bytes.len() < 64 * 4 {
        return Err(wrong(
            t,
            format!(
                "its rows hold codes of {bits} bits in two ways, and its data does not tell which"
            ),
        ));
    }
    Ok(loose)
}

/// The numbers of a small tensor of dimensions.
pub(super) fn read_shape(t: &Tensor<'_>) -> Result<Vec<usize>> {
    let size = match t.dtype() {
        Dtype::I64 | Dtype::U64 => 8,
        Dtype::I32 | Dtype::U32 => 4,
        _ => return Err(wrong(t, "a shape is I64 or I32")),
    };
    if t.elements() == 0 || t.elements() > 4 {
        return Err(wrong(t, "a shape has a few dimensions"));
    }
    let mut bytes = vec![0; t.elements() * size];
    t.part().read_at(0, &mut bytes)?;
    let dim = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes);
        usize::try_from(u64::from_le_bytes(wide)).ok()
    };
    let dims: Option<Vec<usize>> = bytes.chunks_exact(size).map(dim).collect();
    let fits = |dims: &Vec<usize>| {
        dims.iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .is_some_and(|n| n < 1 << 60)
    };
    dims.filter(fits)
        .ok_or_else(|| wrong(t, "its dimensions are no sizes"))
}

/// The grid of scales, a group of columns of one row each, or one for more.
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
        let along = scale.shape().last().copied().unwrap_or(1);
        let fits = scale.elements() == rows.saturating_mul(groups);
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

/// The index, unless it says nothing: -1 stands for a group that was never set.
fn group_index<'m>(index: &Tensor<'m>, cols: usize) -> Result<Option<Part<'m>>> {
    if index.dtype() != Dtype::I32 || index.elements() != cols {
        return Err(wrong(
            index,
            format!("an index is I32 and has a group for each of {cols} columns"),
        ));
    }
    let (part, mut piece) = (index.part(), Vec::new());
    for first in (0..cols).step_by(SAMPLE) {
        piece.resize(SAMPLE.min(cols - first) * 4, 0);
        part.read_at(first as u64 * 4, &mut piece)?;
        if piece
            .as_chunks()
            .0
            .iter()
            .any(|&group| i32::from_le_bytes(group) == -1)
        {
            return Ok(None);
        }
    }
    Ok(Some(part))
}

fn by_index(t: &Tensor<'_>, scale: &Tensor<'_>, rows: usize, cols: usize) -> Result<ScaleGrid> {
    if rows == 0 || !scale.elements().is_multiple_of(rows) || scale.elements() / rows > cols {
        return Err(wrong(
            t,
            format!(
                "its scale `{}` {:?} does not fit its rows",
                scale.name(),
                scale.shape()
            ),
        ));
    }
    Ok(row_groups(cols, 1))
}

/// Zero points, stored as the codes are but down the rows.
fn zero_points<'m>(
    zero: &Tensor<'m>,
    shape: &[usize],
    scales: usize,
    groups: usize,
    (bits, per_word): (usize, Option<usize>),
) -> Result<Box<dyn ScaleMatrix + 'm>> {
    let (rows, _) = rows_and_cols(shape);
    if zero.dtype() == Dtype::I8 && zero.elements() == scales {
        return Ok(Box::new(Integers::new(zero, groups, 0.0)?));
    }
    let matrix_rows = shape.iter().nth_back(1).copied().unwrap_or(1);
    let word_rows = zero.shape().iter().nth_back(1).copied().unwrap_or(0);
    let dense = (matrix_rows * bits).div_ceil(32) == word_rows;
    let loose = (!32usize.is_multiple_of(bits)).then(|| 32 / bits);
    let loose =
        loose.filter(|n| (per_word.is_some() || !dense) && matrix_rows.div_ceil(*n) == word_rows);
    let stack = rows.checked_div(matrix_rows).unwrap_or(0);
    let fits = zero.elements() == stack.saturating_mul(word_rows).saturating_mul(groups);
    if !(matches!(zero.dtype(), Dtype::I32 | Dtype::U32) && fits && (dense || loose.is_some())) {
        return Err(wrong(
            zero,
            format!("{groups} groups of {rows} rows want another shape of zero points"),
        ));
    }
    let offset = (1u32 << (bits - 1)) as f32;
    let (part, per_word) = (zero.part(), loose);
    Ok(Box::new(PackedDown {
        part,
        cols: groups,
        bits,
        per_word,
        offset,
        rows: matrix_rows,
        word_rows,
    }))
}

/// Words with as many whole codes as fit.
struct WordAlignedCodes<'m> {
    part: Part<'m>,
    row_words: usize,
    bits: usize,
    per_word: usize,
}

impl Unpack for WordAlignedCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let words = tile.cols.start / self.per_word..tile.cols.end.div_ceil(self.per_word);
        read(
            &self.part,
            self.row_words * 4,
            tile.rows.clone(),
            words.start * 4..words.end * 4,
            staging,
        )?;
        out.clear();
        let mask = (1u32 << self.bits) - 1;
        for row in staging.chunks_exact(words.len().max(1) * 4) {
            let codes = row.as_chunks().0.iter().flat_map(|&word| {
                let word = u32::from_le_bytes(word);
                (0..self.per_word).map(move |i| (word >> (i * self.bits) & mask) as u8)
            });
            out.extend(codes.take(tile.cols.len()));
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (1, self.per_word)
    }
}
