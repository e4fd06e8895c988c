//! Stacks of FP8 matrices with a grid of scales, and FP4 of two rows in a byte, against their
//! twins.

use super::{bytes, check, scales};
use crate::remember::kernels::fp4_pairs::{BLOCK, Fp4Pairs};
use crate::remember::kernels::fp8::{E4M3, E4M3Fnuz, E5M2, E5M2Fnuz, Float8};
use crate::remember::kernels::grouped::{Formula, GroupedRows};
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::test_utils::miri_or;

/// A stack of two matrices of 5 × 77, whose scales lie in every way that they can.
fn stack<F: Float8>(name: &str, format: F) {
    for (block_rows, block_cols) in [(2usize, 16usize), (5, 77), (1, 77), (5, 1), (3, 100)] {
        let (matrix_rows, cols) = (5usize, 77usize);
        let (grid_rows, grid_cols) = (matrix_rows.div_ceil(block_rows), cols.div_ceil(block_cols));
        let grid = ScaleGrid {
            matrix_rows,
            block_rows,
            block_cols,
            rows_per_matrix: grid_rows,
            cols: grid_cols,
        };
        let (codes, scales) = (bytes(10 * cols), scales(2 * grid_rows * grid_cols));
        for (rows, part) in [(0..10, 0..cols), (3..8, 0..cols), (4..5, 32..77), (2..3, 5..6)] {
            let scale_rows = grid.rows(&rows);
            let scale_cols = part.start / block_cols..part.end.div_ceil(block_cols);
            let pick = |rows: &std::ops::Range<usize>, cols: &std::ops::Range<usize>| {
                rows.clone()
                    .flat_map(|r| cols.clone().map(move |c| (r, c)))
                    .collect::<Vec<_>>()
            };
            let (tile, loaded) = (pick(&rows, &part), pick(&scale_rows, &scale_cols));
            let kernel = GroupedRows {
                bytes: &tile
                    .iter()
                    .map(|(r, c)| codes[r * cols + c])
                    .collect::<Vec<_>>(),
                rows: rows.clone(),
                cols: part.clone(),
                grid,
                scales: &loaded
                    .iter()
                    .map(|(r, c)| scales[r * grid_cols + c])
                    .collect::<Vec<_>>(),
                scale_rows,
                scale_cols,
                row_bytes: part.len(),
                bits: 8,
                code_bits: 8,
                format,
                offsets: &[],
                formula: Formula::Scale,
                round: false,
                columns: &[],
            };
            check(name, &kernel, tile.len(), |i| {
                let (r, c) = tile[i];
                let scale = scales[(r / matrix_rows * grid_rows + r % matrix_rows / block_rows)
                    * grid_cols
                    + c / block_cols];
                F::widen(codes[r * cols + c]) * scale
            });
        }
    }
}

#[test]
fn stacks_of_fp8() {
    stack("E4M3", E4M3);
    stack("E5M2", E5M2);
    stack("E4M3FNUZ", E4M3Fnuz);
    stack("E5M2FNUZ", E5M2Fnuz);
}

#[test]
fn fp4_of_two_rows_in_a_byte() {
    // Rows end in a block, and columns in a strip. Values of all exponents are normal numbers of
    // both types of two bytes, of BF16 alone, or of neither.
    let exponents: [&[u8]; 3] =
        [&[127, 114, 140, 120], &[127, 2, 252, 113, 141], &[127, 0, 255, 1, 254, 2, 120]];
    for ((cols, first, rows), all) in
        [(miri_or(33usize, 1049), 0usize, 96usize), (7, 40, 50), (1, 63, 1)]
            .into_iter()
            .flat_map(|size| exponents.map(|all| (size, all)))
    {
        let pitch = cols + 3;
        let codes = bytes((first + rows).div_ceil(2) * pitch);
        let exponents: Vec<u8> = (0..(first + rows).div_ceil(BLOCK) * pitch)
            .map(|i| all[i % all.len()])
            .collect();
        let kernel = Fp4Pairs { codes: &codes, exponents: &exponents, first, cols, pitch };
        check("FP4 pairs", &kernel, rows * cols, |i| {
            let (row, col) = (first + i / cols, i % cols);
            let code = codes[row / 2 * pitch + col] >> (4 * (row % 2)) & 15;
            let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
            let value: f64 = if code > 7 { -magnitude } else { magnitude };
            let exponent = i32::from(exponents[row / BLOCK * pitch + col]) - 127;
            (value * 2f64.powi(exponent)) as f32
        });
    }
}
