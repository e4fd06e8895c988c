use super::{pack_bit_streams, row_bytes, transpose_words, transposed};
use crate::simd::Level;

fn codes(n: usize, bits: usize) -> Vec<u8> {
    (0..n)
        .map(|i| ((i as u32).wrapping_mul(0x9e37_79b9) >> 24) as u8 >> (8 - bits))
        .collect()
}

/// Every bit where it belongs, and no other; widths that fill neither bytes nor words.
#[test]
fn streams_equal_writing_bit_by_bit() {
    for level in Level::available() {
        for bits in 1..=8 {
            for cols in [1, 7, 8, 9, 31, 32, 33, 75, 128] {
                let codes = codes(3 * cols, bits);
                let mut out = vec![0xff; 5];
                pack_bit_streams(&codes, cols, bits, level, &mut out);
                let width = row_bytes(cols, bits);
                assert_eq!((width % 4, out.len()), (0, 3 * width));
                for (row, out) in codes.chunks(cols).zip(out.chunks(width)) {
                    let mut expected = vec![0u8; width];
                    for (i, code) in row.iter().enumerate() {
                        for bit in (0..bits).filter(|bit| code >> bit & 1 == 1) {
                            expected[(i * bits + bit) / 8] |= 1 << ((i * bits + bit) % 8);
                        }
                    }
                    assert_eq!(out, expected, "{level:?}, {bits} bits, {cols} columns");
                }
            }
        }
    }
}

#[test]
fn rows_become_columns() {
    let words: Vec<u8> = (0..37 * 5u32).flat_map(u32::to_le_bytes).collect();
    let mut transposed_words = Vec::new();
    transpose_words(&words, 5, &mut transposed_words);
    let expected: Vec<u8> = (0..5)
        .flat_map(|c| (0..37).map(move |r| r * 5 + c))
        .flat_map(u32::to_le_bytes)
        .collect();
    assert_eq!(transposed_words, expected);
    assert_eq!(transposed(&[1, 2, 3, 4, 5, 6], 3), [1, 4, 2, 5, 3, 6]);
}

#[test]
fn eight_rows_of_a_word_lie_in_order_of_awq() {
    for level in Level::available() {
        let codes = codes(16 * 3, 4);
        let mut out = Vec::new();
        super::pack_awq_words(&codes, 3, level, &mut out);
        for (i, word) in out.as_chunks().0.iter().enumerate() {
            let (run, col) = (i / 3, i % 3);
            for (nibble, row) in [0, 2, 4, 6, 1, 3, 5, 7].into_iter().enumerate() {
                let expected = codes[(run * 8 + row) * 3 + col];
                assert_eq!((u32::from_le_bytes(*word) >> (4 * nibble) & 15) as u8, expected);
            }
        }
    }
}

#[test]
fn lowered_zero_points_are_restored() {
    use crate::remember::kernels::gptq::GptqPacking;
    let words = [0u32, 0x7777_7777, 0x8080_8080, u32::MAX];
    for bits in [2, 4, 8] {
        let packing = GptqPacking { bits, word_bits: 32, has_planes: false };
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        super::lower_packed_zero_points(&mut bytes, bits);
        let mut lowered: Vec<u32> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|&word| u32::from_le_bytes(word))
            .collect();
        let restored = packing.zero_points(&mut lowered, true);
        let chunks = words.len().div_ceil(bits);
        let expected = (0..chunks).map(|i| packing.unpack(&words, i));
        assert!(restored.take(chunks).eq(expected));
    }
    let mut codes = [0, 1, 4, 7];
    super::lower_zero_points(&mut codes, 3);
    assert_eq!(codes, [7, 0, 3, 6]);
}
