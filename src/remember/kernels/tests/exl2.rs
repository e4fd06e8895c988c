//! EXL2: rows of several widths, against codes that are taken bit by bit.

use super::{HOSTILE, bytes, check};
use crate::remember::kernels::exl2::{CodeRun, PermutedRows};

#[test]
fn exl2_kernel() {
    let widths = [(8, 32), (6, 288), (5, 32), (4, 320), (3, 96), (2, 48)];
    let mut runs: Vec<CodeRun> = Vec::new();
    for (bits, len) in widths {
        let word = runs
            .last()
            .map_or(0, |run| run.word + run.len * run.bits / 32);
        runs.push(CodeRun { bits, word, len });
    }
    let cols: usize = runs.iter().map(|run| run.len).sum();
    let row_bytes = runs.last().map_or(0, |run| (run.word + 4) * 4);
    let (rows, bytes) = (5, bytes(5 * row_bytes));
    // 31 has no divisor with the number of columns.
    let order: Vec<u32> = (0..cols).map(|i| (i * 31 % cols) as u32).collect();
    let scales: Vec<f32> = (0..rows * runs.len())
        .map(|i| HOSTILE[i % HOSTILE.len()])
        .collect();
    let kernel =
        PermutedRows { bytes: &bytes, row_bytes, runs: &runs, scales: &scales, order: &order };
    let twin = |i: usize| {
        let (row, mut place) = (i / cols, order[i % cols] as usize);
        let mut group = 0;
        while place >= runs[group].len {
            place -= runs[group].len;
            group += 1;
        }
        let CodeRun { bits, word, .. } = runs[group];
        let bit = |at: usize| {
            let at = (row * row_bytes + word * 4) * 8 + at;
            i32::from(bytes[at / 8] >> (at % 8) & 1)
        };
        let code: i32 = (0..bits).map(|i| bit(place * bits + i) << i).sum();
        (code - (1 << (bits - 1))) as f32 * scales[row * runs.len() + group]
    };
    check("EXL2", &kernel, rows * cols, twin);
}
