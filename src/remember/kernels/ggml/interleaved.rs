//! Rows of ik_llama.cpp's types that are stored interleaved: each block of such a type has the
//! values of a block of 4, 8 or 16 rows, in an order for one kind of CPU. Its bits are moved to
//! blocks of each row, which the decoder of their type then decodes.

mod moves;
mod words;

use std::sync::OnceLock;

use self::moves::{MOVES, moves};
use self::words::RowMoves;
use super::{GgmlDecoder, IQ1_M_R4, IQ1_S_R4, decode_row, decoder};
use crate::Dtype;
use crate::element::Out;
use crate::remember::kernels::widen::Widen;
use crate::simd::{Level, dispatch};

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
    moves: RowMoves,
    /// Short blocks that are moved as one, and their moves: a row has many, each of which takes as
    /// long as a longer one.
    several: usize,
    moves_of_several: RowMoves,
}

impl RowsDecoder {
    /// The decoder of `dtype`; `None` if its rows are not interleaved. It is made once for all
    /// tensors: a file may have many small ones, and a decoder takes more memory and time than they
    /// do.
    pub(crate) fn of(dtype: Dtype) -> Option<&'static Self> {
        static DECODERS: [OnceLock<RowsDecoder>; MOVES.len()] =
            [const { OnceLock::new() }; MOVES.len()];
        let (rows, base) = dtype.interleaved_rows()?;
        let block = rows * dtype.type_size()?;
        let blocks = dtype.block_size() / base.block_size();
        let row_block = blocks * base.type_size()?;
        let place = MOVES.iter().position(|(row, _)| *row == dtype)?;
        let several = match row_block {
            0..8 => 8,
            8..40 => 4,
            _ => 1,
        };
        let moves_of = |count| RowMoves::new(moves(dtype), rows, [block, row_block], count);
        Some(DECODERS[place].get_or_init(|| Self {
            rows,
            block,
            row_block,
            decode: decoder(base).unwrap_or(decoder_of_rows(dtype)),
            moves: moves_of(1),
            several,
            moves_of_several: moves_of(several),
        }))
    }

    /// Writes what the interleaved `blocks` have of each row to `out`, row by row. Each `per_row`
    /// blocks are all those of some rows.
    pub(crate) fn rows_of(&self, level: Level, blocks: &[u8], per_row: usize, out: &mut [u8]) {
        let (moves, count) = match per_row.is_multiple_of(self.several) {
            true => (&self.moves_of_several, self.several),
            false => (&self.moves, 1),
        };
        moves.perform(level, blocks, per_row / count, out);
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

#[cfg(test)]
mod tests {
    use super::words::bits_of;
    use super::*;

    /// Every bit by itself, as the table says, against the moves of words. Rows end within the
    /// blocks that are moved together, at their end and behind it.
    #[test]
    fn bits_go_where_the_table_says() {
        for &dtype in Dtype::ALL {
            let Some(decoder) = RowsDecoder::of(dtype) else {
                continue;
            };
            for per_row in [1, 5, 8, 16, 19, 136] {
                let count = 3 * per_row;
                let bytes = (0..count * decoder.block).map(|i| (i * 151 + i / 7) as u8);
                let blocks: Vec<u8> = bytes.collect();
                let mut want = vec![0; count * decoder.rows * decoder.row_block];
                let groups = blocks.chunks_exact(per_row * decoder.block);
                let rows =
                    groups.flat_map(|blocks| (0..decoder.rows).map(move |row| (row, blocks)));
                let targets = want.chunks_exact_mut(per_row * decoder.row_block);
                for ((row, blocks), want) in rows.zip(targets) {
                    let targets = want.chunks_exact_mut(decoder.row_block);
                    for (block, want) in blocks.chunks_exact(decoder.block).zip(targets) {
                        for (to, from, stride) in moves(dtype).iter().flat_map(bits_of) {
                            let from = from + row * stride;
                            want[to / 8] ^= (block[from / 8] >> (from % 8) & 1) << (to % 8);
                        }
                    }
                }
                for level in Level::available() {
                    let mut got = vec![0; want.len()];
                    decoder.rows_of(level, &blocks, per_row, &mut got);
                    assert_eq!(got, want, "{dtype} {level:?}, {per_row} blocks a row");
                }
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
            assert_eq!(first.map(std::ptr::from_ref), second.map(std::ptr::from_ref));
        }
    }
}
