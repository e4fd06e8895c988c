//! `asym_w4a8_int8`: codes of 4 or 6 bits that become integers of eight bits by the scales of their
//! groups.

use super::{RotatedKind, RotatedWeight, matrix, one_a_row};
use crate::model::Tensor;
use crate::remember::comfy::description::ComfyDescription;
use crate::remember::seam::scale_matrix::{ScaleMatrix, Transposed};
use crate::remember::seam::{
    Buffers, CodeType, Floats, Granularity, Group, Index, QuantScheme, TensorRole, Tile, wrong,
};
use crate::simd::zip;
use crate::{Dtype, Result};

/// Codes that become integers of eight bits by the scales of their groups.
pub(super) struct Levels<'m> {
    /// The weight, for errors.
    weight: Tensor<'m>,
    /// Bits of a code: 4 or 6.
    pub bits: usize,
    scales: Floats<'m>,
    name: &'m str,
    /// Columns of a group.
    pub width: usize,
    codebook: Option<Floats<'m>>,
    pub correction: Option<Transposed<'m>>,
}

impl Levels<'_> {
    /// The values of codes of 4 bits: those of the codebook, or -8 to 7.
    pub(super) fn table(&self, codebook: &[f32]) -> Option<[f32; 16]> {
        let plain = || std::array::from_fn(|code| code as f32 - 8.0);
        (self.bits == 4).then(|| codebook.try_into().unwrap_or_else(|_| plain()))
    }

    /// Loads what the integers are made from. Scales and codebook have to be finite: a product that
    /// is NaN is no integer.
    pub(super) fn load(&self, tile: &Tile, cols: usize, buffers: &mut Buffers) -> Result<()> {
        let Buffers { scales, zeros, factors, staging, .. } = buffers;
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

/// `asym_w4a8_int8`.
pub(in crate::remember::comfy) fn w4a8<'m>(
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
    let cols = match (relative.shape(), t.shape()) {
        (&[n, groups], _) if n == rows => groups.checked_mul(width),
        (&[experts, n, groups], &[matrices, height, _]) if [experts, n] == [matrices, height] => {
            groups.checked_mul(width)
        }
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
        Ok(Transposed::of_floats(Floats::ieee(part)?, rows, cols / width))
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
    let mut group = weight.claimed(t, (description, all), code, parts)?;
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

/// Replaces `out` with codes of 6 bits, a byte each. Bytes of `low` have the lower nibbles of two
/// codes each, bytes of `high` the upper bits of four.
pub(super) fn join_planes(low: &[u8], high: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for (&[first, second], &high) in zip(low.as_chunks().0.iter(), high) {
        out.extend([
            first & 15 | (high & 3) << 4,
            first >> 4 | (high >> 2 & 3) << 4,
            second & 15 | (high >> 4 & 3) << 4,
            second >> 4 | (high >> 6) << 4,
        ]);
    }
}
