//! The table of ggml's block types, and of those that forks of llama.cpp add to them.

/// Calls `$callback!` with `$arguments`, followed by one row for each of ggml's block types, in
/// braces:
///
/// ```text
/// name   type number in GGUF   bytes of a block / values in it   description   byte-swapped words;
/// ```
///
/// and one row for each type of a fork of llama.cpp, in braces, those of ik_llama.cpp first and
/// then those of PrismML's:
///
/// ```text
/// name   type number in GGUF   bytes before each row + bytes of a block / values in it   description;
/// ```
///
/// and for each type of ggml from before May 2023, whose number is that of its time, with 2^16 for each
/// version of blocks up to its own. GGUF files have none of them.
///
/// Then one row for each type of ik_llama.cpp whose blocks have values of several rows, in braces:
///
/// ```text
/// name   type number in GGUF   number of rows `of` their type   bytes before each row + bytes a row has of a block / its values;
/// ```
///
/// Rows are of the same type where no other has such blocks. They are decoded by the struct of that
/// name.
///
/// A name is the variant of [`Dtype`](super::Dtype), the type's name in GGUF, and the struct that
/// implements `DecodeBlock` in `remember::kernels::ggml` and `EncodeBlock` in
/// `lethe::kernels::ggml`. All of these are made from this table, and so are the lists of the
/// tests, which also ask for a naive twin of each type and direction. What a row lacks does not
/// compile. Types of forks are decoded only, and implement `DecodeRowBlock`. Interleaved rows
/// become rows of their type first, as `remember::kernels::ggml::interleaved` says.
///
/// Byte-swapped words are the `(byte offset, width)` of the numbers of a block that files of the
/// other byte order store reversed; `-` where gguf-py's `scripts/gguf_convert_endian.py` defines no
/// such layout. It defines none for types of forks.
///
/// Bytes before each row are its header, which begins with a scale: F16 if they are two, else F32.
/// Numbers, sizes and headers of ik_llama.cpp's types: `type_traits` in its `ggml/src/ggml.c`, at
/// commit
/// [8337e4c](https://github.com/ikawrakow/ik_llama.cpp/blob/8337e4cd3861406fc04e0854b1409cd1b027fbc9/ggml/src/ggml.c).
/// Those of PrismML's types: `block_pq2_0` and `block_ptq1_0` in `ggml/src/ggml-common.h` of branch
/// `prism` of its [llama.cpp](https://github.com/PrismML-Eng/llama.cpp). Old types of ggml: `remember::kernels::ggml::old`.
macro_rules! ggml_block_types {
    ($callback:ident { $($arguments:tt)* }) => {
        $callback! {
            $($arguments)*
            {
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
                TQ2_0 35 66 / 256 "ternary, four to a byte" [(64, 2)];
                MXFP4 39 17 / 32 "E2M1 with a power-of-two scale" [];
                NVFP4 40 36 / 64 "E2M1 with UE4M3 scales for 16 values each" [];
                Q1_0 41 18 / 128 "signs with one scale" [(0, 2)];
                Q2_0 42 18 / 64 "2-bit, one scale" -;
            }
            {
                Q6_0 133 0 + 26 / 32 "6-bit, one scale";
                IQ1_BN 134 2 + 13 / 64 "ternary, 16 to three bytes and a digit, one scale a row";
                IQ2_BN 135 4 + 16 / 64 "ternary, four to a byte, one scale a row";
                IQ2_K 137 0 + 76 / 256 "2-bit codebooks, 4-bit scales";
                IQ3_K 138 0 + 110 / 256 "3-bit codebooks, 4-bit scales with signs";
                IQ4_K 139 0 + 144 / 256 "4-bit codebooks, 6-bit scales";
                IQ5_K 140 0 + 176 / 256 "5-bit codebooks, 6-bit scales";
                IQ6_K 141 0 + 212 / 256 "6-bit cubic codes, 8-bit scales";
                IQ4_KS 144 4 + 136 / 256 "4-bit codebooks, 7-bit scales";
                IQ2_KS 145 2 + 70 / 256 "2-bit codebooks, 5-bit scales";
                IQ4_KSS 146 4 + 128 / 256 "4-bit codebooks, 7-bit scales in the lowest bits of codes";
                Q8_KV 151 8 + 32 / 32 "8-bit, one scale a row";
                IQ5_KS 152 4 + 168 / 256 "5-bit codebooks, 7-bit scales";
                IQ2_KT 153 4 + 68 / 256 "2-bit trellis, 4-bit scales";
                IQ3_KT 154 4 + 100 / 256 "3-bit trellis with signs, 4-bit scales";
                IQ4_KT 155 4 + 128 / 256 "4-bit trellis, 7-bit scales";
                IQ3_KS 156 2 + 102 / 256 "3-bit codebooks, 5-bit scales";
                IQ2_KL 157 2 + 86 / 256 "codebook of 32 pairs, 6-bit scales";
                IQ1_KT 158 4 + 56 / 256 "1.75-bit trellis, 4-bit scales";
                PQ2_0 142 0 + 34 / 128 "2-bit, one scale";
                PTQ1_0 143 0 + 28 / 128 "ternary, five to a byte";
                Q4_0_V0 65538 0 + 20 / 32 "4-bit, one F32 scale";
                Q4_1_V0 65539 0 + 24 / 32 "4-bit, F32 scale and minimum";
                Q4_2 65540 0 + 10 / 16 "4-bit, one scale";
                Q4_3 65541 0 + 12 / 16 "4-bit, scale and minimum";
                Q5_0_V0 65542 0 + 22 / 32 "5-bit, one scale";
                Q5_1_V0 65543 0 + 24 / 32 "5-bit, scale and minimum";
                Q8_0_V0 65544 0 + 36 / 32 "8-bit, one F32 scale";
                Q4_0_V1 131074 0 + 20 / 32 "4-bit, one F32 scale";
                Q4_1_V1 131075 0 + 24 / 32 "4-bit, F32 scale and minimum";
            }
            {
                Q4_0_R8 202 8 of Q4_0 0 + 18 / 32;
                Q5_0_R4 206 4 of Q5_0 0 + 22 / 32;
                Q8_0_R8 208 8 of Q8_0 0 + 34 / 32;
                Q2_K_R4 210 4 of Q2_K 0 + 84 / 256;
                Q3_K_R4 211 4 of Q3_K 0 + 110 / 256;
                Q4_K_R4 212 4 of Q4_K 0 + 144 / 256;
                Q5_K_R4 213 4 of Q5_K 0 + 176 / 256;
                Q6_K_R4 214 4 of Q6_K 0 + 210 / 256;
                IQ2_XXS_R4 216 4 of IQ2_XXS 0 + 66 / 256;
                IQ2_XS_R4 217 4 of IQ2_XS 0 + 74 / 256;
                IQ3_XXS_R4 218 4 of IQ3_XXS 0 + 98 / 256;
                IQ4_NL_R4 220 4 of IQ4_NL 0 + 18 / 32;
                IQ1_S_R4 219 4 of IQ1_S_R4 2 + 6 / 32;
                IQ3_S_R4 221 4 of IQ3_S 0 + 110 / 256;
                IQ2_S_R4 222 4 of IQ2_S 0 + 82 / 256;
                IQ4_XS_R8 223 8 of IQ4_XS 0 + 136 / 256;
                IQ1_M_R4 229 4 of IQ1_M_R4 2 + 7 / 32;
                BF16_R16 230 16 of BF16 0 + 4 / 2;
                Q6_0_R4 233 4 of Q6_0 0 + 26 / 32;
                IQ2_BN_R4 335 4 of IQ2_BN 4 + 16 / 64;
                IQ2_K_R4 337 4 of IQ2_K 0 + 76 / 256;
                IQ3_K_R4 338 4 of IQ3_K 0 + 110 / 256;
                IQ4_K_R4 339 4 of IQ4_K 0 + 144 / 256;
                IQ5_K_R4 340 4 of IQ5_K 0 + 176 / 256;
                IQ4_KS_R4 344 4 of IQ4_KS 4 + 136 / 256;
                IQ5_KS_R4 352 4 of IQ5_KS 4 + 168 / 256;
                MXFP4_R8 353 8 of MXFP4 0 + 17 / 32;
                Q8_KV_R8 398 8 of Q8_KV 4 + 32 / 32;
                Q8_K_R8 399 8 of Q8_0 0 + 258 / 256;
            }
        }
    };
}
pub(crate) use ggml_block_types;
