//! ComfyUI's formats.

use super::{Part, PartsOf, bf16s, codes, cols, f32s, rows};

/// A weight of so many codes a byte, its companions, and the description of the layer.
fn model(text: &str, per_byte: usize, companions: Vec<Part>) -> Vec<Part> {
    let n = rows() * cols();
    let mut parts = vec![
        Part("w.weight", "I8", vec![rows(), cols() / per_byte], codes(n / per_byte)),
        Part("w.comfy_quant", "U8", vec![text.len()], text.as_bytes().to_vec()),
    ];
    parts.extend(companions);
    parts
}

fn of_rows(name: &'static str) -> Part {
    Part(name, "F32", vec![rows()], f32s(rows()))
}

fn of_groups(name: &'static str) -> Part {
    let groups = cols() / 64;
    Part(name, "BF16", vec![groups, rows()], bf16s(groups * rows()))
}

/// Scales of groups that are relative to those of rows.
fn relative() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        // Below the bytes that stand for NaN.
        Part(
            "w.weight_s_rel",
            "F8_E4M3",
            vec![rows(), cols() / 16],
            codes(n / 16).iter().map(|byte| byte & 0x7b).collect(),
        ),
        of_rows("w.weight_s_channel"),
        Part("w.weight_codebook", "F32", vec![16], f32s(16)),
    ]
}

fn svdquant() -> Vec<Part> {
    vec![
        of_groups("w.weight_scale"),
        Part("w.smooth_factor", "BF16", vec![cols()], bf16s(cols())),
        Part("w.proj_down", "BF16", vec![cols(), 32], bf16s(cols() * 32)),
        Part("w.proj_up", "BF16", vec![rows(), 32], bf16s(rows() * 32)),
    ]
}

pub const SCHEMES: &[PartsOf] = &[
    ("comfy-int8-convrot", || {
        let text = r#"{"format":"int8_tensorwise","convrot":true}"#;
        model(text, 1, vec![of_rows("w.weight_scale")])
    }),
    ("comfy-w4a4", || {
        let text = r#"{"format":"convrot_w4a4"}"#;
        model(text, 2, vec![of_rows("w.weight_scale")])
    }),
    ("comfy-w4a8", || model(r#"{"format":"asym_w4a8_int8"}"#, 2, relative())),
    ("comfy-awq", || {
        let companions = ["w.weight_scale", "w.weight_zeros"].map(of_groups);
        model(r#"{"format":"awq_w4a16"}"#, 2, companions.into())
    }),
    ("comfy-svdquant", || model(r#"{"format":"svdquant_w4a4"}"#, 2, svdquant())),
];
