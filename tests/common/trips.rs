//! Which goldens of the decoders come out the same when they are encoded again, and how near the others do.
#![allow(dead_code)]

/// What becomes of a case.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    /// What is stored is the same: codes, scales, zero points.
    Bytes,
    /// What is stored decodes to the same values; it may be written in another way.
    Values,
    /// No value is farther off than so much of the largest of those that share its scale.
    Near(f64),
    /// It has values that are not finite, and the error names one.
    Refused,
    /// The scheme is not for tensors of this kind, and they stay.
    Kept,
    /// It takes an importance matrix.
    Importance,
    /// Nothing in it is quantized, or it cannot be decoded.
    Nothing,
    /// No scheme has this layout.
    NoEncoder,
}
pub use Verdict::{Bytes, Importance, Kept, Near, NoEncoder, Nothing, Refused, Values};

/// How many values share a scale.
#[derive(Debug, Clone, Copy)]
pub enum Share {
    Columns(usize),
    Row,
    Tensor,
}
pub use Share::{Columns, Row, Tensor as Whole};

/// Half a step of E4M3, and of E5M2, at the upper end.
const E4M3: Verdict = Near(1.0 / 16.0);
const E5M2: Verdict = Near(1.0 / 8.0);

/// Half a step of 4 and of 8 bits with a scale of 2 max / 15 and 2 max / 255, and a little for rounding.
const INT4: Verdict = Near(1.001 / 15.0);
const INT8: Verdict = Near(1.001 / 255.0);

/// A step of 4 bits between the smallest and the largest value: half of it, and half for the zero point. The scale is
/// rounded to F16.
const ZERO_POINT: Verdict = Near(2.05 / 15.0);

/// FP4: half of the step from 4 to 6, of which 4 is the least that the largest value can be; or 8 that becomes 6.
const FP4: Verdict = Near(1.0 / 4.0);

/// Directory, cases (`*` ends a beginning of names; more than one row may be about a case), scheme, group size if it is not
/// the usual one, what shares a scale, verdict.
pub const TABLE: &[(&str, &str, &str, usize, Share, Verdict)] = &[
    // Every block has a code of ±1, so the scale is found again.
    ("bnb", "nf4 nf4_odd nf4_odd_columns nf4_partial nf4_storage_bf16 nf4_storage_f16", "nf4", 0, Whole, Bytes),
    ("bnb", "nf4_blocksize_128", "nf4", 128, Whole, Bytes),
    // Scales that were quantized are values like others.
    (
        "bnb",
        "nf4_double_quant nf4_odd_double_quant nf4_partial_double_quant nf4_storage_f32 nf4_zeros",
        "nf4",
        0,
        Whole,
        Values,
    ),
    // Their mean is that of the scales decoded. A step of the 8-bit map is at most 0.0141 of the largest.
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
    // Code 8 is a second zero, which is never written.
    ("bnb", "fp4 fp4_double_quant fp4_odd fp4_partial", "fp4", 0, Whole, Values),
    ("bnb", "fp4_odd", "fp4", 0, Whole, Bytes),
    ("bnb", "fp4_blocksize_256", "fp4", 256, Whole, Values),
    ("bnb", "fp4_double_quant", "fp4-dq", 0, Whole, Near(0.0071)),
    ("bnb", "int8", "int8", 0, Row, Bytes),
    ("bnb", "nf4_hostile", "nf4", 0, Whole, Refused),
    ("bnb", "fp4_hostile", "fp4", 0, Whole, Refused),
    ("bnb", "int8_hostile", "int8", 0, Row, Refused),
    ("bnb", "nf4_1d nf4_3d fp4_3d_double_quant", "nf4", 0, Whole, Kept),
    // Made by a library: the largest value has the largest code.
    ("fp8", "transformers_made", "fp8-block", 0, Whole, Bytes),
    ("fp8", "ct_float_block", "fp8-block-ct", 0, Whole, Bytes),
    ("fp8", "ct_float_tensor", "fp8", 0, Whole, Bytes),
    ("fp8", "ct_float_quantized", "fp8-channel", 0, Row, Bytes),
    // Codes at random, and not the largest under each scale: the scales become others.
    ("fp8", "block_128 block_32x64_noconfig block_64x32 block_bf16_scale", "fp8-block-ragged", 0, Whole, E4M3),
    ("fp8", "channel_n channel_n1 qscale tensor_0d tensor_1 mxfp8_u8_ragged", "fp8-channel", 0, Row, E4M3),
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
    // Code 8 is a second zero in ModelOpt's, a negative one in compressed-tensors'.
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
    ("compressed_tensors", "tiny_fp8_dynamic", "fp8-channel", 0, Row, Bytes),
    ("compressed_tensors", "mxfp4 mxfp4_a16 tiny_mxfp4", "mxfp4", 0, Columns(32), Values),
    ("compressed_tensors", "mxfp8 tiny_mxfp8", "mxfp8", 0, Columns(32), Values),
    ("compressed_tensors", "nvfp4_a16 consolidated_nvfp4", "nvfp4-ct", 0, Columns(16), Values),
    // Projections that are fused had scales of their own.
    ("compressed_tensors", "tiny_nvfp4", "nvfp4-ct", 0, Columns(16), E4M3),
    // -8 (-128) is the scale's largest multiple, and no code needs to have been it.
    ("compressed_tensors", "pack_b* pack_w* pack_old_* pack_actorder pack_0_9_groups", "w8a16", 0, Row, INT8),
    (
        "compressed_tensors",
        "pack_g_idx* pack_ignore_kv pack_preset_name pack_shape_i32 pack_tensor",
        "w8a16",
        0,
        Row,
        INT8,
    ),
    ("compressed_tensors", "int_quantized int_w8a8 naive_int naive_int4 tiny_w8a8", "w8a8", 0, Row, INT8),
    ("compressed_tensors", "tiny_w4a16 tiny_w4a16_asym tiny_moe_w4a16 pack_b4", "w4a16", 32, Columns(32), INT4),
    (
        "compressed_tensors",
        "tiny_w4a16 tiny_w4a16_asym tiny_moe_w4a16 pack_b4",
        "w4a16-asym",
        32,
        Columns(32),
        ZERO_POINT,
    ),
    ("compressed_tensors", "tiny_mixed mixed_precision float_quantized tiny_fp8_block", "fp8-channel", 0, Row, E4M3),
    ("compressed_tensors", "*_hostile pack_hostile_*", "w8a16", 0, Row, Refused),
    ("compressed_tensors", "pack_experts3d*", "w4a16", 0, Whole, Kept),
    ("compressed_tensors", "mxfp6 sparse_*", "", 0, Whole, NoEncoder),
    // A group's smallest value becomes a multiple of its scale, which changes the scale.
    ("mlx", "b2_g64_*", "mlx-2bit", 64, Columns(64), Bytes),
    ("mlx", "b3_g64_*", "mlx-3bit", 64, Columns(64), Near(3.0 / 7.0)),
    ("mlx", "b4_g64_*", "mlx-4bit", 64, Columns(64), Near(3.0 / 15.0)),
    ("mlx", "b4_g32_*", "mlx-4bit", 32, Columns(32), Near(3.0 / 15.0)),
    ("mlx", "b4_g128_*", "mlx-4bit", 128, Columns(128), Near(3.0 / 15.0)),
    ("mlx", "b5_g64_*", "mlx-5bit", 64, Columns(64), Near(3.0 / 31.0)),
    ("mlx", "b6_g64_*", "mlx-6bit", 64, Columns(64), Near(3.0 / 63.0)),
    ("mlx", "b8_* metal_b8_*", "mlx-8bit", 32, Columns(32), Near(3.0 / 255.0)),
    ("mlx", "b2_g32_* b2_g128_* metal_b2_*", "mlx-2bit", 32, Columns(32), Near(1.0)),
    (
        "mlx",
        "b3_g32_* b3_g128_* b5_g32_* b5_g128_* b6_g32_* b6_g128_* b1_*",
        "mlx-6bit",
        32,
        Columns(32),
        Near(3.0 / 63.0),
    ),
    (
        "mlx",
        "inferred mode_not_inherited no_mode overrides nvfp4_global_scale metal_b4_* tiny_*",
        "mlx-8bit",
        32,
        Columns(32),
        Near(3.0 / 255.0),
    ),
    ("mlx", "mxfp4 mxfp4_f32_input_single_key", "mlx-mxfp4", 0, Columns(32), Values),
    ("mlx", "mxfp8", "mlx-mxfp8", 0, Columns(32), Values),
    ("mlx", "nvfp4", "mlx-nvfp4", 0, Columns(16), Bytes),
    ("mlx", "hostile_* mxfp4_all_scales mxfp8_all_scales nvfp4_all_scales", "mlx-4bit", 0, Whole, Refused),
    // Zero points at random, so that what a group spans is not what its codes could.
    (
        "gptq",
        "*_v1_act_order *_g128_act_order *_config_act_order *_short_group_act_order *_sym *_metadata *_g32 *_v1_one_group *_metadata_one_group *_quantize_config *_no_config *_scales_f32 *_scales_bf16 *_v2_no_g_idx *_qzeros_no_g_idx *_no_qzeros v1_wrap b3_v1_short_group",
        "gptq-asym",
        32,
        Columns(32),
        ZERO_POINT,
    ),
    ("gptq", "b4_v1_sym b4_sym_no_qzeros b4_v2_sym", "gptq", 32, Columns(32), Near(1.02 / 15.0)),
    ("gptq", "*_ragged*", "gptq-asym", 32, Whole, Kept),
    ("gptq", "*_hostile_*", "gptq-asym", 32, Whole, Refused),
    ("gptq_more", "tiny_llama", "gptq", 32, Columns(32), Near(1.02 / 15.0)),
    ("awq", "g32_config_bias scales_bf16", "awq", 32, Columns(32), ZERO_POINT),
    ("awq", "g64_no_config", "awq", 64, Columns(64), ZERO_POINT),
    ("awq", "g128_quant_config", "awq", 128, Columns(128), ZERO_POINT),
    ("awq", "no_qzeros zeros_eight one_group one_group_no_config", "awq", 32, Columns(32), ZERO_POINT),
    ("awq", "hostile_*", "awq", 32, Whole, Refused),
    ("awq", "k100_* k72_* n136_* n40_*", "awq", 32, Whole, Kept),
    // Layers that are fused share their largest value in ModelOpt's export: the scales of groups become others.
    ("modelopt", "tiny_llama_nvfp4 tiny_llama_w4a16_nvfp4", "nvfp4", 0, Columns(16), E4M3),
    ("modelopt", "tiny_llama_fp8", "fp8-tensor", 0, Whole, Near(1.0 / 4_194_304.0)),
    ("modelopt", "tiny_llama_mxfp8", "mxfp8-modelopt", 0, Columns(32), Values),
    ("modelopt", "mxfp4 w4a8_mxfp4_fp8", "mxfp4-modelopt", 0, Columns(32), Values),
    ("comfy", "scaled_fp8 scaled_fp8_f32_marker float8_e4m3fn", "fp8-comfy", 0, Whole, Values),
    ("comfy", "scaled_fp8_e5m2", "fp8-comfy-e5m2", 0, Whole, Values),
    ("comfy", "float8_e5m2", "fp8-comfy-e5m2", 0, Whole, Bytes),
    // A type with one scale and codes of which the largest magnitude must occur.
    ("gguf", "q1_0", "gguf:q1_0", 0, Columns(128), Values),
    ("gguf", "tq1_0", "gguf:tq1_0", 0, Columns(256), Values),
    ("gguf", "mxfp4", "gguf:mxfp4", 0, Columns(32), Values),
    // Half a step, or a whole one of what lies opposite the extreme, which has no code.
    ("gguf", "q4_0", "gguf:q4_0", 0, Columns(32), Near(1.01 / 8.0)),
    ("gguf", "q5_0", "gguf:q5_0", 0, Columns(32), Near(1.01 / 16.0)),
    ("gguf", "q4_1", "gguf:q4_1", 0, Columns(32), Near(1.03 / 15.0)),
    ("gguf", "q5_1", "gguf:q5_1", 0, Columns(32), Near(1.06 / 31.0)),
    ("gguf", "q8_0", "gguf:q8_0", 0, Columns(32), Near(0.5 / 127.0 + 1.0 / 2048.0)),
    ("gguf", "q8_1", "gguf:q8_1", 0, Columns(32), Near(0.5 / 127.0 + 1.0 / 2048.0)),
    ("gguf", "q8_k", "gguf:q8_k", 0, Columns(256), Near(0.501 / 127.0)),
    ("gguf", "q2_0", "gguf:q2_0", 0, Columns(64), Near(0.51)),
    ("gguf", "tq2_0", "gguf:tq2_0", 0, Columns(256), Near(0.51)),
    ("gguf", "nvfp4", "gguf:nvfp4", 0, Columns(16), FP4),
    // Half of the largest step of the table, 24 of 127.
    ("gguf", "iq4_nl", "gguf:iq4_nl", 0, Columns(32), Near(13.0 / 127.0)),
    ("gguf", "iq4_xs", "gguf:iq4_xs", 0, Columns(256), Near(13.0 / 127.0)),
    // A step of the block with the largest scale.
    ("gguf", "q2_k", "gguf:q2_k", 0, Columns(256), Near(2.0 / 3.0)),
    ("gguf", "q3_k", "gguf:q3_k_s", 0, Columns(256), Near(1.0 / 4.0)),
    ("gguf", "q4_k", "gguf:q4_k_s", 0, Columns(256), Near(2.0 / 15.0)),
    ("gguf", "q5_k", "gguf:q5_k_s", 0, Columns(256), Near(2.0 / 31.0)),
    ("gguf", "q6_k", "gguf:q6_k", 0, Columns(256), Near(1.0 / 32.0)),
    ("gguf", "iq3_s", "gguf:iq3_s", 0, Columns(256), Near(1.0 / 4.0)),
    ("gguf", "iq3_xxs", "gguf:iq3_xxs", 0, Whole, Importance),
    ("gguf", "iq2_s", "gguf:iq2_m", 0, Whole, Importance),
    ("gguf", "iq2_xs", "gguf:iq2_xs", 0, Whole, Importance),
    ("gguf", "iq2_xxs", "gguf:iq2_xxs", 0, Whole, Importance),
    ("gguf", "iq1_s", "gguf:iq1_s", 0, Whole, Importance),
    ("gguf", "iq1_m", "gguf:iq1_m", 0, Whole, Importance),
    ("gguf", "nvfp4_scale", "gguf:nvfp4", 0, Whole, Refused),
    ("gguf", "unquantized", "gguf:q8_0", 0, Whole, Nothing),
];

/// Layouts that nothing is encoded to, whole directories of them.
pub const FOREIGN: &[&str] = &["bitnet", "gemma_qat", "hqq", "marlin", "quanto", "quark", "torchao", "awq_more"];

/// Of these the cases that are not in the table are such layouts, or mixtures of several.
pub const MIXED: &[&str] = &["comfy", "gptq_more", "modelopt"];
