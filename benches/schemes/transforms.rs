//! INT8 of compressed-tensors with transforms, with the config in the file's metadata.

use super::{FileOf, Part, bf16s, codes, cols, file_with, rows};

/// Rows of a matrix.
const SIZE: usize = 128;

/// Codes of both signs: sums of values of one sign never cancel.
fn signed_codes(n: usize) -> Vec<u8> {
    let codes = codes(n).into_iter();
    codes.map(|code| code.wrapping_sub(0x3b)).collect()
}

/// Numbers of both signs, of the size of those of an orthogonal matrix.
fn signed_f32s(n: usize) -> Vec<u8> {
    let codes = signed_codes(3 * n);
    let numbers = codes.chunks_exact(3).map(|three| {
        let three: f32 = three.iter().map(|&code| f32::from(code as i8)).sum();
        three / (61.0 * (SIZE as f32).sqrt())
    });
    numbers.flat_map(f32::to_le_bytes).collect()
}

fn model(kind: &str, location: &str, matrix: Option<Vec<u8>>) -> Vec<u8> {
    let config = format!(
        r#"{{"quant_method":"compressed-tensors","transform_config":{{"config_groups":{{"v":{{"type":"{kind}","head_dim":{SIZE},"apply":[{{"targets":["w"],"location":"{location}"}}]}}}}}}}}"#
    );
    let metadata = serde_json::json!({ "quantization_config": config });
    let header = serde_json::Map::from_iter([("__metadata__".to_owned(), metadata)]);
    let mut parts = vec![
        Part("w.weight", "I8", vec![rows(), cols()], signed_codes(rows() * cols())),
        Part("w.weight_scale", "BF16", vec![rows(), 1], bf16s(rows())),
    ];
    parts.extend(matrix.map(|bytes| Part("w.v_input.weight", "F32", vec![SIZE, SIZE], bytes)));
    file_with(&parts, header)
}

pub const FILES: &[FileOf] = &[
    ("transform-input", || model("hadamard", "input", None)),
    ("transform-output", || model("hadamard", "output", None)),
    ("transform-dense", || model("random-matrix", "input", Some(signed_f32s(SIZE * SIZE)))),
];
