//! Weights whose columns are rotated before they are quantized (ConvRot): `int8_tensorwise` with `convrot`,
//! `convrot_w4a4`, and `asym_w4a8_int8`.
//!
//! | format | weight | scales |
//! |---|---|---|
//! | `int8_tensorwise` | I8 `[out, in]` | `X.weight_scale`, one or one for each row |
//! | `convrot_w4a4` | I8 `[out, in / 2]`, signed nibbles, low nibble first | `X.weight_scale`, one for each row |
//! | `asym_w4a8_int8` | I8 `[out, in / 2]`, unsigned nibbles, low nibble first | `X.weight_s_rel` `[out, in / g]`, `X.weight_s_channel` `[out]` |
//!
//! `asym_w4a8_int8` may have `X.weight_codebook` `[16]`, and `X.weight_correction` `[in / g, out]`, which is added to the
//! values of each group before the rotation is undone. With 6 bits a code a row has its lower nibbles first, in `in / 2`
//! bytes, and then the upper two bits of four codes a byte.

use std::ops::Range;

use super::FAMILY;
use super::description::ComfyDescription;
use crate::containers::model::{Part, Tensor};
use crate::element::Out;
use crate::kernels::remember::rotated::{
    ByteCodes, Corrections, LevelCodes, NibbleCodes, RotatedCodes, RotatedRows,
};
use crate::scheme::seam::numbers::{ScaleMatrix, Transposed};
use crate::scheme::seam::{
    Buffers, CodeType, Decode, Floats, Granularity, Grid, Group, Index, QuantScheme, TensorRole,
    Tile, lcm, read, wrong,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

/// What the codes of a rotated weight are.
enum RotatedKind<'m> {
    Bytes,
    Nibbles,
    Levels(Box<Levels<'m>>),
}

/// Codes that become integers of eight bits by the scales of their groups.
struct Levels<'m> {
    /// The weight, for errors.
    weight: Tensor<'m>,
    /// Bits of a code: 4 or 6.
    bits: usize,
    scales: Floats<'m>,
    name: &'m str,
    /// Columns of a group.
    width: usize,
    codebook: Option<Floats<'m>>,
    correction: Option<Transposed<'m>>,
}

/// The decoder of a rotated weight.
struct RotatedWeight<'m> {
    kind: RotatedKind<'m>,
    part: Part<'m>,
    row_bytes: usize,
    rows: usize,
    cols: usize,
    /// Columns that are rotated together.
    group: usize,
    /// A scale for each row, or one.
    scales: Floats<'m>,
    has_row_scales: bool,
}

/// `int8_tensorwise` with `convrot`.
pub(super) fn int8<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    description: &ComfyDescription<'m>,
) -> Result<Group<'m>> {
    let [rows, cols] = matrix(t)?;
    let weight = RotatedWeight {
        kind: RotatedKind::Bytes,
        part: t.part(),
        row_bytes: cols,
        rows,
        cols,
        group: description.rotation(t, cols)?,
        scales: Floats::ieee(scale)?,
        has_row_scales: scale.elements() != 1,
    };
    let parts = vec![(TensorRole::Scale, *scale)];
    Ok(weight.claimed(t, CodeType::Int(8), parts))
}

/// `convrot_w4a4`.
pub(super) fn w4a4<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    description: &ComfyDescription<'m>,
) -> Result<Group<'m>> {
    let [rows, bytes] = matrix(t)?;
    let cols = doubled(t, bytes)?;
    one_a_row(t, scale, rows)?;
    let weight = RotatedWeight {
        kind: RotatedKind::Nibbles,
        part: t.part(),
        row_bytes: bytes,
        rows,
        cols,
        group: description.rotation(t, cols)?,
        scales: Floats::ieee(scale)?,
        has_row_scales: true,
    };
    let parts = vec![(TensorRole::Scale, *scale)];
    Ok(weight.claimed(t, CodeType::Int(4), parts))
}

/// `asym_w4a8_int8`.
pub(super) fn w4a8<'m>(
    t: &Tensor<'m>,
    description: &ComfyDescription<'m>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let [rows, bytes] = matrix(t)?;
    let relative = all.need(t, t.name(), "_s_rel")?;
    let channel = all.need(t, t.name(), "_s_channel")?;
    one_a_row(t, &channel, rows)?;
    let width = description.number(t, "group_size", 16)?;
    // What comfy-kitchen takes: groups that divide 16 columns, or are made of whole 16s.
    if width < 4 || !(16usize.is_multiple_of(width) || width.is_multiple_of(16)) {
        let what = format!("its groups of {width} neither divide 16 nor are multiples of it");
        return Err(wrong(t, what));
    }
    // The columns follow from the scales, and the bits of a code from the columns.
    let cols = match *relative.shape() {
        [n, groups] if n == rows => groups.checked_mul(width),
        _ => None,
    };
    let bits = cols.and_then(|cols| match (cols.checked_mul(4)?, cols.checked_mul(6)?) {
        (bits, _) if Some(bits) == bytes.checked_mul(8) => Some((cols, 4)),
        (_, bits) if Some(bits) == bytes.checked_mul(8) => Some((cols, 6)),
        _ => None,
    });
    let Some((cols, bits)) = bits else {
        let (name, shape) = (relative.name(), relative.shape());
        let what = format!(
            "its `{name}` {shape:?} is not one for each {width} codes of 4 or 6 bits of a row"
        );
        return Err(wrong(t, what));
    };
    let codebook = all.at(t.name(), "_codebook");
    let correction = all.at(t.name(), "_correction");
    if bits == 6 {
        check_six_bits(t, cols, width, codebook.or(correction))?;
    }
    for (part, shape) in [(codebook, &[16][..]), (correction, &[cols / width, rows])] {
        if let Some(part) = part.filter(|part| part.shape() != shape) {
            return Err(wrong(&part, format!("that of `{}` is {shape:?}", t.name())));
        }
    }
    let scales = match relative.dtype() {
        Dtype::F8E4M3 | Dtype::U8 => Floats::fp8(&relative)?,
        _ => Floats::ieee(&relative)?,
    };
    let of_groups = |part: &Tensor<'m>| -> Result<_> {
        Ok(Transposed::of_floats(
            Floats::ieee(part)?,
            rows,
            cols / width,
        ))
    };
    let levels = Levels {
        weight: *t,
        bits,
        scales,
        name: relative.name(),
        width,
        codebook: codebook.as_ref().map(Floats::ieee).transpose()?,
        correction: correction.as_ref().map(of_groups).transpose()?,
    };
    let weight = RotatedWeight {
        kind: RotatedKind::Levels(Box::new(levels)),
        part: t.part(),
        row_bytes: bytes,
        rows,
        cols,
        group: description.rotation(t, cols)?,
        scales: Floats::ieee(&channel)?,
        has_row_scales: true,
    };
    let mut parts = vec![(TensorRole::Scale, relative), (TensorRole::Scale, channel)];
    parts.extend(codebook.map(|part| (TensorRole::QuantMap, part)));
    parts.extend(correction.map(|part| (TensorRole::Offset, part)));
    let code = CodeType::Uint(if bits == 4 { 4 } else { 6 });
    let mut group = weight.claimed(t, code, parts);
    if let QuantScheme::Grouped { scales, .. } = &mut group.scheme {
        *scales = Granularity::Group(width);
    }
    Ok(group)
}

/// Checks what comfy-kitchen asks of codes of 6 bits (`_check_six_bit_layout`).
fn check_six_bits(
    t: &Tensor<'_>,
    cols: usize,
    width: usize,
    other: Option<Tensor<'_>>,
) -> Result<()> {
    if let Some(other) = other {
        let what = format!("codes of 6 bits have none, and `{}` has such", t.name());
        return Err(wrong(&other, what));
    }
    if !cols.is_multiple_of(32) || !width.is_multiple_of(16) {
        let what =
            format!("codes of 6 bits come in 32 columns and groups of 16, not {cols} and {width}");
        return Err(wrong(t, what));
    }
    Ok(())
}

/// Rows and stored columns of `t`.
fn matrix(t: &Tensor<'_>) -> Result<[usize; 2]> {
    match *t.shape() {
        [rows, cols] => Ok([rows, cols]),
        _ => Err(wrong(t, "its format has two dimensions")),
    }
}

/// Columns of `bytes` bytes of two codes each.
fn doubled(t: &Tensor<'_>, bytes: usize) -> Result<usize> {
    bytes
        .checked_mul(2)
        .ok_or_else(|| wrong(t, "it is too wide"))
}

fn one_a_row(t: &Tensor<'_>, scale: &Tensor<'_>, rows: usize) -> Result<()> {
    match scale.shape() {
        &[n] | &[n, 1] if n == rows => Ok(()),
        shape => {
            let what = format!("its `{}` {shape:?} is not one for each row", scale.name());
            Err(wrong(t, what))
        }
    }
}

impl<'m> RotatedWeight<'m> {
    /// The group of weight `t` with its companions.
    fn claimed(
        self,
        t: &Tensor<'m>,
        codes: CodeType,
        companions: Vec<(TensorRole, Tensor<'m>)>,
    ) -> Group<'m> {
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes,
            scales: if self.has_row_scales {
                Granularity::Channel
            } else {
                Granularity::Tensor
            },
        };
        let mut parts = vec![(TensorRole::Quantized, *t)];
        parts.extend(companions);
        let shape = vec![self.rows, self.cols];
        Group::new(t.name().to_owned(), shape, scheme, parts, Box::new(self))
    }

    /// Bits of a code in a loaded tile.
    fn loaded_bits(&self) -> usize {
        match &self.kind {
            RotatedKind::Bytes => 8,
            RotatedKind::Levels(levels) if levels.bits == 6 => 8,
            RotatedKind::Nibbles | RotatedKind::Levels(_) => 4,
        }
    }

    fn run<C: RotatedCodes>(
        &self,
        codes: C,
        (rows, width): (Range<usize>, usize),
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let corrections = match &self.kind {
            RotatedKind::Levels(levels) if levels.correction.is_some() => Some(Corrections {
                values: &buffers.zeros[rows.start * (width / levels.width)..],
                width: levels.width,
            }),
            _ => None,
        };
        let first = if self.has_row_scales { rows.start } else { 0 };
        let kernel = RotatedRows {
            codes,
            width,
            group: self.group,
            scales: &buffers.row[first..],
            corrections,
        };
        dispatch(level, &kernel, out);
    }
}

impl Levels<'_> {
    /// The values of codes of 4 bits: those of the codebook, or -8 to 7.
    fn table(&self, codebook: &[f32]) -> Option<[f32; 16]> {
        let plain = || std::array::from_fn(|code| code as f32 - 8.0);
        (self.bits == 4).then(|| codebook.try_into().unwrap_or_else(|_| plain()))
    }

    /// Loads what the integers are made from. Scales and codebook have to be finite: a product that is NaN is no
    /// integer.
    fn load(&self, tile: &Tile, cols: usize, buffers: &mut Buffers) -> Result<()> {
        let Buffers {
            scales,
            zeros,
            factors,
            staging,
            ..
        } = buffers;
        let groups = tile.cols.start / self.width..tile.cols.end / self.width;
        scales.clear();
        let rows = tile.rows.clone();
        let stride = cols / self.width;
        self.scales
            .extend(stride, rows.clone(), groups.clone(), staging, scales)?;
        if scales.iter().any(|scale| !scale.is_finite()) {
            let what = format!(
                "its `{}` has NaN or infinity in rows {rows:?}, and codes times that are no integers",
                self.name
            );
            return Err(wrong(&self.weight, what));
        }
        factors.clear();
        if let Some(codebook) = &self.codebook {
            codebook.extend(16, 0..1, 0..16, staging, factors)?;
            if factors.iter().any(|value| !value.is_finite()) {
                let what =
                    "its codebook has NaN or infinity, and scales times that are no integers";
                return Err(wrong(&self.weight, what));
            }
        }
        zeros.clear();
        match &self.correction {
            Some(correction) => correction.extend(rows, groups, staging, zeros),
            None => Ok(()),
        }
    }
}

impl Decode for RotatedWeight<'_> {
    fn grid(&self) -> Grid {
        let (col_align, of_groups) = match &self.kind {
            RotatedKind::Bytes | RotatedKind::Nibbles => (self.group, 0.0),
            RotatedKind::Levels(levels) => {
                let numbers = if levels.correction.is_some() {
                    64.0
                } else {
                    32.0
                };
                let align = lcm(self.group, levels.width);
                (align, numbers / levels.width as f64)
            }
        };
        let load_bits = self.loaded_bits() as f64 + of_groups;
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: 1,
            col_align,
            load_bits: load_bits + 32.0 / self.cols.max(1) as f64,
            transposed: false,
        }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let (rows, cols) = (tile.rows.clone(), tile.cols.clone());
        match &self.kind {
            RotatedKind::Levels(levels) if levels.bits == 6 => {
                let Buffers { bytes, staging, .. } = &mut *buffers;
                let mut high = Vec::new();
                let out = bytes.buffer();
                let low = cols.start / 2..cols.end / 2;
                read(&self.part, self.row_bytes, rows.clone(), low, staging)?;
                let plane = self.cols / 2;
                let upper = plane + cols.start / 4..plane + cols.end / 4;
                read(&self.part, self.row_bytes, rows.clone(), upper, &mut high)?;
                join_planes(staging, &high, out);
            }
            _ => {
                // Tiles begin and end at multiples of four columns, so that no byte is split.
                let bits = self.loaded_bits();
                let cols = cols.start * bits / 8..cols.end * bits / 8;
                buffers
                    .bytes
                    .load(&self.part, self.row_bytes, rows.clone(), cols)?;
            }
        }
        let Buffers { row, staging, .. } = &mut *buffers;
        row.clear();
        let rows = if self.has_row_scales { rows } else { 0..1 };
        self.scales.extend(1, rows, 0..1, staging, row)?;
        match &self.kind {
            RotatedKind::Levels(levels) => levels.load(tile, self.cols, buffers),
            _ => Ok(()),
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
        let width = tile.cols.len();
        let row_bytes = width * self.loaded_bits() / 8;
        let rows = rows.start - tile.rows.start..rows.end - tile.rows.start;
        let bytes = &buffers.bytes[rows.start * row_bytes..];
        let place = (rows.clone(), width);
        match &self.kind {
            RotatedKind::Bytes => {
                self.run(ByteCodes { bytes, row_bytes }, place, buffers, level, out);
            }
            RotatedKind::Nibbles => {
                self.run(NibbleCodes { bytes, row_bytes }, place, buffers, level, out);
            }
            RotatedKind::Levels(levels) => {
                let groups = width / levels.width;
                let codes = LevelCodes {
                    bytes,
                    row_bytes,
                    codebook: levels.table(&buffers.factors),
                    scales: &buffers.scales[rows.start * groups..],
                    groups,
                    width: levels.width,
                };
                self.run(codes, place, buffers, level, out);
            }
        }
    }
}

/// Replaces `out` with codes of 6 bits, a byte each. Bytes of `low` have the lower nibbles of two codes each, bytes of
/// `high` the upper bits of four.
fn join_planes(low: &[u8], high: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for (&[first, second], &high) in low.as_chunks().0.iter().zip(high) {
        out.extend([
            first & 15 | (high & 3) << 4,
            first >> 4 | (high >> 2 & 3) << 4,
            second & 15 | (high >> 4 & 3) << 4,
            second >> 4 | (high >> 6) << 4,
        ]);
    }
}
