//! Transpositions against one byte and one code after the other, at every level.

use crate::remember::kernels::transpose::{
    Columns, LINES, Lines, PER_WORD, transpose_bytes, transpose_codes,
};
use crate::simd::{LINE, Level};

/// Numbers of lines and bytes of each, with strips that are whole and others.
const SIZES: [(usize, usize); 6] = [(1, 4), (7, 32), (128, 36), (127, 64), (16, 100), (33, 96)];

/// What no column may have: bytes that nothing is written to.
const UNTOUCHED: u8 = 0xa5;

fn lines(width: usize) -> (Vec<u8>, usize) {
    let pitch = width.next_multiple_of(LINE) + 64;
    let bytes = (0..LINES * pitch).map(|i| (i * 37 + i / 251) as u8);
    (bytes.collect(), pitch)
}

#[test]
fn bytes_are_transposed() {
    for (count, width) in SIZES {
        let (bytes, pitch) = lines(width);
        let lines = Lines { bytes: &bytes, pitch };
        for level in Level::available() {
            let (len, first) = (count + 5, 3);
            let mut out = vec![UNTOUCHED; width * len];
            let mut columns = Columns { bytes: &mut out, len, filled: first..first + count };
            transpose_bytes(level, &lines, &mut columns);
            for (i, &byte) in out.iter().enumerate() {
                let (column, line) = (i / len, (i % len).wrapping_sub(first));
                let want = match line < count {
                    true => bytes[line * pitch + column],
                    false => UNTOUCHED,
                };
                assert_eq!(byte, want, "{level:?}, {count} × {width}, byte {i}");
            }
        }
    }
}

#[test]
fn codes_are_transposed() {
    let orders: [[usize; PER_WORD]; 2] = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 2, 4, 6, 1, 3, 5, 7]];
    for ((count, width), order) in SIZES.into_iter().zip(orders.into_iter().cycle()) {
        let (bytes, pitch) = lines(width);
        let lines = Lines { bytes: &bytes, pitch };
        for level in Level::available() {
            let len = count.div_ceil(2) + 3;
            let mut out = vec![UNTOUCHED; 2 * width * len];
            let mut columns = Columns { bytes: &mut out, len, filled: 1..1 + count.div_ceil(2) };
            transpose_codes(level, order, &lines, &mut columns);
            for line in 0..count {
                for code in 0..2 * width {
                    let want = bytes[line * pitch + code / 2] >> (code % 2 * 4) & 15;
                    let column = code / PER_WORD * PER_WORD + order[code % PER_WORD];
                    let found = out[column * len + 1 + line / 2] >> (line % 2 * 4) & 15;
                    assert_eq!(found, want, "{level:?}, {count} × {width}: {line}, {code}");
                }
            }
            let behind = out
                .chunks_exact(len)
                .flat_map(|column| [column[0], column[len - 1]]);
            assert!(behind.into_iter().all(|byte| byte == UNTOUCHED));
        }
    }
}
