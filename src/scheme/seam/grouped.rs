//! The decoder that most schemes share: rows of narrow codes, with numbers for each group of them. A scheme says
//! where its codes and numbers lie.

use std::ops::Range;

use crate::containers::model::Part;
use crate::element::Out;
use crate::kernels::remember::fp8::ScaleGrid;
use crate::kernels::remember::grouped::{
    E2M1, E2M3, E3M2, Formula, Fp8E4M3, Fp8E4M3Fnuz, Fp8E5M2, Int, Number, Quarters, Rows,
};
use crate::kernels::remember::packed::CHUNK;
use crate::scheme::seam::numbers::Numbers;
use crate::scheme::seam::{
    Buffers, Decode, Family, Floats, Fp8Format, Grid, GroupCodes, Tile, read,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result, TargetDtype};

/// What codes stand for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Meaning {
    Int(Int),
    /// FP4.
    E2M1(E2M1),
    /// Integers of four bits with a sign of their own, in quarters.
    Quarters,
    /// FP6.
    E2M3,
    E3M2,
    /// FP8.
    E4M3,
    E5M2,
    E4M3Fnuz,
}

impl Meaning {
    /// What bytes of this type stand for: integers of eight bits, or FP8.
    pub(crate) fn of_bytes(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::I8 => Some(Self::Int(Int::signed(8))),
            Dtype::F8E4M3 => Some(Self::E4M3),
            Dtype::F8E5M2 => Some(Self::E5M2),
            Dtype::F8E4M3Fnuz => Some(Self::E4M3Fnuz),
            _ => None,
        }
    }

    /// What FP8 of this format stands for, if it is OCP's.
    pub(crate) fn of_fp8(format: Fp8Format) -> Option<Self> {
        match format {
            Fp8Format::E4M3 => Some(Self::E4M3),
            Fp8Format::E5M2 => Some(Self::E5M2),
            _ => None,
        }
    }
}

/// Where the codes lie.
pub(crate) enum Codes<'m> {
    /// In rows of so many bytes, each a bit stream, least significant bit first.
    Rows { part: Part<'m>, row_bytes: usize },
    /// Elsewhere: brought into such rows, a byte a code.
    Own(Box<dyn Unpack + 'm>),
}

/// Codes that lie otherwise than in rows.
pub(crate) trait Unpack: Send + Sync {
    /// Makes `out` the codes of `tile`, row-major, a byte each. `staging` is scratch.
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()>;

    /// Tiles start at multiples of these.
    fn align(&self) -> (usize, usize) {
        (1, 1)
    }

    /// Whether the input runs across rows.
    fn transposed(&self) -> bool {
        false
    }
}

/// A weight in groups. All but the last dimension are its rows.
pub(crate) struct Grouped<'m> {
    pub codes: Codes<'m>,
    pub bits: usize,
    pub meaning: Meaning,
    pub rows: usize,
    pub cols: usize,
    pub grid: ScaleGrid,
    pub scales: Box<dyn Numbers + 'm>,
    pub offsets: Option<Box<dyn Numbers + 'm>>,
    pub formula: Formula,
    /// The type in which the library computes, and rounds between two operations.
    pub own: Option<TargetDtype>,
    /// Scales and offsets as they are in that type, where they are not what they are in F32.
    pub in_own: Option<[Box<dyn Numbers + 'm>; 2]>,
    /// A factor for each column.
    pub columns: Option<Floats<'m>>,
    /// What codes are, if they are integers with half of their range added and zero points alike, or MXFP4.
    pub family: Option<Family>,
}

impl<'m> Grouped<'m> {
    /// Signed or unsigned integers or narrow floats, each times the scale of its group.
    pub(crate) fn scaled(
        codes: Codes<'m>,
        bits: usize,
        meaning: Meaning,
        [rows, cols]: [usize; 2],
        grid: ScaleGrid,
        scales: Box<dyn Numbers + 'm>,
    ) -> Self {
        let formula = Formula::Scale;
        let (offsets, own, in_own, columns, family) = (None, None, None, None, None);
        Self {
            codes,
            bits,
            meaning,
            rows,
            cols,
            grid,
            scales,
            offsets,
            formula,
            own,
            in_own,
            columns,
            family,
        }
    }

    fn scale_range(&self, tile: &Tile) -> (Range<usize>, Range<usize>) {
        let cols =
            tile.cols.start / self.grid.block_cols..tile.cols.end.div_ceil(self.grid.block_cols);
        (self.grid.rows(&tile.rows), cols)
    }

    fn run<'a, const BITS: usize, N: Number>(
        &self,
        number: N,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &'a Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let row_bytes = buffers.bytes.len() / tile.rows.len().max(1);
        let (scale_rows, scale_cols) = self.scale_range(tile);
        let round = matches!(
            (self.own, &out),
            (Some(TargetDtype::BF16), Out::Bf16(_)) | (Some(TargetDtype::F16), Out::F16(_))
        );
        // Those of the own type lie behind those of F32.
        let half = |numbers: &'a [f32]| match (&self.in_own, numbers.split_at(numbers.len() / 2)) {
            (None, _) => numbers,
            (Some(_), (_, second)) if round => second,
            (Some(_), (first, _)) => first,
        };
        let kernel = Rows::<BITS, N> {
            bytes: &buffers.bytes[(rows.start - tile.rows.start) * row_bytes..],
            row_bytes,
            rows,
            cols: tile.cols.clone(),
            number,
            grid: self.grid,
            scales: half(&buffers.scales),
            offsets: half(&buffers.zeros),
            scale_rows,
            scale_cols,
            formula: self.formula,
            round,
            columns: &buffers.row,
        };
        dispatch(level, &kernel, out);
    }
}

impl Decode for Grouped<'_> {
    fn grid(&self) -> Grid {
        let numbers = if self.offsets.is_some() { 64.0 } else { 32.0 };
        let numbers = if self.in_own.is_some() {
            2.0 * numbers
        } else {
            numbers
        };
        let per_group =
            self.grid.block_cols.min(self.cols.max(1)) * self.grid.block_rows.clamp(1, 8);
        // Codes that are brought into rows take a byte each.
        let code_bits = if matches!(self.codes, Codes::Own(_)) {
            8
        } else {
            self.bits
        };
        let load_bits = code_bits as f64 + numbers / per_group as f64;
        let ((row_align, col_align), transposed) = match &self.codes {
            Codes::Rows { .. } if self.bits == 8 => ((1, 1), false),
            Codes::Rows { .. } => ((1, CHUNK), false),
            Codes::Own(own) => (own.align(), own.transposed()),
        };
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align,
            col_align,
            load_bits,
            transposed,
        }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers {
            bytes,
            scales,
            zeros,
            staging,
            row,
            ..
        } = buffers;
        match &self.codes {
            Codes::Rows { part, row_bytes } => {
                let cols = tile.cols.start * self.bits / 8..(tile.cols.end * self.bits).div_ceil(8);
                read(part, *row_bytes, tile.rows.clone(), cols, bytes)?;
            }
            Codes::Own(own) => own.unpack(tile, staging, bytes)?,
        }
        let (rows, cols) = self.scale_range(tile);
        scales.clear();
        self.scales
            .extend(rows.clone(), cols.clone(), staging, scales)?;
        zeros.clear();
        if let Some(offsets) = &self.offsets {
            offsets.extend(rows.clone(), cols.clone(), staging, zeros)?;
        }
        if let Some([own_scales, own_offsets]) = &self.in_own {
            own_scales.extend(rows.clone(), cols.clone(), staging, scales)?;
            own_offsets.extend(rows, cols, staging, zeros)?;
        }
        row.clear();
        if let Some(columns) = &self.columns {
            columns.extend(self.cols, 0..1, tile.cols.clone(), staging, row)?;
        }
        Ok(())
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        macro_rules! run {
            ($bits:literal, $number:expr) => {
                self.run::<$bits, _>($number, tile, rows, buffers, level, out)
            };
        }
        let bits = if matches!(self.codes, Codes::Own(_)) {
            8
        } else {
            self.bits
        };
        match (self.meaning, bits) {
            (Meaning::Int(int), 1) => run!(1, int),
            (Meaning::Int(int), 2) => run!(2, int),
            (Meaning::Int(int), 3) => run!(3, int),
            (Meaning::Int(int), 4) => run!(4, int),
            (Meaning::Int(int), 5) => run!(5, int),
            (Meaning::Int(int), 6) => run!(6, int),
            (Meaning::Int(int), 7) => run!(7, int),
            (Meaning::Int(int), _) => run!(8, int),
            (Meaning::E2M1(fp4), 4) => run!(4, fp4),
            (Meaning::E2M1(fp4), _) => run!(8, fp4),
            (Meaning::Quarters, _) => run!(4, Quarters),
            (Meaning::E2M3, 6) => run!(6, E2M3),
            (Meaning::E2M3, _) => run!(8, E2M3),
            (Meaning::E3M2, 6) => run!(6, E3M2),
            (Meaning::E3M2, _) => run!(8, E3M2),
            (Meaning::E4M3, _) => run!(8, Fp8E4M3),
            (Meaning::E5M2, _) => run!(8, Fp8E5M2),
            (Meaning::E4M3Fnuz, _) => run!(8, Fp8E4M3Fnuz),
        }
    }

    fn family(&self) -> Option<Family> {
        self.family
    }

    fn codes(&self, tile: &Tile, buffers: &Buffers, out: &mut GroupCodes) {
        let bits = if matches!(self.codes, Codes::Own(_)) {
            8
        } else {
            self.bits
        };
        out.unpack(
            &buffers.bytes,
            buffers.bytes.len() / tile.rows.len().max(1),
            tile.cols.len(),
            bits,
        );
        match self.meaning {
            Meaning::E2M1(E2M1 { factor, .. }) => {
                out.take_exponents(&buffers.scales, factor == 2.0)
            }
            _ => {
                let middle = (1u32 << (self.bits - 1)) as f32;
                out.scales.clone_from(&buffers.scales);
                out.zeros.clear();
                match self.offsets {
                    Some(_) => out
                        .zeros
                        .extend(buffers.zeros.iter().map(|zero| (zero + middle) as u8)),
                    None => out.zeros.resize(buffers.scales.len(), middle as u8),
                }
            }
        }
    }
}

/// Groups of `width` values along each row.
pub(crate) fn row_groups(cols: usize, width: usize) -> ScaleGrid {
    ScaleGrid {
        matrix_rows: usize::MAX,
        block_rows: 1,
        block_cols: width.max(1),
        rows_per_matrix: 0,
        cols: cols.div_ceil(width.max(1)),
    }
}
