//! Codes of one to sixteen bits in rows, with a scale, and often an offset, for each group of
//! values: the arithmetic of most schemes, which differ in names and layouts.
//!
//! A value is `v * s`, `v / s`, `(v - z) * s` or `v * s + b` in F32, the last with one rounding or
//! two, or `int8(v * s) * b`, where `v` is the value that the code stands for. A library that
//! computes in a narrower dtype rounds between two operations; so does the kernel if the output has
//! that dtype. Formulas: transformers `Fp8Dequantize`, compressed-tensors `_dequantize`, MLX
//! `mx.dequantize`, HQQ `Quantizer.dequantize`, quanto `QBitsDequantizer`.
//!
//! Codes narrower than a byte are first unpacked into bytes, a few hundred at a time. Then one loop
//! over a group takes a code to its value, applies the formula, rounds and stores. LLVM vectorises
//! that loop because the scale is constant in it, and because everything in it is a select and no
//! branch.

mod codes;
mod formula;

use std::ops::Range;

use self::codes::UnpackedCode;
pub(crate) use self::codes::{
    Bf16Code, CodeValue, E2M1, E2M3, E3M2, HalfCode, Int, Minifloat, SignMagnitude, WideInt,
    WideMinifloat,
};
#[cfg(target_arch = "x86_64")]
use self::formula::FmaOp;
pub(crate) use self::formula::Formula;
#[cfg(test)]
pub(super) use self::formula::fused;
use self::formula::{
    Arithmetic, DivideOp, FusedOp, ScaleOp, ScaleShiftOp, ScaleToInt8Op, ShiftScaleOp,
};
use crate::element::Element;
use crate::kernels::remember::scale_grid::ScaleGrid;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{CODES_PER_LOOK_UP, InMemory, Kernel, LookUp};

/// Rows of codes with the scales and offsets of their groups.
pub(crate) struct GroupedRows<'a, V> {
    /// Codes of each row, `row_bytes` apart: a bit stream, least significant bit first, from a
    /// whole byte on.
    pub bytes: &'a [u8],
    pub row_bytes: usize,
    /// Stored bits of a code: one to eight, or sixteen if the format's codes are two bytes.
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

/// Codes narrower than a byte that are unpacked before any becomes a value. A multiple of eight, so
/// that a tile begins with a whole byte at every width, and of the usual group sizes, so that their
/// groups are not cut. The bytes lie in the first-level cache, and are written so long before they
/// are read that no load waits for a store.
const BUFFER_VALUES: usize = 512;

/// Shortest group of 4-bit codes for which a table of its 16 values in memory pays, if an
/// intermediate result is rounded too. With one rounding the vectorised loop is faster than
/// look-ups. Slow arithmetic has a table for every group of at least as many codes as the table has
/// entries.
const MIN_TABLE: usize = 64;

impl<V: CodeValue> Kernel for GroupedRows<'_, V> {
    const HAS_AVX512: bool = true;

    fn gains_from_avx512<E: Element>(&self) -> bool {
        let has_tables =
            self.formula == Formula::FusedScaleShift || size_of::<E>() == 2 && self.are_looked_up();
        !has_tables && (V::IS_FLOAT || size_of::<E>() == 2)
    }

    fn is_rounded_last(&self) -> bool {
        !self.round && !self.are_looked_up()
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.decode_rows::<E, _, FusedOp>(InMemory, out);
    }

    /// A group has only as many values as there are codes. For outputs of two bytes those of codes
    /// of up to four bits are rounded once, and the codes look up the results in registers.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.decode_rows::<E, _, FmaOp>(avx2, out);
    }
}

impl<V: CodeValue> GroupedRows<'_, V> {
    /// Whether values of two bytes are looked up in registers, where the CPU can: if groups are so
    /// long that a table pays.
    fn are_looked_up(&self) -> bool {
        let has_tables = self.code_bits <= 4 && self.grid.block_cols >= CODES_PER_LOOK_UP;
        cfg!(target_arch = "x86_64") && has_tables && self.columns.is_empty()
    }

    /// Decodes all rows. Where values are looked up, `look_up` does it. `F` is the operation of
    /// [`Formula::FusedScaleShift`].
    #[inline(always)]
    fn decode_rows<E: Element, L: LookUp, F: Arithmetic>(&self, look_up: L, out: &mut [E]) {
        let width = self.cols.len().max(1);
        let per_row = self.scale_cols.len();
        // Codes of whole bytes are decoded from where they are, a whole row at once.
        let tile = if self.bits >= 8 { width } else { BUFFER_VALUES };
        let mut unpacked = [0; BUFFER_VALUES];
        for ((r, out), bytes) in self
            .rows
            .clone()
            .zip(out.chunks_exact_mut(width))
            .zip(self.bytes.chunks(self.row_bytes.max(1)))
        {
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
            for (at, out) in (0..).step_by(tile).zip(out.chunks_mut(tile)) {
                let bytes = &bytes[at * self.bits / 8..];
                let codes = V::Code::first_of(self.bits, bytes, out.len(), &mut unpacked);
                let tile = CodeTile { at, codes, scales, offsets };
                self.decode_tile::<E, L, F>(look_up, tile, out);
            }
        }
    }

    /// Decodes a tile. The formula is chosen here and not for each value: every arm is a loop of
    /// its own.
    #[inline(always)]
    fn decode_tile<E: Element, L: LookUp, F: Arithmetic>(
        &self,
        look_up: L,
        tile: CodeTile<'_, V::Code>,
        out: &mut [E],
    ) {
        match (self.formula, self.round) {
            (Formula::Scale, _) => self.decode::<E, L, ScaleOp>(look_up, tile, out),
            (Formula::Divide, _) => self.decode::<E, L, DivideOp>(look_up, tile, out),
            (Formula::ShiftScale, false) => {
                self.decode::<E, L, ShiftScaleOp<false>>(look_up, tile, out);
            }
            (Formula::ShiftScale, true) => {
                self.decode::<E, L, ShiftScaleOp<true>>(look_up, tile, out);
            }
            (Formula::ScaleShift, false) => {
                self.decode::<E, L, ScaleShiftOp<false>>(look_up, tile, out);
            }
            (Formula::ScaleShift, true) => {
                self.decode::<E, L, ScaleShiftOp<true>>(look_up, tile, out);
            }
            (Formula::FusedScaleShift, _) => self.decode::<E, L, F>(look_up, tile, out),
            (Formula::ScaleToInt8, _) => self.decode::<E, L, ScaleToInt8Op>(look_up, tile, out),
        }
    }
}

/// The value that the factor of a column multiplies: it is rounded to the output's type where the
/// library computes in that.
#[inline(always)]
fn column_value<E: Element, A: Arithmetic>(value: f32) -> f32 {
    if A::ROUNDS { E::rounded(value) } else { value }
}

/// Unpacked codes of a row.
#[derive(Clone, Copy)]
struct CodeTile<'a, C> {
    /// The first column, counted from the first that is loaded.
    at: usize,
    codes: &'a [C],
    /// Scales and offsets of the whole row.
    scales: &'a [f32],
    offsets: &'a [f32],
}

impl<V: CodeValue> GroupedRows<'_, V> {
    /// Decodes a tile, group by group.
    #[inline(always)]
    fn decode<E: Element, L: LookUp, A: Arithmetic>(
        &self,
        look_up: L,
        tile: CodeTile<'_, V::Code>,
        mut out: &mut [E],
    ) {
        let CodeTile { at, mut codes, scales, offsets } = tile;
        let mut columns = self.columns.get(at..).unwrap_or_default();
        let width = self.grid.block_cols;
        // A scale for each column is read along with its code.
        if width == 1 {
            let numbers = scales[at..].iter().zip(&offsets[at..]);
            if columns.is_empty() {
                for ((out, &code), (&scale, &offset)) in out.iter_mut().zip(codes).zip(numbers) {
                    *out = E::from_f32(A::apply::<E>(self.format.value(code), scale, offset));
                }
            } else {
                for (((out, &code), (&scale, &offset)), &factor) in
                    out.iter_mut().zip(codes).zip(numbers).zip(columns)
                {
                    let value = A::apply::<E>(self.format.value(code), scale, offset);
                    *out = E::from_f32(column_value::<E, A>(value) * factor);
                }
            }
            return;
        }
        let start = self.cols.start + at;
        let first = start / width - self.scale_cols.start;
        // The first group may begin before the tile, and the last end behind it.
        let mut left = width - start % width;
        for (&scale, &offset) in scales[first..].iter().zip(&offsets[first..]) {
            let n = left.min(out.len());
            let (group, rest) = codes.split_at(n);
            let (target, tail) = out.split_at_mut(n);
            if columns.is_empty() {
                self.group::<E, L, A>(look_up, group, (scale, offset), target);
            } else {
                let (factors, rest) = columns.split_at(n);
                for ((out, &code), &factor) in target.iter_mut().zip(group).zip(factors) {
                    let value = A::apply::<E>(self.format.value(code), scale, offset);
                    *out = E::from_f32(column_value::<E, A>(value) * factor);
                }
                columns = rest;
            }
            (codes, out, left) = (rest, tail, width);
            // Further groups belong to the next tile of the row.
            if out.is_empty() {
                break;
            }
        }
    }

    /// The values of the codes below `N` with a scale and an offset.
    #[inline(always)]
    fn table<E: Element, A: Arithmetic, const N: usize>(
        &self,
        (scale, offset): (f32, f32),
    ) -> [E; N] {
        let mut table = [E::from_f32(0.0); N];
        for (number, value) in (0u32..).zip(&mut table) {
            let code = V::Code::from_number(number as u8);
            *value = E::from_f32(A::apply::<E>(self.format.value(code), scale, offset));
        }
        table
    }

    /// Decodes codes below `N`, a power of two, that share a scale: each looks up its value.
    #[inline(always)]
    fn look_up<E: Element, A: Arithmetic, const N: usize>(
        &self,
        codes: &[V::Code],
        numbers: (f32, f32),
        out: &mut [E],
    ) {
        let table = self.table::<E, A, N>(numbers);
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = table[code.number() & (N - 1)];
        }
    }

    /// Decodes codes that share a scale.
    #[inline(always)]
    fn group<E: Element, L: LookUp, A: Arithmetic>(
        &self,
        look_up: L,
        codes: &[V::Code],
        (scale, offset): (f32, f32),
        out: &mut [E],
    ) {
        let is_short = size_of::<E>() == 2 && self.code_bits <= 4;
        if L::IN_REGISTERS
            && is_short
            && out.len() >= CODES_PER_LOOK_UP
            && let Some(codes) = V::Code::bytes(codes)
        {
            let table = self.table::<E, A, 16>((scale, offset));
            return look_up.pick(&table, codes, out);
        }
        let is_long = match A::IS_SLOW {
            true => out.len() >> self.code_bits != 0,
            false => A::ROUNDS && size_of::<E>() == 2 && out.len() >= MIN_TABLE,
        };
        match self.code_bits {
            0..=4 if is_long => return self.look_up::<E, A, 16>(codes, (scale, offset), out),
            5..=6 if is_long && A::IS_SLOW => {
                return self.look_up::<E, A, 64>(codes, (scale, offset), out);
            }
            7..=8 if is_long && A::IS_SLOW => {
                return self.look_up::<E, A, 256>(codes, (scale, offset), out);
            }
            _ => {}
        }
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = E::from_f32(A::apply::<E>(self.format.value(code), scale, offset));
        }
    }
}
