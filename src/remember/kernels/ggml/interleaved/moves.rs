//! Where the bits of interleaved rows go.
//!
//! Source: `repack_*`, and of types without one `dequantize_row_*`, of ik_llama.cpp's
//! `ggml/src/iqk/iqk_quantize.cpp` at commit
//! [8337e4c](https://github.com/ikawrakow/ik_llama.cpp/blob/8337e4cd3861406fc04e0854b1409cd1b027fbc9/ggml/src/iqk/iqk_quantize.cpp).

use crate::Dtype;

/// Bits of an interleaved block that go to each row's block. Places and distances are in bits.
pub(super) struct BitMove {
    /// The first bit in a row's block.
    pub to: usize,
    /// The same bit of row 0 in the interleaved block.
    pub from: usize,
    /// The distance between the bits of two rows in the interleaved block.
    pub row: usize,
    /// Bits that lie together on both sides.
    pub bits: usize,
    /// `(count, to, from)`: these bits, and all that the steps before make of them, are moved so
    /// many times, each time so far from the last on both sides.
    pub steps: &'static [(usize, usize, usize)],
}

const fn moved(
    to: usize,
    from: usize,
    row: usize,
    bits: usize,
    steps: &'static [(usize, usize, usize)],
) -> BitMove {
    BitMove { to, from, row, bits, steps }
}

/// The moves of an interleaved type, none for any other.
pub(super) fn moves(dtype: Dtype) -> &'static [BitMove] {
    let row = MOVES.iter().find(|(interleaved, _)| *interleaved == dtype);
    row.map_or(&[], |(_, moves)| moves)
}

/// The moves of each type. Bits that several moves bring to one place are added without carry: the
/// last moves of types of grids undo `scrambled_sign`, by which each of seven signs is the sum of
/// those up to its own.
#[rustfmt::skip]
pub(super) const MOVES: &[(Dtype, &[BitMove])] = &[
    (Dtype::Q4_0_R8, &[
        moved(0, 0, 16, 16, &[]), moved(16, 128, 32, 32, &[(4, 32, 256)]),
    ]),
    (Dtype::Q5_0_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 32, 1, &[(4, 1, 8), (4, 4, 2), (2, 16, 1)]),
        moved(48, 192, 32, 4, &[(2, 4, 128), (4, 8, 8), (2, 32, 256), (2, 64, 4)]),
    ]),
    (Dtype::Q8_0_R8, &[
        moved(0, 0, 16, 16, &[]), moved(16, 128, 32, 32, &[(8, 32, 256)]),
    ]),
    (Dtype::Q2_K_R4, &[
        moved(0, 128, 8, 8, &[(16, 8, 32)]),
        moved(128, 640, 32, 2, &[(4, 2, 256), (4, 8, 8), (4, 32, 2), (2, 128, 128), (2, 256, 1024)]),
        moved(640, 0, 16, 16, &[(2, 16, 64)]),
    ]),
    (Dtype::Q3_K_R4, &[
        moved(0, 448, 32, 1, &[(8, 1, 128), (4, 8, 8), (8, 32, 1)]),
        moved(256, 1472, 32, 2, &[(4, 2, 256), (4, 8, 8), (4, 32, 2), (2, 128, 128), (2, 256, 1024)]),
        moved(768, 192, 8, 8, &[(8, 8, 32)]), moved(832, 64, 8, 8, &[(4, 8, 32)]), moved(864, 0, 16, 16, &[]),
    ]),
    (Dtype::Q4_K_R4, &[
        moved(0, 0, 16, 16, &[(2, 16, 64)]), moved(32, 256, 8, 4, &[(4, 8, 32), (2, 32, 4)]),
        moved(36, 128, 8, 2, &[(2, 2, 4), (4, 8, 32), (2, 32, 2)]), moved(96, 384, 8, 8, &[(4, 8, 32)]),
        moved(128, 512, 32, 4, &[(2, 4, 512), (4, 8, 8), (2, 32, 256), (2, 64, 4), (2, 128, 128), (4, 256, 1024)]),
    ]),
    (Dtype::Q5_K_R4, &[
        moved(0, 0, 16, 16, &[(2, 16, 64)]), moved(32, 256, 8, 4, &[(4, 8, 32), (2, 32, 4)]),
        moved(36, 128, 8, 2, &[(2, 2, 4), (4, 8, 32), (2, 32, 2)]), moved(96, 384, 8, 8, &[(4, 8, 32)]),
        moved(128, 512, 32, 1, &[(8, 1, 128), (4, 8, 8), (2, 32, 2), (2, 64, 1), (2, 128, 4)]),
        moved(384, 1536, 32, 4, &[(2, 4, 512), (4, 8, 8), (2, 32, 256), (2, 64, 4), (2, 128, 128), (4, 256, 1024)]),
    ]),
    (Dtype::Q6_K_R4, &[
        moved(0, 2624, 32, 4, &[(2, 4, 1024), (4, 8, 8), (2, 32, 256), (2, 64, 4), (2, 128, 128), (2, 256, 512), (2, 512, 2048)]),
        moved(1024, 576, 32, 2, &[(4, 2, 256), (4, 8, 8), (2, 32, 4), (2, 64, 2), (2, 128, 128), (2, 256, 1024)]),
        moved(1536, 64, 8, 8, &[(16, 8, 32)]), moved(1664, 0, 16, 16, &[]),
    ]),
    (Dtype::IQ2_XXS_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 1088, 32, 32, &[(8, 64, 128)]),
        moved(48, 65, 32, 7, &[(4, 7, 8), (8, 64, 128)]), moved(76, 64, 32, 1, &[(4, 1, 8), (8, 64, 128)]),
        moved(49, 65, 32, 6, &[(4, 7, 8), (8, 64, 128)]),
    ]),
    (Dtype::IQ2_XS_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 64, 64, &[(8, 64, 256)]), moved(528, 2112, 8, 8, &[(8, 8, 32)]),
        moved(26, 73, 64, 6, &[(4, 16, 16), (8, 64, 256)]),
    ]),
    (Dtype::IQ3_XXS_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 1088, 64, 64, &[(8, 64, 256)]),
        moved(528, 65, 32, 7, &[(4, 7, 8), (8, 32, 128)]), moved(556, 64, 32, 1, &[(4, 1, 8), (8, 32, 128)]),
        moved(529, 65, 32, 6, &[(4, 7, 8), (8, 32, 128)]),
    ]),
    (Dtype::IQ4_NL_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 32, 4, &[(2, 4, 128), (4, 8, 8), (2, 32, 256), (2, 64, 4)]),
    ]),
    (Dtype::IQ1_S_R4, &[
        moved(0, 0, 8, 8, &[(4, 8, 32)]), moved(32, 128, 16, 16, &[]),
    ]),
    (Dtype::IQ1_M_R4, &[
        moved(0, 0, 8, 8, &[(4, 8, 32)]), moved(32, 128, 8, 8, &[(2, 8, 32)]), moved(48, 192, 8, 8, &[]),
    ]),
    (Dtype::IQ3_S_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 8, 8, &[(4, 8, 64), (2, 32, 32), (8, 64, 256)]),
        moved(528, 2112, 8, 8, &[(8, 8, 32)]), moved(592, 2368, 32, 1, &[(4, 1, 8), (8, 4, 1), (8, 32, 128)]),
        moved(848, 3392, 8, 4, &[(4, 4, 32), (2, 16, 4)]),
    ]),
    (Dtype::IQ2_S_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 32, 32, &[(8, 32, 128), (2, 256, 1280)]),
        moved(528, 1088, 8, 8, &[(8, 8, 32), (2, 64, 1280)]),
    ]),
    (Dtype::IQ4_XS_R8, &[
        moved(0, 0, 16, 16, &[]), moved(16, 128, 8, 2, &[(2, 2, 64), (4, 4, 2)]),
        moved(32, 256, 8, 4, &[(4, 4, 64), (2, 16, 4)]),
        moved(64, 512, 32, 4, &[(2, 4, 512), (4, 8, 8), (2, 32, 4), (2, 64, 256), (8, 128, 1024)]),
    ]),
    (Dtype::Q6_0_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 32, 2, &[(2, 2, 128), (8, 4, 4), (2, 32, 2)]),
        moved(80, 320, 32, 4, &[(2, 4, 128), (4, 8, 8), (2, 32, 256), (2, 64, 4)]),
    ]),
    (Dtype::IQ2_K_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 8, 1, &[(2, 1, 32), (8, 2, 1)]),
        moved(32, 128, 8, 4, &[(8, 4, 32), (2, 32, 4)]),
        moved(96, 384, 32, 2, &[(4, 2, 256), (4, 8, 8), (4, 32, 2), (2, 128, 128), (2, 256, 1024)]),
    ]),
    (Dtype::IQ3_K_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 8, 1, &[(2, 1, 32), (8, 2, 1), (2, 16, 64)]),
        moved(48, 192, 8, 4, &[(8, 4, 32), (2, 32, 4)]),
        moved(112, 448, 32, 2, &[(4, 2, 256), (4, 8, 8), (4, 32, 2), (2, 128, 128), (2, 256, 1024)]),
        moved(624, 2496, 32, 1, &[(8, 1, 128), (4, 8, 8), (8, 32, 1)]),
    ]),
    (Dtype::IQ4_K_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 8, 1, &[(2, 1, 32), (8, 2, 1)]),
        moved(32, 128, 8, 2, &[(4, 2, 32), (4, 8, 2)]), moved(64, 256, 8, 4, &[(8, 4, 32), (2, 32, 4)]),
        moved(128, 512, 32, 4, &[(2, 4, 128), (4, 8, 8), (2, 32, 256), (2, 64, 4), (8, 128, 512)]),
    ]),
    (Dtype::IQ5_K_R4, &[
        moved(0, 0, 16, 16, &[]), moved(16, 64, 8, 1, &[(2, 1, 32), (8, 2, 1)]),
        moved(32, 128, 8, 2, &[(4, 2, 32), (4, 8, 2)]), moved(64, 256, 8, 4, &[(8, 4, 32), (2, 32, 4)]),
        moved(128, 512, 32, 4, &[(2, 4, 512), (4, 8, 8), (2, 32, 256), (2, 64, 4), (2, 128, 128), (4, 256, 1024)]),
        moved(1152, 4608, 32, 1, &[(8, 1, 128), (4, 8, 8), (2, 32, 4), (4, 64, 1)]),
    ]),
    (Dtype::IQ4_KS_R4, &[
        moved(0, 0, 8, 8, &[(8, 8, 32)]),
        moved(64, 256, 32, 4, &[(2, 4, 128), (4, 8, 8), (2, 32, 256), (2, 64, 4), (8, 128, 512)]),
    ]),
    (Dtype::IQ5_KS_R4, &[
        moved(0, 0, 8, 8, &[(8, 8, 32)]),
        moved(64, 256, 32, 4, &[(2, 4, 512), (4, 8, 8), (2, 32, 256), (2, 64, 4), (2, 128, 128), (4, 256, 1024)]),
        moved(1088, 4352, 32, 1, &[(8, 1, 128), (4, 8, 8), (2, 32, 4), (4, 64, 1)]),
    ]),
    (Dtype::MXFP4_R8, &[
        moved(0, 0, 8, 8, &[]), moved(8, 64, 32, 32, &[(4, 32, 256)]),
    ]),
    (Dtype::IQ2_BN_R4, &[
        moved(0, 0, 32, 2, &[(4, 2, 128), (4, 8, 8), (4, 32, 2)]),
    ]),
    (Dtype::Q8_KV_R8, &[
        moved(0, 0, 32, 32, &[(8, 32, 256)]),
    ]),
    (Dtype::Q8_K_R8, &[
        moved(0, 0, 16, 16, &[(8, 272, 0)]), moved(16, 128, 32, 32, &[(8, 32, 256), (8, 272, 2048)]),
    ]),
    (Dtype::BF16_R16, &[
        moved(0, 0, 32, 32, &[]),
    ]),
];
