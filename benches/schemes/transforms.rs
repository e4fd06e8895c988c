//! INT8 of compressed-tensors with transforms, with the config in the file's metadata.

use super::{FileOf, Part, codes, cols, f32s, file_with, rows};

/// Rows of a matrix.
const SIZE: usize = 128;

fn model(kind: &str, location: &str, matrix: Option<Vec<u8>>) -> Vec<u8> {
    let config = format!(
        r#"{{"quant_method":"compressed-tensors","transform_config":{{"config_groups":{{"v":{{"type":"{kind}","head_dim":{SIZE},"apply":[{{"targets":["w"],"location":"{location}"}}]}}}}}}}}"#
    );
    let metadata = serde_json::json!({ "quantization_config": config });
    let header = serde_json::Map::from_iter([("__metadata__".to_owned(), metadata)]);
    let mut parts = vec![
        Part(
            "w.weight",
            "I8",
            vec![rows(), cols()],
            codes(rows() * cols()),
        ),
        Part("w.weight_scale", "F32", vec![rows(), 1], f32s(rows())),
    ];
    parts.extend(matrix.map(|bytes| Part("w.v_input.weight", "F32", vec![SIZE, SIZE], bytes)));
    file_with(&parts, header)
}

pub const FILES: &[FileOf] = &[
    ("transform-input", || model("hadamard", "input", None)),
    ("transform-output", || model("hadamard", "output", None)),
    ("transform-dense", || {
        model("random-matrix", "input", Some(f32s(SIZE * SIZE)))
    }),
];
