//! Constants that are made of others when a model is loaded (`constexpr_…`): codes with scales, codes that
//! pick values of a table, and elements of which some are stored.
//!
//! Operations: `mil/ops/defs/iOS16/constexpr_ops.py` and `iOS18/compression.py` of coremltools.

use super::constants::{ConstexprParts, Operand};
use super::value::{ElementKind, StoredValue};
use super::weight::{Palette, ScalingKind, Weight, WeightScaling};
use super::wrong;
use crate::{AnamnesisError, Result};

/// What an operation takes, by the names of its parameters.
pub(super) struct ConstexprInputs(pub Vec<(String, Operand)>);

/// The constant that the operation `kind` makes.
///
/// # Errors
/// `Parse` if its inputs do not fit; `Unsupported` for other operations.
pub(super) fn constant(
    parts: &mut ConstexprParts<'_, '_>,
    kind: &str,
    inputs: &ConstexprInputs,
) -> Result<Weight> {
    match kind {
        "constexpr_cast" => inputs.weight(parts, "source_val"),
        "constexpr_affine_dequantize" => affine(parts, inputs),
        "constexpr_blockwise_shift_scale" => {
            let values = inputs.weight(parts, "data")?;
            shifted(parts, inputs, values)
        }
        "constexpr_sparse_blockwise_shift_scale" => {
            let values = with_mask(parts, inputs, ["nonzero_data", "data_mask"])?;
            shifted(parts, inputs, values)
        }
        "constexpr_lut_to_dense" => {
            let values = inputs.weight(parts, "indices")?;
            palettized(parts, inputs, values)
        }
        "constexpr_lut_to_sparse" => {
            let values = with_mask(parts, inputs, ["indices_nonzero_data", "indices_mask"])?;
            palettized(parts, inputs, values)
        }
        "constexpr_sparse_to_dense" => with_mask(parts, inputs, ["nonzero_data", "mask"]),
        kind => {
            let what = format!("constants of {kind}, which this version does not know");
            Err(AnamnesisError::unsupported("Core ML", what))
        }
    }
}

impl ConstexprInputs {
    fn get(&self, name: &str) -> Option<&Operand> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, operand)| operand)
    }

    fn need(&self, name: &str) -> Result<&Operand> {
        self.get(name)
            .ok_or_else(|| wrong(format!("its {name} is missing")))
    }

    /// A constant, which may be made of others.
    fn weight(&self, parts: &mut ConstexprParts<'_, '_>, name: &str) -> Result<Weight> {
        match self.need(name)? {
            Operand::Stored(tensor) => Ok(Weight::plain(tensor.clone())),
            Operand::Named(name) => parts.constants.part(name).cloned(),
        }
    }

    /// A constant as it is stored.
    fn stored(&self, parts: &mut ConstexprParts<'_, '_>, name: &str) -> Result<StoredValue> {
        let weight = self.weight(parts, name)?;
        match weight.is_plain() && weight.mask.is_none() {
            true => Ok(weight.values),
            false => {
                let what = format!("a {name} that is compressed by itself");
                Err(AnamnesisError::unsupported("Core ML", what))
            }
        }
    }

    /// Numbers.
    fn integers(&self, parts: &mut ConstexprParts<'_, '_>, name: &str) -> Result<Vec<i64>> {
        let tensor = self.stored(parts, name)?;
        tensor.integers(parts.spec)
    }

    /// The dimension that a number counts from the first or, if it is negative, from the last.
    fn axis(&self, parts: &mut ConstexprParts<'_, '_>, name: &str, rank: usize) -> Result<usize> {
        let axis = self.integers(parts, name)?;
        let found = match axis[..] {
            [axis] if axis < 0 => usize::try_from(axis.saturating_add(rank as i64)).ok(),
            [axis] => usize::try_from(axis).ok(),
            _ => None,
        };
        let found = found.filter(|&axis| axis < rank);
        found.ok_or_else(|| wrong(format!("its {name} {axis:?} is none of {rank} dimensions")))
    }

    /// Dimensions.
    fn shape(&self, parts: &mut ConstexprParts<'_, '_>, name: &str) -> Result<Vec<usize>> {
        let dims = self.integers(parts, name)?.into_iter();
        let dims: Option<Vec<usize>> = dims.map(|dim| usize::try_from(dim).ok()).collect();
        dims.ok_or_else(|| wrong("its size overflows"))
    }
}

/// Codes of which each index of an axis has a scale and a zero point, or all have one.
fn affine(parts: &mut ConstexprParts<'_, '_>, inputs: &ConstexprInputs) -> Result<Weight> {
    let values = inputs.weight(parts, "quantized_data")?;
    let axis = inputs.axis(parts, "axis", values.shape.len())?;
    let [scale, zero_point] = ["scale", "zero_point"].map(|name| {
        let tensor = inputs.stored(parts, name)?;
        along(tensor, name, axis, &values.shape)
    });
    scaled(values, scale?, Some(zero_point?))
}

/// Numbers for the indices of an axis, in as many dimensions as the weight has.
fn along(mut tensor: StoredValue, name: &str, axis: usize, of: &[usize]) -> Result<StoredValue> {
    match tensor.shape[..] {
        [] => {}
        [n] if n == of[axis] => {
            tensor.shape = vec![1; of.len()];
            tensor.shape[axis] = n;
        }
        _ => {
            let what = format!("its {name} {:?} does not fit axis {axis} of {of:?}", tensor.shape);
            return Err(wrong(what));
        }
    }
    Ok(tensor)
}

/// Values that are multiplied in blocks.
fn shifted(
    parts: &mut ConstexprParts<'_, '_>,
    inputs: &ConstexprInputs,
    values: Weight,
) -> Result<Weight> {
    let scale = inputs.stored(parts, "scale")?;
    let offset = match inputs.get("offset") {
        Some(_) => Some(inputs.stored(parts, "offset")?),
        None => None,
    };
    let rank = values.shape.len();
    let fits =
        |tensor: &StoredValue| tensor.shape.len() == rank && divide(&tensor.shape, &values.shape);
    match fits(&scale) && offset.as_ref().is_none_or(fits) {
        true => scaled(values, scale, offset),
        false => Err(wrong(format!("its scale {:?} does not fit {:?}", scale.shape, values.shape))),
    }
}

fn scaled(values: Weight, scale: StoredValue, offset: Option<StoredValue>) -> Result<Weight> {
    if values.scaling.is_some() {
        return Err(AnamnesisError::unsupported("Core ML", "values that are scaled twice"));
    }
    let scaling = Some(WeightScaling { kind: ScalingKind::ShiftScale, scale, offset });
    Ok(Weight { scaling, ..values })
}

/// Values that codes pick. Older operations have the codes as bytes, and tell the shape besides.
fn palettized(
    parts: &mut ConstexprParts<'_, '_>,
    inputs: &ConstexprInputs,
    codes: Weight,
) -> Result<Weight> {
    if !codes.is_plain() {
        return Err(wrong("its indices are no codes"));
    }
    let Weight { values: table, scaling, palette: None, mask: None, .. } =
        inputs.weight(parts, "lut")?
    else {
        return Err(AnamnesisError::unsupported("Core ML", "a lut that is compressed by itself"));
    };
    let mut values = codes.values;
    let mut shape = codes.shape;
    if inputs.get("shape").is_some() {
        shape = inputs.shape(parts, "shape")?;
        values.kind = ElementKind::packed(bits_of(table.shape.last().copied().unwrap_or(0))?);
        values.shape.clone_from(&shape);
    }
    let rank = shape.len();
    let (groups, entries, lanes) = match table.shape[..] {
        [entries] => (&[][..], entries, 1),
        [ref groups @ .., entries, lanes] if groups.len() == rank => (groups, entries, lanes),
        _ => (&[][..], 0, 0),
    };
    let fits = divide(groups, &shape) && lanes > 0 && rank > 0;
    if !fits || bits_of(entries)? != values.kind.bits || !values.kind.is_unsigned() {
        return Err(wrong(format!(
            "its lut {:?} does not fit codes {shape:?} that are {}",
            table.shape, values.kind.name
        )));
    }
    let axis = match lanes {
        1 => rank - 1,
        _ => inputs.axis(parts, "vector_axis", rank)?,
    };
    let dim = shape[axis].checked_mul(lanes);
    shape[axis] = dim.ok_or_else(|| wrong("its size overflows"))?;
    let palette = Some(Palette { table, axis, lanes });
    let scaling = scaling
        .map(|scaling| of_tables(scaling, rank))
        .transpose()?;
    Ok(Weight { shape, values, palette, scaling, ..codes })
}

/// The scales of tables as those of the values that codes pick: each table has one.
fn of_tables(mut scaling: WeightScaling, rank: usize) -> Result<WeightScaling> {
    for tensor in [Some(&mut scaling.scale), scaling.offset.as_mut()]
        .into_iter()
        .flatten()
    {
        match tensor.shape[..] {
            [ref groups @ .., 1, 1] if groups.len() == rank => tensor.shape.truncate(rank),
            _ => {
                let what = "a lut with several scales for the values of a table";
                return Err(AnamnesisError::unsupported("Core ML", what));
            }
        }
    }
    Ok(scaling)
}

/// Whether each number divides the dimension at its place.
fn divide(groups: &[usize], shape: &[usize]) -> bool {
    let mut dims = groups.iter().zip(shape);
    dims.all(|(&n, &dim)| n > 0 && dim.is_multiple_of(n))
}

/// The bits of codes that pick one of so many entries.
fn bits_of(entries: usize) -> Result<usize> {
    match entries.is_power_of_two() && (2..=256).contains(&entries) {
        true => Ok(entries.trailing_zeros() as usize),
        false => Err(wrong(format!("its lut has {entries} entries"))),
    }
}

/// Elements of which a mask tells the places. Older operations have the mask as bytes, and tell the shape
/// besides.
fn with_mask(
    parts: &mut ConstexprParts<'_, '_>,
    inputs: &ConstexprInputs,
    [values, mask]: [&str; 2],
) -> Result<Weight> {
    let stored = inputs.weight(parts, values)?;
    if let Operand::Named(mask) = inputs.need(mask)?
        && let Operand::Named(values) = inputs.need(values)?
        && parts.constants.is_mask_of(mask, values)
    {
        return Ok(stored);
    }
    let mut mask = inputs.stored(parts, mask)?;
    if let Some(other) = &stored.mask
        && other.is_same(&mask, parts.spec)?
    {
        return Ok(stored);
    }
    if inputs.get("shape").is_some() {
        mask.shape = inputs.shape(parts, "shape")?;
        mask.kind = ElementKind::packed(1);
    }
    if mask.kind.bits != 1 || stored.mask.is_some() || !stored.is_plain() || stored.shape.len() != 1
    {
        return Err(wrong("its mask does not fit"));
    }
    Ok(Weight { shape: mask.shape.clone(), mask: Some(mask), ..stored })
}
