//! The decoder that most schemes share: codes of one to sixteen bits, and for each group of them a
//! scale and often a zero point or an offset. A scheme describes where they are stored; the
//! arithmetic is `kernels::remember::grouped`.

mod formula;

use std::ops::Range;

pub(crate) use self::formula::{ComputeDtype, GroupFormula, GroupOffsets, RoundedMatrices};
use crate::element::Out;
use crate::model::Part;
use crate::remember::kernels::fp8::{E4M3, E4M3Fnuz, E5M2, E5M2Fnuz};
use crate::remember::kernels::grouped::{
    Bf16Code, CodeValue, E2M1, E2M3, E3M2, GroupedRows, HalfCode, Int, LongInt, Minifloat,
    SignMagnitude, WideInt, WideMinifloat,
};
use crate::remember::kernels::packed::CHUNK;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{
    Buffers, CodeFamily, Decode, ExtractCodes, Fp8Format, Grid, GroupCodes, RelaySource,
    StoredRows, Tile,
};
use crate::simd::Level;
use crate::{Dtype, Result, TargetDtype};
use half::f16;

/// The value that a code stands for, before its scale is applied.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CodeFormat {
    Int(Int),
    /// FP4.
    E2M1(E2M1),
    /// A sign bit and a magnitude of three bits, in quarters.
    SignMagnitude,
    /// FP6.
    E2M3,
    E3M2,
    /// FP8.
    E4M3,
    E5M2,
    E4M3Fnuz,
    E5M2Fnuz,
    /// A float of any sizes, all of whose codes are finite.
    Minifloat(Minifloat),
    /// The same and integers of nine to sixteen bits.
    WideMinifloat(WideMinifloat),
    WideInt(WideInt),
    /// Integers of more than sixteen bits, unpacked to F32.
    LongInt,
    F16,
    BF16,
}

impl CodeFormat {
    /// The format of a tensor's elements, if they are I8 or FP8.
    pub(crate) fn of_bytes(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::I8 => Some(Self::Int(Int::signed(8))),
            Dtype::F8E4M3 => Some(Self::E4M3),
            Dtype::F8E5M2 => Some(Self::E5M2),
            Dtype::F8E4M3Fnuz => Some(Self::E4M3Fnuz),
            _ => None,
        }
    }

    /// Bits of an unpacked code.
    fn unpacked_bits(self) -> usize {
        match self {
            Self::WideMinifloat(_) | Self::WideInt(_) | Self::F16 | Self::BF16 => 16,
            Self::LongInt => 32,
            _ => 8,
        }
    }

    /// The format of FP8 codes.
    pub(crate) fn of_fp8(format: Fp8Format) -> Self {
        match format {
            Fp8Format::E4M3 => Self::E4M3,
            Fp8Format::E5M2 => Self::E5M2,
            Fp8Format::E4M3Fnuz => Self::E4M3Fnuz,
            Fp8Format::E5M2Fnuz => Self::E5M2Fnuz,
        }
    }
}

/// Where the codes of a weight are stored.
pub(crate) enum Codes<'m> {
    /// Rows of `row_bytes` bytes, each a bit stream, least significant bit first.
    Rows { part: Part<'m>, row_bytes: usize },
    /// Any other layout. Loading a tile unpacks its codes, one byte each, or two or four if the format
    /// is wider than a byte.
    Unpacked(Box<dyn Unpack + 'm>),
    /// A layout in which codes that follow each other in a row share bytes. Loading a tile puts
    /// these into rows as those of [`Rows`](Self::Rows): unpacked codes would take several times
    /// the memory.
    Arranged(Box<dyn Unpack + 'm>),
}

/// A layout of codes other than bit streams in rows.
pub(crate) trait Unpack: Send + Sync {
    /// Replaces `out` with the codes of `tile`, row-major, in bytes of their own, or with rows of
    /// bytes that codes share. `staging` is scratch.
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()>;

    /// Multiples of rows and columns at which tiles start.
    fn align(&self) -> (usize, usize) {
        (1, 1)
    }

    /// How stored rows lie in the weight if they run down its columns.
    fn transposed(&self) -> Option<StoredRows> {
        None
    }
}

/// The decoder of a weight whose values share scales in groups. All dimensions but the last are its
/// rows.
pub(crate) struct Grouped<'m> {
    pub codes: Codes<'m>,
    /// Bits of a code. Unpacked codes take whole bytes whatever this is.
    pub bits: u8,
    pub code_format: CodeFormat,
    pub rows: usize,
    pub cols: usize,
    /// Which values share a scale.
    pub grid: ScaleGrid,
    pub scales: Box<dyn ScaleMatrix + 'm>,
    pub formula: GroupFormula<'m>,
    /// A factor for each column, applied last.
    pub columns: Option<Box<dyn ScaleMatrix + 'm>>,
    /// The family of the codes, if they can be relayed.
    pub family: Option<CodeFamily>,
}

impl<'m> Grouped<'m> {
    /// A decoder that multiplies each code's value by the scale of its group.
    pub(crate) fn scaled(
        codes: Codes<'m>,
        bits: usize,
        code_format: CodeFormat,
        [rows, cols]: [usize; 2],
        grid: ScaleGrid,
        scales: Box<dyn ScaleMatrix + 'm>,
    ) -> Self {
        Self {
            codes,
            bits: bits as u8,
            code_format,
            rows,
            cols,
            grid,
            scales,
            formula: GroupFormula::Scale,
            columns: None,
            family: None,
        }
    }

    fn code_bits(&self) -> usize {
        usize::from(self.bits)
    }

    /// Bits of a code in the buffer of a loaded tile.
    fn loaded_bits(&self) -> usize {
        match self.codes {
            Codes::Rows { .. } | Codes::Arranged(_) => self.code_bits(),
            Codes::Unpacked(_) => self.code_format.unpacked_bits(),
        }
    }

    /// The rectangle of the scale matrix that covers `tile`: rows and columns.
    fn scale_range(&self, tile: &Tile) -> (Range<usize>, Range<usize>) {
        let cols =
            tile.cols.start / self.grid.block_cols..tile.cols.end.div_ceil(self.grid.block_cols);
        (self.grid.rows(&tile.rows), cols)
    }

    fn run<'a, V: CodeValue>(
        &self,
        format: V,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &'a Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        // All rows of a loaded tile take equally many bytes, so their length need not be kept
        // beside them.
        let row_bytes = buffers.bytes.len() / tile.rows.len().max(1);
        let (scale_rows, scale_cols) = self.scale_range(tile);
        let compute_dtype = self.formula.compute().map(|compute| compute.dtype);
        // In an output of the compute dtype the library's intermediate rounding is part of its
        // bits. In every other output it would only be a second error.
        let round = matches!(
            (compute_dtype, &out),
            (Some(TargetDtype::BF16), Out::Bf16(_)) | (Some(TargetDtype::F16), Out::F16(_))
        );
        // `load` appends the numbers for the compute dtype to those for F32, as many of each. It
        // cannot choose between them: it does not know the dtype of the output.
        let has_rounded = self.formula.rounded().is_some();
        let chosen = |numbers: &'a [f32]| match (has_rounded, numbers.split_at(numbers.len() / 2)) {
            (false, _) => numbers,
            (true, (_, rounded)) if round => rounded,
            (true, (in_f32, _)) => in_f32,
        };
        let weight = GroupedRows {
            bytes: &buffers.bytes[(rows.start - tile.rows.start) * row_bytes..],
            row_bytes,
            bits: self.loaded_bits(),
            code_bits: self.code_bits(),
            rows,
            cols: tile.cols.clone(),
            format,
            grid: self.grid,
            scales: chosen(&buffers.scales),
            offsets: chosen(&buffers.zeros),
            scale_rows,
            scale_cols,
            formula: self.formula.operation(),
            round,
            columns: &buffers.row,
        };
        weight.decode(level, out);
    }
}

impl Decode for Grouped<'_> {
    fn grid(&self) -> Grid {
        // An F32 for the scale of a group and one for its offset; twice as much with those for a
        // compute dtype.
        let numbers = if self.formula.offsets().is_some() {
            64.0
        } else {
            32.0
        };
        let numbers = if self.formula.rounded().is_some() {
            2.0 * numbers
        } else {
            numbers
        };
        // A tile may cut a group of many rows short, and then loads its scale for few values: at
        // most 8 rows count.
        let per_group =
            self.grid.block_cols.min(self.cols.max(1)) * self.grid.block_rows.clamp(1, 8);
        let load_bits = self.loaded_bits() as f64 + numbers / per_group as f64;
        let ((row_align, col_align), transposed) = match &self.codes {
            // Codes are whole bytes, so a tile may begin at any column.
            Codes::Rows { .. } if self.bits.is_multiple_of(8) => ((1, 1), None),
            // A chunk is 32 codes: it begins at a whole byte at any width, and the kernel unpacks
            // whole chunks.
            Codes::Rows { .. } => ((1, CHUNK), None),
            Codes::Unpacked(layout) | Codes::Arranged(layout) => {
                (layout.align(), layout.transposed())
            }
        };
        Grid { rows: self.rows, cols: self.cols, row_align, col_align, load_bits, transposed }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { bytes, scales, zeros, staging, row, .. } = buffers;
        match &self.codes {
            Codes::Rows { part, row_bytes } => {
                // A tile begins at a multiple of 32 codes, so the first bit is the first of a byte
                // at every width.
                let bits = self.code_bits();
                let cols = tile.cols.start * bits / 8..(tile.cols.end * bits).div_ceil(8);
                bytes.load(part, *row_bytes, tile.rows.clone(), cols)?;
            }
            Codes::Unpacked(layout) | Codes::Arranged(layout) => {
                layout.unpack(tile, staging, bytes.buffer())?;
            }
        }
        let (rows, cols) = self.scale_range(tile);
        scales.clear();
        self.scales
            .extend(rows.clone(), cols.clone(), staging, scales)?;
        zeros.clear();
        if let Some(offsets) = self.formula.offsets() {
            offsets
                .matrix
                .extend(rows.clone(), cols.clone(), staging, zeros)?;
        }
        // The numbers for the compute dtype follow those for F32 in the same buffers: `[in F32 |
        // rounded]`, equal halves. `run` splits them.
        if let Some(rounded) = self.formula.rounded() {
            rounded
                .scales
                .extend(rows.clone(), cols.clone(), staging, scales)?;
            rounded.offsets.extend(rows, cols, staging, zeros)?;
        }
        // Cleared even without factors: the buffers are reused, and the kernel takes an empty row
        // as no factor at all.
        row.clear();
        if let Some(columns) = &self.columns {
            columns.extend(0..1, tile.cols.clone(), staging, row)?;
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
        // One instance of the kernel for each format, so that the format is a constant in its loop.
        macro_rules! run {
            ($format:expr) => {
                self.run($format, tile, rows, buffers, level, out)
            };
        }
        match self.code_format {
            CodeFormat::Int(int) => run!(int),
            CodeFormat::E2M1(fp4) => run!(fp4),
            CodeFormat::SignMagnitude => run!(SignMagnitude),
            CodeFormat::E2M3 => run!(E2M3),
            CodeFormat::E3M2 => run!(E3M2),
            CodeFormat::E4M3 => run!(E4M3),
            CodeFormat::E5M2 => run!(E5M2),
            CodeFormat::E4M3Fnuz => run!(E4M3Fnuz),
            CodeFormat::E5M2Fnuz => run!(E5M2Fnuz),
            CodeFormat::Minifloat(float) => run!(float),
            CodeFormat::WideMinifloat(float) => run!(float),
            CodeFormat::WideInt(int) => run!(int),
            CodeFormat::LongInt => run!(LongInt),
            CodeFormat::F16 => run!(HalfCode),
            CodeFormat::BF16 => run!(Bf16Code),
        }
    }

    fn find_relay(&self) -> Result<Option<RelaySource>> {
        let has_zero_points = self.formula.offsets().is_some();
        let mut family = self.family;
        if let Some(CodeFamily::Int { has_half_scales: is_half @ false, .. }) = &mut family {
            // A model of a header alone has no scales to look at.
            *is_half = self.has_half_scales().unwrap_or(false);
        }
        Ok(family.map(|family| {
            let codes = GroupedCodes {
                bits: self.code_bits(),
                loaded_bits: self.loaded_bits(),
                code_format: self.code_format,
                has_zero_points,
            };
            RelaySource::new(family, codes)
        }))
    }
}

impl Grouped<'_> {
    /// Whether F16 holds all scales. They are read for it: codes that move lose nothing, and those
    /// that are encoded again do.
    fn has_half_scales(&self) -> Result<bool> {
        let (mut staging, mut scales) = (vec![], vec![]);
        for first in (0..self.rows).step_by(ROWS_OF_SCALES) {
            let last = (first + ROWS_OF_SCALES).min(self.rows);
            let tile = Tile { rows: first..last, cols: 0..self.cols };
            let (rows, cols) = self.scale_range(&tile);
            scales.clear();
            self.scales.extend(rows, cols, &mut staging, &mut scales)?;
            if scales
                .iter()
                .any(|&scale| f16::from_f32(scale).to_f32() != scale)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Rows whose scales are looked at together.
const ROWS_OF_SCALES: usize = 256;

/// How the codes of a [`Grouped`] lie in its buffers.
struct GroupedCodes {
    bits: usize,
    loaded_bits: usize,
    code_format: CodeFormat,
    has_zero_points: bool,
}

impl ExtractCodes for GroupedCodes {
    fn extract(&self, [rows, cols]: [usize; 2], buffers: &Buffers, out: &mut GroupCodes) {
        let row_bytes = buffers.bytes.len() / rows.max(1);
        out.unpack(&buffers.bytes, row_bytes, cols, self.loaded_bits);
        if let CodeFormat::E2M1(E2M1 { factor, .. }) = self.code_format {
            // Doubled values come with halved scales, so that exponent 255 is finite.
            out.set_exponents(&buffers.scales, factor == 2.0);
            return;
        }
        // Codes are stored with half of their range added, so the zero point of a family, which
        // counts from the lowest code, is higher by that than the one that values have.
        let middle = (1u32 << (self.bits - 1)) as f32;
        out.scales.clone_from(&buffers.scales);
        out.zero_points.clear();
        if self.has_zero_points {
            let zero_points = buffers.zeros.iter().map(|zero| (zero + middle) as u8);
            out.zero_points.extend(zero_points);
        } else {
            out.zero_points.resize(buffers.scales.len(), middle as u8);
        }
    }
}

/// Groups of `width` values along each row.
pub(crate) fn row_groups(cols: usize, width: usize) -> ScaleGrid {
    ScaleGrid {
        // All rows are one matrix, so that row r of the weight is row r of the scales.
        matrix_rows: usize::MAX,
        block_rows: 1,
        block_cols: width.max(1),
        rows_per_matrix: 0,
        cols: cols.div_ceil(width.max(1)),
    }
}
