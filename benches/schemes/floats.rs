//! Small floats with scales: FP8, MXFP8, MXFP4, NVFP4, FP-Quant, NF4.

use super::{Part, PartsOf, codes, cols, f32s, rows};

/// FP8 with scales of this shape.
fn fp8(dtype: &'static str, shape: Vec<usize>) -> Vec<Part> {
    let scales = f32s(shape.iter().product());
    vec![
        Part("w.weight", dtype, vec![rows(), cols()], codes(rows() * cols())),
        Part("w.weight_scale", "F32", shape, scales),
    ]
}

/// Scales that are powers of two.
fn exponents(n: usize) -> Vec<u8> {
    (0..n).map(|i| 117 + (i % 7) as u8).collect()
}

fn nf4() -> Vec<Part> {
    let n = rows() * cols();
    let state =
        serde_json::json!({"quant_type": "nf4", "blocksize": 64, "shape": [rows(), cols()]})
            .to_string()
            .into_bytes();
    vec![
        Part("w.weight", "U8", vec![n / 2, 1], codes(n / 2)),
        Part("w.weight.absmax", "F32", vec![n / 64], f32s(n / 64)),
        Part("w.weight.quant_map", "F32", vec![16], f32s(16)),
        Part("w.weight.quant_state.bitsandbytes__nf4", "U8", vec![state.len()], state),
    ]
}

fn nvfp4() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight", "U8", vec![rows(), cols() / 2], codes(n / 2)),
        Part("w.weight_scale", "F8_E4M3", vec![rows(), cols() / 16], codes(n / 16)),
        Part("w.weight_scale_2", "F32", vec![], f32s(1)),
    ]
}

/// Rotations of 128 columns, and a scale for `block` codes.
fn fp_quant(block: usize) -> Vec<Part> {
    let n = rows() * cols();
    let sign = |i: usize| 1.0 - ((i / 128) & (i % 128)).count_ones() as f32 % 2.0 * 2.0;
    let matrix = (0..128 * 128).flat_map(|i| half::bf16::from_f32(0.0885 * sign(i)).to_le_bytes());
    vec![
        Part("w.qweight", "U8", vec![rows(), cols() / 2], codes(n / 2)),
        Part(
            "w.scales",
            "U8",
            vec![rows(), cols() / block],
            // 2^-7 as a power of two, 4 as E4M3: halves of such values are normal numbers.
            vec![if block == 32 { 0x78 } else { 0x48 }; n / block],
        ),
        Part("w.weight_global_scale", "F32", vec![1], f32s(1)),
        Part("w.forward_hadamard_matrix", "BF16", vec![128, 128], matrix.collect()),
    ]
}

/// MXFP8 as compressed-tensors stores it.
fn mxfp8() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight", "F8_E4M3", vec![rows(), cols()], codes(n)),
        Part("w.weight_scale", "U8", vec![rows(), cols() / 32], exponents(n / 32)),
    ]
}

/// MXFP8 as MLX stores it.
fn mlx_mxfp8() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight", "U32", vec![rows(), cols() / 4], codes(n)),
        Part("w.scales", "U8", vec![rows(), cols() / 32], exponents(n / 32)),
    ]
}

/// MXFP4 as compressed-tensors stores it.
fn mxfp4() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight_packed", "U8", vec![rows(), cols() / 2], codes(n / 2)),
        Part("w.weight_scale", "U8", vec![rows(), cols() / 32], exponents(n / 32)),
    ]
}

/// A stack of one expert of gpt-oss.
fn gpt_oss() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.down_proj_blocks", "U8", vec![1, rows(), cols() / 32, 16], codes(n / 2)),
        Part("w.down_proj_scales", "U8", vec![1, rows(), cols() / 32], exponents(n / 32)),
    ]
}

pub const SCHEMES: &[PartsOf] = &[
    ("fp8-tensor", || fp8("F8_E4M3", vec![])),
    ("fp8-block", || fp8("F8_E4M3", vec![rows() / 128, cols() / 128])),
    ("fp8-channel", || fp8("F8_E4M3", vec![rows(), 1])),
    ("fp8-e5m2", || fp8("F8_E5M2", vec![])),
    ("fp8-fnuz", || fp8("F8_E4M3FNUZ", vec![])),
    ("nf4", nf4),
    ("nvfp4", nvfp4),
    ("fp-quant-mxfp4", || fp_quant(32)),
    ("fp-quant-nvfp4", || fp_quant(16)),
    ("mxfp8", mxfp8),
    ("mlx-mxfp8", mlx_mxfp8),
    ("mxfp4", mxfp4),
    ("gpt-oss", gpt_oss),
];
