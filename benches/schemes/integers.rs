//! Integers packed along rows: INT8 and W4A16, MLX, HQQ, SINQ, ModelSlim, sglang, UQFF.

use super::{Part, PartsOf, bf16s, codes, cols, f16s, f32s, rows};

/// INT8 with a scale for each row, and a zero point if it has a name.
fn per_row(name: &'static str, scale: &'static str, zero: Option<&'static str>) -> Vec<Part> {
    let mut parts = vec![
        Part(name, "I8", vec![rows(), cols()], codes(rows() * cols())),
        Part(scale, "F32", vec![rows(), 1], f32s(rows())),
    ];
    parts.extend(zero.map(|zero| Part(zero, "I8", vec![rows(), 1], codes(rows()))));
    parts
}

/// compressed-tensors' four bits, in groups of 128.
fn w4a16(asymmetric: bool) -> Vec<Part> {
    let n = rows() * cols();
    let dims = [rows() as i64, cols() as i64]
        .map(i64::to_le_bytes)
        .concat();
    let mut parts = vec![
        Part("w.weight_packed", "I32", vec![rows(), cols() / 8], codes(n / 2)),
        Part("w.weight_scale", "BF16", vec![rows(), cols() / 128], bf16s(n / 128)),
        Part("w.weight_shape", "I64", vec![2], dims),
    ];
    let zeros = Part("w.weight_zero_point", "I32", vec![rows() / 8, cols() / 128], codes(n / 256));
    parts.extend(asymmetric.then_some(zeros));
    parts
}

fn mlx(bits: usize) -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight", "U32", vec![rows(), cols() * bits / 32], codes(n * bits / 8)),
        Part("w.scales", "BF16", vec![rows(), cols() / 64], bf16s(n / 64)),
        Part("w.biases", "BF16", vec![rows(), cols() / 64], bf16s(n / 64)),
    ]
}

fn hqq(packing: &str, bits: usize) -> Vec<Part> {
    let n = rows() * cols();
    let word = |x: usize| (x as i64).to_le_bytes().to_vec();
    vec![
        Part("w.W_q", "U8", vec![n / 64 * bits / 8, 64], codes(n * bits / 8)),
        Part("w.scale", "F16", vec![n / 64, 1], f16s(n / 64)),
        Part("w.zero", "F16", vec![n / 64, 1], f16s(n / 64)),
        Part("w.packing", "U8", vec![packing.len()], packing.as_bytes().to_vec()),
        Part("w.axis", "I64", vec![], word(1)),
        Part("w.group_size", "I64", vec![], word(64)),
        Part("w.shape", "I64", vec![2], [word(rows()), word(cols())].concat()),
    ]
}

/// Four bits in groups of 64, with numbers of eight bits.
fn sinq4() -> Vec<Part> {
    let groups = rows() * cols() / 64;
    vec![
        Part("w.W_q", "U8", vec![groups / 2, 64], codes(rows() * cols() / 2)),
        Part("w.meta.scale.x", "U8", vec![32, groups / 32], codes(groups)),
        Part("w.meta.scale.s", "F16", vec![1, groups / 32], f16s(groups / 32)),
        Part("w.meta.scale.m", "F16", vec![1, groups / 32], f16s(groups / 32)),
        Part("w.meta.zero.x", "U8", vec![groups, 1], codes(groups)),
        Part("w.meta.zero.s", "F16", vec![1, 1], f16s(1)),
        Part("w.meta.zero.m", "F16", vec![1, 1], f16s(1)),
        Part("w.meta.scale2", "F16", vec![1, cols()], f16s(cols())),
    ]
}

/// The file beside the model.
pub fn sinq_meta() -> String {
    let meta = serde_json::json!({
        "nbits": 4, "group_size": 64, "shape": [rows(), cols()], "axis": 1, "packing": "4bit_u8",
        "method": "sinq_quantAux", "compute_dtype": "torch.bfloat16", "view_as_float": false,
    });
    serde_json::json!({"w": {"meta": meta}}).to_string()
}

fn uqff() -> Vec<Part> {
    let n = rows() * cols();
    let number = |n: usize| (n as u32).to_le_bytes().to_vec();
    vec![
        Part("uqff.version.major", "U32", vec![], number(1)),
        Part("uqff.version.minor", "U32", vec![], number(2)),
        Part("w.weight", "U8", vec![n / 32 * 33], codes(n / 32 * 33)),
        Part("w.weight.format", "U8", vec![], vec![5]),
        Part("w.weight.num_blocks", "U32", vec![], number(n / 32)),
        Part("w.weight.shape", "U32", vec![2], [number(rows()), number(cols())].concat()),
    ]
}

/// INT8 of bitsandbytes.
fn int8() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight", "I8", vec![rows(), cols()], codes(n)),
        Part("w.SCB", "F32", vec![rows()], f32s(rows())),
    ]
}

fn modelslim_w4a8() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight", "I8", vec![rows() / 2, cols()], codes(n / 2)),
        Part("w.weight_scale", "F32", vec![rows(), 1], f32s(rows())),
        Part("w.weight_offset", "F32", vec![rows(), 1], f32s(rows())),
    ]
}

fn sglang_w4() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight", "I8", vec![rows(), cols() / 2], codes(n / 2)),
        Part("w.weight_scale_inv", "F32", vec![rows(), cols() / 128], f32s(n / 128)),
    ]
}

fn sglang_int8() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight", "I8", vec![rows(), cols()], codes(n)),
        Part("w.weight_scale_inv", "F32", vec![rows() / 128, cols() / 128], f32s(n >> 14)),
    ]
}

pub const SCHEMES: &[PartsOf] = &[
    ("int8", int8),
    ("ct-int8", || per_row("w.weight", "w.weight_scale", None)),
    ("ct-int8-asym", || per_row("w.weight", "w.weight_scale", Some("w.weight_zero_point"))),
    ("quanto8", || per_row("w.weight._data", "w.weight._scale", None)),
    ("w4a16", || w4a16(false)),
    ("w4a16-asym", || w4a16(true)),
    ("mlx3", || mlx(3)),
    ("mlx4", || mlx(4)),
    ("mlx8", || mlx(8)),
    ("hqq4", || hqq("4bit_u8", 4)),
    ("hqq8", || hqq("8bit_u8", 8)),
    ("sinq4", sinq4),
    ("modelslim-w4a8", modelslim_w4a8),
    ("sglang-w4", sglang_w4),
    ("sglang-int8", sglang_int8),
    ("uqff-f8q8", uqff),
];
