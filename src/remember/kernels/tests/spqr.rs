//! SpQR's tiles, against the formula for one value at a time, in the arithmetic of halves.

use half::f16;

use super::{check, words};
use crate::remember::kernels::spqr::{SpqrRows, TILE};

/// Halves that go wrong first, and some that do not.
const NUMBERS: [u16; 12] = [
    0x2c00, 0x4400, 0x0001, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0x7bff, 0x3555, 0xb800, 0x03ff, 0x2e66,
];

/// A code of a word.
fn code(word: u64, i: usize) -> f32 {
    (word >> (3 * i) & 7) as f32
}

/// A result of the library's arithmetic in halves: each operation is rounded.
fn half(x: f32) -> f32 {
    f16::from_f32_const(x).to_f32_const()
}

fn dequantized(q: f32, scale: f32, zero: f32) -> f32 {
    half(half(q - zero) * scale)
}

#[test]
fn tiles_of_spqr() {
    let down = 2;
    let orders = [(1usize, 7, 3), (16, 7, 3), (40, 7, 3), (333, 7, 3), (333, 1, 0), (32, 1, 0)];
    for (cols, step, first) in orders {
        let across = cols.div_ceil(TILE);
        let random = words(3 * down * across * TILE);
        let numbers: Vec<[u16; 4]> = random[..down * across]
            .iter()
            .map(|&word| [0, 8, 16, 24].map(|at| NUMBERS[(word >> at & 255) as usize % 12]))
            .collect();
        // Of each two rows the first has some bits of their byte, and the second the others.
        let stored: Vec<u64> = (0..down * across * TILE)
            .map(|i| {
                let codes = u64::from(random[2 * i]) | u64::from(random[2 * i + 1]) << 32;
                let (tile, row) = (i / TILE, i % TILE);
                let byte = numbers[tile][row / 4].to_le_bytes()[row / 2 % 2];
                let mask = [0x5a, 0xa5][row % 2];
                (codes & ((1 << 54) - 1)) | u64::from(byte & mask) << 54
            })
            .collect();
        let order: Vec<u32> = (0..cols)
            .map(|c| ((c * step + first) % cols) as u32)
            .collect();
        // Of each row as many single values as its number tells; some in one place.
        let (mut starts, mut singles) = (vec![0], Vec::new());
        for row in 0..down * TILE {
            for i in 0..row % 5 {
                let column = (row * 31 + i / 2 * 11) % cols;
                let number = [0x3c00, 0xb555, 0x7bff, 0x0003][(row + i) % 4];
                singles.push(column as u32 | number << 16);
            }
            starts.push(singles.len() as u32);
        }
        let bytes: Vec<[u8; 8]> = stored.iter().map(|word| word.to_le_bytes()).collect();
        let rows = 3..down * TILE - 2;
        let kernel = SpqrRows {
            words: &bytes,
            first: rows.start,
            order: &order,
            starts: &starts,
            singles: &singles,
        };
        check(&format!("SpQR {cols}"), &kernel, rows.len() * cols, |i| {
            let (row, column) = (rows.start + i / cols, i % cols);
            let at = (0..cols).find(|&c| order[c] as usize == column).unwrap();
            let tile = row / TILE * across + at / TILE;
            let word = stored[tile * TILE + row % TILE];
            let [scale_scale, zero_scale, scale_zero, zero_zero] =
                numbers[tile].map(|bits| f16::from_bits(bits).to_f32_const());
            let scale = dequantized(code(word, 0), scale_scale, scale_zero);
            let zero = dequantized(code(word, 1), zero_scale, zero_zero);
            let mut value = dequantized(code(word, 2 + at % TILE), scale, zero);
            let of_row = starts[row] as usize..starts[row + 1] as usize;
            for single in &singles[of_row] {
                if (single & 0xffff) as usize == at {
                    value += f16::from_bits((single >> 16) as u16).to_f32_const();
                }
            }
            half(value)
        });
    }
}
