//! The shared kernel in all its widths, meanings and formulas, against a twin that reads a code bit
//! by bit.

use half::{bf16, f16};

use super::{bytes, each_level, scales};
use crate::remember::kernels::fp8::{E4M3, E4M3Fnuz, E5M2};
use crate::remember::kernels::grouped::{
    Bf16Code, CodeValue, E2M1, E2M3, E3M2, Formula, GroupedRows, HalfCode, Int, Minifloat,
    SignMagnitude, WideInt, WideMinifloat, fused,
};
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::test_utils::{effort, miri_or};

const ROWS: usize = miri_or(4, 7);
/// Whole chunks to begin with, then a ragged end, in more than one tile of the kernel.
const COLS: usize = 32 * miri_or(2, 67) + 21;

/// Values of a narrow float by definition: all exponents finite.
fn float(code: u32, mantissa: u32, exponent: u32, bias: i32) -> f32 {
    let (m, e) = (code & ((1 << mantissa) - 1), code >> mantissa & ((1 << exponent) - 1));
    let part = f64::from(m) / f64::from(1 << mantissa);
    let value = if e == 0 {
        part * 2f64.powi(1 - bias)
    } else {
        (1.0 + part) * 2f64.powi(e as i32 - bias)
    };
    (if code >> (mantissa + exponent) & 1 == 1 {
        -value
    } else {
        value
    }) as f32
}

/// One case: how scales lie, what is computed, and where the tile begins.
#[derive(Clone, Copy)]
struct Case {
    group: usize,
    block_rows: usize,
    formula: Formula,
    round: bool,
    first_col: usize,
    columns: bool,
}

const CASES: [Case; 15] = {
    let plain = Case {
        group: 32,
        block_rows: 1,
        formula: Formula::Scale,
        round: false,
        first_col: 0,
        columns: false,
    };
    [
        plain,
        Case { group: 48, first_col: 32, columns: true, ..plain },
        Case { group: 64, formula: Formula::Divide, ..plain },
        Case { group: COLS, block_rows: 3, ..plain },
        Case { group: 1, block_rows: 2, first_col: 64, ..plain },
        Case { group: 64, formula: Formula::ShiftScale, ..plain },
        Case { group: 64, formula: Formula::ScaleShift, round: true, ..plain },
        Case { group: 96, formula: Formula::ShiftScale, round: true, first_col: 32, ..plain },
        Case { group: 1, formula: Formula::ScaleShift, round: true, columns: true, ..plain },
        Case { group: 80, formula: Formula::ShiftScale, round: true, columns: true, ..plain },
        Case { group: 96, formula: Formula::FusedScaleShift, first_col: 32, ..plain },
        Case { group: COLS, formula: Formula::FusedScaleShift, ..plain },
        Case { group: 1, formula: Formula::FusedScaleShift, ..plain },
        Case { group: 128, formula: Formula::ScaleToInt8, ..plain },
        Case { group: 1, formula: Formula::ScaleToInt8, columns: true, ..plain },
    ]
};

fn check<const BITS: usize, V: CodeValue>(format: V, twin: impl Fn(u32) -> f32) {
    let row_bytes = (COLS * BITS).div_ceil(8);
    check_stored(BITS, BITS, format, &bytes(ROWS * row_bytes), twin);
}

/// Every case with the codes `stored`, rows of whole bytes.
fn check_stored<V: CodeValue>(
    bits: usize,
    code_bits: usize,
    format: V,
    stored: &[u8],
    twin: impl Fn(u32) -> f32,
) {
    let row_bytes = (COLS * bits).div_ceil(8);
    let code = |r: usize, c: usize| -> u32 {
        let bit = |i: usize| u32::from(stored[r * row_bytes + i / 8] >> (i % 8) & 1);
        (0..bits).map(|b| bit(c * bits + b) << b).sum()
    };
    let twins: Vec<f32> = (0..ROWS * COLS)
        .map(|i| twin(code(i / COLS, i % COLS)))
        .collect();
    // Under Miri, other cases for codes of another width.
    let step = miri_or(5, effort([3, 1, 1]));
    for case in CASES.into_iter().skip(bits % step).step_by(step) {
        let Case { group, block_rows, formula, round, first_col, columns } = case;
        let grid_cols = COLS.div_ceil(group);
        let grid = ScaleGrid {
            matrix_rows: ROWS,
            block_rows,
            block_cols: group,
            rows_per_matrix: ROWS.div_ceil(block_rows),
            cols: grid_cols,
        };
        let scale_cols = first_col / group..grid_cols;
        let (s, z) = (scales(ROWS * grid_cols), scales(ROWS * grid_cols + 3)[3..].to_vec());
        let pick = |values: &[f32]| -> Vec<f32> {
            let rows = 0..ROWS.div_ceil(block_rows);
            rows.flat_map(|r| values[r * grid_cols..][scale_cols.clone()].to_vec())
                .collect()
        };
        let start = first_col * bits / 8;
        let tile: Vec<u8> = stored
            .chunks(row_bytes)
            .flat_map(|row| row[start..].to_vec())
            .collect();
        let factors = scales(COLS);
        let kernel = GroupedRows {
            bytes: &tile,
            row_bytes: row_bytes - start,
            bits,
            code_bits,
            rows: 0..ROWS,
            cols: first_col..COLS,
            format,
            grid,
            scales: &pick(&s),
            offsets: &if matches!(formula, Formula::Scale | Formula::Divide) {
                vec![]
            } else {
                pick(&z)
            },
            scale_rows: 0..ROWS.div_ceil(block_rows),
            scale_cols: scale_cols.clone(),
            formula,
            round,
            columns: if columns { &factors[first_col..] } else { &[] },
        };
        let want = |i: usize, between: &dyn Fn(f32) -> f32| {
            let (r, c) = (i / (COLS - first_col), first_col + i % (COLS - first_col));
            let at = r / block_rows * grid_cols + c / group;
            let between = |x: f32| if round { between(x) } else { x };
            let twin = twins[r * COLS + c];
            let value = match formula {
                Formula::Scale => twin * s[at],
                Formula::ShiftScale => between(twin - z[at]) * s[at],
                Formula::ScaleShift => between(twin * s[at]) + z[at],
                Formula::FusedScaleShift => twin.mul_add(s[at], z[at]),
                Formula::Divide => twin / s[at],
                Formula::ScaleToInt8 => {
                    (twin * s[at]).round_ties_even().clamp(-128.0, 127.0) * z[at]
                }
            };
            if columns {
                between(value) * factors[c]
            } else {
                value
            }
        };
        compare(&kernel, ROWS * (COLS - first_col), want);
    }
}

/// Every level and type; what is rounded in between is rounded to the output's type.
fn compare<V: CodeValue>(
    kernel: &GroupedRows<'_, V>,
    n: usize,
    want: impl Fn(usize, &dyn Fn(f32) -> f32) -> f32,
) {
    let bits = kernel.bits;
    let as_f16 = |x: f32| f16::from_f32_const(x).to_f32_const();
    let as_bf16 = |x: f32| bf16::from_f32(x).to_f32();
    let singles: Vec<f32> = (0..n).map(|i| want(i, &|x| x)).collect();
    let halves: Vec<f32> = (0..n).map(|i| as_f16(want(i, &as_f16))).collect();
    let brains: Vec<f32> = (0..n).map(|i| as_bf16(want(i, &as_bf16))).collect();
    each_level(kernel, n, |level, single, half, brain| {
        for i in 0..n {
            let same = |got: f32, want: f32| {
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan()
            };
            assert!(same(single[i], singles[i]), "{bits} bits F32 {level:?} [{i}]");
            assert!(same(half[i].to_f32_const(), halves[i]), "{bits} bits F16 {level:?} [{i}]");
            assert!(same(brain[i].to_f32(), brains[i]), "{bits} bits BF16 {level:?} [{i}]");
        }
    });
}

#[test]
fn integers() {
    fn signed(code: u32, bits: u32) -> f32 {
        let negative = code >> (bits - 1) & 1 == 1;
        (code as i32 - if negative { 1 << bits } else { 0 }) as f32
    }
    check::<1, _>(Int::UNSIGNED, |c| c as f32);
    check::<2, _>(Int::offset_binary(2), |c| c as f32 - 2.0);
    check::<3, _>(Int::signed(3), |c| signed(c, 3));
    check::<4, _>(Int::signed(4), |c| signed(c, 4));
    check::<5, _>(Int::offset_binary(5), |c| c as f32 - 16.0);
    check::<6, _>(Int::UNSIGNED, |c| c as f32);
    check::<7, _>(Int::signed(7), |c| signed(c, 7));
    check::<8, _>(Int::signed(8), |c| signed(c, 8));
    let nibbles: Vec<u8> = bytes(ROWS * COLS).iter().map(|byte| byte & 15).collect();
    check_stored(8, 4, Int::signed(4), &nibbles, |c| signed(c, 4));
}

/// Codes of two bytes each, of which the highest bits are zeros if a code has fewer.
#[test]
fn wide_codes() {
    fn sized<V: CodeValue>(bits: usize, format: V, twin: impl Fn(u32) -> f32) {
        let stored = bytes(2 * ROWS * COLS);
        let codes = stored.as_chunks().0.iter();
        let codes = codes.map(|&code| u16::from_le_bytes(code) >> (16 - bits));
        let stored: Vec<u8> = codes.flat_map(u16::to_le_bytes).collect();
        check_stored(16, bits, format, &stored, twin);
    }
    sized(9, WideInt::UNSIGNED, |c| c as f32);
    sized(12, WideInt::offset_binary(12), |c| c as f32 - 2048.0);
    sized(16, WideInt::UNSIGNED, |c| c as f32);
    sized(16, WideInt::I16, |c| f32::from(c as i16));
    for (bits, exponent, mantissa) in [(9, 4, 4), (13, 1, 12), (16, 5, 10), (16, 5, 11)] {
        let format = WideMinifloat(Minifloat::new(exponent, mantissa));
        let bias = (1 << (exponent - 1)) - 1;
        sized(bits, format, |c| float(c, mantissa, exponent, bias) + 0.0);
    }
    sized(16, HalfCode, |c| f16::from_bits(c as u16).to_f32_const());
    sized(16, Bf16Code, |c| f32::from_bits(c << 16));
}

/// Numbers of all exponents, and pairs whose sum lies close to a tie of F32.
#[test]
fn fused_is_rounded_once() {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 32) as u32
    };
    for i in 0..miri_or(300, effort([200_000, 2_000_000, 2_000_000])) {
        let (value, scale, mut offset) =
            ((next() % 256) as f32 - 100.0, f32::from_bits(next()), f32::from_bits(next()));
        if i % 2 == 0 {
            // Next to the product in size, or so far above it that the product decides a tie.
            let exponent = (scale.to_bits() >> 23 & 0xff) + next() % 64;
            let few = next() & 0x8000_0000 | next() & next() & next() & 0x007f_ffff;
            offset = f32::from_bits(few | exponent.min(254) << 23);
        }
        let (got, want) = (fused(value, scale, offset), value.mul_add(scale, offset));
        assert!(
            got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
            "{value:e} * {scale:e} + {offset:e}: {got:e}, not {want:e}"
        );
    }
}

#[test]
fn minifloats() {
    fn sized<const BITS: usize>(exponent: u32, mantissa: u32) {
        check::<BITS, _>(Minifloat::new(exponent, mantissa), |c| {
            let bias = (1 << (exponent - 1)) - 1;
            float(c, mantissa, exponent, bias) + 0.0
        });
    }
    sized::<1>(1, 0);
    sized::<2>(1, 0);
    sized::<3>(2, 1);
    sized::<4>(2, 1);
    sized::<5>(5, 0);
    sized::<6>(5, 0);
    sized::<7>(2, 4);
    sized::<8>(1, 7);
    sized::<8>(5, 2);
}

#[test]
fn floats() {
    let e2m1 = |factor: f32, plain_zero| E2M1 { factor, plain_zero };
    check::<4, _>(e2m1(1.0, false), |c| float(c, 1, 2, 1));
    check::<4, _>(e2m1(2.0, false), |c| float(c, 1, 2, 1) * 2.0);
    check::<4, _>(e2m1(1.0, true), |c| if c == 8 { 0.0 } else { float(c, 1, 2, 1) });
    check::<8, _>(e2m1(2.0, false), |c| float(c & 15, 1, 2, 1) * 2.0);
    check::<4, _>(SignMagnitude, |c| {
        let magnitude = (c & 7) as f32 / 4.0;
        if c & 8 == 0 { magnitude } else { -magnitude }
    });
    check::<6, _>(E2M3, |c| float(c, 3, 2, 1));
    check::<6, _>(E3M2, |c| float(c, 2, 3, 3));
    check::<8, _>(E4M3, |c| {
        if c & 0x7f == 0x7f {
            f32::NAN
        } else {
            float(c, 3, 4, 7)
        }
    });
    let fnuz = |c| {
        if c == 0x80 {
            f32::NAN
        } else {
            float(c, 3, 4, 8)
        }
    };
    check::<8, _>(E4M3Fnuz, fnuz);
    let e5m2 = |c: u32| f16::from_bits((c << 8) as u16).to_f32_const();
    check::<8, _>(E5M2, e5m2);
}
