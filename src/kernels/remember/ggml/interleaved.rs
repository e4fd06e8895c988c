//! Rows of ik_llama.cpp's types that are stored interleaved: each block of such a type has the values of a block of 4, 8 or 16
//! rows, in an order for one kind of CPU. Its bits are moved to blocks of each row, which the decoder of their type then decodes.

mod moves;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use self::moves::{BitMove, MOVES, moves};
use super::{GgmlDecoder, IQ1_M_R4, IQ1_S_R4, decode_row, decoder};
use crate::Dtype;
use crate::element::Out;
use crate::kernels::remember::widen::Widen;
use crate::simd::{Level, dispatch};

/// Bytes of a word that is moved at once.
const WORD: usize = 4;

/// How the blocks of an interleaved type become rows, and how these are decoded.
pub(crate) struct RowsDecoder {
    /// Rows that are interleaved.
    pub rows: usize,
    /// Bytes of an interleaved block.
    pub block: usize,
    /// Bytes of a block of one row, once it is moved.
    pub row_block: usize,
    /// Decodes blocks of a row.
    pub decode: GgmlDecoder,
    words: Vec<BytesMove>,
    bytes: Vec<BytesMove>,
}

/// A byte, or a word of [`WORD`] bytes, that is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BytesMove {
    /// The first byte in a row's block.
    to: usize,
    /// The same byte of row 0 in the interleaved block, and the distance to that of row 1.
    from: usize,
    row: usize,
    /// By how many bits a byte is shifted to the left, modulo the bits of a word: to the right by one is 31.
    shift: u32,
    /// The bits that are kept of each byte.
    mask: u8,
}

impl RowsDecoder {
    /// The decoder of `dtype`; `None` if its rows are not interleaved. It is made once for all tensors: a file may have many small
    /// ones, and a decoder takes more memory and time than they do.
    pub(crate) fn of(dtype: Dtype) -> Option<&'static Self> {
        static DECODERS: [OnceLock<RowsDecoder>; MOVES.len()] =
            [const { OnceLock::new() }; MOVES.len()];
        let (rows, base) = dtype.interleaved_rows()?;
        let block = rows * dtype.type_size()?;
        let blocks = dtype.block_size() / base.block_size();
        let row_block = blocks * base.type_size()?;
        let place = MOVES.iter().position(|(row, _)| *row == dtype)?;
        Some(DECODERS[place].get_or_init(|| {
            let (words, bytes) = in_words(&in_bytes(moves(dtype)));
            Self {
                rows,
                block,
                row_block,
                decode: decoder(base).unwrap_or(decoder_of_rows(dtype)),
                words,
                bytes,
            }
        }))
    }

    /// Writes what the interleaved `blocks` have of row `row` to `out`, which is zeros.
    pub(crate) fn row_of(&self, blocks: &[u8], row: usize, out: &mut [u8]) {
        let blocks = blocks.chunks(TOGETHER * self.block.max(1));
        for (blocks, out) in blocks.zip(out.chunks_mut(TOGETHER * self.row_block.max(1))) {
            for m in &self.words {
                self.each_block(blocks, out, |block, out| m.move_word(row, block, out));
            }
            for m in &self.bytes {
                self.each_block(blocks, out, |block, out| m.move_byte(row, block, out));
            }
        }
    }

    /// Calls `each` with each interleaved block and the block of a row that it becomes.
    fn each_block(&self, blocks: &[u8], out: &mut [u8], each: impl Fn(&[u8], &mut [u8])) {
        let blocks = blocks.chunks_exact(self.block.max(1));
        for (block, out) in blocks.zip(out.chunks_exact_mut(self.row_block.max(1))) {
            each(block, out);
        }
    }
}

/// Blocks of which the same byte is moved in one loop. They stay in the first-level cache until the last.
const TOGETHER: usize = 16;

impl BytesMove {
    #[inline(always)]
    fn move_word(&self, row: usize, block: &[u8], out: &mut [u8]) {
        let source = block[self.from + row * self.row..].first_chunk::<WORD>();
        let target = out[self.to..].first_chunk_mut::<WORD>();
        if let (Some(&source), Some(target)) = (source, target) {
            // Bits that a shift brings in from another byte are masked.
            let bits = u32::from_le_bytes(source).rotate_left(self.shift);
            let bits = bits & u32::from_ne_bytes([self.mask; WORD]);
            *target = (u32::from_le_bytes(*target) ^ bits).to_le_bytes();
        }
    }

    #[inline(always)]
    fn move_byte(&self, row: usize, block: &[u8], out: &mut [u8]) {
        out[self.to] ^= block[self.from + row * self.row].rotate_left(self.shift) & self.mask;
    }
}

/// The decoder of rows that are no blocks of another type.
fn decoder_of_rows(dtype: Dtype) -> GgmlDecoder {
    match dtype {
        Dtype::IQ1_S_R4 => decode_row::<IQ1_S_R4, 6, 32>,
        Dtype::IQ1_M_R4 => decode_row::<IQ1_M_R4, 7, 32>,
        _ => decode_bf16,
    }
}

/// Values of BF16, which are no blocks.
fn decode_bf16(bytes: &[u8], _scale: Option<f32>, level: Level, out: Out<'_>) {
    let dtype = Dtype::BF16;
    dispatch(level, &Widen { dtype, bytes }, out);
}

/// `(place in the row's block, place in the interleaved block, distance between rows)` of each bit.
fn bits_of(m: &BitMove) -> Vec<(usize, usize, usize)> {
    let mut bits: Vec<_> = (0..m.bits).map(|i| (m.to + i, m.from + i, m.row)).collect();
    for &(count, to, from) in m.steps {
        let moved = |i| {
            bits.iter()
                .map(move |&(t, f, row)| (t + i * to, f + i * from, row))
        };
        bits = (0..count).flat_map(moved).collect();
    }
    bits
}

/// The moves of whole bytes. Rows are whole bytes apart.
fn in_bytes(moves: &[BitMove]) -> Vec<BytesMove> {
    let mut masks = BTreeMap::new();
    for (to, from, row) in moves.iter().flat_map(bits_of) {
        let shift = ((to % 8 + 8 * WORD - from % 8) % (8 * WORD)) as u32;
        *masks.entry((to / 8, from / 8, row / 8, shift)).or_insert(0) |= 1u8 << (to % 8);
    }
    let moves = masks.into_iter();
    moves
        .map(|((to, from, row, shift), mask)| BytesMove {
            to,
            from,
            row,
            shift,
            mask,
        })
        .collect()
}

/// The same moves in words, where four bytes move alike, and those of the other bytes. `moves` are in the order of `to`.
fn in_words(moves: &[BytesMove]) -> (Vec<BytesMove>, Vec<BytesMove>) {
    let (mut words, mut bytes) = (Vec::new(), Vec::new());
    let mut is_taken = vec![false; moves.len()];
    for (i, &first) in moves.iter().enumerate() {
        if is_taken[i] {
            continue;
        }
        let find = |n: usize| {
            let next = BytesMove {
                to: first.to + n,
                from: first.from + n,
                ..first
            };
            moves.binary_search(&next).ok().filter(|&at| !is_taken[at])
        };
        match [find(1), find(2), find(3)] {
            [Some(a), Some(b), Some(c)] => {
                for at in [i, a, b, c] {
                    is_taken[at] = true;
                }
                words.push(first);
            }
            _ => {
                is_taken[i] = true;
                bytes.push(first);
            }
        }
    }
    (words, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bit by itself, as the table says, against the moves of words and bytes.
    #[test]
    fn bits_go_where_the_table_says() {
        for &dtype in Dtype::ALL {
            let Some(decoder) = RowsDecoder::of(dtype) else {
                continue;
            };
            let count = 2 * TOGETHER + 1;
            let bytes = (0..count * decoder.block).map(|i| (i * 151 + i / 7) as u8);
            let blocks: Vec<u8> = bytes.collect();
            for row in 0..decoder.rows {
                let mut want = vec![0; count * decoder.row_block];
                let targets = want.chunks_exact_mut(decoder.row_block);
                for (block, want) in blocks.chunks_exact(decoder.block).zip(targets) {
                    for (to, from, stride) in moves(dtype).iter().flat_map(bits_of) {
                        let from = from + row * stride;
                        want[to / 8] ^= (block[from / 8] >> (from % 8) & 1) << (to % 8);
                    }
                }
                let mut got = vec![0; count * decoder.row_block];
                decoder.row_of(&blocks, row, &mut got);
                assert_eq!(got, want, "{dtype} row {row}");
            }
        }
    }

    /// Nothing of an interleaved block is left out, and no bit of a row's block is left at zero.
    #[test]
    fn blocks_are_moved_whole() {
        for &dtype in Dtype::ALL {
            let Some(decoder) = RowsDecoder::of(dtype) else {
                continue;
            };
            let mut is_read = vec![false; decoder.block * 8];
            let mut is_written = vec![false; decoder.row_block * 8];
            for (to, from, stride) in moves(dtype).iter().flat_map(bits_of) {
                is_written[to] = true;
                (0..decoder.rows).for_each(|row| is_read[from + row * stride] = true);
            }
            assert!(is_read.into_iter().all(|read| read), "{dtype}");
            assert!(is_written.into_iter().all(|written| written), "{dtype}");
        }
    }

    /// A file may have a million tensors without values, and a decoder has some thousand moves.
    #[test]
    fn tensors_share_a_decoder() {
        for &dtype in Dtype::ALL {
            let [first, second] = [(); 2].map(|()| RowsDecoder::of(dtype));
            assert_eq!(first.is_some(), dtype.interleaved_rows().is_some());
            assert_eq!(
                first.map(std::ptr::from_ref),
                second.map(std::ptr::from_ref)
            );
        }
    }
}
