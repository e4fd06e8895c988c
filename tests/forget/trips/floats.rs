//! BitsAndBytes, FP8, and groups of FP4 and FP8 values.

use super::{
    Bytes, Case, Columns, E4M3, E5M2, FP4, Kept, Near, NoEncoder, Refused, Row, Values, Whole,
};

pub const TABLE: &[Case] = &[
    // Every block has a code of ±1, so encoding finds the same scale.
    (
        "bnb",
        "nf4 nf4_odd nf4_odd_columns nf4_partial nf4_storage_bf16 nf4_storage_f16",
        "nf4",
        0,
        Whole,
        Bytes,
    ),
    ("bnb", "nf4_blocksize_128", "nf4", 128, Whole, Bytes),
    // Quantized scales decode to values, from which encoding starts as from any others.
    (
        "bnb",
        "nf4_double_quant nf4_odd_double_quant nf4_partial_double_quant nf4_storage_f32 nf4_zeros",
        "nf4",
        0,
        Whole,
        Values,
    ),
    // The mean that is subtracted is that of the decoded scales. A step of the 8-bit map is at most
    // 0.0141 of the largest scale.
    (
        "bnb",
        "nf4_double_quant nf4_odd_double_quant nf4_partial_double_quant nf4_storage_f32 nf4_zeros",
        "nf4-dq",
        0,
        Whole,
        Near(0.0071),
    ),
    ("bnb", "nf4_double_quant_two_blocks", "nf4", 32, Whole, Values),
    ("bnb", "nf4_double_quant_two_blocks", "nf4-dq", 32, Whole, Near(0.0071)),
    // Code 8 is a second zero, which encoders never write.
    ("bnb", "fp4 fp4_double_quant fp4_odd fp4_partial", "fp4", 0, Whole, Values),
    ("bnb", "fp4_odd", "fp4", 0, Whole, Bytes),
    ("bnb", "fp4_blocksize_256", "fp4", 256, Whole, Values),
    ("bnb", "fp4_double_quant", "fp4-dq", 0, Whole, Near(0.0071)),
    ("bnb", "int8", "int8", 0, Row, Bytes),
    ("bnb", "nf4_hostile", "nf4", 0, Whole, Refused),
    ("bnb", "fp4_hostile", "fp4", 0, Whole, Refused),
    ("bnb", "int8_hostile", "int8", 0, Row, Refused),
    ("bnb", "nf4_1d nf4_3d fp4_3d_double_quant", "nf4", 0, Whole, Kept),
    // Made by a library, so the largest value has the largest code.
    ("fp8", "transformers_made", "fp8-block", 0, Whole, Bytes),
    ("fp8", "ct_float_block", "fp8-block-ct", 0, Whole, Bytes),
    ("fp8", "ct_float_tensor", "fp8", 0, Whole, Bytes),
    ("fp8", "ct_float_quantized", "fp8-channel", 0, Row, Bytes),
    // Random codes, of which not every scale has the largest: encoding finds other scales.
    (
        "fp8",
        "block_128 block_32x64_noconfig block_64x32 block_bf16_scale",
        "fp8-block-ragged",
        0,
        Whole,
        E4M3,
    ),
    (
        "fp8",
        "channel_n channel_n1 qscale tensor_0d tensor_1 mxfp8_u8_ragged",
        "fp8-channel",
        0,
        Row,
        E4M3,
    ),
    ("fp8", "comfy_names comfy_scaled_fp8", "fp8-comfy", 0, Whole, E4M3),
    ("fp8", "comfy_names comfy_scaled_fp8", "fp8-comfy-e5m2", 0, Whole, E5M2),
    (
        "fp8",
        "block_u8_exponents cast cast_e5m2 e5m2 e8m0 fnuz hostile hostile_channel mxfp8_u8",
        "fp8",
        0,
        Whole,
        Refused,
    ),
    ("fp8", "experts3d experts3d_flat mxfp8_u8_experts", "fp8", 0, Whole, Kept),
    (
        "fp8_dirs",
        "fbgemm_llama4 ignored_layers mistral_* modules_to_not_convert static text_config tiny_*",
        "fp8-channel",
        0,
        Row,
        E4M3,
    ),
    ("fp8_dirs", "embedding mxfp8 mxfp8_block_1x32 ue8m0_32x32", "fp8-channel", 0, Row, Refused),
    ("fp8_dirs", "experts_fused experts_w13", "fp8-channel", 0, Row, Kept),
    // E2M1 with floats for 32 inputs.
    ("fp8_dirs", "experts_fp4", "", 0, Whole, NoEncoder),
    ("fp8_dirs", "engram", "", 0, Whole, NoEncoder),
    ("fp8_dirs", "fused_qkv", "", 0, Whole, NoEncoder),
    ("fp8_dirs", "fused_qkv_layout", "", 0, Whole, NoEncoder),
    ("fp8_dirs", "ngram_fp8", "", 0, Whole, NoEncoder),
    ("fp8_dirs", "ngram_modelopt", "", 0, Whole, NoEncoder),
    ("fp8_dirs", "ngram_scalar", "", 0, Whole, NoEncoder),
    // Code 8 is a second zero in ModelOpt's layout, a negative zero in compressed-tensors'.
    ("nvfp4", "modelopt modelopt_noconfig", "nvfp4", 0, Whole, Values),
    (
        "nvfp4",
        "compressed_tensors compressed_tensors_global_0d compressed_tensors_noconfig",
        "nvfp4-ct",
        0,
        Whole,
        Values,
    ),
    ("nvfp4", "modelopt_hostile compressed_tensors_hostile", "nvfp4", 0, Whole, Refused),
    ("nvfp4", "modelopt_experts", "nvfp4", 0, Whole, Kept),
    ("mxfp4", "tiny_gpt_oss", "mxfp4-gpt-oss", 0, Whole, Bytes),
    ("mxfp4", "tiny_deepseek_v4", "mxfp4", 0, Columns(32), FP4),
    ("mxfp4", "gpt_oss_exponents", "mxfp4-gpt-oss", 0, Whole, Refused),
    ("mxfp4", "deepseek_v4_exponents", "mxfp4", 0, Whole, Refused),
];
