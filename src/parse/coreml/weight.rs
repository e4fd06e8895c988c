//! [`Weight`]: a constant, plain or compressed. A compressed one becomes a tensor of codes and one for
//! each of its companions.

use super::spec::Spec;
use super::value::{ElementKind, StoredPlace, StoredValue};
use super::wrong;
use crate::limits::cap;
use crate::model::{GraphCodes, GraphRole, Skipped, TensorInfo};
use crate::source::{Derived, MaskedFormat, MaskedValues, Source, SourceAt};
use crate::{AnamnesisError, Dtype, Result};

/// Most values that a code stands for. More would let few bytes claim any number of values.
const MAX_LANES: u64 = 256;

/// A constant.
#[derive(Debug, Clone)]
pub(super) struct Weight {
    /// Dimensions of its values.
    pub shape: Vec<usize>,
    /// Values or codes.
    pub values: StoredValue,
    /// Which of its elements are stored: a bit for each. The others are zero.
    pub mask: Option<StoredValue>,
    pub palette: Option<Palette>,
    pub scaling: Option<WeightScaling>,
    /// Whether the highest bits of codes come first.
    pub is_msb_first: bool,
}

/// The values that codes pick: `[groups of each dimension…, entries, lanes]`, or `[entries]`.
#[derive(Debug, Clone)]
pub(super) struct Palette {
    pub table: StoredValue,
    /// The dimension along which the lanes of a code lie.
    pub axis: usize,
    pub lanes: usize,
}

/// What values of codes are multiplied by. Dimensions of its tensors divide those of the weight.
#[derive(Debug, Clone)]
pub(super) struct WeightScaling {
    pub kind: ScalingKind,
    pub scale: StoredValue,
    pub offset: Option<StoredValue>,
}

/// What the offset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScalingKind {
    /// It is subtracted before values are multiplied.
    ShiftScale,
    /// It is added behind that.
    ScaleShift,
}

impl Weight {
    /// A constant as it is.
    pub(super) fn plain(values: StoredValue) -> Self {
        Self {
            shape: values.shape.clone(),
            values,
            mask: None,
            palette: None,
            scaling: None,
            is_msb_first: false,
        }
    }

    fn has_offset(&self) -> bool {
        self.scaling
            .as_ref()
            .is_some_and(|scaling| scaling.offset.is_some())
    }

    /// Whether its values are stored as they are, though perhaps not all of them.
    pub(super) fn is_plain(&self) -> bool {
        self.palette.is_none() && self.scaling.is_none()
    }
}

/// Adds the tensors of `weight` to the model.
pub(super) fn add(spec: &mut Spec<'_>, name: &str, weight: &Weight) -> Result<()> {
    match weight.is_plain() {
        true => add_plain(spec, name, weight),
        false => add_codes(spec, name, weight),
    }
}

/// Adds values, or says that no tensor can hold them.
fn add_plain(spec: &mut Spec<'_>, name: &str, weight: &Weight) -> Result<()> {
    let kind = weight.values.kind;
    let Some(dtype) = kind.dtype else {
        let what = format!("{} elements", kind.name);
        let skipped = Skipped { name: name.to_owned(), what };
        spec.contents.skipped.push(skipped);
        return Ok(());
    };
    let (place, dtype) = match &weight.mask {
        None => (weight.values.place(spec)?, dtype),
        Some(mask) => masked(spec, weight, mask, 0)?,
    };
    push(spec, name, (dtype, &weight.shape), place, GraphRole::Plain)
}

/// Adds codes, and their companions, which have the names of the operation's inputs behind that of the codes.
fn add_codes(spec: &mut Spec<'_>, name: &str, weight: &Weight) -> Result<()> {
    let Codes { mut codes, place, dtype, shape } = match &weight.palette {
        Some(palette) => palette_codes(spec, weight, palette)?,
        None if weight.is_msb_first => packed_codes(spec, weight, &[])?,
        None => scaled_codes(spec, weight)?,
    };
    let scaling = weight.scaling.as_ref();
    let companions = [
        (&mut codes.codebook, "lut", weight.palette.as_ref().map(|palette| &palette.table)),
        (&mut codes.scale, "scale", scaling.map(|scaling| &scaling.scale)),
        (&mut codes.zero_point, "offset", scaling.and_then(|scaling| scaling.offset.as_ref())),
    ];
    let mut found = Vec::new();
    for (companion, input, tensor) in companions {
        if let Some(tensor) = tensor {
            let name = format!("{name}.{input}");
            *companion = Some(name.as_str().into());
            found.push((name, tensor));
        }
    }
    if scaling.is_some_and(|scaling| scaling.kind == ScalingKind::ScaleShift) {
        codes.integers.push(("adds_offset".to_owned(), 1));
    }
    push(spec, name, (dtype, &shape), place, GraphRole::Codes(Box::new(codes)))?;
    for (name, tensor) in found {
        let what = || wrong(format!("`{name}` has {} elements", tensor.kind.name));
        let dtype = tensor.kind.dtype.ok_or_else(what)?;
        spec.budget.tables(1, 0, 0)?;
        let place = tensor.place(spec)?;
        let role = GraphRole::Companion { is_shared: false };
        push(spec, &name, (dtype, &tensor.shape), place, role)?;
    }
    Ok(())
}

/// A tensor of codes, with what decodes them.
struct Codes {
    codes: GraphCodes,
    place: StoredPlace,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// Codes that are multiplied by scales: elements of a dtype.
fn scaled_codes(spec: &mut Spec<'_>, weight: &Weight) -> Result<Codes> {
    let kind = weight.values.kind;
    let dtype = kind.dtype.ok_or_else(|| {
        let what = format!("codes that are {}, with scales", kind.name);
        AnamnesisError::unsupported("Core ML", what)
    })?;
    let (place, dtype, op) = match &weight.mask {
        None => (weight.values.place(spec)?, dtype, "constexpr_blockwise_shift_scale"),
        Some(mask) => {
            let (place, dtype) = masked(spec, weight, mask, 0)?;
            // Of elements that are not stored the values are zero, and not the codes.
            let op = match weight.has_offset() {
                true => "constexpr_sparse_blockwise_shift_scale with an offset",
                false => "constexpr_blockwise_shift_scale",
            };
            (place, dtype, op)
        }
    };
    Ok(Codes { codes: GraphCodes::new(op), place, dtype, shape: weight.shape.clone() })
}

/// Codes that pick values of a table.
fn palette_codes(spec: &mut Spec<'_>, weight: &Weight, palette: &Palette) -> Result<Codes> {
    cap("COREML_MAX_LANES", palette.lanes as u64, MAX_LANES, "values of a code")?;
    let entries = 1 << weight.values.kind.bits.min(8);
    let integers = [
        ("entries", i64::from(entries)),
        ("axis", palette.axis as i64),
        ("lanes", palette.lanes as i64),
    ];
    match &weight.mask {
        None => packed_codes(spec, weight, &integers),
        // The code behind the last stands for zero.
        Some(mask) => {
            let (place, dtype) = masked(spec, weight, mask, entries)?;
            let mut codes = packed(place, dtype, weight, &integers)?;
            if weight.has_offset() {
                codes.codes.op = "constexpr_lut_to_sparse with an offset".to_owned();
            }
            Ok(codes)
        }
    }
}

/// Codes of any bits, as bytes that have several codes, or parts of two.
fn packed_codes(spec: &mut Spec<'_>, weight: &Weight, integers: &[(&str, i64)]) -> Result<Codes> {
    let place = weight.values.place(spec)?;
    let mut codes = packed(place, Dtype::U8, weight, integers)?;
    codes
        .codes
        .integers
        .push(("bits".to_owned(), weight.values.kind.bits as i64));
    Ok(codes)
}

/// Codes that are elements of `dtype`, in one dimension.
fn packed(
    place: StoredPlace,
    dtype: Dtype,
    weight: &Weight,
    integers: &[(&str, i64)],
) -> Result<Codes> {
    let integers = integers
        .iter()
        .chain(weight.is_msb_first.then_some(&("is_msb_first", 1)));
    let codes = GraphCodes {
        integers: integers
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect(),
        shape: Some(weight.shape.clone()),
        ..GraphCodes::new("Palette")
    };
    let n = usize::try_from(place.len / (dtype.bits() as u64 / 8));
    let n = n.map_err(|_| wrong("its size overflows"))?;
    Ok(Codes { codes, place, dtype, shape: vec![n] })
}

/// Adds the dense elements of a weight with a mask, which are `fill` where none are stored. Codes of less
/// than a byte get one each, or two if that does not hold `fill`.
fn masked(
    spec: &mut Spec<'_>,
    weight: &Weight,
    mask: &StoredValue,
    fill: u16,
) -> Result<(StoredPlace, Dtype)> {
    let ElementKind { bits, dtype, name, .. } = weight.values.kind;
    let (dtype, is_signed) = match dtype {
        Some(Dtype::I4) => (Dtype::I8, true),
        _ if fill > 255 => (Dtype::U16, false),
        Some(dtype) if bits >= 8 => (dtype, false),
        _ if bits < 8 => (Dtype::U8, false),
        _ => return Err(wrong(format!("{name} elements with a mask"))),
    };
    let (at, of_mask) = (weight.values.place(spec)?, mask.place(spec)?);
    spec.charge(of_mask.len)?;
    let sources = &spec.contents.sources;
    let source_at = |place: StoredPlace| SourceAt {
        source: sources[place.source].share(),
        offset: place.offset,
    };
    let width = dtype.bits() / 8;
    let format = MaskedFormat { bits, is_signed, width, fill };
    let (count, stored) = (mask.count()?, weight.values.count()?);
    let values = MaskedValues::new(source_at(of_mask), source_at(at), format, count, stored)?;
    let len = count * width as u64;
    spec.contents
        .sources
        .push(Source::Derived(Box::new(Derived::Masked(Box::new(values)))));
    Ok((StoredPlace { source: spec.contents.sources.len() - 1, offset: 0, len }, dtype))
}

fn push(
    spec: &mut Spec<'_>,
    name: &str,
    (dtype, shape): (Dtype, &[usize]),
    place: StoredPlace,
    role: GraphRole,
) -> Result<()> {
    if dtype.packed_len(shape) != Some(place.len) {
        return Err(wrong(format!("{} bytes are no {dtype} {shape:?}", place.len)));
    }
    spec.contents.tensors.push(TensorInfo::plain(
        name,
        (dtype, shape),
        (place.source, if place.len > 0 { place.offset } else { 0 }, place.len),
    ));
    spec.contents.graph.push(role);
    Ok(())
}
