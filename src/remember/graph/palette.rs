//! Codes of Core ML that lie in bytes without gaps: palettized weights, whose codes pick values of a table,
//! or of one table for each group of codes; and codes of neural networks, of which scales make values.

use std::ops::Range;

use super::broadcast::{BroadcastScales, scaling};
use super::stored::{Bits, StoredInts, int_format};
use super::{GraphDecoder, GraphWeight};
use crate::error::InTensor;
use crate::model::{Part, Tensor};
use crate::remember::seam::grouped::{CodeFormat, Codes, GroupFormula, Grouped, Unpack};
use crate::remember::seam::scale_layout::{granularity, per_tensor, rows_and_cols};
use crate::remember::seam::scale_matrix::{Matrix, Ones, ScaleMatrix};
use crate::remember::seam::{CodeType, Floats, Tile, wrong};
use crate::{AnamnesisError, Result};

/// The decoder of a weight whose codes lie in bytes.
pub(super) fn decoder<'m>(weight: &GraphWeight<'m>) -> Result<GraphDecoder<'m>> {
    let t = weight.t;
    let misfit = |what: &str| wrong(&t, format!("its {what} not fit"));
    let shape = weight
        .codes
        .shape
        .clone()
        .ok_or_else(|| misfit("shape does"))?;
    let (rows, cols) = rows_and_cols(&shape);
    let bits = weight.codes.integer("bits", t.dtype().bits() as i64) as usize;
    let mut stored = shape.clone();
    let palette = match &weight.codebook {
        None => None,
        Some(table) => {
            let [axis, lanes, entries] =
                ["axis", "lanes", "entries"].map(|name| weight.codes.integer(name, 1) as usize);
            let dim = stored.get_mut(axis).ok_or_else(|| misfit("axis does"))?;
            *dim /= lanes.max(1);
            Some(PaletteTables::new(&t, table, &stored, [axis, lanes, entries])?)
        }
    };
    let count = stored.iter().try_fold(bits, |n, &dim| n.checked_mul(dim));
    if count.map(|bits| bits.div_ceil(8) as u64) != Some(t.byte_len()) {
        return Err(misfit("codes do"));
    }
    let is_msb_first = weight.codes.integer("is_msb_first", 0) != 0;
    let codes = PackedCodes { part: t.part(), bits, is_msb_first, shape: stored, palette };
    let code_type = match weight.codebook {
        Some(_) => CodeType::Codebook((bits as u8).min(8)),
        None => CodeType::Uint(bits as u8),
    };
    let BroadcastScales { grid, scales, formula } = match weight.scale {
        Some(_) => scaling(weight, &shape)?,
        None => BroadcastScales {
            grid: per_tensor(&shape),
            scales: Box::new(Ones),
            formula: GroupFormula::Scale,
        },
    };
    let scheme = weight.scheme(code_type, granularity(&grid, cols));
    let codes = Codes::Unpacked(Box::new(codes));
    let decoder = Grouped {
        formula,
        ..Grouped::scaled(codes, 32, CodeFormat::LongInt, [rows, cols], grid, scales)
    };
    Ok(GraphDecoder { shape, scheme, decoder: Box::new(decoder) })
}

/// Codes in bytes, unpacked to the values that they pick, or to themselves, in F32.
struct PackedCodes<'m> {
    part: Part<'m>,
    bits: usize,
    is_msb_first: bool,
    /// Dimensions of the codes.
    shape: Vec<usize>,
    palette: Option<PaletteTables<'m>>,
}

/// Tables of values.
struct PaletteTables<'m> {
    /// A table in each row: for each entry its lanes.
    tables: Box<dyn ScaleMatrix + 'm>,
    /// For each dimension of the codes, how many indices share a table, and how many tables there are.
    groups: Vec<(usize, usize)>,
    /// The dimension along which the lanes of a code lie.
    axis: usize,
    lanes: usize,
    entries: usize,
}

impl<'m> PaletteTables<'m> {
    /// The tables `table` of codes of the dimensions `shape`, which are those of the tensor `t`.
    fn new(
        t: &Tensor<'m>,
        table: &Tensor<'m>,
        shape: &[usize],
        [axis, lanes, entries]: [usize; 3],
    ) -> Result<Self> {
        let misfit =
            || wrong(t, format!("its table `{}` {:?} does not fit", table.name(), table.shape()));
        let counts: Vec<usize> = match table.shape() {
            [n] if *n == entries && lanes == 1 => vec![1; shape.len()],
            [groups @ .., n, of_lanes]
                if groups.len() == shape.len() && [*n, *of_lanes] == [entries, lanes] =>
            {
                groups.to_vec()
            }
            _ => return Err(misfit()),
        };
        let divides = |(&n, &dim): (&usize, &usize)| n > 0 && dim.is_multiple_of(n);
        if !counts.iter().zip(shape).all(divides) {
            return Err(misfit());
        }
        let groups = counts.iter().zip(shape);
        let groups = groups.map(|(&n, &dim)| ((dim / n).max(1), n)).collect();
        let cols = entries.checked_mul(lanes).ok_or_else(misfit)?;
        let tables: Box<dyn ScaleMatrix + 'm> = match table.dtype() {
            dtype if int_format(dtype).is_some() => {
                Box::new(StoredInts::new(table, dtype, cols * dtype.bits())?)
            }
            _ => Box::new(Matrix { floats: Floats::ieee(table)?, cols }),
        };
        Ok(Self { tables, groups, axis, lanes, entries })
    }

    /// Values of a table.
    fn table_len(&self) -> usize {
        self.entries * self.lanes
    }

    /// One value of a table.
    fn value(&self, table: usize, place: usize, staging: &mut Vec<u8>) -> Result<f32> {
        let mut value = Vec::with_capacity(1);
        self.tables
            .extend(table..table + 1, place..place + 1, staging, &mut value)?;
        Ok(value.first().copied().unwrap_or(f32::NAN))
    }
}

/// What a row of values is made of.
struct PaletteRow {
    /// Number of the row of codes.
    codes: usize,
    /// Number of the first of its tables.
    tables: usize,
    /// Which value of a code it has, unless lanes lie along rows.
    lane: usize,
}

impl PackedCodes<'_> {
    /// What row number `row` of the values is made of.
    fn row(&self, row: usize) -> PaletteRow {
        let mut out = PaletteRow { codes: row, tables: 0, lane: 0 };
        let Some(palette) = &self.palette else {
            return out;
        };
        out.codes = 0;
        // From the last dimension to the first, for each of which the row has an index.
        let (mut rest, mut codes_step) = (row, 1);
        let (_, of_cols) = palette.groups.last().copied().unwrap_or((1, 1));
        let mut tables_step = of_cols;
        for (d, &dim) in self.shape.iter().enumerate().rev().skip(1) {
            let lanes = if d == palette.axis { palette.lanes } else { 1 };
            let index = rest % (dim * lanes).max(1);
            rest /= (dim * lanes).max(1);
            if lanes > 1 {
                out.lane = index % lanes;
            }
            let (each, n) = palette.groups[d];
            out.codes += index / lanes * codes_step;
            out.tables += index / lanes / each * tables_step;
            codes_step *= dim;
            tables_step *= n;
        }
        out
    }

    /// Appends the values of `cols` of row number `row` to `out`.
    fn unpack_row(
        &self,
        row: usize,
        cols: &Range<usize>,
        scratch: &mut PaletteScratch,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let PaletteScratch { staging, codes, tables } = scratch;
        let row = self.row(row);
        let lanes = match &self.palette {
            Some(palette) if palette.axis + 1 == self.shape.len() => palette.lanes,
            _ => 1,
        };
        let of_codes = self.shape.last().copied().unwrap_or(1);
        let (from, to) = (cols.start / lanes, cols.end.div_ceil(lanes));
        codes.clear();
        let bits = Bits {
            part: &self.part,
            bits: self.bits,
            first: (row.codes * of_codes + from) * self.bits,
            n: to - from,
            is_msb_first: self.is_msb_first,
        };
        bits.read(staging, |code| codes.push(code))?;
        let Some(palette) = &self.palette else {
            out.extend(codes.iter().flat_map(|&code| (code as f32).to_le_bytes()));
            return Ok(());
        };
        let (each, _) = palette.groups.last().copied().unwrap_or((1, 1));
        let first = row.tables + from / each;
        let needed = first..row.tables + to.div_ceil(each).max(from / each + 1);
        let values = out.len() / size_of::<f32>() + cols.len();
        let is_loaded = tables.load(palette, needed, values, staging)?;
        let mut is_outside = false;
        for col in cols.clone() {
            let (code, lane) = match lanes {
                1 => (codes[col - from] as usize, row.lane),
                _ => (codes[col / lanes - from] as usize, col % lanes),
            };
            let table = row.tables + col / lanes / each - first;
            let place = code * palette.lanes + lane;
            let value = match code < palette.entries {
                true if is_loaded => tables.values[table * palette.table_len() + place],
                true => palette.value(first + table, place, staging)?,
                // Nothing is stored there.
                false => 0.0,
            };
            is_outside |= code > palette.entries;
            out.extend(value.to_le_bytes());
        }
        match is_outside {
            true => Err(AnamnesisError::parse(format!(
                "{}: a code is past the end of its table",
                InTensor(&self.part.name())
            ))),
            false => Ok(()),
        }
    }
}

/// What rows of a tile are unpacked with.
#[derive(Default)]
struct PaletteScratch {
    staging: Vec<u8>,
    codes: Vec<u32>,
    tables: LoadedTables,
}

/// Tables in memory.
#[derive(Default)]
struct LoadedTables {
    values: Vec<f32>,
    /// Which tables these are.
    range: Range<usize>,
    /// Values that have been loaded for the tile.
    count: usize,
}

/// Values of tables that are loaded for a tile in any case, and for each value of it. Rows may take one of
/// two large tables by turns: then each value that a code picks is read alone.
const FREE_LOADED: usize = 4096;
const LOADED_PER_VALUE: usize = 16;

impl LoadedTables {
    /// Loads the tables `range`, unless it has them, or they have too many values for the first `values` of the
    /// tile. Returns whether it has them.
    fn load(
        &mut self,
        palette: &PaletteTables<'_>,
        range: Range<usize>,
        values: usize,
        staging: &mut Vec<u8>,
    ) -> Result<bool> {
        if self.range == range {
            return Ok(true);
        }
        let count = range.len().saturating_mul(palette.table_len());
        let most = FREE_LOADED + LOADED_PER_VALUE * values;
        if self.count.saturating_add(count) > most {
            return Ok(false);
        }
        self.count += count;
        self.values.clear();
        let (tables, cols) = (&palette.tables, 0..palette.table_len());
        tables.extend(range.clone(), cols, staging, &mut self.values)?;
        self.range = range;
        Ok(true)
    }
}

impl Unpack for PackedCodes<'_> {
    fn unpack(&self, tile: &Tile, _staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let mut scratch = PaletteScratch::default();
        for row in tile.rows.clone() {
            self.unpack_row(row, &tile.cols, &mut scratch, out)?;
        }
        Ok(())
    }
}
