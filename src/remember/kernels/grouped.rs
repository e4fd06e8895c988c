//! Codes of one to sixteen bits in rows, with a scale, and often an offset, for each group of
//! values: the arithmetic of most schemes, which differ in names and layouts.
//!
//! A value is `v * s`, `v / s`, `(v - z) * s` or `v * s + b` in F32, the last with one rounding or
//! two, or `int8(v * s) * b`, where `v` is the value that the code stands for. A library that
//! computes in a narrower dtype rounds between two operations; so does the kernel if the output has
//! that dtype. Formulas: transformers `Fp8Dequantize`, compressed-tensors `_dequantize`, MLX
//! `mx.dequantize`, HQQ `Quantizer.dequantize`, quanto `QBitsDequantizer`.
//!
//! A tile of codes becomes F32 in the first-level cache, by the one loop that depends on the format
//! of the codes. A second loop, which all formats share, applies the formula to a group, rounds and
//! stores. LLVM vectorises it because the scale is constant in it, and because everything in it is
//! a select and no branch.

mod codes;
mod formula;

use std::ops::Range;

use self::codes::UnpackedCode;
pub(crate) use self::codes::{
    Bf16Code, CodeValue, E2M1, E2M3, E3M2, HalfCode, Int, LongInt, Minifloat, SignMagnitude,
    WideInt, WideMinifloat,
};
#[cfg(target_arch = "x86_64")]
use self::formula::FmaOp;
pub(crate) use self::formula::Formula;
#[cfg(any(feature = "lethe", test))]
pub(crate) use self::formula::fused;
use self::formula::{
    Arithmetic, DivideOp, FusedOp, ScaleOp, ScaleShiftOp, ScaleToInt8Op, ShiftScaleOp,
};
use crate::element::{Element, Out};
use crate::remember::kernels::packed::unpack_bytes;
use crate::remember::kernels::scale_grid::ScaleGrid;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{
    CODES_PER_LOOK_UP, InMemory, Kernel, Level, LookUp, Routine, dispatch, perform, zip,
};

/// Rows of codes with the scales and offsets of their groups.
pub(crate) struct GroupedRows<'a, V> {
    /// Codes of each row, `row_bytes` apart: a bit stream, least significant bit first, from a
    /// whole byte on.
    pub bytes: &'a [u8],
    pub row_bytes: usize,
    /// Stored bits of a code: one to eight, or those of two or four bytes if the format's codes have
    /// so many.
    pub bits: usize,
    /// Every code is below two to this power, whatever it is stored in.
    pub code_bits: usize,
    /// Rows and columns of the weight that `bytes` hold.
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    pub format: V,
    pub grid: ScaleGrid,
    /// Scales, and offsets unless the formula has none, of `scale_rows` × `scale_cols` of the grid.
    pub scales: &'a [f32],
    pub offsets: &'a [f32],
    pub scale_rows: Range<usize>,
    pub scale_cols: Range<usize>,
    pub formula: Formula,
    /// Whether the results of operations are rounded to the output's type, and not the last one
    /// alone.
    pub round: bool,
    /// A factor for each of `cols`, applied last; empty if there is none.
    pub columns: &'a [f32],
}

/// Values of a row that are made at once. A multiple of eight, so that a tile begins with a whole
/// byte at every width, and of the usual group sizes, so that their groups are not cut. Unpacked
/// codes and values are written so long before they are read that no load waits for a store.
const TILE: usize = 2048;

impl<V: CodeValue> GroupedRows<'_, V> {
    /// Decodes all rows.
    pub(crate) fn decode(&self, level: Level, mut out: Out<'_>) {
        let width = self.cols.len();
        let per_row = self.scale_cols.len();
        let entries = self.are_looked_up(level, &out).then(|| self.entries());
        let (mut codes, mut values) = ([0; TILE], [0.0; TILE]);
        for (r, bytes) in zip(self.rows.clone(), self.bytes.chunks(self.row_bytes.max(1))) {
            let first = (self.grid.row(r) - self.scale_rows.start) * per_row;
            let scales = &self.scales[first..first + per_row];
            // Formulas of one operation ignore the offset: any slice of this length will do.
            let offsets = match self.formula {
                Formula::Scale | Formula::Divide => scales,
                Formula::ShiftScale
                | Formula::ScaleShift
                | Formula::FusedScaleShift
                | Formula::ScaleToInt8 => &self.offsets[first..first + per_row],
            };
            for at in (0..width).step_by(TILE) {
                let n = TILE.min(width - at);
                let bytes = &bytes[at * self.bits / 8..];
                let codes = match self.bits {
                    8.. => &bytes[..n * self.bits / 8],
                    bits => {
                        let codes = &mut codes[..n];
                        perform(level, &mut Unpacked { bits, bytes, codes });
                        codes
                    }
                };
                let values = match &entries {
                    Some(entries) => TileValues::Entries { entries, codes },
                    None => {
                        let (format, values) = (self.format, &mut values[..n]);
                        perform(level, &mut Widened { codes: V::Code::of(codes), format, values });
                        TileValues::Widened(values)
                    }
                };
                let tile = GroupedTile {
                    values,
                    start: self.cols.start + at,
                    scales,
                    offsets,
                    first_scale: self.scale_cols.start,
                    group: self.grid.block_cols,
                    formula: self.formula,
                    round: self.round,
                    columns: self.columns.get(at..).unwrap_or_default(),
                };
                let (first, rest) = out.split_at(n);
                dispatch(level, &tile, first);
                out = rest;
            }
        }
    }

    /// Whether values of two bytes are looked up: a long group has only as many values as there are
    /// codes. In registers that pays always, in memory if there is more to do than one rounding.
    fn are_looked_up(&self, level: Level, out: &Out<'_>) -> bool {
        let has_table = self.code_bits <= 4
            && self.bits <= 8
            && self.grid.block_cols >= CODES_PER_LOOK_UP
            && self.columns.is_empty()
            && !matches!(out, Out::F32(_));
        let is_slow = self.round || self.formula == Formula::FusedScaleShift;
        let in_registers = cfg!(target_arch = "x86_64") && level > Level::Baseline;
        has_table && (in_registers || is_slow)
    }

    /// The values of the first codes.
    fn entries(&self) -> [f32; 16] {
        const CODES: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let mut values = [0.0; 16];
        Widened { codes: V::Code::of(&CODES), format: self.format, values: &mut values }.run();
        values
    }
}

/// Codes of less than a byte, unpacked into a byte each.
struct Unpacked<'a> {
    bits: usize,
    bytes: &'a [u8],
    codes: &'a mut [u8],
}

impl Routine for Unpacked<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        unpack_bytes(self.bits, self.bytes, self.codes);
    }
}

/// What codes stand for.
struct Widened<'a, V: CodeValue> {
    codes: &'a [V::Code],
    format: V,
    values: &'a mut [f32],
}

impl<V: CodeValue> Routine for Widened<'_, V> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        for (value, &code) in zip(&mut self.values[..], self.codes) {
            *value = self.format.value(code);
        }
    }
}

/// The values of a tile before its scales are applied.
enum TileValues<'a> {
    Widened(&'a [f32]),
    /// Codes of the entries.
    Entries {
        entries: &'a [f32; 16],
        codes: &'a [u8],
    },
}

/// Values of a row, and the numbers that are applied to them.
struct GroupedTile<'a> {
    values: TileValues<'a>,
    /// The column of the first value.
    start: usize,
    /// Scales and offsets of the row, from the group `first_scale` on.
    scales: &'a [f32],
    offsets: &'a [f32],
    first_scale: usize,
    /// Columns of a group.
    group: usize,
    formula: Formula,
    round: bool,
    /// Factors of the columns from `start` on, if there are any.
    columns: &'a [f32],
}

impl Kernel for GroupedTile<'_> {
    const ROUNDS_ON_THE_WAY: bool = true;

    fn is_rounded_last(&self) -> bool {
        !self.round && matches!(self.values, TileValues::Widened(_))
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.apply_formula::<E, _, FusedOp>(InMemory, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.apply_formula::<E, _, FmaOp>(avx2, out);
    }
}

impl GroupedTile<'_> {
    /// The formula is chosen here and not for each value: every arm is a loop of its own. `F` is
    /// the operation of [`Formula::FusedScaleShift`].
    #[inline(always)]
    fn apply_formula<E: Element, L: LookUp, F: Arithmetic>(&self, look_up: L, out: &mut [E]) {
        match (self.formula, self.round) {
            (Formula::Scale, _) => self.apply::<E, L, ScaleOp>(look_up, out),
            (Formula::Divide, _) => self.apply::<E, L, DivideOp>(look_up, out),
            (Formula::ShiftScale, false) => self.apply::<E, L, ShiftScaleOp<false>>(look_up, out),
            (Formula::ShiftScale, true) => self.apply::<E, L, ShiftScaleOp<true>>(look_up, out),
            (Formula::ScaleShift, false) => self.apply::<E, L, ScaleShiftOp<false>>(look_up, out),
            (Formula::ScaleShift, true) => self.apply::<E, L, ScaleShiftOp<true>>(look_up, out),
            (Formula::FusedScaleShift, _) => self.apply::<E, L, F>(look_up, out),
            (Formula::ScaleToInt8, _) => self.apply::<E, L, ScaleToInt8Op>(look_up, out),
        }
    }

    #[inline(always)]
    fn apply<E: Element, L: LookUp, A: Arithmetic>(&self, look_up: L, out: &mut [E]) {
        match self.values {
            TileValues::Widened(values) if self.group == 1 => {
                self.apply_each::<E, A>(values, out);
            }
            TileValues::Widened(values) => self.apply_groups(out, |run, numbers, out| {
                let values = &values[run.clone()];
                match self.columns.get(run) {
                    Some(factors) => apply_group_factors::<E, A>(values, numbers, factors, out),
                    None => apply_group::<E, A>(values, numbers, out),
                }
            }),
            TileValues::Entries { entries, codes } => {
                self.apply_groups(out, |run, numbers, out| {
                    let mut table = [E::from_f32(0.0); 16];
                    apply_group::<E, A>(entries, numbers, &mut table);
                    look_up.pick(&table, &codes[run], out);
                });
            }
        }
    }

    /// A scale for each column is read along with its value.
    #[inline(always)]
    fn apply_each<E: Element, A: Arithmetic>(&self, values: &[f32], out: &mut [E]) {
        let first = self.start - self.first_scale;
        let numbers = zip(self.scales[first..].iter(), &self.offsets[first..]);
        let values = zip(values.iter(), numbers);
        if self.columns.is_empty() {
            for (out, (&value, (&scale, &offset))) in zip(&mut out[..], values) {
                *out = E::from_f32(A::apply::<E>(value, scale, offset));
            }
        } else {
            for ((out, (&value, (&scale, &offset))), &factor) in
                zip(zip(&mut out[..], values), self.columns)
            {
                let value = A::apply::<E>(value, scale, offset);
                *out = E::from_f32(column_value::<E, A>(value) * factor);
            }
        }
    }

    /// Calls `apply` for the part of each group in the tile: its columns, scale and offset, and
    /// output.
    #[inline(always)]
    fn apply_groups<E: Element>(
        &self,
        mut out: &mut [E],
        mut apply: impl FnMut(Range<usize>, (f32, f32), &mut [E]),
    ) {
        let first = self.start / self.group - self.first_scale;
        // The first group may begin before the tile, and the last end behind it.
        let mut left = self.group - self.start % self.group;
        let mut at = 0;
        for (&scale, &offset) in zip(self.scales[first..].iter(), &self.offsets[first..]) {
            let n = left.min(out.len());
            let (target, tail) = out.split_at_mut(n);
            apply(at..at + n, (scale, offset), target);
            (out, left, at) = (tail, self.group, at + n);
            // Further groups belong to the next tile of the row.
            if out.is_empty() {
                break;
            }
        }
    }
}

/// The value that the factor of a column multiplies: it is rounded to the output's type where the
/// library computes in that.
#[inline(always)]
fn column_value<E: Element, A: Arithmetic>(value: f32) -> f32 {
    if A::ROUNDS { E::rounded(value) } else { value }
}

/// Values that share a scale.
#[inline(always)]
fn apply_group<E: Element, A: Arithmetic>(
    values: &[f32],
    (scale, offset): (f32, f32),
    out: &mut [E],
) {
    for (out, &value) in zip(&mut out[..], values) {
        *out = E::from_f32(A::apply::<E>(value, scale, offset));
    }
}

/// As [`apply_group`], times the factors of their columns.
#[inline(always)]
fn apply_group_factors<E: Element, A: Arithmetic>(
    values: &[f32],
    (scale, offset): (f32, f32),
    factors: &[f32],
    out: &mut [E],
) {
    for ((out, &value), &factor) in zip(zip(&mut out[..], values), factors) {
        let value = A::apply::<E>(value, scale, offset);
        *out = E::from_f32(column_value::<E, A>(value) * factor);
    }
}
