//! Weights whose columns are rotated before they are quantized (ConvRot): `int8_tensorwise` with
//! `convrot`, `convrot_w4a4`, and `asym_w4a8_int8`.
//!
//! | format | weight | scales |
//! |---|---|---|
//! | `int8_tensorwise` | I8 `[out, in]` | `X.weight_scale`, one or one for each row |
//! | `convrot_w4a4` | I8 `[out, in / 2]`, signed nibbles, low nibble first | `X.weight_scale`, one for each row |
//! | `asym_w4a8_int8` | I8 `[out, in / 2]`, unsigned nibbles, low nibble first | `X.weight_s_rel` `[out, in / g]`, `X.weight_s_channel` `[out]` |
//!
//! `asym_w4a8_int8` may have `X.weight_codebook` `[16]`, and `X.weight_correction` `[in / g, out]`,
//! which is added to the values of each group before the rotation is undone. With 6 bits a code a
//! row has its lower nibbles first, in `in / 2` bytes, and then the upper two bits of four codes a
//! byte.

mod levels;

use std::ops::Range;

pub(super) use self::levels::w4a8;
use self::levels::{Levels, join_planes};
use super::FAMILY;
use super::description::ComfyDescription;
use crate::Result;
use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::kernels::rotated::{
    ByteCodes, Corrections, LevelCodes, NibbleCodes, RotatedCodes, RotatedRows,
};
use crate::remember::seam::{
    Buffers, CodeType, Decode, Floats, Granularity, Grid, Group, Index, QuantScheme, TensorRole,
    Tile, lcm, read, wrong,
};
use crate::simd::{Level, dispatch};

/// What the codes of a rotated weight are.
enum RotatedKind<'m> {
    Bytes,
    Nibbles,
    Levels(Box<Levels<'m>>),
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
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let [rows, cols] = matrix(t)?;
    if scale.elements() != 1 {
        one_a_row(t, scale, rows)?;
    }
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
    weight.claimed(t, (description, all), CodeType::Int(8), parts)
}

/// `convrot_w4a4`.
pub(super) fn w4a4<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    description: &ComfyDescription<'m>,
    all: &Index<'m>,
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
    weight.claimed(t, (description, all), CodeType::Int(4), parts)
}

/// Rows and stored columns of `t`; those of a bank of experts are below each other.
fn matrix(t: &Tensor<'_>) -> Result<[usize; 2]> {
    let sizes = match *t.shape() {
        [rows, cols] => Some([rows, cols]),
        [experts, rows, cols] => experts.checked_mul(rows).map(|rows| [rows, cols]),
        _ => None,
    };
    sizes.ok_or_else(|| wrong(t, "its format has two dimensions, or three for experts"))
}

/// Columns of `bytes` bytes of two codes each.
fn doubled(t: &Tensor<'_>, bytes: usize) -> Result<usize> {
    bytes
        .checked_mul(2)
        .ok_or_else(|| wrong(t, "it is too wide"))
}

fn one_a_row(t: &Tensor<'_>, scale: &Tensor<'_>, rows: usize) -> Result<()> {
    let is_one_a_row = match (scale.shape(), t.shape()) {
        (&[n] | &[n, 1], _) => n == rows,
        (&[experts, n] | &[experts, n, 1], &[matrices, height, _]) => {
            [experts, n] == [matrices, height]
        }
        _ => false,
    };
    if is_one_a_row {
        return Ok(());
    }
    let (name, shape) = (scale.name(), scale.shape());
    Err(wrong(t, format!("its `{name}` {shape:?} is not one for each row")))
}

impl<'m> RotatedWeight<'m> {
    /// The group of weight `t` with its companions.
    ///
    /// # Errors
    /// As [`ComfyDescription::output_shape`].
    fn claimed(
        self,
        t: &Tensor<'m>,
        (description, all): (&ComfyDescription<'_>, &Index<'_>),
        codes: CodeType,
        companions: Vec<(TensorRole, Tensor<'m>)>,
    ) -> Result<Group<'m>> {
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
        let shape = match *t.shape() {
            [experts, rows, _] => vec![experts, rows, self.cols],
            _ => description.output_shape(t, &[self.rows, self.cols], all)?,
        };
        let name = t.name();
        Ok(Group::new(name, shape, scheme, parts, Box::new(self)))
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
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
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
