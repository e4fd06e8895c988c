//! Blocks of vectors of all shapes, against a sum for each value.

use super::{HOSTILE, check, scales, words};
use crate::remember::kernels::vectors::{VectorBlocks, VectorNorm};
use crate::test_utils::{effort, miri_or};

/// Vectors of the table.
const ENTRIES: usize = 61;

fn table(len: usize) -> Vec<f32> {
    let values = (0..len * ENTRIES).map(|i| match i % 97 {
        n if n < HOSTILE.len() => HOSTILE[n],
        n => (n as f32 - 50.0) * 0.37,
    });
    values.collect()
}

#[test]
fn blocks_of_vectors() {
    let shapes = [[1, 2], [1, 8], [8, 1], [1, 16], [16, 1], [2, 4], [6, 1], [1, 1], [64, 1]];
    let cases = shapes.into_iter().flat_map(|s| [(s, 1), (s, 2), (s, 3)]);
    for (shape, terms) in cases.step_by(effort([2, 1, 1])) {
        let [height, width] = shape;
        // A row of blocks takes more than a buffer, and ends raggedly.
        let across = miri_or(9, 4096 / (height * width) + 13);
        let (down, cols) = (3, across * width);
        let vectors: Vec<u32> = words(down * across * terms)
            .iter()
            .map(|word| word % ENTRIES as u32)
            .collect();
        let table = table(height * width);
        let (factors, offsets) = (scales(cols.max(down * height)), scales(cols + 3));
        let offsets = &offsets[3..];
        // Rows are whole groups, of as many columns as a block has at least.
        let size = width.next_power_of_two();
        let groups = scales(down * height * (cols / size));
        let norms = [
            VectorNorm::None,
            VectorNorm::Rows { factors: &factors, offsets: &[] },
            VectorNorm::Rows { factors: &factors, offsets: &factors },
            VectorNorm::Columns { factors: &factors, offsets },
            VectorNorm::Groups { factors: &groups, size },
        ];
        for (i, norm) in norms.into_iter().enumerate() {
            // The rows that are wanted begin and end within blocks.
            let rows = height / 2..down * height - height / 3;
            let kernel = VectorBlocks {
                table: &table,
                vectors: &vectors,
                terms,
                block: shape,
                rows: rows.clone(),
                cols,
                norm,
            };
            let twin = |at: usize| {
                let (r, c) = (rows.start + at / cols, at % cols);
                let first = ((r / height) * across + c / width) * terms;
                let value = |vector: u32| {
                    table[vector as usize * height * width + r % height * width + c % width]
                };
                let mut sum = value(vectors[first]);
                for &vector in &vectors[first + 1..first + terms] {
                    sum += value(vector);
                }
                match i {
                    0 => sum,
                    1 => sum * factors[r],
                    2 => sum * factors[r] + factors[r],
                    4 => sum * groups[r * (cols / size) + c / size],
                    _ => sum * factors[c] + offsets[c],
                }
            };
            check(&format!("{shape:?}, {terms}"), &kernel, rows.len() * cols, twin);
        }
    }
}
