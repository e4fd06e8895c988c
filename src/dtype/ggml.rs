//! The table of ggml's block types.

/// Calls `$callback!` with `$arguments`, followed by one row for each of ggml's block types:
///
/// ```text
/// name   type number in GGUF   bytes of a block / values in it   description   byte-swapped words;
/// ```
///
/// A name is the variant of [`Dtype`](super::Dtype), the type's name in GGUF, and the struct that
/// implements `DecodeBlock` in `kernels::remember::ggml` and `EncodeBlock` in `kernels::lethe::ggml`. All of these
/// are made from this table, and so are the lists of the tests, which also ask for a naive twin of
/// each type and direction. What a row lacks does not compile.
///
/// Byte-swapped words are the `(byte offset, width)` of the numbers of a block that files of the
/// other byte order store reversed; `-` where gguf-py's `scripts/gguf_convert_endian.py` defines no
/// such layout.
macro_rules! ggml_block_types {
    ($callback:ident { $($arguments:tt)* }) => {
        $callback! {
            $($arguments)*
            Q4_0 2 18 / 32 "4-bit, one scale" [(0, 2)];
            Q4_1 3 20 / 32 "4-bit, scale and minimum" -;
            Q5_0 6 22 / 32 "5-bit, one scale" -;
            Q5_1 7 24 / 32 "5-bit, scale and minimum" -;
            Q8_0 8 34 / 32 "8-bit, one scale" [(0, 2)];
            Q8_1 9 36 / 32 "8-bit, scale and sum" -;
            Q2_K 10 84 / 256 "2-bit, 4-bit scales and minimums" -;
            Q3_K 11 110 / 256 "3-bit, 6-bit scales" -;
            Q4_K 12 144 / 256 "4-bit, 6-bit scales and minimums" [(0, 2), (2, 2)];
            Q5_K 13 176 / 256 "5-bit, 6-bit scales and minimums" -;
            Q6_K 14 210 / 256 "6-bit, 8-bit scales" [(208, 2)];
            Q8_K 15 292 / 256 "8-bit, F32 scale" -;
            IQ2_XXS 16 66 / 256 "2-bit grid of 256" -;
            IQ2_XS 17 74 / 256 "2-bit grid of 512" -;
            IQ3_XXS 18 98 / 256 "3-bit grid of 256" -;
            IQ1_S 19 50 / 256 "1.5-bit grid of 2048" -;
            IQ4_NL 20 18 / 32 "4-bit codebook" -;
            IQ3_S 21 110 / 256 "3-bit grid of 512" -;
            IQ2_S 22 82 / 256 "2-bit grid of 1024" -;
            IQ4_XS 23 136 / 256 "4-bit codebook, 6-bit scales" -;
            IQ1_M 29 56 / 256 "1.75-bit grid of 2048" -;
            TQ1_0 34 54 / 256 "ternary, five to a byte" -;
            TQ2_0 35 66 / 256 "ternary, four to a byte" -;
            MXFP4 39 17 / 32 "E2M1 with a power-of-two scale" [];
            NVFP4 40 36 / 64 "E2M1 with UE4M3 scales for 16 values each" [];
            Q1_0 41 18 / 128 "signs with one scale" -;
            Q2_0 42 18 / 64 "2-bit, one scale" -;
        }
    };
}
pub(crate) use ggml_block_types;
