//! Codes of one to eight bits in rows, with a scale, and often an offset, for each group of values.
//!
//! Most schemes are this and differ in names and layouts: `v * s`, `(v - z) * s` or `v * s + b` in F32, where `v`
//! is what the code stands for. Libraries that round in between are followed where the output has their own dtype.

use std::ops::Range;

use crate::element::Element;
use crate::kernels::remember::fp8::{Code, E4M3, E4M3Fnuz, E5M2, ScaleGrid, finite};
use crate::kernels::remember::packed::{CHUNK, unpack};
use crate::simd::Kernel;

/// What a code stands for.
pub(crate) trait Number: Copy + Sync {
    fn widen(self, code: u32) -> f32;
}

/// An integer: `(code ^ flip) - offset`. Flipping the sign bit turns two's complement into an offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Int {
    pub flip: u32,
    pub offset: f32,
}

impl Int {
    pub(crate) const UNSIGNED: Self = Self {
        flip: 0,
        offset: 0.0,
    };

    /// Stored with half of its range added.
    pub(crate) fn offset_binary(bits: usize) -> Self {
        Self {
            flip: 0,
            offset: (1u32 << (bits - 1)) as f32,
        }
    }

    /// Two's complement.
    pub(crate) fn signed(bits: usize) -> Self {
        Self {
            flip: 1 << (bits - 1),
            offset: (1u32 << (bits - 1)) as f32,
        }
    }
}

impl Number for Int {
    #[inline(always)]
    fn widen(self, code: u32) -> f32 {
        (code ^ self.flip) as i32 as f32 - self.offset
    }
}

/// FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, times `factor`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct E2M1 {
    pub factor: f32,
    /// Whether code 8 is a plain zero rather than a negative one.
    pub plain_zero: bool,
}

impl Number for E2M1 {
    #[inline(always)]
    fn widen(self, code: u32) -> f32 {
        // The sign moves to where an eight-bit float has it.
        let value = finite::<1, 1>((code & 7 | (code & 8) << 4) as u8) * self.factor;
        if self.plain_zero { value + 0.0 } else { value }
    }
}

/// Four bits, a sign and a magnitude in quarters, with a negative zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quarters;

impl Number for Quarters {
    #[inline(always)]
    fn widen(self, code: u32) -> f32 {
        let magnitude = (code & 7) as i32 as f32 * 0.25;
        f32::from_bits(magnitude.to_bits() | (code & 8) << 28)
    }
}

/// FP6 with three bits of mantissa.
#[derive(Debug, Clone, Copy)]
pub(crate) struct E2M3;

impl Number for E2M3 {
    #[inline(always)]
    fn widen(self, code: u32) -> f32 {
        finite::<3, 1>((code & 31 | (code & 32) << 2) as u8)
    }
}

/// FP6 with two bits of mantissa.
#[derive(Debug, Clone, Copy)]
pub(crate) struct E3M2;

impl Number for E3M2 {
    #[inline(always)]
    fn widen(self, code: u32) -> f32 {
        finite::<2, 3>((code & 31 | (code & 32) << 2) as u8)
    }
}

/// FP8 with three bits of mantissa.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fp8E4M3;

impl Number for Fp8E4M3 {
    #[inline(always)]
    fn widen(self, code: u32) -> f32 {
        E4M3::widen(code as u8)
    }
}

/// FP8 with two bits of mantissa.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fp8E5M2;

impl Number for Fp8E5M2 {
    #[inline(always)]
    fn widen(self, code: u32) -> f32 {
        E5M2::widen(code as u8)
    }
}

/// FP8 of AMD's: one more exponent, no negative zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fp8E4M3Fnuz;

impl Number for Fp8E4M3Fnuz {
    #[inline(always)]
    fn widen(self, code: u32) -> f32 {
        E4M3Fnuz::widen(code as u8)
    }
}

/// How values, scales and offsets come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Formula {
    /// `v * s`.
    Scale,
    /// `v / s`.
    Divide,
    /// `(v - z) * s`.
    ShiftScale,
    /// `v * s + b`.
    ScaleShift,
}

/// Rows of codes, `BITS` wide, least significant bit first, each row from a whole byte on.
pub(crate) struct Rows<'a, const BITS: usize, N> {
    pub bytes: &'a [u8],
    pub row_bytes: usize,
    /// Rows and columns that `bytes` are.
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    pub number: N,
    pub grid: ScaleGrid,
    /// Scales, and offsets unless the formula has none, of `scale_rows` × `scale_cols` of the grid.
    pub scales: &'a [f32],
    pub offsets: &'a [f32],
    pub scale_rows: Range<usize>,
    pub scale_cols: Range<usize>,
    pub formula: Formula,
    /// Whether the first of two operations is rounded to the output's type.
    pub round: bool,
    /// A factor for each column, applied last; or none.
    pub columns: &'a [f32],
}

/// Values that are unpacked before any is scaled: whole chunks.
const TILE: usize = 16 * CHUNK;

impl<const BITS: usize, N: Number> Kernel for Rows<'_, BITS, N> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let width = self.cols.len().max(1);
        let per_row = self.scale_cols.len();
        for ((r, out), bytes) in self
            .rows
            .clone()
            .zip(out.chunks_exact_mut(width))
            .zip(self.bytes.chunks(self.row_bytes.max(1)))
        {
            let first = (self.grid.row(r) - self.scale_rows.start) * per_row;
            let scales = &self.scales[first..first + per_row];
            let plain = matches!(self.formula, Formula::Scale | Formula::Divide);
            let offsets = if plain {
                scales
            } else {
                &self.offsets[first..first + per_row]
            };
            let mut values = [0.0; TILE];
            for (i, out) in out.chunks_mut(TILE).enumerate() {
                let values = &mut values[..out.len().next_multiple_of(CHUNK)];
                self.unpack(&bytes[i * TILE / 8 * BITS..], values);
                let values = &mut values[..out.len()];
                self.scale::<E>(i * TILE, values, scales, offsets);
                if !self.columns.is_empty() {
                    values
                        .iter_mut()
                        .zip(&self.columns[i * TILE..])
                        .for_each(|(v, &c)| *v *= c);
                }
                E::store(values, out);
            }
        }
    }
}

impl<const BITS: usize, N: Number> Rows<'_, BITS, N> {
    /// The values of as many chunks as `out` has.
    #[inline(always)]
    fn unpack(&self, bytes: &[u8], out: &mut [f32]) {
        for (i, out) in out.as_chunks_mut::<CHUNK>().0.iter_mut().enumerate() {
            let bytes = &bytes[(i * 4 * BITS).min(bytes.len())..];
            let mut words = [0; BITS];
            if let Some(whole) = bytes.get(..4 * BITS) {
                for (word, bytes) in words.iter_mut().zip(whole.as_chunks().0) {
                    *word = u32::from_le_bytes(*bytes);
                }
            } else {
                for (k, &byte) in bytes.iter().enumerate() {
                    words[k / 4] |= u32::from(byte) << (k % 4 * 8);
                }
            }
            let codes = unpack::<BITS>(&words);
            for (value, code) in out.iter_mut().zip(codes) {
                *value = self.number.widen(code);
            }
        }
    }

    /// Scales the values of a row from its column `at` on.
    #[inline(always)]
    fn scale<E: Element>(&self, at: usize, values: &mut [f32], scales: &[f32], offsets: &[f32]) {
        let width = self.grid.block_cols;
        if width == 1 {
            for ((v, &s), &o) in values.iter_mut().zip(&scales[at..]).zip(&offsets[at..]) {
                *v = self.one::<E>(*v, s, o);
            }
            return;
        }
        let start = self.cols.start + at;
        let (mut done, mut group) = (0, start / width - self.scale_cols.start);
        let mut left = width - start % width;
        while done < values.len() {
            let n = left.min(values.len() - done);
            let (s, o) = (scales[group], offsets[group]);
            for v in &mut values[done..done + n] {
                *v = self.one::<E>(*v, s, o);
            }
            (done, group, left) = (done + n, group + 1, width);
        }
    }

    #[inline(always)]
    fn one<E: Element>(&self, v: f32, s: f32, o: f32) -> f32 {
        let between = |x: f32| {
            if self.round {
                E::from_f32(x).to_f32()
            } else {
                x
            }
        };
        match self.formula {
            Formula::Scale => v * s,
            Formula::Divide => v / s,
            Formula::ShiftScale => between(v - o) * s,
            Formula::ScaleShift => between(v * s) + o,
        }
    }
}
